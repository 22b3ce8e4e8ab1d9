//! How much of a process is looked at.

/// Threads of a process that are looked at, the oldest: one that starts them without end is to take nobody's
/// time. A QEMU's vCPUs, its threads for I/O and some hundred workers fit in.
pub const MAX_THREADS: usize = 1024;
