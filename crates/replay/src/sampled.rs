//! What the engine would decide if it saw guest tasks only now and then.
//!
//! The model is that of KVM where loads of CR3 do not leave the guest (Intel with EPT, AMD with nested
//! paging): the address space is seen where the vCPU leaves the guest anyway. Of the exits a recording shows
//! those where the vCPU's thread loses its physical CPU, where the guest halts, sends or takes an
//! inter-processor interrupt, takes one of a device, or wakes the emulator thread with a request. Exits that
//! it does not show - timer interrupts - would let a sampler see more, so what is found here is a lower
//! bound.

use crate::compare::{ComparedArm, Names, subject};
use crate::span::{Span, seconds};
use crate::{ReplayError, Rerun};
use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Event, EventKind, Reason, TaskId, Thread, Time, VmId,
};
use frontdesk_record::{Record, Recording};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;

/// How decisions with sampled tasks agree with those that see every task.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Agreement {
    /// Events told.
    pub events: u64,
    /// From the first event to the last.
    pub seconds: f64,
    /// The bound on false boosts: `tavs.pb_ratio`.
    pub pb_ratio: f64,
    /// Task switches of the guests,
    pub switches: u64,
    /// and those of them that a sampler saw.
    pub seen: u64,
    /// The VMs, in the order in which they were met.
    pub vms: Vec<VmAgreement>,
}

/// How decisions about a VM agree. Those count that find, or do not find, that an I/O-bound task waits for
/// the event.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VmAgreement {
    /// Its name.
    pub vm: String,
    /// Events that boost with both,
    pub agreed: u64,
    /// that boost only if every task is seen,
    pub missed: u64,
    /// and that boost only with sampled tasks.
    pub false_boosts: u64,
    /// Seconds that its vCPUs ran,
    pub ran_s: f64,
    /// and those of them in false boosts.
    pub false_s: f64,
    /// The largest fraction of its time that a vCPU ran in false boosts which began while the guest computed.
    /// (A vCPU that idled takes nothing from its guest's other work when it wakes, so `pb_ratio` does not
    /// count its boost.)
    pub worst: f64,
}

impl Agreement {
    /// Whether false boosts kept within `pb_ratio` on every vCPU. A boost that has begun may go on a little
    /// above it.
    #[must_use]
    pub fn bounded(&self) -> bool {
        const SLACK: f64 = 0.01;
        self.vms.iter().all(|vm| vm.worst <= self.pb_ratio + SLACK)
    }
}

/// Goes through a recording twice at once: with all task switches, and with those that a sampler sees.
///
/// # Errors
/// The recording cannot be read to its end, or not be gone through.
pub fn sample<R: Read>(recording: &mut Recording<R>) -> Result<Agreement, ReplayError> {
    let mut names = Names::default();
    let (mut exact, mut sampled) = (ComparedArm::new(Rerun::new()), ComparedArm::new(Rerun::new()));
    let mut sampler = Sampler::default();
    let mut vcpus: BTreeMap<(VmId, u16), VcpuTimes> = BTreeMap::new();
    let mut vms: BTreeMap<VmId, VmAgreement> = BTreeMap::new();
    let (mut agreement, mut span) = (Agreement::default(), Span::default());
    for record in recording {
        let record = record?;
        names.hear(&record);
        let Record::Event(event) = &record else {
            exact.tell(&record)?;
            sampled.tell(&record)?;
            note(&mut vcpus, &sampled, false);
            continue;
        };
        agreement.events += 1;
        span.add(event.at);
        exact.event(event)?;
        for seen in sampler.see(event) {
            sampled.event(&seen)?;
            note(&mut vcpus, &sampled, false);
        }
        watch(&mut vcpus, event);
        let Some(vm) = subject(event) else { continue };
        let count = vms.entry(vm).or_default();
        let wants = |arm: &ComparedArm| {
            matches!(
                arm.verdict(vm),
                Some(Reason::Boosted | Reason::AlreadyBoosted | Reason::Observed | Reason::Reserved)
            )
        };
        match (wants(&exact), wants(&sampled)) {
            (true, true) => count.agreed += 1,
            (true, false) => count.missed += 1,
            (false, true) => count.false_boosts += 1,
            (false, false) => {}
        }
        if !wants(&exact) {
            note(&mut vcpus, &sampled, true);
        }
    }
    let end = Time(span.end());
    for ((vm, _), mut times) in vcpus {
        times.account(end);
        let vm = vms.entry(vm).or_default();
        vm.ran_s += seconds(times.ran);
        vm.false_s += seconds(times.in_false);
        vm.worst = vm.worst.max(seconds(times.in_false_busy) / seconds(times.ran).max(f64::EPSILON));
    }
    (agreement.switches, agreement.seen) = (sampler.switches, sampler.seen);
    (agreement.seconds, agreement.pb_ratio) = (span.seconds(), exact.pb_ratio());
    agreement.vms = vms.into_iter().map(|(vm, count)| VmAgreement { vm: names.of(vm), ..count }).collect();
    Ok(agreement)
}

/// What a sampler knows.
#[derive(Debug, Default)]
struct Sampler {
    /// The task on each vCPU, and whether it has been seen since it was loaded.
    loaded: BTreeMap<(VmId, u16), (TaskId, bool)>,
    switches: u64,
    seen: u64,
}

impl Sampler {
    /// The events that a sampler would report where `event` happens.
    fn see(&mut self, event: &Event) -> impl Iterator<Item = Event> + use<> {
        let exit = match event.kind {
            EventKind::TaskSwitch { vm, vcpu, task } => {
                self.switches += 1;
                self.loaded.insert((vm, vcpu), (task, false));
                None
            }
            EventKind::Stop { vm, thread: Thread::Vcpu(vcpu), .. }
            | EventKind::Halt { vm, vcpu }
            | EventKind::Ipi { vm, vcpu, .. }
            | EventKind::Interrupt { vm, vcpu, .. }
            | EventKind::IpiTaken { vm, vcpu }
            | EventKind::Wake { vm, by: Some(vcpu), .. } => Some((vm, vcpu)),
            EventKind::VmAdded { vm, .. } | EventKind::VmRemoved { vm } | EventKind::VmReset { vm } => {
                self.loaded.retain(|(of, _), _| *of != vm);
                None
            }
            _ => None,
        };
        let found = exit.and_then(|(vm, vcpu)| {
            let (task, seen) = self.loaded.get_mut(&(vm, vcpu))?;
            self.seen += u64::from(!std::mem::replace(seen, true));
            Some(Event { at: event.at, kind: EventKind::TaskSeen { vm, vcpu, task: *task } })
        });
        let hidden = matches!(event.kind, EventKind::TaskSwitch { .. });
        found.into_iter().chain((!hidden).then_some(*event))
    }
}

/// The time of one vCPU.
#[derive(Clone, Copy, Debug, Default)]
struct VcpuTimes {
    running: bool,
    halted: bool,
    since: Time,
    /// In a false boost, and whether the guest computed when it began.
    in_boost: Option<bool>,
    ran: u64,
    in_false: u64,
    in_false_busy: u64,
}

impl VcpuTimes {
    fn account(&mut self, now: Time) {
        let ran = if self.running { now.since(self.since) } else { 0 };
        self.since = self.since.max(now);
        self.ran = self.ran.saturating_add(ran);
        if let Some(busy) = self.in_boost {
            self.in_false = self.in_false.saturating_add(ran);
            self.in_false_busy = self.in_false_busy.saturating_add(if busy { ran } else { 0 });
        }
    }
}

/// Follows when vCPUs run and halt.
fn watch(vcpus: &mut BTreeMap<(VmId, u16), VcpuTimes>, event: &Event) {
    let (of, change): (_, fn(&mut VcpuTimes)) = match event.kind {
        EventKind::Run { vm, thread: Thread::Vcpu(vcpu), .. } => ((vm, vcpu), |times| times.running = true),
        EventKind::Stop { vm, thread: Thread::Vcpu(vcpu), .. } => ((vm, vcpu), |times| times.running = false),
        EventKind::Halt { vm, vcpu } => ((vm, vcpu), |times| times.halted = true),
        EventKind::Resume { vm, vcpu }
        | EventKind::TaskSwitch { vm, vcpu, .. }
        | EventKind::TaskSeen { vm, vcpu, .. } => ((vm, vcpu), |times| times.halted = false),
        _ => return,
    };
    let times = vcpus.entry(of).or_default();
    times.account(event.at);
    change(times);
}

/// Follows the boosts that the sampled engine begins and ends; `begin`: those that begin are false.
fn note(vcpus: &mut BTreeMap<(VmId, u16), VcpuTimes>, sampled: &ComparedArm, begin: bool) {
    for action in &sampled.actions {
        let ActionKind::Boost { vm, target: BoostTarget::Vcpu(vcpu), level } = action.kind else { continue };
        let times = vcpus.entry((vm, vcpu)).or_default();
        match level {
            Boost::None => {
                times.account(action.at);
                times.in_boost = None;
            }
            Boost::Io | Boost::Multimedia if begin => {
                times.account(action.at);
                times.in_boost = Some(!times.halted);
            }
            Boost::Io | Boost::Multimedia => {}
        }
    }
}
