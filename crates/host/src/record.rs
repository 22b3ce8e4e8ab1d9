//! The recording of a daemon's run: every event it fed the engine and every action it applied.
//!
//! A recording is enough to repeat the run: the same events and deadlines give the same actions.

use frontdesk_engine::{Action, Config, Event, Time, VmId, VmPolicy};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Begins every recording; the digit is the format's version.
const MAGIC: &[u8; 8] = b"FDSKREC2";
/// Records written at once.
const CHUNK: usize = 2048;
/// Chunks that may wait for the disk: with these full, more are counted and dropped, for the daemon must not wait.
const BACKLOG: usize = 256;
/// A chunk longer than this was not written by us.
const MAX_CHUNK_BYTES: u32 = 1 << 24;

/// One entry of a recording, in the order in which the daemon met it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// The engine's parameters; first, and again whenever they change.
    Config(Config),
    /// The name of a VM.
    Vm {
        /// The VM.
        vm: VmId,
        /// Its name.
        name: String,
    },
    /// The engine was given this event.
    Event(Event),
    /// The engine was told this time.
    Deadline(Time),
    /// This action was applied.
    Applied {
        /// The action.
        action: Action,
        /// Nanoseconds from the event that caused it to its effect.
        latency_ns: u64,
    },
    /// So many records were dropped here, because the disk was too slow.
    Dropped(u64),
    /// From here on this holds for a VM.
    VmPolicy {
        /// The VM.
        vm: VmId,
        /// What holds.
        policy: VmPolicy,
    },
}

/// A recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file could not be opened, read or written.
    #[error("recording {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: std::io::Error,
    },
    /// The file is no recording, or one of another version.
    #[error("{path} is not a recording of this version of frontdesk")]
    Magic {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error("recording {path} is damaged after {records} records: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Records read before.
        records: usize,
        /// What was found.
        reason: String,
    },
}

/// Writes a recording from a thread of its own.
pub(crate) struct Recorder {
    path: PathBuf,
    chunk: Vec<Record>,
    dropped: u64,
    sender: SyncSender<Vec<Record>>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Recorder {
    pub(crate) fn create(path: &Path) -> Result<Recorder, RecordError> {
        let path = path.to_owned();
        let failed = |source| RecordError::Io { path: path.clone(), source };
        let mut file = BufWriter::new(File::create(&path).map_err(failed)?);
        file.write_all(MAGIC).map_err(failed)?;
        let (sender, receiver) = sync_channel::<Vec<Record>>(BACKLOG);
        let thread = std::thread::spawn(move || {
            for chunk in receiver {
                let bytes = postcard::to_stdvec(&chunk).map_err(std::io::Error::other)?;
                let length = u32::try_from(bytes.len()).map_err(std::io::Error::other)?;
                file.write_all(&length.to_le_bytes())?;
                file.write_all(&bytes)?;
            }
            file.flush()
        });
        Ok(Recorder { path, chunk: Vec::with_capacity(CHUNK), dropped: 0, sender, thread })
    }

    pub(crate) fn push(&mut self, record: Record) {
        self.chunk.push(record);
        if self.chunk.len() < CHUNK {
            return;
        }
        let mut chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK));
        if self.dropped > 0 {
            chunk.push(Record::Dropped(self.dropped));
        }
        match self.sender.try_send(chunk) {
            Ok(()) => self.dropped = 0,
            Err(TrySendError::Full(chunk) | TrySendError::Disconnected(chunk)) => {
                self.dropped = self.dropped.saturating_add(chunk.len() as u64);
            }
        }
    }

    /// Writes what is left and waits for the disk.
    pub(crate) fn finish(mut self) -> Result<(), RecordError> {
        if self.dropped > 0 {
            self.chunk.push(Record::Dropped(self.dropped));
        }
        // If the writer is gone, its result below says why.
        let _ = self.sender.send(self.chunk);
        drop(self.sender);
        let result = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.map_err(|source| RecordError::Io { path: self.path, source })
    }
}

/// Reads a whole recording.
///
/// # Errors
/// The file can't be read, is no recording of this version, or is damaged.
pub fn read_recording(path: &Path) -> Result<Vec<Record>, RecordError> {
    let failed = |source| RecordError::Io { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut magic = [0; MAGIC.len()];
    if file.read_exact(&mut magic).is_err() || &magic != MAGIC {
        return Err(RecordError::Magic { path: path.to_owned() });
    }
    let mut records = Vec::new();
    loop {
        let mut length = [0; 4];
        match file.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(records),
            Err(error) => return Err(failed(error)),
        }
        let length = u32::from_le_bytes(length);
        let damaged = |records: &Vec<Record>, reason: String| RecordError::Damaged {
            path: path.to_owned(),
            records: records.len(),
            reason,
        };
        if length > MAX_CHUNK_BYTES {
            return Err(damaged(&records, format!("a chunk of {length} bytes")));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact(&mut bytes).map_err(|error| damaged(&records, error.to_string()))?;
        let chunk: Vec<Record> =
            postcard::from_bytes(&bytes).map_err(|error| damaged(&records, error.to_string()))?;
        records.extend(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_engine::EventKind;

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.rec");
        let records: Vec<Record> = (0..5000)
            .map(|i| Record::Event(Event { at: Time(i), kind: EventKind::VmRemoved { vm: VmId(7) } }))
            .collect();
        let mut recorder = Recorder::create(&path).unwrap();
        recorder.push(Record::Config(Config::default()));
        records.iter().cloned().for_each(|record| recorder.push(record));
        recorder.finish().unwrap();
        let read = read_recording(&path).unwrap();
        assert_eq!(read[0], Record::Config(Config::default()));
        assert_eq!(read[1..], records);
    }

    #[test]
    fn a_damaged_recording_is_refused_with_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.rec");
        let mut recorder = Recorder::create(&path).unwrap();
        (0..3000).for_each(|i| recorder.push(Record::Deadline(Time(i))));
        recorder.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = read_recording(&path).unwrap_err().to_string();
        assert!(error.contains("damaged after 2048 records"), "{error}");
        std::fs::write(&path, b"FDSKREC9").unwrap();
        assert!(matches!(read_recording(&path), Err(RecordError::Magic { .. })));
    }
}
