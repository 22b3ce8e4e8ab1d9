//! The words in which fixtures tell parameters, events and actions. They know no recording format and no
//! private part of the engine, so that what was frozen outlasts both.
//!
//! A line is `config`, `policy`, or a time in nanoseconds and a kind, then `name=value` pairs. Every kind is
//! written out here by hand, both ways: a kind that is renamed or gets a field keeps its old words for the
//! fixtures that have them.

use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Capabilities, Config, Event, EventKind, MediaDevice, Protocol,
    Region, Standing, TaskId, Thread, Time, UserInput, VmId, VmPolicy,
};
use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

/// What a line tells the engine.
#[derive(Debug)]
pub enum OracleInput {
    /// Its parameters.
    Config(Box<Config>),
    /// What holds for one VM.
    Policy(VmId, VmPolicy),
    /// What happens.
    Event(Event),
    /// That it is so late.
    Deadline(Time),
}

/// Reads a line.
///
/// # Errors
/// It is not one, and why.
pub fn parse(line: &str) -> Result<OracleInput, String> {
    let mut words = line.split_whitespace();
    let first = words.next().ok_or("an empty line")?;
    let kind = match first.parse::<u64>() {
        Ok(_) => words.next().ok_or("a time without a kind")?,
        Err(_) => first,
    };
    let mut fields = Fields::of(words)?;
    let told = match (first.parse().map(Time), kind) {
        (Err(_), "config") => OracleInput::Config(Box::new(config_of(&mut fields)?)),
        (Err(_), "policy") => OracleInput::Policy(fields.vm()?, policy_of(&mut fields)?),
        (Ok(at), "deadline") => OracleInput::Deadline(at),
        (Ok(at), _) => OracleInput::Event(Event { at, kind: kind_of(kind, &mut fields)? }),
        (Err(_), _) => return Err(format!("`{first}` is neither a time nor `config` nor `policy`")),
    };
    fields.all_taken()?;
    Ok(told)
}

/// The line of an event.
#[must_use]
pub fn event(event: &Event) -> String {
    let told = match event.kind {
        EventKind::VmAdded { vm: VmId(vm), vcpus, weight } => {
            format!("vm-added vm={vm} vcpus={vcpus} weight={weight}")
        }
        EventKind::VmRemoved { vm: VmId(vm) } => format!("vm-removed vm={vm}"),
        EventKind::Run { vm: VmId(vm), thread, pcpu } => {
            format!("run vm={vm} thread={} pcpu={pcpu}", thread_word(thread))
        }
        EventKind::Stop { vm: VmId(vm), thread, runnable } => {
            format!("stop vm={vm} thread={} runnable={runnable}", thread_word(thread))
        }
        EventKind::Wake { vm: VmId(vm), thread, by } => {
            format!("wake vm={vm} thread={} by={}", thread_word(thread), option_word(by))
        }
        EventKind::TaskSwitch { vm: VmId(vm), vcpu, task: TaskId(task) } => {
            format!("task-switch vm={vm} vcpu={vcpu} task={task}")
        }
        EventKind::Halt { vm: VmId(vm), vcpu } => format!("halt vm={vm} vcpu={vcpu}"),
        EventKind::Resume { vm: VmId(vm), vcpu } => format!("resume vm={vm} vcpu={vcpu}"),
        EventKind::Ipi { vm: VmId(vm), vcpu, to, vector } => {
            format!("ipi vm={vm} vcpu={vcpu} to={to} vector={vector}")
        }
        EventKind::Packet { vm: VmId(vm), protocol, port } => {
            format!("packet vm={vm} protocol={} port={port}", name_of(protocol))
        }
        EventKind::Reply { vm: VmId(vm), protocol, port } => {
            format!("reply vm={vm} protocol={} port={port}", name_of(protocol))
        }
        EventKind::BlockRead { vm: VmId(vm), request } => format!("block-read vm={vm} request={request}"),
        EventKind::BlockPending { vm: VmId(vm) } => format!("block-pending vm={vm}"),
        EventKind::BlockDone { vm: VmId(vm), request } => format!("block-done vm={vm} request={request}"),
        EventKind::Lost { vm, count } => {
            format!("lost vm={} count={count}", option_word(vm.map(|vm| vm.0)))
        }
        EventKind::VmReset { vm: VmId(vm) } => format!("vm-reset vm={vm}"),
        EventKind::VmPaused { vm: VmId(vm) } => format!("vm-paused vm={vm}"),
        EventKind::VmResumed { vm: VmId(vm) } => format!("vm-resumed vm={vm}"),
        EventKind::VcpuAdded { vm: VmId(vm), vcpu } => format!("vcpu-added vm={vm} vcpu={vcpu}"),
        EventKind::VcpuRemoved { vm: VmId(vm), vcpu } => format!("vcpu-removed vm={vm} vcpu={vcpu}"),
        EventKind::Weight { vm: VmId(vm), weight } => format!("weight vm={vm} weight={weight}"),
        EventKind::TaskSeen { vm: VmId(vm), vcpu, task: TaskId(task) } => {
            format!("task-seen vm={vm} vcpu={vcpu} task={task}")
        }
        EventKind::Interrupt { vm: VmId(vm), vcpu, vector } => {
            format!("interrupt vm={vm} vcpu={vcpu} vector={vector}")
        }
        EventKind::IpiTaken { vm: VmId(vm), vcpu } => format!("ipi-taken vm={vm} vcpu={vcpu}"),
        EventKind::VcpuWeight { vm: VmId(vm), vcpu, permille } => {
            format!("vcpu-weight vm={vm} vcpu={vcpu} permille={permille}")
        }
        EventKind::DisplayUpdate { vm: VmId(vm), region } => {
            format!("display-update vm={vm} region={}", region.map_or("none".to_owned(), region_word))
        }
        EventKind::DeviceAccess { vm: VmId(vm), vcpu, device, in_interrupt } => {
            let device = device_word(device);
            format!("device-access vm={vm} vcpu={vcpu} device={device} in-interrupt={in_interrupt}")
        }
        EventKind::GpuDone { vm: VmId(vm) } => format!("gpu-done vm={vm}"),
        EventKind::Timer { vm: VmId(vm), vcpu } => format!("timer vm={vm} vcpu={vcpu}"),
        EventKind::Input { vm: VmId(vm), input } => format!("input vm={vm} what={}", input_word(input)),
        EventKind::Isolated { vm: VmId(vm), slow } => format!("isolated vm={vm} slow={slow}"),
        EventKind::OthersRan { vm: VmId(vm), pcpu, ran_ns, waited_ns } => {
            format!("others-ran vm={vm} pcpu={pcpu} ran={ran_ns} waited={waited_ns}")
        }
        EventKind::Limited { vm: VmId(vm), limited } => format!("limited vm={vm} limited={limited}"),
        EventKind::World(world) => format!(
            "world acts={} charges-boosts={} realtime={} slice={} silence={}",
            world.acts, world.charges_boosts, world.realtime_permille, world.slice_ns, world.silence_ns
        ),
        EventKind::Standing { vm: VmId(vm), standing } => format!("standing vm={vm} as={standing:?}"),
    };
    format!("{} {told}", event.at.0)
}

fn name_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

fn protocol(fields: &mut Fields<'_>) -> Result<Protocol, String> {
    match fields.take::<String>("protocol")?.as_str() {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        other => Err(format!("`protocol={other}`: tcp or udp is known")),
    }
}

fn region_word(region: Region) -> String {
    let Region { x, y, width, height } = region;
    format!("{x},{y},{width},{height}")
}

fn region(fields: &mut Fields<'_>) -> Result<Option<Region>, String> {
    let word: String = fields.take("region")?;
    if word == "none" {
        return Ok(None);
    }
    let numbers: Vec<u16> = word.split(',').filter_map(|number| number.parse().ok()).collect();
    let [x, y, width, height] = numbers[..] else { return Err(format!("`region={word}`: x,y,width,height")) };
    Ok(Some(Region { x, y, width, height }))
}

fn device_word(device: MediaDevice) -> &'static str {
    match device {
        MediaDevice::Display => "display",
        MediaDevice::Sound => "sound",
    }
}

fn device(fields: &mut Fields<'_>) -> Result<MediaDevice, String> {
    match fields.take::<String>("device")?.as_str() {
        "display" => Ok(MediaDevice::Display),
        "sound" => Ok(MediaDevice::Sound),
        other => Err(format!("`device={other}`: display or sound is known")),
    }
}

fn input_word(input: UserInput) -> &'static str {
    match input {
        UserInput::Enter => "enter",
        UserInput::Key => "key",
        UserInput::Button => "button",
    }
}

fn input(fields: &mut Fields<'_>) -> Result<UserInput, String> {
    match fields.take::<String>("what")?.as_str() {
        "enter" => Ok(UserInput::Enter),
        "key" => Ok(UserInput::Key),
        "button" => Ok(UserInput::Button),
        other => Err(format!("`what={other}`: enter, key or button is known")),
    }
}

fn kind_of(kind: &str, fields: &mut Fields<'_>) -> Result<EventKind, String> {
    let vm = |fields: &mut Fields<'_>| fields.vm();
    Ok(match kind {
        "vm-added" => EventKind::VmAdded {
            vm: vm(fields)?,
            vcpus: fields.take("vcpus")?,
            weight: fields.take("weight")?,
        },
        "vm-removed" => EventKind::VmRemoved { vm: vm(fields)? },
        "run" => {
            EventKind::Run { vm: vm(fields)?, thread: fields.thread("thread")?, pcpu: fields.take("pcpu")? }
        }
        "stop" => EventKind::Stop {
            vm: vm(fields)?,
            thread: fields.thread("thread")?,
            runnable: fields.take("runnable")?,
        },
        "wake" => {
            EventKind::Wake { vm: vm(fields)?, thread: fields.thread("thread")?, by: fields.option("by")? }
        }
        "task-switch" => EventKind::TaskSwitch {
            vm: vm(fields)?,
            vcpu: fields.take("vcpu")?,
            task: TaskId(fields.take("task")?),
        },
        "halt" => EventKind::Halt { vm: vm(fields)?, vcpu: fields.take("vcpu")? },
        "resume" => EventKind::Resume { vm: vm(fields)?, vcpu: fields.take("vcpu")? },
        "ipi" => EventKind::Ipi {
            vm: vm(fields)?,
            vcpu: fields.take("vcpu")?,
            to: fields.take("to")?,
            vector: fields.take("vector")?,
        },
        "packet" => {
            EventKind::Packet { vm: vm(fields)?, protocol: protocol(fields)?, port: fields.take("port")? }
        }
        "reply" => {
            EventKind::Reply { vm: vm(fields)?, protocol: protocol(fields)?, port: fields.take("port")? }
        }
        "block-read" => EventKind::BlockRead { vm: vm(fields)?, request: fields.take("request")? },
        "block-pending" => EventKind::BlockPending { vm: vm(fields)? },
        "block-done" => EventKind::BlockDone { vm: vm(fields)?, request: fields.take("request")? },
        "lost" => EventKind::Lost { vm: fields.option("vm")?.map(VmId), count: fields.take("count")? },
        "vm-reset" => EventKind::VmReset { vm: vm(fields)? },
        "vm-paused" => EventKind::VmPaused { vm: vm(fields)? },
        "vm-resumed" => EventKind::VmResumed { vm: vm(fields)? },
        "vcpu-added" => EventKind::VcpuAdded { vm: vm(fields)?, vcpu: fields.take("vcpu")? },
        "vcpu-removed" => EventKind::VcpuRemoved { vm: vm(fields)?, vcpu: fields.take("vcpu")? },
        "limited" => EventKind::Limited { vm: vm(fields)?, limited: fields.take("limited")? },
        "weight" => EventKind::Weight { vm: vm(fields)?, weight: fields.take("weight")? },
        "task-seen" => EventKind::TaskSeen {
            vm: vm(fields)?,
            vcpu: fields.take("vcpu")?,
            task: TaskId(fields.take("task")?),
        },
        "interrupt" => EventKind::Interrupt {
            vm: vm(fields)?,
            vcpu: fields.take("vcpu")?,
            vector: fields.take("vector")?,
        },
        "ipi-taken" => EventKind::IpiTaken { vm: vm(fields)?, vcpu: fields.take("vcpu")? },
        "vcpu-weight" => EventKind::VcpuWeight {
            vm: vm(fields)?,
            vcpu: fields.take("vcpu")?,
            permille: fields.take("permille")?,
        },
        "display-update" => EventKind::DisplayUpdate { vm: vm(fields)?, region: region(fields)? },
        "device-access" => EventKind::DeviceAccess {
            vm: vm(fields)?,
            vcpu: fields.take("vcpu")?,
            device: device(fields)?,
            in_interrupt: fields.take("in-interrupt")?,
        },
        "gpu-done" => EventKind::GpuDone { vm: vm(fields)? },
        "timer" => EventKind::Timer { vm: vm(fields)?, vcpu: fields.take("vcpu")? },
        "input" => EventKind::Input { vm: vm(fields)?, input: input(fields)? },
        "isolated" => EventKind::Isolated { vm: vm(fields)?, slow: fields.take("slow")? },
        "others-ran" => {
            let (vm, pcpu) = (vm(fields)?, fields.take("pcpu")?);
            EventKind::OthersRan { vm, pcpu, ran_ns: fields.take("ran")?, waited_ns: fields.take("waited")? }
        }
        "world" => EventKind::World(Capabilities {
            acts: fields.take("acts")?,
            charges_boosts: fields.take("charges-boosts")?,
            realtime_permille: fields.take("realtime")?,
            slice_ns: fields.take("slice")?,
            silence_ns: fields.take("silence")?,
        }),
        "standing" => EventKind::Standing {
            vm: vm(fields)?,
            standing: match fields.take::<String>("as")?.as_str() {
                "Acting" => Standing::Acting,
                "Observed" => Standing::Observed,
                "Reserved" => Standing::Reserved,
                other => return Err(format!("no standing: {other}")),
            },
        },
        other => return Err(format!("`{other}` is no kind of event that is known")),
    })
}

/// The words of an action; `None` for a kind that is not frozen.
#[must_use]
pub fn action(action: &Action) -> Option<String> {
    let told = match action.kind {
        ActionKind::Boost { vm: VmId(vm), target, level } => {
            let target = match target {
                BoostTarget::Vcpu(vcpu) => format!("vcpu={vcpu}"),
                BoostTarget::Emulators => "emulators".to_owned(),
            };
            let level = match level {
                Boost::None => "none",
                Boost::Io => "io",
                Boost::Multimedia => "multimedia",
            };
            format!("boost vm={vm} {target} level={level}")
        }
        ActionKind::Share { vm: VmId(vm), permille } => format!("share vm={vm} permille={permille}"),
        ActionKind::Weight { .. } | ActionKind::Watch { .. } => return None,
    };
    Some(format!("{} {told}", action.at.0))
}

/// The line of all parameters.
#[must_use]
pub fn config(config: &Config) -> String {
    let (tavs, ledger) = (&config.tavs, &config.ledger);
    let ns = |duration: Duration| duration.as_nanos().to_string();
    let fields = [
        ("tavs.io_threshold_ns", ns(tavs.io_threshold)),
        ("tavs.positive_evidence", tavs.positive_evidence.to_string()),
        ("tavs.negative_evidence", tavs.negative_evidence.to_string()),
        ("tavs.belief_threshold", tavs.belief_threshold.to_string()),
        ("tavs.belief_min", tavs.belief_min.to_string()),
        ("tavs.belief_max", tavs.belief_max.to_string()),
        ("tavs.pb_ratio", tavs.pb_ratio.to_string()),
        ("tavs.boost_limit", tavs.boost_limit.to_string()),
        ("tavs.pb_period_ns", ns(tavs.pb_period)),
        ("tavs.patience_ns", ns(tavs.patience)),
        ("tavs.max_boost_ns", ns(tavs.max_boost)),
        ("tavs.correlation", tavs.correlation.to_string()),
        ("tavs.inspection_window", tavs.inspection_window.to_string()),
        ("tavs.counter_bits", tavs.counter_bits.to_string()),
        ("tavs.tasks_per_vcpu", tavs.tasks_per_vcpu.to_string()),
        ("tavs.time_slice_ns", ns(tavs.time_slice)),
        ("ledger.period_ns", ns(ledger.period)),
        ("ledger.horizon_ns", ns(ledger.horizon)),
        ("ledger.min_share", ledger.min_share.to_string()),
    ];
    let later = ("ledger.longest_wait_ns", ns(ledger.longest_wait));
    let later = (!ledger.longest_wait.is_zero()).then_some(&later);
    fields.iter().chain(later).fold("config".to_owned(), |line, (key, value)| format!("{line} {key}={value}"))
}

/// Parameters; those that the line does not name are the defaults, and what came after the lines were frozen
/// is off.
fn config_of(fields: &mut Fields<'_>) -> Result<Config, String> {
    let mut config = Config::default();
    config.ledger.longest_wait = Duration::ZERO;
    let (tavs, ledger) = (&mut config.tavs, &mut config.ledger);
    fields.set("tavs.io_threshold_ns", &mut tavs.io_threshold, Duration::from_nanos)?;
    fields.set("tavs.positive_evidence", &mut tavs.positive_evidence, |it: i32| it)?;
    fields.set("tavs.negative_evidence", &mut tavs.negative_evidence, |it: i32| it)?;
    fields.set("tavs.belief_threshold", &mut tavs.belief_threshold, |it: i32| it)?;
    fields.set("tavs.belief_min", &mut tavs.belief_min, |it: i32| it)?;
    fields.set("tavs.belief_max", &mut tavs.belief_max, |it: i32| it)?;
    fields.set("tavs.pb_ratio", &mut tavs.pb_ratio, |it: f64| it)?;
    fields.set("tavs.boost_limit", &mut tavs.boost_limit, |it: f64| it)?;
    fields.set("tavs.pb_period_ns", &mut tavs.pb_period, Duration::from_nanos)?;
    fields.set("tavs.patience_ns", &mut tavs.patience, Duration::from_nanos)?;
    fields.set("tavs.max_boost_ns", &mut tavs.max_boost, Duration::from_nanos)?;
    fields.set("tavs.correlation", &mut tavs.correlation, |it: bool| it)?;
    fields.set("tavs.inspection_window", &mut tavs.inspection_window, |it: usize| it)?;
    fields.set("tavs.counter_bits", &mut tavs.counter_bits, |it: u32| it)?;
    fields.set("tavs.tasks_per_vcpu", &mut tavs.tasks_per_vcpu, |it: usize| it)?;
    fields.set("tavs.time_slice_ns", &mut tavs.time_slice, Duration::from_nanos)?;
    fields.set("ledger.period_ns", &mut ledger.period, Duration::from_nanos)?;
    fields.set("ledger.horizon_ns", &mut ledger.horizon, Duration::from_nanos)?;
    fields.set("ledger.min_share", &mut ledger.min_share, |it: f64| it)?;
    fields.set("ledger.longest_wait_ns", &mut ledger.longest_wait, Duration::from_nanos)?;
    Ok(config)
}

/// The line of what holds for one VM.
#[must_use]
pub fn policy(vm: VmId, policy: &VmPolicy) -> String {
    format!("policy vm={} off={} pb_ratio={}", vm.0, policy.off, option_word(policy.pb_ratio))
}

fn policy_of(fields: &mut Fields<'_>) -> Result<VmPolicy, String> {
    Ok(VmPolicy { off: fields.take("off")?, pb_ratio: fields.option("pb_ratio")? })
}

fn thread_word(thread: Thread) -> String {
    match thread {
        Thread::Vcpu(index) => format!("vcpu:{index}"),
        Thread::Emulator(index) => format!("emulator:{index}"),
    }
}

fn option_word<T: Display>(value: Option<T>) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

/// The `name=value` pairs of a line that are not taken yet.
struct Fields<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    fn of(words: impl Iterator<Item = &'a str>) -> Result<Fields<'a>, String> {
        let mut fields = BTreeMap::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or(format!("`{word}` is no name=value"))?;
            if fields.insert(name, value).is_some() {
                return Err(format!("`{name}` comes twice"));
            }
        }
        Ok(Fields(fields))
    }

    fn take<T: FromStr<Err: Debug>>(&mut self, name: &str) -> Result<T, String> {
        let value = self.0.remove(name).ok_or(format!("`{name}` is missing"))?;
        value.parse().map_err(|error| format!("`{name}={value}`: {error:?}"))
    }

    fn option<T: FromStr<Err: Debug>>(&mut self, name: &str) -> Result<Option<T>, String> {
        if self.0.get(name) == Some(&"none") {
            self.0.remove(name);
            return Ok(None);
        }
        self.take(name).map(Some)
    }

    /// Sets `place` if the line has the field.
    fn set<T: FromStr<Err: Debug>, P>(
        &mut self,
        name: &str,
        place: &mut P,
        make: impl Fn(T) -> P,
    ) -> Result<(), String> {
        if self.0.contains_key(name) {
            *place = make(self.take(name)?);
        }
        Ok(())
    }

    fn vm(&mut self) -> Result<VmId, String> {
        self.take("vm").map(VmId)
    }

    fn thread(&mut self, name: &str) -> Result<Thread, String> {
        let word: String = self.take(name)?;
        let thread = match word.split_once(':') {
            Some(("vcpu", index)) => index.parse().ok().map(Thread::Vcpu),
            Some(("emulator", index)) => index.parse().ok().map(Thread::Emulator),
            _ => None,
        };
        thread.ok_or(format!("`{name}={word}`: vcpu:N or emulator:N is known"))
    }

    fn all_taken(&self) -> Result<(), String> {
        match self.0.keys().next() {
            Some(name) => Err(format!("`{name}` is no field that is known here")),
            None => Ok(()),
        }
    }
}
