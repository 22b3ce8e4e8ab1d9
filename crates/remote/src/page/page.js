// The page: shows the VMs and the reservations of a host, and steers these by hand. It asks /api what any
// client asks (docs/remote.md).

import { HostVms, OtherHost } from "/host.js";

const POLL_MS = 250;
const GLANCE_MS = 1000;
const OTHERS_MS = 2000;
const NS = { µs: 1e3, ms: 1e6, s: 1e9, min: 60e9, h: 3600e9 };
// Periods on the slider: so many steps of each decade, for whoever counts.
const STEPS = [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9];
const SHOWN_TARGETS = 25;
const FIRST = { period_ns: 10e6, ratio: 0.1 };

const id = (name) => document.getElementById(name);
const percent = (ratio) => `${+(ratio * 100).toFixed(ratio < 0.1 ? 2 : 1)} %`;

function time(ns) {
  const [unit, size] = Object.entries(NS).reverse().find(([, size]) => ns >= size) ?? ["µs", 1e3];
  return `${+(ns / size).toPrecision(4)} ${unit}`;
}

// ---- talking to the host ----

class NotLoggedIn extends Error {}
class Refused extends Error {
  constructor(refusal) {
    super(refusal.message);
    this.refusal = refusal;
  }
}

async function send(method, path, body) {
  const options = { method, cache: "no-store" };
  if (body) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("the host does not answer");
  }
  const answer = response.status === 204 ? {} : await response.json();
  if (answer.refused?.kind === "unauthenticated") throw new NotLoggedIn(answer.refused.message);
  if (answer.refused) throw new Refused(answer.refused);
  if (!response.ok) throw new Error(`the host answers with status ${response.status}`);
  return answer;
}

const ask = (query) => send("POST", "/api", query);

function notice(text) {
  id("notice").hidden = !text;
  // Said once, not with every poll.
  if (id("notice").textContent !== text) id("notice").textContent = text;
}

// ---- what is possible ----

let host = null; // The newest answer to {"reservations":{}}.

// The largest fraction of a period that fits on so many CPUs at once; what the target has already counts as
// free. What deciding takes in each period counts with the slice. As the daemon counts: in billionths of a CPU.
function most(parts, own, period_ns) {
  const free = host.cpus.map(({ cpu, free_ratio }) =>
    free_ratio + (own ? own.cpus.filter((its) => its === cpu).length * ((own.slice_ns + host.deciding_ns) / own.period_ns) : 0));
  const room = (free.sort((a, b) => b - a)[parts - 1] ?? 0) - host.deciding_ns / period_ns;
  return Math.max(0, Math.min(1, Math.round(room * 1e9) / 1e9));
}

let periods = [];

function periodsBetween(least, longest) {
  const all = [];
  for (let decade = 1e3; decade <= longest; decade *= 10) all.push(...STEPS.map((step) => step * decade));
  return [...new Set([least, ...all.filter((ns) => ns > least && ns < longest), longest])];
}

const nearest = (ns) =>
  periods.reduce((best, each, index) => (Math.abs(Math.log(each / ns)) < Math.abs(Math.log(periods[best] / ns)) ? index : best), 0);

// ---- a reservation ----

const cards = new Map();

class Card {
  constructor(target) {
    this.target = target;
    this.asking = false; // A request is on its way.
    this.wanted = null; // What to ask for when it has come back: the latest only.
    this.held = false; // The user is at the sliders, which are not to move by themselves.
    const element = id("card").content.firstElementChild.cloneNode(true);
    this.element = element;
    const part = (name) => element.querySelector(name);
    this.parts = {
      title: part("h3"), terms: part(".terms"), badge: part(".badge"), period: part(".period"), slice: part(".slice"), limit: part(".limit"),
      verdict: part(".verdict"), efficiency: part(".efficiency"), cost: part(".cost"), misses: part(".misses"), worst: part(".worst"),
      strip: part(".strip"), trouble: part(".trouble"), hard: part(".hard"), pause: part(".pause"), release: part(".release"),
    };
    const { title, period, slice, hard, pause, release } = this.parts;
    title.id = `title-${Card.count}`;
    element.setAttribute("aria-labelledby", title.id);
    for (const input of [period, slice]) {
      input.id = `${input.className}-${Card.count}`;
      const label = input.closest(".slider").querySelector("label");
      label.htmlFor = input.id;
      this.parts[`${input.className}Words`] = label.querySelector("output");
      input.addEventListener("input", () => this.move(input));
    }
    Card.count += 1;
    element.addEventListener("focusout", (event) => {
      if (!element.contains(event.relatedTarget)) this.letGo();
    });
    hard.addEventListener("change", () => this.want());
    pause.addEventListener("click", () => this.act(this.state.paused ? "resume" : "pause"));
    release.addEventListener("click", () => this.act("release"));
  }

  // The newest from the host.
  show(state) {
    this.state = state;
    const { title, terms, badge, efficiency, cost, misses, worst, trouble, pause, release } = this.parts;
    title.textContent = state.name === state.target.split(":").slice(1).join(":") ? state.target : `${state.name} (${state.target})`;
    const cpus = state.cpus.map((cpu) => `cpu${cpu}`).join(", ");
    terms.textContent = `${time(state.slice_ns)} every ${time(state.period_ns)} on ${cpus}`;
    badge.hidden = !state.paused;
    badge.textContent = "paused";
    efficiency.textContent = state.efficiency_ratio === null ? "–" : percent(state.efficiency_ratio);
    efficiency.title = "CPU time used of what was reserved, in the last seconds";
    cost.textContent = percent(state.host_ratio);
    cost.title = "Fraction of all CPU time of the host";
    misses.textContent = state.misses.toLocaleString();
    misses.title = `of ${state.periods.toLocaleString()} periods`;
    misses.classList.toggle("bad", state.misses > 0);
    worst.textContent = state.misses > 0 ? time(state.worst_miss_ns) : "–";
    worst.title = "The most of a slice that was missing at the end of a period";
    trouble.hidden = !state.trouble;
    trouble.textContent = state.trouble ?? "";
    pause.textContent = state.paused ? "Resume" : "Pause";
    pause.setAttribute("aria-label", `${pause.textContent} ${state.name}`);
    release.setAttribute("aria-label", `Release ${state.name}`);
    if (!this.held && !this.asking && !this.wanted) {
      this.position = { period_ns: state.period_ns, slice_ns: state.slice_ns };
      this.parts.hard.checked = state.hard;
      this.draw();
    } else {
      this.judge();
    }
    this.drawStrip();
  }

  // The sliders and their words, from the position.
  draw() {
    const { period, slice, periodWords, sliceWords } = this.parts;
    const { period_ns, slice_ns } = this.position;
    period.max = periods.length - 1;
    period.value = nearest(period_ns);
    slice.value = Math.round((slice_ns / period_ns) * 1000);
    periodWords.textContent = time(period_ns);
    sliceWords.textContent = `${time(slice_ns)} · ${percent(slice_ns / period_ns)}`;
    period.setAttribute("aria-valuetext", time(period_ns));
    slice.setAttribute("aria-valuetext", `${time(slice_ns)}, ${percent(slice_ns / period_ns)} of the period`);
    this.judge();
  }

  // Whether the position is possible; says so if not.
  judge() {
    const { verdict, limit, slice, period } = this.parts;
    const { period_ns, slice_ns } = this.position;
    const room = most(this.state.cpus.length, this.state, period_ns);
    const impossible = slice_ns / period_ns > room + 1e-9;
    // The middle of the thumb goes from 8px to 8px before the end.
    limit.style.width = room < 1 ? `calc(8px + (100% - 16px) * ${1 - room})` : "0";
    this.element.classList.toggle("wrong", impossible);
    for (const input of [slice, period]) input.setAttribute("aria-invalid", String(impossible));
    let words = this.refusal ?? "";
    if (impossible) {
      words = `Impossible: at most ${time(Math.floor(period_ns * room + 1e-3))} of ${time(period_ns)} can be had (${percent(room)}). It stays as it is.`;
    }
    if (verdict.textContent !== words) verdict.textContent = words;
    return !impossible;
  }

  move(input) {
    this.held = true;
    this.refusal = null;
    if (input === this.parts.period) {
      // The fraction stays.
      const ratio = this.position.slice_ns / this.position.period_ns;
      const period_ns = periods[input.value];
      this.position = { period_ns, slice_ns: this.whole(period_ns * ratio, period_ns) };
    } else {
      const { period_ns } = this.position;
      this.position = { period_ns, slice_ns: this.whole((period_ns * input.value) / 1000, period_ns) };
    }
    this.draw();
    if (this.judge()) this.want();
    else this.wanted = null;
  }

  // A slice that may be asked for, in whole microseconds.
  whole(ns, period_ns) {
    const slice = Math.round(ns / 1000) * 1000;
    return Math.min(period_ns, Math.max(host.min_slice_ns, slice));
  }

  letGo() {
    this.held = false;
    this.refusal = null;
  }

  // Asks for the position. While a request is on its way, only the latest one waits.
  want() {
    this.wanted = { ...this.position, hard: this.parts.hard.checked };
    if (!this.asking) this.ask();
  }

  async ask() {
    this.asking = true;
    while (this.wanted) {
      const reserve = { target: this.target, phase_ns: this.state.phase_ns, ...this.wanted };
      this.wanted = null;
      try {
        const { reservation } = await ask({ reserve });
        this.refusal = null;
        this.show(reservation);
      } catch (error) {
        // One that was overtaken need not be told.
        if (!this.wanted) this.fail(error);
      }
    }
    this.asking = false;
    this.judge();
  }

  async act(verb) {
    try {
      const { reservation } = await ask({ [verb]: { target: this.target } });
      if (verb === "release") {
        this.remove();
        id("targets-title").scrollIntoView({ block: "nearest" });
        look();
      } else {
        this.show(reservation);
      }
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    if (!(error instanceof Refused)) return trouble(error);
    this.refusal = error.message;
    this.judge();
  }

  remove() {
    this.element.remove();
    cards.delete(this.target);
  }

  // What was delivered in the last seconds: a bar for each entry, full if all was used that was reserved, marked if one was missed.
  drawStrip() {
    const { strip } = this.parts;
    const { recent, period_ns } = this.state;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [strip.clientWidth, 48];
    if (strip.width !== width * scale || strip.height !== height * scale) [strip.width, strip.height] = [width * scale, height * scale];
    const context = strip.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const color = (name) => getComputedStyle(this.element).getPropertyValue(name);
    const [used, missed] = [resolve(color("--accent")), resolve(color("--wrong"))];
    const span = Math.max(5e9, 20 * period_ns);
    const x = (ns) => width - ((host.at_ns - ns) / span) * width;
    let [all, had, misses] = [0, 0, 0];
    for (const entry of recent) {
      const [from, to] = [x(entry.end_ns - entry.periods * period_ns), x(entry.end_ns)];
      if (to < 0) continue;
      const part = entry.reserved_ns ? Math.min(1, entry.used_ns / entry.reserved_ns) : 0;
      const gap = to - from > 3 ? 1 : 0;
      context.fillStyle = entry.misses ? missed : used;
      context.fillRect(from, height - part * (height - 6), Math.max(0.5, to - from - gap), part * (height - 6));
      if (entry.misses) context.fillRect(from, 0, Math.max(1.5, to - from - gap), 3);
      all += entry.reserved_ns;
      had += entry.used_ns;
      misses += entry.misses;
    }
    const share = all ? `${percent(had / all)} of the reserved CPU time used` : "nothing yet";
    strip.setAttribute("aria-label", `The last ${time(span)}: ${share}, ${misses} missed`);
  }
}
Card.count = 0;

// A color of the style sheet, for the canvas: custom properties are not computed.
const probe = document.createElement("span");
function resolve(color) {
  probe.style.color = color;
  return getComputedStyle(probe).color;
}

// ---- the whole ----

function showHost(all) {
  host = all;
  if (periods[0] !== all.min_period_ns || periods.at(-1) !== all.max_period_ns) {
    periods = periodsBetween(all.min_period_ns, all.max_period_ns);
  }
  const list = id("cpus");
  while (list.children.length > all.cpus.length) list.lastElementChild.remove();
  all.cpus.forEach((room, index) => {
    const item = list.children[index] ?? list.appendChild(newCpu());
    const [words, meter] = item.children;
    words.firstElementChild.textContent = `cpu${room.cpu}`;
    words.lastElementChild.textContent = `${percent(room.reserved_ratio)} reserved, ${percent(room.free_ratio)} free`;
    meter.value = room.reserved_ratio;
    meter.setAttribute("aria-label", `cpu${room.cpu}: ${words.lastElementChild.textContent}`);
  });
  id("mechanism").textContent = `Enforced by ${all.mechanism}. ${percent(all.reserve_ratio)} of each CPU is never reserved.${all.acting ? "" : " The daemon only observes."}`;
  id("none").hidden = all.reservations.length > 0;
  const there = new Set(all.reservations.map(({ target }) => target));
  for (const [target, card] of cards) if (!there.has(target)) card.remove();
  for (const state of all.reservations) {
    let card = cards.get(state.target);
    if (!card) {
      card = new Card(state.target);
      cards.set(state.target, card);
      id("reservations").append(card.element);
    }
    card.show(state);
  }
}

function newCpu() {
  const item = document.createElement("li");
  const words = document.createElement("div");
  words.className = "words";
  words.append(document.createElement("span"), document.createElement("span"));
  item.append(words, document.createElement("meter"));
  return item;
}

// A function for why a VM was or was not put first, from such a host.
const askWhyAt = (path) => async (vm) => {
  try {
    return (await send("POST", `${path}/why`, { status: { vm } })).why;
  } catch {
    // It may be gone by now; what else is wrong the poll says.
    return null;
  }
};

const vms = new HostVms(askWhyAt(""));

// The status of all VMs; none if the daemon has none.
async function status() {
  try {
    return (await ask({ status: {} })).status;
  } catch {
    return null;
  }
}

async function glance() {
  if (connected && !document.hidden) {
    const all = await status();
    id("glance").hidden = !all;
    if (all) vms.show(all);
  }
  setTimeout(glance, GLANCE_MS);
}

// ---- other hosts ----

let others = [];

// What whoever has logged in may do, and the other hosts there are to see.
async function begin() {
  const { may_change, hosts } = await send("GET", "/session");
  document.body.classList.toggle("looks", !may_change);
  for (const other of others) other.element.remove();
  others = hosts.map((name) => {
    const path = `/hosts/${encodeURIComponent(name)}`;
    return new OtherHost(name, async () => (await send("POST", path, { status: {} })).status, askWhyAt(path));
  });
  id("others").append(...others.map((other) => other.element));
  id("others").hidden = others.length === 0;
}

function lookAtOthers() {
  if (connected && !document.hidden) others.forEach((other) => other.look());
}

let targets = { targets: [], left_off: 0 };

async function look() {
  try {
    ({ targets } = await ask({ targets: {} }));
    showTargets();
  } catch (error) {
    trouble(error);
  }
}

function showTargets() {
  const text = id("filter").value.trim().toLowerCase();
  const has = (value) => value?.toLowerCase().includes(text);
  const found = targets.targets.filter((each) => has(each.name) || has(each.unit) || has(each.target));
  id("targets").replaceChildren(...found.slice(0, SHOWN_TARGETS).map(row));
  const more = found.length - SHOWN_TARGETS + (text ? 0 : targets.left_off);
  id("left-off").hidden = more <= 0;
  id("left-off").textContent = `and ${more} more; type to find one`;
}

function row(found) {
  const line = document.createElement("tr");
  const cell = (text, kind = "") => {
    const data = line.insertCell();
    data.textContent = text;
    data.className = kind;
    return data;
  };
  const name = cell(found.name);
  if (found.unit) {
    const unit = document.createElement("div");
    unit.className = "unit";
    unit.textContent = found.unit;
    name.append(unit);
  }
  cell(found.target, "target");
  cell(percent(found.cpu_ratio), "number");
  cell(found.threads, "number");
  const last = cell("");
  if (found.reserved) {
    last.textContent = "reserved";
  } else {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "reserve";
    button.textContent = "Reserve";
    button.setAttribute("aria-label", `Reserve for ${found.name} (${found.target})`);
    button.addEventListener("click", () => reserve(found.target, button));
    last.append(button);
  }
  return line;
}

// A first reservation, to be steered from there: what is usual, or what fits of it.
async function reserve(target, button) {
  button.disabled = true;
  const { period_ns } = FIRST;
  const asked = (slice_ns) => ask({ reserve: { target, period_ns, slice_ns } });
  try {
    try {
      await asked(period_ns * FIRST.ratio);
    } catch (error) {
      if (!error.refusal?.fit?.slice_ns) throw error;
      await asked(error.refusal.fit.slice_ns);
    }
    notice("");
    showHost((await ask({ reservations: {} })).reservations);
    const card = cards.get(target);
    card?.element.scrollIntoView({ block: "nearest" });
    card?.parts.slice.focus();
    await look();
  } catch (error) {
    trouble(error);
  }
  button.disabled = false;
}

function trouble(error) {
  if (error instanceof NotLoggedIn) return showLogin(true);
  notice(`${error.message[0].toUpperCase()}${error.message.slice(1)}.`.replace(/\.\.$/, "."));
}

function showLogin(yes) {
  const was = !id("login").hidden;
  id("login").hidden = !yes;
  id("desk").hidden = yes;
  id("logout").hidden = yes;
  if (yes && !was) id("password").focus();
}

let connected = false;

async function poll() {
  if (!document.hidden && id("login").hidden) {
    try {
      const { reservations } = await ask({ reservations: {} });
      showLogin(false);
      showHost(reservations);
      if (!connected) {
        await begin();
        connected = true;
        notice("");
        look();
        lookAtOthers();
      }
    } catch (error) {
      connected = false;
      trouble(error);
    }
  }
  setTimeout(poll, POLL_MS);
}

id("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await send("POST", "/session", { password: id("password").value });
    id("password").value = "";
    notice("");
    id("login").hidden = true;
  } catch (error) {
    notice(`${error.message}.`);
    id("password").select();
  }
});
id("logout").addEventListener("click", async () => {
  await send("DELETE", "/session").catch(trouble);
  connected = false;
  showLogin(true);
});
id("filter").addEventListener("input", showTargets);
id("look").addEventListener("click", look);
window.addEventListener("resize", () => cards.forEach((card) => card.drawStrip()));
probe.hidden = true;
document.body.append(probe);
id("host").textContent = location.hostname;
id("host").hidden = false;
document.title = `${location.hostname}: frontdesk`;
id("glance").append(vms.element);
poll();
glance();
setInterval(lookAtOthers, OTHERS_MS);
