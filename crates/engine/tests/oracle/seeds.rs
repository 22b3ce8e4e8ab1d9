//! Events from seeds, as lines: they stay the same whatever becomes of the engine's types.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng as _;
use std::fmt::Display;

const VMS: u64 = 3;
const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// The parameters that a seed may get: their name, and what is not as in [`DEFAULTS`].
const CONFIGS: [(&str, &str); 5] = [
    ("defaults", ""),
    // A belief that is soon reached, as in the property tests.
    ("low", "tavs.belief_threshold=4 tavs.negative_evidence=5 tavs.counter_bits=1 tavs.tasks_per_vcpu=16"),
    (
        "generous",
        "tavs.belief_threshold=4 tavs.negative_evidence=5 tavs.pb_ratio=1 tavs.max_boost_ns=2000000 tavs.pb_period_ns=20000000 \
         ledger.period_ns=5000000 ledger.horizon_ns=20000000 ledger.min_share=0.3",
    ),
    (
        "uncorrelated",
        "tavs.belief_threshold=0 tavs.negative_evidence=5 tavs.correlation=false tavs.pb_ratio=0.02 tavs.boost_limit=0.1 \
         tavs.pb_period_ns=100000000",
    ),
    (
        "wide",
        "tavs.belief_threshold=4 tavs.inspection_window=8 tavs.io_threshold_ns=2000000 tavs.belief_min=-20 \
         tavs.negative_evidence=5 tavs.time_slice_ns=5000000 tavs.counter_bits=4",
    ),
];

/// All parameters, so that what is frozen does not depend on the defaults.
const DEFAULTS: &str = "tavs.io_threshold_ns=500000 tavs.positive_evidence=5 tavs.negative_evidence=20 \
    tavs.belief_threshold=20 tavs.belief_min=-100 tavs.belief_max=300 tavs.pb_ratio=0.125 tavs.boost_limit=1 \
    tavs.pb_period_ns=1000000000 tavs.patience_ns=6000000 tavs.max_boost_ns=10000000 tavs.correlation=true tavs.inspection_window=3 \
    tavs.counter_bits=2 tavs.tasks_per_vcpu=256 tavs.time_slice_ns=30000000 ledger.period_ns=50000000 \
    ledger.horizon_ns=250000000 ledger.min_share=0.05";

/// What is also not as in the defaults where tasks behave by chance: few would ever be believed in.
const TRUSTING: &str = "tavs.belief_threshold=4 tavs.negative_evidence=1";

/// The line of a seed's parameters, with their name.
pub(crate) fn config(seed: u64, trusting: bool) -> (&'static str, String) {
    let (name, others) = CONFIGS[usize::try_from(seed).unwrap() % CONFIGS.len()];
    let first = if trusting { TRUSTING } else { "" };
    let others: Vec<&str> = first.split_whitespace().chain(others.split_whitespace()).collect();
    let key = |field: &str| field.split_once('=').map(|(key, _)| key.to_owned());
    let own = DEFAULTS
        .split_whitespace()
        .map(|field| others.iter().find(|other| key(other) == key(field)).copied().unwrap_or(field));
    (name, own.fold("config".to_owned(), |line, field| format!("{line} {field}")))
}

struct Lines {
    dice: Pcg64Mcg,
    now: u64,
    lines: Vec<String>,
}

impl Lines {
    fn new(seed: u64) -> Lines {
        let mix = (u128::from(seed) + 1).wrapping_mul(0x2545_f491_4f6c_dd1d_9e37_79b9_7f4a_7c15);
        Lines { dice: Pcg64Mcg::new(mix), now: 0, lines: Vec::new() }
    }

    /// A number from 0 to `end - 1`.
    fn below(&mut self, end: u64) -> u64 {
        u64::try_from((u128::from(self.dice.next_u64()) * u128::from(end)) >> 64).unwrap()
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn say(&mut self, told: impl Display) {
        self.lines.push(format!("{} {told}", self.now));
    }

    fn after(&mut self, nanos: u64, told: impl Display) {
        self.now += nanos;
        self.say(told);
    }

    /// Says something between `least` and `most` nanoseconds later.
    fn within(&mut self, least: u64, most: u64, told: impl Display) {
        let nanos = least + self.below(most - least + 1);
        self.after(nanos, told);
    }
}

/// Any event after any other, in the mix of the property tests: mostly a little apart, now and then far apart
/// or late. Few VMs, vCPUs, tasks and ports have most of them, so that tasks are believed in and boosts do
/// happen.
pub(crate) fn random(seed: u64, events: usize) -> Vec<String> {
    let mut lines = Lines::new(seed);
    (0..VMS).for_each(|vm| lines.say(format_args!("vm-added vm={vm} vcpus=2 weight=1024")));
    for _ in 0..events {
        let told = anything(&mut lines);
        let now = lines.now;
        match lines.below(100) {
            0..96 => lines.within(0, 100 * US, told),
            96..98 => lines.within(0, 100 * MS, told),
            _ => {
                lines.now = now.saturating_sub(lines.below(100 * MS));
                lines.say(told);
                lines.now = now;
            }
        }
    }
    lines.lines
}

fn anything(dice: &mut Lines) -> String {
    let vm = if dice.one_in(3) { dice.below(VMS) } else { 0 };
    let vcpu = if dice.one_in(4) { dice.below(4) } else { 0 };
    let task = if dice.one_in(4) { dice.below(40) } else { dice.below(3) };
    let port = if dice.one_in(4) { dice.below(4) } else { 0 };
    let thread = match dice.below(2) {
        0 => format!("vcpu:{vcpu}"),
        _ => format!("emulator:{}", dice.below(1 << 16)),
    };
    match dice.below(93) {
        0 if dice.one_in(4) => format!("vm-removed vm={vm}"),
        0 | 1 => format!("vm-added vm={vm} vcpus={} weight={}", dice.below(4), dice.below(1 << 32)),
        2..10 => format!("run vm={vm} thread={thread} pcpu={}", dice.below(1 << 16)),
        10..18 => format!("stop vm={vm} thread={thread} runnable={}", dice.one_in(2)),
        18..22 => {
            let by = if dice.one_in(2) { vcpu.to_string() } else { "none".to_owned() };
            format!("wake vm={vm} thread={thread} by={by}")
        }
        22..38 => format!("task-switch vm={vm} vcpu={vcpu} task={task}"),
        38..42 => format!("halt vm={vm} vcpu={vcpu}"),
        42..46 => format!("resume vm={vm} vcpu={vcpu}"),
        46 => format!("ipi vm={vm} vcpu={vcpu} to={} vector={}", dice.dice.next_u64(), dice.below(256)),
        47..63 => {
            let protocol = if dice.one_in(4) { "tcp" } else { "udp" };
            format!("packet vm={vm} protocol={protocol} port={port}")
        }
        63..67 => format!("block-read vm={vm} request={}", dice.below(8)),
        67..71 => format!("block-pending vm={vm}"),
        71..75 => format!("block-done vm={vm} request={}", dice.below(8)),
        75 => {
            let vm = if dice.one_in(2) { vm.to_string() } else { "none".to_owned() };
            format!("lost vm={vm} count={}", dice.below(1000))
        }
        76 => format!("vm-reset vm={vm}"),
        77 => format!("vm-paused vm={vm}"),
        78..80 => format!("vm-resumed vm={vm}"),
        80 => format!("vcpu-added vm={vm} vcpu={}", dice.below(600)),
        81 => format!("vcpu-removed vm={vm} vcpu={vcpu}"),
        82 => format!("weight vm={vm} weight={}", dice.below(1 << 32)),
        83 => format!("interrupt vm={vm} vcpu={vcpu} vector={}", dice.below(256)),
        84 => format!("ipi-taken vm={vm} vcpu={vcpu}"),
        _ => format!("task-seen vm={vm} vcpu={vcpu} task={task}"),
    }
}

/// One physical CPU of a host, on which a mixed VM with one vCPU, one with two and a hog have their turns, as
/// a source tells of them.
pub(crate) fn host(seed: u64, events: usize) -> Vec<String> {
    let mut host = Host { lines: Lines::new(seed), running: (0, 0), requests: 0 };
    for (vm, vcpus, weight) in [(0, 1, 1024), (1, 2, 512), (2, 1, 1024)] {
        host.lines.say(format_args!("vm-added vm={vm} vcpus={vcpus} weight={weight}"));
    }
    host.lines.after(100 * US, "run vm=0 thread=vcpu:0 pcpu=0");
    while host.lines.lines.len() < events {
        match host.lines.below(40) {
            0..12 => host.slice(),
            12..26 => host.request(),
            26..34 => host.read(),
            34..36 => host.forks(),
            36 => host.sleep(),
            37 => {
                let port = host.lines.below(1000);
                host.lines.within(0, MS, format_args!("packet vm={} protocol=udp port={port}", port % VMS));
            }
            38 => host.looks(),
            _ => host.trouble(),
        }
    }
    host.lines.lines
}

struct Host {
    lines: Lines,
    /// The VM and the vCPU that have the CPU.
    running: (u64, u64),
    requests: u64,
}

impl Host {
    /// Another vCPU gets the CPU, if it is another.
    fn turn(&mut self, vm: u64, vcpu: u64, runnable: bool) {
        let (from, index) = self.running;
        if (from, index) != (vm, vcpu) || !runnable {
            self.lines.say(format_args!("stop vm={from} thread=vcpu:{index} runnable={runnable}"));
            self.lines.within(US, 5 * US, format_args!("run vm={vm} thread=vcpu:{vcpu} pcpu=0"));
            self.running = (vm, vcpu);
        }
    }

    /// Guests compute until the next has its turn.
    fn slice(&mut self) {
        let (vm, vcpu) = match self.lines.below(4) {
            0 => (0, 0),
            1 => (1, 0),
            2 => (1, 1),
            _ => (2, 0),
        };
        self.lines.now += MS + self.lines.below(20 * MS);
        self.turn(vm, vcpu, true);
        if self.lines.one_in(3) {
            let task = 100 + self.lines.below(4);
            self.lines.within(10 * US, MS, format_args!("task-switch vm={vm} vcpu={vcpu} task={task}"));
        }
    }

    /// The emulator thread works; the vCPU that has the CPU waits for it.
    fn emulator(&mut self, vm: u64, by: Option<u64>, doing: &[String]) {
        let by = by.map_or("none".to_owned(), |by| by.to_string());
        let (running, vcpu) = self.running;
        self.lines.within(0, 20 * US, format_args!("wake vm={vm} thread=emulator:0 by={by}"));
        self.lines.within(US, 10 * US, format_args!("stop vm={running} thread=vcpu:{vcpu} runnable=true"));
        self.lines.within(0, 3 * US, format_args!("run vm={vm} thread=emulator:0 pcpu=0"));
        doing.iter().for_each(|told| self.lines.within(5 * US, 40 * US, told));
        self.lines.within(5 * US, 60 * US, format_args!("stop vm={vm} thread=emulator:0 runnable=false"));
        self.lines.within(US, 3 * US, format_args!("run vm={running} thread=vcpu:{vcpu} pcpu=0"));
    }

    /// A packet that a task answers: soon, or after others had their turns; briefly, or for long.
    fn request(&mut self) {
        let vm = self.lines.below(2);
        let (vcpu, service) = match (vm, self.lines.below(5)) {
            (0, which) => (0, which),
            (_, which) => (which % 2, which),
        };
        let (protocol, port, long) = match service {
            0 | 1 => ("tcp", 7, false),
            2 => ("udp", 53, false),
            3 => ("udp", 5000, true),
            _ => ("tcp", 80, self.lines.one_in(3)),
        };
        self.lines.within(0, 3 * MS, format_args!("packet vm={vm} protocol={protocol} port={port}"));
        self.emulator(vm, None, &[]);
        if self.lines.one_in(5) {
            self.slice();
        }
        // The first vCPU takes the interrupts of the network.
        self.turn(vm, 0, true);
        self.lines.within(US, 5 * US, format_args!("interrupt vm={vm} vcpu=0 vector=33"));
        if vcpu != 0 {
            self.lines.within(US, 10 * US, format_args!("ipi vm={vm} vcpu=0 to={} vector=253", 1 << vcpu));
            if self.lines.one_in(4) {
                self.slice();
            }
            self.turn(vm, vcpu, true);
            self.lines.after(US, format_args!("ipi-taken vm={vm} vcpu={vcpu}"));
        }
        self.answer(vm, vcpu, 10 + service, long);
    }

    /// A task was waited for, runs, and others of the guest go on.
    fn answer(&mut self, vm: u64, vcpu: u64, task: u64, long: bool) {
        if self.lines.one_in(6) {
            // The guest lets the one before go on until its clock tick.
            self.lines.now += 500 * US + self.lines.below(4 * MS);
        }
        self.lines.within(10 * US, 80 * US, format_args!("task-switch vm={vm} vcpu={vcpu} task={task}"));
        self.lines.now +=
            if long { 2 * MS + self.lines.below(20 * MS) } else { 40 * US + self.lines.below(250 * US) };
        if !self.lines.one_in(4) {
            // It answers: the guest's doorbell.
            self.emulator(vm, Some(vcpu), &[]);
        }
        if self.lines.one_in(3) {
            let helper = 60 + self.lines.below(3);
            self.lines.say(format_args!("task-switch vm={vm} vcpu={vcpu} task={helper}"));
            self.lines.now += 20 * US + self.lines.below(100 * US);
        }
        if self.lines.one_in(4) {
            self.lines.say(format_args!("halt vm={vm} vcpu={vcpu}"));
            self.turn(2, 0, false);
            self.lines.within(100 * US, 30 * MS, format_args!("wake vm={vm} thread=vcpu:{vcpu} by=none"));
            self.turn(vm, vcpu, true);
            self.lines.after(2 * US, format_args!("resume vm={vm} vcpu={vcpu}"));
        }
        let hog = 100 + self.lines.below(4);
        self.lines.say(format_args!("task-switch vm={vm} vcpu={vcpu} task={hog}"));
    }

    /// A task reads a block, which takes a while.
    fn read(&mut self) {
        let vm = self.lines.below(2);
        let vcpu = if vm == 0 { 0 } else { self.lines.below(2) };
        let task = 30 + self.lines.below(3);
        self.requests += 1;
        let request = self.requests;
        self.turn(vm, vcpu, true);
        self.lines.within(10 * US, 300 * US, format_args!("task-switch vm={vm} vcpu={vcpu} task={task}"));
        self.lines.now += 20 * US + self.lines.below(200 * US);
        self.emulator(vm, Some(vcpu), &[format!("block-read vm={vm} request={request}")]);
        let hog = 100 + self.lines.below(4);
        self.lines.within(10 * US, 60 * US, format_args!("task-switch vm={vm} vcpu={vcpu} task={hog}"));
        (0..self.lines.below(3)).for_each(|_| self.slice());
        let mut ends = vec![format!("block-done vm={vm} request={request}")];
        if !self.lines.one_in(4) {
            ends.insert(0, format!("block-pending vm={vm}"));
        }
        if self.lines.one_in(10) {
            ends.pop();
        }
        self.emulator(vm, None, &ends);
        if self.lines.one_in(5) {
            self.slice();
        }
        self.turn(vm, vcpu, true);
        self.lines.within(US, 5 * US, format_args!("interrupt vm={vm} vcpu={vcpu} vector=34"));
        self.answer(vm, vcpu, task, task == 32);
    }

    /// A shell starts programs, each an address space of its own.
    fn forks(&mut self) {
        let (vm, vcpu) = self.running;
        for _ in 0..2 + self.lines.below(12) {
            let task = 1000 + self.lines.below(4000);
            self.lines.within(50 * US, 3 * MS, format_args!("task-switch vm={vm} vcpu={vcpu} task={task}"));
        }
    }

    /// Nobody wants the CPU.
    fn sleep(&mut self) {
        let (vm, vcpu) = self.running;
        self.lines.after(100 * US, format_args!("halt vm={vm} vcpu={vcpu}"));
        self.lines.after(2 * US, format_args!("stop vm={vm} thread=vcpu:{vcpu} runnable=false"));
        self.lines.within(MS, 300 * MS, format_args!("wake vm={vm} thread=vcpu:{vcpu} by=none"));
        self.lines.after(3 * US, format_args!("run vm={vm} thread=vcpu:{vcpu} pcpu=0"));
        self.lines.after(2 * US, format_args!("resume vm={vm} vcpu={vcpu}"));
    }

    /// A source that only looks now and then.
    fn looks(&mut self) {
        let (vm, vcpu) = self.running;
        for _ in 0..1 + self.lines.below(5) {
            let task = if self.lines.one_in(2) { 10 } else { 100 };
            self.lines.within(50 * US, 2 * MS, format_args!("task-seen vm={vm} vcpu={vcpu} task={task}"));
        }
    }

    /// What comes now and then in the life of a VM.
    fn trouble(&mut self) {
        let vm = self.lines.below(VMS);
        let weight = 100 << self.lines.below(6);
        match self.lines.below(12) {
            0 => self.lines.say(format_args!("vm-reset vm={vm}")),
            1 => {
                self.lines.say(format_args!("vm-paused vm={vm}"));
                self.lines.within(MS, 50 * MS, format_args!("vm-resumed vm={vm}"));
            }
            2..5 => self.lines.say(format_args!("weight vm={vm} weight={weight}")),
            5 => self.lines.say(format_args!("lost vm={vm} count=7")),
            6 => self.lines.say("lost vm=none count=100"),
            7 => {
                self.lines.say("vcpu-added vm=0 vcpu=1");
                self.lines.after(MS, "task-switch vm=0 vcpu=1 task=10");
                self.lines.within(MS, 9 * MS, "vcpu-removed vm=0 vcpu=1");
            }
            8 => self.lines.say(format_args!("ipi vm={vm} vcpu=0 to=65535 vector=251")),
            9 => {
                let ratio = ["none", "0.5", "0.01", "0"][usize::try_from(self.lines.below(4)).unwrap()];
                self.lines.lines.push(format!("policy vm={vm} off={} pb_ratio={ratio}", ratio == "0"));
            }
            10 => self.lines.say(format_args!("vm-added vm=2 vcpus=1 weight={weight}")),
            _ => self.lines.now += 100 * MS,
        }
    }
}
