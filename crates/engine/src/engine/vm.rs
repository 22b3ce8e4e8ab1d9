//! One VM: its vCPUs and emulator threads, and the events on their way to it.

use crate::answers::Answers;
use crate::blocks::{Asker, Read, Reads};
use crate::budget::Allowance;
use crate::config::{Config, Tavs, VmPolicy};
use crate::event::{Thread, Time, VmId};
use crate::explain::{PortExplain, TaskExplain, VcpuExplain, VmExplain};
use crate::history::History;
use crate::ledger::{Claim, Ledger, PcpuSet};
use crate::ports::{Arrivals, Port, PortMap};
use crate::state::{StateError, check};
use crate::tasks::is_io_bound;
use crate::thread::ThreadTimes;
use crate::vcpu::{Vcpu, Verdict};
use crate::{Boost, nanos};
use serde::{Deserialize, Serialize};

/// A guest has no more vCPUs than this; QEMU's limit is 4096, and more than 512 are not scheduled one by one.
const MAX_VCPUS: u16 = 512;
/// Emulator threads are told apart only for their run time; more than these share the last one's account.
const MAX_EMULATORS: usize = 8;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Vm {
    pub(crate) weight: u32,
    pub(crate) policy: VmPolicy,
    pub(crate) paused: bool,
    pub(crate) vcpus: Vec<Vcpu>,
    emulators: Vec<ThreadTimes>,
    /// Time emulator threads ran while a vCPU was boosted.
    emulator_boosted: u64,
    allowance: Allowance,
    pub(crate) ports: PortMap,
    pub(crate) reads: Reads,
    pub(crate) answers: Answers,
    pub(crate) history: History,
    /// Events of this VM alone that sources reported as lost.
    pub(crate) lost: u64,
    arrivals: Arrivals,
    /// A packet is queued, but the emulator thread, which hands it to the guest, has not run yet.
    undelivered: bool,
    /// An event was delivered, and boosts have not been told.
    delivered: bool,
    /// A read is about to end, but the emulator thread, which tells the guest, has not done so yet.
    pub(crate) read_pending: bool,
    /// The request for which the guest woke the emulator thread, until that sleeps again.
    kick: Option<Read>,
    judgement: Option<Judgement>,
    pcpus: PcpuSet,
}

/// A packet whose port is to be learnt from: it woke an I/O-bound task if one was woken on any vCPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Judgement {
    port: Port,
    /// vCPUs that have not given their verdict.
    outstanding: usize,
    clear: bool,
}

impl Vm {
    pub(crate) fn new(vcpus: u16, weight: u32, config: &Tavs) -> Vm {
        Vm {
            weight,
            policy: VmPolicy::default(),
            paused: false,
            vcpus: (0..vcpus.clamp(1, MAX_VCPUS)).map(|_| Vcpu::new(config)).collect(),
            emulators: Vec::new(),
            emulator_boosted: 0,
            allowance: Allowance::default(),
            ports: PortMap::new(config.counter_bits),
            reads: Reads::new(),
            answers: Answers::default(),
            history: History::default(),
            lost: 0,
            arrivals: Arrivals::default(),
            undelivered: false,
            delivered: false,
            read_pending: false,
            kick: None,
            judgement: None,
            pcpus: PcpuSet::default(),
        }
    }

    /// Completes a VM that was loaded.
    pub(crate) fn restore(&mut self, now: Time, config: &Tavs) -> Result<(), StateError> {
        let vcpus = 1..=usize::from(MAX_VCPUS);
        check(vcpus.contains(&self.vcpus.len()), "a VM with more vCPUs than any, or none")?;
        check(self.emulators.len() <= MAX_EMULATORS, "more emulator threads than are told apart")?;
        self.vcpus.iter_mut().try_for_each(|vcpu| vcpu.restore(now, config))?;
        self.policy.validate()?;
        self.allowance.check()?;
        self.history.check()?;
        self.ports.check()?;
        self.reads.restore()
    }

    pub(crate) fn vcpu(&mut self, index: u16) -> Option<&mut Vcpu> {
        self.vcpus.get_mut(usize::from(index))
    }

    /// The guest starts again, with tasks that nobody has seen before.
    pub(crate) fn reset(&mut self, config: &Tavs) {
        self.forget();
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.reset(config));
        self.reads = Reads::new();
        self.answers = Answers::default();
    }

    /// A vCPU that was there before starts afresh.
    pub(crate) fn plug(&mut self, index: u16, config: &Tavs) {
        let index = usize::from(index);
        if index >= usize::from(MAX_VCPUS) {
            return;
        }
        if index >= self.vcpus.len() {
            self.vcpus.resize_with(index + 1, || Vcpu::new(config));
        } else {
            self.vcpus[index] = Vcpu::new(config);
        }
        self.judgement = None;
    }

    /// One in the middle keeps its place, for the indices of the others stay.
    pub(crate) fn unplug(&mut self, index: u16, config: &Tavs) {
        let index = usize::from(index);
        if index + 1 == self.vcpus.len() && index > 0 {
            self.vcpus.pop();
        } else if let Some(vcpu) = self.vcpus.get_mut(index) {
            *vcpu = Vcpu::new(config);
        }
        self.judgement = None;
    }

    pub(crate) fn is_boosted(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.boosted.is_some())
    }

    fn emulator(&mut self, index: u16) -> &mut ThreadTimes {
        let index = usize::from(index).min(MAX_EMULATORS - 1);
        if index >= self.emulators.len() {
            self.emulators.resize_with(index + 1, ThreadTimes::default);
        }
        &mut self.emulators[index]
    }

    fn account_emulator(&mut self, index: u16, now: Time) {
        let ran = self.emulator(index).account(now);
        if self.is_boosted() {
            self.emulator_boosted = self.emulator_boosted.saturating_add(ran);
        }
    }

    /// Brings every account of the VM up to `now`.
    pub(crate) fn account(&mut self, now: Time, config: &Tavs) {
        for index in 0..self.vcpus.len() {
            let verdict = self.vcpus[index].account(now, config);
            self.learn(verdict);
        }
        for index in 0..self.emulators.len() {
            self.account_emulator(u16::try_from(index).unwrap_or(u16::MAX), now);
        }
    }

    pub(crate) fn run(&mut self, thread: Thread, pcpu: u16, now: Time, config: &Tavs) {
        self.pcpus.insert(pcpu);
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpu(index) else { return };
                let verdict = vcpu.account(now, config);
                let second = vcpu.run(pcpu, config);
                if !self.undelivered {
                    self.arrivals.clear();
                }
                self.learn(verdict);
                self.learn(second);
            }
            Thread::Emulator(index) => {
                self.account_emulator(index, now);
                self.emulator(index).run(pcpu);
                if std::mem::take(&mut self.undelivered) {
                    self.deliver(now, config);
                }
            }
        }
    }

    pub(crate) fn stop(&mut self, thread: Thread, runnable: bool, now: Time, config: &Tavs) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpu(index) else { return };
                let verdict = vcpu.account(now, config);
                vcpu.thread.stop(runnable);
                self.learn(verdict);
            }
            Thread::Emulator(index) => {
                self.account_emulator(index, now);
                self.emulator(index).stop(runnable);
                // It sleeps again: what woke it was something else.
                self.read_pending &= runnable;
                self.kick = self.kick.filter(|_| runnable);
            }
        }
    }

    pub(crate) fn wake(&mut self, thread: Thread, by: Option<u16>, now: Time, config: &Tavs) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpu(index) else { return };
                let verdict = vcpu.account(now, config);
                vcpu.thread.wake();
                self.learn(verdict);
            }
            Thread::Emulator(index) => {
                self.account_emulator(index, now);
                self.emulator(index).wake();
                self.kick = by.and_then(|index| {
                    let vcpu = self.vcpu(index)?;
                    // It asks again, so it did not sleep.
                    vcpu.falling_asleep = false;
                    let asker = Some(Asker { vcpu: index, switches: vcpu.switches });
                    Some(Read { io_bound: vcpu.inspect(config), asker })
                });
            }
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

    /// A packet was queued towards the VM.
    pub(crate) fn packet(&mut self, port: Port, now: Time, config: &Tavs) {
        self.arrivals.add(port);
        // Without an emulator thread in sight (vhost) the packet needs no help to reach the guest.
        if self.emulators.is_empty() || self.emulators.iter().any(ThreadTimes::is_running) {
            self.deliver(now, config);
        } else {
            self.undelivered = true;
        }
    }

    /// Packets were handed to the guest. Which vCPU takes the interrupt is not known, so each is watched.
    fn deliver(&mut self, now: Time, config: &Tavs) {
        let single = self.arrivals.single();
        // Which packet woke whom can only be told of those that came before the guest runs, and they must all be for one port.
        if self.vcpus.iter().any(|vcpu| vcpu.thread.is_running()) {
            self.arrivals.clear();
        }
        self.delivered = true;
        self.judgement = single.map(|port| Judgement { port, outstanding: self.vcpus.len(), clear: true });
        self.event_pending(single.is_some(), now, config);
    }

    /// A read of the guest was taken up. What counts is who asked for it, not who runs by now.
    pub(crate) fn read(&mut self, request: u64, config: &Tavs) {
        let late = self.vcpus.iter().any(|vcpu| vcpu.inspect(config));
        let read = self.kick.map_or(Read { io_bound: late, asker: None }, |kick| Read {
            io_bound: kick.io_bound || late,
            ..kick
        });
        self.reads.request(request, read);
    }

    /// A read has ended; returns whether it was an I/O-bound task's.
    pub(crate) fn read_done(&mut self, request: u64, now: Time, config: &Tavs) -> bool {
        let read = self.reads.complete(request);
        self.read_pending = false;
        self.delivered = true;
        for (index, vcpu) in (0u16..).zip(&mut self.vcpus) {
            let _ = vcpu.account(now, config);
            let here = |asker: Asker| asker.vcpu == index && asker.switches == vcpu.switches;
            if read.asker.is_some_and(here) {
                vcpu.read_ended_at_once(config);
            } else {
                let _ = vcpu.event_pending(false, config);
            }
        }
        read.io_bound
    }

    /// An event is pending for the guest.
    pub(crate) fn event_pending(&mut self, judge: bool, now: Time, config: &Tavs) {
        for vcpu in &mut self.vcpus {
            // Verdicts from here are on the packet before, which a new one leaves unjudged.
            let _ = vcpu.account(now, config);
            let _ = vcpu.event_pending(judge, config);
        }
    }

    /// Takes a vCPU's verdict on the packet (TAVS §4.3.2).
    pub(crate) fn learn(&mut self, verdict: Option<Verdict>) {
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

    /// The vCPU to boost: of those with an I/O-bound task the one where such a task ran last.
    pub(crate) fn boost_candidate(&self) -> Option<u16> {
        let candidates = self.vcpus.iter().enumerate().filter(|(_, vcpu)| vcpu.tasks.any_io_bound());
        let (index, _) = candidates.max_by_key(|(index, vcpu)| (vcpu.last_io, usize::MAX - index))?;
        u16::try_from(index).ok()
    }

    pub(crate) fn forget(&mut self) {
        self.vcpus.iter_mut().for_each(Vcpu::forget);
        self.emulators.iter_mut().for_each(ThreadTimes::forget);
        self.arrivals = Arrivals::default();
        self.undelivered = false;
        self.delivered = false;
        self.read_pending = false;
        self.kick = None;
        self.judgement = None;
    }

    /// Nanoseconds that its threads ran boosted.
    fn boosted_ran(&self) -> u64 {
        total(self.vcpus.iter().map(|vcpu| vcpu.boosted_ran)).saturating_add(self.emulator_boosted)
    }

    /// Whether the VM may be boosted again, by `boost_limit`. Accounts must be up to date.
    pub(crate) fn within_limit(&mut self, now: Time, config: &Tavs) -> bool {
        let used = self.boosted_ran();
        self.allowance.allows(now, config.boost_limit, used)
    }

    fn emulator_ran(&self) -> u64 {
        total(self.emulators.iter().map(|thread| thread.ran))
    }

    fn threads(&self) -> impl Iterator<Item = &ThreadTimes> {
        self.vcpus.iter().map(|vcpu| &vcpu.thread).chain(&self.emulators)
    }

    /// What the VM got and wanted so far.
    pub(crate) fn claim(&self, vm: VmId) -> Claim {
        Claim {
            vm,
            weight: self.weight,
            threads: self.threads().count() as u64,
            ran: total(self.threads().map(|thread| thread.ran)),
            unmet: total(self.threads().map(ThreadTimes::unmet)),
            boosted: self.boosted_ran(),
            pcpus: self.pcpus,
        }
    }

    /// Starts a new settlement window.
    pub(crate) fn restart_window(&mut self) {
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.thread.restart_window());
        self.emulators.iter_mut().for_each(ThreadTimes::restart_window);
        let mut pcpus = PcpuSet::default();
        self.threads().filter_map(|thread| thread.pcpu).for_each(|pcpu| pcpus.insert(pcpu));
        self.pcpus = pcpus;
    }

    /// Bytes held for the VM.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Vm>()
            + self.vcpus.capacity() * size_of::<Vcpu>()
            + self.vcpus.iter().map(|vcpu| vcpu.tasks.bytes()).sum::<usize>()
            + self.emulators.capacity() * size_of::<ThreadTimes>()
            + self.ports.bytes()
            + self.reads.bytes()
            + self.history.bytes()
    }

    pub(crate) fn explain(&self, vm: VmId, ledger: &Ledger, config: &Config, most: usize) -> VmExplain {
        let vcpus = self.vcpus.iter().map(|vcpu| explain_vcpu(vcpu, &config.tavs, most)).collect();
        let ports = self.ports.iter().take(most).map(|((protocol, port), counter)| PortExplain {
            protocol,
            port,
            counter,
            boosts: self.ports.predicts_io_bound((protocol, port)),
        });
        VmExplain {
            vm,
            weight: self.weight,
            vcpus,
            ports: ports.collect(),
            debt_ns: ledger.debt(vm),
            share_permille: ledger.permille(vm).into(),
            pb_ratio: if self.policy.off {
                0.0
            } else {
                self.policy.pb_ratio.unwrap_or(config.tavs.pb_ratio)
            },
            paused: self.paused,
            emulator_ran_ns: self.emulator_ran(),
            lost: self.lost,
            decision: self.history.last(),
        }
    }
}

/// A sum that saturates, as all numbers of the engine do.
pub(crate) fn total(nanos: impl Iterator<Item = u64>) -> u64 {
    nanos.fold(0, u64::saturating_add)
}

fn explain_vcpu(vcpu: &Vcpu, config: &Tavs, most: usize) -> VcpuExplain {
    let tasks = vcpu.tasks.iter().take(most).map(|(task, info)| TaskExplain {
        task,
        belief: info.belief,
        io_bound: is_io_bound(info, config),
        ran_ns: info.ran,
        dispatches: info.dispatches,
        last_seen: info.last_seen,
    });
    VcpuExplain {
        current: vcpu.current(),
        boost: if vcpu.boosted.is_some() { Boost::Io } else { Boost::None },
        ran_ns: vcpu.thread.ran,
        stolen_ns: vcpu.thread.waited,
        boosted_ns: vcpu.boosted_ran,
        boosts: vcpu.counts.boosts,
        hits: vcpu.counts.hits,
        expired: vcpu.counts.expired,
        pb_used: vcpu.budget.used(),
        task_count: vcpu.tasks.len(),
        io_bound_count: vcpu.tasks.io_bound_count(),
        tasks: tasks.collect(),
    }
}

impl Vcpu {
    /// Whether a boost is within the vCPU's budget. A vCPU that is idle takes nothing from its own VM's background
    /// work by waking, so within its VM's share it needs no budget, as the credit scheduler boosts each vCPU that wakes with
    /// credit left (TAVS §2.2).
    pub(crate) fn may_boost(&mut self, now: Time, in_debt: bool, pb_ratio: f64, config: &Tavs) -> bool {
        let idle = self.is_halted() && !in_debt;
        idle || self.budget.allows(now, nanos(config.pb_period), pb_ratio)
    }
}
