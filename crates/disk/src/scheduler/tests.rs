use super::*;
use frontdesk_disk_protocol::{Layout, listen};
use frontdesk_engine::UserInput;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::os::unix::net::UnixStream;

const MS: u64 = 1_000_000;
const KIB: u64 = 1 << 10;

/// A disk that takes as long for each piece as a byte takes a nanosecond, and 64 KiB for each.
struct Bench {
    state: State,
    now: Time,
}

impl Bench {
    fn new(depth: u32, vms: u32) -> Bench {
        let mut state = State::new(depth, None);
        for _ in 0..vms {
            state.join(Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        }
        Bench { state, now: Time(0) }
    }

    fn ask(&mut self, vm: u32, number: u32, bytes: u64) {
        self.state.ask(vm, number, read(bytes), None, self.now);
        self.state.grant(Some(vm), self.now);
    }

    fn done(&mut self, vm: u32, number: u32, next: Option<Work>) {
        self.state.done(vm, number, self.now);
        if let Some(work) = next {
            self.state.ask(vm, number, work, None, self.now);
        }
        self.state.grant(Some(vm), self.now);
    }

    /// The one piece that was granted is served. Returns whose it was.
    fn serve(&mut self, bytes: &[u64]) -> u32 {
        let vms = u32::try_from(bytes.len()).unwrap();
        let granted = (0..vms).flat_map(|vm| {
            let numbers = self.state.granted(vm);
            numbers.into_iter().map(move |number| (vm, number))
        });
        let granted: Vec<_> = granted.collect();
        let [(vm, number)] = granted[..] else { panic!("{granted:?}") };
        self.now = self.now.plus(64 * KIB + bytes[vm as usize]);
        self.done(vm, number, Some(read(bytes[vm as usize])));
        vm
    }
}

fn read(bytes: u64) -> Work {
    Work { operation: DiskOperation::Read, offset: 0, bytes }
}

#[test]
fn the_disk_has_no_more_to_do_than_its_depth_and_as_much_as_it_answers_in_time() {
    let mut bench = Bench::new(4, 1);
    (0..16).for_each(|number| bench.ask(0, number, 4096));
    let mut has = bench.state.granted(0);
    assert_eq!(has, [0], "nothing is known of the disk yet");
    let mut most = 0;
    for _ in 0..100 {
        bench.now = bench.now.plus(MS / 10);
        bench.done(0, has.remove(0), Some(read(4096)));
        has.extend(bench.state.granted(0));
        most = most.max(has.len());
        assert!(has.len() <= 4, "{has:?}");
    }
    assert_eq!(most, 4);
    for _ in 0..20 {
        bench.now = bench.now.plus(100 * MS);
        bench.done(0, has.remove(0), Some(read(4096)));
        has.extend(bench.state.granted(0));
    }
    assert_eq!(has.len(), 1, "what waits, waits here");
}

#[test]
fn flushes_that_take_long_leave_others_as_much_room() {
    let mut bench = Bench::new(4, 2);
    (0..16).for_each(|number| bench.ask(0, number, 4096));
    let mut has = bench.state.granted(0);
    for _ in 0..100 {
        bench.now = bench.now.plus(MS / 10);
        bench.done(0, has.remove(0), Some(read(4096)));
        has.extend(bench.state.granted(0));
    }
    let flush = Work { operation: DiskOperation::Flush, offset: 0, bytes: 0 };
    bench.state.ask(1, 0, flush, None, bench.now);
    let mut flushes = 0;
    for round in 0..1000 {
        bench.now = bench.now.plus(MS);
        bench.done(0, has.remove(0), Some(read(4096)));
        // Each is under way for 50 ms, and others are served meanwhile.
        if round % 50 == 49 && !bench.state.granted(1).is_empty() {
            bench.done(1, 0, Some(flush));
            flushes += 1;
        }
        has.extend(bench.state.granted(0));
        assert!(has.len() >= 3, "{has:?} in round {round}");
    }
    assert!(flushes > 10, "{flushes}");
}

#[test]
fn vms_share_the_disk_by_its_time_and_not_by_requests() {
    let mut bench = Bench::new(1, 2);
    let bytes = [64 * KIB, 960 * KIB];
    for (vm, bytes) in (0..).zip(bytes) {
        (0..8).for_each(|number| bench.ask(vm, number, bytes));
    }
    // Until it is known what the requests of each cost.
    for _ in 0..1000 {
        bench.serve(&bytes);
    }
    let small = (0..900).filter(|_| bench.serve(&bytes) == 0).count();
    assert!((790..=810).contains(&small), "1 MiB each costs as much as 8 times 128 KiB: {small}");
}

#[test]
fn who_was_idle_has_saved_up_nothing() {
    let mut bench = Bench::new(1, 2);
    let bytes = [4096; 2];
    bench.ask(1, 0, 4096);
    bench.state.granted(1);
    bench.done(1, 0, None);
    (0..8).for_each(|number| bench.ask(0, number, 4096));
    (0..100_000).for_each(|_| assert_eq!(bench.serve(&bytes), 0));
    (0..8).for_each(|number| bench.ask(1, number, 4096));
    let idle = (0..100).filter(|_| bench.serve(&bytes) == 1).count();
    assert!((45..=55).contains(&idle), "{idle} of 100 were of the VM that had been idle");
}

#[test]
fn a_vm_is_woken_when_another_makes_room_for_it() {
    let scheduler = Scheduler::new(1, false).unwrap();
    let [one, other] = [(); 2].map(|()| scheduler.join().unwrap());
    let woken = |share: &Share| {
        let wake = share.wake();
        poll(&mut [PollFd::new(&wake, PollFlags::IN)], Some(&rustix::time::Timespec::default())).unwrap() > 0
    };
    one.ask(7, read(4096), None);
    other.ask(8, read(4096), None);
    assert_eq!((one.granted(), other.granted(), woken(&other)), (vec![7], vec![], false));
    one.done(7, None);
    assert_eq!((other.granted(), woken(&other), woken(&one)), (vec![8], true, false));
}

#[test]
fn an_arm_is_kept_for_a_while_and_then_moves_on() {
    let scheduler = Scheduler::new(1, true).unwrap();
    let [one, other] = [(); 2].map(|()| scheduler.join().unwrap());
    one.ask(7, read(4096), None);
    other.ask(8, read(4096), None);
    assert_eq!((one.granted(), other.granted()), (vec![7], vec![]));
    one.done(7, None);
    assert!(other.granted().is_empty(), "more of the first one may come");
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| scheduler.keep_time(&stop));
        let wake = other.wake();
        let patience = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
        let woken = poll(&mut [PollFd::new(&wake, PollFlags::IN)], Some(&patience)).unwrap();
        rustix::io::write(&stop, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!((woken, other.granted()), (1, vec![8]));
        keeper.join().unwrap().unwrap();
    });
}

/// Sealed memory in which vCPU 0 notified for task 7, once, and runs task 8.
fn memory(seals: SealFlags) -> OwnedFd {
    let file = memfd_create("askers", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    for word in [8_u64, 7, 1] {
        rustix::io::write(&file, &word.to_ne_bytes()).unwrap();
    }
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn askers(disk: u16, vcpus: u16) -> FromDaemon {
    FromDaemon::Askers {
        disk,
        vcpus,
        layout: Layout { current: 0, notified: 8, notifications: 16, stride: 0 },
    }
}

/// A VM that is connected, of which the daemon tells who asks.
fn known() -> Bench {
    let mut bench = Bench::new(4, 1);
    let (connection, _) = UnixStream::pair().unwrap();
    bench.state.attached(0, Some((connection.into(), 1)), "alice");
    bench.state.vms[0].set_queues(1, vec![5]);
    bench.state.daemon_said(askers(0, 1), Some(memory(SealFlags::SHRINK)), bench.now);
    bench
}

impl Bench {
    /// The task that asks for what is taken from the first queue.
    fn task(&mut self, notified: bool) -> Option<u64> {
        let asker = self.state.vms[0].asker(Source { queue: 0, notified });
        asker.and_then(|asker| asker.task).map(|task| task.0)
    }

    /// Asks for a read, and returns how many were served in each class then.
    fn read(&mut self, number: u32) -> [u64; 3] {
        let asker = self.state.vms[0].asker(Source { queue: 0, notified: true });
        self.state.ask(0, number, read(4096), asker, self.now);
        self.state.grant(Some(0), self.now);
        self.state.granted(0);
        self.state.done(0, number, self.now);
        self.state.vms[0].report(Vec::new).unwrap().served
    }

    fn input(&mut self, disk: u16) {
        let input = FromDaemon::Input { disk, input: UserInput::Enter, at_ns: self.now.0 };
        self.state.daemon_said(input, None, self.now);
    }
}

#[test]
fn what_a_person_waits_for_is_high_while_the_daemon_tells() {
    let mut bench = known();
    assert_eq!(bench.read(0), [0, 1, 0], "nobody has done anything");
    bench.now = bench.now.plus(10_000 * MS);
    bench.input(0);
    assert_eq!(bench.read(1), [1, 1, 0]);
    bench.state.daemon_went();
    assert_eq!(bench.read(2), [1, 2, 0], "served all the same");
    // Of another VM on the same disk nothing is known.
    bench.state.attached(0, None, "alice");
    assert!(bench.state.vms[0].report(Vec::new).is_none());
}

#[test]
fn who_asks_is_who_notified_or_who_runs_where_each_vcpu_has_a_queue() {
    let mut bench = known();
    assert_eq!((bench.task(true), bench.task(false)), (Some(7), Some(8)));
    assert_eq!(bench.task(true), Some(8), "its vCPU is not done with notifying, and so runs who asks");
    bench.state.daemon_said(askers(0, 2), Some(memory(SealFlags::SHRINK)), bench.now);
    assert_eq!(bench.task(true), None, "one queue of two vCPUs");
    bench.state.vms[0].set_queues(2, vec![5, 6]);
    assert_eq!(bench.task(true), Some(8));
    bench.state.daemon_said(FromDaemon::NoAskers { disk: 0 }, None, bench.now);
    assert_eq!(bench.task(true), None);
}

#[test]
fn each_daemon_is_told_once_by_what_a_guest_notifies() {
    let mut bench = known();
    let told = |bench: &mut Bench| {
        let (daemon, disk) = channels();
        bench.state.daemon_came(Arc::new(disk));
        bench.state.report();
        bench.state.report();
        let said = std::iter::from_fn(|| daemon.receive::<FromDisk>().unwrap());
        let said = said.map(|(message, _)| message);
        said.filter(|message| matches!(message, FromDisk::Notifiers { .. })).collect::<Vec<_>>()
    };
    let by = |eventfds: &[u32]| vec![FromDisk::Notifiers { disk: 0, eventfds: eventfds.to_vec() }];
    assert_eq!(told(&mut bench), by(&[5]));
    bench.state.vms[0].set_queues(2, vec![5, 6]);
    assert_eq!(told(&mut bench), by(&[5, 6]));
    bench.state.attached(0, None, "alice");
    assert_eq!(told(&mut bench), [], "nobody is connected");
}

/// Both ends of a daemon's connection.
fn channels() -> (Channel, Channel) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.disk");
    let listener = listen(&path, None).unwrap();
    let disk = Channel::connect(&path).unwrap();
    (Channel::accept(&listener).unwrap(), disk)
}

#[test]
fn what_makes_no_sense_of_a_daemon_is_not_believed() {
    let mut bench = known();
    for disk in [1, u16::MAX] {
        bench.input(disk);
        bench.state.daemon_said(askers(disk, 1), Some(memory(SealFlags::SHRINK)), bench.now);
    }
    for (vcpus, memory) in
        [(1, None), (1, Some(memory(SealFlags::GROW))), (0, Some(memory(SealFlags::SHRINK)))]
    {
        bench.state.daemon_said(askers(0, vcpus), memory, bench.now);
        assert_eq!(bench.task(true), None);
    }
    // One that is not connected.
    bench.state.attached(0, None, "alice");
    bench.state.daemon_said(askers(0, 1), Some(memory(SealFlags::SHRINK)), bench.now);
    assert_eq!(bench.task(true), None);
}
