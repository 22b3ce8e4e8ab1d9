//! The kernel's queue of work, and what its completions belong to.

use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::os::fd::RawFd;

/// Entries of the submission queue. More than these are submitted in parts.
const ENTRIES: u32 = 256;

/// What a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A piece of work for the request in this slot.
    Piece(u32),
    /// The guest kicked this queue; the number tells this kick's descriptor from earlier ones.
    Kick(u16, u16),
    /// The scheduler has something for this VM.
    Granted,
    /// The front end wants to connect.
    Listener,
    /// The front end says something, or is gone.
    Connection,
    /// A second is over.
    Second,
    /// The process is to end.
    Stop,
    /// Nothing: the end of something cancelled.
    Cancelled,
}

impl Token {
    fn raw(self) -> u64 {
        let (kind, rest): (u64, u64) = match self {
            Token::Cancelled => (0, 0),
            Token::Piece(slot) => (1, u64::from(slot)),
            Token::Kick(queue, number) => (2, u64::from(queue) | u64::from(number) << 16),
            Token::Granted => (3, 0),
            Token::Listener => (4, 0),
            Token::Connection => (5, 0),
            Token::Second => (6, 0),
            Token::Stop => (7, 0),
        };
        kind << 32 | rest
    }

    fn from_raw(raw: u64) -> Token {
        let low = |shift: u32| u16::try_from(raw >> shift & 0xffff).unwrap_or_default();
        match raw >> 32 {
            1 => Token::Piece(u32::from(low(16)) << 16 | u32::from(low(0))),
            2 => Token::Kick(low(0), low(16)),
            3 => Token::Granted,
            4 => Token::Listener,
            5 => Token::Connection,
            6 => Token::Second,
            7 => Token::Stop,
            _ => Token::Cancelled,
        }
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// Of what.
    pub(crate) token: Token,
    /// What the kernel says: a count, or an error below zero.
    pub(crate) result: i32,
    /// Whether more of it will come.
    pub(crate) more: bool,
}

/// One VM's queue of work.
pub(crate) struct Uring {
    ring: IoUring,
    second: Box<types::Timespec>,
}

impl Uring {
    /// A queue, for the thread that calls this.
    ///
    /// # Errors
    /// If the kernel has no `io_uring`, or refuses it.
    pub(crate) fn new() -> io::Result<Uring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(ENTRIES * 8).setup_coop_taskrun().setup_single_issuer();
        Ok(Uring { ring: builder.build(ENTRIES)?, second: Box::new(types::Timespec::new().sec(1)) })
    }

    /// Queues work.
    ///
    /// # Safety
    /// Whatever `entry` points to stays in place until its completion has come.
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry, token: Token) -> io::Result<()> {
        let entry = entry.user_data(token.raw());
        // SAFETY: as the caller has promised.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit(0)?;
        }
        Ok(())
    }

    /// Asks to be told once that a descriptor can be read.
    pub(crate) fn poll_once(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        // SAFETY: it points to nothing.
        unsafe { self.push(entry, token) }
    }

    /// Asks to be told each time that an event descriptor is written to. It need not be read.
    pub(crate) fn poll_always(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
        // SAFETY: it points to nothing.
        unsafe { self.push(entry, token) }
    }

    /// Asks not to be told any more.
    pub(crate) fn forget(&mut self, token: Token) -> io::Result<()> {
        let entry = opcode::PollRemove::new(token.raw()).build();
        // SAFETY: it points to nothing.
        unsafe { self.push(entry, Token::Cancelled) }
    }

    /// Asks to be told after a second.
    pub(crate) fn after_a_second(&mut self) -> io::Result<()> {
        let entry = opcode::Timeout::new(&*self.second).build();
        // SAFETY: the time is in a box that lives as long as the queue.
        unsafe { self.push(entry, Token::Second) }
    }

    fn submit(&mut self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            // A signal, or completions that must be taken first.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Submits what is queued, waits for a completion if `wait` says so, and takes all that there are.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn complete(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.submit(usize::from(wait))?;
        completions.extend(self.ring.completion().map(|entry| Completion {
            token: Token::from_raw(entry.user_data()),
            result: entry.result(),
            more: io_uring::cqueue::more(entry.flags()),
        }));
        Ok(())
    }
}
