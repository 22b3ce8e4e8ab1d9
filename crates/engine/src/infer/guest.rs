//! One guest: what was observed of it, and what is inferred from that.

use super::answers::Answers;
use super::asking::Asking;
use super::frames::{Frames, Shown};
use super::interaction::Interaction;
use super::io_bound::Observer;
use super::ports::{Arrivals, Port, PortMap};
use super::reads::{Read, Reader, Reads};
use super::routing::{Device, Routing};
use super::sound::Sound;
use super::usage::Usage;
use super::wakeups::Wakeups;
use crate::config::Tavs;
use crate::event::{TaskId, Thread, Time};
use crate::nanos::{nanos, total};
use crate::observe::{Registry, ThreadTimes, Vcpu};
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// A guest has no more vCPUs than this; QEMU's limit is 4096, and more than 512 are not scheduled one by one.
const MAX_VCPUS: u16 = 512;
/// Emulator threads are told apart only for their run time; more than these share the last one's account.
/// QEMU's main loop, and as many of its other threads as the daemon follows.
const MAX_EMULATORS: usize = 65;
/// The emulator thread that is QEMU's main loop.
pub(super) const MAIN_LOOP: u16 = 0;

/// What is known of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Guest {
    pub(crate) vcpus: Vec<GuestVcpu>,
    pub(super) emulators: Vec<ThreadTimes>,
    /// Nanoseconds that threads of the emulator ran that are not told of one by one.
    #[serde(default)]
    others_ran: u64,
    /// Nanoseconds that these waited since the last settlement.
    #[serde(default)]
    others_waited: u64,
    pub(crate) tasks: Registry,
    /// Which ports lead to an I/O-bound task,
    pub(crate) ports: PortMap,
    /// and from which replies are seen.
    pub(super) replying: PortMap,
    /// The port of the last packet, until there is a reply, and when it came.
    pub(super) asked: Option<(Port, Time)>,
    pub(crate) reads: Reads,
    pub(crate) answers: Answers,
    pub(super) routing: Routing,
    pub(super) arrivals: Arrivals,
    /// A packet is queued, but the emulator thread, which hands it to the guest, has not run yet.
    pub(super) undelivered: bool,
    /// The emulator thread that handed the last one over.
    pub(super) deliverer: u16,
    /// The emulator thread runs for the first time since a packet was queued.
    pub(super) delivering: bool,
    /// An event was delivered, and the policies have not been told.
    pub(super) delivered: bool,
    /// A read is about to end, but the emulator thread, which tells the guest, has not done so yet.
    pub(crate) read_pending: bool,
    /// The request for which the guest woke the emulator thread, until that sleeps again.
    pub(super) kick: Option<Read>,
    pub(super) judgement: Option<Judgement>,
    #[serde(default)]
    pub(crate) frames: Frames,
    #[serde(default)]
    pub(crate) sound: Sound,
    /// Whose the latest frame was, and the policies have not been told.
    #[serde(default)]
    pub(super) shown: Option<Shown>,
    #[serde(default)]
    pub(crate) interaction: Interaction,
}

/// What is known of one of its vCPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GuestVcpu {
    pub(crate) seen: Vcpu,
    pub(super) observer: Observer,
    /// When an I/O-bound task last ran here.
    pub(crate) last_io: Option<Time>,
    /// The current task, an I/O-bound one, asked for a read that has ended, and may not know: it may be on
    /// its way to sleep, to be woken at once.
    pub(crate) falling_asleep: bool,
    /// Whether an I/O-bound task has run here since the last event was delivered.
    pub(crate) served: bool,
    /// Whether the guest has rung a doorbell here since then.
    pub(super) rang: bool,
    /// What its thread had run when it took a device's interrupt, whose handler, or what that woke, runs now:
    /// until it changes tasks, or has run for longer than a handler does.
    pub(super) handles_since: Option<u64>,
    /// What is loaded was loaded when the vCPU was halted: the guest's idle task may run with it, and
    /// whatever interrupts that.
    pub(super) resumed: bool,
    /// An event was handed on to it, by an interrupt that it has not taken.
    pub(super) handed: bool,
    /// For whom what runs here may work.
    #[serde(default)]
    pub(super) asking: Asking,
    #[serde(default)]
    pub(super) usage: Usage,
    #[serde(default)]
    pub(super) wakeups: Wakeups,
}

/// A packet whose port is to be learnt from: it woke an I/O-bound task if one was woken on any vCPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Judgement {
    pub(super) port: Port,
    /// vCPUs that have not given their verdict.
    pub(super) outstanding: usize,
    pub(super) clear: bool,
}

impl Guest {
    pub(crate) fn new(vcpus: u16, config: &Tavs) -> Guest {
        let vcpus: Vec<_> = (0..vcpus.clamp(1, MAX_VCPUS)).map(|_| GuestVcpu::default()).collect();
        Guest {
            emulators: Vec::new(),
            others_ran: 0,
            others_waited: 0,
            tasks: Registry::new(vcpus.len(), config),
            vcpus,
            ports: PortMap::new(config.counter_bits),
            replying: PortMap::new(config.counter_bits),
            asked: None,
            reads: Reads::new(),
            answers: Answers::default(),
            routing: Routing::default(),
            arrivals: Arrivals::default(),
            undelivered: false,
            deliverer: MAIN_LOOP,
            delivering: false,
            delivered: false,
            read_pending: false,
            kick: None,
            judgement: None,
            frames: Frames::default(),
            sound: Sound::default(),
            shown: None,
            interaction: Interaction::default(),
        }
    }

    /// Completes a guest that was loaded.
    pub(crate) fn restore(&mut self, now: Time, config: &Tavs) -> Result<(), StateError> {
        let vcpus = 1..=usize::from(MAX_VCPUS);
        check(vcpus.contains(&self.vcpus.len()), "a VM with more vCPUs than any, or none")?;
        check(self.emulators.len() <= MAX_EMULATORS, "more emulator threads than are told apart")?;
        check(self.routing.is_sound(), "more interrupts of devices than are remembered")?;
        self.tasks.restore(config)?;
        self.ports.check()?;
        self.replying.check()?;
        self.frames.check()?;
        self.sound.check()?;
        self.interaction.check(now)?;
        self.vcpus.iter().try_for_each(|vcpu| vcpu.usage.check())?;
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
        (self.frames, self.sound) = (Frames::default(), Sound::default());
        self.interaction = Interaction::default();
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
            (vcpu.falling_asleep, vcpu.served, vcpu.rang) = (false, false, false);
            (vcpu.handles_since, vcpu.handed) = (None, false);
            (vcpu.asking, vcpu.wakeups) = (Asking::default(), Wakeups::default());
        }
        self.emulators.iter_mut().for_each(ThreadTimes::forget);
        self.arrivals = Arrivals::default();
        (self.undelivered, self.delivering) = (false, false);
        (self.delivered, self.read_pending) = (false, false);
        self.asked = None;
        self.kick = None;
        self.judgement = None;
        self.frames.forget();
        self.shown = None;
    }

    /// Brings the times of a vCPU up to `now`; returns what it ran since the last time.
    pub(crate) fn account_vcpu(&mut self, index: u16, now: Time, config: &Tavs) -> u64 {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return 0 };
        let since = vcpu.seen.thread.accounted();
        let ran = vcpu.seen.account(now);
        vcpu.usage.add(&vcpu.seen, since, now);
        if ran > 0 {
            let verdict = vcpu.observer.ran(ran, &vcpu.seen, &mut self.tasks, config);
            self.learn(verdict);
        }
        ran
    }

    /// A vCPU is heard of; its times are up to date. `silence`: for how long at most it is not while it runs.
    pub(crate) fn heard(&mut self, index: u16, silence: u64) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
        let lost = vcpu.seen.heard(silence);
        if lost > 0 {
            vcpu.observer.did_not_run(lost);
        }
    }

    /// Brings the times of an emulator thread up to `now`; returns what it ran since the last time.
    pub(crate) fn account_emulator(&mut self, index: u16, now: Time) -> u64 {
        self.emulator(index).account(now)
    }

    /// The emulator threads that are told apart.
    pub(crate) fn emulator_threads(&self) -> impl Iterator<Item = &ThreadTimes> {
        self.emulators.iter()
    }

    /// How many they are.
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

    /// A thread got a physical CPU. Times are up to date, those of all vCPUs if this
    /// [delivers](Self::delivers).
    pub(crate) fn run(&mut self, thread: Thread, pcpu: u16, boosted: bool, config: &Tavs) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
                vcpu.seen.thread.run(pcpu, boosted);
                let verdict = vcpu.observer.begin(&vcpu.seen, &mut self.tasks, config);
                if !self.undelivered {
                    self.arrivals.clear();
                }
                self.learn(verdict);
            }
            Thread::Emulator(index) => {
                self.emulator(index).run(pcpu, boosted);
                if std::mem::take(&mut self.undelivered) {
                    self.deliverer = index;
                    self.delivering = true;
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
    pub(crate) fn stop(&mut self, thread: Thread, runnable: bool, config: &Tavs) {
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
                if !runnable && std::mem::take(&mut self.delivering) {
                    self.undelivered = self.left_takers_asleep();
                }
                if !runnable && index == self.deliverer {
                    self.deliverer_slept(config);
                }
            }
        }
    }

    /// Whether those that take the network device's interrupts sleep: whoever delivers a packet wakes them.
    fn left_takers_asleep(&self) -> bool {
        let Some(takers) = self.routing.takers(Device::Network) else { return false };
        let mut takers = (0u16..).zip(&self.vcpus).filter(|(index, _)| takers & bit(*index) != 0).peekable();
        takers.peek().is_some() && takers.all(|(_, vcpu)| vcpu.seen.rests() && !vcpu.seen.thread.is_awake())
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
                    let asker = Some(Reader { vcpu: index, switches: vcpu.seen.switches });
                    let io_bound = inspect(&vcpu.seen, &self.tasks, config);
                    Some(Read { io_bound, asker })
                });
            }
        }
    }

    /// A vCPU took an interrupt of a device.
    pub(crate) fn interrupt(&mut self, index: u16, vector: u8) {
        self.routing.interrupt(index, vector);
        if let Some(vcpu) = self.vcpu(index) {
            vcpu.wakeups.interrupted();
        }
        let serves = self.runs_io_bound(index);
        self.delivering = false;
        if let Some(vcpu) = self.vcpu(index) {
            vcpu.handles_since = Some(vcpu.seen.thread.ran);
            vcpu.served |= vcpu.resumed && serves;
        }
    }

    /// A vCPU interrupted others, as bits. If it does so while it handles an event, it hands the event on:
    /// what the event wakes runs there. Returns whether it does. Times are up to date.
    pub(crate) fn ipi(&mut self, from: u16, to: u64, config: &Tavs) -> bool {
        let task = self.vcpu(from).and_then(|sender| sender.seen.current());
        for (_, vcpu) in members(to, &mut self.vcpus) {
            vcpu.seen.ipi_pending = true;
            vcpu.asking.interrupted(task);
        }
        let to = to & !bit(from);
        let Some(sender) = self.vcpu(from) else { return false };
        // Whom of those that it interrupts the event woke is not known: the handler kicks others as well.
        let ran = sender.seen.thread.ran;
        let handles = |since: u64| ran.saturating_sub(since) <= nanos(config.io_threshold);
        if to == 0 || !sender.handles_since.is_some_and(handles) {
            return false;
        }
        // What was loaded here all the while is not whom the event woke.
        sender.served &= !sender.resumed;
        let unjudged = sender.observer.hand_on();
        let mut first = true;
        for (_, vcpu) in members(to, &mut self.vcpus) {
            vcpu.handed = true;
            let judge = unjudged == Some(true) && std::mem::take(&mut first);
            let _ = vcpu.observer.event_pending(judge, &vcpu.seen, &mut self.tasks, config);
        }
        true
    }

    /// A vCPU took an interrupt of another one.
    pub(crate) fn ipi_taken(&mut self, index: u16, now: Time) {
        let serves = self.runs_io_bound(index);
        if let Some(vcpu) = self.vcpu(index) {
            vcpu.wakeups.taken(vcpu.seen.thread.ran_by(now));
            vcpu.seen.ipi_pending = false;
            vcpu.served |= std::mem::take(&mut vcpu.handed) && vcpu.resumed && serves;
        }
    }

    /// Whether the guest has halted the vCPU of a thread.
    pub(crate) fn is_halted(&self, thread: Thread) -> bool {
        let Thread::Vcpu(index) = thread else { return false };
        self.vcpus.get(usize::from(index)).is_some_and(|vcpu| vcpu.seen.is_halted())
    }

    /// Whether the guest leaves a vCPU asleep.
    pub(crate) fn rests(&self, index: u16) -> bool {
        self.vcpus.get(usize::from(index)).is_some_and(|vcpu| vcpu.seen.rests())
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
        self.others_waited = 0;
    }

    /// Threads of the emulator that are not told of one by one ran and waited for so long.
    pub(crate) fn others_ran(&mut self, ran: u64, waited: u64) {
        self.others_ran = self.others_ran.saturating_add(ran);
        self.others_waited = self.others_waited.saturating_add(waited);
    }

    /// What its threads would have run since the last settlement beyond what they did. Of those that are not
    /// told of one by one it is not known how much they slept: all that they waited counts.
    pub(crate) fn unmet(&self) -> u64 {
        total(self.threads().map(ThreadTimes::unmet)).saturating_add(self.others_waited)
    }

    /// Nanoseconds that its emulator threads ran, those among them that are not told of one by one.
    pub(crate) fn emulator_ran(&self) -> u64 {
        total(self.emulators.iter().map(|thread| thread.ran)).saturating_add(self.others_ran)
    }

    /// Nanoseconds that all its threads ran.
    pub(crate) fn ran(&self) -> u64 {
        let vcpus = total(self.vcpus.iter().map(|vcpu| vcpu.seen.thread.ran));
        vcpus.saturating_add(self.emulator_ran())
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.vcpus.capacity() * size_of::<GuestVcpu>()
            + self.emulators.capacity() * size_of::<ThreadTimes>()
            + self.tasks.bytes()
            + self.ports.bytes()
            + self.replying.bytes()
            + self.reads.bytes()
            + self.frames.bytes()
            + self.sound.bytes()
            + self.interaction.bytes()
            + self.vcpus.iter().map(|vcpu| vcpu.usage.bytes()).sum::<usize>()
    }
}

/// The bit of a vCPU in a set.
pub(crate) fn bit(vcpu: u16) -> u64 {
    1u64.checked_shl(vcpu.into()).unwrap_or(0)
}

/// The vCPUs of a set that exist.
pub(super) fn members(set: u64, vcpus: &mut [GuestVcpu]) -> impl Iterator<Item = (u16, &mut GuestVcpu)> {
    (0u16..).zip(vcpus).filter(move |(index, _)| set & bit(*index) != 0)
}

/// Whether an I/O-bound task is among the last tasks dispatched (TAVS §3.3.1).
pub(super) fn inspect(vcpu: &Vcpu, tasks: &Registry, config: &Tavs) -> bool {
    vcpu.recent().take(config.inspection_window).any(|task| tasks.is_io_bound(task))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
