//! Why a disk cannot be served.

use std::io;
use std::path::PathBuf;

/// Why a disk cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// What names a VM's disk is not of the form that it must have.
    #[error("--vm {text}: {why}; it is NAME=IMAGE or NAME=IMAGE,readonly, as in alice=/srv/alice.img")]
    Vm {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two VMs have one name, and so one socket.
    #[error("two VMs are called {0}: each needs a name of its own, for that of its socket")]
    Twice(String),
    /// More disks than a process serves.
    #[error("{0} VMs: a process serves {max} at most. Start another for the others", max = frontdesk_disk_protocol::MAX_DISKS)]
    Many(usize),
    /// An image cannot be opened.
    #[error("image {}: {source}{}", path.display(), advice(source))]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An image is no file and no block device, or of a size that no disk has.
    #[error("image {}: {why}", path.display())]
    Unfit {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another process uses the image: another back end, a VM, `qemu-img`.
    #[error(
        "image {}: another process uses it. Two that write to one image destroy it: end the other VM, back end or \
         qemu-img first (`lslocks` and `fuser -v {}` tell which it is), or serve it read-only to both",
        path.display(), path.display()
    )]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// The socket for a VM cannot be made.
    #[error("socket {}: {why}", path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// The file for a trace cannot be made.
    #[error("trace {}: {source}", path.display())]
    Trace {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refuses what is needed to serve.
    #[error("{what}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            ". The user that `frontdesk disk` runs as must be able to read and write it: chown or chgrp the image, or \
             add the user to the group that has it (for a logical volume: disk)"
        }
        io::ErrorKind::NotFound => ". `truncate -s 20G IMAGE` makes an empty one",
        io::ErrorKind::ReadOnlyFilesystem => ". Serve it read-only: NAME=IMAGE,readonly",
        _ => "",
    }
}
