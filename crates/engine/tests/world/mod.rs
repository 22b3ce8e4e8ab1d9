//! A VM on scripted events.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // A test that panics fails; not each needs all.

use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Config, Engine, Event, EventKind, Protocol, Reason, TaskId,
    Thread, Time, VmId,
};

pub const VM: VmId = VmId(1);
pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const HOG: TaskId = TaskId(0x1000_0000);
pub const ECHO: TaskId = TaskId(0x2000_0000);

/// A VM with one vCPU and one emulator thread on physical CPU 0, and a clock.
pub struct World {
    pub engine: Engine,
    pub now: u64,
}

impl World {
    pub fn new(config: Config) -> World {
        let mut world = World { engine: Engine::new(config).unwrap(), now: MS };
        world.feed(EventKind::VmAdded { vm: VM, vcpus: 1, weight: 1024 });
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
        world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
        world.pass(100 * MS);
        world
    }

    pub fn feed(&mut self, kind: EventKind) {
        self.engine.on_event(&Event { at: Time(self.now), kind });
    }

    pub fn pass(&mut self, nanos: u64) {
        self.now += nanos;
    }

    /// What was decided, but for what goes with the boost of a vCPU.
    pub fn actions(&mut self) -> Vec<ActionKind> {
        let along = |kind: &ActionKind| {
            matches!(
                kind,
                ActionKind::Watch { .. } | ActionKind::Boost { target: BoostTarget::Emulators, .. }
            )
        };
        self.all_actions().into_iter().filter(|kind| !along(kind)).collect()
    }

    pub fn all_actions(&mut self) -> Vec<ActionKind> {
        std::iter::from_fn(|| self.engine.poll_action()).map(|action: Action| action.kind).collect()
    }

    pub fn packet(&mut self, port: u16) {
        self.feed(EventKind::Packet { vm: VM, protocol: Protocol::Tcp, port });
    }

    /// The emulator thread takes the packet while the vCPU waits, then the vCPU goes on.
    pub fn deliver(&mut self) {
        let (vcpu, emulator) = (Thread::Vcpu(0), Thread::Emulator(0));
        self.feed(EventKind::Stop { vm: VM, thread: vcpu, runnable: true });
        self.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 0 });
        self.pass(50 * US);
        self.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
        self.feed(EventKind::Run { vm: VM, thread: vcpu, pcpu: 0 });
    }

    /// The guest handles the event: the task wakes, runs so long, and the hog goes on.
    pub fn handle(&mut self, task: TaskId, ran: u64) {
        self.pass(50 * US);
        self.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task });
        self.pass(ran);
        self.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG });
    }

    pub fn request(&mut self, port: u16, task: TaskId, ran: u64) {
        self.packet(port);
        self.deliver();
        self.handle(task, ran);
        self.pass(50 * MS);
    }

    pub fn learn_echo(&mut self) {
        for _ in 0..8 {
            self.request(7, ECHO, 200 * US);
        }
        self.actions();
    }

    pub fn reason(&self) -> Option<Reason> {
        self.engine.decision(VM).map(|decision| decision.verdict)
    }
}

/// The action that boosts or no longer boosts the vCPU.
pub fn boost(level: Boost) -> ActionKind {
    ActionKind::Boost { vm: VM, target: BoostTarget::Vcpu(0), level }
}
