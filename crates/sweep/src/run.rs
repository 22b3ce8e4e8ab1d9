//! The runs of a sweep, on several threads.

use crate::design::Sweep;
use crate::error::SweepError;
use crate::folder::Folder;
use crate::row::Layout;
use crate::table::Row;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Rows are written after this time at the earliest, and after this part of the time since the start: so
/// little has to be computed again when this process is killed, and yet there are few files.
const WRITE_AFTER: Duration = Duration::from_secs(1);
const WRITE_PART: u32 = 100;
/// How often it is looked whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// How far a sweep is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Runs that are done, those of earlier times included.
    pub done: usize,
    /// All runs.
    pub total: usize,
    /// How long the others will take, judged by those that this process has done.
    pub left: Option<Duration>,
    /// Whether rows have just been written.
    pub written: bool,
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All runs have their rows.
    Finished,
    /// It was stopped before. What was done is kept.
    Stopped,
}

/// Makes the runs that the folder has no rows of, on so many threads, until `stop` is set. The rows do not
/// depend on how many threads there are. `progress` is told now and then how far it is.
///
/// When it is stopped, threads may still be busy with a run whose rows nobody takes; they end after it.
///
/// # Errors
/// Rows cannot be written.
pub fn run(
    sweep: &Arc<Sweep>,
    folder: &mut Folder,
    threads: usize,
    stop: &Arc<AtomicBool>,
    progress: &dyn Fn(Progress),
) -> Result<Ended, SweepError> {
    let missing: Arc<[usize]> = folder.missing().into();
    let layout = Arc::new(folder.layout().clone());
    let next = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = channel();
    for _ in 0..threads.clamp(1, missing.len().max(1)) {
        let (sweep, layout, missing) = (Arc::clone(sweep), Arc::clone(&layout), Arc::clone(&missing));
        let (next, stop, sender) = (Arc::clone(&next), Arc::clone(stop), sender.clone());
        std::thread::spawn(move || {
            while let Some(number) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                if stop.load(Ordering::Relaxed) || sender.send(rows(&sweep, &layout, *number)).is_err() {
                    break;
                }
            }
        });
    }
    drop(sender);
    let (total, begin) = (sweep.runs(), Instant::now());
    let (mut done, mut written, mut rows) = (0, begin, Vec::new());
    loop {
        let ended = match receiver.recv_timeout(LOOK) {
            Ok(own) => {
                done += 1;
                rows.extend(own);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        let stopped = stop.load(Ordering::Relaxed);
        if stopped {
            rows.extend(receiver.try_iter().flatten());
        }
        let write = ended || stopped || written.elapsed() >= WRITE_AFTER.max(begin.elapsed() / WRITE_PART);
        let written_now = write && !rows.is_empty();
        if write {
            folder.keep(std::mem::take(&mut rows))?;
            written = Instant::now();
        }
        let others = u32::try_from(missing.len()).unwrap_or(u32::MAX).saturating_sub(done);
        let left = begin.elapsed().checked_div(done).map(|each| each.saturating_mul(others));
        progress(Progress { done: total - missing.len() + done as usize, total, left, written: written_now });
        if ended && folder.missing().is_empty() {
            folder.finish()?;
            return Ok(Ended::Finished);
        }
        if ended || stopped {
            return Ok(Ended::Stopped);
        }
    }
}

/// The rows of a run. One that fails, however it does, has one that says so.
fn rows(sweep: &Sweep, layout: &Layout, number: usize) -> Vec<Row> {
    let Some(run) = sweep.run(number) else { return Vec::new() };
    let measured = catch_unwind(|| {
        let scenario = sweep.scenario_of(run).map_err(|error| error.to_string())?;
        frontdesk_sim::run(&scenario, run.arm, 1, run.seed, false).map_err(|error| error.to_string())
    });
    let measured =
        measured.unwrap_or_else(|_| Err("the model panicked: this is a bug, please report it".to_owned()));
    match &measured {
        Ok(measured) => layout.rows(run, Ok(&measured.repeat)),
        Err(error) => layout.rows(run, Err(error)),
    }
}
