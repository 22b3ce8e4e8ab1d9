//! The server: threads that talk to clients, and ask the daemon's loop on their behalf.

use crate::accept_rate::{self, AcceptRate};
use crate::control::access::Access;
use crate::control::permit::{MAX_CLIENTS, Permit};
use crate::control::request::{DEADLINE, LoopHandle, channel};
use crate::control::{ControlConfig, ControlError, ControlRequest, RecordRequest, http, targets};
use crate::wake::Wake;
use frontdesk_control_protocol::{
    Answer, DeadlineStream, MAX_QUERY_BYTES, Query, Refusal, RefusalKind, line,
};
use frontdesk_linux::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Before trying again to accept a client when that fails.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The loop's end of the server. Dropping it ends the server.
#[derive(Debug)]
pub struct Control {
    requests: Receiver<ControlRequest>,
    wake: Wake,
    _servers: Vec<Server>,
}

impl Control {
    /// Begins to serve. Threads that are not real-time are of the calling thread's priority, so call it
    /// before that is made real-time.
    ///
    /// # Errors
    /// The socket cannot be made, or another daemon answers there.
    pub fn start(config: &ControlConfig) -> Result<Control, ControlError> {
        let (loop_of_daemon, requests, wake) = channel()?;
        let access = Access::new(config)?;
        let listener = listen(&config.socket, &access)?;
        let asker = loop_of_daemon.clone();
        let mut servers =
            vec![Server::start(listener, true, Some(config.socket.clone()), move |stream, free| {
                serve(stream, free, &access, &asker);
            })?];
        if let Some(address) = config.metrics {
            let failed = |source| ControlError::Metrics { address, source };
            let listener = TcpListener::bind(address).map_err(failed)?;
            let metrics = http::Metrics::new(loop_of_daemon);
            servers.push(Server::start(listener, false, None, move |stream, free| {
                http::serve(stream, free, &metrics);
            })?);
        }
        Ok(Control { requests, wake, _servers: servers })
    }

    /// Readable while there are requests.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The next request. Never waits.
    pub fn next_request(&self) -> Option<ControlRequest> {
        // Nothing to take means that there is no request.
        self.wake.take().then(|| self.requests.try_recv().ok()).flatten()
    }
}

/// Something that clients connect to.
trait Listener: AsFd + Send + 'static {
    type Stream: Send + 'static;
    fn next(&self) -> io::Result<Self::Stream>;
    fn set_nonblocking(&self) -> io::Result<()>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    fn next(&self) -> io::Result<UnixStream> {
        self.accept().map(|(stream, _)| stream)
    }
    fn set_nonblocking(&self) -> io::Result<()> {
        UnixListener::set_nonblocking(self, true)
    }
}

impl Listener for TcpListener {
    type Stream = std::net::TcpStream;
    fn next(&self) -> io::Result<std::net::TcpStream> {
        self.accept().map(|(stream, _)| stream)
    }
    fn set_nonblocking(&self) -> io::Result<()> {
        TcpListener::set_nonblocking(self, true)
    }
}

/// A thread that accepts clients, and one for each of them.
#[derive(Debug)]
struct Server {
    stop: Wake,
    thread: Option<JoinHandle<()>>,
    /// To be removed at the end.
    socket: Option<PathBuf>,
}

impl Server {
    /// `serve` is given each client, and its permit, or none if it is one too many and has to be turned away
    /// at once. If `real_time`, it is called in a real-time thread.
    fn start<L: Listener>(
        listener: L,
        real_time: bool,
        socket: Option<PathBuf>,
        serve: impl Fn(L::Stream, Option<Permit>) + Send + Sync + 'static,
    ) -> Result<Server, ControlError> {
        let failed = |what| move |source| ControlError::Serve { what, source };
        listener.set_nonblocking().map_err(failed("set a listener non-blocking"))?;
        let stop = Wake::new().map_err(failed("make an eventfd"))?;
        let (told, serve) = (stop.clone(), Arc::new(serve));
        let accept = move || {
            let taken = Arc::new(AtomicUsize::new(0));
            let mut rate = AcceptRate::new(Instant::now());
            if real_time {
                accept_rate::become_real_time();
            }
            while wait(&listener, &told) {
                let Ok(stream) = listener.next() else {
                    // The client has gone again, or descriptors have run out.
                    let _ = poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&PAUSE));
                    continue;
                };
                if let Some(permit) = Permit::take(&taken) {
                    let serve = Arc::clone(&serve);
                    let client = std::thread::Builder::new().name("control client".into());
                    // Without memory for a thread, the client is dropped.
                    let _ = client.spawn(move || serve(stream, Some(permit)));
                } else {
                    serve(stream, None);
                }
                if let Some(rest) = rate.count(Instant::now()) {
                    let rest = Timespec { tv_sec: 0, tv_nsec: rest.subsec_nanos().into() };
                    let _ = poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&rest));
                }
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(accept);
        Ok(Server { stop, thread: Some(thread.map_err(failed("start a thread"))?), socket })
    }
}

/// Waits for a client; false if the server is to stop.
fn wait(listener: &impl AsFd, stop: &Wake) -> bool {
    let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
    // After a signal it is looked again.
    let _ = poll(&mut fds, None);
    fds[0].revents().is_empty()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
    }
}

/// Makes the socket. One that a dead daemon left behind is replaced.
fn listen(path: &Path, access: &Access) -> Result<UnixListener, ControlError> {
    let failed = |what| move |source| ControlError::Socket { what, socket: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed("create the folder"))?;
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let pid = Peer::of(&stream).map_or(0, |peer| peer.pid);
            return Err(ControlError::InUse { socket: path.to_owned(), pid });
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
            if is_socket {
                fs::remove_file(path).map_err(failed("remove what a dead daemon left"))?;
            }
        }
        // Whatever is wrong, binding says it better.
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed("bind"))?;
    let (gid, mode) = access.of_socket();
    if let Some(gid) = gid {
        std::os::unix::fs::lchown(path, None, Some(gid)).map_err(failed("set the group"))?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("set the mode"))?;
    Ok(listener)
}

/// Serves a client of the socket.
fn serve(stream: UnixStream, permit: Option<Permit>, access: &Access, asker: &LoopHandle) {
    let own_thread = permit.is_some();
    let time = if own_thread { DEADLINE } else { Duration::from_millis(10) };
    let mut connection = DeadlineStream::new(stream, time);
    let busy =
        || Err(Refusal::new(RefusalKind::Busy, format!("{MAX_CLIENTS} clients are being served already")));
    let query = match permit {
        Some(_) => hear(&mut connection, access),
        None => busy(),
    };
    // Who is turned away is so by the thread that accepts.
    if own_thread && !query.as_ref().is_ok_and(Query::changes) {
        accept_rate::become_ordinary();
    }
    let answer = match query {
        Ok(Query::Record {}) => {
            let request = RecordRequest::new(connection.into_stream());
            if let Err(error) = asker.send(ControlRequest::Record(request)) {
                tracing::debug!("a recording is not begun: {error}");
            }
            return;
        }
        Ok(Query::Status { vm }) => {
            let most = if vm.is_some() { MOST_OF_ONE } else { MOST_OF_ALL };
            asker.status(vm, most).map_or_else(Answer::Refused, |status| Answer::Status(Box::new(status)))
        }
        Ok(Query::Targets {}) => {
            targets::find(asker).map_or_else(Answer::Refused, |targets| Answer::Targets(Box::new(targets)))
        }
        Ok(query) => asker.reservation(query).unwrap_or_else(Answer::Refused),
        Err(refusal) => Answer::Refused(refusal),
    };
    connection.renew();
    // A client that does not read, or has gone, is none of our business.
    let _ = connection.write(&line(&answer));
}

/// Guest tasks of each vCPU and ports of each VM that are told when all VMs are asked for.
const MOST_OF_ALL: usize = 10;
/// The same when one VM is.
const MOST_OF_ONE: usize = 1024;

fn hear(connection: &mut DeadlineStream<UnixStream>, access: &Access) -> Result<Query, Refusal> {
    let rights = access.of(connection.stream())?;
    let request = connection.read_line(MAX_QUERY_BYTES).map_err(|error| {
        let message = match error.kind() {
            ErrorKind::FileTooLarge => format!("a request has at most {MAX_QUERY_BYTES} bytes"),
            ErrorKind::UnexpectedEof => "the request has no end; it is a line".to_owned(),
            _ => format!("no request has come: {error}"),
        };
        Refusal::new(RefusalKind::Malformed, message)
    })?;
    let query = Query::parse(&request)?;
    rights.check(&query)?;
    if query.changes() {
        let who = Peer::of(connection.stream());
        let (pid, uid) = who.map_or((0, u32::MAX), |peer| (peer.pid, peer.uid));
        tracing::info!(pid, uid, "asked for: {query:?}");
    }
    Ok(query)
}
