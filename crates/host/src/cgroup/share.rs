//! A group's weight as a knob: set relative to what it was, fast.

use super::{CgroupError, Version, error::file_error, read_number};
use crate::guardian::{Guardian, Undo};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

const V1_RANGE: (u32, u32) = (2, 262_144);
const V2_RANGE: (u32, u32) = (1, 10_000);
/// The kernel's own rate: a weight of 100 is what 1024 shares are.
const SHARES_PER_100: u32 = 1024;

fn range(version: Version) -> (u32, u32) {
    match version {
        Version::V1 => V1_RANGE,
        Version::V2 => V2_RANGE,
    }
}

/// From the units of `cpu.shares` to those of the version's file, rounded and clamped to its range.
pub(super) fn to_native(version: Version, shares: u32) -> u32 {
    let native = match version {
        Version::V1 => shares,
        Version::V2 => scale(shares, 100, SHARES_PER_100),
    };
    let (least, most) = range(version);
    native.clamp(least, most)
}

/// From the units of the version's file to those of `cpu.shares`.
pub(super) fn from_native(version: Version, native: u32) -> u32 {
    match version {
        Version::V1 => native,
        Version::V2 => scale(native, SHARES_PER_100, 100),
    }
}

/// What a weight's file holds. Those of idle groups say what nobody set, and refuse to be set.
pub(super) fn read(file: &Path) -> Result<u32, CgroupError> {
    let idle = file.with_file_name("cpu.idle");
    if read_number(&idle).is_ok_and(|idle| idle != 0) {
        return Err(CgroupError::Content {
            path: idle,
            content: "1".into(),
            expected: "0: the group has no weight, but gets what others leave".into(),
        });
    }
    Ok(u32::try_from(read_number(file)?).unwrap_or(u32::MAX))
}

/// `value * by / of`, rounded.
fn scale(value: u32, by: u32, of: u32) -> u32 {
    let scaled = (u64::from(value) * u64::from(by) + u64::from(of / 2)) / u64::from(of);
    u32::try_from(scaled).unwrap_or(u32::MAX)
}

/// Control over the share of a group that frontdesk found or made. Setting it costs about a microsecond; the guardian
/// gives the group its weight back at the end.
#[derive(Debug)]
pub struct ShareControl {
    version: Version,
    path: PathBuf,
    file: File,
    /// What the group had, in the version's units.
    base: u32,
    now: u32,
}

impl ShareControl {
    pub(super) fn new(
        version: Version,
        path: PathBuf,
        guardian: &Guardian,
    ) -> Result<ShareControl, CgroupError> {
        let base = read(&path)?;
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(file_error(
            "open",
            &path,
            "; it needs root",
        ))?;
        guardian.record(Undo::File { path: path.clone(), content: base.to_string() })?;
        Ok(ShareControl { version, path, file, base, now: base })
    }

    /// The group's weight at the beginning, in the units of `cpu.shares`.
    #[must_use]
    pub fn base(&self) -> u32 {
        from_native(self.version, self.base)
    }

    /// Sets the share to a fraction of what it was at the beginning, in permille (0 to 1000, clamped), rounded to what
    /// the file can hold and never below the least it can: no VM is left without any.
    ///
    /// # Errors
    /// If the file refuses, or holds something else afterwards. A group that is gone is no error.
    pub fn set_permille(&mut self, permille: u16) -> Result<(), CgroupError> {
        let (least, most) = range(self.version);
        let wanted = scale(self.base, u32::from(permille.min(1000)), 1000).clamp(least, most);
        if wanted == self.now {
            return Ok(());
        }
        match self.write_and_read_back(wanted) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            Err(source) => {
                let action = format!("write {wanted} to");
                Err(CgroupError::File { action, path: self.path.clone(), source, advice: "" })
            }
            Ok(found) if found.trim() == wanted.to_string() => {
                self.now = wanted;
                Ok(())
            }
            Ok(content) => {
                let expected = format!("the {wanted} just written");
                Err(CgroupError::Content { path: self.path.clone(), content, expected })
            }
        }
    }

    fn write_and_read_back(&self, value: u32) -> io::Result<String> {
        self.file.write_all_at(format!("{value}\n").as_bytes(), 0)?;
        let mut buffer = [0; 16];
        let length = self.file.read_at(&mut buffer, 0)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_keeps_the_default_and_the_ends() {
        assert_eq!(to_native(Version::V2, 1024), 100);
        assert_eq!(from_native(Version::V2, 100), 1024);
        assert_eq!(to_native(Version::V2, 0), 1);
        assert_eq!(to_native(Version::V1, 0), 2);
        assert_eq!(to_native(Version::V1, u32::MAX), 262_144);
        assert_eq!(scale(1024, 333, 1000), 341);
    }
}
