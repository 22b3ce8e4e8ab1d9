//! Finding out about a running VM from its QMP socket and `/proc`.
//!
//! A visit never waits, so that one thread can pay many: whoever listens may stall.

use crate::process;
use crate::qmp::{Conversation, Qmp, QmpError, VmEvent};
use crate::unheard;
use crate::vm::{
    DiscoverError, QemuVm, by_index, in_order, own_thread, parse_disks, parse_io_threads, parse_vcpus, text,
};
use frontdesk_linux::Peer;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a VM is asked.
const COMMANDS: [&str; 5] =
    ["query-name", "query-status", "query-cpus-fast", "query-iothreads", "query-block"];

/// An open connection to a VM. While it is open, the VM's QMP socket serves nobody else.
#[derive(Debug)]
pub struct QmpSession(Qmp);

impl QmpSession {
    /// The next event, if one has come. Never waits.
    ///
    /// # Errors
    /// If the connection is lost, or what comes is no QMP.
    pub fn event(&mut self) -> Result<Option<VmEvent>, QmpError> {
        self.0.event()
    }
}

/// Readable when something has come.
impl AsFd for QmpSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.stream().as_fd()
    }
}

/// A VM that is being examined.
#[derive(Debug)]
pub struct Visit {
    path: PathBuf,
    pid: i32,
    process: OwnedFd,
    conversation: Conversation,
}

/// Readable when it can go on.
impl AsFd for Visit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.conversation.qmp().stream().as_fd()
    }
}

impl Visit {
    /// Begins to examine the VM whose QMP socket is at `qmp`. Never waits.
    ///
    /// # Errors
    /// If the socket cannot be reached, or is busy, or a process other than a QEMU of this host listens.
    pub fn begin(qmp: &Path) -> Result<Visit, DiscoverError> {
        let path = qmp.to_owned();
        let talk = |source| DiscoverError::Qmp { path: path.clone(), source };
        let client = Qmp::connect(qmp).map_err(talk)?;
        let peer = Peer::of(client.stream()).ok().filter(|peer| peer.pid > 0);
        let Some(Peer { pid, uid, process, .. }) = peer else {
            return Err(not_qemu(qmp, 0, "in a pid namespace out of sight".into()));
        };
        // The descriptor pins the process before anything is read by its number.
        let ended =
            || DiscoverError::Ended { path: path.clone(), pid, source: io::ErrorKind::NotFound.into() };
        let process = process.ok_or_else(ended)?;
        process::check_is_qemu(pid).map_err(|found| not_qemu(qmp, pid, found))?;
        process::check_place(qmp, uid).map_err(|cause| DiscoverError::Place { path: path.clone(), cause })?;
        Ok(Visit { path, pid, process, conversation: Conversation::new(client, &COMMANDS) })
    }

    /// Goes on as far as what has come allows. The VM, once all is known. Never waits.
    ///
    /// # Errors
    /// If what is said is no QMP, or does not fit what `/proc` shows.
    pub fn advance(&mut self) -> Result<Option<QemuVm>, DiscoverError> {
        let talk = |source| DiscoverError::Qmp { path: self.path.clone(), source };
        let Some(answers) = self.conversation.advance().map_err(talk)? else { return Ok(None) };
        match <[Value; 5]>::try_from(answers) {
            Ok(answers) => self.examine(&answers).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn examine(&self, [name, status, cpus, io_threads, block]: &[Value; 5]) -> Result<QemuVm, DiscoverError> {
        let (path, pid) = (|| self.path.clone(), self.pid);
        let ended = |source| DiscoverError::Ended { path: path(), pid, source };
        let odd = |command, cause: String| DiscoverError::Answer { path: path(), command, cause };
        let name = text(name, "name");
        let status = text(status, "status").ok_or_else(|| odd("query-status", "no status".into()))?;
        let vcpus = by_index(parse_vcpus(cpus, pid).map_err(|cause| odd("query-cpus-fast", cause))?);
        // A thread that is two things could not be followed as either.
        let threads: BTreeSet<i32> = vcpus.iter().map(|(_, thread)| thread.tid).collect();
        if threads.len() < vcpus.len() {
            return Err(DiscoverError::OneThread { path: path() });
        }
        if vcpus.is_empty() || threads.contains(&pid) {
            return Err(odd("query-cpus-fast", "no vCPU with a thread of its own".into()));
        }
        let main = own_thread(pid, pid.into()).map_err(|cause| odd("query-status", cause))?;
        let mut others = parse_io_threads(io_threads, pid).map_err(|cause| odd("query-iothreads", cause))?;
        others.extend(process::vhost_workers(pid).map_err(ended)?);
        others.retain(|thread| !threads.contains(&thread.tid));
        let emulators = in_order(main, others);
        let disks = parse_disks(block);
        let taps = process::taps(pid).map_err(ended)?;
        let (unheard, port) = unheard::and_port(pid).map_err(ended)?;
        let pidfd = self.process.try_clone().map_err(ended)?;
        if process::has_ended(&pidfd) {
            return Err(ended(io::ErrorKind::NotFound.into()));
        }
        let status = Some(status);
        Ok(QemuVm { name, pid, status, vcpus, emulators, disks, taps, port, unheard, pidfd })
    }

    /// What it means that it does not go on.
    #[must_use]
    pub fn stalled(&self) -> DiscoverError {
        DiscoverError::Qmp { path: self.path.clone(), source: self.conversation.stalled() }
    }

    /// Stays connected.
    #[must_use]
    pub fn stay(self) -> QmpSession {
        QmpSession(self.conversation.into_qmp())
    }
}

/// Examines the VM whose QMP socket is at `qmp`, and waits for that as long as `timeout`. The socket is free
/// again afterwards.
///
/// # Errors
/// As [`Visit::begin`] and [`Visit::advance`], and if it stalls.
pub fn discover(qmp: &Path, timeout: Duration) -> Result<QemuVm, DiscoverError> {
    let until = Instant::now() + timeout;
    let mut visit = Visit::begin(qmp)?;
    loop {
        if let Some(vm) = visit.advance()? {
            return Ok(vm);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(visit.stalled());
        }
        // After a signal it is looked again.
        let _ = poll(&mut [PollFd::new(&visit, PollFlags::IN)], left.try_into().ok().as_ref());
    }
}

fn not_qemu(path: &Path, pid: i32, found: String) -> DiscoverError {
    let advice = if found.contains("libvirt") {
        ": libvirt made that socket for itself; give the VM a second one with <qemu:commandline>"
    } else {
        ""
    };
    DiscoverError::NotQemu { path: path.to_owned(), pid, found, advice }
}
