//! A group's weight as a knob: set relative to what it was, fast.

use frontdesk_guardian::{GroupError, Guardian, Undo, UndoId};
use frontdesk_linux::cgroup::{CgroupError, Group, Version, file_error, read_weight, scale};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Control over the share of a group that frontdesk found or made. Setting it costs about a microsecond; the
/// guardian gives the group its weight back at the end.
///
/// Others may manage the group, too (libvirt, systemd, an operator). What they write is the group's weight
/// from then on: it is noticed before each change and never overwritten but with a fraction of itself. The
/// same weight once more says nothing new.
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
    /// Takes control of a group's share: journals its weight and keeps the file open.
    ///
    /// # Errors
    /// If it is the root group, or its weight cannot be read, journalled or opened.
    pub fn take(group: &Group, guardian: &Guardian) -> Result<ShareControl, GroupError> {
        let (version, path) = (group.version(), group.weight_file("share")?);
        let original = read_weight(&path)?;
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
        self.version.from_native(self.base)
    }

    /// Sets the whole weight, in the units of `cpu.shares`; `None` is what others gave the group.
    ///
    /// # Errors
    /// As [`ShareControl::set_permille`].
    pub fn set_base(&mut self, weight: Option<u32>, guardian: &Guardian) -> Result<(), GroupError> {
        self.notice(guardian)?;
        self.base = weight.map_or(self.original, |weight| self.version.to_native(weight));
        self.write()
    }

    /// Sets the share to a fraction of the whole, in permille, which may be above 1000. The file holds whole
    /// numbers of a range, 2 to 262,144 in version 1 and 1 to 10,000 in version 2, and what it cannot hold
    /// becomes the nearest that it can. At the default weight that is off by at most 0.05 % of it in version
    /// 1, where it is 1024, but by 0.5 % in version 2, where it is 100. No VM is left without any.
    ///
    /// # Errors
    /// If the file refuses, or holds something else afterwards. A group that is gone is no error.
    pub fn set_permille(&mut self, permille: u32, guardian: &Guardian) -> Result<(), GroupError> {
        self.notice(guardian)?;
        self.permille = permille;
        self.write()
    }

    /// Looks whether others have changed the weight, and goes on from there.
    ///
    /// # Errors
    /// As [`ShareControl::set_permille`].
    pub fn refresh(&mut self, guardian: &Guardian) -> Result<(), GroupError> {
        self.set_permille(self.permille, guardian)
    }

    /// Gives the group what others gave it last, and the control up.
    ///
    /// # Errors
    /// If the file refuses; the guardian then still has it on record.
    pub fn release(mut self, guardian: &Guardian) -> Result<(), GroupError> {
        self.permille = 1000;
        self.set_base(None, guardian)?;
        Ok(guardian.forget(self.undo)?)
    }

    /// What others wrote is what the group has from now on.
    fn notice(&mut self, guardian: &Guardian) -> Result<(), GroupError> {
        // What cannot be read or understood shows when it is written.
        let Some(found) = self.found().ok().and_then(|text| text.trim().parse().ok()) else { return Ok(()) };
        if found == self.now {
            return Ok(());
        }
        // Nothing new: systemd writes the weights of all its units again at each reload, of packages that are
        // installed too.
        if found == self.original {
            self.now = found;
            return Ok(());
        }
        let undo = journal(&self.path, found, guardian)?;
        guardian.forget(std::mem::replace(&mut self.undo, undo))?;
        (self.original, self.base, self.now) = (found, found, found);
        Ok(())
    }

    fn write(&mut self) -> Result<(), GroupError> {
        let (least, most) = self.version.weights();
        let wanted = scale(self.base, self.permille, 1000).clamp(least, most);
        if wanted == self.now {
            return Ok(());
        }
        let written = self.file.write_all_at(format!("{wanted}\n").as_bytes(), 0);
        match written.and_then(|()| self.found()) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            Err(source) => {
                let action = format!("write {wanted} to");
                Err(CgroupError::File { action, path: self.path.clone(), source, advice: "" }.into())
            }
            Ok(found) if found.trim() == wanted.to_string() => {
                self.now = wanted;
                Ok(())
            }
            Ok(content) => {
                let expected = format!("the {wanted} just written");
                Err(CgroupError::Content { path: self.path.clone(), content, expected }.into())
            }
        }
    }

    fn found(&self) -> io::Result<String> {
        let mut buffer = [0; 16];
        let length = self.file.read_at(&mut buffer, 0)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

fn journal(path: &Path, weight: u32, guardian: &Guardian) -> Result<UndoId, GroupError> {
    Ok(guardian.record(Undo::File { path: path.to_owned(), content: weight.to_string() })?)
}
