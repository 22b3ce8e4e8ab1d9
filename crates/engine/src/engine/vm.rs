//! One VM: what is known of its guest, what the policies know of it, and the claims on its knobs.

use crate::action::{Boost, BoostTarget, Foreseen};
use crate::capabilities::{Capabilities, Standing};
use crate::config::{Config, Tavs, VmPolicy};
use crate::event::{Protocol, Thread, Time, VmId};
use crate::explain::{Log, PortExplain, TaskExplain, VcpuExplain, VmExplain};
use crate::infer::{Guest, GuestVcpu};
use crate::knob::{Claims, PcpuSet, VmAccount, compensation, is_worth};
use crate::nanos::{nanos, total};
use crate::observe::ThreadTimes;
use crate::policy::{
    Ask, Asymmetric, Debt, Fact, Knob, Multimedia, Owner, PartialBoost, Policy, Starvation, View,
};
use crate::recorded::RecordedPolicy;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// What policies decide about a VM by that is not the VM's own.
pub(crate) struct Situation<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a Config,
    pub(crate) world: Capabilities,
    /// As in [`View`], like the next.
    pub(crate) debt: Debt,
    pub(crate) contended: bool,
}

/// Nanoseconds that other threads may run on a physical CPU, each time they are told of, before their VM is
/// one of those that share it: they go where there is room, and one that only looks round there takes nothing
/// from anybody.
const STRAY: u64 = 1_000_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Vm {
    pub(crate) weight: u32,
    /// What the operator set for it alone.
    #[serde(with = "RecordedPolicy")]
    pub(crate) own: VmPolicy,
    pub(crate) paused: bool,
    pub(crate) standing: Standing,
    pub(crate) guest: Guest,
    pub(crate) partial_boost: PartialBoost,
    #[serde(default)]
    pub(crate) multimedia: Multimedia,
    #[serde(default)]
    pub(crate) asymmetric: Asymmetric,
    #[serde(default)]
    pub(crate) starvation: Starvation,
    /// Whether somebody limits what it may have.
    #[serde(default)]
    pub(crate) limited: bool,
    pub(crate) claims: Claims,
    pub(crate) log: Log,
    /// Events of this VM alone that sources reported as lost.
    pub(crate) lost: u64,
    /// Whether some were, or its threads have changed, since the last settlement: what it ran is not known.
    #[serde(default)]
    pub(crate) unsure: bool,
    /// The physical CPUs that its threads ran on or waited for since the last settlement.
    pcpus: PcpuSet,
    /// Whether policies have given its vCPUs unequal weights at any time since then.
    #[serde(default)]
    was_uneven: bool,
    /// What its share is raised to because they are, in permille.
    #[serde(default = "no_compensation")]
    pub(crate) compensation: u32,
    /// When its other threads were told of first since the ledger was opened. What they ran until then may be
    /// of before that.
    #[serde(default)]
    pub(crate) others_told: Option<Time>,
}

fn no_compensation() -> u32 {
    1000
}

impl Vm {
    pub(crate) fn new(vcpus: u16, weight: u32, config: &Tavs) -> Vm {
        let guest = Guest::new(vcpus, config);
        Vm {
            weight,
            own: VmPolicy::default(),
            paused: false,
            standing: Standing::default(),
            partial_boost: PartialBoost::new(guest.vcpus.len()),
            multimedia: Multimedia::default(),
            asymmetric: Asymmetric::default(),
            starvation: Starvation::default(),
            limited: false,
            guest,
            claims: Claims::default(),
            log: Log::default(),
            lost: 0,
            pcpus: PcpuSet::default(),
            unsure: false,
            was_uneven: false,
            compensation: no_compensation(),
            others_told: None,
        }
    }

    /// Completes a VM that was loaded.
    pub(crate) fn restore(&mut self, now: Time, config: &Tavs) -> Result<(), StateError> {
        self.guest.restore(now, config)?;
        self.own.validate()?;
        self.partial_boost.check(now, self.guest.vcpus.len())?;
        self.multimedia.check(now, self.guest.vcpus.len())?;
        self.asymmetric.check()?;
        self.starvation.check()?;
        check((1000..=16_000).contains(&self.compensation), "a share higher than any")?;
        check(self.others_told.is_none_or(|told| told <= now), "other threads that are told of later")?;
        self.claims.check(self.guest.vcpus.len())?;
        self.log.check()
    }

    pub(crate) fn plug(&mut self, index: u16) {
        if self.guest.plug(index) {
            self.partial_boost.resize(self.guest.vcpus.len(), index);
        }
    }

    pub(crate) fn unplug(&mut self, index: u16) {
        self.guest.unplug(index);
        self.partial_boost.resize(self.guest.vcpus.len(), index);
    }

    /// Brings the times of a thread up to `now`.
    pub(crate) fn account(&mut self, thread: Thread, now: Time, config: &Tavs) {
        let ran = match thread {
            Thread::Vcpu(index) => self.guest.account_vcpu(index, now, config),
            Thread::Emulator(index) => self.guest.account_emulator(index, now),
        };
        if ran > 0 {
            let target = boost_target(thread);
            let boosted = self.claims.level(target) > Boost::None;
            let by = |owner| boosted && self.claims.of(owner, Knob::Boost(target)) > 0;
            let partly = by(Owner::PartialBoost);
            self.partial_boost.ran(thread, ran, partly, now, config);
            if by(Owner::Multimedia) && !partly {
                self.multimedia.ran(ran);
            } else if boosted && !partly {
                self.starvation.ran(ran);
            }
        }
    }

    /// Brings the times of all its threads up to `now`.
    pub(crate) fn account_all(&mut self, now: Time, config: &Tavs) {
        for index in (0..).take(self.guest.vcpus.len()) {
            self.account(Thread::Vcpu(index), now, config);
        }
        for index in 0..self.guest.emulators() {
            self.account(Thread::Emulator(index), now, config);
        }
    }

    /// A thread got a physical CPU.
    pub(crate) fn run(&mut self, thread: Thread, pcpu: u16, now: Time, config: &Tavs) {
        self.pcpus.insert(pcpu);
        if self.guest.delivers(thread) {
            self.account_all(now, config);
        }
        self.account(thread, now, config);
        let boosted = self.claims.level(boost_target(thread)) > Boost::None;
        self.guest.run(thread, pcpu, boosted, config);
    }

    /// Its threads that want a physical CPU as much as any and have got none by themselves: since when, and
    /// the CPU. One that is boosted gets one, and a slow vCPU is to wait.
    pub(crate) fn starving(&self) -> impl Iterator<Item = (BoostTarget, Time, Option<u16>)> {
        let is_slow = |index: u16, vcpu: &GuestVcpu| {
            self.claims.weight(index) < 1000 || vcpu.seen.weight.is_some_and(|weight| weight < 1000)
        };
        let vcpus = (0u16..).zip(&self.guest.vcpus).filter(move |(index, vcpu)| !is_slow(*index, vcpu));
        let vcpus = vcpus.map(|(index, vcpu)| (BoostTarget::Vcpu(index), &vcpu.seen.thread));
        let emulators = self.guest.emulator_threads().map(|thread| (BoostTarget::Emulators, thread));
        let starved = |(target, thread): (BoostTarget, &ThreadTimes)| {
            thread.starved_since().map(|since| (target, since, thread.pcpu))
        };
        let known = vcpus.chain(emulators).filter_map(starved);
        known.filter(|(target, ..)| self.claims.level(*target) == Boost::None)
    }

    /// Threads of its emulator that are not told of one by one had a physical CPU for so long, and waited so
    /// long for it. Returns whether all of that is since the ledger was opened.
    pub(crate) fn others_ran(&mut self, pcpu: u16, [ran, waited]: [u64; 2], now: Time) -> bool {
        let is_since = *self.others_told.get_or_insert(now) < now;
        self.guest.others_ran(ran, if is_since { waited } else { 0 });
        if is_since && ran > STRAY {
            self.pcpus.insert(pcpu);
        }
        is_since
    }

    /// Whether a fact is to be told to any policy.
    pub(crate) fn is_concerned(&self, fact: &Fact) -> bool {
        self.partial_boost.is_concerned(fact)
            || self.multimedia.is_concerned(fact)
            || self.asymmetric.is_concerned(fact)
            || self.starvation.is_concerned(fact)
    }

    /// Adds what the policies ask for after a fact.
    pub(crate) fn decide(&mut self, fact: Fact, situation: &Situation<'_>, asks: &mut Vec<Ask>) {
        let now = situation.now;
        self.account_all(now, &situation.config.tavs);
        let (policies, view, log) = self.policies(situation);
        for (_, policy) in policies {
            if policy.is_concerned(&fact)
                && let Some((cause, reason)) = policy.on_fact(fact, &view, asks)
            {
                log.decided(now, cause, reason);
            }
        }
        self.log_ended(now);
    }

    /// The time of a claim is over: until when it goes on, if it does; adds what its owner asks for then.
    pub(crate) fn expire(
        &mut self,
        (owner, knob): (Owner, Knob),
        situation: &Situation<'_>,
        asks: &mut Vec<Ask>,
    ) -> Option<Time> {
        let now = situation.now;
        self.account_all(now, &situation.config.tavs);
        let (policies, view, _) = self.policies(situation);
        let known = policies.into_iter().find(|(known, _)| *known == owner);
        let later = known.and_then(|(_, policy)| policy.on_expiry(knob, &view, asks));
        self.log_ended(now);
        later
    }

    /// What would be decided about a packet that came now and that an I/O-bound task waits for.
    pub(crate) fn foresee(&self, situation: &Situation<'_>) -> Option<Foreseen> {
        let boosted = self.boosted_ran();
        let Vm { guest, standing, own, paused, .. } = self;
        let (standing, own, paused) = (*standing, *own, *paused);
        let &Situation { now, config, world, debt, contended } = situation;
        let view = View { now, config, world, guest, standing, own, paused, debt, boosted, contended };
        let vcpus = self.partial_boost.foresee(&view).to_vec();
        let lasts_ns = nanos(situation.config.tavs.max_boost);
        (!vcpus.is_empty()).then_some(Foreseen { vcpus, level: Boost::Io, lasts_ns })
    }

    /// Whether an I/O-bound task waits for packets to this port, as far as is known.
    pub(crate) fn awaits(&self, protocol: Protocol, port: u16, config: &Tavs) -> bool {
        !config.correlation || self.guest.ports.predicts((protocol, port))
    }

    fn log_ended(&mut self, now: Time) {
        for hit in self.partial_boost.ended.drain(..) {
            self.log.boost_ended(now, hit);
        }
    }

    /// The policies, each with the owner of its claims, what they decide by, and the log of what they decide.
    fn policies<'a>(
        &'a mut self,
        situation: &'a Situation<'a>,
    ) -> ([(Owner, &'a mut dyn Policy); 4], View<'a>, &'a mut Log) {
        let boosted = self.boosted_ran();
        let Vm {
            guest, partial_boost, multimedia, asymmetric, starvation, standing, own, paused, log, ..
        } = self;
        let (standing, own, paused) = (*standing, *own, *paused);
        let &Situation { now, config, world, debt, contended } = situation;
        let view = View { now, config, world, guest, standing, own, paused, debt, boosted, contended };
        let partial_boost: (_, &mut dyn Policy) = (Owner::PartialBoost, partial_boost);
        // Who asks for the highest preference comes after the others that ask for one: when all take back
        // what they asked for, it is taken back at once.
        let policies = [
            partial_boost,
            (Owner::Starvation, starvation),
            (Owner::Multimedia, multimedia),
            (Owner::Asymmetric, asymmetric),
        ];
        (policies, view, log)
    }

    /// Nanoseconds that its threads ran boosted.
    fn boosted_ran(&self) -> u64 {
        let of_each =
            [self.partial_boost.boosted_ran(), self.multimedia.boosted_ran(), self.starvation.boosted_ran()];
        total(of_each.into_iter())
    }

    /// Whether its vCPUs have unequal weights.
    pub(crate) fn is_uneven(&self) -> bool {
        let mut weights = (0u16..).zip(&self.guest.vcpus).map(|(index, vcpu)| {
            u64::from(vcpu.seen.weight.unwrap_or(1000)) * u64::from(self.claims.weight(index))
        });
        let first = weights.next();
        weights.any(|weight| Some(weight) != first)
    }

    /// Policies have changed the weights of vCPUs.
    pub(crate) fn note_weights(&mut self) {
        self.was_uneven |= self.is_uneven();
    }

    /// Looks what its share is to be raised to because of unequal weights. Returns whether that has changed.
    pub(crate) fn compensate(&mut self, world: Capabilities) -> bool {
        let may = world.acts && !world.charges_boosts && self.standing == Standing::Acting;
        let awake = (0u16..).zip(&self.guest.vcpus).filter(|(_, vcpu)| vcpu.seen.thread.is_awake());
        let awake = awake.filter(|_| may && self.claims.any_weight());
        let weights: Vec<u32> = awake.map(|(index, _)| self.claims.weight(index)).collect();
        // Those that are slow are taken to be so alike.
        let (most, least) = (weights.iter().max().copied(), weights.iter().min().copied());
        let (most, least) = (most.unwrap_or(1000), least.unwrap_or(1000));
        let count = |is_fast: bool| weights.iter().filter(|weight| (**weight == most) == is_fast).count();
        let [fast, slow] = [true, false].map(|is_fast| u32::try_from(count(is_fast)).unwrap_or(u32::MAX));
        let compensation = compensation(fast, slow, least.saturating_mul(1000) / most.max(1));
        let changed = is_worth(self.compensation, compensation);
        if changed {
            self.compensation = compensation;
        }
        changed
    }

    /// Whether it wants physical CPUs that another one uses, too.
    pub(crate) fn wants_cpus_of(&self, other: &Vm) -> bool {
        self.pcpus.overlaps(&other.pcpus) && self.guest.threads().any(ThreadTimes::is_awake)
    }

    /// Whether two of its vCPUs want the same physical CPU: the host's scheduler may leave each VM one,
    /// rather than mix them.
    pub(crate) fn crowds_itself(&self) -> bool {
        let awake = self.guest.vcpus.iter().map(|vcpu| &vcpu.seen.thread).filter(|thread| thread.is_awake());
        let mut wanted = PcpuSet::default();
        awake.filter_map(|thread| thread.pcpu).any(|pcpu| {
            let mut one = PcpuSet::default();
            one.insert(pcpu);
            let taken = wanted.overlaps(&one);
            wanted.insert(pcpu);
            taken
        })
    }

    /// Its weight as policies raised it.
    fn entitled_weight(&self) -> u32 {
        let weight = u64::from(self.weight) * u64::from(self.claims.entitlement()) / 1000;
        u32::try_from(weight).unwrap_or(u32::MAX)
    }

    /// What the VM got and wanted so far.
    pub(crate) fn so_far(&self, vm: VmId, now: Time) -> VmAccount {
        VmAccount {
            vm,
            weight: self.entitled_weight(),
            threads: self.guest.threads().count() as u64,
            ran: self.guest.ran(),
            // What it may not have it is not owed.
            unmet: if self.limited { 0 } else { self.guest.unmet() },
            boosted: self.boosted_ran(),
            acting: self.standing == Standing::Acting,
            uneven: self.was_uneven || self.is_uneven(),
            waits: self.waits(now),
            unsure: self.unsure,
            pcpus: self.pcpus,
        }
    }

    /// Whether somebody waits for an answer for which it is not boosted.
    pub(crate) fn waits(&self, now: Time) -> bool {
        self.partial_boost.is_waiting(now)
    }

    /// Starts a new settlement window.
    pub(crate) fn restart_window(&mut self) {
        self.guest.restart_window();
        let mut pcpus = PcpuSet::default();
        self.guest.threads().filter_map(|thread| thread.pcpu).for_each(|pcpu| pcpus.insert(pcpu));
        self.pcpus = pcpus;
        self.was_uneven = false;
    }

    /// Bytes held for the VM.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Vm>()
            + self.guest.bytes()
            + self.partial_boost.bytes()
            + self.multimedia.bytes()
            + self.asymmetric.bytes()
            + self.claims.bytes()
            + self.log.bytes()
    }

    pub(crate) fn explain(
        &self,
        now: Time,
        debt_ns: i64,
        share_permille: u32,
        config: &Config,
        most: usize,
    ) -> VmExplain {
        let ports = &self.guest.ports;
        let tasks = self.guest.tasks.iter().take(most).map(|(task, known, io_bound)| TaskExplain {
            id: task,
            pid: None,
            name: None,
            belief: known.belief,
            io_bound,
            ran_ns: known.ran.saturating_add(self.guest.uncharged(task)),
            dispatches: known.dispatches,
            last_seen: known.last_seen,
        });
        VmExplain {
            weight: self.weight,
            vcpus: (0..).take(self.guest.vcpus.len()).map(|index| self.explain_vcpu(index)).collect(),
            task_count: self.guest.tasks.len(),
            io_bound_count: self.guest.tasks.io_bound_count(),
            tasks: tasks.collect(),
            ports: ports
                .iter()
                .take(most)
                .map(|((protocol, port), counter)| PortExplain {
                    protocol,
                    port,
                    counter,
                    boosts: ports.predicts((protocol, port)),
                })
                .collect(),
            patience_ns: self.guest.answers.patience(&config.tavs),
            debt_ns,
            share_permille,
            multimedia: self.multimedia.explain(self.claims.entitlement()),
            asymmetric: self.asymmetric.explain(&self.guest, now),
            starvation: self.starvation.explain(),
            pb_allowed_ratio: if self.own.off {
                0.0
            } else {
                self.own.pb_ratio.unwrap_or(config.tavs.pb_ratio)
            },
            pb_used_ratio: self.partial_boost.pb_used(),
            paused: self.paused,
            standing: self.standing,
            emulator_ran_ns: self.guest.emulator_ran(),
            lost_events: self.lost,
        }
    }

    fn explain_vcpu(&self, index: u16) -> VcpuExplain {
        let (seen, boosted) =
            (&self.guest.vcpus[usize::from(index)].seen, &self.partial_boost.vcpus[usize::from(index)]);
        VcpuExplain {
            index,
            current: seen.current(),
            boosted: self.claims.level(BoostTarget::Vcpu(index)) > Boost::None,
            ran_ns: seen.thread.ran,
            stolen_ns: seen.thread.waited,
            boosted_ns: boosted.ran,
            boosts: boosted.counts.boosts,
            hits: boosted.counts.hits,
            expired: boosted.counts.expired,
        }
    }
}

fn boost_target(thread: Thread) -> BoostTarget {
    match thread {
        Thread::Vcpu(index) => BoostTarget::Vcpu(index),
        Thread::Emulator(_) => BoostTarget::Emulators,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_other_threads_run_counts_once_they_were_told_of() {
        let mut vm = Vm::new(1, 1024, &Config::default().tavs);
        let mut told = |at, opened: bool| {
            if opened {
                vm.others_told = None;
            }
            // On two physical CPUs, at the same time.
            [0, 1].map(|pcpu| vm.others_ran(pcpu, [2 * STRAY, STRAY], Time(at)))
        };
        assert_eq!(told(100, true), [false, false]);
        assert_eq!(told(200, false), [true, true]);
        assert_eq!(told(300, true), [false, false]);
        assert_eq!(told(400, false), [true, true]);
        assert_eq!(vm.guest.emulator_ran(), 16 * STRAY, "all of it is told");
        assert_eq!(vm.guest.unmet(), 4 * STRAY, "what they waited before is not");
    }
}
