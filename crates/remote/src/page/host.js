// The host at a glance: each VM, who waits in it and for what, from the answers to {"status":{}}, as
// `frontdesk status` has them; and why it was or was not put first, in the words of `frontdesk status --why`.
// Names come from guests and are only ever set as text.

const percent = (ratio) => `${+(ratio * 100).toFixed(ratio < 0.1 ? 1 : 0)} %`;
const seconds = (ns) => `${(ns / 1e9).toFixed(1)} s`;
const sum = (list, of) => list.reduce((all, each) => all + of(each), 0);

const CAUSES = { enter: "the Enter key", button: "a mouse button", sound: "sound" };

function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// What is worth a sentence at a glance: what is not heard, and disks where nobody comes first.
function notes(vm) {
  const disks = (vm.disks ?? []).filter(({ trouble }) => trouble);
  const told = disks.map(({ name, trouble }) => `disk ${name}: nobody comes first, for ${trouble}`);
  return [...(vm.unheard ?? []), ...told];
}

// How long a decision is worth a mark: a boost is over before anybody has seen it.
const SHOWN_NS = 2e9;
// Why somebody waits who would be answered first.
const TURNS = ["budget_spent", "limit_reached", "overdrawn"];

// What the latest event that somebody waits for was, and whether that goes first, if it came just now.
function latest({ decisions }, atNs) {
  const last = decisions.findLast(({ verdict }) => verdict === "boosted" || TURNS.includes(verdict));
  if (!last || atNs - last.at_ns > SHOWN_NS) return [];
  const { packet } = last.cause;
  const event = packet ? `a packet for ${packet.protocol.toUpperCase()} port ${packet.port}` : last.cause === "unanswered" ? "an answer that took long" : "a read of the disk";
  return [last.verdict === "boosted" ? `first, for ${event}` : `waits for its turn, for ${event}`];
}

// What goes on in a VM now, as short marks.
function marks(vm, atNs) {
  const all = [];
  if (vm.paused) all.push("paused");
  if (vm.standing === "reserved") all.push("reserved");
  if (vm.standing === "observed") all.push("observed only");
  if (vm.vcpus.some(({ boosted }) => boosted)) all.push("boosted");
  all.push(...latest(vm.recent, atNs));
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

// Requests of each class that were served, of all its disks; undefined if it has none that tell.
function served(vm) {
  const reports = (vm.disks ?? []).flatMap(({ report }) => report ?? []);
  return reports.length ? [0, 1, 2].map((at) => sum(reports, (report) => report.served[at])) : undefined;
}

class VmCard {
  constructor(name, askWhy) {
    this.name = name;
    this.askWhy = askWhy;
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
    const now = { atNs, pid: vm.pid, ran: sum(vm.vcpus, (v) => v.ran_ns), stolen: sum(vm.vcpus, (v) => v.stolen_ns), boosts: sum(vm.vcpus, (v) => v.boosts), served: served(vm) };
    // One that was started anew counts from nothing.
    if (before?.pid === vm.pid && atNs > before.atNs) {
      const passed = atNs - before.atNs;
      const [hits, boosts] = [vm.recent.hits, vm.recent.boosts_ended];
      const tell = { CPU: percent((now.ran - before.ran) / passed), Stolen: percent((now.stolen - before.stolen) / passed), "Boosts/s": (((now.boosts - before.boosts) / passed) * 1e9).toFixed(0), Hits: boosts ? percent(hits / boosts) : "–" };
      const rates = now.served?.map((count, at) => Math.max(0, ((count - (before.served?.[at] ?? count)) / passed) * 1e9).toFixed(0));
      if (rates) tell["Disk/s: high, common, low"] = rates.join(", ");
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
    const paragraphs = await this.askWhy(this.name);
    if (paragraphs) this.why.replaceChildren(...paragraphs.map((paragraph) => element("li", "", paragraph)));
  }
}

// The VMs of a host. `askWhy` gets the paragraphs about one, by its name; null if there are none.
export class HostVms {
  constructor(askWhy) {
    this.askWhy = askWhy;
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
        card = new VmCard(vm.name, this.askWhy);
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

// Another host, folded up until somebody wants to see its VMs. `ask` gets its status, and throws what is
// wrong; `askWhy` as above.
export class OtherHost {
  constructor(name, ask, askWhy) {
    this.ask = ask;
    this.vms = new HostVms(askWhy);
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
