//! The folder with a sweep's rows: what finished is there, whatever happens to who computes it.
//!
//! | file | what |
//! |---|---|
//! | `sweep.json` | what the rows follow from: the texts of all files that are read, the columns, the build |
//! | `rows-N.parquet` | rows of some runs, until all are done |
//! | `rows.parquet` | all rows, in the order of the runs |
//! | `lock` | locked by who writes |
//!
//! Each file is written under another name, and has its own when it is whole and on the disk.

use crate::design::Sweep;
use crate::elsewhere::BUILT;
use crate::error::SweepError;
use crate::row::Layout;
use crate::table::{self, Cell, Column, Row};
use parquet::errors::ParquetError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

const ORIGIN: &str = "sweep.json";
const LOCK: &str = "lock";
/// The file with all rows.
const ROWS: &str = "rows.parquet";
/// What a file has at the end of its name until it is whole.
const UNFINISHED: &str = ".unfinished";

/// What the rows follow from.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    sources: BTreeMap<String, String>,
    columns: Vec<Column>,
    /// What made them: see [`BUILT`].
    #[serde(default)]
    built: String,
}

/// A folder with the rows of a sweep, which nobody else writes into.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    layout: Layout,
    rows: Vec<Row>,
    /// Whether a run has its rows, by its number.
    done: Vec<bool>,
    /// Files with rows of some runs.
    parts: Vec<PathBuf>,
    /// Files that were damaged, and are gone: what they held is computed again.
    pub damaged: Vec<PathBuf>,
    /// Held while this is there. The kernel lets go of it with the process, however that ends.
    _lock: File,
}

impl Folder {
    /// Opens a folder, makes it if need be, and reads the rows that it has.
    ///
    /// # Errors
    /// Another sweep writes into it, it holds something else than rows of this one, another build of
    /// frontdesk made some of these but not all, or it cannot be written.
    pub fn open(path: &Path, sweep: &Sweep) -> Result<Folder, SweepError> {
        fs::create_dir_all(path).map_err(SweepError::write(path))?;
        let names = names(path)?;
        let begun = names.iter().any(|name| name == LOCK || name == ORIGIN);
        if !begun && !names.is_empty() {
            return Err(SweepError::NoSweep { path: path.to_owned() });
        }
        let lock = lock(path)?;
        let layout = Layout::of(sweep);
        let origin = Origin {
            sources: sweep.sources.clone(),
            columns: layout.columns.clone(),
            built: BUILT.to_owned(),
        };
        let done = vec![false; sweep.runs()];
        let mut folder = Folder {
            path: path.to_owned(),
            layout,
            rows: Vec::new(),
            done,
            parts: Vec::new(),
            damaged: Vec::new(),
            _lock: lock,
        };
        let there = folder.origin()?;
        let is_other = |there: &Origin| there.sources != origin.sources || there.columns != origin.columns;
        if there.as_ref().is_some_and(is_other) {
            return Err(SweepError::OtherSweep { path: path.to_owned() });
        }
        folder.read()?;
        match there {
            // Rows of another build may say something else. All of them are the results of that one.
            Some(there) if there.built != origin.built && !folder.rows.is_empty() => {
                if !folder.missing().is_empty() {
                    return Err(SweepError::OtherBuild { path: path.to_owned(), built: there.built });
                }
            }
            Some(there) if there == origin => {}
            _ => drop(folder.write(ORIGIN, |out| Ok(serde_json::to_writer_pretty(out, &origin)?))?),
        }
        Ok(folder)
    }

    /// What the rows that are here follow from, if it has been said.
    fn origin(&self) -> Result<Option<Origin>, SweepError> {
        let path = self.path.join(ORIGIN);
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(there) => Ok(Some(there)),
                Err(_) => Err(SweepError::OtherSweep { path: self.path.clone() }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SweepError::Read { path, source }),
        }
    }

    /// Reads all rows. What a writer left unfinished, and what is damaged, is removed.
    fn read(&mut self) -> Result<(), SweepError> {
        let mut names = names(&self.path)?;
        // First that with all rows: it comes before what it was made of is removed.
        names.sort_by_key(|name| (name != ROWS, name.clone()));
        for name in names {
            let path = self.path.join(&name);
            if name.ends_with(UNFINISHED) {
                fs::remove_file(&path).map_err(SweepError::write(&path))?;
            } else if name.starts_with("rows") && name.ends_with(".parquet") {
                let file =
                    File::open(&path).map_err(|source| SweepError::Read { path: path.clone(), source })?;
                match table::read(&self.layout.columns, file) {
                    Ok(rows) => {
                        self.accept(rows);
                        if name != ROWS {
                            self.parts.push(path);
                        }
                    }
                    Err(_) => {
                        fs::remove_file(&path).map_err(SweepError::write(&path))?;
                        self.damaged.push(path);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the rows of runs that had none. All rows of a run are in one file.
    fn accept(&mut self, rows: Vec<Row>) {
        let new: Vec<Row> =
            rows.into_iter().filter(|row| self.done.get(number(row)) == Some(&false)).collect();
        for row in &new {
            self.done[number(row)] = true;
        }
        self.rows.extend(new);
    }

    /// The columns of the rows.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All rows there are, in the order of the runs once these are all [finished](Folder::finish).
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The file that all rows are in, once they are all there.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.path.join(ROWS)
    }

    /// The numbers of the runs that have no rows.
    #[must_use]
    pub fn missing(&self) -> Vec<usize> {
        (0..self.done.len()).filter(|number| !self.done[*number]).collect()
    }

    /// How many runs failed.
    #[must_use]
    pub fn failures(&self) -> usize {
        let Some(error) = self.layout.column("error") else { return 0 };
        self.rows.iter().filter(|row| row[error] != Cell::Absent).count()
    }

    /// Keeps the rows of some runs: once it has returned, they are on the disk.
    ///
    /// # Errors
    /// They cannot be written; no file is left of them.
    pub(crate) fn keep(&mut self, rows: Vec<Row>) -> Result<(), SweepError> {
        let Some(first) = rows.iter().map(number).min() else { return Ok(()) };
        // A run has its rows once, so that no other file has this name.
        let path = self.write_rows(&format!("rows-{first:06}.parquet"), &rows)?;
        self.parts.push(path);
        self.accept(rows);
        Ok(())
    }

    /// Puts all rows into one file, in the order of the runs.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn finish(&mut self) -> Result<(), SweepError> {
        // The rows of a run stay in their order.
        self.rows.sort_by_key(number);
        if !self.parts.is_empty() || !self.file().exists() {
            self.write_rows(ROWS, &self.rows)?;
        }
        for part in self.parts.drain(..) {
            fs::remove_file(&part).map_err(SweepError::write(&part))?;
        }
        Ok(())
    }

    fn write_rows(&self, name: &str, rows: &[Row]) -> Result<PathBuf, SweepError> {
        let rows: Vec<&Row> = rows.iter().collect();
        self.write(name, |out| table::write(&self.layout.columns, &rows, out).map_err(io_error))
    }

    /// Writes a file that is whole as soon as it has its name.
    fn write(
        &self,
        name: &str,
        content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<PathBuf, SweepError> {
        let path = self.path.join(name);
        let unfinished = self.path.join(format!("{name}{UNFINISHED}"));
        let written = File::create(&unfinished).and_then(|file| {
            let mut out = BufWriter::new(file);
            content(&mut out)?;
            out.flush()?;
            out.get_ref().sync_all()?;
            fs::rename(&unfinished, &path)?;
            File::open(&self.path)?.sync_all()
        });
        if let Err(source) = written {
            // What was written of it takes room that may be wanted.
            let _ = fs::remove_file(&unfinished);
            return Err(SweepError::Write { path, source });
        }
        Ok(path)
    }
}

/// The run that a row is of.
fn number(row: &Row) -> usize {
    match row.first() {
        Some(Cell::Whole(number)) => usize::try_from(*number).unwrap_or(usize::MAX),
        _ => usize::MAX,
    }
}

/// What the system said, where that was the trouble.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}

fn names(folder: &Path) -> Result<Vec<String>, SweepError> {
    let failed = |source| SweepError::Read { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).map_err(failed)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<io::Result<_>>().map_err(failed)
}

/// Makes sure to be the only writer. The file stays: who finds it without its lock is the next.
fn lock(folder: &Path) -> Result<File, SweepError> {
    let path = folder.join(LOCK);
    let options = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = options.map_err(SweepError::write(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Whoever holds it may not have written it yet.
            let _ = file.take(20).read_to_string(&mut holder);
            return Err(SweepError::Locked { path: folder.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(SweepError::Write { path, source }),
    }
    let written = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
    written.map_err(SweepError::write(&path))?;
    Ok(file)
}
