//! Workloads that answer, or only take, what comes over the network.

use super::process::{WorkloadError, ready, spin};
use crate::report::{ReportRecorder, tsc};
use frontdesk_lab_guest::StampKind;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Largest request that is answered in one piece.
const BUFFER: usize = 64 << 10;

fn listen_tcp(port: u16) -> Result<TcpListener, String> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(|error| cannot_listen("TCP", port, &error))
}

pub(super) fn listen_udp(port: u16) -> Result<UdpSocket, String> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(|error| cannot_listen("UDP", port, &error))
}

fn cannot_listen(protocol: &str, port: u16, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => format!(
            "{protocol} port {port} is in use by another workload of the VM: give each a port of its own, \
             or stop the other before"
        ),
        _ => format!("listening at {protocol} port {port}: {error}"),
    }
}

pub(super) fn echo_udp(
    port: u16,
    cost: u64,
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    let socket = listen_udp(port)?;
    ready();
    let mut buffer = vec![0; BUFFER];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        recorder.stamp(StampKind::Wake)?;
        spin(cost);
        recorder.count(1, 0)?;
        let reply = tsc();
        // The client may be gone; that is its business.
        let _ = socket.send_to(&buffer[..length], from);
        // Stamped now, so that the answer does not wait for it.
        recorder.stamp_at(reply, StampKind::Reply)?;
    }
}

/// Answers requests for a period, computes for a period, and so on.
pub(super) fn shift(
    port: u16,
    period: Duration,
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    if period.is_zero() {
        return Err("the period of a workload that shifts must not be 0".into());
    }
    let socket = listen_udp(port)?;
    ready();
    let mut buffer = vec![0; BUFFER];
    loop {
        recorder.stamp(StampKind::IoBound)?;
        let begin = Instant::now();
        while let Some(left) = period.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            match socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    recorder.stamp(StampKind::Wake)?;
                    recorder.count(1, 0)?;
                    let reply = tsc();
                    let _ = socket.send_to(&buffer[..length], from);
                    recorder.stamp_at(reply, StampKind::Reply)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        recorder.stamp(StampKind::CpuBound)?;
        let begin = Instant::now();
        while begin.elapsed() < period {
            spin(1 << 16);
        }
    }
}

/// Takes what one read gives as a request: right for clients that wait for each answer and send less than a
/// segment.
pub(super) fn echo_tcp(
    port: u16,
    cost: u64,
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    let mut stamped = None;
    serve_tcp(&listen_tcp(port)?, |what| match what {
        Served::Took(woken) => {
            // It may have woken for the requests of several clients.
            if stamped.replace(woken) != Some(woken) {
                recorder.stamp_at(woken, StampKind::Wake)?;
            }
            spin(cost);
            recorder.count(1, 0)
        }
        Served::Replied(reply) => recorder.stamp_at(reply, StampKind::Reply),
    })
}

/// Three packets. The receiver of iperf had 85 KB for a connection when TAVS was written, a window which its
/// machine handled in about a millisecond; an emulated guest handles this much in that time. Later kernels
/// take megabytes, which hide how late the receiver runs.
const SINK_BUFFER: usize = 2 << 10;

/// Takes what comes, and answers nothing. A thread for each client waits for its next packet in the read
/// itself, as iperf's do: in an emulated guest the system calls of a loop over all of them would cost as much
/// as the packets.
pub(super) fn sink(port: u16, recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    let listener = listen_tcp(port)?;
    set_socket_recv_buffer_size(&listener, SINK_BUFFER)?;
    ready();
    let recorder = Arc::new(Mutex::new(recorder));
    let (fail, failures) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let recorder = Arc::clone(&recorder);
            let outcome = listener.accept().map(|(stream, _)| stream);
            let fail = fail.clone();
            std::thread::spawn(move || {
                let outcome = outcome.and_then(|stream| take_all(stream, &recorder));
                // The receiver lives as long as the process.
                outcome.or_else(|error| fail.send(error))
            });
        }
    });
    Err(failures.recv()?.into())
}

/// Takes what a client sends until it goes away.
fn take_all(mut stream: TcpStream, recorder: &Mutex<ReportRecorder>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                recorder.lock().unwrap_or_else(PoisonError::into_inner).count(1, length as u64)?;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// What a TCP server did, with the time stamp counter.
enum Served {
    /// It read a piece, after it came back from waiting at this time.
    Took(u64),
    /// It has sent an answer, which it began at this time.
    Replied(u64),
}

/// A client.
struct ClientConnection {
    stream: TcpStream,
    /// What it has not taken of an answer yet.
    pending: Vec<u8>,
}

impl ClientConnection {
    /// Reads, if there is no answer left to send, and sends what was read. False if the connection is over.
    fn advance(
        &mut self,
        buffer: &mut [u8],
        woken: u64,
        served: &mut impl FnMut(Served) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.pending.is_empty() {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => {
                    served(Served::Took(woken))?;
                    self.pending.extend_from_slice(&buffer[..length]);
                }
                Err(error) => return Ok(error.kind() == ErrorKind::WouldBlock),
            }
        }
        let reply = tsc();
        match self.stream.write(&self.pending) {
            Ok(length) => {
                self.pending.drain(..length);
                served(Served::Replied(reply))?;
                Ok(true)
            }
            Err(error) => Ok(error.kind() == ErrorKind::WouldBlock),
        }
    }
}

/// Answers any number of clients with what they send. `served` is told what it does.
fn serve_tcp(
    listener: &TcpListener,
    mut served: impl FnMut(Served) -> io::Result<()>,
) -> Result<Infallible, WorkloadError> {
    listener.set_nonblocking(true)?;
    ready();
    let mut connections: Vec<ClientConnection> = Vec::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut fds: Vec<PollFd<'_>> = connections
            .iter()
            .map(|connection| {
                let idle = connection.pending.is_empty();
                PollFd::new(&connection.stream, if idle { PollFlags::IN } else { PollFlags::OUT })
            })
            .collect();
        fds.push(PollFd::new(listener, PollFlags::IN));
        poll(&mut fds, None)?;
        let woken = tsc();
        let events: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut events = events.into_iter();
        let mut outcome = Ok(());
        connections.retain_mut(|connection| {
            if events.next() != Some(true) {
                return true;
            }
            connection.advance(&mut buffer, woken, &mut served).unwrap_or_else(|error| {
                outcome = Err(error);
                false
            })
        });
        outcome?;
        if events.next() == Some(true) {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    connections.push(ClientConnection { stream, pending: Vec::new() });
                }
                // The client gave up between poll and accept.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
