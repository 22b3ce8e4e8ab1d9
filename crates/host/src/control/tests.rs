//! The server against clients as they may be, with a loop of the test's own.

use super::*;
use crate::status::{DaemonFacts, Tally, status};
use frontdesk_control_protocol::*;
use frontdesk_engine::{Engine, Event, EventKind, Protocol, TaskId, Thread, Time, VmId};
use frontdesk_testing::{Need, leave_out};
use permit::MAX_CLIENTS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

mod metrics;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Two VMs: in "alice" a server answers beside a hog, and "bob" cannot be looked into.
fn engine() -> Engine {
    let mut engine = Engine::new(frontdesk_engine::Config::default()).unwrap();
    let mut now = 10_000 * MS;
    let mut feed = |after: u64, kind| {
        now += after;
        engine.on_event(&Event { at: Time(now), kind });
    };
    let (alice, bob) = (VmId(0), VmId(1));
    let (vcpu, emulator) = (Thread::Vcpu(0), Thread::Emulator(0));
    let (hog, server) = (TaskId(0x1000), TaskId(0x2000));
    feed(0, EventKind::VmAdded { vm: alice, vcpus: 1, weight: 1024 });
    feed(0, EventKind::VmAdded { vm: bob, vcpus: 2, weight: 512 });
    feed(0, EventKind::Run { vm: alice, thread: vcpu, pcpu: 0 });
    feed(0, EventKind::TaskSwitch { vm: alice, vcpu: 0, task: hog });
    feed(0, EventKind::Packet { vm: bob, protocol: Protocol::Udp, port: 53 });
    for _ in 0..12 {
        feed(50 * MS, EventKind::Packet { vm: alice, protocol: Protocol::Tcp, port: 7 });
        feed(0, EventKind::Stop { vm: alice, thread: vcpu, runnable: true });
        feed(0, EventKind::Run { vm: alice, thread: emulator, pcpu: 0 });
        feed(50 * US, EventKind::Stop { vm: alice, thread: emulator, runnable: false });
        feed(0, EventKind::Run { vm: alice, thread: vcpu, pcpu: 0 });
        feed(50 * US, EventKind::TaskSwitch { vm: alice, vcpu: 0, task: server });
        feed(200 * US, EventKind::TaskSwitch { vm: alice, vcpu: 0, task: hog });
    }
    engine
}

/// What a daemon with these VMs answers.
fn answer(request: &StatusRequest) -> Result<Status, Refusal> {
    let daemon = DaemonFacts {
        acting: true,
        mechanism: "real time".to_owned(),
        ejection: None,
        sources: vec![SourceStatus {
            name: "eBPF".to_owned(),
            in_use: true,
            found: "threads, packets, reads and displays".to_owned(),
        }],
    };
    let exact = Some(IdentityStatus { source: "QEMU plugin".to_owned(), exact: true });
    let trouble = Some("it runs without frontdesk's QEMU plugin".to_owned());
    let vms = [
        (
            VmId(1),
            VmFacts { name: "bob", pid: 12, trouble, unheard: Vec::new(), identity: None, extension: None },
        ),
        (
            VmId(0),
            VmFacts {
                name: "alice",
                pid: 11,
                trouble: None,
                unheard: Vec::new(),
                identity: exact,
                extension: None,
            },
        ),
    ];
    let mut tally = Tally::new(Time(9_000 * MS));
    status(request, Time(10_700 * MS), &engine(), &mut tally, daemon, vms.into_iter())
}

/// It has no reservations, and half of CPU 1 is free.
fn reservation(query: &Query) -> Result<Answer, Refusal> {
    let free = vec![CpuRoom { cpu: 1, reserved_ratio: 0.25, free_ratio: 0.5 }];
    match query {
        Query::Reservations {} => Ok(Answer::Reservations(Box::new(Reservations {
            schema: SCHEMA,
            at_ns: 1,
            acting: true,
            mechanism: "user".to_owned(),
            reserve_ratio: 0.25,
            min_period_ns: 200 * US,
            max_period_ns: 86_400_000 * MS,
            min_slice_ns: 10 * US,
            deciding_ns: 0,
            cpus: free,
            reservations: Vec::new(),
        }))),
        Query::Reserve(asked) => Err(Refusal {
            fit: Some(Fit { slice_ns: asked.period_ns / 2, cpus: vec![1], free }),
            ..Refusal::new(RefusalKind::Infeasible, "too much")
        }),
        _ => Err(Refusal::new(RefusalKind::NotReserved, "it has no reservation")),
    }
}

/// A server with a loop that answers; ended with the value.
struct World {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    /// Requests that reached the loop.
    asked: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    fn new(config: impl FnOnce(&mut ControlConfig)) -> World {
        let folder = tempfile::tempdir().unwrap();
        let mut settings =
            ControlConfig { socket: folder.path().join("run/control.sock"), ..Default::default() };
        config(&mut settings);
        let control = Control::start(&settings).unwrap();
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (told, count) = (Arc::clone(&stop), Arc::clone(&asked));
        let thread = std::thread::spawn(move || {
            let tick = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            while !told.load(Ordering::Acquire) {
                poll(&mut [PollFd::new(&control.fd(), PollFlags::IN)], Some(&tick)).unwrap();
                while let Some(request) = control.next_request() {
                    count.fetch_add(1, Ordering::AcqRel);
                    match request {
                        ControlRequest::Status(request) => {
                            let answer = answer(&request);
                            request.answer(answer);
                        }
                        ControlRequest::Record(request) => {
                            request.accept().unwrap().write_all(b"recorded").unwrap();
                        }
                        ControlRequest::Reservation(request) => {
                            let answer = reservation(&request.query);
                            request.answer(answer);
                        }
                    }
                }
            }
        });
        World { folder, stop, asked, thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/control.sock")
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Sends something as it is; everything that comes back. A daemon that has had enough does not hear all of
/// it.
fn say(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn refusal(socket: &Path, bytes: &[u8]) -> RefusalKind {
    match serde_json::from_str(&say(socket, bytes)).unwrap() {
        Answer::Refused(refusal) => refusal.kind,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_state_is_told_as_documented() {
    let world = World::new(|_| {});
    let status = ask_status(&world.socket(), None).unwrap();
    assert!(status.in_trouble(), "bob is");
    let alice = ask_status(&world.socket(), Some("alice")).unwrap();
    assert_eq!(alice.vms, status.vms[..1], "her tables are small");
    let unknown = ask_status(&world.socket(), Some("carol")).unwrap_err();
    assert!(matches!(&unknown, ClientError::Refused(refusal) if refusal.kind == RefusalKind::UnknownVm));
    assert_eq!(unknown.to_string(), "the daemon refuses: no VM is named \"carol\"; followed are: alice, bob");
    // The schema: a change here is a change for everybody who reads it.
    insta::assert_json_snapshot!(status, {
        ".daemon.pid" => "[pid]",
        ".daemon.version" => "[version]",
        ".daemon.cpu_seconds" => "[seconds]",
        ".vms[].memory_bytes" => "[bytes]",
    });
}

#[test]
fn nonsense_is_refused_and_never_reaches_the_loop() {
    let world = World::new(|_| {});
    let socket = world.socket();
    let long = format!("{{\"status\":{{\"vm\":\"{}\"}}}}\n", "x".repeat(5000));
    let flood = vec![b'x'; 10 << 20];
    for request in [
        &b"\n"[..],
        b"hello\n",
        b"",
        b"{\"status\":{}}",
        b"\xff\x00\n",
        b"{\"stop\":{}}\n",
        long.as_bytes(),
        &flood,
    ] {
        assert_eq!(refusal(&socket, request), RefusalKind::Malformed);
    }
    let nested = format!("{}\n", "[".repeat(4000));
    assert_eq!(refusal(&socket, nested.as_bytes()), RefusalKind::Malformed);
    assert_eq!(world.asked(), 0);
    assert!(say(&socket, b"{\"status\":{}}\nand more\n").starts_with("{\"status\":{\"schema\":2,"));
    assert_eq!(world.asked(), 1);
}

/// As many clients that stall as there are places: the next ones are turned away, until the stalling ones are
/// dropped.
#[test]
fn clients_that_stall_are_dropped() {
    let world = World::new(|_| {});
    let socket = world.socket();
    let mut stalling: Vec<UnixStream> =
        (0..MAX_CLIENTS).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    stalling.iter_mut().for_each(|stream| stream.write_all(b"{\"stat").unwrap());
    assert_eq!(refusal(&socket, b"{\"status\":{}}\n"), RefusalKind::Busy);
    for mut stream in stalling {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.contains("\"malformed\""), "{answer}");
    }
    // The last place is free a little after its client was answered.
    while matches!(
        ask_status(&socket, None),
        Err(ClientError::Refused(Refusal { kind: RefusalKind::Busy, .. }))
    ) {}
    ask_status(&socket, None).unwrap();
}

#[test]
fn many_clients_are_served_or_turned_away() {
    let world = World::new(|_| {});
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let socket = world.socket();
            std::thread::spawn(move || match ask_status(&socket, Some("alice")) {
                Ok(status) => status.vms.len(),
                Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::Busy => 0,
                Err(error) => panic!("{error}"),
            })
        })
        .collect();
    let served: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert!(served > 0);
    assert_eq!(world.asked(), served);
}

/// Calls `ask` in a thread that belongs to the user nobody and to the group `group` besides.
fn as_nobody<T: Send + 'static>(group: Option<u32>, ask: impl FnOnce() -> T + Send + 'static) -> T {
    const NOBODY: libc::c_long = 65_534;
    let become_nobody = move || {
        let groups: Vec<u32> = group.into_iter().collect();
        // SAFETY: the system calls, unlike the library's functions, change the calling thread only, which
        // ends soon; `groups` has as many entries as is said.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
        }
        ask()
    };
    std::thread::spawn(become_nobody).join().unwrap()
}

#[test]
fn only_root_and_the_group_may_look_in() {
    if !rustix::process::geteuid().is_root() {
        return leave_out(
            "only_root_and_the_group_may_look_in",
            Need::Root,
            "others cannot become somebody else",
        );
    }
    const DAEMON: u32 = 1;
    let world = World::new(|config| config.group = Some("daemon".to_owned()));
    let socket = world.socket();
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(world.folder.path(), 0o755);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let ask = |group| {
        let socket = socket.clone();
        as_nobody(group, move || ask_status(&socket, None))
    };
    assert!(matches!(ask(None), Err(ClientError::Denied(_))), "by the mode of the socket");
    assert_eq!(ask(Some(DAEMON)).unwrap().vms.len(), 2);
    // Were the mode not there, the kernel's word on who connects still is.
    open(&socket, 0o666);
    assert_eq!(ask(Some(DAEMON)).unwrap().vms.len(), 2);
    let refused = ask(None).unwrap_err();
    assert!(refused.to_string().contains("members of the group daemon"), "{refused}");
    assert!(matches!(refused, ClientError::Refused(refusal) if refusal.kind == RefusalKind::Forbidden));
}

/// What comes back when a reservation is released that there is not.
fn release(socket: &Path) -> RefusalKind {
    match ask(socket, &Query::Release { target: Target::Vm("desk".into()) }).unwrap_err() {
        ClientError::Refused(refusal) => refusal.kind,
        error => panic!("{error}"),
    }
}

#[test]
fn who_may_look_in_may_not_change() {
    if !rustix::process::geteuid().is_root() {
        return leave_out("who_may_look_in_may_not_change", Need::Root, "others cannot become somebody else");
    }
    const DAEMON: u32 = 1;
    const BIN: u32 = 2;
    let world = World::new(|config| {
        config.group = Some("daemon".to_owned());
        config.operators = "bin".to_owned();
    });
    std::fs::set_permissions(world.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = world.socket();
    assert_eq!(release(&socket), RefusalKind::NotReserved, "root may do all");
    for (group, may) in [(None, [false, false]), (Some(DAEMON), [true, false]), (Some(BIN), [true, true])] {
        let socket = socket.clone();
        let (look, change) =
            as_nobody(group, move || (ask(&socket, &Query::Reservations {}).is_ok(), release(&socket)));
        assert_eq!([look, change == RefusalKind::NotReserved], may, "group {group:?}");
        assert!(may[1] || change == RefusalKind::Forbidden);
    }
}

#[test]
fn operators_have_their_targets() {
    if !rustix::process::geteuid().is_root() {
        return leave_out("operators_have_their_targets", Need::Root, "others cannot become somebody else");
    }
    const BIN: u32 = 2;
    let world = World::new(|config| config.operators = "bin".to_owned());
    std::fs::set_permissions(world.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let kind = |query: &Query, group: Option<u32>| {
        let (socket, query) = (world.socket(), query.clone());
        let refused = |answer: Result<Answer, ClientError>| match answer.unwrap_err() {
            ClientError::Refused(refusal) => refusal.kind,
            error => panic!("{error}"),
        };
        match group {
            Some(_) => as_nobody(group, move || refused(ask(&socket, &query))),
            None => refused(ask(&socket, &query)),
        }
    };
    let reserve = |target| {
        Query::Reserve(Reserve { target, period_ns: 10 * MS, slice_ns: 8 * MS, hard: false, phase_ns: None })
    };
    // VMs are theirs, and what is refused is refused for another reason; the host's own processes are not.
    assert_eq!(kind(&reserve(Target::Vm("desk".into())), Some(BIN)), RefusalKind::Infeasible);
    for target in [Target::Process(1), Target::Unit("ssh.service".into()), Target::Cgroup("/".into())] {
        assert_eq!(kind(&reserve(target.clone()), Some(BIN)), RefusalKind::Forbidden, "{target}");
        for query in [
            Query::Pause { target: target.clone() },
            Query::Resume { target: target.clone() },
            Query::Release { target: target.clone() },
        ] {
            assert_eq!(kind(&query, Some(BIN)), RefusalKind::Forbidden, "{query:?}");
        }
        assert_eq!(kind(&reserve(target.clone()), None), RefusalKind::Infeasible, "root may all");
    }
}

#[test]
fn an_infeasible_reservation_is_told_what_fits() {
    let world = World::new(|_| {});
    let asked = Query::Reserve(Reserve {
        target: Target::Process(1),
        period_ns: 10 * MS,
        slice_ns: 8 * MS,
        hard: false,
        phase_ns: None,
    });
    let ClientError::Refused(refusal) = ask(&world.socket(), &asked).unwrap_err() else { panic!() };
    assert_eq!(refusal.kind, RefusalKind::Infeasible);
    let fit = refusal.fit.unwrap();
    assert_eq!((fit.slice_ns, fit.cpus), (5 * MS, vec![1]));
}

#[test]
fn processes_can_be_found() {
    let world = World::new(|_| {});
    // Served by this process, which leaves out itself and its children.
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let Answer::Targets(told) = ask(&world.socket(), &Query::Targets {}).unwrap() else { panic!() };
    child.kill().unwrap();
    child.wait().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let pids: Vec<i32> = told.targets.iter().map(|target| target.pid).collect();
    assert!(pids.len() + told.left_off > 1 && !pids.contains(&own), "{pids:?}");
    assert!(!pids.contains(&i32::try_from(child.id()).unwrap()));
    assert!(told.targets.iter().all(|told| told.target == Target::Process(told.pid)));
}

#[test]
fn a_group_that_is_not_there_is_named() {
    let config = ControlConfig { group: Some("no-such-group".to_owned()), ..ControlConfig::default() };
    let error = Control::start(&config).unwrap_err().to_string();
    assert!(error.contains("control.group = \"no-such-group\""), "{error}");
}

#[test]
fn a_live_socket_is_left_alone_and_a_dead_one_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let config = ControlConfig { socket: folder.path().join("control.sock"), ..ControlConfig::default() };
    // What a daemon leaves that was killed.
    drop(std::os::unix::net::UnixListener::bind(&config.socket).unwrap());
    let first = Control::start(&config).unwrap();
    let error = Control::start(&config).unwrap_err();
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(error, ControlError::InUse { pid, .. } if pid == own), "{error}");
    assert!(std::fs::symlink_metadata(&config.socket).unwrap().file_type().is_socket());
    drop(first);
    assert!(!config.socket.exists(), "removed at the end");
    std::fs::write(&config.socket, "somebody's file").unwrap();
    let error = Control::start(&config).unwrap_err();
    assert!(matches!(error, ControlError::Socket { what: "bind", .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&config.socket).unwrap(), "somebody's file");
}

#[test]
fn without_a_daemon_the_client_says_how_to_start_one() {
    let folder = tempfile::tempdir().unwrap();
    let error = ask_status(&folder.path().join("none.sock"), None).unwrap_err();
    assert!(error.to_string().contains("frontdesk run"), "{error}");
    // The socket is there, but the loop is dead or the daemon ends.
    let config = ControlConfig { socket: folder.path().join("control.sock"), ..ControlConfig::default() };
    let control = Control::start(&config).unwrap();
    let error = ask_status(&config.socket, None).unwrap_err().to_string();
    assert_eq!(error, "the daemon refuses: the daemon's loop does not answer");
    drop(control);
    assert!(matches!(ask_status(&config.socket, None), Err(ClientError::NoDaemon(_))));
}

#[test]
fn a_recording_goes_over_the_connection() {
    let world = World::new(|_| {});
    assert_eq!(say(&world.socket(), b"{\"record\":{}}\n"), "{\"record\":{}}\nrecorded");
    let (ours, theirs) = UnixStream::pair().unwrap();
    RecordRequest::new(theirs).refuse("not now");
    let mut answer = String::new();
    (&ours).read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "{\"refused\":{\"kind\":\"unavailable\",\"message\":\"not now\"}}\n");
}
