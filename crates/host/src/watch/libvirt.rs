//! Looks for libvirt's VMs in `/proc`.

use super::WatchContext;
use crate::notification::VmOrigin;
use frontdesk_qemu as qemu;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A new process is looked at so many times: it may be about to become something else.
const LOOKS: u8 = 6;
/// A VM is examined again after this, or when its threads have changed.
const TURN: Duration = Duration::from_secs(5);

/// What is known of the host's processes.
pub(super) struct LibvirtScan {
    context: WatchContext,
    processes: BTreeMap<i32, Known>,
}

enum Known {
    /// Not one of libvirt's VMs, at so many looks.
    Other(u8),
    Vm(Examined),
}

#[derive(Default)]
struct Examined {
    threads: u64,
    at: Option<Instant>,
    followed: bool,
    /// What was said last about why it is not followed.
    said: Option<String>,
}

impl LibvirtScan {
    pub(super) fn new(context: WatchContext) -> LibvirtScan {
        LibvirtScan { context, processes: BTreeMap::new() }
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
                Known::Other(_) if qemu::is_libvirt(pid) => Known::Vm(self.examine(pid, Examined::default())),
                // Before libvirt makes such a process a QEMU it sees to files, groups and labels, for as long
                // as that takes.
                Known::Other(looks) if qemu::is_of_libvirt_itself(pid) => Known::Other(looks),
                Known::Other(looks) => Known::Other(looks + 1),
                Known::Vm(vm) => Known::Vm(self.examine(pid, vm)),
            };
            self.processes.insert(pid, known);
        }
    }

    fn examine(&mut self, pid: i32, mut known: Examined) -> Examined {
        let before = std::mem::replace(&mut known.threads, qemu::thread_count(pid));
        let unchanged = known.threads == before;
        if unchanged && known.at.is_some_and(|at| at.elapsed() < TURN) {
            return known;
        }
        known.at = Some(Instant::now());
        match qemu::examine_libvirt(pid) {
            Ok(vm) => {
                let name = vm.name.clone().unwrap_or_else(|| format!("process {pid}"));
                let main = vm.main_thread();
                self.context.tell(VmOrigin::Libvirt, &name, vm);
                if !std::mem::replace(&mut known.followed, true) {
                    self.context.probe(main);
                }
                known.said = None;
            }
            Err(error) => {
                let reason = error.to_string();
                // While a VM starts, threads come, and all may be well a moment later.
                if unchanged && known.said.as_ref() != Some(&reason) {
                    tracing::warn!("{reason}");
                    known.said = Some(reason);
                }
            }
        }
        known
    }
}
