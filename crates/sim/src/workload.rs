//! The model of each workload that the lab has a program for.

use crate::guest::GuestKernel;
use crate::network::SEGMENT;
use crate::program::Step;
use crate::queue::Nanos;
use crate::rtapp::{self, Conditions, RtAppError};
use frontdesk_engine::{Protocol, nanos};
use frontdesk_scenario::{self as scenario, Arm, Scenario, Sim, Storm, VmSpec, Workload, WorkloadKind};

/// Where an ssh server listens, behind which an editor runs.
pub(crate) const SSH: u16 = 22;

/// What a program that computes uses at a time.
const PIECE: Nanos = 10_000_000;
/// What a new task of `churn` or of a storm computes before it ends.
const BRIEF: Nanos = 300_000;
/// What is read of a file at a time: the guest's read-ahead.
const CHUNK: u32 = 128 << 10;
/// What a read past the page cache is of.
const BLOCK: u32 = 4 << 10;
/// Reads of a program whose files are not in the page cache.
const COLD_READS: u32 = 64;
/// Senders and receivers in a group of `messages`.
const HALF: u32 = 20;

/// Whether the workloads of a VM tell each wake-up from I/O, as far as they do I/O, and some are I/O-bound.
pub(crate) fn knows_wakes(arm: &Arm, vm: &VmSpec) -> bool {
    let running = || vm.workloads.iter().filter(|workload| !arm.stops(vm, workload));
    running().any(|workload| workload.kind.is_io_bound())
        && running().all(|workload| workload.kind.knows_its_wakes())
}

/// Adds the tasks of a workload to a guest.
///
/// # Errors
/// A file of rt-app cannot be used.
pub(crate) fn add(
    guest: &mut GuestKernel,
    number: usize,
    workload: &Workload,
    scenario: &Scenario,
    sim: &Sim,
) -> Result<(), RtAppError> {
    let request = nanos(sim.guest.request);
    let cost = |cost| nanos(scenario.scaled_cost(cost));
    let io_bound = workload.kind.is_io_bound();
    let task = |guest: &mut GuestKernel, program: &[Step]| guest.add_task(number, program, io_bound);
    match &workload.kind {
        WorkloadKind::Hog => {
            task(guest, &[Step::Compute(PIECE), Step::Done { bytes: 0 }]);
        }
        WorkloadKind::Echo { protocol, port, cost: own } => {
            let socket = guest.add_socket(transport(*protocol), *port);
            task(guest, &echo(socket, request.saturating_add(cost(*own))));
        }
        WorkloadKind::Shift { port, period } => {
            let socket = guest.add_socket(Protocol::Udp, *port);
            let receive = Step::Receive { socket, shift: Some((nanos(*period), 4)) };
            let program =
                [receive, Step::Compute(request), Step::Reply, Step::Done { bytes: 0 }, Step::Compute(BRIEF)];
            task(guest, &program);
        }
        WorkloadKind::ReadFiles => {
            let read = Step::Read { bytes: CHUNK, sequential: true };
            task(guest, &[read, Step::Done { bytes: CHUNK }]);
        }
        WorkloadKind::ReadBurn { cost: own } => {
            let read = Step::Read { bytes: BLOCK, sequential: false };
            task(guest, &[read, Step::Compute(cost(*own)), Step::Done { bytes: BLOCK }]);
        }
        WorkloadKind::Sink { port } => {
            let socket = guest.add_socket(Protocol::Tcp, *port);
            let receive = Step::Receive { socket, shift: None };
            let copy = nanos(sim.guest.copy_kib).saturating_mul(u64::from(SEGMENT)) / 1024;
            let take = Step::Compute(nanos(sim.guest.block).saturating_add(copy));
            task(guest, &[receive, take, Step::Done { bytes: SEGMENT }]);
        }
        WorkloadKind::Messages { tasks, rounds } => messages(guest, number, *tasks, *rounds),
        WorkloadKind::Churn => churn(guest, number, true),
        WorkloadKind::RtApp { file } => {
            let conditions = Conditions {
                vcpus: u16::try_from(guest.cpus.len()).unwrap_or(u16::MAX),
                cost_scale: scenario.cost_scale,
                copy_kib: nanos(sim.guest.copy_kib),
            };
            rtapp::load(file, &conditions)?.add(guest, number);
        }
        WorkloadKind::Program { repeat: false, .. } => {
            // Of servers only ssh is loaded from outside.
            let socket = guest.add_socket(Protocol::Tcp, SSH);
            task(guest, &echo(socket, request));
        }
        WorkloadKind::Program { cold, .. } => {
            let computes = Step::Compute(nanos(sim.guest.program));
            let read = Step::Read { bytes: CHUNK, sequential: false };
            let cold_start = [read, Step::Repeat { from: 0, times: COLD_READS - 1 }];
            let mut program = if *cold { cold_start.to_vec() } else { Vec::new() };
            program.extend([Step::NewSpace, computes, Step::Done { bytes: 0 }]);
            task(guest, &program);
        }
        // There is no model of a desktop.
        WorkloadKind::Play { .. } => {}
        WorkloadKind::Storm { of: Storm::Packets } => {
            task(guest, &[Step::Sleep(PIECE), Step::Done { bytes: 0 }]);
        }
        WorkloadKind::Storm { of: Storm::Tasks } => churn(guest, number, false),
        WorkloadKind::Storm { of: Storm::Switches } => {
            let (ping, pong) = (guest.add_channel(), guest.add_channel());
            let bounce = |from, to| {
                [Step::Wait { channel: from, messages: 1 }, Step::Send { channel: to, messages: 1 }]
            };
            guest.channels[ping].messages = 1;
            let [wait, send] = bounce(ping, pong);
            task(guest, &[wait, send, Step::Done { bytes: 0 }]);
            task(guest, &bounce(pong, ping));
        }
    }
    Ok(())
}

/// What the engine calls the protocol of a workload.
pub(crate) fn transport(protocol: scenario::Protocol) -> Protocol {
    match protocol {
        scenario::Protocol::Tcp => Protocol::Tcp,
        scenario::Protocol::Udp => Protocol::Udp,
    }
}

fn echo(socket: usize, cost: Nanos) -> [Step; 4] {
    [Step::Receive { socket, shift: None }, Step::Compute(cost), Step::Reply, Step::Done { bytes: 0 }]
}

/// A task that starts one which soon ends, and waits for it if it `waits`.
fn churn(guest: &mut GuestKernel, number: usize, waits: bool) {
    let (started, ended) = (guest.add_channel(), guest.add_channel());
    let start = Step::Send { channel: started, messages: 1 };
    let done = Step::Done { bytes: 0 };
    if waits {
        let wait = Step::Wait { channel: ended, messages: 1 };
        guest.add_task(number, &[Step::Compute(BRIEF), start, wait, done], false);
    } else {
        guest.add_task(number, &[Step::Compute(BRIEF), start, done], false);
    }
    let begin = Step::Wait { channel: started, messages: 1 };
    let end = Step::Send { channel: ended, messages: 1 };
    guest.add_task(number, &[begin, Step::NewSpace, Step::Compute(BRIEF), end], false);
}

/// Groups of senders and receivers, each of whom messages each, and one who starts them all and waits for
/// them.
fn messages(guest: &mut GuestKernel, number: usize, tasks: u32, rounds: u32) {
    let (begin, ended) = (guest.add_channel(), guest.add_channel());
    for _ in 0..tasks / (2 * HALF) {
        let mailboxes: Vec<usize> = (0..HALF).map(|_| guest.add_channel()).collect();
        for mailbox in &mailboxes {
            let take = Step::Wait { channel: *mailbox, messages: 1 };
            let all = Step::Repeat { from: 0, times: (HALF * rounds).saturating_sub(1) };
            guest.add_task(number, &[take, all, Step::Send { channel: ended, messages: 1 }], false);
        }
        for _ in 0..HALF {
            let mut program = vec![Step::Wait { channel: begin, messages: 1 }];
            program.extend(mailboxes.iter().map(|mailbox| Step::Send { channel: *mailbox, messages: 1 }));
            program.push(Step::Repeat { from: 1, times: rounds.saturating_sub(1) });
            guest.add_task(number, &program, false);
        }
    }
    let start = Step::Send { channel: begin, messages: tasks / 2 };
    let wait = Step::Wait { channel: ended, messages: tasks / 2 };
    guest.add_task(number, &[start, wait, Step::Done { bytes: 0 }], false);
}
