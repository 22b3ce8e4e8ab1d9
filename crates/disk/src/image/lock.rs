//! Locks on an image, the same that QEMU and its tools set and honour.
//!
//! Byte 100 + n of the file is locked by whoever makes use of permission n, and byte 200 + n by whoever does
//! not want another to. All are locks for reading, which any number may have, and whoever comes looks whether
//! there are any that exclude it. They belong to the open file, so what a killed process still had the kernel
//! do keeps them until it has ended.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Permission to read, and to rely on what is read.
const CONSISTENT_READ: i64 = 0;
/// Permission to write.
const WRITE: i64 = 1;
/// Permission to change the size. An operator who grows the image sets no lock.
const RESIZE: i64 = 3;

const USED: i64 = 100;
const NOT_SHARED: i64 = 200;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locked {
    /// It is locked, as long as the file is open.
    Here,
    /// Another process excludes it. It is not locked.
    ByAnother,
}

/// Locks an image for writing, or only for reading.
///
/// # Errors
/// If the file system has no locks.
pub(super) fn lock(file: &File, read_only: bool) -> io::Result<Locked> {
    let used: &[i64] = if read_only { &[CONSISTENT_READ] } else { &[CONSISTENT_READ, WRITE] };
    let not_shared = [WRITE, RESIZE];
    let ours = || {
        let used = used.iter().map(|permission| USED + permission);
        used.chain(not_shared.iter().map(|permission| NOT_SHARED + permission))
    };
    for byte in ours() {
        set(file, byte, libc::F_RDLCK)?;
    }
    let theirs = used.iter().map(|permission| NOT_SHARED + permission);
    for byte in theirs.chain(not_shared.iter().map(|permission| USED + permission)) {
        if is_locked(file, byte)? {
            for byte in ours() {
                set(file, byte, libc::F_UNLCK)?;
            }
            return Ok(Locked::ByAnother);
        }
    }
    Ok(Locked::Here)
}

fn request(byte: i64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn set(file: &File, byte: i64, kind: i32) -> io::Result<()> {
    let request = request(byte, kind);
    // SAFETY: the descriptor is open, and the kernel only reads the structure.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether another open file has a lock there.
fn is_locked(file: &File, byte: i64) -> io::Result<bool> {
    let mut request = request(byte, libc::F_WRLCK);
    // SAFETY: the descriptor is open, and the structure is the kernel's to write during the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut request) } {
        0 => Ok(i32::from(request.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}
