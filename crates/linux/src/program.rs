//! Whose programs are trusted.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, open, statx};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Mode bits that let others than the owner write.
const WRITABLE_BY_OTHERS: u16 = 0o022;

/// A file that only root can have written, such as what a package installed: opened for its path only, so
/// that it stays the one that was looked at. Links are followed. Does not wait for a file system.
///
/// # Errors
/// If there is no such file, or it is not an ordinary one, or somebody else owns it or may write it.
pub fn of_root(path: &Path) -> io::Result<OwnedFd> {
    let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID;
    let found = statx(&file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted)?;
    let ordinary = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
    if ordinary && found.stx_uid == 0 && found.stx_mode & WRITABLE_BY_OTHERS == 0 {
        return Ok(file);
    }
    let cause = "it does not belong to root alone, who installs programs";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_testing::{Need, leave_out};
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn only_what_root_alone_can_write_is_trusted() {
        assert!(of_root(Path::new("/bin/sh")).is_ok());
        assert!(of_root(Path::new("/bin")).is_err(), "a folder");
        assert!(of_root(Path::new("/nonexistent")).is_err());
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("qemu-system-x86_64");
        std::fs::write(&file, "").unwrap();
        let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o755);
        // Only root can give it away, and what others made is not root's.
        if rustix::process::geteuid().is_root() {
            assert!(of_root(&file).is_ok());
            for others in [0o775, 0o757] {
                mode(others);
                assert!(of_root(&file).is_err(), "{others:o}");
            }
            mode(0o755);
            chown(&file, Some(65534), None).unwrap();
        } else {
            leave_out(
                "a part of only_what_root_alone_can_write_is_trusted",
                Need::Root,
                "it gives files away",
            );
        }
        assert!(of_root(&file).is_err());
    }
}
