//! Load from outside: clients that send a request, wait for the answer and think, or send without pause (TAVS
//! §5.1).

use crate::keyboard::Keyboard;
use crate::net::slow_down;
use frontdesk_scenario::Protocol;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A request that is not answered within this fails the run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// When the run is over, the answer to the last request is waited for this long. It belongs to the sample,
/// but a server that computes for long should not hold up everybody.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// How often a waiting client looks whether the run is over.
const LOOK: Duration = Duration::from_millis(200);

/// What a bulk client writes at a time.
const BULK_BYTES: usize = 1_448;

/// What one client does.
#[derive(Clone, Debug)]
pub(crate) struct ClientConfig {
    /// Name of the VM asked, for messages.
    pub(crate) vm: String,
    pub(crate) server: SocketAddr,
    pub(crate) work: ClientWork,
    /// The socket of the keyboard on which Enter is pressed before each request.
    pub(crate) keyboard: Option<PathBuf>,
    /// Same seed, same think times: every arm of a repeat gets the same load.
    pub(crate) seed: u64,
    /// Physical CPUs the client runs on.
    pub(crate) cpus: Vec<u16>,
}

/// What a client does to its server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientWork {
    Ask {
        protocol: Protocol,
        /// Bytes of a request.
        bytes: usize,
        /// Shortest and longest think time.
        think: [Duration; 2],
    },
    /// Sends over TCP without pause.
    Bulk,
}

/// A request went wrong.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The client could not connect, or a request was not answered.
    #[error("the client of {vm} at {server}: {source}")]
    Io {
        /// The VM.
        vm: String,
        /// Its address.
        server: SocketAddr,
        /// What failed.
        source: std::io::Error,
    },
    /// The answer was not the request's bytes.
    #[error("the echo server of {vm} answered something else than it was sent")]
    Garbled {
        /// The VM.
        vm: String,
    },
    /// The text editor that a client types into did not start or did not show what was typed.
    #[error(
        "the client that types into an editor of {vm} at {server}: {reason}. Its Debian system needs the packages nano and \
         openssh-server, and `sshd -D -e` must run. The last it got: {output}"
    )]
    Editor {
        /// The VM.
        vm: String,
        /// Its ssh server.
        server: SocketAddr,
        /// What went wrong.
        reason: String,
        /// The last bytes from the terminal and from ssh.
        output: String,
    },
    /// Somebody in front of a desktop did not see what was to be seen.
    #[error("somebody in front of the desktop of {vm}: {reason}")]
    Desktop {
        /// The VM.
        vm: String,
        /// What went wrong.
        reason: String,
    },
    /// The client could not be started, or not be given its priority.
    #[error("the client of {vm} cannot be set up: {reason}")]
    Setup {
        /// The VM.
        vm: String,
        /// Why.
        reason: String,
    },
}

/// A running client.
pub(crate) struct LoadClient {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Sample>, LoadError>>,
}

/// One answered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) sent: Instant,
    pub(crate) response: Duration,
}

impl LoadClient {
    /// Connects and begins.
    pub(crate) fn start(config: ClientConfig) -> Result<LoadClient, LoadError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let connection = LoadConnection::open(&config).map_err(|source| failed(&config, source))?;
        let thread = std::thread::spawn(move || run(&config, connection, &stopped));
        Ok(LoadClient { stop, thread })
    }

    /// Whether the client ended before it was told to.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the client after the request it is in.
    pub(crate) fn finish(self) -> Result<Vec<Sample>, LoadError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

enum LoadConnection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl LoadConnection {
    fn open(config: &ClientConfig) -> std::io::Result<LoadConnection> {
        let protocol = match config.work {
            ClientWork::Ask { protocol, .. } => protocol,
            ClientWork::Bulk => Protocol::Tcp,
        };
        match protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&config.server, ANSWER_TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(LOOK))?;
                stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                if matches!(config.work, ClientWork::Bulk) {
                    slow_down(&stream)?;
                }
                Ok(LoadConnection::Tcp(stream))
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(config.server)?;
                socket.set_read_timeout(Some(LOOK))?;
                Ok(LoadConnection::Udp(socket))
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            LoadConnection::Tcp(stream) => stream.write_all(bytes),
            LoadConnection::Udp(socket) => socket.send(bytes).map(drop),
        }
    }

    /// Receives an answer; false if `give_up` said so before it was there.
    fn receive(&mut self, answer: &mut [u8], give_up: impl Fn() -> bool) -> std::io::Result<bool> {
        let begin = Instant::now();
        let mut length = 0;
        loop {
            let read = match self {
                LoadConnection::Tcp(stream) => stream.read(&mut answer[length..]),
                LoadConnection::Udp(socket) => socket.recv(answer).map(|_| answer.len()),
            };
            match read {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => length += read,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if give_up() {
                        return Ok(false);
                    }
                    if begin.elapsed() > ANSWER_TIMEOUT {
                        let what = format!("no answer within {ANSWER_TIMEOUT:?}");
                        return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, what));
                    }
                }
                Err(error) => return Err(error),
            }
            if length == answer.len() {
                return Ok(true);
            }
        }
    }
}

fn run(
    config: &ClientConfig,
    connection: LoadConnection,
    stop: &AtomicBool,
) -> Result<Vec<Sample>, LoadError> {
    // The client stands for a separate machine: what runs beside it here must not delay its clock.
    frontdesk_linux::realtime::run_ahead(&config.cpus)
        .map_err(|reason| LoadError::Setup { vm: config.vm.clone(), reason: reason.to_string() })?;
    match config.work {
        ClientWork::Ask { bytes, think, .. } => ask(config, connection, bytes, think, stop),
        ClientWork::Bulk => bulk(config, connection, stop),
    }
}

fn ask(
    config: &ClientConfig,
    mut connection: LoadConnection,
    bytes: usize,
    think: [Duration; 2],
    stop: &AtomicBool,
) -> Result<Vec<Sample>, LoadError> {
    let mut rng = SmallRng::seed_from_u64(config.seed);
    let request: Vec<u8> = (0..=u8::MAX).cycle().take(bytes).collect();
    let mut answer = vec![0; bytes];
    let mut samples = Vec::new();
    let keyboard = config.keyboard.as_deref().map(Keyboard::connect).transpose();
    let mut keyboard = keyboard.map_err(|source| failed(config, source))?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(rng.random_range(think[0]..=think[1]));
        let sent = Instant::now();
        if let Some(keyboard) = &mut keyboard {
            keyboard.press_enter().map_err(|source| failed(config, source))?;
        }
        let stopped = Cell::new(None);
        let give_up = || {
            if stop.load(Ordering::Relaxed) && stopped.get().is_none() {
                stopped.set(Some(Instant::now()));
            }
            stopped.get().is_some_and(|at: Instant| at.elapsed() > LAST_ANSWER)
        };
        let answered = connection.send(&request).and_then(|()| connection.receive(&mut answer, give_up));
        if !answered.map_err(|source| failed(config, source))? {
            break;
        }
        samples.push(Sample { sent, response: sent.elapsed() });
        if answer != request {
            return Err(LoadError::Garbled { vm: config.vm.clone() });
        }
    }
    Ok(samples)
}

fn bulk(
    config: &ClientConfig,
    mut connection: LoadConnection,
    stop: &AtomicBool,
) -> Result<Vec<Sample>, LoadError> {
    let data = vec![0x5a; BULK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        connection.send(&data).map_err(|source| failed(config, source))?;
    }
    Ok(Vec::new())
}

fn failed(config: &ClientConfig, source: std::io::Error) -> LoadError {
    LoadError::Io { vm: config.vm.clone(), server: config.server, source }
}
