//! A connection that keeps messages apart, and passes descriptors.

use rustix::fs::{Mode, Uid, chown, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen as listen_to, recvmsg, sendmsg, shutdown, socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Bytes of a message, at most.
const MAX_BYTES: usize = 8192;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Why nothing more is heard or said.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side has gone.
    #[error("the other side has gone")]
    Gone,
    /// The other side does not read, and what is to be said to it finds no room.
    #[error("the other side does not read what it is told")]
    Full,
    /// What came is no message.
    #[error("what it says is not understood: {0}")]
    Nonsense(String),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// Listens at `path`, where `user` may connect, or our own user if none is named, and root: others do not
/// even wake us. What a killed daemon left there is replaced.
///
/// # Errors
/// If the kernel refuses, or something else than a socket is there.
pub fn listen(path: &Path, user: Option<u32>) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    let address = SocketAddrUnix::new(path)?;
    // What it is bound to has this mode from the first moment on.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    if let Err(Errno::ADDRINUSE) = bind(&socket, &address) {
        // The daemon's lock keeps a second daemon away, so nobody listens there.
        let left = std::fs::symlink_metadata(path)?;
        if !std::os::unix::fs::FileTypeExt::is_socket(&left.file_type()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something that is no socket is there"));
        }
        std::fs::remove_file(path)?;
        bind(&socket, &address)?;
    }
    if let Some(user) = user {
        chown(path, Some(Uid::from_raw(user)), None)?;
    }
    listen_to(&socket, BACKLOG)?;
    Ok(socket)
}

fn new_socket(more: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | more, None)?)
}

impl Channel {
    /// Connects to the daemon.
    ///
    /// # Errors
    /// If nobody listens, or too many wait.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        // So that it does not wait while too many do.
        let socket = new_socket(SocketFlags::NONBLOCK)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel(socket))
    }

    /// Accepts the next who connects.
    ///
    /// # Errors
    /// If there is none.
    pub fn accept(listener: impl AsFd) -> io::Result<Channel> {
        Ok(Channel(accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?))
    }

    /// The other side's process, 0 if it is not in sight, and its user, as they were when it connected or
    /// began to listen.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn peer(&self) -> io::Result<(i32, u32)> {
        let peer = socket_peercred(&self.0)?;
        Ok((peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()))
    }

    /// Says something, with a descriptor if there is one. Never waits.
    ///
    /// # Errors
    /// [`ChannelError::Full`] if there is no room, and what else there is if it cannot be said.
    pub fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), ChannelError> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        match sendmsg(
            &self.0,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Err(ChannelError::Full),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ChannelError::Gone),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// What the other side said, with a descriptor if it sent one; `None` if there is nothing. Never waits.
    ///
    /// # Errors
    /// [`ChannelError`] if nothing more is to be expected.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<Option<(M, Option<OwnedFd>)>, ChannelError> {
        let mut bytes = [0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(ChannelError::Gone),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        // Beyond the first, the kernel has closed them.
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        if received.bytes == 0 {
            return Err(ChannelError::Gone);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Nonsense(format!("a message has at most {MAX_BYTES} bytes")));
        }
        let message = serde_json::from_slice(&bytes[..received.bytes]);
        message.map(|message| Some((message, descriptor))).map_err(|e| ChannelError::Nonsense(e.to_string()))
    }

    /// Ends the connection, for all who hold it.
    pub fn close(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
