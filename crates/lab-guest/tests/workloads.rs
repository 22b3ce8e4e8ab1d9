//! The workloads, on this machine instead of in a VM.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use frontdesk_lab_guest::{DATA, DEBIAN, Job, Measurement, Work};
use frontdesk_testing::{Need, leave_out};
use frontdesk_workload::{Protocol, Storm, WorkloadKind};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const GUEST: &str = env!("CARGO_BIN_EXE_frontdesk-lab-guest");
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A folder that is removed with all that is in it.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> TemporaryFolder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir(&path).unwrap();
        TemporaryFolder(path)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program in a role, which takes what it does and the file of its records as further arguments.
fn guest(role: &str) -> Command {
    let mut command = Command::new(GUEST);
    command.arg(role);
    command
}

/// Puts what it runs where the root of this machine is at [`DEBIAN`], as the Debian system is in a VM.
/// Whatever it starts ends with it.
fn in_debian() -> Command {
    const SCRIPT: &str = r#"
        set -e
        root=$(dirname "$4")/root
        mkdir "$root"
        mount -t tmpfs none "$root"
        mkdir "$root/usr" "$root$2"
        mount --bind /usr "$root/usr"
        cp -a /lib* "$root"
        cp "$1" "$root/guest"
        touch "$root/records"
        mount --bind "$4" "$root/records"
        mount --rbind / "$root$2"
        chroot "$root" /guest job "$3" /records
        exit $?
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "sh", GUEST, DEBIAN]);
    command
}

/// A running workload; dropping it kills it.
struct Running {
    process: Child,
    output: BufReader<ChildStdout>,
    records: File,
    _folder: TemporaryFolder,
}

impl Running {
    fn start(command: Command, what: &impl serde::Serialize) -> Running {
        let mut running = Running::try_start(command, what);
        let mut line = String::new();
        running.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        running
    }

    fn try_start(mut command: Command, what: &impl serde::Serialize) -> Running {
        let folder = TemporaryFolder::new();
        let path = folder.0.join("records");
        let records = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let command = command.arg(serde_json::to_string(what).unwrap()).arg(path);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Running { process, output, records, _folder: folder }
    }

    /// CPU time it has used.
    fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.process.id())).unwrap();
        Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Its children, dead ones too.
    fn children(&self) -> Vec<String> {
        let id = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        children.split_whitespace().map(str::to_owned).collect()
    }

    fn number(&self, index: u64) -> u64 {
        let mut number = [0; 8];
        self.records.read_exact_at(&mut number, 8 * index).map_or(0, |()| u64::from_le_bytes(number))
    }

    fn operations(&self) -> u64 {
        self.number(0)
    }

    fn bytes(&self) -> u64 {
        self.number(1)
    }

    /// Kinds of the stamps so far, as numbers.
    fn stamps(&self) -> Vec<u64> {
        (0..self.number(2)).map(|stamp| self.number(3 + 2 * stamp + 1)).collect()
    }

    /// Waits for an end that is a failure and says what it printed.
    fn fails(mut self) -> String {
        let mut output = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut output).unwrap();
        assert!(!self.process.wait().unwrap().success(), "{output}");
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Why a workload does not start.
fn failure(command: Command, kind: WorkloadKind) -> String {
    let mut running = Running::try_start(command, &Job::from(kind));
    let mut line = String::new();
    running.output.read_line(&mut line).unwrap();
    assert_eq!(line, "", "it started");
    running.fails()
}

/// Waits until something is so. On any machine that is long before it gives up.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(600), "waited in vain until {what}");
        sleep(Duration::from_millis(1));
    }
}

/// A port that was free a moment ago.
fn free_port(protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Tcp => TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port(),
        Protocol::Udp => UdpSocket::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port(),
    }
}

fn udp_client() -> UdpSocket {
    let client = UdpSocket::bind((LOCAL, 0)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
    client
}

/// Kinds of stamps: the server woke for a request, and was about to answer it.
const WAKE: u64 = 0;
const REPLY: u64 = 5;

#[test]
fn tcp_echo_serves_many_clients_at_once() {
    let port = free_port(Protocol::Tcp);
    let kind = WorkloadKind::Echo { protocol: Protocol::Tcp, port, cost: Duration::from_millis(1) };
    let echo = Job::Workload { kind, steps_per_s: 1_000_000_000 };
    let echo = Running::start(guest("job"), &echo);
    let mut clients: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect((LOCAL, port)).unwrap()).collect();
    for round in 0..4u8 {
        // All ask before the first one listens, and one of them leaves.
        for (client, number) in clients.iter_mut().zip(0u8..) {
            client.write_all(&[round, number, 7]).unwrap();
        }
        for (client, number) in clients.iter_mut().zip(0u8..) {
            let mut answer = [0; 3];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [round, number, 7]);
        }
        clients.remove(0);
    }
    let requests = 5 + 4 + 3 + 2;
    assert_eq!((echo.operations(), echo.bytes()), (requests, 0));
    let stamped = |kind: u64| echo.stamps().iter().filter(|stamp| **stamp == kind).count();
    // It may wake for several at once, but answers each. An answer is stamped after it was sent.
    wait_until("it has stamped all answers", || stamped(REPLY) == 14);
    assert!((4..=14).contains(&stamped(WAKE)) && echo.stamps().len() == stamped(WAKE) + 14);
    // Each of the million steps takes several cycles.
    assert!(echo.cpu_time() >= Duration::from_millis(requests), "{:?}", echo.cpu_time());
}

#[test]
fn udp_echo_answers_whoever_asks() {
    let port = free_port(Protocol::Udp);
    let echo = WorkloadKind::Echo { protocol: Protocol::Udp, port, cost: Duration::ZERO };
    let echo = Running::start(guest("job"), &Job::from(echo));
    for message in [&b"one"[..], b"another"] {
        let client = udp_client();
        client.send_to(message, (LOCAL, port)).unwrap();
        let mut buffer = [0; 16];
        let length = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], message);
    }
    wait_until("both answers are stamped", || echo.stamps() == [WAKE, REPLY, WAKE, REPLY]);
    assert_eq!((echo.operations(), echo.bytes()), (2, 0));
}

#[test]
fn shift_answers_only_while_it_is_io_bound() {
    let port = free_port(Protocol::Udp);
    let shift = Running::start(
        guest("job"),
        &Job::from(WorkloadKind::Shift { port, period: Duration::from_millis(20) }),
    );
    let client = udp_client();
    let mut number = 0u64;
    wait_until("it has shifted often", || {
        number += 1;
        client.send_to(&number.to_le_bytes(), (LOCAL, port)).unwrap();
        let mut answer = [0; 8];
        assert_eq!(client.recv(&mut answer).unwrap(), 8);
        assert_eq!(u64::from_le_bytes(answer), number);
        shift.stamps().iter().filter(|kind| **kind == 4).count() >= 5
    });
    assert_eq!(shift.operations(), number);
    // Which of the two it is, then whether it wakes for a request and answers.
    let mut io_bound = false;
    for kind in shift.stamps() {
        match kind {
            3 | 4 => {
                assert_eq!(io_bound, kind == 4, "shifts to the other");
                io_bound = kind == 3;
            }
            _ => assert!(io_bound, "woke for a request while it computed"),
        }
    }
    let period = Duration::ZERO;
    assert!(failure(guest("job"), WorkloadKind::Shift { port, period }).contains("must not be 0"));
}

#[test]
fn sink_takes_what_many_clients_send() {
    let port = free_port(Protocol::Tcp);
    let sink = Running::start(guest("job"), &Job::from(WorkloadKind::Sink { port }));
    let mut clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect((LOCAL, port)).unwrap()).collect();
    for client in &mut clients {
        client.write_all(&vec![7; 1 << 20]).unwrap();
    }
    clients.remove(1);
    clients[1].write_all(b"more").unwrap();
    wait_until("all is taken", || sink.bytes() == (3 << 20) + 4);
    assert!(sink.operations() > 3);
    assert!(sink.stamps().is_empty());
}

#[test]
fn messages_runs_again_and_again() {
    let messages = Running::start(guest("job"), &Job::from(WorkloadKind::Messages { tasks: 80, rounds: 2 }));
    wait_until("it has run three times", || messages.operations() >= 3);
    assert_eq!(messages.stamps()[..6], [1, 2, 1, 2, 1, 2]);
    for tasks in [0, 39, 50] {
        let error = failure(guest("job"), WorkloadKind::Messages { tasks, rounds: 1 });
        assert!(error.contains("multiple of 40"), "{error}");
    }
}

#[test]
fn hog_and_churn_and_switches_count() {
    for workload in [WorkloadKind::Hog, WorkloadKind::Churn, WorkloadKind::Storm { of: Storm::Switches }] {
        let running = Running::start(guest("job"), &Job::from(workload));
        wait_until("it has done something", || running.operations() >= 5);
    }
}

#[test]
fn the_storm_of_tasks_has_a_bound() {
    let storm = Running::start(guest("job"), &Job::from(WorkloadKind::Storm { of: Storm::Tasks }));
    let mut last = Vec::new();
    wait_until("it has started many", || {
        last = storm.children();
        assert!(last.len() <= 64, "{} at once", last.len());
        storm.operations() >= 500
    });
    drop(storm);
    // This machine may leave the dead as they are.
    let is_alive = |id: &String| {
        let status = std::fs::read_to_string(format!("/proc/{id}/stat"));
        status.is_ok_and(|status| status.contains("frontdesk") && !status.contains(") Z "))
    };
    wait_until("all tasks are gone", || !last.iter().any(is_alive));
}

#[test]
fn the_storm_of_packets_needs_a_network() {
    let error = failure(guest("job"), WorkloadKind::Storm { of: Storm::Packets });
    assert!(error.contains("frontdesk.ip"), "{error}");
}

#[test]
fn work_ends_with_its_measurement() {
    for work in [Work::Spin { steps: 1000 }, Work::Fork { rounds: 3 }] {
        let mut running = Running::start(guest("work"), &work);
        let mut rest = String::new();
        running.output.read_to_string(&mut rest).unwrap();
        let measurement: Measurement = serde_json::from_str(&rest).unwrap();
        assert!(measurement.elapsed > Duration::ZERO, "{work:?}");
        assert!(running.process.wait().unwrap().success());
    }
}

#[test]
fn a_taken_port_is_reported() {
    let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let tcp_port = tcp.local_addr().unwrap().port();
    let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let udp_port = udp.local_addr().unwrap().port();
    let period = Duration::from_secs(1);
    for (workload, wanted) in [
        (
            WorkloadKind::Echo { protocol: Protocol::Tcp, port: tcp_port, cost: Duration::ZERO },
            format!("TCP port {tcp_port}"),
        ),
        (
            WorkloadKind::Echo { protocol: Protocol::Udp, port: udp_port, cost: Duration::ZERO },
            format!("UDP port {udp_port}"),
        ),
        (WorkloadKind::Shift { port: udp_port, period }, format!("UDP port {udp_port}")),
        (WorkloadKind::Sink { port: tcp_port }, format!("TCP port {tcp_port}")),
    ] {
        let error = failure(guest("job"), workload);
        assert!(error.contains(&format!("{wanted} is in use")), "{error}");
    }
}

#[test]
fn what_a_vm_does_not_have_is_reported() {
    if !Path::new(DATA).exists() {
        for workload in [WorkloadKind::ReadFiles, WorkloadKind::ReadBurn { cost: Duration::ZERO }] {
            let error = failure(guest("job"), workload);
            assert!(error.contains(DATA) && error.contains("`disk`"), "{error}");
        }
    }
    if !Path::new(DEBIAN).exists() {
        let error = failure(guest("job"), program(&["true"], true));
        assert!(error.contains(DEBIAN) && error.contains("no Debian system"), "{error}");
    }
}

fn program(command: &[&str], repeat: bool) -> WorkloadKind {
    let command = command.iter().copied().map(str::to_owned).collect();
    WorkloadKind::Program { command, repeat, cold: false }
}

fn may_unshare() -> bool {
    let status = Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).status();
    let may = status.is_ok_and(|status| status.success());
    if !may {
        leave_out("programs in guests", Need::Root, "the program unshare does not run, or may not");
    }
    may
}

#[test]
fn a_program_runs_again_and_again() {
    if !may_unshare() {
        return;
    }
    // It prints more than a pipe holds, and leaves a task behind.
    let script = r#"test "$PWD $HOME $LANG" = "/ /root C.UTF-8"; yes | head -c 100000; sleep 0.01 & exit"#;
    let running = Running::start(in_debian(), &Job::from(program(&["sh", "-ec", script], true)));
    wait_until("it has run three times", || running.operations() >= 3);
    assert_eq!(running.stamps()[..6], [1, 2, 1, 2, 1, 2]);
}

#[test]
fn a_program_that_fails_is_reported() {
    if !may_unshare() {
        return;
    }
    let missing = failure(in_debian(), program(&["no-such-program", "-x"], true));
    assert!(missing.contains("not found in the Debian system: no-such-program"), "{missing}");
    let empty = failure(in_debian(), program(&[], true));
    assert!(empty.contains("empty"), "{empty}");

    let script = "seq 100000; echo out of luck >&2; exit 3";
    let error = Running::start(in_debian(), &Job::from(program(&["sh", "-c", script], true))).fails();
    assert!(error.starts_with(&format!("sh -c {script} failed (exit code 3): ")), "{error}");
    assert!(error.ends_with("\n99999\n100000\nout of luck\n"), "{error}");
    assert!(error.len() < 4096, "{}", error.len());

    let server = failure(in_debian(), program(&["sh", "-c", "echo port 80 is taken; kill -9 $$"], false));
    assert!(server.contains("signal 9") && server.ends_with("port 80 is taken\n"), "{server}");
}

#[test]
fn a_server_runs_until_it_ends() {
    if !may_unshare() {
        return;
    }
    let folder = TemporaryFolder::new();
    let end = folder.0.join("end");
    let script = format!("until test -e {}; do sleep 0.01; done; echo bye", end.display());
    let running = Running::start(in_debian(), &Job::from(program(&["sh", "-c", &script], false)));
    File::create(&end).unwrap();
    let error = running.fails();
    assert!(error.contains("must not") && error.ends_with("(exit code 0): bye\n"), "{error}");
}
