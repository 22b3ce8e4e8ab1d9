//! What is seen of a VM while a recording is gone through, and what follows from it in the end.

use frontdesk_engine::{Protocol, TaskId, Thread, Time};
use std::collections::{BTreeMap, HashMap};

/// A recording may be forged: no table grows beyond this.
const MOST_TASKS: usize = 4096;
const MOST_PORTS: usize = 64;
/// Tasks that are taken to have run for one request.
pub(crate) const MOST_OF_A_REQUEST: usize = 32;

/// What a recording tells of a VM.
#[derive(Clone, Debug, Default)]
pub struct ObservedVm {
    /// Its name.
    pub name: String,
    /// Its vCPUs.
    pub vcpus: u16,
    /// Its weight among the others.
    pub weight: u32,
    /// How long it was there.
    pub seconds: f64,
    /// CPU time of its vCPUs, in physical CPUs.
    pub cpu: f64,
    /// CPU time of its emulator, likewise.
    pub emulator_cpu: f64,
    /// For each vCPU, the part of the time in which it ran or waited for a CPU.
    pub wanted: Vec<f64>,
    /// Who was asked.
    pub asked: Vec<Asked>,
    /// The film that it showed most of the time.
    pub film: Option<Film>,
}

/// A port at which a VM was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Transport protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// How often.
    pub requests: u64,
    /// From an answer to the next request, or between requests where answers are not told: mean and standard
    /// deviation, in seconds.
    pub think_s: (f64, f64),
    /// CPU time of the task that answers, for each request, in seconds; absent if it is not known which.
    pub cost_s: Option<f64>,
}

/// A film.
#[derive(Clone, Copy, Debug)]
pub struct Film {
    /// Frames a second that it wants to show.
    pub rate: f64,
    /// CPU time of its player for each frame, in seconds.
    pub cost_s: f64,
}

/// How a thread stands to the CPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Runs,
    Waits,
    Sleeps,
}

pub(crate) struct Vcpu {
    /// Not known before its first event.
    state: Option<State>,
    since: Time,
    pub(crate) current: Option<TaskId>,
    ran: f64,
    wanted: f64,
    known: f64,
}

impl Vcpu {
    pub(crate) fn new(at: Time, current: Option<TaskId>) -> Vcpu {
        Vcpu { state: None, since: at, current, ran: 0.0, wanted: 0.0, known: 0.0 }
    }

    /// Counts the time up to now; how much of it the task ran.
    fn settle(&mut self, at: Time) -> f64 {
        let passed = to_f64(at.since(self.since));
        self.since = at;
        let Some(state) = self.state else { return 0.0 };
        self.known += passed;
        if state != State::Sleeps {
            self.wanted += passed;
        }
        if state != State::Runs {
            return 0.0;
        }
        self.ran += passed;
        passed
    }
}

/// Numbers of which mean and standard deviation are wanted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Sums {
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    fn mean_and_deviation(&self) -> (f64, f64) {
        let mean = self.sum / self.count.max(1.0);
        let variance = self.squares / self.count.max(1.0) - mean * mean;
        (mean, variance.max(0.0).sqrt())
    }
}

#[derive(Default)]
struct Port {
    requests: u64,
    answers: u64,
    /// Since when an answer is waited for, and who was dispatched since.
    open: Option<Vec<TaskId>>,
    asked: Option<Time>,
    answered: Option<Time>,
    /// From an answer to the next request, and from request to request.
    thinks: Sums,
    gaps: Sums,
    /// In how many requests a task was dispatched.
    dispatched: HashMap<TaskId, u64>,
}

impl Port {
    fn close(&mut self) {
        for task in self.open.take().into_iter().flatten() {
            if self.dispatched.len() < MOST_TASKS || self.dispatched.contains_key(&task) {
                *self.dispatched.entry(task).or_default() += 1;
            }
        }
    }
}

pub(crate) struct Account {
    pub(crate) weight: u32,
    since: Time,
    pub(crate) gone: bool,
    present: f64,
    pub(crate) vcpus: BTreeMap<u16, Vcpu>,
    /// Threads of the emulator that run, and since when.
    emulators: BTreeMap<u16, Time>,
    pub(crate) emulator_ran: f64,
    tasks: HashMap<TaskId, f64>,
    ports: BTreeMap<(Protocol, u16), Port>,
    /// How often the engine was asked for films, and at what rate it knew each player's.
    pub(crate) looks: u64,
    pub(crate) players: BTreeMap<TaskId, Sums>,
}

impl Account {
    pub(crate) fn new(at: Time, weight: u32) -> Account {
        Account {
            weight,
            since: at,
            gone: false,
            present: 0.0,
            vcpus: BTreeMap::new(),
            emulators: BTreeMap::new(),
            emulator_ran: 0.0,
            tasks: HashMap::new(),
            ports: BTreeMap::new(),
            looks: 0,
            players: BTreeMap::new(),
        }
    }

    /// It is there again.
    pub(crate) fn come(&mut self, at: Time) {
        self.go(at);
        (self.since, self.gone) = (at, false);
    }

    pub(crate) fn go(&mut self, at: Time) {
        if std::mem::replace(&mut self.gone, true) {
            return;
        }
        self.present += to_f64(at.since(self.since));
        let indices: Vec<u16> = self.vcpus.keys().copied().collect();
        for index in indices {
            self.thread(at, Thread::Vcpu(index), None);
        }
        let emulators: Vec<u16> = self.emulators.keys().copied().collect();
        for index in emulators {
            self.thread(at, Thread::Emulator(index), None);
        }
    }

    pub(crate) fn state(&self, thread: Thread) -> Option<State> {
        match thread {
            Thread::Vcpu(index) => self.vcpus.get(&index)?.state,
            Thread::Emulator(index) => self.emulators.get(&index).map(|_| State::Runs),
        }
    }

    pub(crate) fn thread(&mut self, at: Time, thread: Thread, state: Option<State>) {
        match thread {
            Thread::Vcpu(index) => {
                self.settle(at, index);
                if let Some(vcpu) = self.vcpus.get_mut(&index) {
                    vcpu.state = state;
                }
            }
            Thread::Emulator(index) => {
                if let Some(since) = self.emulators.remove(&index) {
                    self.emulator_ran += to_f64(at.since(since));
                }
                if state == Some(State::Runs) {
                    self.emulators.insert(index, at);
                }
            }
        }
    }

    fn settle(&mut self, at: Time, index: u16) {
        let Some(vcpu) = self.vcpus.get_mut(&index) else { return };
        let ran = vcpu.settle(at);
        if let Some(task) = vcpu.current
            && (self.tasks.len() < MOST_TASKS || self.tasks.contains_key(&task))
        {
            *self.tasks.entry(task).or_default() += ran;
        }
    }

    pub(crate) fn switch(&mut self, at: Time, index: u16, task: Option<TaskId>) {
        self.settle(at, index);
        if let Some(vcpu) = self.vcpus.get_mut(&index) {
            vcpu.current = task;
        }
        let Some(task) = task else { return };
        for open in self.ports.values_mut().filter_map(|port| port.open.as_mut()) {
            if open.len() < MOST_OF_A_REQUEST && !open.contains(&task) {
                open.push(task);
            }
        }
    }

    pub(crate) fn packet(&mut self, at: Time, protocol: Protocol, port: u16) {
        if self.ports.len() >= MOST_PORTS && !self.ports.contains_key(&(protocol, port)) {
            return;
        }
        let port = self.ports.entry((protocol, port)).or_default();
        if let Some(asked) = port.asked.replace(at) {
            port.gaps.add(seconds(at.since(asked)));
        }
        // More of the same request; where answers are not told each packet is one.
        if port.open.is_some() && port.answers > 0 {
            return;
        }
        if let Some(answered) = port.answered.take() {
            port.thinks.add(seconds(at.since(answered)));
        }
        port.close();
        port.requests += 1;
        port.open = Some(Vec::new());
    }

    pub(crate) fn reply(&mut self, at: Time, protocol: Protocol, port: u16) {
        let Some(port) = self.ports.get_mut(&(protocol, port)) else { return };
        if port.open.is_some() {
            port.close();
            port.answers += 1;
            port.answered = Some(at);
        }
    }

    /// What was seen of it; nothing if it was never there.
    pub(crate) fn observed(mut self, name: String) -> Option<ObservedVm> {
        let present = self.present / 1e9;
        if present <= 0.0 || self.vcpus.is_empty() {
            return None;
        }
        let answers_are_told = self.ports.values().any(|port| port.answers > 0);
        let tasks = std::mem::take(&mut self.tasks);
        let asked = std::mem::take(&mut self.ports).into_iter().filter_map(|((protocol, number), port)| {
            asked(protocol, number, &port, &tasks, answers_are_told)
        });
        let ran = |vcpu: &Vcpu| vcpu.ran / 1e9;
        let half = to_f64(self.looks) / 2.0;
        let film = self.players.iter().filter(|(_, rates)| rates.count >= half.max(1.0));
        let film = film.max_by(|(_, one), (_, other)| one.count.total_cmp(&other.count));
        let film = film.and_then(|(task, rates)| {
            let (rate, _) = rates.mean_and_deviation();
            let used = tasks.get(task).copied().unwrap_or_default() / 1e9;
            (rate >= 1.0).then(|| Film { rate, cost_s: used / (rate * present) })
        });
        Some(ObservedVm {
            name,
            vcpus: u16::try_from(self.vcpus.len()).unwrap_or(u16::MAX),
            weight: self.weight,
            seconds: present,
            cpu: self.vcpus.values().map(ran).sum::<f64>() / present,
            emulator_cpu: self.emulator_ran / 1e9 / present,
            wanted: self
                .vcpus
                .values()
                .map(|vcpu| if vcpu.known > 0.0 { vcpu.wanted / vcpu.known } else { 0.0 })
                .collect(),
            asked: asked.collect(),
            film,
        })
    }
}

/// What a port was asked for; nothing if that is too little to say, or nobody answered where answers are
/// told.
fn asked(
    protocol: Protocol,
    number: u16,
    port: &Port,
    tasks: &HashMap<TaskId, f64>,
    answers_are_told: bool,
) -> Option<Asked> {
    let (sums, counted) = match answers_are_told {
        true => (port.thinks, port.answers),
        false => (port.gaps, port.requests),
    };
    if number == 0 || sums.count < 2.0 {
        return None;
    }
    // Who answers is dispatched for nearly each request. So may be what computes beside it: that runs for
    // longer.
    let most = port.dispatched.values().copied().max().unwrap_or(0);
    let nearly = |count: u64| count * 10 >= most * 9 && count * 2 >= counted;
    let candidates = port.dispatched.iter().filter(|(_, count)| nearly(**count));
    let used = candidates.map(|(task, _)| tasks.get(task).copied().unwrap_or_default());
    let used = used.min_by(f64::total_cmp);
    Some(Asked {
        protocol,
        port: number,
        requests: port.requests,
        think_s: sums.mean_and_deviation(),
        cost_s: used.map(|used| used / 1e9 / to_f64(counted.max(1))),
    })
}

pub(crate) fn seconds(nanos: u64) -> f64 {
    to_f64(nanos) / 1e9
}

#[allow(clippy::cast_precision_loss, reason = "means of many")]
pub(crate) fn to_f64(value: u64) -> f64 {
    value as f64
}
