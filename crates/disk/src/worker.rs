//! The thread of one VM's disk.

use crate::device::Device;
use crate::uring::Token;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vhost::vhost_user::{BackendReqHandler, Error};

/// How long a front end may take to say the rest of what it began to say.
const SENTENCE: Duration = Duration::from_secs(1);

/// Number of the message that brings the back end's own channel, as the specification has it.
const SET_BACKEND_REQ_FD: u32 = 21;

/// The message by which a back end says that the configuration has changed: number 2, protocol version 1, no
/// content.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];

struct Connection {
    stream: UnixStream,
    handler: BackendReqHandler<Mutex<Device>>,
    /// Where the back end may speak first.
    channel: Option<OwnedFd>,
}

/// Serves a disk until `stop` can be read.
///
/// # Errors
/// If the kernel refuses the thread its queue of work.
pub(crate) fn work(device: Device, listener: &UnixListener, stop: &OwnedFd) -> io::Result<()> {
    #[expect(clippy::arc_with_non_send_sync, reason = "the library asks for it; one thread has both ends")]
    let device = Arc::new(Mutex::new(device));
    let result = Worker { device: Arc::clone(&device), listener, connection: None }.run(stop);
    if result.is_err() {
        // The kernel may still write to memory that would be unmapped.
        std::mem::forget(device);
    }
    result
}

struct Worker<'a> {
    device: Arc<Mutex<Device>>,
    listener: &'a UnixListener,
    connection: Option<Connection>,
}

impl Worker<'_> {
    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&mut self, stop: &OwnedFd) -> io::Result<()> {
        {
            let mut device = self.device();
            device.uring().poll_once(self.listener.as_raw_fd(), Token::Listener)?;
            device.uring().poll_once(stop.as_raw_fd(), Token::Stop)?;
            device.uring().after_a_second()?;
        }
        loop {
            let happened = self.device().turn()?;
            for token in happened {
                match token {
                    Token::Listener => self.connect()?,
                    Token::Connection => self.listen()?,
                    Token::Second => self.look()?,
                    Token::Stop => return self.device().disconnect(),
                    Token::Piece(_) | Token::Kick(..) | Token::Granted | Token::Cancelled => {}
                }
            }
        }
    }

    /// A front end comes. Another waits until it is gone.
    fn connect(&mut self) -> io::Result<()> {
        let connected = self.listener.accept().and_then(|(stream, _)| {
            stream.set_read_timeout(Some(SENTENCE))?;
            stream.set_write_timeout(Some(SENTENCE))?;
            Ok((stream.try_clone()?, stream))
        });
        match connected {
            Ok((stream, for_handler)) => {
                let handler = BackendReqHandler::from_stream(for_handler, Arc::clone(&self.device));
                let mut device = self.device();
                tracing::info!("{}: connected", device.name());
                device.attach(&stream);
                device.uring().poll_once(stream.as_raw_fd(), Token::Connection)?;
                drop(device);
                self.connection = Some(Connection { stream, handler, channel: None });
                Ok(())
            }
            Err(e) => {
                let mut device = self.device();
                tracing::warn!("{}: a front end could not connect: {e}", device.name());
                device.uring().poll_once(self.listener.as_raw_fd(), Token::Listener)
            }
        }
    }

    /// The front end says something, or is gone.
    fn listen(&mut self) -> io::Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        if let Some(channel) = channel_in(&connection.stream) {
            connection.channel = Some(channel);
        }
        let result = connection.handler.handle_request();
        let stream = connection.stream.as_raw_fd();
        match result {
            // What it asked for is refused, as it was told if it wanted to know.
            Ok(()) | Err(Error::InvalidParam | Error::InvalidOperation(_)) => {
                self.device().uring().poll_once(stream, Token::Connection)
            }
            Err(e) => {
                match e {
                    Error::Disconnected => tracing::info!("{}: disconnected", self.device().name()),
                    e => tracing::warn!("{}: the connection is closed: {e}", self.device().name()),
                }
                // First what is in flight, then the connection: when a front end sees that this is closed,
                // nothing is under way any more.
                self.device().disconnect()?;
                self.connection = None;
                self.device().uring().poll_once(self.listener.as_raw_fd(), Token::Listener)
            }
        }
    }

    /// Looks for what nobody tells, and whether the image has another size now, of which the guest is told.
    fn look(&mut self) -> io::Result<()> {
        let mut device = self.device();
        device.uring().after_a_second()?;
        device.look_again();
        match device.image.read_size() {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("{}: the image has {} bytes now", device.name(), device.image.size());
                let channel = self.connection.as_ref().and_then(|connection| connection.channel.as_ref());
                let message = CONFIG_CHANGE.map(u32::to_ne_bytes).concat();
                if let Some(Err(e)) = channel.map(|channel| rustix::io::write(channel, &message)) {
                    tracing::warn!("{}: the VM could not be told: {e}", device.name());
                }
            }
            Err(e) => tracing::warn!("image {}: its size: {e}", device.image.path().display()),
        }
        Ok(())
    }
}

/// The back end's own channel, if the message that waits to be read brings one. The library that reads the
/// message knows none of what a disk has to say there.
fn channel_in(stream: &UnixStream) -> Option<OwnedFd> {
    let mut header = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut ancillary, flags).ok()?;
    if received.bytes < header.len() || u32::from_ne_bytes(header) != SET_BACKEND_REQ_FD {
        return None;
    }
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}
