// The host at a glance: each VM, who waits in it and for what, and why it was or was not put first. From
// the answers to {"status":{}}, as `frontdesk status` has them. Names come from guests and are only ever
// set as text.

const percent = (ratio) => `${+(ratio * 100).toFixed(ratio < 0.1 ? 1 : 0)} %`;
const seconds = (ns) => `${(ns / 1e9).toFixed(1)} s`;
const sum = (list, of) => list.reduce((all, each) => all + of(each), 0);

// A time in the unit that suits it, as the command writes it.
function duration(ns) {
  if (ns === 0) return "0";
  const units = [[3600e9, "h"], [60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  const [unit, name] = units.find(([unit]) => ns >= unit) ?? units.at(-1);
  return `${(ns / unit).toFixed(ns / unit < 9.95 ? 1 : 0)} ${name}`;
}

// A parameter's time, such as "1s 24ms".
const UNITS = { h: 3600e9, m: 60e9, s: 1e9, ms: 1e6, us: 1e3, ns: 1 };
const nanos = (text) => sum([...text.matchAll(/(\d+)(ms|us|ns|h|m|s)/g)], ([, number, unit]) => number * UNITS[unit]);

// What became of events, in the words of `frontdesk status --why`.
const REASONS = {
  boosted: "boosted",
  already_boosted: "while it was boosted already",
  not_correlated: "not boosted: no I/O-bound task is known to wait for such",
  no_io_bound_task: "not boosted: none of its tasks is believed to be I/O-bound",
  budget_spent: "not boosted: pb_ratio is used up",
  limit_reached: "not boosted: boost_limit is used up",
  off: "not boosted: boosting is off",
  paused: "not boosted: it is paused",
  observed: "would have boosted: it is only observed",
  reserved: "would have boosted: it has a reservation",
};

const CAUSES = { enter: "the Enter key", button: "a mouse button", sound: "sound" };

function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const taskName = (task) => (task.name ? `${task.name}${task.pid === null ? "" : ` (${task.pid})`}` : `task 0x${task.id.toString(16)}`);

function outcomes(what, counts) {
  const told = Object.entries(REASONS).filter(([reason]) => counts[reason] > 0);
  if (!told.length) return [];
  return [`${what}: ${told.map(([reason, words]) => `${counts[reason].toLocaleString()} ${words}`).join("; ")}.`];
}

const total = (counts) => sum(Object.keys(REASONS), (reason) => counts[reason]);

// How long an answer may take, if that is longer than an I/O-bound task runs.
function patience({ policy: { tavs } }, vm) {
  const threshold = nanos(tavs.io_threshold);
  if (!vm.identity || vm.patience_ns <= threshold) return [];
  const first = Math.min(Math.max(nanos(tavs.patience), threshold), nanos(tavs.max_boost));
  const unlearnt = vm.patience_ns === first;
  const reason = unlearnt
    ? "a guest may finish a tick before it runs the task, and how long this one takes is not known yet"
    : "its guest has been seen to finish a tick before it runs the task";
  return [`A boosted vCPU is given ${duration(vm.patience_ns)} of CPU time to answer: ${reason}.`];
}

// The ports whose packets woke an I/O-bound task, with their counters.
function ports({ policy: { tavs } }, vm) {
  if (!vm.ports.length) return "Ports: none has led to an I/O-bound task yet.";
  const most = 2 ** Math.min(tavs.counter_bits, 8) - 1;
  const told = vm.ports.map(({ protocol, port, counter, boosts }) => {
    return `${protocol.toLowerCase()} ${port} (${counter} of ${most}${boosts ? ", boosts" : ""})`;
  });
  return `Ports: ${told.join(", ")}.`;
}

// What the operator can do about the reason that kept most events from boosting, in the words of the command.
function advice({ daemon, policy: { tavs } }, vm) {
  const { recent } = vm;
  const packets = recent.packets.map(({ outcomes }) => outcomes);
  const all = [recent.other_packets, recent.pending_reads, recent.reads, ...packets];
  const of = (reason) => sum(all, (counts) => counts[reason]);
  if (!daemon.acting) return "run the daemon without --observe for it to act.";
  if (!vm.identity) {
    return "start its QEMU with frontdesk's plugin, or see `frontdesk doctor` for other ways to tell its tasks " +
      "apart.";
  }
  if (!sum(all, total)) {
    return vm.multimedia?.players.length
      ? null
      : "if somebody works in it now, its network or disk cannot be followed; `frontdesk doctor` and the daemon's " +
        "log say more.";
  }
  const against = Object.keys(REASONS).filter((reason) => reason !== "boosted" && reason !== "already_boosted");
  const reason = against.reduce((most, next) => (of(next) >= of(most) ? next : most));
  if (!of(reason)) return null;
  switch (reason) {
    case "budget_spent":
      return "its I/O-bound work uses more CPU than may be boosted. If people wait for it, give this VM a larger " +
        "pb_ratio: other VMs lose nothing but the order.";
    case "limit_reached":
      return "all VMs share the CPU time that the host gives to real time; a larger budget for its control group " +
        "raises boost_limit.";
    case "not_correlated":
      if (of("boosted")) return null;
      return "nothing is wrong if nobody waits for these. A port is learnt after a few packets that wake an " +
        "I/O-bound task.";
    case "no_io_bound_task": {
      if (vm.io_bound_count) return null;
      const runs = Math.trunc(tavs.belief_threshold / Math.max(tavs.positive_evidence, 1)) + 1;
      const longest = duration(nanos(tavs.io_threshold));
      return `nothing is wrong if it only computes. A task is believed to be I/O-bound after some ${runs} runs of ` +
        `at most ${longest} right after an event; one longer run undoes several.`;
    }
    case "off":
      return "set pb_ratio above 0 and off = false for this VM, and reload the daemon, to boost it.";
    case "reserved":
      return "nothing is wrong. `frontdesk release` ends the reservation, and it is boosted again.";
    default:
      return null;
  }
}

// What is worth a sentence at a glance: what is not heard, and disks where nobody comes first.
function notes(vm) {
  const disks = (vm.disks ?? []).filter(({ trouble }) => trouble);
  const told = disks.map(({ name, trouble }) => `disk ${name}: nobody comes first, for ${trouble}`);
  return [...(vm.unheard ?? []), ...told];
}

// Why a VM was or was not put first of late, sentence by sentence.
export function why(status, vm) {
  const { recent } = vm;
  const lines = [];
  for (const { protocol, port, outcomes: counts } of recent.packets) lines.push(...outcomes(`Packets to ${protocol.toLowerCase()} ${port}`, counts));
  lines.push(
    ...outcomes("Packets to further ports", recent.other_packets),
    ...outcomes("Reads about to end", recent.pending_reads),
    ...outcomes("Reads that ended", recent.reads),
    ...outcomes("Tasks seen after their boost had ended", recent.unanswered),
  );
  if (recent.boosts_ended) lines.push(`In ${recent.hits} of ${recent.boosts_ended} boosts an I/O-bound task ran, or the VM slept again.`);
  if (!lines.length) lines.push(`Nothing came for it in the last ${recent.window_seconds} s.`);
  lines.push(ports(status, vm));
  const waiting = vm.tasks.filter((task) => task.io_bound).map(taskName);
  if (waiting.length) lines.push(`Believed to be I/O-bound: ${waiting.join(", ")}.`);
  lines.push(...patience(status, vm));
  const background = vm.asymmetric?.background ?? [];
  if (background.length) {
    const load = ({ task, load_permille }) => `${taskName(vm.tasks.find(({ id }) => id === task) ?? { id: task })} (${percent(load_permille / 1000)})`;
    lines.push(`Background work: ${background.map(load).join(", ")}.`);
  }
  for (const disk of vm.disks ?? []) {
    for (const { name, task, interactive, served } of disk.report.applications) {
      const who = name ?? (task ? `task 0x${task.toString(16)}` : "somebody");
      lines.push(`Disk ${disk.name}, ${who}: ${served[0]} High, ${served[1]} Common, ${served[2]} Low; ${interactive ? "a person is thought to wait for it" : "it reads whether or not a person did something"}.`);
    }
  }
  if (vm.debt_ns > 0) lines.push(`It had ${seconds(vm.debt_ns)} of CPU time more than its share, and repays it.`);
  if (vm.trouble) lines.push(`Trouble: ${vm.trouble}.`);
  lines.push(...notes(vm).map((note) => `Note: ${note}.`));
  const todo = advice(status, vm);
  if (todo) lines.push(`Advice: ${todo}`);
  return lines;
}

// What goes on in a VM now, as short marks.
function marks(vm, atNs) {
  const all = [];
  if (vm.paused) all.push("paused");
  if (vm.standing === "reserved") all.push("reserved");
  if (vm.standing === "observed") all.push("observed only");
  if (vm.vcpus.some(({ boosted }) => boosted)) all.push("boosted");
  for (const player of vm.multimedia?.players ?? []) all.push(`${player.frame_rate.toFixed(1)} of ${player.desired_rate.toFixed(0)} frames/s`);
  if (vm.multimedia?.share_permille > 1000) all.push(`share × ${vm.multimedia.share_permille / 1000}`);
  const episode = vm.asymmetric?.episode;
  if (episode) {
    const cause = typeof episode.cause === "object" ? `port ${episode.cause.port}` : CAUSES[episode.cause];
    all.push(`somebody waits since ${cause}, ${seconds(Math.max(0, atNs - episode.since_ns))} ago`);
    if (episode.slow.length) all.push(`slow: ${episode.slow.map((vcpu) => `vCPU ${vcpu}`).join(", ")}`);
  }
  return all;
}

class VmCard {
  constructor(name, askAbout) {
    this.name = name;
    this.askAbout = askAbout;
    this.element = element("article", "vm");
    const head = element("div", "head");
    this.marks = element("div", "marks");
    head.append(element("h3", "", name), this.marks);
    this.numbers = element("dl");
    this.trouble = element("p", "trouble small");
    this.notes = element("p", "small notes");
    this.details = element("details");
    this.why = element("ul", "why");
    this.details.append(element("summary", "", "Why"), this.why);
    this.element.append(head, this.numbers, this.trouble, this.notes, this.details);
    this.details.addEventListener("toggle", () => this.details.open && this.explain());
  }

  show(vm, atNs) {
    const before = this.before;
    const now = { atNs, pid: vm.pid, ran: sum(vm.vcpus, (v) => v.ran_ns), stolen: sum(vm.vcpus, (v) => v.stolen_ns), boosts: sum(vm.vcpus, (v) => v.boosts) };
    // One that was started anew counts from nothing.
    if (before?.pid === vm.pid && atNs > before.atNs) {
      const passed = atNs - before.atNs;
      const [hits, boosts] = [vm.recent.hits, vm.recent.boosts_ended];
      const tell = { CPU: percent((now.ran - before.ran) / passed), Stolen: percent((now.stolen - before.stolen) / passed), "Boosts/s": (((now.boosts - before.boosts) / passed) * 1e9).toFixed(0), Hits: boosts ? percent(hits / boosts) : "–" };
      this.numbers.replaceChildren(...Object.entries(tell).map(([name, value]) => {
        const pair = element("div");
        pair.append(element("dt", "", name), element("dd", "", value));
        return pair;
      }));
    }
    // Between two answers so close to each other rates would jump.
    if (before?.pid !== vm.pid || atNs - before.atNs > 0.5e9) this.before = now;
    this.marks.replaceChildren(...marks(vm, atNs).map((mark) => element("span", "badge", mark)));
    const trouble = vm.trouble ?? (vm.identity ? "" : "its tasks cannot be told apart");
    this.trouble.hidden = !trouble;
    this.trouble.textContent = trouble;
    this.notes.textContent = notes(vm).map((note) => `${note}.`).join(" ");
    this.notes.hidden = !this.notes.textContent;
  }

  async explain() {
    const status = await this.askAbout(this.name);
    const vm = status?.vms[0];
    if (vm) this.why.replaceChildren(...why(status, vm).map((line) => element("li", "", line)));
  }
}

// The VMs of a host. `ask` gets a status: of all VMs, or of one by its name.
export class HostVms {
  constructor(ask) {
    this.ask = ask;
    this.cards = new Map();
    this.element = element("div");
    this.list = element("div", "vms");
    this.none = element("p", "", "No VM is followed.");
    this.daemon = element("p", "small daemon");
    this.element.append(this.none, this.list, this.daemon);
  }

  show(status) {
    const there = new Set(status.vms.map(({ name }) => name));
    for (const [name, card] of this.cards) {
      if (!there.has(name)) {
        card.element.remove();
        this.cards.delete(name);
      }
    }
    for (const vm of status.vms) {
      let card = this.cards.get(vm.name);
      if (!card) {
        card = new VmCard(vm.name, this.ask);
        this.cards.set(vm.name, card);
        this.list.append(card.element);
      }
      card.show(vm, status.at_ns);
      if (card.details.open) card.explain();
    }
    this.none.hidden = status.vms.length > 0;
    const { daemon } = status;
    const { count, p50_ns, p99_ns } = daemon.decision_latency;
    const latency = count ? ` Decisions take ${Math.round(p50_ns / 1e3)} µs, one in a hundred ${Math.round(p99_ns / 1e3)} µs and more.` : "";
    const lost = daemon.lost_events ? ` ${daemon.lost_events.toLocaleString()} events were lost.` : "";
    this.daemon.textContent = `${daemon.acting ? `Acting by ${daemon.mechanism}.` : "Observing only."}${latency}${lost}`;
  }
}

// A host in a few words.
function inShort(status) {
  const { vms } = status;
  const those = (what, list) => (list.length ? [`${what}: ${list.map(({ name }) => name).join(", ")}`] : []);
  const waiting = those("somebody waits in", vms.filter((vm) => vm.asymmetric?.episode));
  const playing = those("films in", vms.filter((vm) => vm.multimedia?.players.length));
  const troubled = those("trouble with", vms.filter((vm) => vm.trouble || !vm.identity));
  const boosts = sum(vms, (vm) => vm.recent.boosts_ended);
  const counts = `${vms.length} ${vms.length === 1 ? "VM" : "VMs"}, ${boosts.toLocaleString()} boosts of late`;
  return [counts, ...(status.daemon.acting ? [] : ["observing only"]), ...waiting, ...playing, ...troubled].join("; ");
}

// Another host, folded up until somebody wants to see its VMs. `ask` as above; it throws what is wrong.
export class OtherHost {
  constructor(name, ask) {
    this.ask = ask;
    this.vms = new HostVms((vm) => ask(vm).catch(() => null));
    this.element = element("details", "other-host");
    this.short = element("span", "small");
    const summary = element("summary");
    summary.append(element("strong", "", name), this.short);
    const link = element("a", "small", "Its own page");
    link.href = `https://${name}/`;
    link.rel = "noreferrer";
    this.element.append(summary, this.vms.element, link);
    this.element.addEventListener("toggle", () => this.look());
  }

  // One that does not answer is not asked again before it does, or the server has lost patience.
  async look() {
    if (this.asking) return;
    this.asking = true;
    try {
      const status = await this.ask();
      this.short.textContent = inShort(status);
      this.short.classList.remove("trouble");
      if (this.element.open) this.vms.show(status);
    } catch (error) {
      this.short.textContent = error.message;
      this.short.classList.add("trouble");
    }
    this.asking = false;
  }
}
