//! Pictures of what a VM's screen shows.

use super::vnc::{Vnc, VncError};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long QEMU may take for a picture beside busy VMs.
const PICTURE_TIMEOUT: Duration = Duration::from_secs(30);

/// What is to be seen on a VM's screen now, as a PNG file. `vnc` is the socket of its VNC server.
pub(crate) fn screenshot(vnc: &Path) -> Result<Vec<u8>, VncError> {
    let mut vnc = Vnc::connect(vnc)?;
    let deadline = Instant::now() + PICTURE_TIMEOUT;
    // One update has it all, unless its size changes first.
    while let Some(update) = vnc.update(deadline)? {
        if !update.areas.is_empty() {
            return Ok(vnc.screen().png()?);
        }
    }
    Err(VncError::Protocol(format!("no picture within {PICTURE_TIMEOUT:?}")))
}
