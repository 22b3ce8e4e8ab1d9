//! Who may look in.

use crate::control::ControlError;
use crate::control::protocol::{Refusal, RefusalKind};
use nix::unistd::Group;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

/// A user is in no more groups than this (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// The group that may look in, besides root and our own user.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    group: Option<Group>,
}

impl Access {
    /// # Errors
    /// There is no group of this name.
    pub(crate) fn new(group: Option<&str>) -> Result<Access, ControlError> {
        let find = |name: &str| {
            let found = Group::from_name(name).ok().flatten();
            found.ok_or_else(|| ControlError::NoGroup(name.to_owned()))
        };
        Ok(Access { group: group.map(find).transpose()? })
    }

    pub(crate) fn gid(&self) -> Option<u32> {
        self.group.as_ref().map(|group| group.gid.as_raw())
    }

    /// Whether the process at the other end may look in.
    pub(crate) fn check(&self, stream: &UnixStream) -> Result<(), Refusal> {
        let unknown = |error: io::Error| {
            let message = format!("the kernel does not say whose connection this is: {error}");
            Refusal::new(RefusalKind::Forbidden, message)
        };
        let peer = peer(stream).map_err(unknown)?;
        if peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        let Some(group) = &self.group else {
            let message = "only root may look in; run the command with sudo, or set control.group in frontdesk's configuration";
            return Err(Refusal::new(RefusalKind::Forbidden, message));
        };
        let gid = group.gid.as_raw();
        if peer.gid == gid || peer_groups(stream).map_err(unknown)?.contains(&gid) {
            return Ok(());
        }
        let message = format!(
            "only root and members of the group {0} may look in; `usermod -aG {0} USER` makes a user one, from the next login on",
            group.name
        );
        Err(Refusal::new(RefusalKind::Forbidden, message))
    }
}

/// The process at the other end, as it was when it connected or began to listen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// 0 if it is not in our process namespace.
    pub(crate) pid: i32,
    uid: u32,
    gid: u32,
}

pub(crate) fn peer(stream: &UnixStream) -> io::Result<Peer> {
    // struct ucred: pid, uid, gid.
    let mut credentials = [0; 3];
    match read_option(stream, libc::SO_PEERCRED, &mut credentials)? {
        3 => Ok(Peer { pid: credentials[0].cast_signed(), uid: credentials[1], gid: credentials[2] }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Its supplementary groups.
fn peer_groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; MAX_GROUPS];
    let count = read_option(stream, libc::SO_PEERGROUPS, &mut groups)?;
    groups.truncate(count);
    Ok(groups)
}

/// Reads an option of a socket that is an array of 32-bit numbers; how many there are.
fn read_option(stream: &UnixStream, option: i32, into: &mut [u32]) -> io::Result<usize> {
    let mut bytes = libc::socklen_t::try_from(size_of_val(into)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes to `into`, which is that long, and any bytes are valid numbers; `bytes`
    // is ours, and the descriptor is open as long as `stream` is borrowed.
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
