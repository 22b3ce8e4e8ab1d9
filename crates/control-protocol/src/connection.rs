//! A connection to somebody who may stall or flood: whatever is read is bounded, and everything is over at a
//! deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream whose single reads and writes can be given a time limit.
pub trait Stream: Read + Write + Send + 'static {
    /// No read or write from now on takes longer than this, which is not zero.
    ///
    /// # Errors
    /// The limit cannot be set.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// What is said to somebody, up to a deadline.
pub struct DeadlineStream<S> {
    stream: S,
    time: Duration,
    deadline: Instant,
}

impl<S: Stream> DeadlineStream<S> {
    /// A conversation over `stream` that is over after `time`.
    pub fn new(stream: S, time: Duration) -> DeadlineStream<S> {
        DeadlineStream { stream, time, deadline: Instant::now() + time }
    }

    /// The other side has done its part, or failed to: our answer has the same time again.
    pub fn renew(&mut self) {
        self.deadline = Instant::now() + self.time;
    }

    /// The stream itself.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream itself, without the deadline's limits on it.
    pub fn into_stream(self) -> S {
        self.stream
    }

    fn wait(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { self.stream.limit(left) }
    }

    /// Reads until `end` says so, which is given all that was read and where the newest piece of it begins,
    /// or the other side has nothing more to say. More than `most` bytes without an end are an error
    /// (`FileTooLarge`).
    ///
    /// # Errors
    /// As said, at the deadline (`TimedOut`), and when reading fails.
    pub fn read_until(&mut self, most: usize, end: impl Fn(&[u8], usize) -> bool) -> io::Result<Vec<u8>> {
        self.read_pieces(&mut [0; 4096], most, end)
    }

    fn read_pieces(
        &mut self,
        piece: &mut [u8],
        most: usize,
        end: impl Fn(&[u8], usize) -> bool,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            self.wait()?;
            let before = bytes.len();
            match self.stream.read(piece) {
                Ok(0) => return Ok(bytes),
                Ok(count) => bytes.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if end(&bytes, before) {
                return Ok(bytes);
            }
            if bytes.len() > most {
                return Err(ErrorKind::FileTooLarge.into());
            }
        }
    }

    /// Reads a line of at most `most` bytes; its end, and what comes after it, is not part of it. No end is
    /// an error (`UnexpectedEof`).
    ///
    /// # Errors
    /// As said, and as [`read_until`](Self::read_until).
    pub fn read_line(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let line = self.read_until(most, |bytes, newest| bytes[newest..].contains(&b'\n'))?;
        Self::cut(line, most)
    }

    /// The same, but what comes after the line is left in the stream.
    ///
    /// # Errors
    /// As [`read_line`](Self::read_line).
    pub fn read_only_line(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let line = self.read_pieces(&mut [0], most, |bytes, _| bytes.ends_with(b"\n"))?;
        Self::cut(line, most)
    }

    fn cut(mut bytes: Vec<u8>, most: usize) -> io::Result<Vec<u8>> {
        match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) if end <= most => {
                bytes.truncate(end);
                Ok(bytes)
            }
            Some(_) => Err(ErrorKind::FileTooLarge.into()),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// At the deadline (`TimedOut`), and when writing fails.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.wait()?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
