//! The machine that the lab runs on.

use frontdesk_scenario::HostInfo;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// CPU-bound threads: on the host, so that the CPUs the daemon runs on are busy in every arm, or around it.
pub(crate) struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Starts one on each of these CPUs.
    pub(crate) fn start(cpus: &[u16]) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |cpu: u16| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(usize::from(cpu));
                // The CPU was checked to be online; if it went away, the thread is busy elsewhere.
                let _ = rustix::thread::sched_setaffinity(None, &set);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = cpus.iter().map(|cpu| spin(*cpu)).collect();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A spinning thread does not panic.
            let _ = thread.join();
        }
    }
}

/// Numbers of the physical CPUs that the lab may use.
pub(crate) fn online_cpus() -> io::Result<Vec<u16>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let cpus = (0..u16::try_from(rustix::thread::CpuSet::MAX_CPU).unwrap_or(u16::MAX))
        .filter(|cpu| set.is_set(usize::from(*cpu)));
    Ok(cpus.collect())
}

/// Memory that new processes could have without swapping, in MiB.
pub(crate) fn mem_available_mib() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib / 1024).ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))
}

/// The host, without its virtual machines.
pub(crate) fn host_info() -> HostInfo {
    HostInfo {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu: cpu_model(),
        cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        frontdesk: env!("CARGO_PKG_VERSION").to_owned(),
        ..HostInfo::default()
    }
}

/// Model of the physical CPUs.
fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(':').nth(1)).unwrap_or("unknown").trim().to_owned()
}

/// Version of QEMU.
pub(crate) fn qemu_version() -> String {
    let output = std::process::Command::new("qemu-system-x86_64").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.lines().next().and_then(|line| line.split("version ").nth(1));
    version.unwrap_or("unknown").split_ascii_whitespace().next().unwrap_or("unknown").to_owned()
}
