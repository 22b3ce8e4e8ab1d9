//! Workloads that read from the data disk.

use super::process::{WorkloadError, failed, ready, spin, xorshift};
use super::servers::listen_udp;
use crate::report::ReportRecorder;
use frontdesk_lab_guest::{DATA, StampKind};
use rustix::fs::{Advice, fadvise};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// How much of a file one read takes.
const CHUNK: usize = 128 << 10;

fn path(number: u64) -> String {
    format!("{DATA}/{number}")
}

/// The file with this number; none after the last.
fn open(number: u64, flags: i32) -> io::Result<Option<File>> {
    match File::options().read(true).custom_flags(flags).open(path(number)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn no_data(what: &str) -> WorkloadError {
    format!("there is no {what} at {DATA}: this workload reads the VM's data disk; give the VM a `disk`")
        .into()
}

/// Reads files as programs do, through the page cache; but each time from the disk.
pub(super) fn read_files(mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    if open(0, 0).map_err(failed(path(0)))?.is_none() {
        return Err(no_data("file"));
    }
    ready();
    let mut buffer = vec![0; CHUNK];
    loop {
        for number in 0.. {
            let Some(mut file) = open(number, 0).map_err(failed(path(number)))? else { break };
            recorder.stamp(StampKind::Wake)?;
            loop {
                let length = file.read(&mut buffer).map_err(failed(path(number)))?;
                if length == 0 {
                    break;
                }
                recorder.stamp(StampKind::Wake)?;
                recorder.count(0, length as u64)?;
            }
            // The files may all fit in memory.
            fadvise(&file, 0, None, Advice::DontNeed).map_err(failed(path(number)))?;
            recorder.count(1, 0)?;
        }
    }
}

/// What reads past the page cache are aligned to, and what the shortest is.
const BLOCK: u64 = 4096;

/// Room for a read past the page cache.
struct Room(Vec<u8>);

impl Room {
    fn of(bytes: u64) -> Result<Room, WorkloadError> {
        Ok(Room(vec![0; usize::try_from(bytes + BLOCK)?]))
    }

    fn aligned(&mut self) -> &mut [u8] {
        let block = usize::try_from(BLOCK).unwrap_or_default();
        let at = self.0.as_ptr().align_offset(block);
        let bytes = self.0.len() - block;
        &mut self.0[at..at + bytes]
    }
}

/// A file of the data disk.
struct DataFile {
    file: File,
    /// Pieces in the files up to the end of this one.
    end: u64,
    /// Whether reads pass by the page cache.
    direct: bool,
}

/// All files of the data disk, as pieces of one size.
struct Sources {
    files: Vec<DataFile>,
    /// Bytes of a piece.
    piece: u64,
}

impl Sources {
    fn open(piece: u64) -> Result<Sources, WorkloadError> {
        let mut files: Vec<DataFile> = Vec::new();
        for number in 0.. {
            let (direct, found) = match open(number, libc::O_DIRECT) {
                // Not all file systems can.
                Err(error) if error.kind() == ErrorKind::InvalidInput => (false, open(number, 0)),
                found => (true, found),
            };
            let Some(file) = found.map_err(failed(path(number)))? else { break };
            if !direct {
                fadvise(&file, 0, None, Advice::Random).map_err(failed(path(number)))?;
            }
            let pieces = file.metadata().map_err(failed(path(number)))?.len() / piece;
            files.push(DataFile { file, end: pieces + files.last().map_or(0, |last| last.end), direct });
        }
        match files.last() {
            Some(last) if last.end > 0 => Ok(Sources { files, piece }),
            _ => Err(no_data(&format!("file with {} KiB", piece >> 10))),
        }
    }

    fn pieces(&self) -> u64 {
        self.files.last().map_or(0, |last| last.end)
    }

    /// Reads a piece from the disk. They are numbered through all files.
    fn read(&self, number: u64, room: &mut Room) -> Result<(), String> {
        let index = self.files.partition_point(|source| source.end <= number);
        let source = &self.files[index];
        let first = index.checked_sub(1).map_or(0, |before| self.files[before].end);
        let failed = |error| failed::<io::Error>(path(index as u64))(error);
        source.file.read_exact_at(room.aligned(), (number - first) * self.piece).map_err(failed)?;
        if !source.direct {
            fadvise(&source.file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }
}

/// Where a workload begins to read: those that read the same files take different ways.
fn begin() -> u64 {
    xorshift(u64::from(std::process::id()) << 32 | 1)
}

/// Reads blocks here and there, and computes after each.
pub(super) fn read_burn(cost: u64, mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    let sources = Sources::open(BLOCK)?;
    let mut state = begin();
    ready();
    let mut room = Room::of(BLOCK)?;
    loop {
        state = xorshift(state);
        sources.read(state % sources.pieces(), &mut room)?;
        recorder.stamp(StampKind::Wake)?;
        recorder.count(1, BLOCK)?;
        spin(cost);
    }
}

/// A file that is written again and again.
struct Written {
    file: File,
    path: String,
    data: Vec<u8>,
}

impl Written {
    fn create(name: &str, bytes: u64) -> Result<Written, WorkloadError> {
        let path = format!("{DATA}/{name}-{}", std::process::id());
        let file = File::create(&path).map_err(failed(&path))?;
        Ok(Written { file, path, data: vec![0x5a; usize::try_from(bytes)?] })
    }

    /// Writes it, and waits until it is on the disk.
    fn write(&self) -> Result<(), String> {
        let written = self.file.write_all_at(&self.data, 0).and_then(|()| self.file.sync_all());
        written.map_err(failed(&self.path))
    }
}

/// Writes to the disk, and waits for it.
pub(super) fn write_sync(bytes: u64, mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    let written = Written::create("log", bytes)?;
    ready();
    loop {
        written.write()?;
        recorder.count(1, bytes)?;
    }
}

/// Answers requests, each after some reads here and there, and perhaps a write. The bytes are those of each.
pub(super) fn read_burst(
    port: u16,
    reads: u32,
    [bytes, saved]: [u64; 2],
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    let sources = Sources::open(bytes)?;
    let socket = listen_udp(port)?;
    let mut state = begin();
    let mut room = Room::of(bytes)?;
    let mut request = vec![0; CHUNK];
    let saved = (saved > 0).then(|| Written::create("saved", saved)).transpose()?;
    ready();
    loop {
        let (length, from) = socket.recv_from(&mut request)?;
        for _ in 0..reads {
            state = xorshift(state);
            sources.read(state % sources.pieces(), &mut room)?;
        }
        saved.as_ref().map_or(Ok(()), Written::write)?;
        recorder.count(1, 0)?;
        // The client may be gone; that is its business.
        let _ = socket.send_to(&request[..length], from);
    }
}
