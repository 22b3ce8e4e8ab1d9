//! Which VM's request the disk does next: the engine's policy, shared by the threads of the VMs.
//!
//! The disk is given as many pieces of work at a time as it answers soon enough, so that what waits, waits
//! here, where it can be ordered. While a daemon tells who in a VM asks and what a person does, what a person
//! waits for comes first, within its VM's limits. Else every request is `Common`: of the VMs that have
//! something waiting, that comes first which had least of the disk's time. A VM that had nothing to do does
//! not save up for later.

use crate::trace::Trace;
use crate::vm::{Source, Vm};
use frontdesk_disk_protocol::{AskersMemory, Channel, FromDaemon, FromDisk, READS, READS_PERIOD};
use frontdesk_engine::disk::{Asker, Device, DiskConfig, DiskOperation, DiskPolicy, DiskRequest};
use frontdesk_engine::{Time, VmId, nanos};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most pieces that the policy can give a disk at a time.
const MAX_DEPTH: u32 = 1024;

/// The scheduler of one physical disk. Shared by the threads of its VMs.
#[derive(Debug)]
pub(crate) struct Scheduler(Mutex<State>);

#[derive(Debug)]
struct State {
    policy: DiskPolicy,
    vms: Vec<Vm>,
    /// The daemon, if it is there.
    daemon: Option<Arc<Channel>>,
    /// Reads of which the daemon was told since then.
    told: (Time, u32),
    /// Of a disk with an arm: readable when it has been kept for somebody for long enough.
    timer: Option<Arc<OwnedFd>>,
    trace: Option<Trace>,
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

/// The clock that the daemon's events carry, too.
fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
}

impl Scheduler {
    /// A scheduler for a disk that works at this many pieces at a time at most, 1 to 1024, and may have an
    /// arm. Of such a disk, somebody must [keep the time](Self::keep_time).
    ///
    /// # Errors
    /// If the kernel refuses a timer.
    pub(crate) fn new(depth: u32, arm: bool) -> io::Result<Arc<Scheduler>> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = arm.then(|| timerfd_create(TimerfdClockId::Monotonic, flags)).transpose()?;
        Ok(Arc::new(Scheduler(Mutex::new(State::new(depth, timer.map(Arc::new))))))
    }

    /// Moves an arm on that was kept for somebody who did not come, until `stop` can be read. Returns at once
    /// if there is none.
    pub(crate) fn keep_time(&self, stop: &OwnedFd) -> io::Result<()> {
        let Some(timer) = self.state().0.timer.clone() else { return Ok(()) };
        loop {
            let mut fds = [PollFd::new(&timer, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                ready => ready?,
            };
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
            // It may have been set anew.
            let _ = rustix::io::read(&*timer, &mut [0_u8; 8]);
            let (mut state, now) = self.state();
            state.grant(None, now);
        }
    }

    /// The state, and what time it is.
    fn state(&self) -> (MutexGuard<'_, State>, Time) {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner), now())
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

    /// A daemon is there, and told which VMs are.
    pub(crate) fn daemon_came(&self, daemon: Arc<Channel>) {
        self.state().0.daemon_came(daemon);
    }

    /// It is gone: nobody tells who asks.
    pub(crate) fn daemon_went(&self) {
        self.state().0.daemon_went();
    }

    /// The daemon said something. Memory that cannot be read is told in the log.
    pub(crate) fn daemon_said(&self, message: FromDaemon, memory: Option<OwnedFd>) {
        let (mut state, now) = self.state();
        state.daemon_said(message, memory, now);
    }

    /// Tells the daemon what was served since it was told last.
    pub(crate) fn report(&self) {
        self.state().0.report();
    }

    /// All that is done is written to a trace from now on.
    pub(crate) fn trace(&self, trace: Trace) {
        self.state().0.trace = Some(trace);
    }

    /// No longer.
    pub(crate) fn end_trace(&self) {
        let trace = self.state().0.trace.take();
        if let Some(Err(error)) = trace.map(Trace::end) {
            tracing::warn!("the end of the trace is lost: {error}");
        }
    }
}

impl State {
    fn new(depth: u32, timer: Option<Arc<OwnedFd>>) -> State {
        let config = DiskConfig { max_depth: depth.clamp(1, MAX_DEPTH), ..DiskConfig::default() };
        let device = if timer.is_some() { Device::Arm } else { Device::Flash };
        let mut policy = DiskPolicy::new(config, device);
        policy.set_limited(false);
        State { policy, vms: Vec::new(), daemon: None, told: (Time(0), 0), timer, trace: None }
    }

    fn join(&mut self, wake: Arc<OwnedFd>) -> u32 {
        self.vms.push(Vm::new(wake, None, ""));
        // There are never as many VMs.
        u32::try_from(self.vms.len() - 1).unwrap_or(u32::MAX)
    }

    /// Tells the daemon something, if it is there. Never waits.
    fn say(&self, message: &FromDisk, descriptor: Option<BorrowedFd<'_>>) {
        if let Some(Err(error)) = self.daemon.as_ref().map(|daemon| daemon.send(message, descriptor)) {
            tracing::debug!("the daemon is not told: {error}");
            // The thread that hears it sees that, and begins anew.
            self.daemon.iter().for_each(|daemon| daemon.close());
        }
    }

    fn daemon_came(&mut self, daemon: Arc<Channel>) {
        self.daemon = Some(daemon);
        self.vms.iter_mut().for_each(Vm::daemon_came);
        for (disk, vm) in (0..).zip(&self.vms) {
            vm.introduce(disk, |message, connection| self.say(&message, Some(connection)));
        }
    }

    fn daemon_went(&mut self) {
        self.daemon = None;
        self.vms.iter_mut().for_each(|vm| vm.askers = None);
        self.policy.set_limited(false);
    }

    fn daemon_said(&mut self, message: FromDaemon, memory: Option<OwnedFd>, now: Time) {
        let (disk, askers) = match message {
            FromDaemon::Alive {} => return,
            FromDaemon::Input { disk, input, at_ns } => {
                if usize::from(disk) < self.vms.len() {
                    self.policy.input(VmId(disk.into()), input, Time(at_ns).min(now));
                }
                return;
            }
            FromDaemon::NoAskers { disk } => (disk, None),
            FromDaemon::Askers { disk, vcpus, layout } => {
                let mapped = memory.map(|memory| AskersMemory::map(memory, vcpus, layout)).transpose();
                if let Err(error) = &mapped {
                    tracing::warn!("who asks is not known: {error}");
                }
                (disk, mapped.ok().flatten())
            }
        };
        if let Some(vm) = self.vms.get_mut(usize::from(disk)).filter(|vm| vm.is_attached()) {
            vm.askers = askers;
        }
        self.set_limited();
    }

    /// Limits hold where somebody may come first.
    fn set_limited(&mut self) {
        let anybody = self.vms.iter().any(|vm| vm.askers.is_some());
        self.policy.set_limited(anybody);
    }

    fn report(&mut self) {
        for disk in 0..self.vms.len() {
            // There are never as many disks.
            let disk = u16::try_from(disk).unwrap_or(u16::MAX);
            if let Some(eventfds) = self.vms[usize::from(disk)].untold_notifiers() {
                self.say(&FromDisk::Notifiers { disk, eventfds }, None);
            }
            let applications = || self.policy.applications(VmId(disk.into()));
            if let Some(report) = self.vms[usize::from(disk)].report(applications) {
                self.say(&FromDisk::Report { disk, report }, None);
            }
        }
    }

    /// A VM is connected to a disk, or no longer.
    fn attached(&mut self, vm: u32, connection: Option<(OwnedFd, i32)>, name: &str) {
        self.policy.forget(VmId(vm));
        let Some(of) = self.vms.get_mut(vm as usize) else { return };
        let was = of.is_attached();
        *of = Vm::new(Arc::clone(&of.wake), connection, name);
        let disk = u16::try_from(vm).unwrap_or(u16::MAX);
        if was {
            self.say(&FromDisk::Detached { disk }, None);
        }
        self.vms[vm as usize].introduce(disk, |message, connection| self.say(&message, Some(connection)));
        self.set_limited();
    }

    /// Tells the daemon that a read begins, if it may be told of one more; whether it was.
    fn tell_of_read(&mut self, disk: u16, request: u32, at: Time) -> bool {
        if at.since(self.told.0) >= nanos(READS_PERIOD) {
            self.told = (at, 0);
        }
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.told.1 < READS) else { return false };
        self.told.1 += 1;
        // If there is no room, it has enough to hear as it is.
        daemon.send(&FromDisk::Read { disk, request }, None).is_ok()
    }

    fn ask(&mut self, vm: u32, number: u32, work: Work, asker: Option<Asker>, at: Time) {
        let Work { operation, offset, bytes } = work;
        let id = id(vm, number);
        let request = DiskRequest { id, vm: VmId(vm), asker, operation, offset, bytes, at };
        self.vms[vm as usize].known += u64::from(asker.is_some_and(|asker| asker.task.is_some()));
        if let Some(trace) = &mut self.trace {
            trace.asked(&self.vms[vm as usize].name, &request);
        }
        // A VM has one piece of a number at a time, so it is always taken.
        let _ = self.policy.arrive(&request);
        let disk = u16::try_from(vm).unwrap_or(u16::MAX);
        if operation == DiskOperation::Read && self.tell_of_read(disk, number, at) {
            self.vms[vm as usize].told.insert(number);
        }
    }

    fn done(&mut self, vm: u32, number: u32, at: Time) {
        self.policy.complete(id(vm, number), at);
        let written = self.trace.as_mut().map_or(Ok(()), |trace| trace.done(id(vm, number), at));
        if let Err(error) = written {
            tracing::warn!("the trace ends here, the disk goes on: {error}");
            self.trace = None;
        }
        if self.vms[vm as usize].told.remove(&number)
            && let Some(daemon) = &self.daemon
        {
            let disk = u16::try_from(vm).unwrap_or(u16::MAX);
            let _ = daemon.send(&FromDisk::ReadDone { disk, request: number }, None);
        }
    }

    /// Gives the disk what it can take. Wakes the VMs that were given something, but the one that asks.
    ///
    /// Only an arm needs a later call for time to pass: flushes are held only while a `High` request waits or
    /// is served, whose end is a call.
    fn grant(&mut self, asks: Option<u32>, at: Time) {
        let mut woken = Vec::new();
        while let Some(submit) = self.policy.next(at) {
            let (vm, number) = parts(submit.id);
            self.trace.iter_mut().for_each(|trace| trace.begun(&submit, at));
            if let Some(given) = self.vms.get_mut(vm as usize) {
                given.grant(number, submit.class);
            }
            if Some(vm) != asks && !woken.contains(&vm) {
                woken.push(vm);
            }
        }
        for vm in woken.into_iter().filter_map(|vm| self.vms.get(vm as usize)) {
            // Full is as good as written.
            let _ = rustix::io::write(&*vm.wake, &1_u64.to_ne_bytes());
        }
        if let Some(timer) = &self.timer {
            let later = self.policy.deadline().map_or(Duration::ZERO, |at| Duration::from_nanos(at.0));
            let it_value = Timespec::try_from(later).unwrap_or_default();
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            // It is a timer, and this is a time.
            let _ = timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once);
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
    /// A front end is connected, or no longer: `connection` is a duplicate of its connection, and the thread
    /// that serves it. What was known of the one before is forgotten.
    pub(crate) fn attached(&self, connection: Option<(OwnedFd, i32)>, name: &str) {
        self.scheduler.state().0.attached(self.vm, connection, name);
    }

    /// So many queues are served from now on, of which the guest notifies us by these eventfds.
    pub(crate) fn set_queues(&self, queues: u16, notifiers: Vec<u32>) {
        self.scheduler.state().0.vms[self.vm as usize].set_queues(queues, notifiers);
    }

    /// Who asks for what is taken from a queue now, if that is known.
    pub(crate) fn asker(&self, source: Source) -> Option<Asker> {
        self.scheduler.state().0.vms[self.vm as usize].asker(source)
    }

    /// Asks for a piece of work; `number` is the VM's own name for it, until it is done.
    pub(crate) fn ask(&self, number: u32, work: Work, asker: Option<Asker>) {
        let (mut state, now) = self.scheduler.state();
        state.ask(self.vm, number, work, asker, now);
        state.grant(Some(self.vm), now);
    }

    /// The pieces that may begin now.
    pub(crate) fn granted(&self) -> Vec<u32> {
        self.scheduler.state().0.granted(self.vm)
    }

    /// A piece that was granted has ended. `next` is the one that follows under its number.
    pub(crate) fn done(&self, number: u32, next: Option<(Work, Option<Asker>)>) {
        let (mut state, now) = self.scheduler.state();
        state.done(self.vm, number, now);
        if let Some((work, asker)) = next {
            state.ask(self.vm, number, work, asker, now);
        }
        state.grant(Some(self.vm), now);
    }

    /// Readable when another VM's thread made room for a piece of this one.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests;
