//! The process: a thread and a socket for each VM.

use crate::daemon::follow;
use crate::device::Device;
use crate::error::DiskError;
use crate::image::Image;
use crate::scheduler::Scheduler;
use crate::trace::Trace;
use crate::worker::work;
use frontdesk_disk_protocol::{DEFAULT_SOCKET, MAX_DISKS};
use rustix::fs::Mode;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// What a killed back end still had the kernel do ends within this time, on a disk that works; only then its
/// locks are gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of a socket's path, at most: the kernel's limit, with the zero at its end.
const MAX_SOCKET_PATH: usize = 107;

/// A VM's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmDisk {
    /// Its name, and that of its socket: letters, digits, `-`, `_` and `.`, at most 64.
    pub name: String,
    /// A raw image or a block device.
    pub image: PathBuf,
    /// Whether the VM may only read it.
    pub read_only: bool,
}

impl FromStr for VmDisk {
    type Err = DiskError;

    fn from_str(text: &str) -> Result<VmDisk, DiskError> {
        let wrong = |why| DiskError::Vm { text: text.to_owned(), why };
        let (name, image) = text.split_once('=').ok_or_else(|| wrong("it names no image"))?;
        let (image, read_only) = match image.strip_suffix(",readonly") {
            Some(image) => (image, true),
            None => (image, false),
        };
        if image.is_empty() {
            return Err(wrong("it names no image"));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) || name.starts_with('.') {
            return Err(wrong("a name is 1 to 64 letters, digits, -, _ and ., and does not begin with ."));
        }
        Ok(VmDisk { name: name.to_owned(), image: image.into(), read_only })
    }
}

/// What a back end serves, and how.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The disks.
    pub disks: Vec<VmDisk>,
    /// Folder for the sockets: that of each disk is `NAME.sock`.
    pub sockets: PathBuf,
    /// The daemon that listens there, whenever there is one, tells what a person waits for.
    pub daemon: PathBuf,
    /// How many pieces of work the physical disk is given at a time at most, 1 to 1024.
    pub depth: u32,
    /// Whether it has an arm, which is then moved no more than it must be.
    pub arm: bool,
    /// A file for [what is done](frontdesk_disk_protocol::TracedWork); it is made anew.
    pub trace: Option<PathBuf>,
}

impl ServeConfig {
    /// For these disks, and a physical disk without an arm that is given 32 pieces at a time at most. The
    /// daemon is where it listens if nothing else is configured.
    #[must_use]
    pub fn new(disks: &[VmDisk], sockets: &Path) -> ServeConfig {
        ServeConfig {
            disks: disks.to_vec(),
            sockets: sockets.to_owned(),
            daemon: DEFAULT_SOCKET.into(),
            depth: 32,
            arm: false,
            trace: None,
        }
    }
}

/// Serves disks until `stop` can be read.
///
/// # Errors
/// [`DiskError`] if one of them cannot be served, or the trace not be made: then none is.
pub fn serve(config: &ServeConfig, stop: OwnedFd) -> Result<(), DiskError> {
    let ServeConfig { disks, sockets, daemon, depth, arm, trace } = config;
    if disks.len() > usize::from(MAX_DISKS) {
        return Err(DiskError::Many(disks.len()));
    }
    let mut names = HashSet::new();
    if let Some(twice) = disks.iter().find(|disk| !names.insert(&disk.name)) {
        return Err(DiskError::Twice(twice.name.clone()));
    }
    let timer = |source| DiskError::Kernel { what: "timer", source };
    let scheduler = Scheduler::new(*depth, *arm).map_err(timer)?;
    let stop = Arc::new(stop);
    // All images and sockets first, so that what is wrong with one is told before any VM is served.
    let mut ready = Vec::new();
    for disk in disks {
        let image = Image::open(&disk.image, disk.read_only, PATIENCE)?;
        ready.push((disk, image, Socket::bind(sockets.join(format!("{}.sock", disk.name)))?));
    }
    if let Some(path) = trace {
        let trace = |source| DiskError::Trace { path: path.clone(), source };
        // A file that is there is replaced, but never an image.
        let there = fs::canonicalize(path).ok();
        if there.is_some() && disks.iter().any(|disk| fs::canonicalize(&disk.image).ok() == there) {
            return Err(trace(io::Error::other("that is the image of a VM: name another file")));
        }
        scheduler.trace(Trace::new(File::create(path).map_err(trace)?));
    }
    let (to_hear, daemon, ends) = (Arc::clone(&scheduler), daemon.to_owned(), Arc::clone(&stop));
    let hear = move || follow(&to_hear, &daemon, &ends);
    let hearing = thread::Builder::new().name("daemon".into()).spawn(hear);
    hearing.map_err(|source| DiskError::Kernel { what: "thread", source })?;
    if *arm {
        let (keeper, ends) = (Arc::clone(&scheduler), Arc::clone(&stop));
        let keep_time =
            move || keeper.keep_time(&ends).inspect_err(|error| tracing::error!("the timer: {error}"));
        let keeping = thread::Builder::new().name("timer".into()).spawn(keep_time);
        keeping.map_err(|source| DiskError::Kernel { what: "thread", source })?;
    }
    let mut threads = Vec::new();
    for (disk, image, socket) in ready {
        let kernel = |what| move |source| DiskError::Kernel { what, source };
        let share = scheduler.join().map_err(kernel("event descriptor"))?;
        let (name, stop) = (disk.name.clone(), Arc::clone(&stop));
        let serve = move || {
            let device = Device::new(&name, image, share).map_err(|source| DiskError::Kernel {
                what: "io_uring, which the disk needs (Linux 6.0, and the sysctl kernel.io_uring_disabled at 0)",
                source,
            })?;
            tracing::info!("{name}: serving {} at {}", device.image.path().display(), socket.path.display());
            work(device, &socket.listener, &stop).map_err(kernel("io_uring"))
        };
        let thread = thread::Builder::new().name(format!("disk {}", disk.name)).spawn(serve);
        threads.push(thread.map_err(kernel("thread"))?);
    }
    let mut result = Ok(());
    for thread in threads {
        // A panic has said what it is.
        let ended = thread.join().unwrap_or_else(|_| {
            Err(DiskError::Kernel { what: "a disk's thread", source: io::Error::other("it panicked") })
        });
        result = result.and(ended);
    }
    scheduler.end_trace();
    result
}

/// A socket in the file system; gone when dropped.
struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    fn bind(path: PathBuf) -> Result<Socket, DiskError> {
        let failed = |why: String| DiskError::Socket { path: path.clone(), why };
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let long = path.as_os_str().len();
            return Err(failed(format!(
                "its path has {long} bytes, and sockets may have {MAX_SOCKET_PATH}: choose a shorter --socket-dir or name"
            )));
        }
        match fs::symlink_metadata(&path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(failed("something that is no socket is there: remove it".into()));
            }
            Ok(_) if UnixStream::connect(&path).is_ok() => {
                return Err(failed(
                    "another process listens there: end it, or give the VM another name".into(),
                ));
            }
            // What a killed process has left.
            Ok(_) => fs::remove_file(&path).map_err(|e| failed(format!("removing what was there: {e}")))?,
            Err(_) => {}
        }
        // Those of the process's group may connect, as QEMU in group kvm.
        let old = rustix::process::umask(Mode::from_raw_mode(0o117));
        let listener = UnixListener::bind(&path);
        rustix::process::umask(old);
        let listener = listener.map_err(|e| {
            let folder = path.parent().unwrap_or(Path::new("/")).display();
            failed(match e.kind() {
                io::ErrorKind::NotFound => format!("folder {folder} does not exist: mkdir -p {folder}"),
                io::ErrorKind::PermissionDenied => format!("this user may not write to folder {folder}"),
                _ => e.to_string(),
            })
        })?;
        listener.set_nonblocking(true).map_err(|e| failed(e.to_string()))?;
        Ok(Socket { listener, path })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_named_and_has_an_image() {
        let disk: VmDisk = "alice=/srv/a=b,c.img,readonly".parse().unwrap();
        let wanted = VmDisk { name: "alice".into(), image: "/srv/a=b,c.img".into(), read_only: true };
        assert_eq!(disk, wanted);
        assert!(!"a=/b".parse::<VmDisk>().unwrap().read_only);
        for wrong in ["", "alice", "alice=", "=x", "../a=x", "a/b=x", ".a=x"] {
            let error = wrong.parse::<VmDisk>().unwrap_err().to_string();
            assert!(error.contains("NAME=IMAGE"), "{error}");
        }
    }

    #[test]
    fn a_socket_of_a_killed_process_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        let live = Socket::bind(path.clone()).unwrap();
        let says = |path: &Path| Socket::bind(path.to_owned()).err().unwrap().to_string();
        assert!(says(&path).contains("another process listens there"));
        drop(live);
        assert!(!path.exists());
        fs::write(&path, "data").unwrap();
        assert!(says(&path).contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        assert!(says(&folder.path().join("x".repeat(120))).contains("may have 107"));
        assert!(says(&folder.path().join("none/a.sock")).contains("mkdir -p"));
    }
}
