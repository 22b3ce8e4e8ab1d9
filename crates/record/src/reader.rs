//! Reading recordings, record by record.

use super::frame::{Decoder, Frame, MAGIC, MAJOR, MINOR, read_up_to};
use super::{Record, RecordError, codec};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In order.
    Complete,
    /// Without an end: its recorder was killed or is still at work, or what it wrote has been cut.
    Cut {
        /// Bytes after the last whole frame, of no use.
        bytes: u64,
    },
}

/// A recording that is being read: an iterator over its records that holds no more than one block of them,
/// and after an error gives nothing.
pub struct Recording<R = BufReader<File>> {
    source: R,
    name: String,
    decoder: Decoder,
    block: Vec<u8>,
    /// How much of the block has been given.
    given: usize,
    /// Where the frame of the block begins, and where the next one does.
    frame_at: u64,
    next_at: u64,
    records: u64,
    /// Whether a later minor version made it: what cannot be made out need not be damaged.
    later: bool,
    left_out: u64,
    ended: bool,
    finished: bool,
    ending: Option<Ending>,
}

impl Recording {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is no recording of this version.
    pub fn open(path: &Path) -> Result<Recording, RecordError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Recording::new(BufReader::new(file), name),
            Err(source) => Err(RecordError::Io { name, source }),
        }
    }
}

impl<R: Read> Recording<R> {
    /// Reads a recording from `source`, called `name` in errors.
    ///
    /// # Errors
    /// It cannot be read, or is no recording of this version.
    pub fn new(mut source: R, name: String) -> Result<Recording<R>, RecordError> {
        let mut header = [0; 12];
        let (read, decoder) =
            match read_up_to(&mut source, &mut header).and_then(|read| Ok((read, Decoder::new()?))) {
                Ok(ready) => ready,
                Err(source) => return Err(RecordError::Io { name, source }),
            };
        let [magic @ .., a, b, c, d] = header;
        if read < header.len() || magic != MAGIC {
            return Err(RecordError::NotARecording { name });
        }
        let (found, minor) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        if found != MAJOR {
            return Err(RecordError::Version { name, found });
        }
        let (block, next_at) = (Vec::new(), header.len() as u64);
        let (frame_at, given, records, ended, finished, ending) = (next_at, 0, 0, false, false, None);
        let (later, left_out) = (minor > MINOR, 0);
        Ok(Recording {
            source,
            name,
            decoder,
            block,
            given,
            frame_at,
            next_at,
            records,
            later,
            left_out,
            ended,
            finished,
            ending,
        })
    }

    /// How it ends; `None` until the iterator has given all its records, and after an error.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Records given so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records so far that only a later release knows, and that were not given.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// What it is called in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> &R {
        &self.source
    }

    /// Fetches the next block; `false` at the end.
    fn fetch(&mut self) -> Result<bool, RecordError> {
        let frame = self.decoder.next(&mut self.source, &mut self.block);
        let frame = frame.map_err(|source| RecordError::Io { name: self.name.clone(), source })?;
        (self.given, self.frame_at) = (self.block.len(), self.next_at);
        match frame {
            Frame::Block(bytes) => {
                (self.given, self.next_at) = (0, self.next_at + bytes);
                Ok(true)
            }
            Frame::End if self.ended => {
                self.ending = Some(Ending::Complete);
                Ok(false)
            }
            Frame::End => {
                self.ending = Some(Ending::Cut { bytes: 0 });
                Ok(false)
            }
            Frame::Torn(bytes) => {
                self.ending = Some(Ending::Cut { bytes });
                Ok(false)
            }
            Frame::Damaged(reason) => Err(self.damaged(reason)),
        }
    }

    fn advance(&mut self) -> Result<Option<Record>, RecordError> {
        loop {
            if self.given == self.block.len() {
                if !self.fetch()? {
                    return Ok(None);
                }
                continue;
            }
            if self.ended {
                return Err(self.damaged("it goes on after its end".to_owned()));
            }
            let rest = &self.block[self.given..];
            let record = match codec::decode(rest) {
                Ok((record, bytes)) => {
                    self.given += bytes;
                    record
                }
                Err(_)
                    if self.later
                        && let Some(bytes) = codec::length(rest) =>
                {
                    self.given += bytes;
                    self.left_out += 1;
                    continue;
                }
                Err(reason) => return Err(self.damaged(format!("a record cannot be decoded: {reason}"))),
            };
            if matches!(record, Record::End) {
                self.ended = true;
                continue;
            }
            self.records += 1;
            return Ok(Some(record));
        }
    }

    fn damaged(&self, reason: String) -> RecordError {
        RecordError::Damaged { name: self.name.clone(), at: self.frame_at, records: self.records, reason }
    }
}

impl<R: Read> Iterator for Recording<R> {
    type Item = Result<Record, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let next = self.advance().transpose();
        self.finished = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Reads a whole recording at once, one that ended in order.
///
/// # Errors
/// The file cannot be read, is no recording of this version, is damaged, or has no end.
pub fn read_recording(path: &Path) -> Result<Vec<Record>, RecordError> {
    let mut recording = Recording::open(path)?;
    let records = recording.by_ref().collect::<Result<Vec<Record>, RecordError>>()?;
    match recording.ending() {
        Some(Ending::Complete) => Ok(records),
        _ => Err(RecordError::Incomplete { name: recording.name, records: recording.records }),
    }
}
