//! The engine on a large host: 100 VMs with 4 vCPUs each, and on every vCPU 1,000 task switches and 100
//! interrupts from another a second.
//!
//! Prints the CPU time that the engine takes of one core at that rate, and the memory that it holds for a
//! vCPU with every table full, each with its bar, and how long its state takes to save. Fails if a bar is
//! missed.

mod cpu;

use frontdesk_engine::{Config, Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId};
use peak_alloc::PeakAlloc;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const VMS: u32 = 100;
const VCPUS: u16 = 4;
const PCPUS: u16 = 64;
const SECONDS: u64 = 5;
const MS: u64 = 1_000_000;

/// CPU time of the engine, as a fraction of one core.
const CPU_BAR: f64 = 0.06;
/// Bytes for a vCPU, its part of what a VM holds included.
const MEMORY_BAR: usize = 64 << 10;

/// The tasks that a guest switches between on a vCPU,
const TASKS: u64 = 24;
/// and those of one that wants to be a burden: more than are remembered, so that each switch finds one that
/// was forgotten.
const HOSTILE_TASKS: u64 = 300;
/// Events that the daemon finds at a time.
const TURN: usize = 16;
const ECHO: TaskId = TaskId(7 << 12);
/// Reads that never end: more than are remembered, too.
const READS: u64 = 1100;

fn main() -> ExitCode {
    let before = ALLOCATOR.current_usage();
    let mut engine = Engine::new(Config::default()).expect("the defaults are in range");
    for vm in (0..VMS).map(VmId) {
        tell(
            &mut engine,
            &Event { at: Time(0), kind: EventKind::VmAdded { vm, vcpus: VCPUS, weight: 1024 } },
        );
        for request in 0..READS {
            tell(&mut engine, &Event { at: Time(0), kind: EventKind::BlockRead { vm, request } });
        }
        for (vcpu, vector) in (0..VCPUS).flat_map(|vcpu| (0..=u8::MAX).map(move |vector| (vcpu, vector))) {
            tell(&mut engine, &Event { at: Time(0), kind: EventKind::Interrupt { vm, vcpu, vector } });
            tell(
                &mut engine,
                &Event { at: Time(0), kind: EventKind::Ipi { vm, vcpu, to: u64::MAX, vector } },
            );
        }
    }
    let hostile = run(&mut engine, 0..1000, HOSTILE_TASKS);
    let held = ALLOCATOR.current_usage() - before;
    let per_vcpu = held / (VMS as usize * usize::from(VCPUS));
    let usual = run(&mut engine, 1000..1000 + SECONDS * 1000, TASKS);
    let begun = cpu::seconds();
    let state = cbor4ii::serde::to_vec(Vec::new(), &engine).expect("a state can be saved");
    let saving = cpu::seconds() - begun;

    let (cpu_kept, memory_kept) = (usual.cpu <= CPU_BAR, per_vcpu <= MEMORY_BAR);
    let verdict = |kept| if kept { "ok" } else { "MISSED" };
    println!("{VMS} VMs x {VCPUS} vCPUs, {:.0} events/s, {:.0} actions/s", usual.events, usual.actions);
    println!(
        "engine:  {:.1} % of one core (bar: {:.0} %) {}",
        usual.cpu * 100.0,
        CPU_BAR * 100.0,
        verdict(cpu_kept)
    );
    println!("hostile: {:.1} % if every guest switches to another task each time", hostile.cpu * 100.0);
    println!(
        "memory:  {:.1} KiB per vCPU with every table full (bar: {} KiB) {}",
        kib(per_vcpu),
        MEMORY_BAR >> 10,
        verdict(memory_kept)
    );
    println!("state:   {:.0} KiB, saved in {:.1} ms", kib(state.len()), saving * 1000.0);
    if cpu_kept && memory_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a piece of the stream took, per second of its time.
struct Taken {
    events: f64,
    actions: f64,
    cpu: f64,
}

fn run(engine: &mut Engine, milliseconds: std::ops::Range<u64>, tasks: u64) -> Taken {
    #[allow(clippy::cast_precision_loss)] // Figures for people.
    let float = |n: u64| n as f64;
    let seconds = float(milliseconds.end - milliseconds.start) / 1000.0;
    let (mut events, mut actions, mut spent) = (0, 0, 0.0);
    for number in milliseconds {
        let stream = millisecond_of_events(number, tasks);
        events += stream.len() as u64;
        let begun = cpu::seconds();
        for turn in stream.chunks(TURN) {
            actions += turn.iter().map(|event| tell(engine, event)).sum::<u64>();
            let now = turn.last().map_or(Time(0), |event| event.at);
            if engine.next_deadline().is_some_and(|next| next <= now) {
                engine.on_deadline(now);
            }
        }
        spent += cpu::seconds() - begun;
    }
    Taken { events: float(events) / seconds, actions: float(actions) / seconds, cpu: spent / seconds }
}

/// Tells the engine an event; returns how many actions it decided.
fn tell(engine: &mut Engine, event: &Event) -> u64 {
    engine.on_event(event);
    std::iter::from_fn(|| engine.poll_action()).count() as u64
}

/// What happens on the host in one millisecond: every vCPU switches tasks once. In ten milliseconds each is
/// preempted once and interrupts the next one once, and each VM is sent a packet, which an I/O-bound task
/// answers, and every other time ends a read.
fn millisecond_of_events(number: u64, tasks: u64) -> Vec<Event> {
    let mut events = Vec::new();
    for id in 0..VMS {
        let vm = VmId(id);
        let phase = (number + u64::from(id)) % 10;
        let mut now = number * MS + u64::from(id) * 1000;
        let mut push = |after: u64, kind| {
            now += after;
            events.push(Event { at: Time(now), kind });
        };
        let pcpu = u16::try_from(id).unwrap_or(0) % PCPUS;
        if phase == 0 {
            let (vcpu, emulator) = (Thread::Vcpu(0), Thread::Emulator(0));
            let port = if number.is_multiple_of(3) { (Protocol::Udp, 53) } else { (Protocol::Tcp, 7) };
            push(0, EventKind::Packet { vm, protocol: port.0, port: port.1 });
            push(0, EventKind::Wake { vm, thread: emulator, by: None });
            push(0, EventKind::Stop { vm, thread: vcpu, runnable: true });
            push(20_000, EventKind::Run { vm, thread: emulator, pcpu });
            push(30_000, EventKind::Stop { vm, thread: emulator, runnable: false });
            push(0, EventKind::Run { vm, thread: vcpu, pcpu });
            push(1_000, EventKind::Interrupt { vm, vcpu: 0, vector: 0x21 });
            push(29_000, EventKind::TaskSwitch { vm, vcpu: 0, task: ECHO });
            if number.is_multiple_of(2) {
                push(10_000, EventKind::BlockRead { vm, request: READS + number });
                push(50_000, EventKind::BlockPending { vm });
                push(10_000, EventKind::BlockDone { vm, request: READS + number });
            }
            push(90_000, EventKind::Wake { vm, thread: emulator, by: Some(0) });
            push(10_000, EventKind::TaskSwitch { vm, vcpu: 0, task: TaskId((number % tasks + 8) << 12) });
        }
        for vcpu in 0..VCPUS {
            let thread = Thread::Vcpu(vcpu);
            let task = TaskId(((number + u64::from(vcpu)) % tasks + 8) << 12);
            push(100, EventKind::TaskSwitch { vm, vcpu, task });
            match phase {
                2 => push(100, EventKind::Run { vm, thread, pcpu: (pcpu + vcpu) % PCPUS }),
                5 => {
                    let next = (vcpu + 1) % VCPUS;
                    push(100, EventKind::Ipi { vm, vcpu, to: 1 << next, vector: 0xfd });
                    push(100, EventKind::IpiTaken { vm, vcpu: next });
                }
                9 => push(100, EventKind::Stop { vm, thread, runnable: true }),
                _ => {}
            }
        }
    }
    events.sort_by_key(|event| event.at);
    events
}

#[allow(clippy::cast_precision_loss)] // For people.
fn kib(bytes: usize) -> f64 {
    bytes as f64 / 1024.0
}
