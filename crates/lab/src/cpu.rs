//! CPU time of processes, from the kernel's scheduler statistics.

use std::fs;
use std::io;

/// CPU time of all threads of a process so far, in nanoseconds. A running thread is up to a tick behind.
pub(crate) fn process_ns(pid: i32) -> io::Result<u64> {
    let mut total: u64 = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while we look.
        if let Ok(stat) = fs::read_to_string(entry?.path().join("schedstat")) {
            total = total.saturating_add(ran(&stat).unwrap_or(0));
        }
    }
    Ok(total)
}

fn ran(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn own_cpu_time_grows_with_work() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let before = super::process_ns(pid).unwrap();
        let mut x = 1u64;
        while super::process_ns(pid).unwrap() == before {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
    }
}
