//! The journal: a file that holds each undo from before its change is made until it has been undone. It
//! outlives both the owner and the guardian, so that whoever starts next can undo what neither did.
//!
//! Both have it open, and with it share its lock (`flock(2)`): that is free when both have ended.
//!
//! The file begins with a header: [`MAGIC`], and the times until when the owner promised to be back. Slots
//! follow, each a multiple of [`GRAIN`] bytes: its size (u32), the length of its record (u32, 0 if it has
//! none), the record as JSON. A record is in force once its length is written, which a kill cannot tear, for
//! it does not cross a page.

use crate::promise;
use crate::undo::Undo;
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, flock, memfd_create, open};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Another one is not understood: the format has changed.
pub(crate) const MAGIC: [u8; 8] = *b"fdundo01";
const GRAIN: u64 = 256;
/// Of a slot.
const SLOT_HEADER: u64 = 8;
/// Between two looks whether the lock is free.
const LOOK: Duration = Duration::from_millis(2);

/// A record as a slot holds it. Of two, the one with the greater id is the later.
#[derive(Debug, Serialize, Deserialize)]
struct Slot {
    id: u64,
    undo: Undo,
}

/// What a journal held when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// By id.
    pub(crate) undos: BTreeMap<u64, Undo>,
    /// Why some records, or all, are not understood.
    pub(crate) unknown: Vec<String>,
}

/// The journal of an owner that needs none beyond its guardian's life.
pub(crate) fn in_memory() -> io::Result<File> {
    Ok(memfd_create("journal", MemfdFlags::CLOEXEC)?.into())
}

/// The journal at `path`, ours alone: waits as long as `patience` for a former owner and its guardian.
pub(crate) fn open_alone(path: &Path, patience: Duration) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let (found, user) = (file.metadata()?, rustix::process::geteuid().as_raw());
    if !found.is_file() || found.uid() != user || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not a file that only its user can write; remove it"));
    }
    let until = Instant::now() + patience;
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error.into());
        }
        if Instant::now() >= until {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "a former frontdesk or its guardian still holds it; `fuser` names it",
            ));
        }
        thread::sleep(LOOK);
    }
    Ok(file)
}

/// Empties a journal: all is undone.
pub(crate) fn clear(file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(&MAGIC, 0)?;
    file.set_len(GRAIN)
}

/// What a journal holds. A damaged one holds what can be read of it.
pub(crate) fn read(file: &File) -> io::Result<Left> {
    let mut left = Left::default();
    let length = file.metadata()?.len();
    if length < GRAIN {
        return Ok(left);
    }
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0)?;
    if magic != MAGIC {
        left.unknown.push("another version of frontdesk wrote it".into());
        return Ok(left);
    }
    let mut at = GRAIN;
    while at < length {
        let mut header = [0; 8];
        // It was being appended when both were killed: its change was not made.
        if file.read_exact_at(&mut header, at).is_err() {
            break;
        }
        let [size, used] = [&header[..4], &header[4..]]
            .map(|bytes| u64::from(u32::from_ne_bytes(bytes.try_into().unwrap_or_default())));
        if size == 0 || size % GRAIN != 0 || used > size - SLOT_HEADER || size > length - at {
            if size != 0 {
                left.unknown.push(format!("it is damaged at byte {at}"));
            }
            break;
        }
        if used > 0 {
            let mut record = vec![0; usize::try_from(used).unwrap_or_default()];
            file.read_exact_at(&mut record, at + SLOT_HEADER)?;
            match serde_json::from_slice(&record) {
                Ok(Slot { id, undo }) => _ = left.undos.insert(id, undo),
                Err(error) => {
                    left.unknown.push(format!("the record at byte {at} is not understood: {error}"))
                }
            }
        }
        at += size;
    }
    Ok(left)
}

/// The one who writes records: the guardian.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// Slots in use, with their size, by the record's id.
    used: BTreeMap<u64, (u64, u64)>,
    /// Slots that are free, with their size.
    free: Vec<(u64, u64)>,
    end: u64,
}

impl Journal {
    /// An empty one.
    pub(crate) fn new(file: File) -> io::Result<Journal> {
        clear(&file)?;
        Ok(Journal { file, used: BTreeMap::new(), free: Vec::new(), end: GRAIN })
    }

    /// Puts a record in force.
    pub(crate) fn put(&mut self, id: u64, undo: &Undo) -> io::Result<()> {
        let record = serde_json::to_vec(&Slot { id, undo: undo.clone() })?;
        let used = u32::try_from(record.len()).map_err(io::Error::other)?;
        let needed = (SLOT_HEADER + u64::from(used)).next_multiple_of(GRAIN);
        let fits = self.free.iter().position(|(_, size)| *size >= needed);
        let (at, size) = match fits {
            Some(index) => self.free.swap_remove(index),
            None => (self.end, needed),
        };
        let header = [u32::try_from(size).map_err(io::Error::other)?, used].map(u32::to_ne_bytes).concat();
        self.file.write_all_at(&record, at + SLOT_HEADER)?;
        self.end = self.end.max(at + size);
        if self.file.metadata()?.len() < self.end {
            self.file.set_len(self.end)?;
        }
        self.file.write_all_at(&header, at)?;
        self.used.insert(id, (at, size));
        Ok(())
    }

    /// Takes a record back.
    pub(crate) fn remove(&mut self, id: u64) -> io::Result<()> {
        if let Some((at, size)) = self.used.remove(&id) {
            self.file.write_all_at(&0_u32.to_ne_bytes(), at + SLOT_HEADER / 2)?;
            self.free.push((at, size));
        }
        Ok(())
    }

    /// Until when loop and dispatchers promised to be back; 0 if they did not.
    pub(crate) fn promised(&self) -> [u64; 2] {
        promise::PLACES.map(|at| {
            let mut time = [0; 8];
            // The header is there as long as this is.
            let _ = self.file.read_exact_at(&mut time, at);
            u64::from_ne_bytes(time)
        })
    }

    /// All is undone.
    pub(crate) fn clear(self) -> io::Result<()> {
        clear(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promise::{Promise, Promiser};

    fn undo(content: &str) -> Undo {
        Undo::File { path: "/nonexistent/knob".into(), content: content.into() }
    }

    #[test]
    fn holds_what_was_put_and_not_removed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("new/journal");
        let file = open_alone(&path, Duration::ZERO).unwrap();
        let mut journal = Journal::new(file).unwrap();
        let long = "9".repeat(700);
        for (id, content) in (0..).zip(["1", &long, "3", "4"]) {
            journal.put(id, &undo(content)).unwrap();
        }
        journal.remove(1).unwrap();
        journal.remove(2).unwrap();
        // Slots are used again, by records that fit.
        let before = std::fs::metadata(&path).unwrap().len();
        journal.put(7, &undo("in a large slot")).unwrap();
        journal.put(8, &undo("in a small one")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), before);
        for (of, time) in [(Promiser::Loop, 17), (Promiser::Dispatchers, 18)] {
            Promise::new(journal.file.try_clone().unwrap(), of).until(time);
        }
        assert_eq!(journal.promised(), [17, 18]);
        let wanted = [(0, "1"), (3, "4"), (7, "in a large slot"), (8, "in a small one")];
        let wanted = wanted.map(|(id, content)| (id, undo(content)));
        drop(journal);
        let again = open_alone(&path, Duration::ZERO).unwrap();
        assert_eq!(read(&again).unwrap(), Left { undos: wanted.into(), unknown: vec![] });
        let journal = Journal::new(again).unwrap();
        assert_eq!(journal.promised(), [0, 0], "the promise of somebody who has ended");
        journal.clear().unwrap();
        assert_eq!(read(&open_alone(&path, Duration::ZERO).unwrap()).unwrap(), Left::default());
    }

    #[test]
    fn whoever_comes_next_waits() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("journal");
        let first = open_alone(&path, Duration::ZERO).unwrap();
        let guardians = first.try_clone().unwrap();
        drop(first);
        let error = open_alone(&path, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "the guardian is at work: {error}");
        thread::scope(|scope| {
            let next = scope.spawn(|| open_alone(&path, Duration::from_secs(60)));
            drop(guardians);
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_strangers_file_is_no_journal() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let home = tempfile::tempdir().unwrap();
        let (file, link) = (home.path().join("file"), home.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(open_alone(&file, Duration::ZERO).is_err(), "others can write it");
        symlink("/etc/passwd", &link).unwrap();
        assert!(open_alone(&link, Duration::ZERO).is_err(), "a link");
    }

    /// Cut short, or at the same length with the rest lost, anywhere: what is whole is still there.
    #[test]
    fn a_damaged_journal_holds_what_is_whole() {
        let file = in_memory().unwrap();
        let mut journal = Journal::new(file.try_clone().unwrap()).unwrap();
        for id in 0..3 {
            journal.put(id, &undo(&id.to_string())).unwrap();
        }
        let mut whole = vec![0; usize::try_from(journal.end).unwrap()];
        file.read_exact_at(&mut whole, 0).unwrap();
        for cut in 0..whole.len() {
            let copy = in_memory().unwrap();
            copy.write_all_at(&whole[..cut], 0).unwrap();
            let expected = (cut / 256).saturating_sub(1);
            assert_eq!(read(&copy).unwrap().undos.len(), expected, "cut to {cut} bytes");
        }
        let copy = in_memory().unwrap();
        copy.write_all_at(&whole, 0).unwrap();
        copy.write_all_at(b"x", GRAIN + SLOT_HEADER).unwrap();
        let left = read(&copy).unwrap();
        assert_eq!((left.undos.len(), left.unknown.len()), (2, 1), "{left:?}");
        copy.write_all_at(b"others", 0).unwrap();
        assert_eq!(read(&copy).unwrap().unknown.len(), 1);
    }

    proptest::proptest! {
        #[test]
        fn fuzz_journal(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000)) {
            let file = in_memory().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            proptest::prop_assert!(read(&file).unwrap().undos.is_empty());
            crate::fuzzing::journal(&bytes);
        }
    }
}
