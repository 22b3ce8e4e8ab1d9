//! The engine: events in, actions out.
//!
//! It routes events to the rooms and what these find to the next ones, and decides nothing itself.

mod claims;
mod looking;
mod settling;
mod state;
mod vm;

pub use state::{Engine, Troubles};

use crate::action::{Action, ActionKind};
use crate::capabilities::{Capabilities, Standing};
use crate::config::{Config, ConfigError, VmPolicy};
use crate::event::{Event, EventKind, MediaDevice, Protocol, TaskId, Thread, Time, VmId};
use crate::explain::Cause;
use crate::infer::{Device, EpisodeCause, Shown, bit};
use crate::knob::Ledger;
use crate::policy::Fact;
use looking::first_look;
use state::MAX_VMS;
use vm::{Situation, Vm};

impl Engine {
    /// Takes other parameters from now on, keeping all that is known. `tavs.counter_bits` and
    /// `tavs.tasks_per_vcpu` are the sizes of tables: they hold for VMs and vCPUs that come after.
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

    /// Sets what holds for one VM only. A VM that is not followed is none of the engine's business; one that
    /// is added anew begins without.
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
        [claim, self.ledger.next(), self.look].into_iter().flatten().min()
    }

    /// When the engine settles what VMs are due and got; `None` while it has no reason to. What they ran is
    /// to be told by then.
    #[must_use]
    pub fn next_settlement(&self) -> Option<Time> {
        self.ledger.next()
    }

    /// Tells the engine the time.
    pub fn on_deadline(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.expire();
        if self.ledger.next().is_some_and(|next| next <= self.now) {
            self.settle();
        }
        if self.look.is_some_and(|look| look <= self.now) {
            self.look();
        }
    }

    /// The next decision, in the order in which they were made.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
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
                if runnable {
                    self.look = self.look.or_else(|| first_look(&self.config, self.world, now));
                }
                let state = self.vms.get_mut(&vm)?;
                state.account(thread, now, config);
                if let Thread::Vcpu(vcpu) = thread {
                    state.guest.heard(vcpu, self.world.silence_ns);
                }
                state.guest.stop(thread, runnable, config);
                match thread {
                    Thread::Emulator(_) if !runnable => {
                        self.tell(vm, Fact::EmulatorSlept);
                    }
                    Thread::Vcpu(vcpu) if !runnable && !state.guest.rests(vcpu) => {
                        self.tell(vm, Fact::Stalled { vcpu });
                    }
                    Thread::Emulator(_) | Thread::Vcpu(_) => {}
                }
            }
            EventKind::Wake { vm, thread, by } => {
                self.look = self.look.or_else(|| first_look(&self.config, self.world, now));
                let state = self.vms.get_mut(&vm)?;
                state.account(thread, now, config);
                let halted = state.guest.is_halted(thread);
                state.guest.wake(thread, by, config);
                if let (Thread::Vcpu(vcpu), None, true) = (thread, by, halted) {
                    self.tell(vm, Fact::Media { vcpu: Some(vcpu) });
                    return Some(());
                }
                match (thread, by) {
                    (Thread::Emulator(_), Some(vcpu)) if state.guest.doorbell(vcpu) => {
                        self.tell(vm, Fact::Answered { vcpu });
                    }
                    (Thread::Vcpu(vcpu), Some(from)) if !state.guest.rests(vcpu) => {
                        self.tell(vm, Fact::Inherited { vcpu, from });
                    }
                    _ => {}
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
                self.tell_of_frame(vm);
            }
            EventKind::Resume { vm, vcpu } => {
                let state = self.vms.get_mut(&vm)?;
                state.account(Thread::Vcpu(vcpu), now, config);
                state.guest.vcpu(vcpu)?;
                if let Some(dispatch) = state.guest.resume(vcpu, now, config) {
                    state.guest.scheduled(vcpu, &self.config.asymmetric);
                    self.tell(vm, Fact::Dispatched { vcpu, dispatch });
                    self.tell_of_frame(vm);
                }
            }
            EventKind::Ipi { vm, vcpu, to, .. } => {
                let state = self.vms.get_mut(&vm)?;
                state.guest.vcpu(vcpu)?;
                state.account_all(now, config);
                if state.guest.ipi(vcpu, to, config) {
                    self.tell(vm, Fact::HandedOn { from: vcpu, to });
                }
                let (state, config) = (self.vms.get_mut(&vm)?, &self.config.tavs);
                if state.guest.poke(vcpu, to, now, config) {
                    self.tell(vm, Fact::Interrupted { to: to & !bit(vcpu) });
                }
            }
            EventKind::Interrupt { vm, vcpu, vector } => {
                let state = self.vms.get_mut(&vm)?;
                state.guest.vcpu(vcpu)?;
                state.account(Thread::Vcpu(vcpu), now, config);
                state.guest.interrupt(vcpu, vector);
                self.tell(vm, Fact::Taken { vcpu });
                let state = self.vms.get_mut(&vm)?;
                if state.guest.episode(now).is_some() {
                    self.tell(vm, Fact::Interrupted { to: bit(vcpu) });
                }
            }
            EventKind::IpiTaken { vm, vcpu } => {
                let guest = &mut self.vms.get_mut(&vm)?.guest;
                guest.vcpu(vcpu)?;
                guest.ipi_taken(vcpu, now);
            }
            EventKind::Packet { vm, protocol, port } => {
                let state = self.vms.get_mut(&vm)?;
                let correlated = state.awaits(protocol, port, config);
                let cause = Cause::Packet { protocol, port };
                state.guest.queued();
                self.tell(vm, Fact::Event { cause, device: Device::Network, correlated });
                let state = self.vms.get_mut(&vm)?;
                state.account_all(now, &self.config.tavs);
                state.guest.packet((protocol, port), now, &self.config.tavs);
                self.tell_of_delivery(vm);
                if protocol == Protocol::Tcp && self.config.asymmetric.ports.contains(&port) {
                    self.begin_episode(vm, EpisodeCause::Port(port))?;
                }
            }
            EventKind::Reply { vm, protocol, port } => {
                let state = self.vms.get_mut(&vm)?;
                state.account_all(now, config);
                if state.guest.replied((protocol, port)) {
                    self.tell(vm, Fact::Replied);
                }
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
                match vm {
                    Some(vm) => {
                        let state = self.vms.get_mut(&vm)?;
                        state.unsure = true;
                        state.lost = state.lost.saturating_add(count);
                        state.guest.forget();
                    }
                    None => {
                        self.ledger.distrust();
                        self.vms.values_mut().for_each(|vm| vm.guest.forget());
                    }
                }
            }
            EventKind::VmReset { vm } => {
                self.tell(vm, Fact::Over)?;
                self.vms.get_mut(&vm)?.guest.reset(&self.config.tavs);
            }
            EventKind::VmPaused { vm } => {
                self.tell(vm, Fact::Over)?;
                let state = self.vms.get_mut(&vm)?;
                state.paused = true;
                let _ = state.guest.end_episode(now);
            }
            EventKind::VmResumed { vm } => self.vms.get_mut(&vm)?.paused = false,
            EventKind::VcpuAdded { vm, vcpu } => {
                self.tell(vm, Fact::VcpuOver { vcpu })?;
                let state = self.vms.get_mut(&vm)?;
                state.unsure = true;
                state.plug(vcpu);
            }
            EventKind::VcpuRemoved { vm, vcpu } => {
                self.vms.get_mut(&vm)?.guest.vcpu(vcpu)?;
                self.tell(vm, Fact::VcpuOver { vcpu });
                let state = self.vms.get_mut(&vm)?;
                state.unsure = true;
                state.unplug(vcpu);
            }
            EventKind::Limited { vm, limited } => self.vms.get_mut(&vm)?.limited = limited,
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
            EventKind::DisplayUpdate { vm, region } => {
                let shown = self.vms.get_mut(&vm)?.guest.display_update(region, now);
                self.tell_shown(vm, shown, false);
                self.tell(vm, Fact::Media { vcpu: None });
            }
            EventKind::DeviceAccess { vm, vcpu, device, in_interrupt } => {
                self.vms.get_mut(&vm)?.guest.device_access(vcpu, device, in_interrupt, now)?;
                if in_interrupt {
                    self.tell(vm, Fact::Media { vcpu: None });
                }
                if device == MediaDevice::Sound {
                    self.tell(vm, Fact::Played);
                }
                let (state, config) = (self.vms.get_mut(&vm)?, &self.config.asymmetric);
                if device == MediaDevice::Sound && state.guest.sound(vcpu, in_interrupt, now, config) {
                    self.begin_episode(vm, EpisodeCause::Sound)?;
                }
            }
            EventKind::GpuDone { vm } => {
                let task = self.vms.get_mut(&vm)?.guest.gpu_done(now);
                self.tell_shown(vm, task.map(|task| Shown { task, missed: false }), true);
                self.tell(vm, Fact::Media { vcpu: None });
            }
            EventKind::Timer { vm, vcpu } => {
                self.vms.get_mut(&vm)?.guest.vcpu(vcpu)?;
                self.tell(vm, Fact::Media { vcpu: Some(vcpu) });
            }
            EventKind::Input { vm, input } => {
                let state = self.vms.get_mut(&vm)?;
                state.account_all(now, config);
                if state.guest.input(input, now, &self.config.asymmetric) {
                    self.tell(vm, Fact::Episode);
                }
            }
            EventKind::Isolated { vm, slow } => {
                let state = self.vms.get_mut(&vm)?;
                state.account_all(now, config);
                if state.guest.isolate(slow, now) {
                    self.tell(vm, Fact::Episode);
                }
            }
            EventKind::OthersRan { vm, pcpu, ran_ns, waited_ns } => {
                if !self.vms.get_mut(&vm)?.others_ran(pcpu, [ran_ns, waited_ns], self.now) {
                    self.ledger.leave_out(vm, ran_ns);
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
        state.guest.heard(vcpu, self.world.silence_ns);
        let dispatch = state.guest.switch(vcpu, task, exactly, self.now, &self.config.tavs)?;
        if !dispatch.again {
            state.guest.scheduled(vcpu, &self.config.asymmetric);
        }
        // One that is seen to go on has not taken the CPU from the task that the event is for.
        if exactly || dispatch.io_bound || !dispatch.again {
            self.tell(vm, Fact::Dispatched { vcpu, dispatch });
        }
        self.tell_of_frame(vm);
        Some(())
    }

    /// Whose frame it was may be known only when the next task runs.
    fn tell_of_frame(&mut self, vm: VmId) {
        let shown = self.vms.get_mut(&vm).and_then(|state| state.guest.take_shown());
        self.tell_shown(vm, shown, false);
    }

    fn tell_shown(&mut self, vm: VmId, shown: Option<Shown>, gpu: bool) {
        if let Some(shown) = shown {
            self.tell(vm, Fact::Shown { shown, gpu });
        }
    }

    fn tell_of_delivery(&mut self, vm: VmId) {
        if self.vms.get_mut(&vm).is_some_and(|state| state.guest.take_delivered()) {
            self.tell(vm, Fact::Delivered);
        }
    }

    /// Tells the policies what happened to a VM, and does what they ask; `None` if it is not followed.
    fn tell(&mut self, vm: VmId, fact: Fact) -> Option<()> {
        let contended = matches!(fact, Fact::Episode) && self.is_contended(vm);
        if self.vms.get(&vm)?.is_concerned(&fact) {
            let mut asks = std::mem::take(&mut self.asks);
            let debt = self.debt(vm);
            let state = self.vms.get_mut(&vm)?;
            let situation =
                Situation { now: self.now, config: &self.config, world: self.world, debt, contended };
            let waited = state.waits(self.now);
            state.decide(fact, &situation, &mut asks);
            self.apply(vm, asks);
            self.postpone(vm, waited);
        }
        Some(())
    }

    /// Whether other VMs, or others of its own vCPUs, want the physical CPUs of one whose vCPUs had to wait
    /// for them.
    fn is_contended(&self, vm: VmId) -> bool {
        let Some(state) = self.vms.get(&vm).filter(|state| state.guest.is_kept_from_running(self.now)) else {
            return false;
        };
        state.crowds_itself()
            || self.vms.iter().any(|(other, rival)| *other != vm && rival.wants_cpus_of(state))
    }

    /// An episode begins, if it is to.
    fn begin_episode(&mut self, vm: VmId, cause: EpisodeCause) -> Option<()> {
        let state = self.vms.get_mut(&vm)?;
        state.account_all(self.now, &self.config.tavs);
        if state.guest.begin_episode(cause, self.now, &self.config.asymmetric) {
            self.tell(vm, Fact::Episode);
        }
        Some(())
    }

    fn remove(&mut self, vm: VmId) -> Option<()> {
        self.let_go(vm)?;
        self.vms.remove(&vm);
        Some(())
    }

    /// Asks for nothing about a VM any more.
    fn let_go(&mut self, vm: VmId) -> Option<()> {
        let state = self.vms.get_mut(&vm)?;
        let entitled = state.claims.entitlement();
        let compensated = std::mem::replace(&mut state.compensation, 1000) != 1000;
        let changed = compensated || self.ledger.permille(vm) != 1000;
        self.ledger.remove(vm);
        self.tell(vm, Fact::Over)?;
        // The end of a claim to more has told it.
        if changed && entitled == 1000 {
            self.act(ActionKind::Share { vm, permille: 1000 });
        }
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
        self.look = None;
    }

    fn set_standing(&mut self, vm: VmId, standing: Standing) -> Option<()> {
        let before = std::mem::replace(&mut self.vms.get_mut(&vm)?.standing, standing);
        if before != standing {
            self.let_go(vm)?;
            self.vms.get_mut(&vm)?.unsure = true;
        }
        Some(())
    }

    fn act(&mut self, kind: ActionKind) {
        self.actions.push_back(Action { at: self.now, kind });
    }
}
