//! The runs of a sweep, on several threads or on Ray.

use crate::design::Sweep;
use crate::error::SweepError;
use crate::folder::Folder;
use crate::made::{Done, rows};
use crate::plan::from_all_over;
use crate::ray::Driver;
use crate::row::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Rows are written after this time at the earliest, and after this part of the time since the start: so
/// little has to be computed again when this process is killed, and yet there are few files.
const WRITE_AFTER: Duration = Duration::from_secs(1);
const WRITE_PART: u32 = 100;
/// How often it is looked whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Who makes the runs.
#[derive(Clone, Copy, Debug)]
pub enum Workers<'a> {
    /// So many threads of this process.
    Threads(usize),
    /// The Ray cluster at this address, or that of this machine if it is "auto".
    Ray(&'a str),
}

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

impl Progress {
    /// After this process has done so many of the runs that were missing when it began, in this time.
    fn after(took: Duration, total: usize, missing: usize, done: usize, written: bool) -> Progress {
        let count = |runs: usize| u32::try_from(runs).unwrap_or(u32::MAX);
        // Each of the others takes as long as these did. Runs of earlier times say nothing of that.
        let each = took.checked_div(count(done));
        let left = each.map(|each| each.saturating_mul(count(missing.saturating_sub(done))));
        Progress { done: total - missing + done, total, left, written }
    }
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All runs have their rows.
    Finished,
    /// It was stopped before. What was done is kept.
    Stopped,
}

/// Has the runs made that the folder has no rows of, until `stop` is set. The rows do not depend on who makes
/// them. `progress` is told now and then how far it is.
///
/// When it is stopped, threads may still be busy with a run whose rows nobody takes; they end after it.
///
/// # Errors
/// Rows cannot be written, or Ray cannot be used. Rows of runs that were made are kept.
pub fn run(
    sweep: &Arc<Sweep>,
    folder: &mut Folder,
    workers: Workers<'_>,
    stop: &Arc<AtomicBool>,
    progress: &dyn Fn(Progress),
) -> Result<Ended, SweepError> {
    let missing: Arc<[usize]> = in_turn(&folder.missing(), sweep.arms.len()).into();
    let (sender, receiver) = channel();
    // Held until the end.
    let _driver = match workers {
        Workers::Threads(threads) => {
            start_threads(sweep, folder.layout(), threads, &missing, stop, &sender);
            None
        }
        Workers::Ray(_) if missing.is_empty() => None,
        Workers::Ray(address) => Some(Driver::start(sweep, &missing, address, sender.clone())?),
    };
    drop(sender);
    let (total, begin) = (sweep.runs(), Instant::now());
    let (mut done, mut written, mut rows) = (0, begin, Vec::new());
    let mut failed = None;
    loop {
        let ended = match receiver.recv_timeout(LOOK) {
            Ok(Ok(own)) => {
                done += own.runs;
                rows.extend(own.rows);
                false
            }
            Ok(Err(error)) => {
                failed = Some(error);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        let stopped = stop.load(Ordering::Relaxed);
        if stopped {
            rows.extend(receiver.try_iter().flatten().flat_map(|own| own.rows));
        }
        let write = ended || stopped || written.elapsed() >= WRITE_AFTER.max(begin.elapsed() / WRITE_PART);
        let written_now = write && !rows.is_empty();
        if write {
            folder.keep(std::mem::take(&mut rows))?;
            written = Instant::now();
        }
        progress(Progress::after(begin.elapsed(), total, missing.len(), done, written_now));
        if let Some(error) = failed {
            return Err(error);
        }
        if ended || stopped {
            // Who is stopped with the last run has all of them.
            if folder.missing().is_empty() {
                folder.finish()?;
                return Ok(Ended::Finished);
            }
            return Ok(Ended::Stopped);
        }
    }
}

/// The order in which these runs are made: all arms of a set of parameters and a seed together, and those
/// from all over the sweep, for in the order of their numbers the first ones may be the easiest, and tell
/// nothing of how long the others will take.
fn in_turn(missing: &[usize], arms: usize) -> Vec<usize> {
    let sets: Vec<&[usize]> = missing.chunk_by(|one, next| one / arms == next / arms).collect();
    from_all_over(&sets).flatten().copied().collect()
}

/// Starts so many threads that send the rows of these runs.
fn start_threads(
    sweep: &Arc<Sweep>,
    layout: &Layout,
    threads: usize,
    missing: &Arc<[usize]>,
    stop: &Arc<AtomicBool>,
    sender: &Sender<Result<Done, SweepError>>,
) {
    let layout = Arc::new(layout.clone());
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..threads.clamp(1, missing.len().max(1)) {
        let (sweep, layout, missing) = (Arc::clone(sweep), Arc::clone(&layout), Arc::clone(missing));
        let (next, stop, sender) = (Arc::clone(&next), Arc::clone(stop), sender.clone());
        std::thread::spawn(move || {
            while let Some(number) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = || Done { runs: 1, rows: rows(&sweep, &layout, *number) };
                if stop.load(Ordering::Relaxed) || sender.send(Ok(done())).is_err() {
                    break;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_made_from_all_over_with_all_arms_of_a_set_together() {
        // Of ten sets with two arms, one arm of one is there.
        let missing: Vec<usize> = (0..20).filter(|number| *number != 5).collect();
        let order = in_turn(&missing, 2);
        let mut sets: Vec<usize> = order.iter().map(|number| number / 2).collect();
        sets.dedup();
        assert_eq!(sets.len(), 10, "each set once: {order:?}");
        assert!(sets[..2].iter().any(|set| *set >= 5), "the first two from both halves: {order:?}");
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, missing);
        assert!(in_turn(&[], 2).is_empty());
    }

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done_now() {
        let of = |took, total, missing, done| {
            let progress = Progress::after(took, total, missing, done, false);
            (progress.done, progress.left)
        };
        let seconds = Duration::from_secs;
        assert_eq!(of(seconds(60), 120, 120, 0), (0, None));
        assert_eq!(of(seconds(60), 120, 120, 20), (20, Some(seconds(300))));
        assert_eq!(of(seconds(60), 120, 120, 120), (120, Some(Duration::ZERO)));
        // Of a thousand runs 900 were there.
        assert_eq!(of(seconds(60), 1000, 100, 0), (900, None));
        assert_eq!(of(seconds(60), 1000, 100, 20), (920, Some(seconds(240))));
        assert_eq!(of(Duration::MAX, usize::MAX, usize::MAX, 1), (1, Some(Duration::MAX)), "no overflow");
    }
}
