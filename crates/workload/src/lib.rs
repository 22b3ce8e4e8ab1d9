//! What runs inside the VMs of an experiment.
//!
//! A scenario names a workload, `frontdesk-lab-guest` does it in a real VM, and `frontdesk-sim` models it. A
//! new one is a variant of [`WorkloadKind`] here, with its ranges and with what is known of it; then a
//! program and a model.

#![forbid(unsafe_code)]

mod violation;

pub use violation::{Violation, period, range, require};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// CPU time at a time from which on a VM is hardly ever idle.
const LONG_COST: Duration = Duration::from_millis(100);

/// What a program inside a VM does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorkloadKind {
    /// Uses all the CPU it gets. An operation is 2^20 steps of the lab's computing loop.
    Hog,
    /// Answers each request with the same bytes.
    Echo {
        /// Transport protocol.
        protocol: Protocol,
        /// Port it listens on. 1 to 65535, one server for each protocol and port of a VM.
        port: u16,
        /// CPU time it burns for each request, before `cost_scale`. 0 to 10 s.
        #[serde(default, with = "humantime_serde")]
        cost: Duration,
    },
    /// Changes its character: answers UDP requests for a period, computes for the next, and so on.
    Shift {
        /// UDP port it listens on, as for an echo.
        port: u16,
        /// Length of a period. 100 ms to 10 min.
        #[serde(with = "humantime_serde")]
        period: Duration,
    },
    /// Reads the files of the VM's disk one after the other, again and again (TAVS §5.1). An operation is a
    /// file.
    ReadFiles,
    /// Reads a block of the VM's disk, past the page cache, and burns CPU time, again and again (TAVS §5.2).
    /// An operation is a block of 4 KiB.
    ReadBurn {
        /// CPU time after each block, before `cost_scale`. 0 to 10 s.
        #[serde(default, with = "humantime_serde")]
        cost: Duration,
    },
    /// Takes what clients send over TCP and throws it away. An operation is a read.
    Sink {
        /// Port it listens on, as for an echo.
        port: u16,
    },
    /// Tasks that message each other in groups of 40, half of each sending to the other half, as those of
    /// hackbench do (TAVS §5.4), again and again. An operation is a run.
    Messages {
        /// Number of tasks: a multiple of 40, up to 2000.
        tasks: u32,
        /// Messages of each of the 20 senders of a group to each of its 20 receivers in a run. 1 to 10000.
        rounds: u32,
    },
    /// Starts a task that soon ends, waits for it, and again. An operation is a task.
    Churn,
    /// A program of the Debian system.
    Program {
        /// The program, found in `PATH`, and its arguments. `{host}` in them becomes the address of a web
        /// server on the host, which answers http://{host}/BYTES with so many bytes.
        command: Vec<String>,
        /// Whether it is run again and again, and how long it takes is measured. Otherwise it is a server,
        /// which must not end.
        #[serde(default)]
        repeat: bool,
        /// Whether the guest's page cache is dropped before each run. Only with `repeat`.
        #[serde(default)]
        cold: bool,
    },
    /// Plays a film on the desktop, with sound, again and again; what is late is dropped. An operation is a
    /// frame shown, by the player's own account.
    Play {
        /// Which.
        film: Film,
    },
    /// The tasks of a workload file of rt-app, in the simulator only.
    RtApp {
        /// The file, relative to the folder of the scenario's.
        file: PathBuf,
    },
    /// What a guest does that wants to harm the host or its neighbours.
    Storm {
        /// Of what.
        of: Storm,
    },
}

/// A film of 640 x 354 pixels and 24 frames a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Film {
    /// As MPEG-4: takes some 40 % of an emulated vCPU.
    Mpeg4,
    /// As H.264: takes some 65 % of one.
    H264,
}

/// What a storm is made of. An operation is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storm {
    /// Packets from the host to every port of the guest, which the guest provokes.
    Packets,
    /// Tasks that are created without end, up to 64 at a time.
    Tasks,
    /// Switches between two tasks that wake each other.
    Switches,
}

/// Transport protocol of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// "tcp" or "udp".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// What a VM has that some workloads need.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// A data disk.
    pub disk: bool,
    /// The Debian system.
    pub debian: bool,
    /// Screen and sound.
    pub desktop: bool,
}

impl WorkloadKind {
    /// Whether it waits for I/O and then computes next to nothing.
    #[must_use]
    pub fn is_io_bound(&self) -> bool {
        match self {
            WorkloadKind::Echo { cost, .. } | WorkloadKind::ReadBurn { cost } => cost.is_zero(),
            WorkloadKind::ReadFiles | WorkloadKind::Shift { .. } => true,
            _ => false,
        }
    }

    /// Whether it wants all the CPU it can get: it never waits, or computes so long at a time that its VM is
    /// hardly ever idle.
    #[must_use]
    pub fn wants_cpu(&self) -> bool {
        match self {
            WorkloadKind::Hog
            | WorkloadKind::Churn
            | WorkloadKind::Messages { .. }
            | WorkloadKind::Storm { .. } => true,
            WorkloadKind::Echo { cost, .. } | WorkloadKind::ReadBurn { cost } => *cost >= LONG_COST,
            WorkloadKind::Program { repeat, cold, .. } => *repeat && !cold,
            _ => false,
        }
    }

    /// Whether it tells each time it wakes from I/O, or does none.
    #[must_use]
    pub fn knows_its_wakes(&self) -> bool {
        matches!(
            self,
            WorkloadKind::Hog
                | WorkloadKind::Echo { .. }
                | WorkloadKind::ReadBurn { .. }
                | WorkloadKind::ReadFiles
                | WorkloadKind::Shift { .. }
                | WorkloadKind::Churn
        )
    }

    /// Whether it has operations that take a measured time.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        matches!(self, WorkloadKind::Messages { .. } | WorkloadKind::Program { repeat: true, .. })
    }

    /// Protocol and port on which it listens.
    #[must_use]
    pub fn listens(&self) -> Option<(Protocol, u16)> {
        match *self {
            WorkloadKind::Echo { protocol, port, .. } => Some((protocol, port)),
            WorkloadKind::Shift { port, .. } => Some((Protocol::Udp, port)),
            WorkloadKind::Sink { port } => Some((Protocol::Tcp, port)),
            _ => None,
        }
    }

    /// Whether it is an ssh server.
    #[must_use]
    pub fn is_sshd(&self) -> bool {
        let WorkloadKind::Program { command, .. } = self else { return false };
        let program = command.first().map(Path::new);
        program.and_then(Path::file_name).is_some_and(|name| name == "sshd")
    }

    /// Checks its values and what it needs of its VM. `key` gives the dotted key of one of its fields.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self, key: impl Fn(&str) -> String, vm: Surroundings) -> Result<(), Violation> {
        let only_with = |run: &str, given, what| {
            require(given, key("run"), format!("{run:?}"), format!("only in a VM with `{what}`"))
        };
        let validate_cost = |cost| period(key("cost"), cost, Duration::ZERO..=Duration::from_secs(10));
        if let Some((_, port)) = self.listens() {
            range(key("port"), port, 1..=65_535)?;
        }
        match self {
            WorkloadKind::Echo { cost, .. } => validate_cost(*cost),
            WorkloadKind::Shift { period: length, .. } => {
                period(key("period"), *length, Duration::from_millis(100)..=Duration::from_secs(600))
            }
            WorkloadKind::ReadFiles => only_with("read-files", vm.disk, "disk"),
            WorkloadKind::ReadBurn { cost } => {
                only_with("read-burn", vm.disk, "disk")?;
                validate_cost(*cost)
            }
            WorkloadKind::Messages { tasks, rounds } => {
                range(key("tasks"), *tasks, 40..=2000)?;
                require(tasks.is_multiple_of(40), key("tasks"), tasks, "a multiple of 40")?;
                range(key("rounds"), *rounds, 1..=10_000)
            }
            WorkloadKind::Program { command, repeat, cold } => {
                only_with("program", vm.debian, "debian = true")?;
                require(!command.is_empty(), key("command"), "[]", "a program and its arguments")?;
                for (index, word) in command.iter().enumerate() {
                    let usable = !word.is_empty() && !word.contains('\0');
                    let key = key(&format!("command.{index}"));
                    require(usable, key, format!("{word:?}"), "a word, not empty and without a zero byte")?;
                }
                require(*repeat || !cold, key("cold"), "true", "only beside `repeat = true`")
            }
            WorkloadKind::Play { .. } => only_with("play", vm.desktop, "desktop = true"),
            _ => Ok(()),
        }
    }
}
