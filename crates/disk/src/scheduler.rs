//! Which VM's request the disk does next: the engine's policy, shared by the threads of the VMs.
//!
//! The disk is given as many pieces of work at a time as it answers soon enough, so that what waits, waits
//! here, where it can be ordered. Nobody tells yet who in a VM asks, so every request is `Common`: of the VMs
//! that have something waiting, that comes first which had least of the disk's time. A VM that had nothing to
//! do does not save up for later.

use frontdesk_engine::disk::{Device, DiskConfig, DiskOperation, DiskPolicy, DiskRequest};
use frontdesk_engine::{Time, VmId};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Most pieces that the policy can give a disk at a time.
const MAX_DEPTH: u32 = 1024;

/// The scheduler of one physical disk. Shared by the threads of its VMs.
#[derive(Debug)]
pub(crate) struct Scheduler {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    policy: DiskPolicy,
    vms: Vec<Vm>,
}

#[derive(Debug)]
struct Vm {
    granted: Vec<u32>,
    wake: Arc<OwnedFd>,
}

/// What a piece asks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// What for.
    pub(crate) operation: DiskOperation,
    /// Where it begins, in bytes.
    pub(crate) offset: u64,
    /// How much, in bytes.
    pub(crate) bytes: u64,
}

/// A VM's part in it.
#[derive(Debug)]
pub(crate) struct Share {
    scheduler: Arc<Scheduler>,
    vm: u32,
    wake: Arc<OwnedFd>,
}

impl Scheduler {
    /// A scheduler for a disk that works at this many pieces at a time at most, 1 to 1024.
    pub(crate) fn new(depth: u32) -> Arc<Scheduler> {
        Arc::new(Scheduler { began: Instant::now(), state: Mutex::new(State::new(depth)) })
    }

    /// The state, and what time it is.
    fn state(&self) -> (MutexGuard<'_, State>, Time) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Enough for centuries.
        (state, Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)))
    }

    /// One more VM.
    ///
    /// # Errors
    /// If the kernel refuses a descriptor.
    pub(crate) fn join(self: &Arc<Scheduler>) -> io::Result<Share> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let vm = self.state().0.join(Arc::clone(&wake));
        Ok(Share { scheduler: Arc::clone(self), vm, wake })
    }
}

impl State {
    fn new(depth: u32) -> State {
        let config = DiskConfig { max_depth: depth.clamp(1, MAX_DEPTH), ..DiskConfig::default() };
        // An arm has a scheduler of the kernel's above it, which knows where it is.
        let mut policy = DiskPolicy::new(config, Device::Flash);
        policy.set_limited(false);
        State { policy, vms: Vec::new() }
    }

    fn join(&mut self, wake: Arc<OwnedFd>) -> u32 {
        self.vms.push(Vm { granted: Vec::new(), wake });
        // There are never as many VMs.
        u32::try_from(self.vms.len() - 1).unwrap_or(u32::MAX)
    }

    fn ask(&mut self, vm: u32, number: u32, work: Work, at: Time) {
        let Work { operation, offset, bytes } = work;
        let id = id(vm, number);
        let request = DiskRequest { id, vm: VmId(vm), asker: None, operation, offset, bytes, at };
        // A VM has one piece of a number at a time, so it is always taken.
        let _ = self.policy.arrive(&request);
    }

    fn done(&mut self, vm: u32, number: u32, next: Option<Work>, at: Time) {
        self.policy.complete(id(vm, number), at);
        if let Some(work) = next {
            self.ask(vm, number, work, at);
        }
    }

    /// Gives the disk what it can take. Wakes the VMs that were given something, but the one that asks.
    ///
    /// No later call is needed for time to pass: only an arm is kept for somebody, and only for `High`
    /// requests are flushes held.
    fn grant(&mut self, asks: u32, at: Time) {
        let mut woken = Vec::new();
        while let Some(submit) = self.policy.next(at) {
            let (vm, number) = parts(submit.id);
            if let Some(given) = self.vms.get_mut(vm as usize) {
                given.granted.push(number);
            }
            if vm != asks && !woken.contains(&vm) {
                woken.push(vm);
            }
        }
        for vm in woken.into_iter().filter_map(|vm| self.vms.get(vm as usize)) {
            // Full is as good as written.
            let _ = rustix::io::write(&*vm.wake, &1_u64.to_ne_bytes());
        }
    }

    fn granted(&mut self, vm: u32) -> Vec<u32> {
        self.vms.get_mut(vm as usize).map(|vm| std::mem::take(&mut vm.granted)).unwrap_or_default()
    }
}

/// What the policy calls a VM's piece.
fn id(vm: u32, number: u32) -> u64 {
    u64::from(vm) << 32 | u64::from(number)
}

/// The VM and the number of what the policy calls so.
#[allow(clippy::cast_possible_truncation)] // That is what is wanted.
fn parts(id: u64) -> (u32, u32) {
    ((id >> 32) as u32, id as u32)
}

impl Share {
    /// Asks for a piece of work; `number` is the VM's own name for it, until it is done.
    pub(crate) fn ask(&self, number: u32, work: Work) {
        let (mut state, now) = self.scheduler.state();
        state.ask(self.vm, number, work, now);
        state.grant(self.vm, now);
    }

    /// The pieces that may begin now.
    pub(crate) fn granted(&self) -> Vec<u32> {
        self.scheduler.state().0.granted(self.vm)
    }

    /// A piece that was granted has ended. `next` is the one that follows under its number.
    pub(crate) fn done(&self, number: u32, next: Option<Work>) {
        let (mut state, now) = self.scheduler.state();
        state.done(self.vm, number, next, now);
        state.grant(self.vm, now);
    }

    /// Readable when another VM's thread made room for a piece of this one.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests;
