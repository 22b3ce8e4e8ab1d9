//! A parallel program of two processes: each computes, tells the other, and waits for it (BSP, VSched §6).

use crate::partner::{connect, wall_ns};
use crate::reserve::MS;
use anyhow::{Context as _, Result};
use std::{
    env,
    hint::black_box,
    io::{self, ErrorKind, Read as _, Write as _, stdin},
    net::TcpStream,
    process::ExitCode,
};

/// Of its reservations.
pub(crate) const PERIOD: u64 = 100 * MS;

/// The port of the first process.
const PORT: u16 = 7002;

/// How much is computed in a round.
const STEPS: u32 = 20_000;

/// How it waits for a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Waits {
    /// As programs for parallel machines do: it asks for it again and again, which takes of its slice.
    Asking,
    /// Until the kernel wakes it.
    Sleeping,
}

impl Waits {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Waits::Asking => "asking",
            Waits::Sleeping => "sleeping",
        }
    }
}

/// What a process did in the time of a measurement.
#[derive(Default)]
pub(crate) struct Turns {
    /// So many messages came.
    pub(crate) rounds: u64,
    /// When, by the wall clock, it went on after it had not run for more than half a period.
    begins: Vec<u64>,
}

impl Turns {
    pub(crate) fn parse(line: &str) -> Result<Turns> {
        let mut numbers = line.split_whitespace().map(str::parse);
        let rounds = numbers.next().context("the program ended: see above")??;
        Ok(Turns { rounds, begins: numbers.collect::<Result<_, _>>()? })
    }

    /// How long after the beginnings of periods with this phase it went on.
    pub(crate) fn after(&self, phase: u64) -> Vec<u64> {
        self.begins.iter().map(|begin| (begin + PERIOD - phase) % PERIOD).collect()
    }

    /// How far from each time at which it went on the nearest one of the other process is.
    pub(crate) fn between(&self, other: &Turns) -> Vec<u64> {
        let nearest = |begin: &u64| other.begins.iter().map(|other| begin.abs_diff(*other)).min();
        self.begins.iter().filter_map(nearest).collect()
    }
}

/// The process: `turns first|second asking|sleeping`. It says when it is connected, is told when a
/// measurement begins and ends, and says what it did.
pub(crate) fn main() -> ExitCode {
    let run = || -> Result<()> {
        let mut arguments = env::args().skip(2);
        let stream = connect(arguments.next().as_deref() == Some("first"), PORT)?;
        stream.set_nonblocking(arguments.next().as_deref() == Some(Waits::Asking.word()))?;
        println!("connected");
        let mut line = String::new();
        stdin().read_line(&mut line)?;
        let (begin, end) = line.trim().split_once(' ').context("no times")?;
        let Turns { rounds, begins } = take(stream, begin.parse()?, end.parse()?)?;
        let begins: String = begins.iter().map(|begin| format!(" {begin}")).collect();
        println!("{rounds}{begins}");
        // Its reservation is released before it ends.
        stdin().read_line(&mut line)?;
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// Until the end, or that of the other process, whose clock may be a little ahead.
fn take(mut stream: TcpStream, begin: u64, end: u64) -> io::Result<Turns> {
    let (mut done, mut ran) = (Turns::default(), wall_ns());
    loop {
        for step in 0..STEPS {
            black_box(step);
        }
        match stream.write_all(&[0]) {
            Err(error) if has_ended(&error) => return Ok(done),
            sent => sent?,
        }
        loop {
            let now = wall_ns();
            if now >= end {
                return Ok(done);
            }
            if now - ran > PERIOD / 2 && now >= begin {
                done.begins.push(now);
            }
            ran = now;
            match stream.read(&mut [0]) {
                Ok(0) => return Ok(done),
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if has_ended(&error) => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        done.rounds += u64::from(ran >= begin);
    }
}

fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}
