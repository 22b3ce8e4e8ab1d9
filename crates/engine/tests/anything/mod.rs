//! Any sequence of events, with the ways in which guests and sources may mislead.

use frontdesk_engine::{
    Capabilities, Event, EventKind, MediaDevice, Protocol, Region, Standing, TaskId, Thread, Time, UserInput,
    VmId,
};
use proptest::prelude::*;

const VMS: u32 = 3;

fn thread() -> impl Strategy<Value = Thread> {
    prop_oneof![vcpu().prop_map(Thread::Vcpu), any::<u16>().prop_map(Thread::Emulator)]
}

// Few VMs, vCPUs and tasks have most of the events: else hardly any task would be believed in, and nothing
// boosted.

fn vm() -> impl Strategy<Value = VmId> {
    prop_oneof![2 => Just(VmId(0)), 1 => (0..VMS).prop_map(VmId)]
}

fn vcpu() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 0..2u16, 1 => 0..4u16]
}

fn pcpu() -> impl Strategy<Value = u16> {
    prop_oneof![2 => 0..2u16, 1 => any::<u16>()]
}

/// One that an interrupt names: it may be any.
fn any_vcpu() -> impl Strategy<Value = u16> {
    prop_oneof![3 => vcpu(), 1 => any::<u16>()]
}

fn task() -> impl Strategy<Value = TaskId> {
    prop_oneof![3 => 0..3u64, 1 => 0..40u64].prop_map(TaskId)
}

fn world() -> impl Strategy<Value = Capabilities> {
    (prop::bool::weighted(0.95), any::<bool>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(acts, charges_boosts, realtime_permille, slice_ns, silence_ns)| Capabilities {
            acts,
            charges_boosts,
            realtime_permille,
            slice_ns,
            silence_ns: silence_ns % 10_000_000,
        },
    )
}

pub(crate) fn kind() -> impl Strategy<Value = EventKind> {
    let protocol = || prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let standing = prop_oneof![8 => Just(Standing::Acting), 1 => Just(Standing::Observed), 1 => Just(Standing::Reserved)];
    prop_oneof![
        1 => (vm(), any::<u16>(), any::<u32>())
            .prop_map(|(vm, vcpus, weight)| EventKind::VmAdded { vm, vcpus: vcpus % 4, weight }),
        1 => vm().prop_map(|vm| EventKind::VmRemoved { vm }),
        8 => (vm(), thread(), pcpu()).prop_map(|(vm, thread, pcpu)| EventKind::Run { vm, thread, pcpu }),
        8 => (vm(), thread(), any::<bool>())
            .prop_map(|(vm, thread, runnable)| EventKind::Stop { vm, thread, runnable }),
        4 => (vm(), thread(), prop::option::of(vcpu()))
            .prop_map(|(vm, thread, by)| EventKind::Wake { vm, thread, by }),
        16 => (vm(), vcpu(), task()).prop_map(|(vm, vcpu, task)| EventKind::TaskSwitch { vm, vcpu, task }),
        4 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::Halt { vm, vcpu }),
        4 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::Resume { vm, vcpu }),
        4 => (vm(), any_vcpu(), targets(), any::<u8>())
            .prop_map(|(vm, vcpu, to, vector)| EventKind::Ipi { vm, vcpu, to, vector }),
        16 => (vm(), protocol(), 0..4u16)
            .prop_map(|(vm, protocol, port)| EventKind::Packet { vm, protocol, port }),
        4 => (vm(), protocol(), 0..4u16)
            .prop_map(|(vm, protocol, port)| EventKind::Reply { vm, protocol, port }),
        4 => (vm(), 0..8u64).prop_map(|(vm, request)| EventKind::BlockRead { vm, request }),
        4 => vm().prop_map(|vm| EventKind::BlockPending { vm }),
        4 => (vm(), 0..8u64).prop_map(|(vm, request)| EventKind::BlockDone { vm, request }),
        1 => (prop::option::of(vm()), any::<u64>()).prop_map(|(vm, count)| EventKind::Lost { vm, count }),
        1 => vm().prop_map(|vm| EventKind::VmReset { vm }),
        1 => vm().prop_map(|vm| EventKind::VmPaused { vm }),
        2 => vm().prop_map(|vm| EventKind::VmResumed { vm }),
        1 => (vm(), any::<u16>()).prop_map(|(vm, vcpu)| EventKind::VcpuAdded { vm, vcpu: vcpu % 600 }),
        1 => (vm(), vcpu()).prop_map(|(vm, vcpu)| EventKind::VcpuRemoved { vm, vcpu }),
        1 => (vm(), any::<u32>()).prop_map(|(vm, weight)| EventKind::Weight { vm, weight }),
        8 => (vm(), vcpu(), task()).prop_map(|(vm, vcpu, task)| EventKind::TaskSeen { vm, vcpu, task }),
        4 => (vm(), any_vcpu(), any::<u8>()).prop_map(|(vm, vcpu, vector)| EventKind::Interrupt { vm, vcpu, vector }),
        4 => (vm(), any_vcpu()).prop_map(|(vm, vcpu)| EventKind::IpiTaken { vm, vcpu }),
        3 => (vm(), prop::option::of(region())).prop_map(|(vm, region)| EventKind::DisplayUpdate { vm, region }),
        3 => (vm(), any_vcpu(), device(), prop::bool::weighted(0.2))
            .prop_map(|(vm, vcpu, device, in_interrupt)| EventKind::DeviceAccess { vm, vcpu, device, in_interrupt }),
        2 => vm().prop_map(|vm| EventKind::GpuDone { vm }),
        2 => (vm(), any_vcpu()).prop_map(|(vm, vcpu)| EventKind::Timer { vm, vcpu }),
        2 => (vm(), input()).prop_map(|(vm, input)| EventKind::Input { vm, input }),
        1 => (vm(), targets()).prop_map(|(vm, slow)| EventKind::Isolated { vm, slow }),
        2 => (vm(), pcpu(), any::<u64>()).prop_map(|(vm, pcpu, ran)| {
            EventKind::OthersRan { vm, pcpu, ran_ns: ran >> (ran % 64), waited_ns: ran >> (ran / 64 % 64) }
        }),
        1 => (vm(), any::<bool>()).prop_map(|(vm, limited)| EventKind::Limited { vm, limited }),
        1 => world().prop_map(EventKind::World),
        1 => (vm(), standing).prop_map(|(vm, standing)| EventKind::Standing { vm, standing }),
        1 => (vm(), any_vcpu(), 1..4000u32).prop_map(|(vm, vcpu, permille)| EventKind::VcpuWeight { vm, vcpu, permille }),
    ]
}

fn device() -> impl Strategy<Value = MediaDevice> {
    prop_oneof![Just(MediaDevice::Display), Just(MediaDevice::Sound)]
}

fn input() -> impl Strategy<Value = UserInput> {
    prop_oneof![2 => Just(UserInput::Enter), 1 => Just(UserInput::Button), 1 => Just(UserInput::Key)]
}

fn region() -> impl Strategy<Value = Region> {
    let few = (0..3u16).prop_map(|place| Region { x: place * 50, y: 0, width: 100, height: 100 });
    let any = any::<[u16; 4]>().prop_map(|[x, y, width, height]| Region { x, y, width, height });
    prop_oneof![3 => few, 1 => any]
}

/// Where an inter-processor interrupt goes: to one vCPU, to none, to all that could be, or to any.
pub(crate) fn targets() -> impl Strategy<Value = u64> {
    prop_oneof![3 => (0..4u32).prop_map(|vcpu| 1 << vcpu), 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// What a source tells of a request: a packet is delivered, the first vCPU takes the interrupt and tells the
/// one where a task waits, and that answers with a doorbell, or does not.
fn request() -> impl Strategy<Value = Vec<EventKind>> {
    (vm(), 0..2u16, 0..3u64, any::<bool>()).prop_map(|(vm, vcpu, task, rings)| {
        let (emulator, thread) = (Thread::Emulator(0), Thread::Vcpu(vcpu));
        let mut kinds = vec![
            EventKind::Packet { vm, protocol: Protocol::Tcp, port: u16::try_from(task).unwrap() },
            EventKind::Run { vm, thread: emulator, pcpu: 0 },
            EventKind::Stop { vm, thread: emulator, runnable: false },
            EventKind::Run { vm, thread: Thread::Vcpu(0), pcpu: 0 },
            EventKind::Interrupt { vm, vcpu: 0, vector: 0x21 },
        ];
        if vcpu > 0 {
            kinds.extend([
                EventKind::Ipi { vm, vcpu: 0, to: 1 << vcpu, vector: 0xfd },
                EventKind::Run { vm, thread, pcpu: 1 },
                EventKind::IpiTaken { vm, vcpu },
            ]);
        }
        kinds.push(EventKind::TaskSwitch { vm, vcpu, task: TaskId(task) });
        if rings {
            kinds.push(EventKind::Wake { vm, thread: emulator, by: Some(vcpu) });
        }
        kinds.push(EventKind::TaskSwitch { vm, vcpu, task: TaskId(39) });
        kinds
    })
}

/// What a source tells of a frame: a task wakes by its timer, plays and draws, and another goes on.
fn frame() -> impl Strategy<Value = Vec<EventKind>> {
    (vm(), 0..2u16, 0..3u64, prop::option::of(region())).prop_map(|(vm, vcpu, task, region)| {
        let access = |device| EventKind::DeviceAccess { vm, vcpu, device, in_interrupt: false };
        vec![
            EventKind::Timer { vm, vcpu },
            EventKind::TaskSwitch { vm, vcpu, task: TaskId(task) },
            access(MediaDevice::Sound),
            access(MediaDevice::Display),
            EventKind::DisplayUpdate { vm, region },
            EventKind::Timer { vm, vcpu },
            EventKind::GpuDone { vm },
            EventKind::TaskSwitch { vm, vcpu, task: TaskId(39) },
        ]
    })
}

/// What a source tells when a person starts something in a VM whose background work waits for CPUs that
/// another VM has: after the input another task runs, is woken from elsewhere, and the background goes on.
fn launch() -> impl Strategy<Value = Vec<EventKind>> {
    (vm(), 0..2u16, 0..3u64, input(), any::<bool>()).prop_map(|(vm, vcpu, task, input, interrupts)| {
        let rival = VmId((vm.0 + 1) % VMS);
        let (thread, other) = (Thread::Vcpu(vcpu), Thread::Vcpu(1 - vcpu));
        let background = TaskId(38);
        let mut kinds = vec![
            EventKind::Run { vm: rival, thread, pcpu: 0 },
            EventKind::Run { vm, thread: other, pcpu: 1 },
            EventKind::TaskSwitch { vm, vcpu: 1 - vcpu, task: background },
            EventKind::Run { vm, thread, pcpu: 0 },
            EventKind::TaskSwitch { vm, vcpu, task: background },
            EventKind::Stop { vm, thread, runnable: true },
            EventKind::Input { vm, input },
            EventKind::Run { vm, thread, pcpu: 0 },
            EventKind::TaskSwitch { vm, vcpu, task: TaskId(task) },
            EventKind::Ipi { vm, vcpu, to: 1 << (1 - vcpu), vector: 0xfd },
        ];
        if interrupts {
            kinds.push(EventKind::Interrupt { vm, vcpu: 1 - vcpu, vector: 0x21 });
        }
        kinds.extend([
            EventKind::TaskSwitch { vm, vcpu, task: background },
            EventKind::Stop { vm, thread, runnable: true },
        ]);
        kinds
    })
}

/// Events mostly a little apart, now and then far apart, late, or at the end of time.
pub(crate) fn events() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![
        40 => (0..100_000u64).prop_map(|ns| (ns, false)),
        2 => (0..100_000_000u64).prop_map(|ns| (ns, false)),
        1 => (0..100_000_000u64).prop_map(|ns| (ns, true)),
    ];
    let kinds =
        prop_oneof![14 => kind().prop_map(|kind| vec![kind]), 2 => request(), 1 => frame(), 2 => launch()];
    prop::collection::vec((step, kinds), 0..400).prop_map(|steps| {
        let mut now = 0u64;
        let mut events: Vec<Event> = (0..VMS)
            .map(|vm| EventKind::VmAdded { vm: VmId(vm), vcpus: 2, weight: 1024 })
            .map(|kind| Event { at: Time(0), kind })
            .collect();
        for ((nanos, back), kinds) in steps {
            let mut at = if back { now.saturating_sub(nanos) } else { now + nanos };
            for kind in kinds {
                events.push(Event { at: Time(at), kind });
                now = now.max(at);
                at += 20_000;
            }
        }
        events
    })
}
