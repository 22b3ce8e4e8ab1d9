//! libvirt's VMs, from `/proc` alone.
//!
//! libvirt keeps the QMP monitor of its VMs for itself. What is needed is in sight without it: libvirt puts
//! each QEMU into a control group named after it, has QEMU name its threads (`debug-threads=on`), and gives
//! the VM's name on the command line. What is not in sight: whether a VM is paused (its vCPUs then just do
//! not run), and that its guest was reset (what was learnt of the tasks before it fades).

use crate::process;
use crate::unheard;
use crate::vm::{DiscoverError, QemuVm, by_index, in_order};
use frontdesk_linux::sched::ThreadId;
use procfs::ProcessCGroups;
use procfs::process::Process;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{ffi::OsStr, fs, io, os::fd::OwnedFd};

/// Whether a process is the QEMU of one of libvirt's VMs.
#[must_use]
pub fn is_libvirt(pid: i32) -> bool {
    // The group first: files of the others are none of ours.
    Process::new(pid).and_then(|process| process.cgroups()).is_ok_and(is_in_libvirts_group)
        && process::check_is_qemu(pid).is_ok()
}

/// Whether a process runs libvirt's own program: the daemon, or what it has started and not made a QEMU yet.
#[must_use]
pub fn is_of_libvirt_itself(pid: i32) -> bool {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    is_libvirts(exe.file_name().unwrap_or_default())
}

/// After an upgrade of libvirt, the name of one that still runs ends with ` (deleted)`.
fn is_libvirts(program: &OsStr) -> bool {
    let program = program.to_string_lossy();
    let program = program.strip_suffix(" (deleted)").unwrap_or(&program);
    matches!(program, "libvirtd" | "virtqemud")
}

/// With systemd, libvirt's groups are called `machine.slice/machine-qemu\x2d1\x2dNAME.scope`; without,
/// `machine/qemu-1-NAME.libvirt-qemu`. On both versions of control groups, and with or without groups for
/// single threads below. What is above is the system's: users may call groups of theirs what they like.
fn is_in_libvirts_group(groups: ProcessCGroups) -> bool {
    groups.into_iter().any(|group| {
        let mut parts = group.pathname.split('/').filter(|part| !part.is_empty());
        let is_of_system = |part: &str| {
            part != "user.slice"
                && (part.ends_with(".slice") || part.ends_with(".partition") || part == "machine")
        };
        let own = parts.find(|part| !is_of_system(part));
        own.is_some_and(|part| {
            part.strip_prefix("machine-qemu").is_some_and(|rest| rest.ends_with(".scope"))
                || part.ends_with(".libvirt-qemu")
        })
    })
}

/// Examines one of libvirt's VMs.
///
/// # Errors
/// If it has ended, its threads have no names, or all its vCPUs share one.
pub fn examine(pid: i32) -> Result<QemuVm, DiscoverError> {
    let pidfd = pin(pid).map_err(|source| ended(pid, &source))?;
    // It is known by its number, which somebody else may have got before it was pinned.
    if !is_libvirt(pid) {
        return Err(DiscoverError::Libvirt { pid, cause: "it is none of libvirt's any more".into() });
    }
    examine_pinned(pid, pidfd)
}

fn pin(pid: i32) -> io::Result<OwnedFd> {
    let number = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

fn ended(pid: i32, source: &io::Error) -> DiscoverError {
    DiscoverError::Libvirt { pid, cause: format!("it ended while it was examined ({source})") }
}

fn examine_pinned(pid: i32, pidfd: OwnedFd) -> Result<QemuVm, DiscoverError> {
    let fail = |cause: String| DiscoverError::Libvirt { pid, cause };
    let ended = |source: io::Error| ended(pid, &source);
    let command = process::command_line(pid).map_err(ended)?;
    let threads = process::threads(pid).map_err(ended)?;
    let main = ThreadId::of(pid, pid).ok_or_else(|| ended(io::ErrorKind::NotFound.into()))?;
    let named = threads.iter().filter_map(|(thread, name)| Some((vcpu_index(name)?, *thread)));
    // A process may be called as it likes.
    let vcpus = by_index(named.filter(|(_, thread)| *thread != main).collect());
    if vcpus.is_empty() {
        let cause = if threads.iter().any(|(_, name)| name.starts_with("ALL CPUs/")) {
            "it runs all its vCPUs in one thread, which cannot be boosted one by one"
        } else {
            "none of its threads is named as a vCPU's (CPU 0/KVM); it may be starting, or run without -name debug-threads=on"
        };
        return Err(fail(cause.into()));
    }
    let io_threads = threads.iter().filter(|(_, name)| name.starts_with("IO ")).map(|(thread, _)| *thread);
    let mut others: Vec<ThreadId> = io_threads.collect();
    others.extend(process::vhost_workers(pid).map_err(ended)?);
    let taps = process::taps(pid).map_err(ended)?;
    let (unheard, port) = unheard::and_port(pid).map_err(ended)?;
    if process::has_ended(&pidfd) {
        return Err(ended(io::ErrorKind::NotFound.into()));
    }
    let (name, emulators) = (process::guest_name(&command), in_order(main, others));
    let (status, disks) = (None, Vec::new());
    Ok(QemuVm { name, pid, status, vcpus, emulators, disks, taps, port, unheard, pidfd })
}

/// The vCPU of a thread that QEMU calls so: `CPU 3/KVM`, `CPU 3/TCG`.
fn vcpu_index(thread: &str) -> Option<u16> {
    let (index, accelerator) = thread.strip_prefix("CPU ")?.split_once('/')?;
    matches!(accelerator, "KVM" | "TCG").then(|| index.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromRead as _;
    use std::{sync::mpsc, thread};

    #[test]
    fn knows_libvirts_groups_on_both_versions() {
        for (groups, libvirts) in [
            ("0::/machine.slice/machine-qemu\\x2d1\\x2dalice.scope/libvirt/emulator\n", true),
            (
                "5:cpuset:/\n4:cpu,cpuacct:/machine.slice/machine-qemu\\x2d12\\x2db.scope/emulator\n0::/\n",
                true,
            ),
            ("4:cpu,cpuacct:/machine/qemu-1-alice.libvirt-qemu/emulator\n", true),
            ("0::/production.slice/production-desks.slice/machine-qemu\\x2d3\\x2dc.scope\n", true),
            ("4:cpu,cpuacct:/desks.partition/qemu-1-alice.libvirt-qemu\n", true),
            // What a user, or somebody in a container, calls a group.
            ("0::/user.slice/user-1000.slice/user@1000.service/machine-qemu\\x2d3\\x2dc.scope\n", false),
            ("0::/user.slice/machine-qemu\\x2d3\\x2dc.scope\n", false),
            ("0::/system.slice/docker-1.scope/machine.slice/machine-qemu\\x2d3\\x2dc.scope\n", false),
            ("1:name=systemd:/user.slice/x.libvirt-qemu\n", false),
            ("0::/machine.slice/machine-lxc\\x2d1\\x2dbox.scope\n", false),
            ("0::/system.slice/qemu-alice.scope\n", false),
        ] {
            let parsed = ProcessCGroups::from_read(groups.as_bytes()).unwrap();
            assert_eq!(is_in_libvirts_group(parsed), libvirts, "{groups}");
        }
    }

    #[test]
    fn knows_libvirts_own_programs() {
        for (program, own) in [
            ("libvirtd", true),
            ("virtqemud", true),
            ("libvirtd (deleted)", true),
            ("virtlogd", false),
            ("qemu-system-x86_64", false),
            ("", false),
        ] {
            assert_eq!(is_libvirts(OsStr::new(program)), own, "{program}");
        }
        assert!(!is_of_libvirt_itself(std::process::id().cast_signed()), "not libvirt");
    }

    /// This process stands for a QEMU: what counts are its threads' names.
    #[test]
    fn finds_threads_by_their_names() {
        let pid = std::process::id().cast_signed();
        assert!(!is_libvirt(pid), "not a QEMU");
        assert!(examine(pid).unwrap_err().to_string().contains("none of libvirt's"), "as its number may be");
        let examine = |pid| examine_pinned(pid, pin(pid).unwrap());
        let unnamed = examine(pid).unwrap_err().to_string();
        assert!(unnamed.contains("debug-threads=on"), "{unnamed}");
        thread::scope(|scope| {
            let mut held = Vec::new();
            for name in ["CPU 1/KVM", "CPU 0/KVM", "IO iothread1", "CPU x/KVM", "worker"] {
                let (hold, wait) = mpsc::channel::<()>();
                let (ready, started) = mpsc::channel();
                let body = move || {
                    // SAFETY: gettid touches no memory.
                    let _ = ready.send(unsafe { libc::gettid() });
                    let _ = wait.recv();
                };
                thread::Builder::new().name(name.into()).spawn_scoped(scope, body).unwrap();
                held.push((hold, started.recv().unwrap()));
            }
            let vm = examine(pid).unwrap();
            let vcpus: Vec<_> = vm.vcpus.iter().map(|(index, thread)| (*index, thread.tid)).collect();
            assert_eq!(vcpus, [(0, held[1].1), (1, held[0].1)]);
            let emulators: Vec<_> = vm.emulators.iter().map(|thread| thread.tid).collect();
            assert_eq!(emulators, [pid, held[2].1]);
            assert!(!vm.is_paused() && vm.thread_count() > 5);
        });
    }
}
