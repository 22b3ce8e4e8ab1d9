//! Time that the machine does not have: whatever emulates or hosts it gave its CPUs to others.

use frontdesk_linux::{monotonic_ns, realtime};
use frontdesk_scenario::Lost;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often each CPU is looked at; more often, the looking itself would be felt.
const PERIOD: Duration = Duration::from_millis(10);
/// A thread that wakes up so much too late, in milliseconds, did not wait for what runs on its CPU.
const GAP_MS: f64 = 5.0;

/// Threads that look at a clock, one on each CPU, before everything but the daemon.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Lost>>,
}

impl Watch {
    /// Begins to watch these CPUs.
    pub(crate) fn start(cpus: &[u16]) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let watch = |cpu: u16| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || watch(cpu, &stop))
        };
        let threads = cpus.iter().map(|cpu| watch(*cpu)).collect();
        Watch { stop, threads }
    }

    /// What was lost since.
    pub(crate) fn finish(self) -> Lost {
        self.stop.store(true, Ordering::Relaxed);
        let lost = self.threads.into_iter().filter_map(|thread| thread.join().ok());
        lost.fold(Lost::default(), |all, of| Lost {
            gaps: all.gaps + of.gaps,
            ms: all.ms + of.ms,
            longest_ms: all.longest_ms.max(of.longest_ms),
        })
    }
}

fn watch(cpu: u16, stop: &AtomicBool) -> Lost {
    let mut lost = Lost::default();
    if realtime::run_ahead(&[cpu]).is_err() {
        return lost;
    }
    while !stop.load(Ordering::Relaxed) {
        let before = monotonic_ns();
        std::thread::sleep(PERIOD);
        let late = Duration::from_nanos(monotonic_ns().saturating_sub(before)).saturating_sub(PERIOD);
        let late_ms = late.as_secs_f64() * 1e3;
        if late_ms > GAP_MS {
            lost.gaps += 1;
            lost.ms += late_ms;
            lost.longest_ms = lost.longest_ms.max(late_ms);
        }
    }
    lost
}
