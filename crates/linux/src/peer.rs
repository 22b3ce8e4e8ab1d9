//! Who is at the other end of a socket.

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

/// The process at the other end of a Unix socket, as it was when it connected or began to listen.
#[derive(Debug)]
pub struct Peer {
    /// Its number then; 0 if it is not in our process namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// That very process, whoever has its number by now; `None` if it has ended or is out of sight.
    pub process: Option<OwnedFd>,
}

impl Peer {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn of(stream: &UnixStream) -> io::Result<Peer> {
        // struct ucred: pid, uid, gid.
        let mut credentials = [0; 3];
        let 3 = read_option(stream, libc::SO_PEERCRED, &mut credentials)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let [pid, uid, gid] = credentials;
        let pid = pid.cast_signed();
        Ok(Peer { pid, uid, gid, process: process(stream, pid) })
    }
}

fn process(stream: &UnixStream, pid: i32) -> Option<OwnedFd> {
    let mut descriptor = [u32::MAX];
    match read_option(stream, libc::SO_PEERPIDFD, &mut descriptor) {
        // SAFETY: the kernel has just made this descriptor, for us alone.
        Ok(1) => Some(unsafe { OwnedFd::from_raw_fd(descriptor[0].cast_signed()) }),
        // Before Linux 6.5 there is the number only. If its process has ended, what is pinned may be somebody
        // else, and is to be looked at as such.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOPROTOOPT) => {
            pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
        }
        Ok(_) | Err(_) => None,
    }
}

/// The supplementary groups of the process at the other end, at most `most` of them.
///
/// # Errors
/// The kernel does not tell, or there are more.
pub fn peer_groups(stream: &UnixStream, most: usize) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; most];
    let count = read_option(stream, libc::SO_PEERGROUPS, &mut groups)?;
    groups.truncate(count);
    Ok(groups)
}

/// Reads an option of a socket that is an array of 32-bit numbers; how many there are.
fn read_option(stream: &UnixStream, option: i32, into: &mut [u32]) -> io::Result<usize> {
    let mut bytes = libc::socklen_t::try_from(size_of_val(into)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes to `into`, which is that long, and any bytes are valid
    // numbers; `bytes` is ours, and the descriptor is open as long as `stream` is borrowed.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            into.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).map_err(io::Error::other)? / size_of::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_pinned() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        let own = std::process::id().cast_signed();
        assert_eq!((peer.pid, peer.uid), (own, rustix::process::geteuid().as_raw()));
        let process = peer.process.unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).unwrap();
        assert!(info.lines().any(|line| line == format!("Pid:\t{own}")), "{info}");
        peer_groups(&ours, 65_536).unwrap();
    }
}
