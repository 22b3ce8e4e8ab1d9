//! How the process is told to end.

use std::os::fd::AsFd;

/// A descriptor that becomes readable when the process is told to end (SIGTERM or SIGINT).
///
/// # Errors
/// The signal handlers cannot be set.
pub fn stop_signal() -> std::io::Result<impl AsFd> {
    let (receiver, sender) = std::os::unix::net::UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    Ok(receiver)
}
