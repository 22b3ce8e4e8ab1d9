//! What a lab VM boots into: one program and the modules that it needs to talk to the host.

use crate::kernel::{Kernel, KernelError, run};
use cpio::newc;
use frontdesk_lab_guest::{MODULES, MODULES_ORDER};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What init needs: the bus, the network and the control port. Some kernels have them built in.
const NEEDED: [&str; 3] = ["virtio_pci", "virtio_net", "virtio_console"];

/// What it needs beside that to mount disks.
const NEEDED_FOR_DISKS: [&str; 2] = ["virtio_blk", "ext4"];

/// What it needs beside that to be a desktop. The codec's module comes first, or the sound card finds none.
const NEEDED_FOR_DESKTOPS: [&str; 8] = [
    "evdev",
    "virtio_input",
    "xhci_pci",
    "hid_generic",
    "usbhid",
    "virtio-gpu",
    "snd-hda-codec-generic",
    "snd-hda-intel",
];

/// Parameters of modules. QEMU's sound card tells where it plays by its registers, too: the guest is to look
/// there, as it does with cards in which what the card writes to memory comes late, so that it can be seen
/// from outside who asks.
const PARAMETERS: [(&str, &str); 1] = [("snd-hda-intel", "position_fix=1")];

/// Why the initramfs could not be built.
#[derive(Debug, thiserror::Error)]
pub enum InitramfsError {
    /// The kernel's modules could not be listed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A module is compressed in a way that is not supported.
    #[error("module {0}: only plain and .xz modules are supported")]
    Compression(PathBuf),
    /// A file could not be read or written.
    #[error("initramfs: {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes an initramfs to the file `to`, with the static program `guest` (`frontdesk-lab-guest`) as init and
/// the modules of `kernel` that it needs; with `disks`, also those that a VM with disks needs.
///
/// # Errors
/// [`InitramfsError`] if a file cannot be read or written, or `modprobe` cannot list the modules.
pub fn write_initramfs(kernel: &Kernel, guest: &Path, to: &Path, disks: bool) -> Result<(), InitramfsError> {
    let modules: Vec<&str> =
        NEEDED.into_iter().chain(NEEDED_FOR_DISKS.into_iter().filter(|_| disks)).collect();
    write_initramfs_with(kernel, guest, &modules, to)
}

/// Like [`write_initramfs`], for desktops, which have disks, too. Kernels for clouds have no such modules.
///
/// # Errors
/// As [`write_initramfs`].
pub fn write_desktop_initramfs(kernel: &Kernel, guest: &Path, to: &Path) -> Result<(), InitramfsError> {
    let modules = [&NEEDED[..], &NEEDED_FOR_DISKS, &NEEDED_FOR_DESKTOPS].concat();
    write_initramfs_with(kernel, guest, &modules, to)
}

/// Writes an initramfs to the file `to`, with the program `init`, and the named modules of `kernel` and those
/// that they need. After a name may stand parameters of the module, as in `kvm_amd npt=0`.
///
/// # Errors
/// [`InitramfsError`] if a file cannot be read or written, or `modprobe` cannot list the modules.
pub fn write_initramfs_with(
    kernel: &Kernel,
    init: &Path,
    modules: &[&str],
    to: &Path,
) -> Result<(), InitramfsError> {
    let given: Vec<(&str, &str)> =
        modules.iter().map(|module| module.split_once(' ').unwrap_or((module, ""))).collect();
    let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
    let modules = needed_modules(kernel, &names)?;
    let mut archive = Cpio { out: BufWriter::new(File::create(to).map_err(failed(to))?), inode: 0 };
    let mut add = |name: &str, mode, data: &[u8]| archive.add(name, mode, data).map_err(failed(to));

    add("init", REGULAR | 0o755, &std::fs::read(init).map_err(failed(init))?)?;
    for folder in ["dev", "proc", "sys", "tmp", &MODULES[1..]] {
        add(folder, FOLDER | 0o755, &[])?;
    }
    let mut order = String::new();
    for path in modules {
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = file.strip_suffix(".xz").unwrap_or(file);
        if !name.ends_with(".ko") {
            return Err(InitramfsError::Compression(path));
        }
        let mut reader = BufReader::new(File::open(&path).map_err(failed(&path))?);
        let mut data = Vec::new();
        if name == file {
            reader.read_to_end(&mut data).map_err(failed(&path))?;
        } else {
            liblzma::bufread::XzDecoder::new(reader).read_to_end(&mut data).map_err(failed(&path))?;
        }
        add(&format!("{}/{name}", &MODULES[1..]), REGULAR | 0o644, &data)?;
        order += name;
        let is_it = |module: &str| module.replace('-', "_") == name.trim_end_matches(".ko").replace('-', "_");
        let given = given.iter().filter(|(_, parameters)| !parameters.is_empty()).chain(&PARAMETERS);
        if let Some((_, parameters)) = given.copied().find(|(module, _)| is_it(module)) {
            order += &format!(" {parameters}");
        }
        order += "\n";
    }
    add(&format!("{}/{MODULES_ORDER}", &MODULES[1..]), REGULAR | 0o644, order.as_bytes())?;
    archive.finish().map_err(failed(to))
}

/// Adds files of this host to the initramfs in the file `initrd`, at the same absolute paths: programs, and
/// the libraries that they load. Links are followed.
///
/// # Errors
/// [`InitramfsError::Io`] if a file cannot be read or written.
pub fn add_to_initramfs(initrd: &Path, files: &BTreeSet<PathBuf>) -> Result<(), InitramfsError> {
    // Linux takes one archive after another.
    let out = File::options().append(true).open(initrd).map_err(failed(initrd))?;
    let mut archive = Cpio { out: BufWriter::new(out), inode: 0 };
    let inside = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
    let folders: BTreeSet<PathBuf> =
        files.iter().flat_map(|file| file.ancestors().skip(1)).map(inside).collect();
    // Sorted, so that each folder comes after the one that it is in.
    for folder in folders.iter().filter(|folder| !folder.as_os_str().is_empty()) {
        archive.add(folder, FOLDER | 0o755, &[]).map_err(failed(initrd))?;
    }
    for file in files {
        let data = std::fs::read(file).map_err(failed(file))?;
        archive.add(inside(file), REGULAR | 0o755, &data).map_err(failed(initrd))?;
    }
    archive.finish().map_err(failed(initrd))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> InitramfsError + use<> {
    let path = path.to_owned();
    move |source| InitramfsError::Io { path, source }
}

/// Files of the modules to load, each after those that it depends on.
fn needed_modules(kernel: &Kernel, names: &[&str]) -> Result<Vec<PathBuf>, KernelError> {
    let (release, root) = kernel.release_and_root()?;
    let mut command = Command::new("modprobe");
    command.arg("-d").arg(root).arg("-S").arg(release).args(["--show-depends", "-a"]).args(names);
    let mut files = Vec::new();
    // Lines are "insmod PATH OPTIONS" or "builtin NAME".
    for line in run(&mut command)?.lines() {
        if let Some(path) = line.strip_prefix("insmod ") {
            let path = PathBuf::from(path.trim_end());
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

/// A cpio archive in the "newc" format, the one that Linux takes as an initramfs.
struct Cpio<W> {
    out: W,
    inode: u32,
}

impl<W: Write> Cpio<W> {
    fn add(&mut self, name: impl AsRef<Path>, mode: u32, data: &[u8]) -> io::Result<()> {
        let name = name.as_ref().to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        let size = u32::try_from(data.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.inode += 1;
        let mut file = newc::Builder::new(name).ino(self.inode).mode(mode).write(&mut self.out, size);
        file.write_all(data)?;
        file.finish()?;
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        newc::trailer(self.out)?.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_laid_out_as_the_kernel_reads_them() {
        let mut bytes = Vec::new();
        let mut archive = Cpio { out: &mut bytes, inode: 0 };
        archive.add("init", REGULAR | 0o755, b"hello").unwrap();
        archive.finish().unwrap();
        let header = "07070100000001000081ed000000000000000000000001000000000000000500000000\
                      00000000000000000000000000000005\
                      00000000";
        assert_eq!(&bytes[..110], header.as_bytes());
        assert_eq!(&bytes[110..116], b"init\0\0");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(&bytes[124 + 110..], b"TRAILER!!!\0\0\0\0");
    }

    #[test]
    fn files_are_added_after_their_folders() {
        let home = tempfile::tempdir().unwrap();
        let (initrd, file) = (home.path().join("initrd"), home.path().join("program"));
        std::fs::write(&initrd, "before").unwrap();
        std::fs::write(&file, "hello").unwrap();
        add_to_initramfs(&initrd, &BTreeSet::from([file.clone()])).unwrap();
        let text = String::from_utf8(std::fs::read(&initrd).unwrap()).unwrap();
        assert!(text.starts_with("before070701"), "{text:?}");
        let position = |path: &Path| {
            let name = path.strip_prefix("/").unwrap().display();
            text.find(&format!("{name}\0")).unwrap_or_else(|| panic!("{name} is not in {text:?}"))
        };
        assert!(position(home.path().parent().unwrap()) < position(home.path()));
        assert!(position(home.path()) < position(&file));
        assert!(!text.contains("\0/"), "names are below the root: {text:?}");
        let gone = BTreeSet::from([home.path().join("gone")]);
        assert!(add_to_initramfs(&initrd, &gone).unwrap_err().to_string().contains("gone"));
    }
}
