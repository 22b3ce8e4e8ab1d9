//! Threads of one address space that compute together, as those of a parallel program.

use super::process::{WorkloadError, failed, ready, spin};
use crate::report::ReportRecorder;
use std::convert::Infallible;
use std::sync::Barrier;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Steps of an operation.
const OPERATION: u64 = 1 << 20;

/// Steps that a thread tells of, at least: more often it would do little else.
const TELL: u64 = OPERATION / 16;

/// Lets `threads` threads compute. After each `barrier` steps, if there is such a number, they wait for each
/// other.
pub(super) fn run(
    threads: u16,
    barrier: Option<u64>,
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    let (tell, told) = channel();
    let together = barrier.map(|steps| (steps.max(1), Barrier::new(threads.into())));
    thread::scope(|scope| {
        // The last one is this thread, which is also told what the others did.
        for _ in 1..threads {
            let (tell, together) = (tell.clone(), together.as_ref());
            thread::Builder::new()
                .spawn_scoped(scope, move || compute(together, |steps| send(&tell, steps)))
                .map_err(failed("starting a thread"))?;
        }
        ready();
        let mut done = 0;
        compute(together.as_ref(), |steps| {
            done += steps + told.try_iter().sum::<u64>();
            let operations = done / OPERATION;
            done %= OPERATION;
            recorder.count(operations, 0).map_err(failed("recording"))
        })
        .map_err(Into::into)
    })
}

fn send(tell: &Sender<u64>, steps: u64) -> Result<(), String> {
    tell.send(steps).map_err(|_| "the first thread has ended".to_owned())
}

/// Computes without end, unless it cannot tell of it.
fn compute(
    together: Option<&(u64, Barrier)>,
    mut tell: impl FnMut(u64) -> Result<(), String>,
) -> Result<Infallible, String> {
    let mut untold = 0;
    loop {
        let steps = together.map_or(OPERATION, |(steps, _)| *steps);
        spin(steps);
        untold += steps;
        if untold >= TELL {
            tell(std::mem::take(&mut untold))?;
        }
        if let Some((_, barrier)) = together {
            barrier.wait();
        }
    }
}
