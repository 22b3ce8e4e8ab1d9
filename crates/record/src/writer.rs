//! Making recordings, from the daemon's loop, which must never wait for them.

use super::frame::{Encoder, MAX_BLOCK, header};
use super::{Record, RecordError, codec};
use frontdesk_engine::{Engine, Time};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A block is written when it has this many bytes,
const BLOCK: usize = 64 << 10;
/// or when it is this old.
pub(super) const MAX_AGE_NS: u64 = 500_000_000;
/// Blocks that may wait for the sink. If it is behind by more, the recording ends.
const BACKLOG: usize = 256;
/// The sink takes the rest within this, or is given up.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Makes one recording: collects records and hands them, a block at a time, to a thread that compresses and
/// writes them.
pub struct Recorder {
    name: String,
    block: Vec<u8>,
    /// When a block was handed over last.
    handed: Time,
    /// Absent when the recording has ended early.
    sender: Option<SyncSender<Vec<u8>>>,
    overflow: bool,
    thread: JoinHandle<io::Result<()>>,
}

impl Recorder {
    /// Begins a recording in a new file, or in place of an old one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> Result<Recorder, RecordError> {
        let name = path.display().to_string();
        match File::create(path) {
            Ok(file) => Recorder::start(file, name),
            Err(source) => Err(RecordError::Io { name, source }),
        }
    }

    /// Begins a recording that goes to `sink`, called `name` in errors.
    ///
    /// # Errors
    /// There is no thread to write it.
    pub fn start(sink: impl Write + Send + 'static, name: String) -> Result<Recorder, RecordError> {
        let (sender, receiver) = sync_channel(BACKLOG);
        let thread = std::thread::Builder::new().name("record".into());
        let thread = match thread.spawn(move || write(sink, &receiver)) {
            Ok(thread) => thread,
            Err(source) => return Err(RecordError::Io { name, source }),
        };
        let block = Vec::with_capacity(BLOCK);
        Ok(Recorder { name, block, handed: Time::default(), sender: Some(sender), overflow: false, thread })
    }

    /// Adds a record. Never waits; if the sink falls far behind, or fails, the recording ends.
    pub fn push(&mut self, record: &Record) {
        if self.sender.is_none() {
            return;
        }
        codec::encode(record, &mut self.block);
        if self.block.len() >= BLOCK {
            self.hand_over();
        }
    }

    /// Adds the engine's whole state.
    pub(super) fn push_state(&mut self, engine: &Engine) -> Result<(), RecordError> {
        /// What [`Record`] begins with, without a copy of the engine.
        #[derive(serde::Serialize)]
        enum First<'a> {
            State(&'a Engine),
        }
        codec::encode(&First::State(engine), &mut self.block);
        let bytes = self.block.len();
        if bytes > MAX_BLOCK {
            return Err(RecordError::State { name: self.name.clone(), bytes });
        }
        self.hand_over();
        Ok(())
    }

    /// Hands over what has waited for long enough. Call it at least each half second.
    pub(super) fn tick(&mut self, now: Time) {
        if now.since(self.handed) >= MAX_AGE_NS {
            self.handed = now;
            if !self.block.is_empty() {
                self.hand_over();
            }
        }
    }

    fn hand_over(&mut self) {
        let Some(sender) = &self.sender else { return };
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        match sender.try_send(block) {
            Ok(()) => {}
            Err(error) => {
                // Without an end, the recording says that it is incomplete.
                self.overflow = matches!(error, TrySendError::Full(_));
                self.sender = None;
                self.block = Vec::new();
            }
        }
    }

    /// Completes the recording, without waiting for the sink.
    pub(super) fn end(&mut self) {
        self.push(&Record::End);
        self.hand_over();
        self.sender = None;
    }

    /// Whether nothing more comes of it.
    pub(super) fn has_ended(&self) -> bool {
        self.overflow || self.thread.is_finished()
    }

    /// Writes what is left and the end, and waits for the sink, but not for ever.
    ///
    /// # Errors
    /// The sink failed or was too slow, now or before.
    pub fn finish(self) -> Result<(), RecordError> {
        self.finish_by(Instant::now() + PATIENCE)
    }

    pub(super) fn finish_by(mut self, deadline: Instant) -> Result<(), RecordError> {
        self.push(&Record::End);
        let mut last = Some(std::mem::take(&mut self.block));
        while let (Some(sender), Some(block)) = (&self.sender, last.take()) {
            match sender.try_send(block) {
                Err(TrySendError::Full(block)) if Instant::now() < deadline => {
                    last = Some(block);
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TrySendError::Full(_)) => self.overflow = true,
                // If the writer is gone, its result says why.
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            }
        }
        self.sender = None;
        while !self.overflow && !self.thread.is_finished() {
            self.overflow = Instant::now() >= deadline;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.result()
    }

    /// How it ended. A writer that still waits for its sink is left alone.
    pub(super) fn result(self) -> Result<(), RecordError> {
        if self.overflow {
            return Err(RecordError::Overflow { name: self.name });
        }
        let result = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.map_err(|source| RecordError::Io { name: self.name, source })
    }
}

/// What the thread of a recording does: a frame for each block, until there are no more.
fn write(mut sink: impl Write, blocks: &Receiver<Vec<u8>>) -> io::Result<()> {
    let mut encoder = Encoder::new()?;
    sink.write_all(&header())?;
    for block in blocks {
        sink.write_all(&encoder.frame(&block)?)?;
        sink.flush()?;
    }
    Ok(())
}
