//! The engine as it is: all its state, checked when it is loaded, and what can be asked of it.

use super::vm::{Situation, Vm};
use crate::action::{Action, Foreseen};
use crate::capabilities::Capabilities;
use crate::config::{Config, ConfigError};
use crate::event::{Protocol, TaskId, Time, VmId};
use crate::explain::{AsymmetricExplain, Decision, Recent, VmExplain};
use crate::infer::EpisodeCause;
use crate::knob::Ledger;
use crate::policy::{Ask, Claim, Knob, Owner};
use crate::recorded::RecordedConfig;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// More VMs than any host runs: a bound on memory if a source goes wrong.
pub(super) const MAX_VMS: usize = 4096;

/// Counts of what went wrong outside the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Troubles {
    /// Events that sources reported as lost.
    pub lost: u64,
    /// Events older than one seen before.
    pub late: u64,
    /// Events that name a VM or vCPU that is not followed.
    pub unknown: u64,
}

/// Infers which guest work someone waits for and decides what to give it first.
///
/// Sans-I/O: give it events with [`on_event`](Engine::on_event) and the time with
/// [`on_deadline`](Engine::on_deadline), and after each take the decisions with
/// [`poll_action`](Engine::poll_action). The same calls give the same actions. Any sequence of events is
/// legal.
///
/// Serialised, it is the whole of its state: loaded again, it goes on with the same actions. What is loaded
/// is checked, and whatever passes is as safe as an engine that came to its state by events. The names and
/// types in it are those of `docs/recording.md`, for later releases load it: what is renamed here keeps its
/// name there, and a new field has a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Saved")]
pub struct Engine {
    #[serde(with = "RecordedConfig")]
    pub(crate) config: Config,
    pub(crate) world: Capabilities,
    pub(crate) now: Time,
    pub(crate) vms: BTreeMap<VmId, Vm>,
    /// When each claim ends by itself; the same times as in the claims.
    #[serde(skip)]
    pub(crate) ends: BTreeSet<End>,
    /// Empty; kept for its memory.
    #[serde(skip)]
    pub(super) asks: Vec<Ask>,
    pub(crate) ledger: Ledger,
    /// When threads that wait are looked at next.
    #[serde(default)]
    pub(super) look: Option<Time>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) troubles: Troubles,
}

/// When a claim ends by itself, and which.
pub(crate) type End = (Time, VmId, Owner, Knob);

impl Engine {
    /// An engine that knows no VM yet.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn new(config: Config) -> Result<Engine, ConfigError> {
        config.validate()?;
        Ok(Engine {
            config,
            world: Capabilities::default(),
            now: Time::default(),
            vms: BTreeMap::new(),
            ends: BTreeSet::new(),
            asks: Vec::new(),
            ledger: Ledger::default(),
            look: None,
            actions: VecDeque::new(),
            troubles: Troubles::default(),
        })
    }

    /// The parameters.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the world can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.world
    }

    /// What would be decided about a packet that came to a VM now and that an I/O-bound task
    /// [waits for](Engine::awaits); `None` if nothing. Asking changes nothing.
    #[must_use]
    pub fn foresee(&self, vm: VmId) -> Option<Foreseen> {
        let (debt, world) = (self.debt(vm), self.world);
        let situation = Situation { now: self.now, config: &self.config, world, debt, contended: false };
        self.vms.get(&vm)?.foresee(&situation)
    }

    /// Whether an I/O-bound task of a VM waits for packets to this port, as far as is known.
    #[must_use]
    pub fn awaits(&self, vm: VmId, protocol: Protocol, port: u16) -> bool {
        self.vms.get(&vm).is_some_and(|state| state.awaits(protocol, port, &self.config.tavs))
    }

    /// The state behind the decisions about a VM; `None` if it is not followed.
    #[must_use]
    pub fn explain(&self, vm: VmId) -> Option<VmExplain> {
        self.explain_most(vm, usize::MAX)
    }

    /// The same with at most so many guest tasks of each vCPU and so many ports, which bounds the time it
    /// takes.
    #[must_use]
    pub fn explain_most(&self, vm: VmId, most: usize) -> Option<VmExplain> {
        let state = self.vms.get(&vm)?;
        Some(state.explain(self.now, self.ledger.debt(vm), self.permille(vm), &self.config, most))
    }

    /// What a person does with a VM, and what it gets for that, as in [`explain`](Engine::explain); `None` if
    /// nobody ever did anything, or it is not followed.
    #[must_use]
    pub fn asymmetric(&self, vm: VmId) -> Option<AsymmetricExplain> {
        let state = self.vms.get(&vm)?;
        state.asymmetric.explain(&state.guest, self.now)
    }

    /// The decisions about a VM in the seconds before `now`; `None` if it is not followed.
    #[must_use]
    pub fn recent(&self, vm: VmId, now: Time) -> Option<Recent> {
        self.vms.get(&vm).map(|state| state.log.recent(now.max(self.now), &state.guest.ports))
    }

    /// Bytes held for a VM, from the capacities of its tables; `None` if it is not followed.
    #[must_use]
    pub fn memory(&self, vm: VmId) -> Option<usize> {
        self.vms.get(&vm).map(Vm::bytes)
    }

    /// The degree of belief that a task of a VM is I/O-bound; `None` if the task or VM is not known. Unlike
    /// [`explain`](Engine::explain) it costs next to nothing.
    #[must_use]
    pub fn belief(&self, vm: VmId, task: TaskId) -> Option<i32> {
        self.vms.get(&vm)?.guest.tasks.belief(task)
    }

    /// The last decision about a VM; `None` if there was none.
    #[must_use]
    pub fn decision(&self, vm: VmId) -> Option<Decision> {
        self.vms.get(&vm)?.log.last()
    }

    /// The episode of a VM that goes on: what it began with, when, and when it ends unless something else
    /// happens (vAMP §3.1.2).
    #[must_use]
    pub fn episode(&self, vm: VmId) -> Option<(EpisodeCause, Time, Time)> {
        let episode = self.vms.get(&vm)?.guest.episode(self.now)?;
        Some((episode.cause, episode.since, episode.until))
    }

    /// Boosts of a vCPU that have ended and in which an I/O-bound task ran; `None` if it is not followed.
    #[must_use]
    pub fn boost_hits(&self, vm: VmId, vcpu: u16) -> Option<u64> {
        Some(self.vms.get(&vm)?.partial_boost.vcpus.get(usize::from(vcpu))?.counts.hits)
    }

    /// The VMs that are followed.
    pub fn vms(&self) -> impl Iterator<Item = VmId> {
        self.vms.keys().copied()
    }

    /// What went wrong outside the engine so far.
    #[must_use]
    pub fn troubles(&self) -> Troubles {
        self.troubles
    }
}

/// A state whose parts were read, but not checked; field by field as `Engine` is serialised.
#[derive(Deserialize)]
struct Saved {
    #[serde(with = "RecordedConfig")]
    config: Config,
    world: Capabilities,
    now: Time,
    vms: BTreeMap<VmId, Vm>,
    ledger: Ledger,
    #[serde(default)]
    look: Option<Time>,
    actions: VecDeque<Action>,
    troubles: Troubles,
}

impl TryFrom<Saved> for Engine {
    type Error = StateError;

    fn try_from(saved: Saved) -> Result<Engine, StateError> {
        let Saved { config, world, now, mut vms, ledger, look, actions, troubles } = saved;
        config.validate()?;
        check(vms.len() <= MAX_VMS, "more VMs than any host runs")?;
        for vm in vms.values_mut() {
            vm.restore(now, &config.tavs)?;
        }
        ledger.check(now, |vm| vms.contains_key(&vm))?;
        let end = |vm, claim: &Claim| (claim.until, vm, claim.owner, claim.knob);
        let ends: BTreeSet<End> =
            vms.iter().flat_map(|(vm, state)| state.claims.iter().map(|claim| end(*vm, claim))).collect();
        let boosts = ends.iter().any(|(.., knob)| matches!(knob, Knob::Boost(_)));
        check(!boosts || ledger.next().is_some(), "a boost without a ledger")?;
        Ok(Engine { config, world, now, vms, ends, asks: Vec::new(), ledger, look, actions, troubles })
    }
}
