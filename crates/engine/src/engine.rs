//! The engine: events in, actions out.

mod boosting;

use crate::action::{Action, ActionKind};
use crate::config::{Config, ConfigError, VmPolicy};
use crate::event::{Event, EventKind, TaskId, Thread, Time, VmId};
use crate::explain::{Cause, Decision, Recent, VmExplain};
use crate::ledger::Ledger;
use crate::state::Saved;
use crate::vm::Vm;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// More VMs than any host runs: a bound on memory if a source goes wrong.
pub(crate) const MAX_VMS: usize = 4096;

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
/// [`poll_action`](Engine::poll_action). The same calls give the same actions. Any sequence of events is legal.
///
/// Serialised, it is the whole of its state: loaded again, it goes on with the same actions. What is loaded is checked, and
/// whatever passes is as safe as an engine that came to its state by events.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Saved")]
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) vms: BTreeMap<VmId, Vm>,
    /// When each boost ends by itself; the same times as in the vCPUs.
    #[serde(skip)]
    pub(crate) boosts: BTreeSet<(Time, VmId, u16)>,
    pub(crate) ledger: Ledger,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) troubles: Troubles,
}

impl Engine {
    /// An engine that knows no VM yet.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn new(config: Config) -> Result<Engine, ConfigError> {
        config.validate()?;
        Ok(Engine {
            config,
            now: Time::default(),
            vms: BTreeMap::new(),
            boosts: BTreeSet::new(),
            ledger: Ledger::default(),
            actions: VecDeque::new(),
            troubles: Troubles::default(),
        })
    }

    /// Takes other parameters from now on, keeping all that is known. `tavs.counter_bits` and `tavs.tasks_per_vcpu` are the sizes of
    /// tables: they hold for VMs and vCPUs that come after.
    ///
    /// # Errors
    /// A parameter out of its range; the former ones then stay.
    pub fn configure(&mut self, config: Config) -> Result<(), ConfigError> {
        config.validate()?;
        for vcpu in self.vms.values_mut().flat_map(|vm| &mut vm.vcpus) {
            vcpu.tasks.reconsider(&config.tavs);
        }
        self.config = config;
        Ok(())
    }

    /// Sets what holds for one VM only. A VM that is not followed is none of the engine's business; one that is added anew begins
    /// without.
    ///
    /// # Errors
    /// A parameter out of its range; the former policy then stays.
    pub fn configure_vm(&mut self, vm: VmId, policy: VmPolicy) -> Result<(), ConfigError> {
        policy.validate()?;
        let Some(state) = self.vms.get_mut(&vm) else { return Ok(()) };
        state.policy = policy;
        if policy.off {
            self.end_boosts(vm);
        }
        Ok(())
    }

    /// Tells the engine what happened.
    pub fn on_event(&mut self, event: &Event) {
        if event.at < self.now {
            self.troubles.late = self.troubles.late.saturating_add(1);
        }
        self.now = self.now.max(event.at);
        self.expire_boosts();
        if self.handle(event.kind).is_none() {
            self.troubles.unknown = self.troubles.unknown.saturating_add(1);
        }
    }

    /// When the engine wants to be called next, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let boost = self.boosts.first().map(|(until, _, _)| *until);
        match (boost, self.ledger.next()) {
            (Some(boost), Some(ledger)) => Some(boost.min(ledger)),
            (boost, ledger) => boost.or(ledger),
        }
    }

    /// Tells the engine the time.
    pub fn on_deadline(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.expire_boosts();
        if self.ledger.next().is_some_and(|next| next <= self.now) {
            self.settle();
        }
    }

    /// The next decision, in the order in which they were made.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The parameters.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The state behind the decisions about a VM; `None` if it is not followed.
    #[must_use]
    pub fn explain(&self, vm: VmId) -> Option<VmExplain> {
        self.explain_most(vm, usize::MAX)
    }

    /// The same with at most so many guest tasks of each vCPU and so many ports, which bounds the time it takes.
    #[must_use]
    pub fn explain_most(&self, vm: VmId, most: usize) -> Option<VmExplain> {
        self.vms.get(&vm).map(|state| state.explain(vm, &self.ledger, &self.config, most))
    }

    /// The decisions about a VM in the seconds before `now`; `None` if it is not followed.
    #[must_use]
    pub fn recent(&self, vm: VmId, now: Time) -> Option<Recent> {
        self.vms.get(&vm).map(|state| state.history.recent(now.max(self.now), &state.ports))
    }

    /// Bytes held for a VM, from the capacities of its tables; `None` if it is not followed.
    #[must_use]
    pub fn memory(&self, vm: VmId) -> Option<usize> {
        self.vms.get(&vm).map(Vm::bytes)
    }

    /// The degree of belief that a task of a VM is I/O-bound, on the vCPU where it is highest; `None` if the task or VM is not
    /// known. Unlike [`explain`](Engine::explain) it costs next to nothing.
    #[must_use]
    pub fn belief(&self, vm: VmId, task: TaskId) -> Option<i32> {
        self.vms.get(&vm)?.vcpus.iter().filter_map(|vcpu| vcpu.tasks.belief(task)).max()
    }

    /// The last decision about a VM; `None` if there was none.
    #[must_use]
    pub fn decision(&self, vm: VmId) -> Option<Decision> {
        self.vms.get(&vm)?.history.last()
    }

    /// Boosts of a vCPU that have ended and in which an I/O-bound task ran; `None` if it is not followed.
    #[must_use]
    pub fn boost_hits(&self, vm: VmId, vcpu: u16) -> Option<u64> {
        Some(self.vms.get(&vm)?.vcpus.get(usize::from(vcpu))?.counts.hits)
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

    /// Handles an event; `None` if it names something that is not followed.
    fn handle(&mut self, kind: EventKind) -> Option<()> {
        let now = self.now;
        let config = &self.config.tavs;
        match kind {
            EventKind::VmAdded { vm, vcpus, weight } => {
                self.remove(vm);
                if self.vms.len() >= MAX_VMS {
                    return None;
                }
                self.vms.insert(vm, Vm::new(vcpus, weight.max(1), &self.config.tavs));
            }
            EventKind::VmRemoved { vm } => self.remove(vm)?,
            EventKind::Run { vm, thread, pcpu } => {
                self.vms.get_mut(&vm)?.run(thread, pcpu, now, config);
                self.await_answer(vm);
            }
            EventKind::Stop { vm, thread, runnable } => {
                self.vms.get_mut(&vm)?.stop(thread, runnable, now, config);
            }
            EventKind::Wake { vm, thread, by } => {
                self.vms.get_mut(&vm)?.wake(thread, by, now, config);
                if let (Thread::Emulator(_), Some(index)) = (thread, by) {
                    self.doorbell(vm, index);
                }
            }
            EventKind::TaskSwitch { vm, vcpu: index, task } => {
                let state = self.vms.get_mut(&vm)?;
                let vcpu = state.vcpu(index)?;
                let ended = vcpu.account(now, config);
                let (io_bound, verdict) = vcpu.switch(task, now, config);
                state.learn(ended);
                state.learn(verdict);
                self.task_runs(vm, index, io_bound);
            }
            EventKind::TaskSeen { vm, vcpu: index, task } => {
                let state = self.vms.get_mut(&vm)?;
                let vcpu = state.vcpu(index)?;
                let ended = vcpu.account(now, config);
                let again = vcpu.current() == Some(task);
                let (io_bound, verdict) = vcpu.see(task, now, config);
                state.learn(ended);
                state.learn(verdict);
                // One that goes on has not taken the CPU from the task that the event is for.
                if io_bound || !again {
                    self.task_runs(vm, index, io_bound);
                }
            }
            EventKind::Halt { vm, vcpu: index } => {
                let state = self.vms.get_mut(&vm)?;
                let vcpu = state.vcpu(index)?;
                let ended = vcpu.account(now, config);
                let verdict = vcpu.halt(config);
                state.learn(ended);
                state.learn(verdict);
                // One that halts before it is told of the event is woken for it.
                let awaits_delivery = state.awaits_delivery();
                let served = state.vcpu(index)?.boosted.as_ref().is_some_and(|boosted| boosted.served);
                if served || !awaits_delivery {
                    self.end_boost(vm, index);
                }
            }
            EventKind::Resume { vm, vcpu: index } => {
                let state = self.vms.get_mut(&vm)?;
                let vcpu = state.vcpu(index)?;
                let ended = vcpu.account(now, config);
                let resumed = vcpu.resume(now, config);
                state.learn(ended);
                if let Some((io_bound, verdict)) = resumed {
                    state.learn(verdict);
                    self.task_runs(vm, index, io_bound);
                }
            }
            EventKind::Ipi { vm, vcpu, .. }
            | EventKind::Interrupt { vm, vcpu, .. }
            | EventKind::IpiTaken { vm, vcpu } => {
                // No inference of this engine uses them yet.
                self.vms.get_mut(&vm)?.vcpu(vcpu)?;
            }
            EventKind::Packet { vm, protocol, port } => {
                let state = self.vms.get_mut(&vm)?;
                let correlated = !config.correlation || state.ports.predicts_io_bound((protocol, port));
                self.consider_boost(vm, Cause::Packet { protocol, port }, correlated);
                let state = self.vms.get_mut(&vm)?;
                state.packet((protocol, port), now, &self.config.tavs);
                self.await_answer(vm);
            }
            EventKind::BlockRead { vm, request } => self.vms.get_mut(&vm)?.read(request, config),
            EventKind::BlockPending { vm } => {
                let state = self.vms.get_mut(&vm)?;
                let correlated =
                    if config.correlation { state.reads.any_io_bound() } else { state.reads.any() };
                state.read_pending = correlated;
                self.consider_boost(vm, Cause::PendingRead, correlated);
            }
            EventKind::BlockDone { vm, request } => {
                let state = self.vms.get_mut(&vm)?;
                let io_bound = state.read_done(request, now, config);
                let correlated = io_bound || !config.correlation;
                self.await_answer(vm);
                self.consider_boost(vm, Cause::Read, correlated);
            }
            EventKind::Lost { vm, count } => {
                self.troubles.lost = self.troubles.lost.saturating_add(count);
                self.ledger.distrust();
                match vm {
                    Some(vm) => {
                        let state = self.vms.get_mut(&vm)?;
                        state.lost = state.lost.saturating_add(count);
                        state.forget();
                    }
                    None => self.vms.values_mut().for_each(Vm::forget),
                }
            }
            EventKind::VmReset { vm } => {
                self.end_boosts(vm)?;
                self.vms.get_mut(&vm)?.reset(&self.config.tavs);
            }
            EventKind::VmPaused { vm } => {
                self.end_boosts(vm)?;
                self.vms.get_mut(&vm)?.paused = true;
            }
            EventKind::VmResumed { vm } => self.vms.get_mut(&vm)?.paused = false,
            EventKind::VcpuAdded { vm, vcpu } => {
                self.end_boost(vm, vcpu);
                self.ledger.distrust();
                self.vms.get_mut(&vm)?.plug(vcpu, &self.config.tavs);
            }
            EventKind::VcpuRemoved { vm, vcpu } => {
                self.vms.get_mut(&vm)?.vcpu(vcpu)?;
                self.end_boost(vm, vcpu);
                self.ledger.distrust();
                self.vms.get_mut(&vm)?.unplug(vcpu, &self.config.tavs);
            }
            EventKind::Weight { vm, weight } => self.vms.get_mut(&vm)?.weight = weight.max(1),
        }
        Some(())
    }

    fn remove(&mut self, vm: VmId) -> Option<()> {
        self.end_boosts(vm)?;
        if self.ledger.permille(vm) != 1000 {
            self.act(ActionKind::Share { vm, permille: 1000 });
        }
        self.ledger.remove(vm);
        self.vms.remove(&vm);
        Some(())
    }

    fn open_ledger(&mut self) {
        for state in self.vms.values_mut() {
            state.account(self.now, &self.config.tavs);
            state.restart_window();
        }
        let claims = self.vms.iter().map(|(vm, state)| state.claim(*vm));
        self.ledger.open(self.now, claims, &self.config.ledger);
    }

    fn settle(&mut self) {
        for state in self.vms.values_mut() {
            state.account(self.now, &self.config.tavs);
        }
        let claims: Vec<_> = self.vms.iter().map(|(vm, state)| state.claim(*vm)).collect();
        for (vm, permille) in self.ledger.settle(self.now, &claims, &self.config.ledger) {
            self.act(ActionKind::Share { vm, permille: permille.into() });
        }
        self.vms.values_mut().for_each(Vm::restart_window);
    }

    fn act(&mut self, kind: ActionKind) {
        self.actions.push_back(Action { at: self.now, kind });
    }
}
