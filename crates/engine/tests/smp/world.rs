//! A VM that is told of, and whose boosts are looked at.

use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Config, Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId,
};

pub(crate) const VM: VmId = VmId(1);
pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const ECHO: TaskId = TaskId(0x2000_0000);
pub(crate) const VECTOR: u8 = 0x24;
pub(crate) const NET: u16 = 0;
/// The default of `tavs.io_threshold`.
pub(crate) const THRESHOLD: u64 = 500 * US;

pub(crate) fn hog(vcpu: u16) -> TaskId {
    TaskId(0x1000_0000 + u64::from(vcpu))
}

/// A VM with a hog on each vCPU, whose first vCPU takes the interrupts of the network device.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) now: u64,
    pub(crate) vcpus: u16,
    /// Hands packets over.
    pub(crate) emulator: Thread,
}

impl World {
    pub(crate) fn new(vcpus: u16) -> World {
        let engine = Engine::new(Config::default()).unwrap();
        let mut world = World { engine, now: MS, vcpus, emulator: Thread::Emulator(0) };
        world.feed(EventKind::VmAdded { vm: VM, vcpus, weight: 1024 });
        for vcpu in 0..vcpus {
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(vcpu), pcpu: vcpu });
            world.feed(EventKind::TaskSwitch { vm: VM, vcpu, task: hog(vcpu) });
        }
        world.now += 100 * MS;
        world
    }

    pub(crate) fn feed(&mut self, kind: EventKind) {
        self.engine.on_event(&Event { at: Time(self.now), kind });
    }

    pub(crate) fn packet(&mut self) {
        self.feed(EventKind::Packet { vm: VM, protocol: Protocol::Tcp, port: 7 });
    }

    /// The emulator thread hands the packet over, and the first vCPU is interrupted.
    pub(crate) fn deliver(&mut self, interrupts: bool) {
        let emulator = self.emulator;
        self.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 9 });
        self.now += 30 * US;
        self.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
        if interrupts {
            self.feed(EventKind::Interrupt { vm: VM, vcpu: NET, vector: VECTOR });
        }
    }

    pub(crate) fn ipi(&mut self, to: u16) {
        self.now += 10 * US;
        self.feed(EventKind::Ipi { vm: VM, vcpu: NET, to: 1 << to, vector: 0xfd });
        self.feed(EventKind::IpiTaken { vm: VM, vcpu: to });
    }

    /// The echo task answers on a vCPU.
    pub(crate) fn answer(&mut self, vcpu: u16) {
        self.now += 50 * US;
        self.feed(EventKind::TaskSwitch { vm: VM, vcpu, task: ECHO });
        self.now += 200 * US;
        self.feed(EventKind::TaskSwitch { vm: VM, vcpu, task: hog(vcpu) });
    }

    pub(crate) fn learn(&mut self, server: u16, interrupts: bool) {
        for _ in 0..40 {
            self.packet();
            self.deliver(interrupts);
            if interrupts && server != NET {
                self.ipi(server);
            }
            self.answer(server);
            self.now += 100 * MS;
            self.engine.on_deadline(Time(self.now));
        }
        self.boosts();
    }

    /// The vCPUs whose preference was changed, and to what.
    pub(crate) fn boosts(&mut self) -> Vec<(u16, Boost)> {
        let actions = std::iter::from_fn(|| self.engine.poll_action());
        let boosts = actions.filter_map(|action| match action.kind {
            ActionKind::Boost { target: BoostTarget::Vcpu(vcpu), level, .. } => Some((vcpu, level)),
            _ => None,
        });
        boosts.collect()
    }

    pub(crate) fn boosted(&self) -> Vec<u16> {
        let vcpus = self.engine.explain(VM).unwrap().vcpus;
        (0..self.vcpus).filter(|vcpu| vcpus[usize::from(*vcpu)].boosted).collect()
    }
}
