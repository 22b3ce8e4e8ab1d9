//! Guests with several vCPUs: the boost goes where the event is handled.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Config, Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId,
};

const VM: VmId = VmId(1);
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const ECHO: TaskId = TaskId(0x2000_0000);
const VECTOR: u8 = 0x24;
const NET: u16 = 0;

fn hog(vcpu: u16) -> TaskId {
    TaskId(0x1000_0000 + u64::from(vcpu))
}

/// A VM with a hog on each vCPU, whose first vCPU takes the interrupts of the network device.
struct World {
    engine: Engine,
    now: u64,
    vcpus: u16,
}

impl World {
    fn new(vcpus: u16) -> World {
        let mut world = World { engine: Engine::new(Config::default()).unwrap(), now: MS, vcpus };
        world.feed(EventKind::VmAdded { vm: VM, vcpus, weight: 1024 });
        for vcpu in 0..vcpus {
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(vcpu), pcpu: vcpu });
            world.feed(EventKind::TaskSwitch { vm: VM, vcpu, task: hog(vcpu) });
        }
        world.now += 100 * MS;
        world
    }

    fn feed(&mut self, kind: EventKind) {
        self.engine.on_event(&Event { at: Time(self.now), kind });
    }

    fn packet(&mut self) {
        self.feed(EventKind::Packet { vm: VM, protocol: Protocol::Tcp, port: 7 });
    }

    /// The emulator thread hands the packet over, and the first vCPU is interrupted.
    fn deliver(&mut self, interrupts: bool) {
        let emulator = Thread::Emulator(0);
        self.feed(EventKind::Run { vm: VM, thread: emulator, pcpu: 9 });
        self.now += 30 * US;
        self.feed(EventKind::Stop { vm: VM, thread: emulator, runnable: false });
        if interrupts {
            self.feed(EventKind::Interrupt { vm: VM, vcpu: NET, vector: VECTOR });
        }
    }

    fn ipi(&mut self, to: u16) {
        self.now += 10 * US;
        self.feed(EventKind::Ipi { vm: VM, vcpu: NET, to: 1 << to, vector: 0xfd });
        self.feed(EventKind::IpiTaken { vm: VM, vcpu: to });
    }

    /// The echo task answers on a vCPU.
    fn answer(&mut self, vcpu: u16) {
        self.now += 50 * US;
        self.feed(EventKind::TaskSwitch { vm: VM, vcpu, task: ECHO });
        self.now += 200 * US;
        self.feed(EventKind::TaskSwitch { vm: VM, vcpu, task: hog(vcpu) });
    }

    fn learn(&mut self, server: u16, interrupts: bool) {
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
    fn boosts(&mut self) -> Vec<(u16, Boost)> {
        let actions = std::iter::from_fn(|| self.engine.poll_action());
        let boosts = actions.filter_map(|action| match action.kind {
            ActionKind::Boost { target: BoostTarget::Vcpu(vcpu), level, .. } => Some((vcpu, level)),
            _ => None,
        });
        boosts.collect()
    }

    fn boosted(&self) -> Vec<u16> {
        let vcpus = self.engine.explain(VM).unwrap().vcpus;
        (0..self.vcpus).filter(|vcpu| vcpus[usize::from(*vcpu)].boost > Boost::None).collect()
    }
}

#[test]
fn a_packet_boosts_who_takes_the_interrupt_and_where_the_task_ran_last() {
    let mut world = World::new(4);
    world.learn(2, true);
    world.packet();
    assert_eq!(world.boosted(), [0, 2]);
    world.deliver(true);
    world.ipi(2);
    assert_eq!(world.boosted(), [2], "the first vCPU has done its part");
    world.answer(2);
    assert_eq!(world.boosted(), []);
}

#[test]
fn the_boost_follows_the_interrupt_that_wakes_the_task_elsewhere() {
    let mut world = World::new(4);
    world.learn(2, true);
    world.packet();
    world.deliver(true);
    world.ipi(3);
    assert_eq!(world.boosted(), [2, 3]);
    world.now += 50 * US;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 3, task: ECHO });
    assert_eq!(world.boosted(), [3], "it was not to be where it ran last");
    world.now += 200 * US;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 3, task: hog(3) });
    assert_eq!(world.boosted(), []);
}

#[test]
fn a_task_that_wakes_where_the_interrupt_is_taken_is_served_there() {
    let mut world = World::new(2);
    world.learn(1, true);
    world.packet();
    world.deliver(true);
    assert_eq!(world.boosted(), [0, 1]);
    world.now += 3 * MS;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: ECHO });
    assert_eq!(world.boosted(), [0]);
    world.now += 200 * US;
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task: hog(0) });
    assert_eq!(world.boosted(), []);
}

#[test]
fn without_known_routes_halted_vcpus_are_boosted_too() {
    let mut world = World::new(4);
    world.learn(2, false);
    for vcpu in [1, 3] {
        world.feed(EventKind::Halt { vm: VM, vcpu });
    }
    world.packet();
    assert_eq!(world.boosted(), [1, 2, 3]);
    world.deliver(false);
    world.answer(2);
    assert_eq!(world.boosted(), []);
}

/// A task of several threads runs on two vCPUs at once; each is I/O-bound there.
#[test]
fn a_task_may_run_on_several_vcpus_at_once() {
    let mut world = World::new(2);
    world.learn(0, true);
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task: ECHO });
    world.packet();
    world.deliver(true);
    world.answer(0);
    assert_eq!(world.engine.explain(VM).unwrap().vcpus[1].current, Some(ECHO));
    world.now += 100 * MS;
    world.engine.on_deadline(Time(world.now));
    assert_eq!(world.boosted(), []);
}

/// Interrupts of others, from a vCPU that handles no event, move nothing.
#[test]
fn an_interrupt_that_is_not_for_the_event_moves_no_boost() {
    let mut world = World::new(4);
    world.learn(2, true);
    world.packet();
    world.ipi(3);
    assert_eq!(world.boosted(), [0, 2], "the packet has not been delivered");
    world.feed(EventKind::Ipi { vm: VM, vcpu: 2, to: u64::MAX, vector: 0xfd });
    world.feed(EventKind::Ipi { vm: VM, vcpu: 9, to: 1, vector: 0xfd });
    assert_eq!(world.boosted(), [0, 2]);
    assert_eq!(world.engine.troubles().unknown, 1);
}
