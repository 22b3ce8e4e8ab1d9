//! Virtio-serial ports. There is no udev that would give them names in `/dev`.

use std::io;
use std::path::{Path, PathBuf};

/// The device of the port called `wanted`, if there is one.
pub(crate) fn find(wanted: &str) -> io::Result<Option<PathBuf>> {
    for port in std::fs::read_dir("/sys/class/virtio-ports")?.flatten() {
        if std::fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == wanted) {
            return Ok(Some(Path::new("/dev").join(port.file_name())));
        }
    }
    Ok(None)
}
