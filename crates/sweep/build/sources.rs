//! A hash over the sources that rows follow from: builds of the same commit may differ in what was changed
//! since, and builds without git have no commit.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The crates of the workspace that the one in this folder is made from, itself included: their folders,
/// which are beside each other.
pub(crate) fn crates(own: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut next = vec![own.to_owned()];
    while let Some(folder) = next.pop() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let lines = section.lines().take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.strip_prefix("frontdesk-")?.split_once(['.', ' ']));
        let beside = names.map(|(name, _)| folder.with_file_name(name));
        next.extend(beside.filter(|folder| !found.contains(folder)));
        found.insert(folder);
    }
    Ok(found)
}

/// The hash of what is in `src` of these crates, and of this file, if it is there. Where they are does not
/// matter.
pub(crate) fn hash(crates: &BTreeSet<PathBuf>, lock: &Path) -> io::Result<u64> {
    let mut hash = Hash::default();
    for folder in crates {
        let mut files = BTreeSet::new();
        list(&folder.join("src"), &mut files)?;
        for file in files {
            let name = file.strip_prefix(folder).unwrap_or(&file);
            hash.add(folder.file_name().unwrap_or_default().as_encoded_bytes());
            hash.add(name.as_os_str().as_encoded_bytes());
            hash.add(&fs::read(&file)?);
        }
    }
    hash.add(&fs::read(lock).unwrap_or_default());
    Ok(hash.0)
}

fn list(folder: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.insert(path);
        }
    }
    Ok(())
}

/// FNV-1a: the same with every release of Rust.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// With the length, so that what moves from the end of one part to the begin of the next is seen.
    fn add(&mut self, bytes: &[u8]) {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
