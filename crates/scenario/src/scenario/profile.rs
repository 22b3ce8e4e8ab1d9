//! Load from outside.

use super::keys::Keys;
use super::{WorkloadKind, protocol};
use frontdesk_engine::Protocol;
use humantime_serde::Serde;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Load from outside: a client of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "LoadEntry", into = "LoadEntry")]
pub struct LoadProfile {
    /// Name of the VM entry; each of its VMs gets a client.
    pub vm: String,
    /// What the client does.
    pub kind: LoadKind,
}

/// What a client does.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadKind {
    /// Sends a request, waits for the answer, thinks, and again (TAVS §5.1).
    Ask {
        /// Transport protocol.
        protocol: Protocol,
        /// Port asked: an echo or shift of the VM listens on it.
        port: u16,
        /// Bytes of a request. 1 to 1400.
        bytes: usize,
        /// Shortest and longest think time, uniformly distributed, before `think_scale`. 0 s to 1 h.
        think: [Duration; 2],
    },
    /// Sends over TCP without pause, as if over the paper's network of 100 Mbit/s (TAVS §5.1), six times slower.
    Bulk {
        /// Port sent to: a sink of the VM listens on it.
        port: u16,
    },
    /// Types into a text editor that runs in the Debian system, over ssh, and waits for each letter to appear (TAVS §5.3).
    Edit {
        /// Shortest and longest time between letters, as for `Ask`.
        think: [Duration; 2],
    },
}

impl LoadKind {
    /// Whether it waits for answers, so that there are response times.
    #[must_use]
    pub fn waits(&self) -> bool {
        !matches!(self, LoadKind::Bulk { .. })
    }

    /// Whether a workload is what it is for.
    pub(crate) fn is_for(&self, workload: &WorkloadKind) -> bool {
        let sink = matches!(workload, WorkloadKind::Sink { .. });
        match *self {
            LoadKind::Ask { protocol, port, .. } => !sink && workload.listens() == Some((protocol, port)),
            LoadKind::Bulk { port } => sink && workload.listens() == Some((Protocol::Tcp, port)),
            LoadKind::Edit { .. } => workload.is_sshd(),
        }
    }
}

/// A [`LoadProfile`] as the file has it; flat, like that of a workload.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadEntry {
    vm: String,
    #[serde(default)]
    run: LoadRun,
    #[serde(default, with = "protocol", skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    think: Option<[Serde<Duration>; 2]>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LoadRun {
    #[default]
    Ask,
    Bulk,
    Edit,
}

impl LoadRun {
    fn keys(self) -> Keys {
        let (run, needed): (_, &[_]) = match self {
            LoadRun::Ask => ("ask", &["protocol", "port", "bytes", "think"]),
            LoadRun::Bulk => ("bulk", &["port"]),
            LoadRun::Edit => ("edit", &["think"]),
        };
        Keys { entry: "load", run, always: &["vm", "run"], needed, optional: &[] }
    }
}

impl TryFrom<LoadEntry> for LoadProfile {
    type Error = String;

    fn try_from(entry: LoadEntry) -> Result<Self, Self::Error> {
        let set = [
            ("protocol", entry.protocol.is_some()),
            ("port", entry.port.is_some()),
            ("bytes", entry.bytes.is_some()),
            ("think", entry.think.is_some()),
        ];
        entry.run.keys().refuse_others(&set)?;
        let think = entry.think.map(|think| think.map(Serde::into_inner));
        let kind = || {
            Some(match entry.run {
                LoadRun::Ask => LoadKind::Ask {
                    protocol: entry.protocol?,
                    port: entry.port?,
                    bytes: entry.bytes?,
                    think: think?,
                },
                LoadRun::Bulk => LoadKind::Bulk { port: entry.port? },
                LoadRun::Edit => LoadKind::Edit { think: think? },
            })
        };
        Ok(LoadProfile { vm: entry.vm, kind: kind().ok_or_else(|| entry.run.keys().lacks())? })
    }
}

impl From<LoadProfile> for LoadEntry {
    fn from(load: LoadProfile) -> Self {
        let (run, protocol, port, bytes, think) = match load.kind {
            LoadKind::Ask { protocol, port, bytes, think } => {
                (LoadRun::Ask, Some(protocol), Some(port), Some(bytes), Some(think))
            }
            LoadKind::Bulk { port } => (LoadRun::Bulk, None, Some(port), None, None),
            LoadKind::Edit { think } => (LoadRun::Edit, None, None, None, Some(think)),
        };
        let think = think.map(|think| think.map(Serde::from));
        LoadEntry { vm: load.vm, run, protocol, port, bytes, think }
    }
}
