//! The user's cache folder: what takes long to make is made once and kept there.

use crate::command::CommandError;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// How the folders begin in which something is being made.
const WORK_PREFIX: &str = ".new-";

/// Something cannot be made, or not be kept.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Neither variable is set.
    #[error("there is no place to keep it: set HOME or XDG_CACHE_HOME")]
    NoFolder,
    /// Not enough room.
    #[error(
        "{folder}: {needed_mib} MiB are needed there and {free_mib} MiB are free: make room, or set XDG_CACHE_HOME \
         to a folder on another disk"
    )]
    Full {
        /// Where.
        folder: PathBuf,
        /// What is needed while it is made.
        needed_mib: u64,
        /// What there is.
        free_mib: u64,
    },
    /// A file operation failed.
    #[error("{path}: {source}{}", advice(.source))]
    Io {
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": make room, or set XDG_CACHE_HOME to a folder on another disk"
        }
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::AlreadyExists => {
            ": the folder must be writable; or set XDG_CACHE_HOME to one that is"
        }
        _ => "",
    }
}

/// Names `path` in an error.
pub(crate) fn io_error(path: &Path) -> impl Fn(io::Error) -> CacheError {
    move |source| CacheError::Io { path: path.into(), source }
}

/// The user's cache folder; it may not exist.
pub(crate) fn user_folder() -> Option<PathBuf> {
    let folder = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}

/// The folder `kind` of what the lab keeps; it may not exist.
pub(crate) fn folder(kind: &str) -> Result<PathBuf, CacheError> {
    Ok(user_folder().ok_or(CacheError::NoFolder)?.join("frontdesk").join(kind))
}

/// The path of `name` in `folder`. If it is not there, `make` makes it inside the folder that it is given and
/// says where; then it is moved in place, so that what is there is always whole. Whoever wants to make
/// something in the same folder meanwhile waits for its turn, and `on_wait` says so.
pub(crate) fn kept<E: From<CacheError>>(
    folder: &Path,
    name: &str,
    on_wait: impl FnOnce(),
    make: impl FnOnce(&Path) -> Result<PathBuf, E>,
) -> Result<PathBuf, E> {
    let path = folder.join(name);
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(folder).map_err(io_error(folder))?;
    let lock = folder.join(".lock");
    let file = File::create(&lock).map_err(io_error(&lock))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            on_wait();
            file.lock().map_err(io_error(&lock))?;
        }
        Err(TryLockError::Error(source)) => return Err(io_error(&lock)(source).into()),
    }
    if path.exists() {
        return Ok(path);
    }
    remove_unfinished(folder).map_err(io_error(folder))?;
    let work = tempfile::Builder::new().prefix(WORK_PREFIX).tempdir_in(folder).map_err(io_error(folder))?;
    let made = make(work.path())?;
    std::fs::rename(&made, &path).map_err(io_error(&path))?;
    Ok(path)
}

/// Removes what was left where making something was cut short. Only for who has the lock: it is nobody's
/// then.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_unfinished = entry.file_name().as_encoded_bytes().starts_with(WORK_PREFIX.as_bytes());
        if is_unfinished && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Checks that `folder` has this much room.
pub(crate) fn check_room(folder: &Path, needed_bytes: u64) -> Result<(), CacheError> {
    let stat = rustix::fs::statvfs(folder).map_err(|error| io_error(folder)(error.into()))?;
    let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free_bytes >= needed_bytes {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    Err(CacheError::Full {
        folder: folder.into(),
        needed_mib: mib(needed_bytes).saturating_add(1),
        free_mib: mib(free_bytes),
    })
}

/// An ext4 image for [`make_image`].
pub(crate) struct Image<'a> {
    /// What is to be in it.
    pub(crate) tree: &'a Path,
    /// The file to make.
    pub(crate) to: &'a Path,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// Makes a file system image and sees that it is on the disk.
pub(crate) fn make_image(image: &Image<'_>) -> Result<(), CacheError> {
    let mut command = std::process::Command::new("mke2fs");
    // No journal: its only use would be to replay it, which a read-only mount must not. Tables are written
    // now, not by the guest in the background of what is measured.
    command
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal,^resize_inode"])
        .args(["-E", "lazy_itable_init=0,root_owner=0:0", "-N", &image.inodes.to_string()])
        .arg("-d")
        .args([
            image.tree.as_os_str(),
            image.to.as_os_str(),
            OsStr::new(&format!("{}k", image.bytes / 1024)),
        ]);
    crate::command::run(&mut command, |_| ())?;
    // A power failure must not leave a name without its content.
    File::open(image.to).and_then(|file| file.sync_all()).map_err(io_error(image.to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Makes a file with this text.
    fn write(text: &str) -> impl FnOnce(&Path) -> Result<PathBuf, CacheError> {
        move |work| {
            let file = work.join("made");
            std::fs::write(&file, text).unwrap();
            Ok(file)
        }
    }

    #[test]
    fn what_is_made_is_made_once() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a/b");
        let never = || panic!("nobody else makes anything");
        let first = kept(&folder, "it", never, write("first")).unwrap();
        assert_eq!(first, folder.join("it"));
        assert_eq!(kept(&folder, "it", never, write("second")).unwrap(), first);
        assert_eq!(std::fs::read_to_string(first).unwrap(), "first");
        assert_eq!(entries(&folder), [".lock", "it"]);
    }

    #[test]
    fn a_failure_leaves_nothing_and_what_was_cut_short_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        std::fs::create_dir(folder.join(".new-old")).unwrap();
        std::fs::write(folder.join(".new-old/part"), "part").unwrap();
        let fail = |work: &Path| {
            assert_eq!(entries(folder).iter().filter(|name| name.starts_with(".new-")).count(), 1);
            std::fs::write(work.join("part"), "part").unwrap();
            Err(CacheError::NoFolder)
        };
        kept(folder, "it", || (), fail).unwrap_err();
        assert_eq!(entries(folder), [".lock"]);
        kept(folder, "it", || (), write("whole")).unwrap();
    }

    #[test]
    fn two_that_want_the_same_make_it_once() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        let (says_wait, waits) = std::sync::mpsc::channel();
        let path = std::thread::scope(|scope| {
            let slow = |work: &Path| {
                scope.spawn(move || {
                    let on_wait = || says_wait.send(()).unwrap();
                    kept(folder, "it", on_wait, |_| -> Result<PathBuf, CacheError> {
                        panic!("it is there by now")
                    })
                    .unwrap()
                });
                waits.recv().unwrap();
                write("slow")(work)
            };
            kept(folder, "it", || (), slow).unwrap()
        });
        assert_eq!(std::fs::read_to_string(path).unwrap(), "slow");
    }

    #[test]
    fn a_lack_of_room_is_told_with_the_place_and_the_need() {
        let home = tempfile::tempdir().unwrap();
        check_room(home.path(), 1).unwrap();
        let error = check_room(home.path(), u64::MAX).unwrap_err().to_string();
        let place = home.path().display().to_string();
        assert!(error.starts_with(&format!("{place}: 17592186044416 MiB are needed")), "{error}");
        assert!(error.contains("XDG_CACHE_HOME"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_is_told() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = kept(&file.join("disks"), "it", || (), write("")).unwrap_err().to_string();
        assert!(error.contains("file/disks") && error.contains("must be writable"), "{error}");
    }
}
