//! Load from outside.

use super::{VmSpec, Workload};
use crate::allowed::{Violation, one_of, period, quoted, range, require, seconds};
use frontdesk_workload::{Protocol, WorkloadKind, times};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Load from outside: a client of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadProfile {
    /// Name of the VM entry; each of its VMs gets a client.
    pub vm: String,
    /// What the client does.
    #[serde(rename = "run")]
    pub kind: LoadKind,
}

/// What a client does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LoadKind {
    /// Sends a request, waits for the answer, thinks, and again (TAVS §5.1).
    Ask {
        /// Transport protocol.
        protocol: Protocol,
        /// Port asked: an echo, shift or read-burst of the VM listens on it.
        port: u16,
        /// Bytes of a request. 1 to 1400.
        bytes: usize,
        /// Shortest and longest think time, uniformly distributed, before `think_scale`. 0 s to 1 h.
        #[serde(with = "times")]
        think: [Duration; 2],
        /// Whether Enter is pressed on the VM's keyboard before each request, as by a person who asks for it.
        /// In the lab; the simulator knows the keys of launches only.
        #[serde(default, skip_serializing_if = "crate::allowed::is_default")]
        enter: bool,
    },
    /// Sends over TCP without pause, as if over the paper's network of 100 Mbit/s (TAVS §5.1), six times
    /// slower.
    Bulk {
        /// Port sent to: a sink of the VM listens on it.
        port: u16,
    },
    /// Types into a text editor that runs in the Debian system, over ssh, and waits for each letter to appear
    /// (TAVS §5.3).
    Edit {
        /// Shortest and longest time between letters, as for `Ask`.
        #[serde(with = "times")]
        think: [Duration; 2],
    },
    /// Types a command into the terminal of a desktop and waits until its window is drawn, then ends it. The
    /// simulator has the programs that are workloads with `run = "app"`, by their names.
    Launch {
        /// The command: printable ASCII, 1 to 200 characters.
        command: String,
        /// Shortest and longest time before the next, as for `Ask`.
        #[serde(with = "times")]
        think: [Duration; 2],
    },
    /// Turns the pages of a document on a desktop, and waits until each is drawn.
    Page {
        /// Shortest and longest time before the next, as for `Ask`.
        #[serde(with = "times")]
        think: [Duration; 2],
    },
}

impl LoadProfile {
    /// The workload of a VM that it is for: the echo, shift or read-burst that is asked, the sink that is
    /// filled, the ssh server behind which the editor runs, or the program that is started.
    #[must_use]
    pub fn target<'a>(&self, vm: &'a VmSpec) -> Option<&'a Workload> {
        vm.workloads.iter().find(|workload| self.kind.is_for(workload))
    }

    /// Checks it; `key` is its own in the scenario, `vms` are the scenario's.
    pub(crate) fn validate(&self, key: &str, vms: &[VmSpec]) -> Result<(), Violation> {
        let Some(vm) = vms.iter().find(|vm| vm.name == self.vm) else {
            let entries = vms.iter().map(|vm| vm.name.as_str());
            return require(false, format!("{key}.vm"), quoted(&self.vm), one_of(entries));
        };
        let found = self.target(vm).is_some();
        let is_sink = |kind: &WorkloadKind| matches!(kind, WorkloadKind::Sink { .. });
        if self.kind.is_on_desktop() {
            let allowed = "a VM with `desktop = true`";
            require(vm.desktop, format!("{key}.vm"), quoted(&self.vm), allowed)?;
        }
        match self.kind {
            LoadKind::Ask { protocol, port, bytes, think, .. } => {
                let allowed = ports(vm, "echo, shift or read-burst", |kind| !is_sink(kind));
                require(found, format!("{key}.port"), show_port((protocol, port)), allowed)?;
                range(format!("{key}.bytes"), bytes, 1..=1400)?;
                validate_think(key, think)
            }
            LoadKind::Bulk { port } => {
                let allowed = ports(vm, "sink", is_sink);
                require(found, format!("{key}.port"), show_port((Protocol::Tcp, port)), allowed)
            }
            LoadKind::Edit { think } => {
                let allowed = "a VM in which a workload runs the program sshd";
                require(found, format!("{key}.vm"), quoted(&self.vm), allowed)?;
                validate_think(key, think)
            }
            LoadKind::Launch { ref command, think } => {
                let printable = command.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
                let allowed = "printable ASCII, 1 to 200 characters";
                let usable = printable && (1..=200).contains(&command.len());
                require(usable, format!("{key}.command"), quoted(command), allowed)?;
                validate_think(key, think)
            }
            LoadKind::Page { think } => validate_think(key, think),
        }
    }
}

impl LoadKind {
    /// Whether it waits for answers, so that there are response times.
    #[must_use]
    pub fn waits(&self) -> bool {
        !matches!(self, LoadKind::Bulk { .. })
    }

    /// Whether it is somebody in front of a desktop, who asks no workload but the desktop.
    #[must_use]
    pub fn is_on_desktop(&self) -> bool {
        matches!(self, LoadKind::Launch { .. } | LoadKind::Page { .. })
    }

    /// Whether a workload is what it is for.
    fn is_for(&self, Workload { name, kind: workload }: &Workload) -> bool {
        let sink = matches!(workload, WorkloadKind::Sink { .. });
        match *self {
            LoadKind::Ask { protocol, port, .. } => !sink && workload.listens() == Some((protocol, port)),
            LoadKind::Bulk { port } => sink && workload.listens() == Some((Protocol::Tcp, port)),
            LoadKind::Edit { .. } => workload.is_sshd(),
            LoadKind::Launch { ref command, .. } => {
                name == command && matches!(workload, WorkloadKind::App { .. })
            }
            LoadKind::Page { .. } => false,
        }
    }
}

fn show_port((protocol, port): (Protocol, u16)) -> String {
    format!("{port} ({})", protocol.name())
}

/// The ports on which some of a VM's workloads listen, for a message.
fn ports(vm: &VmSpec, what: &str, are: impl Fn(&WorkloadKind) -> bool) -> String {
    let kinds = vm.workloads.iter().map(|workload| &workload.kind).filter(|kind| are(kind));
    let ports: Vec<_> = kinds.filter_map(WorkloadKind::listens).map(show_port).collect();
    match ports.as_slice() {
        [] => format!("none: no {what} runs in {}", vm.name),
        [only] => only.clone(),
        _ => one_of(&ports),
    }
}

fn validate_think(key: &str, [shortest, longest]: [Duration; 2]) -> Result<(), Violation> {
    period(format!("{key}.think.1"), longest, Duration::ZERO..=seconds(3600))?;
    period(format!("{key}.think.0"), shortest, Duration::ZERO..=longest)
}
