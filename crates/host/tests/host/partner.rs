//! The other one of two hosts: a network with it, and a common clock.

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::{
    fmt,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

const FIRST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const PORT: u16 = 7001;

/// Generous: emulated hosts on a busy machine are slow to boot.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often the time is asked for. The shortest way there and back tells most.
const ASKED: usize = 64;

/// A connection on which both hosts say lines in turn.
pub(crate) struct Partner {
    first: bool,
    stream: BufReader<TcpStream>,
}

/// How far the other host's clock is ahead, or behind.
#[derive(Clone, Copy)]
pub(crate) struct Apart {
    by_ns: i64,
    /// The way there and back, halved.
    error_ns: u64,
}

impl Apart {
    pub(crate) fn at_most(&self) -> u64 {
        self.by_ns.unsigned_abs() + self.error_ns
    }
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms apart, +-{:.3}", self.by_ns as f64 / 1e6, self.error_ns as f64 / 1e6)
    }
}

impl Partner {
    /// Brings the network up, and waits for the other host.
    pub(crate) fn meet(first: bool) -> Result<Partner> {
        let address = format!("{}/24", if first { FIRST } else { SECOND });
        for arguments in [&["addr", "add", &address, "dev", "eth0"][..], &["link", "set", "eth0", "up"]] {
            let output = Command::new("ip").args(arguments).output().context("start ip")?;
            ensure!(output.status.success(), "ip {arguments:?}: {output:?}");
        }
        let stream = connect(first, PORT)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Partner { first, stream: BufReader::new(stream) })
    }

    fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("the other host")?;
        ensure!(line.ends_with('\n'), "the other host has ended");
        Ok(line.trim_end().to_owned())
    }

    /// Tells the other host something, and waits for what it says.
    pub(crate) fn exchange(&mut self, line: &str) -> Result<String> {
        self.say(line)?;
        self.hear()
    }

    /// The second host asks the first for its time. Both know then, from the side of the second.
    pub(crate) fn clocks_apart(&mut self) -> Result<Apart> {
        if self.first {
            for _ in 0..ASKED {
                self.hear()?;
                self.say(&wall_ns().to_string())?;
            }
            let (by, error) = (self.hear()?, self.hear()?);
            return Ok(Apart { by_ns: by.parse()?, error_ns: error.parse()? });
        }
        let mut best: Option<Apart> = None;
        for _ in 0..ASKED {
            let asked = wall_ns();
            let theirs: u64 = self.exchange("time")?.parse()?;
            let error_ns = (wall_ns() - asked).div_ceil(2);
            let by_ns = theirs.cast_signed() - (asked + error_ns).cast_signed();
            if best.is_none_or(|best| error_ns < best.error_ns) {
                best = Some(Apart { by_ns, error_ns });
            }
        }
        let best = best.context("not asked")?;
        self.say(&format!("{}\n{}", best.by_ns, best.error_ns))?;
        Ok(best)
    }

    /// The first host's clock is put on by so much, as if somebody set it, and the second's is set by it.
    pub(crate) fn bring_clocks_together(&mut self, on_ns: u64) -> Result<()> {
        if self.first {
            put_clock_on(on_ns.cast_signed())?;
        }
        let apart = self.clocks_apart()?;
        if !self.first {
            put_clock_on(apart.by_ns)?;
        }
        Ok(())
    }
}

fn put_clock_on(by_ns: i64) -> Result<()> {
    let to = wall_ns().checked_add_signed(by_ns).context("before 1970")?;
    let (seconds, nanos) = (to / 1_000_000_000, to % 1_000_000_000);
    let to = Timespec { tv_sec: seconds.cast_signed(), tv_nsec: nanos.cast_signed() };
    clock_settime(ClockId::Realtime, to).context("set the clock")
}

/// The first host waits for the second to connect.
pub(crate) fn connect(first: bool, port: u16) -> Result<TcpStream> {
    let start = Instant::now();
    let stream = if first {
        TcpListener::bind((FIRST, port)).context("listen")?.accept().context("accept")?.0
    } else {
        loop {
            match TcpStream::connect_timeout(&(FIRST, port).into(), Duration::from_secs(1)) {
                Ok(stream) => break stream,
                Err(error) => ensure!(start.elapsed() < PATIENCE, "connect to the first host: {error}"),
            }
            thread::sleep(Duration::from_millis(50));
        }
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What the wall clock shows, in nanoseconds since 1970.
pub(crate) fn wall_ns() -> u64 {
    let wall = clock_gettime(ClockId::Realtime);
    wall.tv_sec.cast_unsigned() * 1_000_000_000 + wall.tv_nsec.cast_unsigned()
}
