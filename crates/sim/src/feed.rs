//! The engine as it is: the world's events in, its actions out and applied, after a latency if there is one.

use crate::machine::Machine;
use crate::queue::{NEVER, Nanos, Timer};
use crate::scheduler::{Entity, Group};
use crate::world::Measure;
use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Capabilities, Engine, EpisodeCause, Event, EventKind, Standing,
    TaskId, Time, VmId, nice_for, nice_weight,
};
use frontdesk_scenario::Tracer;
use std::collections::VecDeque;

/// Something between a world and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedEntry {
    /// What the engine was told.
    Event(Event),
    /// What it decided.
    Action(Action),
}

/// What actions about a VM act on.
#[derive(Clone, Debug)]
pub(crate) struct VmEntities {
    pub(crate) group: Group,
    pub(crate) standing: Standing,
    pub(crate) vcpus: Vec<Entity>,
    /// The niceness of each of them, as it was set by hand.
    pub(crate) nices: Vec<i8>,
    /// The emulator's thread, which is part of its I/O path.
    pub(crate) emulator: Option<Entity>,
    /// Whether the engine is told about it.
    pub(crate) tracked: bool,
    pub(crate) weight: u32,
}

/// Between the world and the engine.
#[derive(Debug)]
pub(crate) struct Feed {
    engine: Option<Engine>,
    /// Whether what it decides is done.
    acts: bool,
    latency: Nanos,
    targets: Vec<VmEntities>,
    decided: VecDeque<(Nanos, Action)>,
    decision: Timer,
    deadline: Timer,
    armed: Nanos,
    events: u64,
    /// What was told and decided, if somebody wants to know.
    recorded: Option<Vec<FeedEntry>>,
    /// Whether what was told, too.
    records_events: bool,
}

impl Feed {
    pub(crate) fn new(
        engine: Option<Engine>,
        acts: bool,
        latency: Nanos,
        [decision, deadline]: [Timer; 2],
    ) -> Feed {
        Feed {
            engine,
            acts,
            latency,
            targets: Vec::new(),
            decided: VecDeque::new(),
            decision,
            deadline,
            armed: NEVER,
            events: 0,
            recorded: None,
            records_events: false,
        }
    }

    /// Keeps what the engine decides from now on, and what it is told if `events`, for
    /// [`recorded`](Feed::recorded).
    pub(crate) fn record(&mut self, events: bool) {
        self.recorded = Some(Vec::new());
        self.records_events = events;
    }

    pub(crate) fn recorded(self) -> Vec<FeedEntry> {
        self.recorded.unwrap_or_default()
    }

    /// The VMs are there, on a machine that can do so much.
    pub(crate) fn introduce(&mut self, targets: Vec<VmEntities>, machine: &Machine) {
        self.targets = targets;
        let Some(engine) = &mut self.engine else { return };
        let world = Capabilities {
            acts: self.acts,
            charges_boosts: machine.charges_boosts(),
            slice_ns: machine.slice(),
            ..Capabilities::default()
        };
        engine.on_event(&Event { at: Time(0), kind: EventKind::World(world) });
        for (vm, target) in self.targets.iter().enumerate().filter(|(_, target)| target.tracked) {
            let vcpus = u16::try_from(target.vcpus.len()).unwrap_or(u16::MAX);
            let added = EventKind::VmAdded { vm: id(vm), vcpus, weight: target.weight };
            let stands = EventKind::Standing { vm: id(vm), standing: target.standing };
            let nices = (0..).zip(&target.nices).filter(|(_, nice)| **nice != 0);
            let weights = nices.map(|(vcpu, nice)| {
                let permille = u64::from(nice_weight(*nice)) * 1000 / u64::from(nice_weight(0));
                let permille = u32::try_from(permille).unwrap_or(u32::MAX);
                EventKind::VcpuWeight { vm: id(vm), vcpu, permille }
            });
            for kind in [added, stands].into_iter().chain(weights) {
                engine.on_event(&Event { at: Time(0), kind });
            }
        }
    }

    /// How many events the engine was told; `None` without one.
    pub(crate) fn events(&self) -> Option<u64> {
        self.engine.as_ref().map(|_| self.events)
    }

    /// What the engine knows of a player: frames that it shows a second, those that it seems to want, and
    /// what the VM's share is raised to for it, in permille.
    pub(crate) fn player(&self, vm: usize, task: TaskId) -> Option<(f64, f64, u32)> {
        let multimedia = self.engine.as_ref()?.explain(id(vm))?.multimedia?;
        let player = multimedia.players.iter().find(|player| player.task == task)?;
        Some((player.frame_rate, player.desired_rate, multimedia.share_permille))
    }

    /// What the host tells a guest in an episode: what it began with, when it ends, and who is background
    /// work.
    pub(crate) fn background(&self, vm: usize) -> Option<(EpisodeCause, Nanos, Vec<TaskId>)> {
        let known = self.engine.as_ref().filter(|_| self.acts)?.explain(id(vm))?.asymmetric?;
        let episode = known.episode?;
        Some((episode.cause, episode.until.0, known.background.iter().map(|of| of.task).collect()))
    }

    /// Whether a task is the one for which the VM's sound server plays, as far as the engine knows; `None`
    /// without one that looks.
    pub(crate) fn is_sound_client(&self, vm: usize, task: TaskId) -> Option<bool> {
        let known = self.engine.as_ref()?.explain(id(vm))?.asymmetric?;
        Some(known.sound_client == Some(task))
    }

    /// Whether packets without payload count.
    pub(crate) fn hears_acknowledgements(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.config().tavs.acknowledgements)
    }

    /// Tells the engine what happened to a VM, and does what it decides.
    pub(crate) fn tell(
        &mut self,
        machine: &mut Machine,
        vm: usize,
        kind: EventKind,
        measure: &mut Measure,
        mut trace: Option<&mut Tracer>,
    ) {
        let event = Event { at: Time(machine.now()), kind };
        if let Some(trace) = &mut trace {
            trace.sample(event.at, self.engine.as_ref());
        }
        let engine = self.engine.as_mut().filter(|_| self.targets[vm].tracked);
        let is_told = engine.is_some();
        if let Some(engine) = engine {
            self.events += 1;
            engine.on_event(&event);
            if let Some(recorded) = self.recorded.as_mut().filter(|_| self.records_events) {
                recorded.push(FeedEntry::Event(event));
            }
        }
        if let Some(trace) = &mut trace {
            trace.event(&event, self.engine.as_ref());
        }
        if is_told {
            self.drain(machine, measure, trace);
        }
    }

    /// The engine's deadline has come.
    pub(crate) fn deadline(
        &mut self,
        machine: &mut Machine,
        measure: &mut Measure,
        trace: Option<&mut Tracer>,
    ) {
        self.armed = NEVER;
        if let Some(engine) = &mut self.engine {
            engine.on_deadline(Time(machine.now()));
        }
        self.drain(machine, measure, trace);
    }

    /// A decision has come through.
    pub(crate) fn decided(
        &mut self,
        machine: &mut Machine,
        measure: &mut Measure,
        mut trace: Option<&mut Tracer>,
    ) {
        while let Some((at, action)) = self.decided.front().copied() {
            if at > machine.now() {
                return machine.arm(self.decision, at);
            }
            self.decided.pop_front();
            self.apply(machine, action, measure, trace.as_deref_mut());
        }
    }

    fn drain(&mut self, machine: &mut Machine, measure: &mut Measure, mut trace: Option<&mut Tracer>) {
        let Some(engine) = &mut self.engine else { return };
        let deadline = engine.next_deadline().map_or(NEVER, |time| time.0);
        if deadline != self.armed {
            self.armed = deadline;
            machine.arm(self.deadline, deadline.max(machine.now()));
        }
        while let Some(action) = self.engine.as_mut().and_then(Engine::poll_action) {
            if let Some(recorded) = &mut self.recorded {
                recorded.push(FeedEntry::Action(action));
            }
            if self.latency == 0 {
                self.apply(machine, action, measure, trace.as_deref_mut());
                continue;
            }
            let at = machine.now().saturating_add(self.latency);
            if self.decided.is_empty() {
                machine.arm(self.decision, at);
            }
            self.decided.push_back((at, action));
        }
    }

    fn apply(
        &mut self,
        machine: &mut Machine,
        action: Action,
        measure: &mut Measure,
        trace: Option<&mut Tracer>,
    ) {
        let now = machine.now();
        match action.kind {
            ActionKind::Boost { vm: VmId(vm), target: BoostTarget::Emulators, level } => {
                if let Some(emulator) = self.targets[vm as usize].emulator {
                    machine.boost(emulator, level);
                }
            }
            ActionKind::Boost { vm: VmId(vm), target: BoostTarget::Vcpu(vcpu), level } => {
                let vm = vm as usize;
                if let Some(entity) = self.targets[vm].vcpus.get(usize::from(vcpu)) {
                    machine.boost(*entity, level);
                }
                if level > Boost::None {
                    measure.boosted(vm, vcpu, now);
                } else {
                    let hits = self.engine.as_ref().and_then(|engine| engine.boost_hits(id(vm), vcpu));
                    if let Some((since, hit)) = measure.boost_ended(vm, vcpu, hits.unwrap_or(0), now)
                        && let Some(trace) = trace
                    {
                        trace.boost(id(vm), vcpu, Time(since), Time(now), hit);
                    }
                }
            }
            ActionKind::Share { vm: VmId(vm), permille } => {
                machine.share(self.targets[vm as usize].group, permille);
            }
            ActionKind::Weight { vm: VmId(vm), vcpu, permille } => {
                let target = &self.targets[vm as usize];
                let place = usize::from(vcpu);
                if let (Some(entity), Some(nice)) = (target.vcpus.get(place), target.nices.get(place)) {
                    machine.set_nice(*entity, nice_for(*nice, permille));
                }
            }
            // The world tells everything at once.
            ActionKind::Watch { .. } => {}
        }
    }
}

/// The engine's number of a VM.
pub(crate) fn id(vm: usize) -> VmId {
    VmId(u32::try_from(vm).unwrap_or(u32::MAX))
}
