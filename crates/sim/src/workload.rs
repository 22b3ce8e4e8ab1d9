//! The model of each workload that the lab has a program for.

use crate::guest::{AHEAD, GuestKernel, WindowSpec};
use crate::network::SEGMENT;
use crate::program::Step;
use crate::queue::Nanos;
use crate::rng::Rng;
use crate::rtapp::{self, Conditions, RtAppError};
use frontdesk_engine::{Protocol, nanos};
use frontdesk_scenario::{
    self as scenario, Arm, Film, LateFrames, Scenario, Sim, SoundPath, Storm, VmSpec, Workload, WorkloadKind,
};
use std::time::Duration;

/// Where an ssh server listens, behind which an editor runs.
pub(crate) const SSH: u16 = 22;

/// Frames of a film before it begins anew, and of a game before they cost the same again.
const FRAMES: usize = 2_000;
/// From one frame to the next of the lab's films, of which there are 24 a second.
const LAB_FRAME: Duration = Duration::from_micros(41_667);
/// Sound that is played at a time.
const SOUND_PERIOD: Nanos = 20_000_000;
/// Lines that a terminal takes before they are drawn.
const LINES: u32 = 2;
/// What a program that computes uses at a time.
const PIECE: Nanos = 10_000_000;
/// What a new task of `churn` or of a storm computes before it ends.
const BRIEF: Nanos = 300_000;
/// What is read of a file at a time: the guest's read-ahead.
const CHUNK: u32 = 128 << 10;
/// What a read past the page cache is of.
const BLOCK: u32 = 4 << 10;
/// Frames of a film that are read at a time.
const FRAMES_READ: u32 = 4;
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
    rng: &mut Rng,
) -> Result<(), RtAppError> {
    let request = nanos(sim.guest.request);
    let cost_of = |cost| nanos(scenario.scaled_cost(cost));
    let io_bound = workload.kind.is_io_bound();
    let task = |guest: &mut GuestKernel, program: &[Step]| guest.add_task(number, program, io_bound);
    match &workload.kind {
        WorkloadKind::Hog => {
            task(guest, &[Step::Compute(PIECE), Step::Done { bytes: 0 }]);
        }
        WorkloadKind::Echo { protocol, port, cost: own } => {
            let socket = guest.add_socket(Some(transport(*protocol)), *port);
            task(guest, &echo(socket, request.saturating_add(cost_of(*own))));
        }
        WorkloadKind::Shift { port, period } => {
            let socket = guest.add_socket(Some(Protocol::Udp), *port);
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
            task(guest, &[read, Step::Compute(cost_of(*own)), Step::Done { bytes: BLOCK }]);
        }
        WorkloadKind::WriteSync { write_kib } => {
            let bytes = write_kib << 10;
            task(guest, &[Step::Write { bytes, sync: true }, Step::Done { bytes }]);
        }
        WorkloadKind::ReadBurst { port, reads, read_kib, save_kib } => {
            let socket = guest.add_socket(Some(Protocol::Udp), *port);
            let receive = Step::Receive { socket, shift: None };
            let read = Step::Read { bytes: read_kib << 10, sequential: false };
            let again = Step::Repeat { from: 1, times: reads - 1 };
            let save = (*save_kib > 0).then_some(Step::Write { bytes: save_kib << 10, sync: true });
            let mut program = vec![receive, read, again];
            program.extend(save);
            program.extend([Step::Reply, Step::Done { bytes: 0 }]);
            task(guest, &program);
        }
        WorkloadKind::Sink { port } => {
            let socket = guest.add_socket(Some(Protocol::Tcp), *port);
            let receive = Step::Receive { socket, shift: None };
            let copy = nanos(sim.guest.copy_kib).saturating_mul(u64::from(SEGMENT)) / 1024;
            let take = Step::Compute(nanos(sim.guest.block).saturating_add(copy));
            task(guest, &[receive, take, Step::Done { bytes: SEGMENT }]);
        }
        WorkloadKind::Messages { tasks, rounds } => messages(guest, number, *tasks, *rounds),
        WorkloadKind::Team { threads, barrier } => team(guest, number, *threads, barrier.map(cost_of)),
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
            let socket = guest.add_socket(Some(Protocol::Tcp), SSH);
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
        WorkloadKind::Play { film, .. } => {
            let [shortest, longest] = match film {
                Film::Mpeg4 => [12, 21],
                Film::H264 => [19, 35],
            };
            let costs = [shortest, longest].map(|cost| cost_of(Duration::from_millis(cost)));
            let (period, late) = (Some(nanos(LAB_FRAME)), LateFrames::Drop);
            let spec = WindowSpec { workload: number, period, late, costs: frame_costs(costs, rng) };
            video(guest, spec, SoundPath::Server, 0, 0);
        }
        WorkloadKind::Video { period, cost, late, sound, gpu, frame_kib } => {
            let costs = frame_costs(cost.map(cost_of), rng);
            let spec = WindowSpec { workload: number, period: period.map(nanos), late: *late, costs };
            video(guest, spec, *sound, nanos(*gpu), frame_kib << 10);
        }
        WorkloadKind::Scroll { cost } => {
            let costs = vec![cost_of(*cost)];
            let spec = WindowSpec { workload: number, period: None, late: LateFrames::Drop, costs };
            let (window, room) = guest.add_window(spec, LINES);
            let begin = Step::Wait { channel: room, messages: 1 };
            guest.add_display_server(number);
            let show = Step::Show { window, late: 0 };
            let [done, draw] = [Step::Done { bytes: 0 }, Step::Draw { window }];
            let program = [begin, Step::Prepare { window }, show, done, draw];
            guest.add_thread(window, &program);
        }
        WorkloadKind::App { rounds, main, threads, part, draw, sync, read_kib } => {
            let costs = [*main, *part, *draw].map(cost_of);
            app(guest, number, *rounds, *threads, costs, *sync, read_kib << 10);
        }
        WorkloadKind::Boot => boot(guest, number),
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

/// Threads that compute and, if they have a barrier, wait for each other: each tells all others that it has
/// come, and waits until all others have told it.
fn team(guest: &mut GuestKernel, number: usize, threads: u16, barrier: Option<Nanos>) {
    let threads = usize::from(threads);
    let channels: Vec<usize> = (0..threads).map(|_| guest.add_channel()).collect();
    let programs = channels.iter().map(|own| {
        let Some(cost) = barrier.filter(|_| threads > 1) else {
            return vec![Step::Compute(PIECE), Step::Done { bytes: 0 }];
        };
        let others = channels.iter().filter(|channel| *channel != own);
        let tells = others.map(|channel| Step::Send { channel: *channel, messages: 1 });
        let messages = u32::try_from(threads - 1).unwrap_or(u32::MAX);
        let together = tells.chain([Step::Wait { channel: *own, messages }]);
        // An operation takes as long with a barrier as without.
        let times = u32::try_from(PIECE / cost.max(1)).unwrap_or(u32::MAX).max(1) - 1;
        let repeated = [Step::Repeat { from: 0, times }, Step::Done { bytes: 0 }];
        [Step::Compute(cost)].into_iter().chain(together).chain(repeated).collect()
    });
    guest.add_threads(number, &programs.collect::<Vec<_>>());
}

/// Costs of frames between the two given.
fn frame_costs([shortest, longest]: [Nanos; 2], rng: &mut Rng) -> Vec<Nanos> {
    (0..FRAMES).map(|_| rng.uniform(shortest, longest)).collect()
}

/// A film or a game. A film has a thread that makes frames ready and one that shows each when it is due; a
/// game shows them as it makes them.
fn video(guest: &mut GuestKernel, spec: WindowSpec, sound: SoundPath, gpu: Nanos, read: u32) {
    let (number, is_film) = (spec.workload, spec.period.is_some());
    let (window, room) = guest.add_window(spec, if is_film { AHEAD } else { 1 });
    let begin = [Step::Wait { channel: room, messages: 1 }, Step::Prepare { window }];
    let done = Step::Done { bytes: 0 };
    let draw = if gpu > 0 {
        Step::Display { window: Some(window), gpu }
    } else {
        guest.add_display_server(number);
        Step::Draw { window }
    };
    if is_film {
        let ready = guest.add_channel();
        let [wait, prepare] = begin;
        let send = Step::Send { channel: ready, messages: 1 };
        if read > 0 {
            let [data, room] = film_reader(guest, window, read);
            let [take, give] =
                [Step::Wait { channel: data, messages: 1 }, Step::Send { channel: room, messages: 1 }];
            guest.add_thread(window, &[wait, take, give, prepare, send]);
        } else {
            guest.add_thread(window, &[wait, prepare, send]);
        }
        let wait = Step::Wait { channel: ready, messages: 1 };
        let show = Step::Show { window, late: 0 };
        guest.add_thread(window, &[wait, Step::Due { window }, show, done, draw]);
    } else {
        let [wait, prepare] = begin;
        guest.add_thread(window, &[wait, prepare, Step::Show { window, late: 0 }, done, draw]);
    }
    match sound {
        SoundPath::Card => guest.add_thread(window, &[Step::Play { period: SOUND_PERIOD }]),
        SoundPath::Server => {
            let server = guest.sound_server(number, SOUND_PERIOD);
            let ask = Step::Send { channel: server.asked, messages: 1 };
            guest.add_thread(window, &[ask, Step::Wait { channel: server.done, messages: 1 }]);
        }
        SoundPath::None => {}
    }
}

/// Who reads a film, some frames at a time and as many ahead: where it says that there is a frame, and is
/// told that one has been taken.
fn film_reader(guest: &mut GuestKernel, window: usize, frame: u32) -> [usize; 2] {
    let [data, room] = [guest.add_channel(), guest.add_channel()];
    guest.channels[room].messages = 2 * FRAMES_READ;
    let wait = Step::Wait { channel: room, messages: FRAMES_READ };
    let read = Step::Read { bytes: frame.saturating_mul(FRAMES_READ), sequential: true };
    guest.add_thread(window, &[wait, read, Step::Send { channel: data, messages: FRAMES_READ }]);
    [data, room]
}

/// A system that boots: it reads small files all over the disk, logs, and waits now and then for the log to
/// be written and for devices.
fn boot(guest: &mut GuestKernel, number: usize) {
    let read = Step::Read { bytes: 32 << 10, sequential: false };
    let log = Step::Write { bytes: 64 << 10, sync: false };
    let flush = Step::Write { bytes: BLOCK, sync: true };
    let compute = Step::Compute(2_000_000);
    let program = [
        read,
        compute,
        Step::Repeat { from: 0, times: 19 },
        log,
        log,
        flush,
        Step::Sleep(50_000_000),
        Step::Repeat { from: 0, times: 29 },
        Step::Done { bytes: 0 },
    ];
    guest.add_task(number, &program, false);
}

/// A program that is started with a key: its main thread, in an address space that is new each time, gives
/// parts of the work to others, which share it, and asks the display server to draw.
fn app(
    guest: &mut GuestKernel,
    number: usize,
    rounds: u32,
    threads: u16,
    [main, part, draw]: [Nanos; 3],
    sync: bool,
    read: u32,
) {
    let socket = guest.add_socket(None, key_of(number));
    let (mut program, mut programs) =
        (vec![Step::Receive { socket, shift: None }, Step::NewSpace, Step::Compute(main)], Vec::new());
    if read > 0 {
        program.push(Step::Read { bytes: read, sequential: false });
    }
    if threads > 0 {
        let (given, done) = (guest.add_channel(), guest.add_channel());
        let messages = u32::from(threads);
        program.push(Step::Send { channel: given, messages });
        program.push(Step::Wait { channel: done, messages });
        let take = Step::Wait { channel: given, messages: 1 };
        let give = Step::Send { channel: done, messages: 1 };
        programs.resize(usize::from(threads), vec![take, Step::Compute(part), give]);
    }
    if draw > 0 {
        let (asked, drawn) = (guest.add_channel(), guest.add_channel());
        program.push(Step::Send { channel: asked, messages: 1 });
        program.push(Step::Wait { channel: drawn, messages: 1 });
        let take = Step::Wait { channel: asked, messages: 1 };
        let say = Step::Send { channel: drawn, messages: 1 };
        guest.add_task(number, &[take, Step::Compute(draw), say], false);
    }
    if sync {
        program.push(Step::Write { bytes: BLOCK, sync });
    }
    program.push(Step::Repeat { from: 2, times: rounds - 1 });
    program.extend([Step::Reply, Step::Done { bytes: 0 }]);
    programs.push(program);
    guest.add_threads(number, &programs);
}

/// What a key that starts a workload is known by.
pub(crate) fn key_of(workload: usize) -> u16 {
    u16::try_from(workload).unwrap_or(u16::MAX)
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
