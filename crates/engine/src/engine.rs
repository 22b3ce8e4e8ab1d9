//! The engine: events in, actions out.

mod vm;

pub(crate) use vm::Vm;

use crate::action::{Action, ActionKind};
use crate::capabilities::{Capabilities, Standing};
use crate::config::{self, Config, ConfigError, VmPolicy};
use crate::event::{Event, EventKind, TaskId, Thread, Time, VmId};
use crate::explain::{Cause, Decision, Recent, VmExplain};
use crate::infer::Device;
use crate::knob::{Account, Ledger};
use crate::policy::{Ask, Claim, Fact, Owner, Target};
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// More VMs than any host runs: a bound on memory if a source goes wrong.
pub(crate) const MAX_VMS: usize = 4096;

/// Rounds of the world's scheduler, each a slice for every VM, in a settlement of the ledger at least.
const ROUNDS: u64 = 4;
/// Longest time between settlements.
const LONGEST: Duration = Duration::from_secs(10);

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
    pub(crate) world: Capabilities,
    pub(crate) now: Time,
    pub(crate) vms: BTreeMap<VmId, Vm>,
    /// When each claim ends by itself; the same times as in the claims.
    #[serde(skip)]
    pub(crate) ends: BTreeSet<End>,
    /// Empty; kept for its memory.
    #[serde(skip)]
    asks: Vec<Ask>,
    pub(crate) ledger: Ledger,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) troubles: Troubles,
}

/// When a claim ends by itself, and which.
pub(crate) type End = (Time, VmId, Owner, Target);

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
        for vm in self.vms.values_mut() {
            vm.guest.tasks.reconsider(&config.tavs);
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
        state.own = policy;
        if policy.off {
            self.tell(vm, Fact::Over);
        }
        Ok(())
    }

    /// Tells the engine what happened.
    pub fn on_event(&mut self, event: &Event) {
        if event.at < self.now {
            self.troubles.late = self.troubles.late.saturating_add(1);
        }
        self.now = self.now.max(event.at);
        self.expire();
        if self.handle(event.kind).is_none() {
            self.troubles.unknown = self.troubles.unknown.saturating_add(1);
        }
    }

    /// When the engine wants to be called next, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let claim = self.ends.first().map(|(until, ..)| *until);
        [claim, self.ledger.next()].into_iter().flatten().min()
    }

    /// Tells the engine the time.
    pub fn on_deadline(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.expire();
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

    /// What the world can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.world
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
        self.vms.get(&vm).map(|state| state.log.recent(now.max(self.now), &state.guest.ports))
    }

    /// Bytes held for a VM, from the capacities of its tables; `None` if it is not followed.
    #[must_use]
    pub fn memory(&self, vm: VmId) -> Option<usize> {
        self.vms.get(&vm).map(Vm::bytes)
    }

    /// The degree of belief that a task of a VM is I/O-bound; `None` if the task or VM is not known. Unlike [`explain`](Engine::explain) it costs next to nothing.
    #[must_use]
    pub fn belief(&self, vm: VmId, task: TaskId) -> Option<i32> {
        self.vms.get(&vm)?.guest.tasks.belief(task)
    }

    /// The last decision about a VM; `None` if there was none.
    #[must_use]
    pub fn decision(&self, vm: VmId) -> Option<Decision> {
        self.vms.get(&vm)?.log.last()
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
                self.tell_of_delivery(vm);
            }
            EventKind::Stop { vm, thread, runnable } => {
                let state = self.vms.get_mut(&vm)?;
                state.account(thread, now, config);
                state.guest.stop(thread, runnable);
                match thread {
                    Thread::Emulator(_) if !runnable => {
                        self.tell(vm, Fact::EmulatorSlept);
                    }
                    Thread::Vcpu(vcpu) if !runnable && !state.guest.is_halted(vcpu) => {
                        self.tell(vm, Fact::Stalled { vcpu });
                    }
                    Thread::Emulator(_) | Thread::Vcpu(_) => {}
                }
            }
            EventKind::Wake { vm, thread, by } => {
                let state = self.vms.get_mut(&vm)?;
                state.account(thread, now, config);
                state.guest.wake(thread, by, config);
                if let (Thread::Emulator(_), Some(vcpu)) = (thread, by)
                    && state.guest.doorbell(vcpu)
                {
                    self.tell(vm, Fact::Answered { vcpu });
                }
            }
            EventKind::TaskSwitch { vm, vcpu, task } => self.switch(vm, vcpu, task, true)?,
            EventKind::TaskSeen { vm, vcpu, task } => self.switch(vm, vcpu, task, false)?,
            EventKind::Halt { vm, vcpu } => {
                let state = self.vms.get_mut(&vm)?;
                state.account(Thread::Vcpu(vcpu), now, config);
                state.guest.vcpu(vcpu)?;
                state.guest.halt(vcpu, config);
                self.tell(vm, Fact::Halted { vcpu });
            }
            EventKind::Resume { vm, vcpu } => {
                let state = self.vms.get_mut(&vm)?;
                state.account(Thread::Vcpu(vcpu), now, config);
                state.guest.vcpu(vcpu)?;
                if let Some(dispatch) = state.guest.resume(vcpu, now, config) {
                    self.tell(vm, Fact::Dispatched { vcpu, dispatch });
                }
            }
            EventKind::Ipi { vm, vcpu, to, .. } => {
                let state = self.vms.get_mut(&vm)?;
                state.guest.vcpu(vcpu)?;
                state.account_all(now, config);
                if state.guest.ipi(vcpu, to, config) {
                    self.tell(vm, Fact::HandedOn { from: vcpu, to });
                }
            }
            EventKind::Interrupt { vm, vcpu, vector } => {
                let guest = &mut self.vms.get_mut(&vm)?.guest;
                guest.vcpu(vcpu)?;
                guest.interrupt(vcpu, vector);
            }
            EventKind::IpiTaken { vm, vcpu } => {
                let guest = &mut self.vms.get_mut(&vm)?.guest;
                guest.vcpu(vcpu)?;
                guest.ipi_taken(vcpu);
            }
            EventKind::Packet { vm, protocol, port } => {
                let state = self.vms.get_mut(&vm)?;
                let correlated = !config.correlation || state.guest.ports.predicts_io_bound((protocol, port));
                let cause = Cause::Packet { protocol, port };
                self.tell(vm, Fact::Event { cause, device: Device::Network, correlated });
                let state = self.vms.get_mut(&vm)?;
                state.account_all(now, &self.config.tavs);
                state.guest.packet((protocol, port), &self.config.tavs);
                self.tell_of_delivery(vm);
            }
            EventKind::BlockRead { vm, request } => self.vms.get_mut(&vm)?.guest.read(request, config),
            EventKind::BlockPending { vm } => {
                let guest = &mut self.vms.get_mut(&vm)?.guest;
                // Which read it is for is not said.
                let correlated =
                    if config.correlation { guest.reads.all_io_bound() } else { guest.reads.any() };
                guest.read_pending = correlated;
                self.tell(vm, Fact::Event { cause: Cause::PendingRead, device: Device::Disk, correlated });
            }
            EventKind::BlockDone { vm, request } => {
                let state = self.vms.get_mut(&vm)?;
                state.account_all(now, config);
                let correlated = state.guest.read_done(request, config) || !config.correlation;
                self.tell_of_delivery(vm);
                self.tell(vm, Fact::Event { cause: Cause::Read, device: Device::Disk, correlated });
            }
            EventKind::Lost { vm, count } => {
                self.troubles.lost = self.troubles.lost.saturating_add(count);
                self.ledger.distrust();
                match vm {
                    Some(vm) => {
                        let state = self.vms.get_mut(&vm)?;
                        state.lost = state.lost.saturating_add(count);
                        state.guest.forget();
                    }
                    None => self.vms.values_mut().for_each(|vm| vm.guest.forget()),
                }
            }
            EventKind::VmReset { vm } => {
                self.tell(vm, Fact::Over)?;
                self.vms.get_mut(&vm)?.guest.reset(&self.config.tavs);
            }
            EventKind::VmPaused { vm } => {
                self.tell(vm, Fact::Over)?;
                self.vms.get_mut(&vm)?.paused = true;
            }
            EventKind::VmResumed { vm } => self.vms.get_mut(&vm)?.paused = false,
            EventKind::VcpuAdded { vm, vcpu } => {
                self.tell(vm, Fact::VcpuOver { vcpu })?;
                self.ledger.distrust();
                self.vms.get_mut(&vm)?.plug(vcpu);
            }
            EventKind::VcpuRemoved { vm, vcpu } => {
                self.vms.get_mut(&vm)?.guest.vcpu(vcpu)?;
                self.tell(vm, Fact::VcpuOver { vcpu });
                self.ledger.distrust();
                self.vms.get_mut(&vm)?.unplug(vcpu);
            }
            EventKind::Weight { vm, weight } => self.vms.get_mut(&vm)?.weight = weight.max(1),
            EventKind::VcpuWeight { vm, vcpu, permille } => {
                let seen = &mut self.vms.get_mut(&vm)?.guest.vcpu(vcpu)?.seen;
                seen.weight = Some(permille).filter(|permille| *permille != 1000);
                if self.vms.get(&vm)?.is_uneven()
                    && !self.world.charges_boosts
                    && self.ledger.next().is_none()
                {
                    self.open_ledger();
                }
            }
            EventKind::World(world) => self.enter_world(world),
            EventKind::Standing { vm, standing } => self.set_standing(vm, standing)?,
        }
        Some(())
    }

    fn switch(&mut self, vm: VmId, vcpu: u16, task: TaskId, exactly: bool) -> Option<()> {
        let state = self.vms.get_mut(&vm)?;
        state.account(Thread::Vcpu(vcpu), self.now, &self.config.tavs);
        let dispatch = state.guest.switch(vcpu, task, exactly, self.now, &self.config.tavs)?;
        // One that is seen to go on has not taken the CPU from the task that the event is for.
        if exactly || dispatch.io_bound || !dispatch.again {
            self.tell(vm, Fact::Dispatched { vcpu, dispatch });
        }
        Some(())
    }

    fn tell_of_delivery(&mut self, vm: VmId) {
        if self.vms.get_mut(&vm).is_some_and(|state| state.guest.take_delivered()) {
            self.tell(vm, Fact::Delivered);
        }
    }

    /// Tells the policies what happened to a VM, and does what they ask; `None` if it is not followed.
    fn tell(&mut self, vm: VmId, fact: Fact) -> Option<()> {
        let state = self.vms.get_mut(&vm)?;
        if state.partial_boost.is_concerned(&fact) {
            let mut asks = std::mem::take(&mut self.asks);
            let debt = self.ledger.debt(vm);
            state.decide(fact, self.now, &self.config, self.world, debt, &mut asks);
            self.apply(vm, asks);
        }
        Some(())
    }

    /// Does what policies ask, and keeps the emptied list for the next time.
    fn apply(&mut self, vm: VmId, mut asks: Vec<Ask>) {
        for ask in asks.drain(..) {
            match ask {
                Ask::Claim(claim) => self.claim(vm, claim),
                Ask::End(owner, target) => self.end_claim(vm, owner, target),
            }
        }
        self.asks = asks;
    }

    fn claim(&mut self, vm: VmId, claim: Claim) {
        let boosts = matches!(claim.target, Target::Boost(_));
        if boosts && self.ledger.next().is_none() {
            self.open_ledger();
        }
        self.change(vm, claim.target, |state, ends| {
            if let Some(until) = state.claims.set(claim) {
                ends.remove(&(until, vm, claim.owner, claim.target));
            }
            ends.insert((claim.until, vm, claim.owner, claim.target));
        });
    }

    fn end_claim(&mut self, vm: VmId, owner: Owner, target: Target) {
        self.change(vm, target, |state, ends| {
            if let Some(until) = state.claims.end(owner, target) {
                ends.remove(&(until, vm, owner, target));
            }
        });
    }

    /// Changes claims on a knob of a VM whose times are up to date. The winner is told where it is another one now.
    fn change(&mut self, vm: VmId, target: Target, change: impl FnOnce(&mut Vm, &mut BTreeSet<End>)) {
        let Some(state) = self.vms.get_mut(&vm) else { return };
        let before = state.claims.value(target);
        change(state, &mut self.ends);
        if state.claims.value(target) == before {
            return;
        }
        let kind = match target {
            Target::Boost(target) => ActionKind::Boost { vm, target, level: state.claims.level(target) },
            Target::Watch(vcpu) => ActionKind::Watch { vm, vcpu, on: before == 0 },
        };
        self.act(kind);
    }

    /// Ends the claims whose time is over, but those that their owners want to go on.
    fn expire(&mut self) {
        if self.ends.first().is_some_and(|(until, ..)| *until <= self.now) {
            self.end_those_over();
        }
    }

    #[cold]
    fn end_those_over(&mut self) {
        while let Some((until, vm, owner, target)) =
            self.ends.first().copied().filter(|(until, ..)| *until <= self.now)
        {
            let Some(state) = self.vms.get_mut(&vm) else {
                self.ends.remove(&(until, vm, owner, target));
                continue;
            };
            let debt = self.ledger.debt(vm);
            let mut asks = std::mem::take(&mut self.asks);
            let later = state.expire(target, self.now, &self.config, self.world, debt, &mut asks);
            match later.filter(|later| *later > self.now) {
                Some(until) => {
                    let value = state.claims.value(target);
                    self.claim(vm, Claim { owner, target, value, until });
                }
                None => self.end_claim(vm, owner, target),
            }
            self.apply(vm, asks);
        }
    }

    fn remove(&mut self, vm: VmId) -> Option<()> {
        self.let_go(vm)?;
        self.vms.remove(&vm);
        Some(())
    }

    /// Asks for nothing about a VM any more.
    fn let_go(&mut self, vm: VmId) -> Option<()> {
        self.tell(vm, Fact::Over)?;
        if self.ledger.permille(vm) != 1000 {
            self.act(ActionKind::Share { vm, permille: 1000 });
        }
        self.ledger.remove(vm);
        Some(())
    }

    fn enter_world(&mut self, world: Capabilities) {
        let before = std::mem::replace(&mut self.world, world);
        if (before.acts, before.charges_boosts) == (world.acts, world.charges_boosts) {
            return;
        }
        // What there is was decided for another world.
        let vms: Vec<VmId> = self.vms.keys().copied().collect();
        for vm in vms {
            let _ = self.let_go(vm);
        }
        self.ledger = Ledger::default();
    }

    fn set_standing(&mut self, vm: VmId, standing: Standing) -> Option<()> {
        let before = std::mem::replace(&mut self.vms.get_mut(&vm)?.standing, standing);
        if before != standing {
            self.let_go(vm)?;
            self.ledger.distrust();
        }
        Some(())
    }

    /// What the VMs got and wanted of what the ordinary scheduler has to give; what has a reservation gets nothing of that.
    fn accounts(&mut self) -> Vec<Account> {
        for state in self.vms.values_mut() {
            state.account_all(self.now, &self.config.tavs);
        }
        let vms = self.vms.iter().filter(|(_, state)| state.standing != Standing::Reserved);
        let repays = self.world.acts && !self.world.charges_boosts;
        let so_far = |(vm, state): (&VmId, &Vm)| {
            let account = state.so_far(*vm);
            Account { acting: account.acting && repays, ..account }
        };
        vms.map(so_far).collect()
    }

    fn open_ledger(&mut self) {
        for state in self.vms.values_mut() {
            state.account_all(self.now, &self.config.tavs);
            state.restart_window();
        }
        let accounts = self.accounts();
        let config = self.ledger_config();
        self.ledger.open(self.now, accounts.into_iter(), &config);
    }

    fn settle(&mut self) {
        let accounts = self.accounts();
        let config = self.ledger_config();
        for (vm, permille) in self.ledger.settle(self.now, &accounts, &config) {
            self.act(ActionKind::Share { vm, permille });
        }
        // A boost that is on may yet give something.
        if !self.ends.is_empty() {
            self.ledger.keep_open(self.now, &config);
        }
        self.vms.values_mut().for_each(Vm::restart_window);
    }

    /// The ledger's parameters, its times long enough for the world: in a window each VM must have had some turns, or what it got by
    /// chance is taken for an error.
    fn ledger_config(&self) -> config::Ledger {
        let mut config = self.config.ledger.clone();
        let vms = u64::try_from(self.vms.len()).unwrap_or(u64::MAX);
        let rounds = self.world.slice_ns.saturating_mul(vms).saturating_mul(ROUNDS);
        let least = Duration::from_nanos(rounds).min(LONGEST);
        if config.period < least {
            let horizons = config.horizon.as_secs_f64() / config.period.as_secs_f64();
            config.period = least;
            config.horizon = least.mul_f64(horizons).min(LONGEST * 6);
        }
        config
    }

    fn act(&mut self, kind: ActionKind) {
        self.actions.push_back(Action { at: self.now, kind });
    }
}

/// A state whose parts were read, but not checked; field by field as `Engine` is serialised.
#[derive(Deserialize)]
struct Saved {
    config: Config,
    world: Capabilities,
    now: Time,
    vms: BTreeMap<VmId, Vm>,
    ledger: Ledger,
    actions: VecDeque<Action>,
    troubles: Troubles,
}

impl TryFrom<Saved> for Engine {
    type Error = StateError;

    fn try_from(saved: Saved) -> Result<Engine, StateError> {
        let Saved { config, world, now, mut vms, ledger, actions, troubles } = saved;
        config.validate()?;
        check(vms.len() <= MAX_VMS, "more VMs than any host runs")?;
        for vm in vms.values_mut() {
            vm.restore(now, &config.tavs)?;
        }
        ledger.check(now, |vm| vms.contains_key(&vm))?;
        let end = |vm, claim: &Claim| (claim.until, vm, claim.owner, claim.target);
        let ends: BTreeSet<End> =
            vms.iter().flat_map(|(vm, state)| state.claims.iter().map(|claim| end(*vm, claim))).collect();
        let boosts = ends.iter().any(|(.., target)| matches!(target, Target::Boost(_)));
        check(!boosts || ledger.next().is_some(), "a boost without a ledger")?;
        Ok(Engine { config, world, now, vms, ends, asks: Vec::new(), ledger, actions, troubles })
    }
}
