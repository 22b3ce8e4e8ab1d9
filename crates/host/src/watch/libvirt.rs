//! Looks for libvirt's VMs in `/proc`.

use super::mailbox::{Mailbox, News, Place, Sighting, Source};
use crate::cgroup::Hierarchy;
use crate::qemu;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// libvirt starts a process, moves it to its group, and only then makes it a QEMU: a new process is looked at so many times.
const LOOKS: u8 = 6;
/// A VM is examined again after this, or when its threads have changed.
const TURN: Duration = Duration::from_secs(5);

/// What is known of the host's processes.
pub(super) struct LibvirtScan {
    hierarchy: Hierarchy,
    mailbox: Mailbox,
    processes: BTreeMap<i32, Known>,
}

enum Known {
    /// Not one of libvirt's VMs, at so many looks.
    Other(u8),
    Vm {
        threads: u64,
        examined: Option<Instant>,
        said: Option<String>,
    },
}

impl LibvirtScan {
    pub(super) fn new(hierarchy: Hierarchy, mailbox: Mailbox) -> LibvirtScan {
        LibvirtScan { hierarchy, mailbox, processes: BTreeMap::new() }
    }

    /// Begins anew, as if nothing was seen.
    pub(super) fn forget(&mut self) {
        self.processes.clear();
    }

    pub(super) fn scan(&mut self) {
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let mut before = std::mem::take(&mut self.processes);
        for pid in pids {
            let known = match before.remove(&pid).unwrap_or(Known::Other(0)) {
                Known::Other(LOOKS) => Known::Other(LOOKS),
                Known::Other(_) if qemu::is_libvirt(pid) => {
                    self.examine(pid, Known::Vm { threads: 0, examined: None, said: None })
                }
                Known::Other(looks) => Known::Other(looks + 1),
                vm => self.examine(pid, vm),
            };
            self.processes.insert(pid, known);
        }
    }

    fn examine(&self, pid: i32, known: Known) -> Known {
        let Known::Vm { threads, examined, said } = known else { return known };
        let now = qemu::thread_count(pid);
        if now == threads && examined.is_some_and(|at| at.elapsed() < TURN) {
            return Known::Vm { threads, examined, said };
        }
        let (threads, examined) = (now, Some(Instant::now()));
        match qemu::examine_libvirt(pid) {
            Ok(vm) => {
                let name = vm.name.clone().unwrap_or_else(|| format!("process {pid}"));
                let place = Place::of(&self.hierarchy, pid);
                let sighting = Sighting { source: Source::Libvirt, name, vm, place };
                self.mailbox.post(News::Seen(Box::new(sighting)));
                Known::Vm { threads, examined, said: None }
            }
            Err(error) => {
                let reason = error.to_string();
                if said.as_ref() != Some(&reason) {
                    tracing::warn!("{reason}");
                }
                Known::Vm { threads, examined, said: Some(reason) }
            }
        }
    }
}
