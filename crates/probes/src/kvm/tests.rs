//! What the programs take of a vCPU's time at an exit, on this machine's own processor.
//!
//! KVM need not be there: the kernel runs the programs as if it were, on memory of its own, and counts how
//! long they took.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use super::{Extras, Method, abi, load_with, skeleton::types};
use crate::channel::{Channel, Maps};
use abi::Counter;
use frontdesk_engine::VmId;
use libbpf_rs::{MapCore as _, MapFlags, ProgramInput, ProgramMut, libbpf_sys};
use std::{
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

/// Exits of each kind.
const EXITS: u32 = 10_000;

/// Between exits: more than the programs wait before they tell the same task again, so that each is told.
const BETWEEN: Duration = Duration::from_micros(150);

/// What KVM's tracepoint says on AMD processors.
const SVM: u64 = 2;

/// Has the kernel count how long programs take, until it is dropped.
fn counting() -> OwnedFd {
    // SAFETY: it takes a number, and gives a new descriptor or an error.
    unsafe {
        let descriptor = libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME);
        assert!(descriptor >= 0, "{}", std::io::Error::from_raw_os_error(-descriptor));
        OwnedFd::from_raw_fd(descriptor)
    }
}

/// What the kernel tells of a program. Of its compiled code as much as there is room for.
fn info(program: &ProgramMut<'_>, code: &mut [u8]) -> (libbpf_sys::bpf_prog_info, u64) {
    let mut address = 0_u64;
    let mut info = libbpf_sys::bpf_prog_info {
        jited_prog_insns: code.as_mut_ptr() as u64,
        jited_prog_len: u32::try_from(code.len()).unwrap(),
        jited_ksyms: &raw mut address as u64,
        nr_jited_ksyms: 1,
        ..libbpf_sys::bpf_prog_info::default()
    };
    let mut length = u32::try_from(size_of::<libbpf_sys::bpf_prog_info>()).unwrap();
    // SAFETY: `info` is as long as it says, and has pointers to so much memory as it says.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut length)
    };
    assert_eq!(failed, 0);
    (info, address)
}

/// How long a program has taken, in nanoseconds, and how often it ran.
fn counted(program: &ProgramMut<'_>) -> (u64, u64) {
    let (info, _) = info(program, &mut []);
    (info.run_time_ns, info.run_cnt)
}

/// Addresses in the kernel of words that point to something in the kernel: those of maps, in the code that
/// the kernel has made of a program.
fn pointers(program: &ProgramMut<'_>) -> Vec<u64> {
    let mut code = vec![0; 1 << 16];
    let (info, address) = info(program, &mut code);
    assert_ne!(address, 0, "the kernel does not compile BPF programs, or keeps its addresses to itself");
    code.truncate(info.jited_prog_len.try_into().unwrap());
    let instructions = (0_u64..).zip(code.windows(10));
    // "mov" of 64 bits into a register.
    let loads = instructions.filter(|(_, code)| code[0] & 0xfe == 0x48 && code[1] & 0xf8 == 0xb8);
    let loads = loads.filter(|(_, code)| u64::from_le_bytes(code[2..].try_into().unwrap()) > 0xffff << 48);
    loads.map(|(at, _)| address + at + 2).collect()
}

fn run(program: &ProgramMut<'_>, arguments: &[u64]) {
    let mut context: Vec<u8> = arguments.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
    program.test_run(input).unwrap();
}

/// The time of a run in nanoseconds: the median of ten parts.
fn time_of(program: &ProgramMut<'_>, arguments: &[u64], between: Duration) -> f64 {
    let mut parts: Vec<f64> = (0..10)
        .map(|_| {
            let (time, runs) = counted(program);
            for _ in 0..EXITS / 10 {
                let next = Instant::now() + between;
                run(program, arguments);
                while Instant::now() < next {}
            }
            let (time_after, runs_after) = counted(program);
            assert_eq!(runs_after - runs, u64::from(EXITS / 10), "somebody else runs it");
            #[allow(clippy::cast_precision_loss)] // Far below 2^53.
            {
                (time_after - time) as f64 / (runs_after - runs) as f64
            }
        })
        .collect();
    parts.sort_by(f64::total_cmp);
    parts[5]
}

#[test]
#[ignore = "a measurement, not a test; needs root"]
fn what_an_exit_costs() {
    // The "vCPU" begins with a pointer to its "control block", which is some map.
    let layout = types::layout { vmcb: 0, id: 0, cr3: 0, mp_state: 0, notifier: 0 };
    let mut storage = MaybeUninit::uninit();
    let skel = load_with(layout, Method::Exit, Extras::INTERRUPTS, None, &mut storage).unwrap();
    let maps = Maps { ring: &skel.maps.ring, lost: &skel.maps.lost, counters: &skel.maps.counters };
    let mut channel = Channel::open(&maps, abi::decode, Counter::Lost as u32).unwrap();
    let (exit, entry) = (&skel.progs.on_exit, &skel.progs.on_entry);
    let thread = rustix::thread::gettid().as_raw_nonzero().get().to_ne_bytes();
    let vcpu_value = |interrupts| abi::vcpu_value(VmId(1), 0, interrupts, false, false);
    channel.follow(VmId(1)).unwrap();
    // One in which there is a "CR3".
    let is_told = |vcpu: &u64| {
        let before = channel.counter(Counter::Pushed as u32).unwrap();
        skel.maps.vcpus.update(&thread, &vcpu_value(false), MapFlags::ANY).unwrap();
        run(exit, &[*vcpu, SVM]);
        channel.counter(Counter::Pushed as u32).unwrap() > before
    };
    let vcpu = pointers(exit).into_iter().find(is_told).expect("no memory passes for a vCPU's");
    skel.maps.vcpus.delete(&thread).unwrap();
    let _counting = counting();
    let costs = |channel: &mut Channel, what: &str| {
        for (how, between) in [("each told", BETWEEN), ("the same task again", Duration::ZERO)] {
            let times = [time_of(exit, &[vcpu, SVM], between), time_of(entry, &[vcpu], between)];
            println!("{what}, {how}: {:.0} ns at an exit, {:.0} at the entry after it", times[0], times[1]);
            channel.drain(&mut Vec::new()).unwrap();
        }
    };

    costs(&mut channel, "a thread that is not followed");
    for (what, interrupts) in [("a VM with one vCPU", false), ("one of several", true)] {
        skel.maps.vcpus.update(&thread, &vcpu_value(interrupts), MapFlags::ANY).unwrap();
        let before = channel.counter(Counter::Pushed as u32).unwrap();
        costs(&mut channel, what);
        let told = channel.counter(Counter::Pushed as u32).unwrap() - before;
        assert!(told >= u64::from(EXITS), "{told} were told of {EXITS} that were to be");
    }
}
