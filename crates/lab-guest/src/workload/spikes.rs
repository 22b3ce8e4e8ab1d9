//! What products for virtual desktops call spike protection: a process that uses much CPU time has a low
//! priority for a while, whatever it does.

use super::process::{WorkloadError, ready};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, setpriority_process};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Over which the use of CPU time is looked at.
const SAMPLE: Duration = Duration::from_secs(1);
/// Of a CPU, in percent: who uses more is slowed down,
const LIMIT: u64 = 25;
/// for so long,
const PENALTY: Duration = Duration::from_secs(60);
/// to this nice value.
const NICE: i32 = 10;
/// The unit of times in /proc, on every Linux that this runs on.
const TICKS_PER_SECOND: u64 = 100;
/// Of a process's flags in /proc: a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Looks after all processes but init and itself.
pub(super) fn run() -> Result<Infallible, WorkloadError> {
    ready();
    let own = getpid().as_raw_pid();
    let mut used = BTreeMap::new();
    let mut slowed: BTreeMap<i32, Instant> = BTreeMap::new();
    loop {
        let begin = Instant::now();
        let now = cpu_times()?;
        slowed.retain(|pid, until| {
            let stays = *until > begin && now.contains_key(pid);
            if !stays {
                // It may have ended.
                let _ = set_nice(*pid, 0);
            }
            stays
        });
        for (pid, ticks) in &now {
            let before = used.get(pid).copied().unwrap_or(*ticks);
            let limit = LIMIT * TICKS_PER_SECOND * SAMPLE.as_secs() / 100;
            if *pid != 1 && *pid != own && ticks.saturating_sub(before) > limit {
                set_nice(*pid, NICE)?;
                slowed.insert(*pid, begin + PENALTY);
            }
        }
        used = now;
        sleep(SAMPLE.saturating_sub(begin.elapsed()));
    }
}

/// What each process that is not the kernel's has used, in ticks.
fn cpu_times() -> Result<BTreeMap<i32, u64>, WorkloadError> {
    let mut times = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended.
        let Ok(stat) = fs::read(entry.path().join("stat")) else { continue };
        times.extend(cpu_time(&String::from_utf8_lossy(&stat)).map(|ticks| (pid, ticks)));
    }
    Ok(times)
}

/// What a process has used, in ticks, by its line in /proc; nothing if it is the kernel's.
fn cpu_time(stat: &str) -> Option<u64> {
    // Its name, which comes before, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Flags, and the time in user mode and in the kernel: fields 9, 14 and 15 of proc(5).
    let (flags, user, system) = (field(6)?, field(11)?, field(12)?);
    (flags & KERNEL_THREAD == 0).then_some(user + system)
}

/// Of all threads of a process.
fn set_nice(pid: i32, nice: i32) -> Result<(), WorkloadError> {
    let Ok(threads) = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")) else {
        return Ok(());
    };
    for thread in threads.flatten() {
        let thread = thread.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        match setpriority_process(thread, nice) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(format!("the nice value of process {pid}: {error}").into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::cpu_time;

    #[test]
    fn time_is_that_of_processes_whatever_they_are_called() {
        assert_eq!(cpu_time("7 (a) b (c) R 1 7 7 0 -1 4194304 9 9 9 9 40 2 0 0 20 0 1"), Some(42));
        assert_eq!(cpu_time("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 40 2 0 0 20 0 1"), None);
        assert_eq!(cpu_time("7 (a) R 1"), None);
        assert_eq!(cpu_time(""), None);
    }
}
