//! Workloads that read from the data disk.

use super::process::{WorkloadError, failed, ready, spin, xorshift};
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

const BLOCK: u64 = 4096;

/// Aligned as reads past the page cache must be.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// A file of the data disk.
struct DataFile {
    file: File,
    /// Blocks in the files up to the end of this one.
    end: u64,
    /// Whether reads pass by the page cache.
    direct: bool,
}

/// All files of the data disk.
struct Sources(Vec<DataFile>);

impl Sources {
    fn open() -> Result<Sources, WorkloadError> {
        let mut sources: Vec<DataFile> = Vec::new();
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
            let blocks = file.metadata().map_err(failed(path(number)))?.len() / BLOCK;
            sources.push(DataFile { file, end: blocks + sources.last().map_or(0, |last| last.end), direct });
        }
        match sources.last() {
            Some(last) if last.end > 0 => Ok(Sources(sources)),
            _ => Err(no_data("file with a block of 4 KiB")),
        }
    }

    fn blocks(&self) -> u64 {
        self.0.last().map_or(0, |last| last.end)
    }

    /// Reads a block from the disk. They are numbered through all files.
    fn read(&self, number: u64, block: &mut Block) -> Result<(), String> {
        let index = self.0.partition_point(|source| source.end <= number);
        let source = &self.0[index];
        let first = index.checked_sub(1).map_or(0, |before| self.0[before].end);
        let failed = |error| failed::<io::Error>(path(index as u64))(error);
        source.file.read_exact_at(&mut block.0, (number - first) * BLOCK).map_err(failed)?;
        if !source.direct {
            fadvise(&source.file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }
}

/// Reads blocks here and there, and computes after each.
pub(super) fn read_burn(cost: u64, mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    let sources = Sources::open()?;
    // Workloads that read the same files take different ways.
    let mut state = xorshift(u64::from(std::process::id()) << 32 | 1);
    ready();
    let mut block = Block([0; 4096]);
    loop {
        state = xorshift(state);
        sources.read(state % sources.blocks(), &mut block)?;
        recorder.stamp(StampKind::Wake)?;
        recorder.count(1, BLOCK)?;
        spin(cost);
    }
}
