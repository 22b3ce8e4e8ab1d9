//! Files that nobody else reads.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Replaces a file in one step by one that only its owner can read. What root writes belongs to the owner of
/// the folder.
pub(crate) fn write_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // What an interrupted run left.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    if let Some(folder) = path.parent().filter(|_| nix::unistd::geteuid().is_root()) {
        let folder = fs::metadata(folder)?;
        std::os::unix::fs::fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}
