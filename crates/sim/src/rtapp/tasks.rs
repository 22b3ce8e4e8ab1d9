//! From the objects of a file to the programs of tasks.

use super::json::Value;
use super::{Conditions, Fault, fault};
use crate::guest::GuestKernel;
use crate::program::{Affinity, SchedClass, Step};
use crate::queue::Nanos;
use frontdesk_engine::nanos;
use indexmap::IndexSet;

/// The tasks of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) tasks: Vec<Planned>,
    /// Channels that the programs use: what each is called, and the messages in it at first: a mutex has one
    /// while it is free.
    pub(crate) channels: Vec<(String, u32)>,
    /// Timers that they use.
    pub(crate) timers: usize,
}

/// A task, with channels and timers by their number in the plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    /// Its name in the file, and which of its instances it is.
    pub(crate) name: String,
    pub(crate) program: Vec<Step>,
    pub(crate) class: SchedClass,
    pub(crate) affinity: Affinity,
}

/// Tasks and steps that a file may have.
const MOST_TASKS: usize = 2_000;
const MOST_STEPS: usize = 100_000;
/// Longest time of an event, in microseconds: a day, as long as a repeat may be.
const LONGEST_US: i64 = 24 * 3_600_000_000;
/// A loop without end: no run lasts for so many rounds.
const FOR_EVER: u32 = u32::MAX;
/// Members of `global`, which concern rt-app itself.
const GLOBAL: [&str; 14] = [
    "duration",
    "calibration",
    "default_policy",
    "pi_enabled",
    "lock_pages",
    "logdir",
    "log_basename",
    "log_size",
    "ftrace",
    "gnuplot",
    "io_device",
    "mem_buffer_size",
    "cumulative_slack",
    "frag",
];
/// Events, those first whose name another one begins.
const EVENTS: [&str; 15] = [
    "runtime", "run", "sleep", "timer", "lock", "unlock", "wait", "signal", "sig", "broad", "sync",
    "suspend", "resume", "mem", "iorun",
];
/// What a task or a phase has beside events.
const PROPERTIES: [&str; 7] = ["instance", "delay", "phases", "loop", "policy", "priority", "cpus"];
/// What rt-app knows and the model has not.
const NOT_MODELLED: [&str; 11] = [
    "barrier",
    "yield",
    "fork",
    "util_min",
    "util_max",
    "membind_nodes",
    "taskgroup",
    "dl-runtime",
    "dl-period",
    "dl-deadline",
    "custom_slice",
];

pub(super) fn plan(file: &Value, guest: &Conditions) -> Result<Plan, Fault> {
    let file = object("the file", file)?;
    for (key, value) in file {
        match key.as_str() {
            "tasks" => {}
            // Declared once more in old files; what is used says all.
            "resources" => drop(object(key, value)?),
            "global" => {
                for (member, _) in object(key, value)? {
                    if !GLOBAL.contains(&member.as_str()) {
                        return fault(&format!("global.{member}"), one_of(&GLOBAL));
                    }
                }
            }
            _ => return fault(key, one_of(&["tasks", "global", "resources"])),
        }
    }
    let global = find(file, "global").map(|global| object("global", global)).transpose()?.unwrap_or_default();
    let class = match find(global, "default_policy") {
        Some(policy) => SchedClass::default().with("global.default_policy", Some(policy), None)?,
        None => SchedClass::default(),
    };
    let Some(tasks) = find(file, "tasks") else { return fault("tasks", "missing") };
    let mut maker = Maker {
        plan: Plan::default(),
        names: IndexSet::new(),
        timers: IndexSet::new(),
        guest: *guest,
        steps: 0,
    };
    for (name, task) in object("tasks", tasks)? {
        maker.task(name, object(&format!("tasks.{name}"), task)?, class)?;
    }
    maker.plan.timers = maker.timers.len();
    Ok(maker.plan)
}

impl Plan {
    /// Adds the tasks to a guest.
    pub(crate) fn add(&self, guest: &mut GuestKernel, workload: usize) {
        let timer = guest.timers.len();
        guest.timers.resize(timer + self.timers, None);
        let channels: Vec<usize> = self.channels.iter().map(|_| guest.add_channel()).collect();
        for (channel, (name, messages)) in channels.iter().zip(&self.channels) {
            let channel = &mut guest.channels[*channel];
            (channel.name, channel.messages) = (Some(name.as_str().into()), *messages);
        }
        for task in &self.tasks {
            let program: Vec<Step> = task.program.iter().map(|step| step.moved(&channels, timer)).collect();
            guest.add_task_of(workload, &task.name, &program, task.class, task.affinity);
        }
    }
}

impl Step {
    /// The same step with channels and timers by their number in the guest.
    fn moved(self, channels: &[usize], first_timer: usize) -> Step {
        match self {
            Step::Wait { channel, messages } => Step::Wait { channel: channels[channel], messages },
            Step::Send { channel, messages } => Step::Send { channel: channels[channel], messages },
            Step::Signal { channel, all } => Step::Signal { channel: channels[channel], all },
            Step::WaitSignal { channel, mutex } => {
                Step::WaitSignal { channel: channels[channel], mutex: mutex.map(|mutex| channels[mutex]) }
            }
            Step::Timer { timer, period, absolute } => {
                Step::Timer { timer: first_timer + timer, period, absolute }
            }
            other => other,
        }
    }
}

/// What a channel is for; each kind has names of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Use {
    Mutex,
    Condition,
    Suspended,
}

struct Maker {
    plan: Plan,
    names: IndexSet<(Use, String)>,
    timers: IndexSet<String>,
    guest: Conditions,
    steps: usize,
}

type Object = [(String, Value)];

impl Maker {
    fn task(&mut self, name: &str, task: &Object, class: SchedClass) -> Result<(), Fault> {
        let at = format!("tasks.{name}");
        let instances = whole(&at, task, "instance", 0, 1_000)?.unwrap_or(1);
        let rounds = rounds(&at, task, FOR_EVER)?;
        let delay = whole(&at, task, "delay", 0, LONGEST_US)?.unwrap_or(0);
        let class = class.with(&at, find(task, "policy"), find(task, "priority"))?;
        let affinity = self.cpus(&at, task)?;
        for instance in 0..instances {
            let owner = format!("{name}/{instance}");
            let mut program = Vec::new();
            if delay > 0 {
                program.push(Step::Sleep(micros(delay)));
            }
            let first = program.len();
            match find(task, "phases") {
                Some(phases) => {
                    self.events(&at, task, &owner, name, &mut Vec::new(), true)?;
                    for (phase, events) in object(&format!("{at}.phases"), phases)? {
                        let at = format!("{at}.phases.{phase}");
                        let events = object(&at, events)?;
                        for key in ["policy", "priority", "cpus", "instance", "delay", "phases"] {
                            if find(events, key).is_some() {
                                return fault(&format!("{at}.{key}"), "modelled for whole tasks only");
                            }
                        }
                        let from = program.len();
                        let rounds = self::rounds(&at, events, 1)?;
                        self.events(&at, events, &owner, name, &mut program, false)?;
                        program.push(Step::Done { bytes: 0 });
                        if rounds > 1 {
                            program.push(Step::Repeat { from, times: rounds - 1 });
                        }
                    }
                }
                None => {
                    self.events(&at, task, &owner, name, &mut program, false)?;
                    program.push(Step::Done { bytes: 0 });
                }
            }
            let endless = if rounds == FOR_EVER { FOR_EVER } else { rounds - 1 };
            program.extend([Step::Repeat { from: first, times: endless }, Step::End]);
            self.steps += program.len();
            self.plan.tasks.push(Planned { name: owner, program, class, affinity });
            if self.plan.tasks.len() > MOST_TASKS || self.steps > MOST_STEPS {
                let most =
                    format!("the file has more than {MOST_TASKS} tasks or {MOST_STEPS} steps up to here");
                return fault(&at, most);
            }
        }
        Ok(())
    }

    /// Appends the events of a task or phase. `none`: there may be none, because there are phases.
    fn events(
        &mut self,
        at: &str,
        object: &Object,
        owner: &str,
        task: &str,
        program: &mut Vec<Step>,
        none: bool,
    ) -> Result<(), Fault> {
        for (key, value) in object.iter().filter(|(key, _)| !PROPERTIES.contains(&key.as_str())) {
            let at = format!("{at}.{key}");
            if let Some(known) = NOT_MODELLED.iter().find(|known| key.starts_with(*known)) {
                return fault(&at, format!("{known} of rt-app is not modelled"));
            }
            let Some(event) = EVENTS.iter().find(|event| key.starts_with(*event)) else {
                return fault(&at, format!("unknown; {} or {}", one_of(&EVENTS), PROPERTIES.join(", ")));
            };
            if none {
                return fault(&at, "an event beside `phases`, which would hold it");
            }
            self.event(&at, event, value, owner, task, program)?;
        }
        Ok(())
    }

    fn event(
        &mut self,
        at: &str,
        event: &str,
        value: &Value,
        owner: &str,
        task: &str,
        program: &mut Vec<Step>,
    ) -> Result<(), Fault> {
        match event {
            "run" => {
                let load = std::time::Duration::from_nanos(micros(number(at, value, 0, LONGEST_US)?));
                program.push(Step::Compute(nanos(load.mul_f64(self.guest.cost_scale))));
            }
            "runtime" => program.push(Step::Compute(micros(number(at, value, 0, LONGEST_US)?))),
            "sleep" => program.push(Step::Sleep(micros(number(at, value, 0, LONGEST_US)?))),
            "mem" => {
                let copy = self.guest.copy_kib.saturating_mul(u64::from(bytes(at, value)?)) / 1024;
                program.push(Step::Compute(copy));
            }
            "iorun" => program.push(Step::Write { bytes: bytes(at, value)?, sync: false }),
            "timer" => program.push(self.timer(at, value, owner)?),
            "lock" => {
                program.push(Step::Wait { channel: self.channel(Use::Mutex, text(at, value)?), messages: 1 })
            }
            "unlock" => {
                program.push(Step::Send { channel: self.channel(Use::Mutex, text(at, value)?), messages: 1 });
            }
            "signal" | "sig" => {
                program.push(Step::Signal {
                    channel: self.channel(Use::Condition, text(at, value)?),
                    all: false,
                });
            }
            "broad" => {
                program.push(Step::Signal {
                    channel: self.channel(Use::Condition, text(at, value)?),
                    all: true,
                });
            }
            "wait" | "sync" => {
                let (condition, mutex) = self.condition(at, value)?;
                let lock = Step::Wait { channel: mutex, messages: 1 };
                let wait = Step::WaitSignal { channel: condition, mutex: Some(mutex) };
                if event == "wait" {
                    program.extend([wait, lock]);
                } else {
                    let signal = Step::Signal { channel: condition, all: false };
                    program.extend([lock, signal, wait, lock, Step::Send { channel: mutex, messages: 1 }]);
                }
            }
            "suspend" => {
                // workgen fills in the task's own name.
                let name = text(at, value)?;
                let name = if name.is_empty() { task } else { name };
                program.push(Step::WaitSignal { channel: self.channel(Use::Suspended, name), mutex: None });
            }
            _ => program
                .push(Step::Signal { channel: self.channel(Use::Suspended, text(at, value)?), all: true }),
        }
        Ok(())
    }

    fn timer(&mut self, at: &str, value: &Value, owner: &str) -> Result<Step, Fault> {
        let timer = object(at, value)?;
        only(at, timer, &["ref", "period", "mode"])?;
        let name = member(at, timer, "ref")?;
        // One of each task's own, or one that all share.
        let name = if name.starts_with("unique") { format!("{name} of {owner}") } else { name.to_owned() };
        let Some(period) = whole(at, timer, "period", 1, LONGEST_US)? else {
            return fault(&format!("{at}.period"), "missing");
        };
        let absolute = match find(timer, "mode") {
            None => false,
            Some(mode) => match text(&format!("{at}.mode"), mode)? {
                "relative" => false,
                "absolute" => true,
                other => {
                    return fault(
                        &format!("{at}.mode"),
                        format!("{other:?}; {}", one_of(&["relative", "absolute"])),
                    );
                }
            },
        };
        Ok(Step::Timer { timer: self.timers.insert_full(name).0, period: micros(period), absolute })
    }

    fn condition(&mut self, at: &str, value: &Value) -> Result<(usize, usize), Fault> {
        let wait = object(at, value)?;
        only(at, wait, &["ref", "mutex"])?;
        let (condition, mutex) = (member(at, wait, "ref")?, member(at, wait, "mutex")?);
        Ok((self.channel(Use::Condition, condition), self.channel(Use::Mutex, mutex)))
    }

    fn channel(&mut self, kind: Use, name: &str) -> usize {
        let (channel, new) = self.names.insert_full((kind, name.to_owned()));
        if new {
            let what = match kind {
                Use::Mutex => "mutex",
                Use::Condition => "condition",
                Use::Suspended => "resumption of",
            };
            self.plan.channels.push((format!("{what} {name}"), u32::from(kind == Use::Mutex)));
        }
        channel
    }

    fn cpus(&self, at: &str, task: &Object) -> Result<Affinity, Fault> {
        let Some(cpus) = find(task, "cpus") else { return Ok(Affinity::default()) };
        let at = format!("{at}.cpus");
        let Value::Array(cpus) = cpus else {
            return fault(&at, format!("{}: must be an array", cpus.kind()));
        };
        let mut affinity = Affinity::none();
        for cpu in cpus {
            let cpu = number(&at, cpu, 0, i64::from(self.guest.vcpus) - 1)?;
            affinity.add(usize::try_from(cpu).unwrap_or(0));
        }
        if cpus.is_empty() { fault(&at, "at least one CPU") } else { Ok(affinity) }
    }
}

impl SchedClass {
    /// This class with what an object says instead.
    fn with(self, at: &str, policy: Option<&Value>, priority: Option<&Value>) -> Result<SchedClass, Fault> {
        let policy = policy.map(|policy| text(&format!("{at}.policy"), policy)).transpose()?;
        let key = format!("{at}.priority");
        let priority = |low: i64, high: i64, default: i64| {
            priority.map_or(Ok(default), |value| number(&key, value, low, high))
        };
        let kept = match self {
            SchedClass::Fair { .. } => "SCHED_OTHER",
            SchedClass::Fifo { .. } => "SCHED_FIFO",
            SchedClass::RoundRobin { .. } => "SCHED_RR",
        };
        let nice = |nice: i64| i8::try_from(nice).unwrap_or(0);
        let rank = |rank: i64| u8::try_from(rank).unwrap_or(1);
        Ok(match policy.unwrap_or(kept) {
            "SCHED_OTHER" => SchedClass::Fair { nice: nice(priority(-20, 19, 0)?) },
            "SCHED_FIFO" => SchedClass::Fifo { priority: rank(priority(1, 99, 10)?) },
            "SCHED_RR" => SchedClass::RoundRobin { priority: rank(priority(1, 99, 10)?) },
            other => {
                let known = one_of(&["SCHED_OTHER", "SCHED_FIFO", "SCHED_RR"]);
                return fault(&format!("{at}.policy"), format!("{other:?} is not modelled; {known}"));
            }
        })
    }
}

fn micros(micros: i64) -> Nanos {
    u64::try_from(micros).unwrap_or(0).saturating_mul(1_000)
}

fn one_of(names: &[&str]) -> String {
    format!("allowed is {}", names.join(", "))
}

fn find<'a>(object: &'a Object, key: &str) -> Option<&'a Value> {
    object.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn only(at: &str, object: &Object, keys: &[&str]) -> Result<(), Fault> {
    match object.iter().find(|(key, _)| !keys.contains(&key.as_str())) {
        Some((key, _)) => fault(&format!("{at}.{key}"), one_of(keys)),
        None => Ok(()),
    }
}

fn object<'a>(at: &str, value: &'a Value) -> Result<&'a Object, Fault> {
    match value {
        Value::Object(members) => Ok(members),
        other => fault(at, format!("{}: must be an object", other.kind())),
    }
}

fn text<'a>(at: &str, value: &'a Value) -> Result<&'a str, Fault> {
    match value {
        Value::Text(text) => Ok(text),
        other => fault(at, format!("{}: must be a text", other.kind())),
    }
}

fn member<'a>(at: &str, object: &'a Object, key: &str) -> Result<&'a str, Fault> {
    let at = format!("{at}.{key}");
    find(object, key).map_or_else(|| fault(&at, "missing"), |value| text(&at, value))
}

fn number(at: &str, value: &Value, low: i64, high: i64) -> Result<i64, Fault> {
    match value {
        Value::Integer(number) if (low..=high).contains(number) => Ok(*number),
        other => fault(at, format!("{}: must be a whole number, {low} to {high}", other.kind())),
    }
}

fn bytes(at: &str, value: &Value) -> Result<u32, Fault> {
    Ok(u32::try_from(number(at, value, 0, i64::from(u32::MAX))?).unwrap_or(0))
}

fn whole(at: &str, object: &Object, key: &str, low: i64, high: i64) -> Result<Option<i64>, Fault> {
    find(object, key).map(|value| number(&format!("{at}.{key}"), value, low, high)).transpose()
}

/// How often a task or a phase is run: -1 is without end.
fn rounds(at: &str, object: &Object, default: u32) -> Result<u32, Fault> {
    let at = format!("{at}.loop");
    match find(object, "loop") {
        None => Ok(default),
        Some(Value::Integer(-1)) => Ok(FOR_EVER),
        Some(value) => match number(&at, value, 1, i64::from(FOR_EVER) - 1) {
            Ok(rounds) => Ok(u32::try_from(rounds).unwrap_or(FOR_EVER)),
            Err(fault) => {
                Err(Fault { message: format!("{}, or -1 for without end", fault.message), ..fault })
            }
        },
    }
}
