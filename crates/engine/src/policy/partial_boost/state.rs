//! What the policy knows of a VM: which vCPUs are boosted, for what and until when, and what they used.

use crate::action::{Boost, BoostTarget};
use crate::config::Tavs;
use crate::event::{Thread, Time};
use crate::nanos::nanos;
use crate::policy::budget::{Allowance, Budget};
use crate::policy::claim::{Ask, Claim, Knob, Owner, value};
use crate::policy::view::View;
use crate::state::{StateError, check};
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest boost that can be configured.
const MAX_BOOST: Duration = Duration::from_secs(1);
/// vCPUs boosted for one event.
pub(super) const MAX_TARGETS: usize = 8;
/// With what it waits for a CPU, a boost lasts so many times `max_boost` at most.
const STRETCH: u64 = 4;
/// An event that nobody answered is forgotten after this.
pub(super) const UNANSWERED: u64 = 1_000_000_000;
/// A boosted vCPU that waits for a CPU, or for its emulator to deliver, is looked at so often at most.
pub(super) const LOOK: u64 = 200_000;

/// A boost that is going on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Serving {
    pub(super) since: Time,
    /// When it ends by itself.
    pub(super) until: Time,
    /// Boosted run time of the vCPU before it,
    pub(super) ran_at_begin: u64,
    /// and before what is waited for.
    pub(super) ran_before: u64,
    /// Whether an I/O-bound task has run in it.
    pub(super) hit: bool,
    /// Whether it waits for an I/O-bound task to run, or to answer; if not, such a task runs.
    pub(super) waits: bool,
    /// Whether it uses none of the budget.
    #[serde(default)]
    pub(super) free: bool,
    pub(super) part: BoostRole,
}

/// What a boosted vCPU has to do with the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BoostRole {
    /// It takes the interrupt, or runs the task that answers.
    Serves,
    /// The same, and what could be done for it by boosting others is done.
    Helped,
    /// It may hold a lock that one that serves needs, and is boosted no longer than that: it lost its CPU
    /// somewhere in the kernel.
    Helps,
    /// The same, on the physical CPU of the one that it helps: that one may run on without end, for what it
    /// waits for, and so this one goes before it, but not for long.
    HelpsAhead,
    /// It handed the event on to one that serves, and finishes its handler, which holds such locks.
    Finishes,
    /// It serves, and has not run yet, for one that serves as well is held up on the same physical CPU,
    /// perhaps by this one: it goes before that one, but not for long.
    ServesAhead,
}

impl BoostRole {
    /// Whether it is boosted for another one that serves the event.
    pub(super) fn is_help(self) -> bool {
        matches!(self, BoostRole::Helps | BoostRole::HelpsAhead | BoostRole::Finishes)
    }

    /// What it is preferred to.
    pub(super) fn level(self) -> Boost {
        match self {
            BoostRole::HelpsAhead | BoostRole::ServesAhead => Boost::Multimedia,
            BoostRole::Serves | BoostRole::Helped | BoostRole::Helps | BoostRole::Finishes => Boost::Io,
        }
    }
}

/// Counts since the VM was added.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BoostCounts {
    pub(crate) boosts: u64,
    pub(crate) hits: u64,
    pub(crate) expired: u64,
}

/// What the policy knows of a vCPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BoostedVcpu {
    pub(super) budget: Budget,
    pub(super) serving: Option<Serving>,
    /// Nanoseconds that it ran boosted.
    pub(crate) ran: u64,
    pub(crate) counts: BoostCounts,
}

impl BoostedVcpu {
    pub(super) fn serves(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| !serving.part.is_help())
    }

    /// Whether it is boosted, and has run since that began.
    pub(super) fn has_run(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| self.ran > serving.ran_at_begin)
    }

    pub(super) fn helps(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.part.is_help())
    }
}

/// The policy's state for a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartialBoost {
    pub(crate) vcpus: Vec<BoostedVcpu>,
    pub(super) allowance: Allowance,
    /// Nanoseconds that emulator threads ran boosted.
    emulator_ran: u64,
    /// Whether emulator threads are boosted although no vCPU is.
    pub(super) lingers: bool,
    /// Whether the vCPUs that run something else were boosted for the last event, too.
    pub(super) sought: bool,
    /// Who has its turn after the one that takes the interrupt of the last event, on the same physical CPU.
    #[serde(default)]
    pub(super) behind: Option<u16>,
    /// When a packet came last that an I/O-bound task waits for.
    #[serde(default)]
    pub(super) asked: Option<Time>,
    /// When a boost ended before its event was answered.
    pub(super) unanswered: Option<Time>,
    /// When an event that an I/O-bound task waits for was not boosted for, or no longer: as much as may be
    /// had been.
    #[serde(default, rename = "unaided")]
    pub(super) unserved: Option<Time>,
    /// What came of the boosts that ended since this was asked last: whether an I/O-bound task ran.
    #[serde(skip)]
    pub(crate) ended: ArrayVec<bool, 16>,
}

impl PartialBoost {
    pub(crate) fn new(vcpus: usize) -> PartialBoost {
        PartialBoost { vcpus: vec![BoostedVcpu::default(); vcpus], ..PartialBoost::default() }
    }

    /// Checks a state that was loaded.
    pub(crate) fn check(&self, now: Time, vcpus: usize) -> Result<(), StateError> {
        check(self.vcpus.len() == vcpus, "boosts of vCPUs that are not there")?;
        for vcpu in &self.vcpus {
            if let Some(serving) = &vcpu.serving {
                let most = nanos(MAX_BOOST) * STRETCH;
                let bounded = serving.since <= now && serving.until <= serving.since.plus(most);
                check(bounded, "a boost longer than any")?;
            }
            check(vcpu.counts.hits <= vcpu.counts.boosts, "more hits than boosts")?;
        }
        self.allowance.check()
    }

    /// A vCPU came, or went, and starts afresh.
    pub(crate) fn resize(&mut self, vcpus: usize, afresh: u16) {
        self.vcpus.resize_with(vcpus, BoostedVcpu::default);
        if let Some(vcpu) = self.vcpus.get_mut(usize::from(afresh)) {
            *vcpu = BoostedVcpu::default();
        }
    }

    /// A thread of the VM ran for so long; whether boosted.
    pub(crate) fn ran(&mut self, thread: Thread, ran: u64, boosted: bool, now: Time, config: &Tavs) {
        match thread {
            Thread::Vcpu(index) => {
                let Some(vcpu) = self.vcpus.get_mut(usize::from(index)) else { return };
                let free = vcpu.serving.as_ref().is_some_and(|serving| serving.free);
                vcpu.budget.charge(now, nanos(config.pb_period), ran, boosted && !free);
                if boosted {
                    vcpu.ran = vcpu.ran.saturating_add(ran);
                }
            }
            Thread::Emulator(_) if boosted => self.emulator_ran = self.emulator_ran.saturating_add(ran),
            Thread::Emulator(_) => {}
        }
    }

    /// Nanoseconds that its threads ran boosted.
    pub(crate) fn boosted_ran(&self) -> u64 {
        self.vcpus.iter().fold(self.emulator_ran, |sum, vcpu| sum.saturating_add(vcpu.ran))
    }

    /// Whether an event waits for its answer without a boost.
    pub(crate) fn is_waiting(&self, now: Time) -> bool {
        let unserved = self.unserved.is_some_and(|since| now.since(since) <= UNANSWERED);
        self.unanswered.is_some() || unserved
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.vcpus.capacity() * size_of::<BoostedVcpu>()
    }

    pub(super) fn serving(&mut self, index: u16) -> Option<&mut Serving> {
        self.vcpus.get_mut(usize::from(index))?.serving.as_mut()
    }

    /// Whether a vCPU is boosted for an event of its own.
    pub(super) fn is_boosted(&self, index: u16) -> bool {
        self.vcpus.get(usize::from(index)).is_some_and(BoostedVcpu::serves)
    }
}

impl Serving {
    /// When it ends by itself, if the vCPU, which ran boosted for `ran` in all, goes on running.
    pub(super) fn end(&self, ran: u64, view: &View<'_>) -> Time {
        let tavs = &view.config.tavs;
        let left = nanos(tavs.max_boost).saturating_sub(ran.saturating_sub(self.ran_at_begin));
        let ran = ran.saturating_sub(self.ran_before);
        let patience = view.guest.answers.patience(tavs).saturating_sub(ran);
        let left = if self.waits { left.min(patience) } else { left };
        let left = match self.part {
            BoostRole::Serves if view.guest.is_kept_waiting() => left.min(LOOK),
            BoostRole::Serves => left.min(unaided(tavs).saturating_sub(ran)),
            BoostRole::Helped => left,
            BoostRole::Helps => left.min(nanos(tavs.io_threshold).saturating_sub(ran)),
            BoostRole::HelpsAhead | BoostRole::ServesAhead | BoostRole::Finishes => {
                left.min(handler(tavs).saturating_sub(ran))
            }
        };
        view.now.plus(left).min(longest(self.since, tavs))
    }
}

/// How long a vCPU that serves an event runs before others may help it: so long only few events take, unless
/// something holds them up, and then there is patience left.
pub(super) fn unaided(config: &Tavs) -> u64 {
    nanos(config.io_threshold) / 2
}

/// How long the rest of a handler takes at most, or whatever else has a lock in the guest's kernel. The vCPUs
/// may share a physical CPU, and then whoever is to answer waits for it.
fn handler(config: &Tavs) -> u64 {
    nanos(config.io_threshold) / 8
}

/// When a boost that began then is over in any case.
pub(super) fn longest(since: Time, config: &Tavs) -> Time {
    since.plus(nanos(config.max_boost).saturating_mul(STRETCH))
}

pub(super) fn boost(target: BoostTarget, until: Time) -> Ask {
    boost_to(target, Boost::Io, until)
}

pub(super) fn boost_to(target: BoostTarget, level: Boost, until: Time) -> Ask {
    let (owner, knob) = (Owner::PartialBoost, Knob::Boost(target));
    Ask::Claim(Claim { owner, knob, value: value(level), until })
}

pub(super) fn watch(index: u16, until: Time) -> Ask {
    Ask::Claim(Claim { owner: Owner::PartialBoost, knob: Knob::Watch(index), value: 1, until })
}
