//! The reporter's own priority in the guest.

use std::io;

/// The lowest real-time priority: it runs before all ordinary tasks, and after whatever else is real-time.
const PRIORITY: i32 = 1;

/// Makes this process real-time: as an ordinary one it would wait behind the tasks whose switches it reports,
/// for longer than they run. It never runs for long.
pub(crate) fn enter() -> io::Result<()> {
    // SAFETY: all fields of the structure are integers.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = PRIORITY;
    // SAFETY: the kernel only reads the structure.
    match unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
