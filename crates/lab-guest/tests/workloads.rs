//! The workloads, on this machine instead of in a VM.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use frontdesk_lab_guest::{Measurement, Protocol, Work, Workload};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A running workload; dropping it kills it.
struct Running {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(role: &str, what: &impl serde::Serialize) -> Running {
        let mut process = Command::new(env!("CARGO_BIN_EXE_frontdesk-lab-guest"))
            .args([role, &serde_json::to_string(what).unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Running { process, output }
    }

    /// CPU time it has used.
    fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.process.id())).unwrap();
        Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[test]
fn tcp_echo_serves_many_clients_at_once() {
    // A port that was free a moment ago.
    let port = TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port();
    let cost = Duration::from_millis(2);
    let echo = Running::start("workload", &Workload::Echo { protocol: Protocol::Tcp, port, cost });
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
    assert!(echo.cpu_time() >= cost * (5 + 4 + 3 + 2), "each request burns CPU: {:?}", echo.cpu_time());
}

#[test]
fn udp_echo_answers_whoever_asks() {
    let port = UdpSocket::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port();
    let _echo =
        Running::start("workload", &Workload::Echo { protocol: Protocol::Udp, port, cost: Duration::ZERO });
    for message in [&b"one"[..], b"another"] {
        let client = UdpSocket::bind((LOCAL, 0)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.send_to(message, (LOCAL, port)).unwrap();
        let mut buffer = [0; 16];
        let length = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], message);
    }
}

#[test]
fn work_ends_with_its_measurement() {
    for work in [Work::Spin { steps: 1000 }, Work::Fork { rounds: 3 }] {
        let mut running = Running::start("work", &work);
        let mut rest = String::new();
        running.output.read_to_string(&mut rest).unwrap();
        let measurement: Measurement = serde_json::from_str(&rest).unwrap();
        assert!(measurement.elapsed > Duration::ZERO, "{work:?}");
        assert!(running.process.wait().unwrap().success());
    }
}

#[test]
fn a_taken_port_is_reported() {
    let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let echo = Workload::Echo { protocol: Protocol::Tcp, port, cost: Duration::ZERO };
    let output = Command::new(env!("CARGO_BIN_EXE_frontdesk-lab-guest"))
        .args(["workload", &serde_json::to_string(&echo).unwrap()])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("in use"), "{output:?}");
}
