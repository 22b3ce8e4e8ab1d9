//! The lab's network: a namespace of its own, with a tap and private addresses for each VM.
//!
//! The namespace has no name: it lives as long as the lab's processes do, and takes every tap with it.

use rustix::net::sockopt::set_socket_send_buffer_size;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd as _};
use std::process::Command;

/// How many bytes a second the network takes from who sends in bulk. The paper's took 100 Mbit/s (TAVS §5),
/// for which a receiver needed part of a CPU; an emulated guest, which takes 0.5 ms for a packet, needs a
/// third of a CPU for this. Without a limit its data would never end, and it would not wait for I/O.
const BULK_RATE: u64 = 724_000;
/// What may be under way to the guest, so that a receiver that is late is slow.
const BULK_BUFFER: usize = 4 << 10;

/// The network could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No network namespace.
    #[error("cannot make a network namespace: {0}. Run as root, on a kernel with CONFIG_NET_NS")]
    Namespace(nix::Error),
    /// The `ip` command is missing or failed.
    #[error("`ip {arguments}` failed: {reason}. It needs root, iproute2 and /dev/net/tun")]
    Ip {
        /// Its arguments.
        arguments: String,
        /// What it said.
        reason: String,
    },
    /// More VMs than addresses.
    #[error("VM number {0} has no address left: the lab connects at most 250 VMs")]
    TooMany(usize),
}

/// A VM's side of the network.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) ifname: String,
    pub(crate) host: Ipv4Addr,
    pub(crate) guest: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) mac: String,
}

/// Has the kernel send what is written to a TCP socket, or to those a listening one accepts, as through a
/// slow network: also what waits in the socket goes out no faster, which pauses between writes could not do.
pub(crate) fn slow_down(socket: impl AsFd) -> std::io::Result<()> {
    set_socket_send_buffer_size(&socket, BULK_BUFFER)?;
    let rate = BULK_RATE;
    // SAFETY: the descriptor is open, and the kernel reads the option's eight bytes from a value that
    // outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const rate).cast(),
            8,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Puts this thread, and every process and thread it starts from now on, into a new network namespace.
///
/// # Errors
/// No privilege, or a kernel without network namespaces.
pub(crate) fn enter_namespace() -> Result<(), NetError> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(NetError::Namespace)?;
    ip(&["link", "set", "lo", "up"])
}

/// Makes a tap for VM number `index` and gives the host's side an address.
pub(crate) fn add_link(index: usize) -> Result<Link, NetError> {
    let net = u8::try_from(index + 1).ok().filter(|net| *net <= 250).ok_or(NetError::TooMany(index))?;
    let ifname = format!("fd{net}");
    let (host, guest) = (Ipv4Addr::new(10, 77, net, 1), Ipv4Addr::new(10, 77, net, 2));
    let prefix = 24;
    ip(&["tuntap", "add", &ifname, "mode", "tap"])?;
    // Neighbour discovery would send packets that are not part of the load.
    ip(&["link", "set", &ifname, "addrgenmode", "none"])?;
    ip(&["addr", "add", &format!("{host}/{prefix}"), "dev", &ifname])?;
    ip(&["link", "set", &ifname, "up"])?;
    Ok(Link { ifname, host, guest, prefix, mac: format!("52:54:00:fd:00:{net:02x}") })
}

fn ip(arguments: &[&str]) -> Result<(), NetError> {
    let failed = |reason: String| NetError::Ip { arguments: arguments.join(" "), reason };
    let output = Command::new("ip").args(arguments).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
