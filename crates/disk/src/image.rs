//! An image: a raw file or a block device.

mod lock;

use crate::error::DiskError;
use crate::request::SECTOR;
use lock::{Locked, lock};
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What direct I/O asks for where the kernel does not tell: what all disks can do.
const UNKNOWN_ALIGNMENT: u64 = 4096;

/// An open image that nobody else writes to.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    path: PathBuf,
    read_only: bool,
    /// Offsets and lengths of direct I/O are multiples of this; 1 if the page cache is used.
    offset_align: u64,
    /// Addresses in memory of direct I/O are multiples of this.
    memory_align: u64,
    /// Bytes, a multiple of a sector. Grows or shrinks with the file.
    size: u64,
}

impl Image {
    /// Opens it, with direct I/O where its file system has that. What another process still has the kernel do
    /// there may take until `patience` is over.
    ///
    /// # Errors
    /// [`DiskError`] if it cannot be opened, is no image, or is in use.
    pub(crate) fn open(path: &Path, read_only: bool, patience: Duration) -> Result<Image, DiskError> {
        let failed = |source: std::io::Error| DiskError::Open { path: path.to_owned(), source };
        let unfit = |why| DiskError::Unfit { path: path.to_owned(), why };
        let file = File::options().read(true).write(!read_only).open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(unfit("it is no file and no block device"));
        }
        // The kernel opens such a device all the same, and refuses each write.
        if kind.is_block_device() && !read_only && is_read_only(&file).map_err(failed)? {
            return Err(failed(std::io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        let deadline = Instant::now() + patience;
        while lock(&file, read_only).map_err(failed)? == Locked::ByAnother {
            if Instant::now() >= deadline {
                return Err(DiskError::InUse { path: path.to_owned() });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut image =
            Image { file, path: path.to_owned(), read_only, offset_align: 1, memory_align: 1, size: 0 };
        image.read_size().map_err(failed)?;
        if image.size == 0 {
            return Err(unfit("it is empty; `truncate -s 20G IMAGE` gives it a size"));
        }
        image.go_direct().map_err(|e| failed(e.into()))?;
        Ok(image)
    }

    /// Passes the page cache by, if that is possible.
    fn go_direct(&mut self) -> Result<(), Errno> {
        let told = statx(&self.file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
        let (memory_align, offset_align) = if told.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
            (UNKNOWN_ALIGNMENT, UNKNOWN_ALIGNMENT)
        } else {
            (u64::from(told.stx_dio_mem_align), u64::from(told.stx_dio_offset_align))
        };
        let flags = fcntl_getfl(&self.file)? | OFlags::DIRECT;
        let possible = offset_align != 0 && self.size.is_multiple_of(offset_align);
        if !possible || fcntl_setfl(&self.file, flags).is_err() {
            tracing::warn!(
                "image {}: no direct I/O, for its file system has none or its size is no multiple of {offset_align} \
                 bytes. It is read and written through the host's page cache",
                self.path.display()
            );
            return Ok(());
        }
        (self.memory_align, self.offset_align) = (memory_align.max(1), offset_align);
        Ok(())
    }

    /// Looks how large it is; returns whether that has changed.
    ///
    /// # Errors
    /// If the kernel cannot tell.
    pub(crate) fn read_size(&mut self) -> std::io::Result<bool> {
        let unit = SECTOR.max(self.offset_align);
        let size = (&self.file).seek(SeekFrom::End(0))? / unit * unit;
        let changed = size != self.size;
        self.size = size;
        Ok(changed)
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether it is only read.
    pub(crate) fn read_only(&self) -> bool {
        self.read_only
    }

    /// What offsets and lengths must be multiples of.
    pub(crate) fn offset_align(&self) -> u64 {
        self.offset_align
    }

    /// What addresses in memory must be multiples of.
    pub(crate) fn memory_align(&self) -> u64 {
        self.memory_align
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor, for the kernel.
    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_fd().as_raw_fd()
    }
}

/// Whether a block device cannot be written to.
fn is_read_only(device: &File) -> std::io::Result<bool> {
    let number = device.metadata()?.rdev();
    let told = format!("/sys/dev/block/{}:{}/ro", rustix::fs::major(number), rustix::fs::minor(number));
    // A system without that file knows of no such device.
    Ok(std::fs::read_to_string(told).is_ok_and(|told| told.trim() == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_write_are_refused_and_readers_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let writer = Image::open(&path, false, Duration::ZERO).unwrap();
        for read_only in [false, true] {
            let error = Image::open(&path, read_only, Duration::ZERO).unwrap_err().to_string();
            assert!(error.contains("another process uses it"), "{error}");
        }
        drop(writer);
        let reader = Image::open(&path, true, Duration::ZERO).unwrap();
        Image::open(&path, true, Duration::ZERO).unwrap();
        assert!(Image::open(&path, false, Duration::ZERO).is_err());
        drop(reader);
        Image::open(&path, false, Duration::ZERO).unwrap();
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let says = |path: &Path| Image::open(path, true, Duration::ZERO).unwrap_err().to_string();
        assert!(says(folder.path()).contains("no file and no block device"));
        assert!(says(&folder.path().join("gone")).contains("No such file"));
        let empty = folder.path().join("empty");
        std::fs::write(&empty, b"less than a sector").unwrap();
        assert!(says(&empty).contains("it is empty"));
    }
}
