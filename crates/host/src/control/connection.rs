//! A connection to somebody who may stall or flood: whatever is read is bounded, and everything is over at a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream whose single reads and writes can be given a time limit.
pub(crate) trait Stream: Read + Write + Send + 'static {
    /// No read or write from now on takes longer than this, which is not zero.
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
pub(crate) struct Connection<S> {
    stream: S,
    time: Duration,
    deadline: Instant,
}

impl<S: Stream> Connection<S> {
    pub(crate) fn new(stream: S, time: Duration) -> Connection<S> {
        Connection { stream, time, deadline: Instant::now() + time }
    }

    /// The other side has done its part, or failed to: our answer has the same time again.
    pub(crate) fn renew(&mut self) {
        self.deadline = Instant::now() + self.time;
    }

    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream itself, without the deadline's limits on it.
    pub(crate) fn into_stream(self) -> S {
        self.stream
    }

    fn wait(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { self.stream.limit(left) }
    }

    /// Reads until `end` says so, which is given all that was read and where the newest piece of it begins, or the other side has
    /// nothing more to say. More than `most` bytes without an end are an error (`FileTooLarge`).
    pub(crate) fn read_until(
        &mut self,
        most: usize,
        end: impl Fn(&[u8], usize) -> bool,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        loop {
            self.wait()?;
            let before = bytes.len();
            match self.stream.read(&mut piece) {
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

    /// Reads a line of at most `most` bytes; its end, and what comes after it, is not part of it. No end is an error
    /// (`UnexpectedEof`).
    pub(crate) fn read_line(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.read_until(most, |bytes, newest| bytes[newest..].contains(&b'\n'))?;
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
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
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
