//! Disks with files of random bytes, for workloads that read.

use crate::cache::{self, CacheError, Image};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// There is no data disk.
#[derive(Debug, thiserror::Error)]
#[error("a data disk with {files} files of {file_kib} KiB: {source}")]
pub struct DiskError {
    /// Number of files asked for.
    pub files: u32,
    /// Size of each.
    pub file_kib: u32,
    /// What is wrong.
    pub source: CacheError,
}

/// The image of a disk with an ext4 file system without a journal. In its root are the files `0`, `1`, and so
/// on, each with `file_kib` KiB of random bytes. It is made the first time and kept in the user's cache
/// folder from then on. While it is made, twice its size is needed.
///
/// # Errors
/// [`DiskError`] if it is not there and cannot be made.
pub fn data_disk(files: u32, file_kib: u32) -> Result<PathBuf, DiskError> {
    let disk = || kept_in(&cache::folder("disks")?, files, file_kib);
    disk().map_err(|source| DiskError { files, file_kib, source })
}

fn kept_in(folder: &Path, files: u32, file_kib: u32) -> Result<PathBuf, CacheError> {
    let name = format!("files-{files}x{file_kib}KiB.img");
    cache::kept(folder, &name, || (), |work| make(folder, work, files, file_kib))
}

fn make(folder: &Path, work: &Path, files: u32, file_kib: u32) -> Result<PathBuf, CacheError> {
    let content = u64::from(files) * u64::from(file_kib).next_multiple_of(4);
    let content = content.saturating_mul(1024);
    // Beside the files: their inodes and names, the file system's tables, and what is used to find blocks.
    let bytes = content.saturating_add(content / 64).saturating_add(u64::from(files) * 512 + (8 << 20));
    cache::check_room(folder, bytes.saturating_add(content))?;

    let tree = work.join("tree");
    std::fs::create_dir(&tree).map_err(cache::io_error(&tree))?;
    let mut rng = SmallRng::seed_from_u64(0);
    let mut data = vec![0; 1 << 16];
    for number in 0..files {
        let path = tree.join(number.to_string());
        let mut file = File::create(&path).map_err(cache::io_error(&path))?;
        let mut left = u64::from(file_kib) * 1024;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
            rng.fill_bytes(&mut data[..length]);
            file.write_all(&data[..length]).map_err(cache::io_error(&path))?;
            left -= length as u64;
        }
    }
    let image = work.join("image");
    cache::make_image(&Image { tree: &tree, to: &image, bytes, inodes: u64::from(files) + 64 })?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    /// What `debugfs` copies out of an image.
    fn unpack(image: &Path, to: &Path) -> Vec<(String, Vec<u8>)> {
        let request = format!("rdump / {}", to.display());
        crate::command::run(Command::new("debugfs").args(["-R", &request]).arg(image), |_| ()).unwrap();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(to).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                files.push((entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()));
            }
        }
        files.sort();
        files
    }

    #[test]
    fn a_disk_has_its_files_and_is_made_once() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("disks");
        let image = kept_in(&folder, 12, 130).unwrap();
        assert_eq!(image, folder.join("files-12x130KiB.img"));

        let to = home.path().join("unpacked");
        std::fs::create_dir(&to).unwrap();
        let files = unpack(&image, &to);
        let names: HashSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let wanted: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(names, wanted.iter().map(String::as_str).collect());
        for (name, content) in &files {
            assert_eq!(content.len(), 130 * 1024, "{name}");
        }
        // Random: no block is like another, and none is a hole.
        let blocks = || files.iter().flat_map(|(_, content)| content.chunks(512));
        assert_eq!(blocks().collect::<HashSet<_>>().len(), blocks().count());
        let metadata = std::fs::metadata(&image).unwrap();
        assert!(metadata.blocks() * 512 >= 12 * 130 * 1024, "{metadata:?}");

        let mut features = String::new();
        crate::command::run(Command::new("dumpe2fs").arg("-h").arg(&image), |line| features += line).unwrap();
        assert!(features.contains("extent") && !features.contains("has_journal"), "{features}");

        assert_eq!(kept_in(&folder, 12, 130).unwrap(), image);
        assert_eq!(std::fs::metadata(&image).unwrap().ino(), metadata.ino(), "not made again");
        assert_ne!(kept_in(&folder, 1, 4).unwrap(), image);
    }

    #[test]
    fn a_disk_that_does_not_fit_is_refused_before_anything_is_written() {
        let home = tempfile::tempdir().unwrap();
        let error = kept_in(home.path(), u32::MAX, u32::MAX).unwrap_err();
        assert!(matches!(error, CacheError::Full { .. }), "{error}");
        let image = home.path().join(format!("files-{0}x{0}KiB.img", u32::MAX));
        assert!(!image.exists());
        assert!(error.to_string().starts_with(&format!("{}: ", home.path().display())), "{error}");
        let error = DiskError { files: 7, file_kib: 9, source: error }.to_string();
        assert!(error.starts_with("a data disk with 7 files of 9 KiB: "), "{error}");
    }
}
