//! Brings network interfaces up.

use crate::parameter::Address;
use rustix::io::Errno;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

/// Why an interface could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up network interface {interface}: {what}: {source}")]
pub(crate) struct NetworkError {
    interface: String,
    what: &'static str,
    source: Errno,
}

/// Gives `interface` an address, if one is given, and brings it up.
pub(crate) fn up(interface: &str, address: Option<Address>) -> Result<(), NetworkError> {
    let failed = |what| move |source| NetworkError { interface: interface.to_owned(), what, source };
    // Any socket will do to talk about interfaces.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .map_err(|error| failed("socket")(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let mut request = named(interface);
    if let Some(address) = address {
        request.ifr_ifru.ifru_addr = socket_address(address.ip);
        ioctl(&socket, libc::SIOCSIFADDR, &mut request).map_err(failed("its address"))?;
        request.ifr_ifru.ifru_netmask = socket_address(address.netmask());
        ioctl(&socket, libc::SIOCSIFNETMASK, &mut request).map_err(failed("its netmask"))?;
    }
    // IFF_UP and IFF_RUNNING are 0x41: they fit.
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(0);
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request).map_err(failed("bringing it up"))
}

fn named(interface: &str) -> libc::ifreq {
    let mut name = [0; libc::IFNAMSIZ];
    // The last byte stays 0.
    for (to, from) in name.iter_mut().zip(interface.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from.cast_signed();
    }
    libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: 0 } }
}

/// A `sockaddr_in` in the shape of a general socket address: port (unused), then the address.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from.cast_signed();
    }
    libc::sockaddr { sa_family: AF_INET, sa_data: data }
}

/// `libc::AF_INET`, in the type that a socket address holds.
const AF_INET: libc::sa_family_t = 2;

fn ioctl(socket: &UdpSocket, operation: libc::Ioctl, request: &mut libc::ifreq) -> Result<(), Errno> {
    // SAFETY: the three operations used here read and write one `ifreq`, which `request` is.
    match unsafe { libc::ioctl(socket.as_raw_fd(), operation, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
