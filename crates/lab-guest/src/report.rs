//! How a workload counts and stamps what it does without waking init: in a file in memory, which init reads
//! when it is asked.
//!
//! The file holds numbers of 8 bytes, little-endian: operations, bytes and stamps since the start; then a
//! ring of [`RING`] stamps, each its time and its kind. The ring starts over when it is full, so that the
//! file does not grow; what init did not read by then is lost.

use frontdesk_lab_guest::{MAX_STAMPS, Stamp, StampKind, WorkloadReport};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Stamps that the file holds: twice what init takes at most, so that it can read while the workload writes.
const RING: u64 = 2 * MAX_STAMPS as u64;

/// The time stamp counter, now.
pub(crate) fn tsc() -> u64 {
    // SAFETY: this reads a register that each x86-64 processor has and that Linux lets programs read.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The numbers at the begin of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReportTotals {
    operations: u64,
    bytes: u64,
    stamps: u64,
}

impl ReportTotals {
    const SIZE: u64 = 3 * 8;

    fn write(self, file: &File) -> io::Result<()> {
        let numbers = [self.operations, self.bytes, self.stamps].map(u64::to_le_bytes);
        file.write_all_at(numbers.as_flattened(), 0)
    }

    fn read(file: &File) -> io::Result<ReportTotals> {
        let mut numbers = [[0; 8]; 3];
        file.read_exact_at(numbers.as_flattened_mut(), 0)?;
        let [operations, bytes, stamps] = numbers.map(u64::from_le_bytes);
        Ok(ReportTotals { operations, bytes, stamps })
    }
}

/// A stamp in the file: its time and its kind.
type StampBytes = [[u8; 8]; 2];

fn encode(stamp: Stamp) -> StampBytes {
    let kind = KINDS.iter().position(|kind| *kind == stamp.kind).unwrap_or(KINDS.len());
    [stamp.tsc, kind as u64].map(u64::to_le_bytes)
}

fn decode(record: StampBytes) -> Option<Stamp> {
    let [tsc, kind] = record.map(u64::from_le_bytes);
    let kind = *KINDS.get(usize::try_from(kind).ok()?)?;
    Some(Stamp { tsc, kind })
}

/// The kinds of stamps, each at the number that stands for it in the file.
const KINDS: [StampKind; 8] = [
    StampKind::Wake,
    StampKind::Begin,
    StampKind::End,
    StampKind::IoBound,
    StampKind::CpuBound,
    StampKind::Reply,
    StampKind::Frame,
    StampKind::LateFrame,
];

/// Where the stamp with this number is in the file.
fn position(stamp: u64) -> u64 {
    ReportTotals::SIZE + stamp % RING * size_of::<StampBytes>() as u64
}

/// The workload's side.
pub(crate) struct ReportRecorder {
    /// None if nobody wants to know.
    file: Option<File>,
    totals: ReportTotals,
}

impl ReportRecorder {
    /// Records in the file at `path`, if there is one.
    pub(crate) fn new(path: Option<&Path>) -> io::Result<ReportRecorder> {
        let file = path.map(|path| File::options().write(true).open(path)).transpose()?;
        Ok(ReportRecorder { file, totals: ReportTotals::default() })
    }

    /// Counts what was done.
    pub(crate) fn count(&mut self, operations: u64, bytes: u64) -> io::Result<()> {
        self.totals.operations += operations;
        self.totals.bytes += bytes;
        self.write_totals()
    }

    /// Stamps something that happens now.
    pub(crate) fn stamp(&mut self, kind: StampKind) -> io::Result<()> {
        self.stamp_at(tsc(), kind)
    }

    /// Stamps something that happened when the time stamp counter was at `tsc`.
    pub(crate) fn stamp_at(&mut self, tsc: u64, kind: StampKind) -> io::Result<()> {
        if let Some(file) = &self.file {
            let record = encode(Stamp { tsc, kind });
            file.write_all_at(record.as_flattened(), position(self.totals.stamps))?;
        }
        self.totals.stamps += 1;
        // After the stamp, so that init finds what the number promises.
        self.write_totals()
    }

    fn write_totals(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| self.totals.write(file))
    }
}

/// Init's side.
pub(crate) struct Records {
    file: File,
    /// Stamps that were read, or lost.
    taken: u64,
}

impl Records {
    /// Makes an empty file at `path` for a [`ReportRecorder`].
    pub(crate) fn create(path: &Path) -> io::Result<Records> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        ReportTotals::default().write(&file)?;
        Ok(Records { file, taken: 0 })
    }

    /// What happened so far, with the newest of the stamps that no report had before.
    pub(crate) fn take(&mut self) -> io::Result<WorkloadReport> {
        let totals = self.totals()?;
        let mut next = self.taken.max(totals.stamps.saturating_sub(MAX_STAMPS as u64));
        let mut stamps = Vec::new();
        while next < totals.stamps {
            // Up to the end of the ring, in one piece.
            let count = (totals.stamps - next).min(RING - next % RING);
            let mut records = vec![StampBytes::default(); usize::try_from(count).map_err(damaged)?];
            let bytes = records.as_flattened_mut().as_flattened_mut();
            self.file.read_exact_at(bytes, position(next))?;
            for record in records {
                stamps.push(decode(record).ok_or_else(|| damaged("a stamp of no known kind"))?);
            }
            next += count;
        }
        self.taken = next;
        Ok(WorkloadReport { operations: totals.operations, bytes: totals.bytes, stamps })
    }

    /// The totals, which the workload may write at the same time: what was read is whole if it is read again.
    fn totals(&self) -> io::Result<ReportTotals> {
        let mut last = ReportTotals::read(&self.file)?;
        // A write is so much shorter than the time between two that this ends long before.
        for _ in 0..1000 {
            let again = ReportTotals::read(&self.file)?;
            if again == last {
                break;
            }
            last = again;
        }
        Ok(last)
    }
}

fn damaged(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct TemporaryFile(PathBuf);

    impl Drop for TemporaryFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn pair(name: &str) -> (TemporaryFile, ReportRecorder, Records) {
        let file = std::env::temp_dir().join(format!("frontdesk-report-{name}-{}", std::process::id()));
        let records = Records::create(&file).unwrap();
        let recorder = ReportRecorder::new(Some(&file)).unwrap();
        (TemporaryFile(file), recorder, records)
    }

    #[test]
    fn what_is_recorded_is_read() {
        let (_file, mut recorder, mut records) = pair("round-trip");
        assert_eq!(records.take().unwrap(), WorkloadReport::default());
        recorder.count(2, 300).unwrap();
        recorder.count(u64::MAX - 2, 1).unwrap();
        let stamps: Vec<Stamp> =
            KINDS.iter().zip(7..).map(|(kind, tsc)| Stamp { tsc, kind: *kind }).collect();
        for stamp in &stamps {
            recorder.stamp_at(stamp.tsc, stamp.kind).unwrap();
        }
        let report = WorkloadReport { operations: u64::MAX, bytes: 301, stamps };
        assert_eq!(records.take().unwrap(), report);
        assert_eq!(records.take().unwrap(), WorkloadReport { stamps: Vec::new(), ..report });
        recorder.stamp_at(u64::MAX, StampKind::End).unwrap();
        let stamps = records.take().unwrap().stamps;
        assert_eq!(stamps, [Stamp { tsc: u64::MAX, kind: StampKind::End }]);
    }

    #[test]
    fn the_newest_stamps_are_kept_in_a_file_that_does_not_grow() {
        let (file, mut recorder, mut records) = pair("bound");
        // Around the ring, past its end and on, with reports in between.
        let mut first = 0;
        for count in [RING - 10, 20, MAX_STAMPS as u64 + 1, 3 * RING + 7, 5] {
            for tsc in first..first + count {
                recorder.stamp_at(tsc, StampKind::Wake).unwrap();
            }
            let end = first + count;
            let expected = first.max(end.saturating_sub(MAX_STAMPS as u64))..end;
            let stamps = records.take().unwrap().stamps;
            assert!(stamps.iter().map(|stamp| stamp.tsc).eq(expected), "{count} after {first}");
            first = end;
        }
        assert_eq!(
            std::fs::metadata(&file.0).unwrap().len(),
            position(RING - 1) + size_of::<StampBytes>() as u64
        );
    }

    #[test]
    fn nobody_has_to_listen() {
        let mut recorder = ReportRecorder::new(None).unwrap();
        recorder.stamp(StampKind::Begin).unwrap();
        recorder.count(1, 1).unwrap();
    }

    #[test]
    fn a_damaged_stamp_is_an_error() {
        assert_eq!(decode([[9; 8]; 2]), None);
        let stamp = Stamp { tsc: 5, kind: StampKind::CpuBound };
        assert_eq!(decode(encode(stamp)), Some(stamp));
    }
}
