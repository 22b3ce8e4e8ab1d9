//! What a guest does that wants to harm the host or its neighbours.

use super::process::{BOUNCE, NOTHING, WorkloadError, address, failed, ready, task};
use crate::report::ReportRecorder;
use rustix::io::{Errno, read, write};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Stdio;

/// Operations that are counted at once, so that counting does not slow them down.
const BATCH: u64 = 64;

/// Tasks that are alive at once, at most.
const TASKS: usize = 64;

/// A port of the host at which nothing listens: "discard", which nobody uses any more.
const CLOSED_PORT: u16 = 9;

/// Tries to connect from all ports to one that is closed, so that the host sends a packet to all ports.
pub(super) fn packets(mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    let address = address()?;
    let (from, to) = (address.ip, address.host());
    // Of this protocol it gets no answers, which nobody would read.
    let protocol = Some(ipproto::RAW);
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
        .map_err(failed("a raw socket"))?;
    let target = SocketAddrV4::new(to, 0);
    ready();
    loop {
        for port in 1..=u16::MAX {
            match sendto(&socket, &attempt(from, port, to), SendFlags::empty(), &target) {
                // The packet was dropped on the way out. The next may not be.
                Ok(_) | Err(Errno::NOBUFS) => {}
                Err(error) => return Err(format!("sending to {to}: {error}").into()),
            }
            if u64::from(port) % BATCH == 0 {
                recorder.count(BATCH, 0)?;
            }
        }
        recorder.count(u64::from(u16::MAX) % BATCH, 0)?;
    }
}

const IP_HEADER: usize = 20;
const TCP_HEADER: usize = 20;

/// The packet that asks for a connection.
fn attempt(from: Ipv4Addr, port: u16, to: Ipv4Addr) -> [u8; IP_HEADER + TCP_HEADER] {
    let mut packet = [0; IP_HEADER + TCP_HEADER];
    let (ip, tcp) = packet.split_at_mut(IP_HEADER);
    // IPv4, header of 5 words. Linux fills in the length and the checksum.
    ip[0] = 0x45;
    // Time to live, protocol TCP.
    ip[8..10].copy_from_slice(&[64, 6]);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());

    tcp[0..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&CLOSED_PORT.to_be_bytes());
    // Header of 5 words, SYN, window.
    tcp[12..16].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    // The checksum is over the addresses, the protocol and the length too.
    let sum = checksum(&[&ip[12..20], &[0, 6, 0, 20], tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The Internet checksum (RFC 1071) of pieces of even length.
fn checksum(pieces: &[&[u8]]) -> u16 {
    let words = pieces.iter().flat_map(|piece| piece.as_chunks().0);
    let sum = words.fold(0u16, |sum, word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes(*word));
        // It cannot overflow again: the sum is below the largest word after it did.
        sum + u16::from(carry)
    });
    !sum
}

/// Starts tasks without waiting for those before, except to bound their number.
pub(super) fn tasks(mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    ready();
    let mut alive = VecDeque::with_capacity(TASKS);
    loop {
        if alive.len() == TASKS
            && let Some(mut oldest) = alive.pop_front()
        {
            std::process::Child::wait(&mut oldest)?;
        }
        alive.push_back(task(NOTHING).spawn().map_err(failed("starting a task"))?);
        recorder.count(1, 0)?;
    }
}

/// Two tasks that wake each other.
pub(super) fn switches(mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    let (there, to_other) = io::pipe()?;
    let (from_other, back) = io::pipe()?;
    let mut other = task(BOUNCE)
        .stdin(Stdio::from(there))
        .stdout(Stdio::from(back))
        .spawn()
        .map_err(failed("starting a task"))?;
    ready();
    loop {
        for _ in 0..BATCH {
            write(&to_other, &[0])?;
            if read(&from_other, &mut [0])? == 0 {
                return Err(format!("the other task ended: {}", other.wait()?).into());
            }
        }
        recorder.count(BATCH, 0)?;
    }
}

/// The other of the two: writes what it reads, until there is no more.
pub(super) fn bounce() -> Result<(), WorkloadError> {
    let mut byte = [0];
    while read(io::stdin(), &mut byte)? > 0 {
        write(io::stdout(), &byte)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_rfc() {
        // The example of RFC 1071, section 3: the sum is ddf2.
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
        // A known IPv4 header, without and with its checksum.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 0xc0, 0xa8, 0x00, 0x01,
            0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(checksum(&[&header]), 0xb861);
        assert_eq!(checksum(&[&header, &[0xb8, 0x61]]), 0);
        assert_eq!(checksum(&[&[0xff; 6]]), 0);
    }

    #[test]
    fn attempts_are_packets_as_tcp_wants_them() {
        let (from, to) = (Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 1));
        for port in [1, 255, 4660, u16::MAX] {
            let packet = attempt(from, port, to);
            let (ip, tcp) = packet.split_at(IP_HEADER);
            assert_eq!(checksum(&[&ip[12..20], &[0, 6, 0, 20], tcp]), 0, "{tcp:02x?}");
            assert_eq!(tcp[..4], [port.to_be_bytes(), [0, 9]].concat());
            assert_eq!(ip[12..], [10, 77, 0, 2, 10, 77, 0, 1]);
        }
    }
}
