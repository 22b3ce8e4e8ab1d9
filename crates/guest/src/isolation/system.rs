//! What the kernel tells of threads and interrupts, and how they are moved.

use super::cpus::Cpus;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use std::fs;
use std::io;

/// A thread that is no kernel thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) id: u32,
    /// The process that it is of,
    pub(crate) process: u32,
    /// and that one's parent.
    pub(crate) parent: u32,
    /// When it began, in the kernel's ticks: a thread with the same number is another one.
    pub(crate) began: u64,
    /// Where it may run.
    pub(crate) cpus: Cpus,
}

/// The guest's kernel.
pub(crate) trait Kernel {
    /// All threads but those of the kernel and of the extension itself. `None`: one may run on CPUs beyond
    /// the first 64.
    fn threads(&self) -> io::Result<Option<Vec<Thread>>>;
    /// Lets a thread run on these CPUs only.
    fn move_thread(&mut self, id: u32, to: Cpus) -> io::Result<()>;
    /// Interrupts, and where they go.
    fn interrupts(&self) -> Vec<(u32, Cpus)>;
    /// Where one goes now.
    fn interrupt(&self, number: u32) -> Option<Cpus>;
    /// Lets an interrupt go to these CPUs only.
    fn move_interrupt(&mut self, number: u32, to: Cpus) -> io::Result<()>;
    /// The CPUs that are online, as far as they are among the first 64.
    fn online(&self) -> io::Result<Cpus>;
    /// Of each CPU the ticks in which it was idle, and all; both counted since the boot.
    fn idle(&self) -> Vec<(u32, u64, u64)>;
}

/// The running one.
#[derive(Debug)]
pub(crate) struct Linux {
    /// Processes that are left alone: the extension and its guardian.
    pub(crate) own: Vec<u32>,
}

/// In `stat`, of a thread of the kernel's (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

impl Kernel for Linux {
    fn threads(&self) -> io::Result<Option<Vec<Thread>>> {
        let mut threads = Vec::new();
        for process in numbers("/proc")?.into_iter().filter(|process| !self.own.contains(process)) {
            // What ends meanwhile is no error.
            let Some(stat) = read(&format!("/proc/{process}/stat")).as_deref().and_then(Stat::parse) else {
                continue;
            };
            if stat.flags & KERNEL_THREAD != 0 {
                continue;
            }
            for id in numbers(&format!("/proc/{process}/task")).unwrap_or_default() {
                let of = |file: &str| read(&format!("/proc/{process}/task/{id}/{file}"));
                let began = of("stat").as_deref().and_then(Stat::parse).map(|stat| stat.began);
                let (Some(began), Some(status)) = (began, of("status")) else { continue };
                let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"));
                let Some(cpus) = allowed.and_then(Cpus::parse) else { return Ok(None) };
                threads.push(Thread { id, process, parent: stat.parent, began, cpus });
            }
        }
        Ok(Some(threads))
    }

    fn move_thread(&mut self, id: u32, to: Cpus) -> io::Result<()> {
        let id = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let mut set = CpuSet::new();
        to.iter().filter_map(|cpu| usize::try_from(cpu).ok()).for_each(|cpu| set.set(cpu));
        Ok(sched_setaffinity(Some(id), &set)?)
    }

    fn interrupts(&self) -> Vec<(u32, Cpus)> {
        let numbers = numbers("/proc/irq").unwrap_or_default();
        numbers.into_iter().filter_map(|number| Some((number, self.interrupt(number)?))).collect()
    }

    fn interrupt(&self, number: u32) -> Option<Cpus> {
        read(&format!("/proc/irq/{number}/smp_affinity")).as_deref().and_then(Cpus::parse)
    }

    fn move_interrupt(&mut self, number: u32, to: Cpus) -> io::Result<()> {
        fs::write(format!("/proc/irq/{number}/smp_affinity"), to.to_string())
    }

    fn online(&self) -> io::Result<Cpus> {
        let cpus = crate::rings::cpus()?;
        Ok(Cpus(cpus.into_iter().fold(0, |set, cpu| set | 1u64.checked_shl(cpu.into()).unwrap_or(0))))
    }

    fn idle(&self) -> Vec<(u32, u64, u64)> {
        read("/proc/stat").as_deref().map(parse_idle).unwrap_or_default()
    }
}

fn read(path: &str) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The names in a directory that are numbers.
fn numbers(path: &str) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(path)?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// What is needed of a `stat`.
struct Stat {
    parent: u32,
    flags: u64,
    began: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // A name may hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
            began: fields.get(19)?.parse().ok()?,
        })
    }
}

/// Reads `/proc/stat`: of each CPU ticks as user, nice, system, idle, iowait, irq, softirq and steal. Others
/// are part of these.
fn parse_idle(text: &str) -> Vec<(u32, u64, u64)> {
    let cpus = text.lines().filter_map(|line| line.strip_prefix("cpu")?.split_once(' '));
    let read = cpus.filter_map(|(cpu, ticks)| {
        let ticks: Vec<u64> =
            ticks.split_ascii_whitespace().take(8).map_while(|tick| tick.parse().ok()).collect();
        let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
        Some((cpu.parse().ok()?, idle, ticks.iter().sum()))
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "77 (a) b) S 12 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!((stat.parent, stat.flags, stat.began), (12, 4_194_560, 98765));
        assert!(Stat::parse("77 (a) S 12").is_none());
        let ticks = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 1 1\ncpu1 0 0 0 9 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(parse_idle(ticks), [(0, 45, 72), (1, 9, 9)]);
    }

    #[test]
    fn this_system_is_read() {
        let own = std::process::id();
        let threads = Linux { own: Vec::new() }.threads().unwrap().unwrap();
        let found = threads.iter().find(|thread| thread.id == own).unwrap();
        assert_eq!((found.process, found.cpus.is_empty()), (own, false));
        let without = Linux { own: vec![own] }.threads().unwrap().unwrap();
        assert!(without.iter().all(|thread| thread.process != own));
    }
}
