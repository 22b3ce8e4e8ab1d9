//! Programs inside VMs.

use super::keys::Keys;
use super::protocol;
use frontdesk_engine::Protocol;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program inside a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WorkloadEntry", into = "WorkloadEntry")]
pub struct Workload {
    /// Name inside its VM: letters, digits and `-`.
    pub name: String,
    /// What it does.
    pub kind: WorkloadKind,
}

/// What a program inside a VM does.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadKind {
    /// Uses all the CPU it gets.
    Hog,
    /// Answers each request with the same bytes.
    Echo {
        /// Transport protocol.
        protocol: Protocol,
        /// Port it listens on. 1 to 65535, one server for each protocol and port of a VM.
        port: u16,
        /// CPU time it burns for each request, before `cost_scale`. 0 to 10 s.
        cost: Duration,
    },
    /// Changes its character: answers UDP requests for a period, computes for the next, and so on.
    Shift {
        /// UDP port it listens on, as for an echo.
        port: u16,
        /// Length of a period. 100 ms to 10 min.
        period: Duration,
    },
    /// Reads the files of the VM's disk one after the other, again and again (TAVS §5.1).
    ReadFiles,
    /// Reads a block of the VM's disk and burns CPU time, again and again (TAVS §5.2).
    ReadBurn {
        /// CPU time after each block, before `cost_scale`. 0 to 10 s.
        cost: Duration,
    },
    /// Takes what clients send over TCP and throws it away.
    Sink {
        /// Port it listens on, as for an echo.
        port: u16,
    },
    /// Tasks that message each other, as those of hackbench do (TAVS §5.4), again and again.
    Messages {
        /// Number of tasks: a multiple of 40, up to 2000.
        tasks: u32,
        /// Messages of each of the 20 senders of a group to each of its 20 receivers in a run. 1 to 10000.
        rounds: u32,
    },
    /// Starts a task that soon ends, waits for it, and again.
    Churn,
    /// A program of the Debian system.
    Program {
        /// The program, found in `PATH`, and its arguments. `{host}` in them becomes the address of a web server on the host, which
        /// answers http://{host}/BYTES with so many bytes.
        command: Vec<String>,
        /// Whether it is run again and again, and how long it takes is measured. Otherwise it is a server, which must not end.
        repeat: bool,
        /// Whether the guest's page cache is dropped before each run. Only with `repeat`.
        cold: bool,
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

/// What a storm is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storm {
    /// Packets from the host to every port of the guest, which the guest provokes.
    Packets,
    /// Tasks that are created without end.
    Tasks,
    /// Switches between two tasks that wake each other.
    Switches,
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
    pub(crate) fn listens(&self) -> Option<(Protocol, u16)> {
        match *self {
            WorkloadKind::Echo { protocol, port, .. } => Some((protocol, port)),
            WorkloadKind::Shift { port, .. } => Some((Protocol::Udp, port)),
            WorkloadKind::Sink { port } => Some((Protocol::Tcp, port)),
            _ => None,
        }
    }

    /// Whether it is an ssh server.
    pub(super) fn is_sshd(&self) -> bool {
        let WorkloadKind::Program { command, .. } = self else { return false };
        let program = command.first().map(Path::new);
        program.and_then(Path::file_name).is_some_and(|name| name == "sshd")
    }
}

/// A [`Workload`] as the file has it: flat, because serde can not refuse unknown keys in a flattened enum.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadEntry {
    name: String,
    run: Run,
    #[serde(default, with = "protocol", skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    cost: Option<Duration>,
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    period: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tasks: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rounds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repeat: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cold: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<Storm>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Run {
    #[default]
    Hog,
    Echo,
    Shift,
    ReadFiles,
    ReadBurn,
    Sink,
    Messages,
    Churn,
    Program,
    RtApp,
    Storm,
}

impl Run {
    fn keys(self) -> Keys {
        let (run, needed, optional): (_, &[_], &[_]) = match self {
            Run::Hog => ("hog", &[], &[]),
            Run::Echo => ("echo", &["protocol", "port"], &["cost"]),
            Run::Shift => ("shift", &["port", "period"], &[]),
            Run::ReadFiles => ("read-files", &[], &[]),
            Run::ReadBurn => ("read-burn", &[], &["cost"]),
            Run::Sink => ("sink", &["port"], &[]),
            Run::Messages => ("messages", &["tasks", "rounds"], &[]),
            Run::Churn => ("churn", &[], &[]),
            Run::Program => ("program", &["command"], &["repeat", "cold"]),
            Run::RtApp => ("rt-app", &["file"], &[]),
            Run::Storm => ("storm", &["of"], &[]),
        };
        Keys { entry: "workload", run, always: &["name", "run"], needed, optional }
    }
}

impl TryFrom<WorkloadEntry> for Workload {
    type Error = String;

    fn try_from(entry: WorkloadEntry) -> Result<Self, Self::Error> {
        let set = [
            ("protocol", entry.protocol.is_some()),
            ("port", entry.port.is_some()),
            ("cost", entry.cost.is_some()),
            ("period", entry.period.is_some()),
            ("tasks", entry.tasks.is_some()),
            ("rounds", entry.rounds.is_some()),
            ("command", entry.command.is_some()),
            ("repeat", entry.repeat.is_some()),
            ("cold", entry.cold.is_some()),
            ("file", entry.file.is_some()),
            ("of", entry.of.is_some()),
        ];
        entry.run.keys().refuse_others(&set)?;
        let cost = entry.cost.unwrap_or_default();
        let kind = || {
            Some(match entry.run {
                Run::Hog => WorkloadKind::Hog,
                Run::Echo => WorkloadKind::Echo { protocol: entry.protocol?, port: entry.port?, cost },
                Run::Shift => WorkloadKind::Shift { port: entry.port?, period: entry.period? },
                Run::ReadFiles => WorkloadKind::ReadFiles,
                Run::ReadBurn => WorkloadKind::ReadBurn { cost },
                Run::Sink => WorkloadKind::Sink { port: entry.port? },
                Run::Messages => WorkloadKind::Messages { tasks: entry.tasks?, rounds: entry.rounds? },
                Run::Churn => WorkloadKind::Churn,
                Run::Program => WorkloadKind::Program {
                    command: entry.command?,
                    repeat: entry.repeat.unwrap_or_default(),
                    cold: entry.cold.unwrap_or_default(),
                },
                Run::RtApp => WorkloadKind::RtApp { file: entry.file? },
                Run::Storm => WorkloadKind::Storm { of: entry.of? },
            })
        };
        Ok(Workload { name: entry.name, kind: kind().ok_or_else(|| entry.run.keys().lacks())? })
    }
}

impl From<Workload> for WorkloadEntry {
    fn from(workload: Workload) -> Self {
        let mut entry = WorkloadEntry { name: workload.name, ..WorkloadEntry::default() };
        entry.run = match workload.kind {
            WorkloadKind::Hog => Run::Hog,
            WorkloadKind::Echo { protocol, port, cost } => {
                (entry.protocol, entry.port, entry.cost) = (Some(protocol), Some(port), Some(cost));
                Run::Echo
            }
            WorkloadKind::Shift { port, period } => {
                (entry.port, entry.period) = (Some(port), Some(period));
                Run::Shift
            }
            WorkloadKind::ReadFiles => Run::ReadFiles,
            WorkloadKind::ReadBurn { cost } => {
                entry.cost = Some(cost);
                Run::ReadBurn
            }
            WorkloadKind::Sink { port } => {
                entry.port = Some(port);
                Run::Sink
            }
            WorkloadKind::Messages { tasks, rounds } => {
                (entry.tasks, entry.rounds) = (Some(tasks), Some(rounds));
                Run::Messages
            }
            WorkloadKind::Churn => Run::Churn,
            WorkloadKind::Program { command, repeat, cold } => {
                (entry.command, entry.repeat, entry.cold) = (Some(command), Some(repeat), Some(cold));
                Run::Program
            }
            WorkloadKind::RtApp { file } => {
                entry.file = Some(file);
                Run::RtApp
            }
            WorkloadKind::Storm { of } => {
                entry.of = Some(of);
                Run::Storm
            }
        };
        entry
    }
}
