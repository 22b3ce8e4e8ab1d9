//! Events per second of the engine on one core, with task-aware boosting on.
//!
//! The stream is what a host with mixed VMs gives: each request is a packet, the emulator thread's run, the vCPU's,
//! and the guest's task switches, beside the time slices of CPU-bound VMs.

use divan::counter::ItemsCount;
use frontdesk_engine::{Config, Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId};

fn main() {
    divan::main();
}

fn stream(vms: u32, requests: u64) -> Vec<Event> {
    let mut now = 0;
    let mut events = Vec::new();
    let mut push = |step: u64, kind| {
        now += step;
        events.push(Event { at: Time(now), kind });
    };
    for vm in (0..vms).map(VmId) {
        push(0, EventKind::VmAdded { vm, vcpus: 1, weight: 1024 });
    }
    for request in 0..requests {
        let vm = VmId(u32::try_from(request % u64::from(vms)).unwrap_or(0));
        let (vcpu, emulator) = (Thread::Vcpu(0), Thread::Emulator(0));
        let task = |id: u64| EventKind::TaskSwitch { vm, vcpu: 0, task: TaskId(id << 12) };
        push(2_000_000, EventKind::Stop { vm, thread: vcpu, runnable: true });
        push(0, EventKind::Packet { vm, protocol: Protocol::Tcp, port: 7 });
        push(20_000, EventKind::Run { vm, thread: emulator, pcpu: 0 });
        push(50_000, EventKind::Stop { vm, thread: emulator, runnable: false });
        push(0, EventKind::Run { vm, thread: vcpu, pcpu: 0 });
        push(50_000, task(1));
        push(100_000, task(2));
        push(100_000, task(3));
        push(1_000_000, task(4 + request % 8));
    }
    events
}

#[divan::bench(args = [1, 6, 100])]
fn events(bencher: divan::Bencher<'_, '_>, vms: u32) {
    let events = stream(vms, 20_000);
    bencher.counter(ItemsCount::new(events.len())).bench(|| {
        let mut engine = Engine::new(Config::default()).expect("the defaults are in range");
        let mut boosts = 0u64;
        for event in &events {
            engine.on_event(event);
            while engine.poll_action().is_some() {
                boosts += 1;
            }
        }
        boosts
    });
}
