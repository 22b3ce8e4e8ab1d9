//! The workloads. Each runs as a process of its own, so that it has an address space of its own.

use frontdesk_lab_guest::{Measurement, Protocol, Work, Workload};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use std::convert::Infallible;
use std::error::Error;
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

/// The first line of a workload's output: it is ready to do its work.
pub(crate) const READY: &str = "ready";

/// Argument with which this program does nothing: what [`Work::Fork`] starts.
pub(crate) const NOTHING: &str = "nothing";

/// Largest request that is answered in one piece.
const BUFFER: usize = 64 << 10;

/// Runs a workload; returns only if it fails.
pub(crate) fn serve(workload: Workload) -> Result<Infallible, Box<dyn Error>> {
    match workload {
        Workload::Hog => hog(),
        Workload::Echo { protocol: Protocol::Tcp, port, cost } => echo_tcp(port, cost),
        Workload::Echo { protocol: Protocol::Udp, port, cost } => echo_udp(port, cost),
    }
}

/// Does a piece of work and prints its [`Measurement`].
pub(crate) fn measure(work: Work) -> Result<(), Box<dyn Error>> {
    println!("{READY}");
    let begin = Instant::now();
    match work {
        Work::Spin { steps } => spin(steps),
        Work::Fork { rounds } => {
            for _ in 0..rounds {
                Command::new("/proc/self/exe").arg(NOTHING).status()?;
            }
        }
    }
    println!("{}", serde_json::to_string(&Measurement { elapsed: begin.elapsed() })?);
    Ok(())
}

fn spin(steps: u64) {
    let mut state = 1u64;
    for _ in 0..steps {
        // An xorshift generator: each step needs the one before, so it can not be optimised away.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

fn hog() -> ! {
    println!("{READY}");
    loop {
        spin(1 << 20);
    }
}

/// Uses `cost` of CPU time.
fn burn(cost: Duration) {
    if cost.is_zero() {
        return;
    }
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    let end = now() + cost;
    while now() < end {
        spin(100);
    }
}

fn echo_udp(port: u16, cost: Duration) -> Result<Infallible, Box<dyn Error>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    println!("{READY}");
    let mut buffer = vec![0; BUFFER];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        burn(cost);
        // The client may be gone; that is its business.
        let _ = socket.send_to(&buffer[..length], from);
    }
}

/// A client of the TCP echo.
struct Connection {
    stream: TcpStream,
    /// What it has not taken of an answer yet.
    pending: Vec<u8>,
}

impl Connection {
    /// Reads a request, if there is no answer left to send, and answers it. False if the connection is over.
    fn advance(&mut self, cost: Duration, buffer: &mut [u8]) -> bool {
        if self.pending.is_empty() {
            match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(length) => {
                    burn(cost);
                    self.pending.extend_from_slice(&buffer[..length]);
                }
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        match self.stream.write(&self.pending) {
            Ok(length) => {
                self.pending.drain(..length);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Takes what one read gives as a request: right for clients that wait for each answer and send less than a
/// segment.
fn echo_tcp(port: u16, cost: Duration) -> Result<Infallible, Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    listener.set_nonblocking(true)?;
    println!("{READY}");
    let mut connections: Vec<Connection> = Vec::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut fds: Vec<PollFd<'_>> = connections
            .iter()
            .map(|connection| {
                let idle = connection.pending.is_empty();
                PollFd::new(&connection.stream, if idle { PollFlags::IN } else { PollFlags::OUT })
            })
            .collect();
        fds.push(PollFd::new(&listener, PollFlags::IN));
        poll(&mut fds, None)?;
        let events: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut events = events.into_iter();
        connections
            .retain_mut(|connection| events.next() != Some(true) || connection.advance(cost, &mut buffer));
        if events.next() == Some(true) {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    connections.push(Connection { stream, pending: Vec::new() });
                }
                // The client gave up between poll and accept.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
