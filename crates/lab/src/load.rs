//! Load from outside: clients that send a request, wait for the answer and think (TAVS §5.1).

use frontdesk_engine::Protocol;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A request that is not answered within this fails the run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// What one client does.
#[derive(Clone, Debug)]
pub(crate) struct ClientConfig {
    /// Name of the VM asked, for messages.
    pub(crate) vm: String,
    pub(crate) server: SocketAddr,
    pub(crate) protocol: Protocol,
    /// Bytes of a request.
    pub(crate) bytes: usize,
    /// Shortest and longest think time.
    pub(crate) think: [Duration; 2],
    /// Same seed, same think times: every arm of a repeat gets the same load.
    pub(crate) seed: u64,
    /// Physical CPUs the client runs on.
    pub(crate) cpus: Vec<u16>,
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
    /// The client thread could not be given its priority.
    #[error("the client of {vm} can't be set up: {reason}")]
    Setup {
        /// The VM.
        vm: String,
        /// Why.
        reason: String,
    },
}

/// A running client.
pub(crate) struct Client {
    vm: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Sample>, LoadError>>,
}

/// One answered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) sent: Instant,
    pub(crate) response: Duration,
}

impl Client {
    /// Connects and begins.
    pub(crate) fn start(config: ClientConfig) -> Result<Client, LoadError> {
        let vm = config.vm.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let connection = Connection::open(&config).map_err(|source| LoadError::Io {
            vm: vm.clone(),
            server: config.server,
            source,
        })?;
        let thread = std::thread::spawn(move || run(&config, connection, &stopped));
        Ok(Client { vm, stop, thread })
    }

    pub(crate) fn vm(&self) -> &str {
        &self.vm
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

enum Connection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Connection {
    fn open(config: &ClientConfig) -> std::io::Result<Connection> {
        match config.protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&config.server, ANSWER_TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                Ok(Connection::Tcp(stream))
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(config.server)?;
                socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                Ok(Connection::Udp(socket))
            }
        }
    }

    fn ask(&mut self, request: &[u8], answer: &mut [u8]) -> std::io::Result<()> {
        match self {
            Connection::Tcp(stream) => {
                stream.write_all(request)?;
                stream.read_exact(answer)
            }
            Connection::Udp(socket) => {
                socket.send(request)?;
                socket.recv(answer).map(|_| ())
            }
        }
    }
}

fn run(
    config: &ClientConfig,
    mut connection: Connection,
    stop: &AtomicBool,
) -> Result<Vec<Sample>, LoadError> {
    // The client stands for a separate machine: what runs beside it here must not delay its clock.
    frontdesk_host::run_ahead(&config.cpus)
        .map_err(|reason| LoadError::Setup { vm: config.vm.clone(), reason: reason.to_string() })?;
    let mut rng = SmallRng::seed_from_u64(config.seed);
    let request: Vec<u8> = (0..=u8::MAX).cycle().take(config.bytes).collect();
    let mut answer = vec![0; config.bytes];
    let mut samples = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(rng.random_range(config.think[0]..=config.think[1]));
        let sent = Instant::now();
        connection.ask(&request, &mut answer).map_err(|source| LoadError::Io {
            vm: config.vm.clone(),
            server: config.server,
            source,
        })?;
        samples.push(Sample { sent, response: sent.elapsed() });
        if answer != request {
            return Err(LoadError::Garbled { vm: config.vm.clone() });
        }
    }
    Ok(samples)
}
