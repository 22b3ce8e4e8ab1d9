//! One vCPU that serves requests in the order in which they come.

use frontdesk_sim::{
    Entity, EntitySpec, Flow, GroupSpec, Machine, NEVER, Nanos, PcpuSet, Rng, Timer, Work, eevdf,
};
use std::collections::VecDeque;

struct Server {
    arrivals: Rng,
    services: Rng,
    between: Nanos,
    mean: Nanos,
    service: fn(&mut Rng, Nanos) -> Nanos,
    timer: Timer,
    /// When each waiting request came.
    queue: VecDeque<Nanos>,
    left: Nanos,
    waits: Vec<f64>,
}

impl Server {
    /// Begins with the next request, if there is one.
    #[allow(clippy::cast_precision_loss)]
    fn begin(&mut self, now: Nanos) -> bool {
        let Some(came) = self.queue.pop_front() else { return false };
        self.waits.push((now - came) as f64);
        self.left = (self.service)(&mut self.services, self.mean);
        true
    }
}

impl Work for Server {
    fn ran(&mut self, _: Entity, time: Nanos) {
        self.left -= time;
    }

    fn next(&mut self, _: Entity) -> Nanos {
        self.left
    }

    fn reached(&mut self, machine: &mut Machine, _: Entity) -> Flow {
        if self.begin(machine.now()) { Flow::Continue } else { Flow::Block }
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        self.queue.push_back(machine.now());
        machine.arm(self.timer, machine.now() + self.arrivals.exponential(self.between));
        if !machine.host().is_runnable(Entity(token)) && self.begin(machine.now()) {
            machine.wake(Entity(token));
        }
    }
}

/// How long each of so many requests waits before it is served.
pub(crate) fn waits(
    requests: usize,
    between: Nanos,
    mean: Nanos,
    service: fn(&mut Rng, Nanos) -> Nanos,
) -> Vec<f64> {
    let mut machine = Machine::new(1, eevdf(), 0);
    let group = machine.add_group(GroupSpec::of_weight(1024)).unwrap();
    let spec = EntitySpec { group, affinity: PcpuSet::first(1), nice: 0, emulator: false };
    let entity = machine.add_entity(spec).unwrap();
    let timer = machine.add_timer(entity.0);
    machine.start();
    machine.arm(timer, 0);
    let mut server = Server {
        arrivals: Rng::new(9, 1),
        services: Rng::new(9, 2),
        between,
        mean,
        service,
        timer,
        queue: VecDeque::new(),
        left: NEVER,
        waits: Vec::new(),
    };
    while server.waits.len() < requests {
        machine.run_until(&mut server, machine.now() + 1_000 * between).unwrap();
    }
    server.waits.truncate(requests);
    server.waits
}
