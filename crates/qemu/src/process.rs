//! What `/proc` tells about a QEMU process.

use frontdesk_linux::Tap;
use frontdesk_linux::sched::ThreadId;
use procfs::process::{Process, Stat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::BTreeSet,
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
};

/// The kernel threads' parent.
const KTHREADD: i32 = 2;

/// The process that listens at the other end.
pub(super) fn peer(stream: &UnixStream) -> Option<i32> {
    rustix::net::sockopt::socket_peercred(stream.as_fd()).ok().map(|peer| peer.pid.as_raw_nonzero().get())
}

/// Checks that a process is a QEMU; otherwise tells what it is.
pub(super) fn check_is_qemu(pid: i32) -> Result<(), String> {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let exe = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let comm =
        Process::new(pid).and_then(|process| process.stat()).map_or_else(|_| String::new(), |stat| stat.comm);
    if exe.contains("qemu") || comm.contains("qemu") {
        return Ok(());
    }
    Err(if exe.is_empty() { format!("{comm:?}") } else { format!("{exe:?}") })
}

/// Whether the process behind a pidfd has ended.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// How many threads a process has; 0 if it has ended. The folder of its threads has a link for each.
#[must_use]
pub fn thread_count(pid: i32) -> u64 {
    fs::metadata(format!("/proc/{pid}/task")).map_or(0, |folder| folder.nlink())
}

/// Its threads with their names.
pub(super) fn threads(pid: i32) -> io::Result<Vec<(ThreadId, String)>> {
    let tasks = Process::new(pid).and_then(|process| process.tasks()).map_err(io::Error::other)?;
    // A thread may end meanwhile.
    let stats = tasks.flatten().filter_map(|task| task.stat().ok());
    Ok(stats.map(|stat| (ThreadId { pid, tid: stat.pid, started: stat.starttime }, stat.comm)).collect())
}

/// The vhost workers of a process. Since Linux 6.4 they are threads of it; before, and where the kernel is
/// told so, they are kernel threads named after the thread of it that opened the device.
pub(super) fn vhost_workers(pid: i32) -> io::Result<Vec<ThreadId>> {
    let threads = threads(pid)?;
    let own = threads.iter().filter(|(_, name)| name.starts_with("vhost-"));
    let mut workers: Vec<ThreadId> = own.map(|(thread, _)| *thread).collect();
    if !workers.is_empty() || !has_vhost(pid) {
        return Ok(workers);
    }
    let names: Vec<String> = threads.iter().map(|(thread, _)| format!("vhost-{}", thread.tid)).collect();
    for process in procfs::process::all_processes().map_err(io::Error::other)?.flatten() {
        let Ok(Stat { pid, comm, ppid, starttime, .. }) = process.stat() else { continue };
        // Anyone can be called that, but only kernel threads descend from kthreadd.
        if names.contains(&comm) && ppid == KTHREADD {
            workers.push(ThreadId { pid, tid: pid, started: starttime });
        }
    }
    Ok(workers)
}

fn has_vhost(pid: i32) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|descriptor| {
        fs::read_link(descriptor.path()).is_ok_and(|file| file.to_string_lossy().starts_with("/dev/vhost-"))
    })
}

/// The tap devices a process holds open. A queue each, hence the same one may come up several times.
pub(super) fn taps(pid: i32) -> io::Result<Vec<Tap>> {
    let netns = fs::metadata(format!("/proc/{pid}/ns/net"))?.ino();
    let netns = u32::try_from(netns).map_err(io::Error::other)?;
    let mut names = BTreeSet::new();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
        // It may be closed meanwhile.
        let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
        names.extend(
            info.lines().filter_map(|line| line.strip_prefix("iff:")).map(|name| name.trim().to_owned()),
        );
    }
    names.remove("");
    Ok(names.into_iter().map(|ifname| Tap { netns, ifname }).collect())
}

/// The VM's name on QEMU's command line, after `-name`: `guest=NAME,debug-threads=on`, in which two commas
/// are one.
pub(super) fn guest_name(command: &[u8]) -> Option<String> {
    let mut words = command.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.find(|word| word == "-name")?;
    let options = words.next()?.replace(",,", "\0");
    let first = options.split(',').next()?;
    let name = first.strip_prefix("guest=").unwrap_or(first).replace('\0', ",");
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_name_from_the_command_line() {
        let name = |command: &str| guest_name(command.replace(' ', "\0").as_bytes());
        assert_eq!(name("qemu -name guest=alice,debug-threads=on -S").as_deref(), Some("alice"));
        assert_eq!(name("qemu -name guest=a,,b,debug-threads=on").as_deref(), Some("a,b"));
        assert_eq!(name("qemu -name bob").as_deref(), Some("bob"));
        assert_eq!(name("qemu -name guest="), None);
        assert_eq!(name("qemu -name"), None);
    }
}
