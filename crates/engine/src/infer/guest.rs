//! One guest: what was observed of it, and what is inferred from that.

use super::answers::Answers;
use super::io_bound::{Observer, Verdict};
use super::ports::{Arrivals, Port, PortMap};
use super::reads::{Asker, Read, Reads};
use super::routing::{Device, Routing};
use crate::config::Tavs;
use crate::event::{TaskId, Thread, Time};
use crate::nanos::total;
use crate::observe::{Registry, ThreadTimes, Vcpu};
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// A guest has no more vCPUs than this; QEMU's limit is 4096, and more than 512 are not scheduled one by one.
const MAX_VCPUS: u16 = 512;
/// Emulator threads are told apart only for their run time; more than these share the last one's account.
const MAX_EMULATORS: usize = 8;

/// What is known of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Guest {
    pub(crate) vcpus: Vec<GuestVcpu>,
    emulators: Vec<ThreadTimes>,
    pub(crate) tasks: Registry,
    pub(crate) ports: PortMap,
    pub(crate) reads: Reads,
    pub(crate) answers: Answers,
    routing: Routing,
    arrivals: Arrivals,
    /// A packet is queued, but the emulator thread, which hands it to the guest, has not run yet.
    undelivered: bool,
    /// An event was delivered, and the policies have not been told.
    delivered: bool,
    /// A read is about to end, but the emulator thread, which tells the guest, has not done so yet.
    pub(crate) read_pending: bool,
    /// The request for which the guest woke the emulator thread, until that sleeps again.
    kick: Option<Read>,
    judgement: Option<Judgement>,
}

/// What is known of one of its vCPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GuestVcpu {
    pub(crate) seen: Vcpu,
    observer: Observer,
    /// When an I/O-bound task last ran here.
    pub(crate) last_io: Option<Time>,
    /// The current task, an I/O-bound one, asked for a read that has ended, and may not know: it may be on its way to sleep, to be woken
    /// at once.
    pub(crate) falling_asleep: bool,
    /// Whether an I/O-bound task has run here since the last event was delivered.
    pub(crate) served: bool,
    /// Whether the guest has rung a doorbell here since then.
    rang: bool,
    /// It took a device's interrupt for an event and runs its handler, or what that woke: until it changes tasks or hands the event on.
    handles: bool,
    /// What is loaded was loaded when the vCPU was halted: the guest's idle task may run with it, and
    /// whatever interrupts that.
    resumed: bool,
}

/// A packet whose port is to be learnt from: it woke an I/O-bound task if one was woken on any vCPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Judgement {
    port: Port,
    /// vCPUs that have not given their verdict.
    outstanding: usize,
    clear: bool,
}

/// A task was dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dispatch {
    /// Whether it is I/O-bound.
    pub(crate) io_bound: bool,
    /// Whether the one before was on its way to sleep, to be woken at once.
    pub(crate) fell_asleep: bool,
    /// Whether it is the one that ran before.
    pub(crate) again: bool,
}

impl Guest {
    pub(crate) fn new(vcpus: u16, config: &Tavs) -> Guest {
        let vcpus: Vec<_> = (0..vcpus.clamp(1, MAX_VCPUS)).map(|_| GuestVcpu::default()).collect();
        Guest {
            emulators: Vec::new(),
            tasks: Registry::new(vcpus.len(), config),
            vcpus,
            ports: PortMap::new(config.counter_bits),
            reads: Reads::new(),
            answers: Answers::default(),
            routing: Routing::default(),
            arrivals: Arrivals::default(),
            undelivered: false,
            delivered: false,
            read_pending: false,
            kick: None,
            judgement: None,
        }
    }

    /// Completes a guest that was loaded.
    pub(crate) fn restore(&mut self, config: &Tavs) -> Result<(), StateError> {
        let vcpus = 1..=usize::from(MAX_VCPUS);
        check(vcpus.contains(&self.vcpus.len()), "a VM with more vCPUs than any, or none")?;
        check(self.emulators.len() <= MAX_EMULATORS, "more emulator threads than are told apart")?;
        check(self.routing.is_sound(), "more interrupts of devices than are remembered")?;
        self.tasks.restore(config)?;
        self.ports.check()?;
        self.reads.restore()
    }

    pub(crate) fn vcpu(&mut self, index: u16) -> Option<&mut GuestVcpu> {
        self.vcpus.get_mut(usize::from(index))
    }

    /// The guest starts again, with tasks that nobody has seen before.
    pub(crate) fn reset(&mut self, config: &Tavs) {
        self.forget();
        self.tasks = Registry::new(self.vcpus.len(), config);
        for vcpu in &mut self.vcpus {
            vcpu.seen.reset();
            *vcpu = GuestVcpu { seen: std::mem::take(&mut vcpu.seen), ..GuestVcpu::default() };
        }
        self.reads = Reads::new();
        self.answers = Answers::default();
        self.routing = Routing::default();
    }

    /// A vCPU that was there before starts afresh. Returns whether it can be had.
    pub(crate) fn plug(&mut self, index: u16) -> bool {
        if index >= MAX_VCPUS {
            return false;
        }
        let index = usize::from(index);
        if index >= self.vcpus.len() {
            self.vcpus.resize_with(index + 1, GuestVcpu::default);
            self.tasks.resize(self.vcpus.len());
        } else {
            self.vcpus[index] = GuestVcpu::default();
        }
        self.judgement = None;
        true
    }

    /// One in the middle keeps its place, for the indices of the others stay.
    pub(crate) fn unplug(&mut self, index: u16) {
        let index = usize::from(index);
        if index + 1 == self.vcpus.len() && index > 0 {
            self.vcpus.pop();
            self.tasks.resize(self.vcpus.len());
        } else if let Some(vcpu) = self.vcpus.get_mut(index) {
            *vcpu = GuestVcpu::default();
        }
        self.judgement = None;
    }

    /// Events were lost: nothing can be concluded from what was going on.
    pub(crate) fn forget(&mut self) {
        for vcpu in &mut self.vcpus {
            vcpu.seen.forget();
            vcpu.observer.forget();
            (vcpu.falling_asleep, vcpu.served, vcpu.rang, vcpu.handles) = (false, false, false, false);
        }
        self.emulators.iter_mut().for_each(ThreadTimes::forget);
        self.arrivals = Arrivals::default();
        (self.undelivered, self.delivered, self.read_pending) = (false, false, false);
        self.kick = None;
        self.judgement = None;
    }

    /// Brings the times of a vCPU up to `now`; returns what it ran since the last time.
    pub(crate) fn account_vcpu(&mut self, index: u16, now: Time, config: &Tavs) -> u64 {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return 0 };
        let ran = vcpu.seen.account(now);
        if ran > 0 {
            let verdict = vcpu.observer.ran(ran, &vcpu.seen, &mut self.tasks, config);
            self.learn(verdict);
        }
        ran
    }

    /// The same for an emulator thread.
    pub(crate) fn account_emulator(&mut self, index: u16, now: Time) -> u64 {
        self.emulator(index).account(now)
    }

    /// How many emulator threads are told apart.
    pub(crate) fn emulators(&self) -> u16 {
        u16::try_from(self.emulators.len()).unwrap_or(u16::MAX)
    }

    fn emulator(&mut self, index: u16) -> &mut ThreadTimes {
        let index = usize::from(index).min(MAX_EMULATORS - 1);
        if index >= self.emulators.len() {
            self.emulators.resize_with(index + 1, ThreadTimes::default);
        }
        &mut self.emulators[index]
    }

    /// Whether an emulator thread runs or wants to.
    pub(crate) fn emulator_is_awake(&self) -> bool {
        self.emulators.iter().any(ThreadTimes::is_awake)
    }

    /// A thread got a physical CPU. Times are up to date, those of all vCPUs if this [delivers](Self::delivers).
    pub(crate) fn run(&mut self, thread: Thread, pcpu: u16, config: &Tavs) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
                vcpu.seen.thread.run(pcpu);
                let verdict = vcpu.observer.begin(&vcpu.seen, &mut self.tasks, config);
                if !self.undelivered {
                    self.arrivals.clear();
                }
                self.learn(verdict);
            }
            Thread::Emulator(index) => {
                self.emulator(index).run(pcpu);
                if std::mem::take(&mut self.undelivered) {
                    self.deliver(config);
                }
            }
        }
    }

    /// Whether an event is delivered when this thread runs.
    pub(crate) fn delivers(&self, thread: Thread) -> bool {
        self.undelivered && matches!(thread, Thread::Emulator(_))
    }

    /// A thread lost its physical CPU. Its times are up to date.
    pub(crate) fn stop(&mut self, thread: Thread, runnable: bool) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpu(index) else { return };
                vcpu.seen.thread.stop(runnable);
            }
            Thread::Emulator(index) => {
                self.emulator(index).stop(runnable);
                // It sleeps again: what woke it was something else.
                self.read_pending &= runnable;
                self.kick = self.kick.filter(|_| runnable);
            }
        }
    }

    /// A thread became runnable. Its times are up to date.
    pub(crate) fn wake(&mut self, thread: Thread, by: Option<u16>, config: &Tavs) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpu(index) else { return };
                vcpu.seen.thread.wake();
            }
            Thread::Emulator(index) => {
                self.emulator(index).wake();
                self.kick = by.and_then(|index| {
                    let vcpu = self.vcpus.get_mut(usize::from(index))?;
                    // It asks again, so it did not sleep.
                    vcpu.falling_asleep = false;
                    let asker = Some(Asker { vcpu: index, switches: vcpu.seen.switches });
                    let io_bound = inspect(&vcpu.seen, &self.tasks, config);
                    Some(Read { io_bound, asker })
                });
            }
        }
    }

    /// A task was dispatched. `exactly`: the source tells each switch, and tells it when it is made.
    ///
    /// When one that was only seen was dispatched is not known, and still less when it stops: a task that answers and sleeps is followed by
    /// one that computes and gives nobody reason to look. So it is taken to have run from when the one before was last seen until it was
    /// last seen itself.
    pub(crate) fn switch(
        &mut self,
        index: u16,
        task: TaskId,
        exactly: bool,
        now: Time,
        config: &Tavs,
    ) -> Option<Dispatch> {
        let vcpu = self.vcpu(index)?;
        let unseen = vcpu.seen.unseen_run();
        let dispatch = self.dispatch(index, task, false, now, config);
        let vcpu = self.vcpu(index)?;
        if exactly {
            vcpu.seen.told_exactly();
        } else {
            vcpu.seen.was_seen(if dispatch.again { 0 } else { unseen });
        }
        Some(dispatch)
    }

    fn dispatch(&mut self, index: u16, task: TaskId, resumed: bool, now: Time, config: &Tavs) -> Dispatch {
        let vcpu = &mut self.vcpus[usize::from(index)];
        if vcpu.seen.current() == Some(task) {
            let io_bound = self.tasks.is_io_bound(task);
            return Dispatch { io_bound, fell_asleep: false, again: true };
        }
        vcpu.end_run(&mut self.tasks, config);
        let patience = self.answers.patience(config);
        let verdict = vcpu.observer.next(Some(task), resumed, patience, &self.tasks, config);
        vcpu.seen.switch(task, vcpu.observer.goes_on(task));
        (vcpu.handles, vcpu.resumed) = (false, resumed);
        let io_bound = self.tasks.dispatch(task, now);
        let fell_asleep = std::mem::take(&mut vcpu.falling_asleep) && !io_bound;
        if io_bound {
            vcpu.last_io = Some(now);
            vcpu.served = true;
            if let Some(delay) = vcpu.observer.serves(task) {
                self.answers.dispatched(delay, now);
            }
        }
        // What the interrupt's taker wakes may run on a vCPU that is not observed.
        let elsewhere = io_bound && !vcpu.observer.observes();
        self.learn(verdict.or(elsewhere.then_some(Verdict::IoBound)));
        Dispatch { io_bound, fell_asleep, again: false }
    }

    /// The guest halted a vCPU: its idle task preempts nobody and is woken by nobody.
    pub(crate) fn halt(&mut self, index: u16, config: &Tavs) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        vcpu.seen.seen_until_now();
        vcpu.end_run(&mut self.tasks, config);
        let verdict = vcpu.observer.next(None, false, self.answers.patience(config), &self.tasks, config);
        vcpu.seen.halt();
        vcpu.handles = false;
        self.learn(verdict);
    }

    /// A halted vCPU goes on. A guest that idles keeps the last address space loaded, so without a switch the task that runs now is the
    /// one that ran before.
    pub(crate) fn resume(&mut self, index: u16, now: Time, config: &Tavs) -> Option<Dispatch> {
        let vcpu = self.vcpu(index)?;
        if !vcpu.seen.is_halted() {
            return None;
        }
        match vcpu.seen.loaded() {
            Some(task) => {
                let dispatch = self.dispatch(index, task, true, now, config);
                Some(dispatch)
            }
            None => {
                vcpu.seen.resume();
                None
            }
        }
    }

    /// A vCPU took an interrupt of a device.
    pub(crate) fn interrupt(&mut self, index: u16, vector: u8) {
        self.routing.interrupt(index, vector);
        if let Some(vcpu) = self.vcpu(index) {
            vcpu.handles = true;
        }
    }

    /// A vCPU interrupted others, as bits. If it does so while it handles an event, it hands the event on: what the event wakes runs
    /// there. Returns whether it does. Times are up to date.
    pub(crate) fn ipi(&mut self, from: u16, to: u64, config: &Tavs) -> bool {
        for (_, vcpu) in members(to, &mut self.vcpus) {
            vcpu.seen.ipi_pending = true;
        }
        let to = to & !bit(from);
        let Some(sender) = self.vcpu(from) else { return false };
        if to == 0 || !std::mem::take(&mut sender.handles) {
            return false;
        }
        let unjudged = sender.observer.hand_on();
        let mut first = true;
        for (_, vcpu) in members(to, &mut self.vcpus) {
            let judge = unjudged == Some(true) && std::mem::take(&mut first);
            let _ = vcpu.observer.event_pending(judge, &vcpu.seen, &mut self.tasks, config);
        }
        true
    }

    /// A vCPU took an interrupt of another one.
    pub(crate) fn ipi_taken(&mut self, index: u16) {
        if let Some(vcpu) = self.vcpu(index) {
            vcpu.seen.ipi_pending = false;
        }
    }

    /// Whether an event is on its way that the guest has not been told of.
    pub(crate) fn awaits_delivery(&self) -> bool {
        self.undelivered || self.read_pending
    }

    /// Whether an event was delivered since this was asked last.
    pub(crate) fn take_delivered(&mut self) -> bool {
        std::mem::take(&mut self.delivered)
    }

    /// A packet was queued towards the VM. The times of all vCPUs are up to date.
    pub(crate) fn packet(&mut self, port: Port, config: &Tavs) {
        self.arrivals.add(port);
        // Without an emulator thread in sight the packet needs no help to reach the guest.
        if self.emulators.is_empty() || self.emulators.iter().any(ThreadTimes::is_running) {
            self.deliver(config);
        } else {
            self.undelivered = true;
        }
    }

    /// Packets were handed to the guest. The vCPUs that take its interrupts are observed, or each if that is not known.
    fn deliver(&mut self, config: &Tavs) {
        let single = self.arrivals.single();
        // Which packet woke whom can only be told of those that came before the guest runs, and they must all be for one port.
        if self.vcpus.iter().any(|vcpu| vcpu.seen.thread.is_running()) {
            self.arrivals.clear();
        }
        self.told();
        let takers = self.routing.takers(Device::Network);
        self.routing.delivered(Device::Network);
        let mut outstanding = 0;
        for vcpu in taking(takers, &mut self.vcpus) {
            // Verdicts from here are on the packet before, which a new one leaves unjudged.
            let _ = vcpu.observer.event_pending(single.is_some(), &vcpu.seen, &mut self.tasks, config);
            outstanding += 1;
        }
        self.judgement = single.map(|port| Judgement { port, outstanding, clear: true });
    }

    /// A read of the guest was taken up. What counts is who asked for it, not who runs by now.
    pub(crate) fn read(&mut self, request: u64, config: &Tavs) {
        let late = self.vcpus.iter().any(|vcpu| inspect(&vcpu.seen, &self.tasks, config));
        let read = self.kick.map_or(Read { io_bound: late, asker: None }, |kick| Read {
            io_bound: kick.io_bound || late,
            ..kick
        });
        self.reads.request(request, read);
    }

    /// A read has ended; returns whether it was an I/O-bound task's. The times of all vCPUs are up to date.
    pub(crate) fn read_done(&mut self, request: u64, config: &Tavs) -> bool {
        let read = self.reads.complete(request);
        self.read_pending = false;
        self.routing.delivered(Device::Disk);
        for (index, vcpu) in (0u16..).zip(&mut self.vcpus) {
            let here = |asker: Asker| asker.vcpu == index && asker.switches == vcpu.seen.switches;
            if read.asker.is_some_and(here) {
                vcpu.observer.read_ended_at_once(&vcpu.seen, &mut self.tasks, config);
                vcpu.falling_asleep = vcpu.seen.current().is_some_and(|task| self.tasks.is_io_bound(task));
                vcpu.seen.begin_run(0);
            } else {
                let _ = vcpu.observer.event_pending(false, &vcpu.seen, &mut self.tasks, config);
            }
        }
        self.told();
        read.io_bound
    }

    /// The guest was told of an event: what was to be answered before is as answered as it will be.
    fn told(&mut self) {
        self.delivered = true;
        for vcpu in &mut self.vcpus {
            if vcpu.served && !vcpu.rang {
                self.answers.handled(false);
            }
            let io_bound = vcpu.seen.current().is_some_and(|task| self.tasks.is_io_bound(task));
            vcpu.served = io_bound && !vcpu.falling_asleep;
            vcpu.rang = false;
        }
    }

    /// The guest rang a doorbell on a vCPU. Returns whether what it was told of is answered by that.
    pub(crate) fn doorbell(&mut self, index: u16) -> bool {
        if self.awaits_delivery() {
            return false;
        }
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)).filter(|vcpu| vcpu.served) else {
            return false;
        };
        if !std::mem::replace(&mut vcpu.rang, true) {
            self.answers.handled(true);
        }
        true
    }

    /// Whether what the guest was told of last is answered, when an I/O-bound task has given up a vCPU: it has rung a doorbell, or is none
    /// that would.
    pub(crate) fn is_answered(&self, index: u16) -> bool {
        let Some(vcpu) = self.vcpus.get(usize::from(index)).filter(|vcpu| vcpu.served) else { return false };
        !self.awaits_delivery() && (vcpu.rang || !self.answers.expects_doorbell(vcpu.seen.is_sampled()))
    }

    /// Takes a vCPU's verdict on the packet (TAVS §4.3.2).
    fn learn(&mut self, verdict: Option<Verdict>) {
        let (Some(verdict), Some(judgement)) = (verdict, self.judgement.as_mut()) else { return };
        judgement.outstanding = judgement.outstanding.saturating_sub(1);
        match verdict {
            Verdict::IoBound => self.ports.learn(judgement.port, true),
            Verdict::Unclear => judgement.clear = false,
            Verdict::NotIoBound => {}
        }
        if verdict == Verdict::IoBound {
            self.judgement = None;
        } else if judgement.outstanding == 0 {
            if judgement.clear {
                self.ports.learn(judgement.port, false);
            }
            self.judgement = None;
        }
    }

    /// Whether the guest has halted a vCPU.
    pub(crate) fn is_halted(&self, index: u16) -> bool {
        self.vcpus.get(usize::from(index)).is_some_and(|vcpu| vcpu.seen.is_halted())
    }

    /// Whether the task on a vCPU is one that was loaded when it was halted, and may not have run since.
    pub(crate) fn only_resumed(&self, index: u16) -> bool {
        self.vcpus.get(usize::from(index)).is_some_and(|vcpu| vcpu.resumed)
    }

    /// Whether the task on a vCPU is I/O-bound.
    pub(crate) fn runs_io_bound(&self, index: u16) -> bool {
        let vcpu = self.vcpus.get(usize::from(index));
        vcpu.and_then(|vcpu| vcpu.seen.current()).is_some_and(|task| self.tasks.is_io_bound(task))
    }

    /// The vCPU where an I/O-bound task ran last; `None` if there is no such task.
    pub(crate) fn last_io_bound(&self) -> Option<u16> {
        let vcpus = (0u16..).zip(&self.vcpus).filter(|_| self.tasks.any_io_bound());
        vcpus.max_by_key(|(index, vcpu)| (vcpu.last_io, u16::MAX - index)).map(|(index, _)| index)
    }

    /// The vCPUs that take the interrupts of a kind of device, as bits; `None` if that is not known.
    pub(crate) fn takers(&self, device: Device) -> Option<u64> {
        self.routing.takers(device)
    }

    /// Run time of a task that its account does not hold yet.
    pub(crate) fn uncharged(&self, task: TaskId) -> u64 {
        let running = self.vcpus.iter().filter(|vcpu| vcpu.seen.current() == Some(task));
        total(running.map(|vcpu| vcpu.seen.uncharged()))
    }

    /// All its threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &ThreadTimes> {
        self.vcpus.iter().map(|vcpu| &vcpu.seen.thread).chain(&self.emulators)
    }

    /// Starts a new settlement window.
    pub(crate) fn restart_window(&mut self) {
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.seen.thread.restart_window());
        self.emulators.iter_mut().for_each(ThreadTimes::restart_window);
    }

    /// Nanoseconds that its emulator threads ran.
    pub(crate) fn emulator_ran(&self) -> u64 {
        total(self.emulators.iter().map(|thread| thread.ran))
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.vcpus.capacity() * size_of::<GuestVcpu>()
            + self.emulators.capacity() * size_of::<ThreadTimes>()
            + self.tasks.bytes()
            + self.ports.bytes()
            + self.reads.bytes()
    }
}

impl GuestVcpu {
    /// The run of the current task ends.
    fn end_run(&mut self, tasks: &mut Registry, config: &Tavs) {
        self.observer.end_run(&self.seen, tasks, config);
        if let Some(task) = self.seen.current() {
            tasks.charge(task, self.seen.take_uncharged());
        }
    }
}

/// The bit of a vCPU in a set.
pub(crate) fn bit(vcpu: u16) -> u64 {
    1u64.checked_shl(vcpu.into()).unwrap_or(0)
}

/// The vCPUs of a set that exist.
fn members(set: u64, vcpus: &mut [GuestVcpu]) -> impl Iterator<Item = (u16, &mut GuestVcpu)> {
    (0u16..).zip(vcpus).filter(move |(index, _)| set & bit(*index) != 0)
}

/// The vCPUs of a set, or all if it is not known or none of it exists.
fn taking(set: Option<u64>, vcpus: &mut [GuestVcpu]) -> impl Iterator<Item = &mut GuestVcpu> {
    let here = (0u16..).take(vcpus.len()).fold(0, |here, index| here | bit(index));
    let set = set.filter(|set| set & here != 0);
    (0u16..)
        .zip(vcpus)
        .filter(move |(index, _)| set.is_none_or(|set| set & bit(*index) != 0))
        .map(|(_, vcpu)| vcpu)
}

/// Whether an I/O-bound task is among the last tasks dispatched (TAVS §3.3.1).
fn inspect(vcpu: &Vcpu, tasks: &Registry, config: &Tavs) -> bool {
    vcpu.recent().take(config.inspection_window).any(|task| tasks.is_io_bound(task))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
