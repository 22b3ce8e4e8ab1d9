//! A group's weight as a knob: set relative to what it was, fast.

use super::{CgroupError, Version, error::file_error, read_number};
use crate::guardian::{Guardian, Undo, UndoId};
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
///
/// Others may manage the group, too (libvirt, systemd, an operator). What they write is the group's weight from then on: it is noticed
/// before each change and never overwritten but with a fraction of itself. The same weight once more says nothing new.
#[derive(Debug)]
pub struct ShareControl {
    version: Version,
    path: PathBuf,
    file: File,
    /// What others gave the group, in the version's units like all that follows.
    original: u32,
    /// Puts `original` back.
    undo: UndoId,
    /// What counts as the whole share.
    base: u32,
    /// The fraction of it that the group is to have, which may be more than the whole.
    permille: u32,
    /// What the file holds unless others have written to it.
    now: u32,
}

impl ShareControl {
    pub(super) fn new(
        version: Version,
        path: PathBuf,
        guardian: &Guardian,
    ) -> Result<ShareControl, CgroupError> {
        let original = read(&path)?;
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(file_error(
            "open",
            &path,
            "; it needs root",
        ))?;
        let undo = journal(&path, original, guardian)?;
        let (base, now) = (original, original);
        Ok(ShareControl { version, path, file, original, undo, base, permille: 1000, now })
    }

    /// The group's whole weight, in the units of `cpu.shares`: as found, as set, or as others wrote it since.
    #[must_use]
    pub fn base(&self) -> u32 {
        from_native(self.version, self.base)
    }

    /// Sets the whole weight, in the units of `cpu.shares`; `None` is what others gave the group.
    ///
    /// # Errors
    /// As [`ShareControl::set_permille`].
    pub fn set_base(&mut self, weight: Option<u32>, guardian: &Guardian) -> Result<(), CgroupError> {
        self.notice(guardian)?;
        self.base = weight.map_or(self.original, |weight| to_native(self.version, weight));
        self.write()
    }

    /// Sets the share to a fraction of the whole, in permille, which may be above 1000. The file holds whole numbers of a range, 2 to 262,144
    /// in version 1 and 1 to 10,000 in version 2, and what it can't hold becomes the nearest that it can. At the default
    /// weight that is off by at most 0.05 % of it in version 1, where it is 1024, but by 0.5 % in version 2, where it is 100.
    /// No VM is left without any.
    ///
    /// # Errors
    /// If the file refuses, or holds something else afterwards. A group that is gone is no error.
    pub fn set_permille(&mut self, permille: u32, guardian: &Guardian) -> Result<(), CgroupError> {
        self.notice(guardian)?;
        self.permille = permille;
        self.write()
    }

    /// Looks whether others have changed the weight, and goes on from there.
    ///
    /// # Errors
    /// As [`ShareControl::set_permille`].
    pub fn refresh(&mut self, guardian: &Guardian) -> Result<(), CgroupError> {
        self.set_permille(self.permille, guardian)
    }

    /// Gives the group what others gave it last, and the control up.
    ///
    /// # Errors
    /// If the file refuses; the guardian then still has it on record.
    pub fn release(mut self, guardian: &Guardian) -> Result<(), CgroupError> {
        self.permille = 1000;
        self.set_base(None, guardian)?;
        Ok(guardian.forget(self.undo)?)
    }

    /// What others wrote is what the group has from now on.
    fn notice(&mut self, guardian: &Guardian) -> Result<(), CgroupError> {
        // What can't be read or understood shows when it is written.
        let Some(found) = self.found().ok().and_then(|text| text.trim().parse().ok()) else { return Ok(()) };
        if found == self.now {
            return Ok(());
        }
        // Nothing new: systemd writes the weights of all its units again at each reload, of packages that are installed too.
        if found == self.original {
            self.now = found;
            return Ok(());
        }
        let undo = journal(&self.path, found, guardian)?;
        guardian.forget(std::mem::replace(&mut self.undo, undo))?;
        (self.original, self.base, self.now) = (found, found, found);
        Ok(())
    }

    fn write(&mut self) -> Result<(), CgroupError> {
        let (least, most) = range(self.version);
        let wanted = scale(self.base, self.permille, 1000).clamp(least, most);
        if wanted == self.now {
            return Ok(());
        }
        let written = self.file.write_all_at(format!("{wanted}\n").as_bytes(), 0);
        match written.and_then(|()| self.found()) {
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

    fn found(&self) -> io::Result<String> {
        let mut buffer = [0; 16];
        let length = self.file.read_at(&mut buffer, 0)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

fn journal(path: &Path, weight: u32, guardian: &Guardian) -> Result<UndoId, CgroupError> {
    Ok(guardian.record(Undo::File { path: path.to_owned(), content: weight.to_string() })?)
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
