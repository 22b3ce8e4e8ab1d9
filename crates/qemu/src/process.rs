//! What `/proc` tells about a QEMU process.

use frontdesk_linux::sched::ThreadId;
use frontdesk_linux::{MAX_THREADS, Tap, of_root};
use procfs::process::{Process, Stat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

/// The mode bit that lets everybody write.
const WRITABLE_BY_ALL: u32 = 0o002;
/// The mode bit that lets only owners remove what is in a folder.
const STICKY: u32 = 0o1000;
/// The kernel threads' parent.
const KTHREADD: i32 = 2;
/// More descriptors of a process are not looked at: those that matter were opened when the VM began.
pub(crate) const MAX_DESCRIPTORS: usize = 16_384;
/// More of a command line is not read. libvirt's are some ten thousand bytes.
const MAX_COMMAND_LINE: u64 = 1 << 20;

/// The words with which a process was started, each ended by a zero byte: the beginning, if there are too
/// many.
pub(crate) fn command_line(pid: i32) -> io::Result<Vec<u8>> {
    let mut command = Vec::new();
    File::open(format!("/proc/{pid}/cmdline"))?.take(MAX_COMMAND_LINE).read_to_end(&mut command)?;
    Ok(command)
}

/// Checks that only root or `user`, who listens at it, can have put a socket where it is: neither it nor a
/// folder that it is in, up to the root of all, may be anybody else's to replace.
pub(super) fn check_place(socket: &Path, user: u32) -> Result<(), String> {
    let unseen = |error: io::Error| format!("it cannot be looked at: {error}");
    // Without links, which others could turn to another place later.
    let real = fs::canonicalize(socket).map_err(unseen)?;
    let mut below = fs::metadata(&real).map_err(unseen)?.uid();
    for (depth, path) in real.ancestors().enumerate() {
        let found = fs::metadata(path).map_err(unseen)?;
        // In /tmp what is there stays its owner's. But anybody may have been the first to make it.
        let was_ours = found.mode() & STICKY != 0 && (below == 0 || below == geteuid().as_raw());
        if depth > 0 && found.mode() & WRITABLE_BY_ALL != 0 && (depth == 1 || !was_ours) {
            return Err(format!(
                "every user can put a socket into {}, or a folder in which one is; give VMs a folder of their \
                 own, such as /run/vms",
                path.display()
            ));
        }
        below = found.uid();
        if below != 0 && below != user {
            return Err(format!(
                "{} belongs to another user than the one who listens, {user}",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Checks that a process is a QEMU that root has installed; otherwise tells what it is. What a process calls
/// itself, or its threads, says nothing.
pub(super) fn check_is_qemu(pid: i32) -> Result<(), String> {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let exe = fs::read_link(&link).unwrap_or_default();
    let exe = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !exe.contains("qemu") {
        let comm = || Process::new(pid).and_then(|process| process.stat()).map(|stat| stat.comm);
        return Err(if exe.is_empty() {
            format!("{:?}", comm().unwrap_or_default())
        } else {
            format!("{exe:?}")
        });
    }
    match of_root(&link) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{exe:?} that is no program of this host's ({error})")),
    }
}

/// The user as whom a process acts; `None` if it has ended. By hand: the procfs crate wants the name in that
/// file to be UTF-8.
pub(crate) fn user(pid: i32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    // Real, effective, saved and of the file system.
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().nth(1)?.parse().ok()
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

/// Its threads with their names, the oldest first, and no more than [`MAX_THREADS`].
pub(super) fn threads(pid: i32) -> io::Result<Vec<(ThreadId, String)>> {
    oldest_threads(pid, MAX_THREADS)
}

fn oldest_threads(pid: i32, most: usize) -> io::Result<Vec<(ThreadId, String)>> {
    let tasks = Process::new(pid).and_then(|process| process.tasks()).map_err(io::Error::other)?;
    // A thread may end meanwhile.
    let stats = tasks.take(most).flatten().filter_map(|task| task.stat().ok());
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
    descriptors.into_iter().take(MAX_DESCRIPTORS).any(|descriptor| {
        fs::read_link(descriptor.path()).is_ok_and(|file| file.to_string_lossy().starts_with("/dev/vhost-"))
    })
}

/// The tap devices a process holds open. A queue each, hence the same one may come up several times.
pub(super) fn taps(pid: i32) -> io::Result<Vec<Tap>> {
    let netns = fs::metadata(format!("/proc/{pid}/ns/net"))?.ino();
    let netns = u32::try_from(netns).map_err(io::Error::other)?;
    let mut names = BTreeSet::new();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fdinfo"))?.take(MAX_DESCRIPTORS).flatten() {
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
    use frontdesk_testing::{Need, leave_out};

    /// What a process is called, it chooses itself; what it runs, it may have written itself.
    #[test]
    fn a_qemu_is_known_by_a_program_of_roots() {
        use std::os::unix::fs::{chown, symlink};
        use std::process::{Child, Command};
        let home = tempfile::tempdir().unwrap();
        let start = |program: &Path| -> Child {
            // The file was just written, and a fork of another test may still have it open.
            let mut tries = 0;
            loop {
                match Command::new(program).arg("60").spawn() {
                    Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) && tries < 1000 => tries += 1,
                    child => return child.unwrap(),
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        let found = |program: &Path| {
            let mut child = start(program);
            let found = check_is_qemu(child.id().cast_signed());
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        let (link, copy) = (home.path().join("qemu-system-link"), home.path().join("qemu-system-copy"));
        symlink("/bin/sleep", &link).unwrap();
        // Its thread is called qemu-system-link.
        let said = found(&link).unwrap_err();
        assert!(!said.contains("qemu"), "{said}");
        fs::copy("/bin/sleep", &copy).unwrap();
        if rustix::process::geteuid().is_root() {
            assert_eq!(found(&copy), Ok(()));
            chown(&copy, Some(65534), None).unwrap();
        } else {
            leave_out("a part of a_qemu_is_known_by_a_program_of_roots", Need::Root, "it gives files away");
        }
        assert!(found(&copy).unwrap_err().contains("does not belong to root"));
    }

    /// Of a process that starts threads without end, the first are looked at.
    #[test]
    fn so_many_threads_are_looked_at() {
        let pid = std::process::id().cast_signed();
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| held.lock().unwrap().recv())));
            assert!(oldest_threads(pid, MAX_THREADS).unwrap().len() > 4);
            let oldest = oldest_threads(pid, 3).unwrap();
            assert_eq!((oldest.len(), oldest[0].0.tid), (3, pid));
            drop(hold);
        });
    }

    #[test]
    fn sockets_are_where_only_their_owner_can_put_them() {
        use std::os::unix::fs::{PermissionsExt, chown};
        use std::os::unix::net::UnixListener;
        let home = tempfile::tempdir().unwrap();
        let (socket, own) = (home.path().join("qmp"), rustix::process::geteuid().as_raw());
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(check_place(&socket, own), Ok(()));
        fs::set_permissions(home.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        assert!(check_place(&socket, own).unwrap_err().contains("every user can put a socket"));
        fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
        if own == 0 {
            // Mallory listens where root would, or Alice's VM.
            chown(&socket, Some(65534), None).unwrap();
            assert!(check_place(&socket, 0).unwrap_err().contains("another user"));
            assert_eq!(check_place(&socket, 65534), Ok(()));
            // Mallory made the folder above, where `/tmp/vms/*/qmp` is followed.
            let (made, inside) = (home.path().join("vms"), home.path().join("vms/alice"));
            fs::create_dir_all(&inside).unwrap();
            let below = inside.join("qmp");
            let _listener = UnixListener::bind(&below).unwrap();
            assert_eq!(check_place(&below, 0), Ok(()));
            chown(&made, Some(65534), None).unwrap();
            assert!(check_place(&below, 0).unwrap_err().contains("another user"));
            // Or Mallory was first in /tmp, and listens there.
            fs::set_permissions(home.path(), PermissionsExt::from_mode(0o1777)).unwrap();
            for path in [&inside, &below] {
                chown(path, Some(65534), None).unwrap();
            }
            assert!(check_place(&below, 65534).unwrap_err().contains("every user can put a socket"));
            fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
            assert_eq!(check_place(&below, 65534), Ok(()));
            // What a link leads to counts.
            let link = home.path().join("link");
            std::os::unix::fs::symlink(&inside, &link).unwrap();
            assert!(check_place(&link.join("qmp"), 0).unwrap_err().contains("another user"));
        } else {
            leave_out(
                "a part of sockets_are_where_only_their_owner_can_put_them",
                Need::Root,
                "it gives files away",
            );
        }
        assert!(check_place(&home.path().join("missing"), own).is_err());
    }

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
