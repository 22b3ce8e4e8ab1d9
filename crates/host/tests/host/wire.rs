//! A tap, and frames to transmit on it.

use anyhow::{Context as _, Result, ensure};
use frontdesk_linux::Tap;
use std::{
    ffi::c_void,
    fs::{File, OpenOptions},
    io,
    mem::size_of,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
};

/// A tap in a network namespace of the calling thread's own, and a socket that transmits on it. Both end with
/// the thread.
pub(crate) struct Wire {
    pub(crate) tap: File,
    link: Link,
    netns: u32,
}

/// A socket that transmits on an interface of the calling thread's network namespace.
pub(crate) struct Link {
    socket: OwnedFd,
    address: libc::sockaddr_ll,
}

const TAP: &str = "fdtest0";

fn check(result: i32) -> Result<i32> {
    if result < 0 { Err(io::Error::last_os_error().into()) } else { Ok(result) }
}

impl Wire {
    pub(crate) fn new() -> Result<Wire> {
        // SAFETY: changes only which network namespace the calling thread is in.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).context("new network namespace")?;
        let netns = u32::try_from(std::fs::metadata("/proc/thread-self/ns/net")?.ino())?;
        let tap = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        let mut request = request_for(TAP);
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI)?;
        // SAFETY: TUNSETIFF reads and writes one ifreq.
        check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
            .context("make a tap")?;
        Ok(Wire { tap, link: Link::up(TAP)?, netns })
    }

    pub(crate) fn tap(&self) -> Tap {
        Tap { netns: self.netns, ifname: TAP.into() }
    }

    pub(crate) fn send(&self, frame: &[u8]) -> Result<()> {
        self.link.send(frame)
    }
}

/// About an interface.
fn request_for(interface: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request
}

impl Link {
    /// Brings the interface up.
    pub(crate) fn up(interface: &str) -> Result<Link> {
        let mut request = request_for(interface);
        // SAFETY: plain system call; the result is a descriptor nobody else owns.
        let socket = unsafe {
            OwnedFd::from_raw_fd(check(libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                0,
            ))?)
        };
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP)?;
        // SAFETY: SIOCSIFFLAGS reads one ifreq.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) })?;
        // SAFETY: SIOCGIFINDEX reads and writes one ifreq; the kernel then has filled in the index.
        let index = unsafe {
            check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request))?;
            request.ifr_ifru.ifru_ifindex
        };
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET)?;
        address.sll_ifindex = index;
        Ok(Link { socket, address })
    }

    pub(crate) fn send(&self, frame: &[u8]) -> Result<()> {
        let length = u32::try_from(size_of::<libc::sockaddr_ll>())?;
        // SAFETY: frame and address are valid for the lengths given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast::<c_void>(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                length,
            )
        };
        ensure!(
            usize::try_from(sent).is_ok_and(|n| n == frame.len()),
            "send: {}",
            io::Error::last_os_error()
        );
        Ok(())
    }
}

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;

pub(crate) fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(kind.to_be_bytes());
    frame.extend(payload);
    // The shortest frame on a wire: what is missing is padded.
    frame.resize(frame.len().max(60), 0);
    frame
}

pub(crate) fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x46, 0];
    packet.extend(u16::try_from(24 + payload.len()).expect("a short packet").to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1]);
    packet.extend(payload);
    packet
}

pub(crate) fn ipv6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(payload.len()).expect("a short packet").to_be_bytes());
    packet.extend([protocol, 64]);
    packet.extend([1; 32]);
    packet.extend(payload);
    packet
}

/// Towards a port of the guest.
pub(crate) fn tcp(port: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    segment(0x3039, port, 0, flags, payload)
}

pub(crate) fn segment(from: u16, to: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = [from, to].map(u16::to_be_bytes).concat();
    segment.extend(sequence.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend([0x60, flags, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
    segment.extend(payload);
    segment
}

pub(crate) fn udp(port: u16) -> Vec<u8> {
    datagram(0x3039, port)
}

pub(crate) fn datagram(from: u16, to: u16) -> Vec<u8> {
    let mut datagram = [from, to].map(u16::to_be_bytes).concat();
    datagram.extend([0, 9, 0, 0, b'x']);
    datagram
}
