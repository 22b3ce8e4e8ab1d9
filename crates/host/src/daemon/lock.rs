//! One daemon per host: two would undo each other's changes.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why a daemon cannot be the only one.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another one runs.
    #[error(
        "another frontdesk runs already ({holder}), and two would undo each other's changes; end that one first (it holds {})",
        path.display()
    )]
    Held {
        /// The file it holds.
        path: PathBuf,
        /// Its process id and when it started, as it wrote them down.
        holder: String,
    },
    /// The file cannot be made.
    #[error("cannot make sure to be the only frontdesk, by locking {}: {source}; it needs root", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// Held while the daemon runs. The kernel lets go of it with the process, however that ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock and writes down who has it.
    pub(super) fn take(path: &Path) -> Result<Lock, LockError> {
        let failed = |source| LockError::File { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut file = loop {
            let options = File::options().read(true).write(true).create(true).truncate(false).open(path);
            let file = options.map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Otherwise another file is there by now, which somebody else may have locked.
                Ok(()) if is_at(&file, path) => break file,
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    // Whoever holds it may not have written it yet.
                    let _ = (&file).take(200).read_to_string(&mut holder);
                    let holder = if holder.is_empty() { "which is just starting" } else { holder.trim_end() };
                    return Err(LockError::Held { path: path.to_owned(), holder: holder.to_owned() });
                }
                Err(error) => return Err(failed(error.into())),
            }
        };
        let since = humantime::format_rfc3339_seconds(SystemTime::now());
        file.set_len(0).map_err(failed)?;
        write!(file, "process {} since {since}", std::process::id()).map_err(failed)?;
        Ok(Lock { _file: file })
    }
}

/// Whether a file is the one that is at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (own, there) = (file.metadata().map(identity), std::fs::metadata(path).map(identity));
    own.is_ok_and(|own| there.is_ok_and(|there| own == there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_replaced_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.lock");
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_at(&file, &path));
        let _other = File::create(&path).unwrap();
        assert!(!is_at(&file, &path));
    }

    #[test]
    fn the_second_is_told_who_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/daemon.lock");
        let first = Lock::take(&path).unwrap();
        let error = Lock::take(&path).unwrap_err().to_string();
        let holder = format!("(process {} since 2", std::process::id());
        assert!(error.contains(&holder) && error.contains("daemon.lock"), "{error}");
        drop(first);
        Lock::take(&path).unwrap();
    }
}
