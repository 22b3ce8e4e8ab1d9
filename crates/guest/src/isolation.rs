//! The guest extension (vAMP §3.3): in an episode, background work and all else have vCPUs of their own, and
//! devices interrupt those that a person waits for.
//!
//! What the host orders concerns only which of its own vCPUs a thread of the guest may use, for a while.
//! Everything is moved back when the episode ends, when the host goes or is silent, and when this process
//! ends, however it does.

mod cpus;
pub(crate) mod guardian;
mod ledger;
mod system;

use cpus::{Cpus, Partition};
use frontdesk_guest_protocol::{EPISODE_GRACE, Isolation, Refusal};
use guardian::Guardian;
use ledger::{Ledger, Trouble};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use system::{Kernel, Linux};

/// How often it is looked for threads that began meanwhile, and whether the fast vCPUs suffice (§3.3: 1 s).
const INTERVAL: Duration = Duration::from_secs(1);
/// vCPUs that what a person waits for has in the beginning,
const FAST: u32 = 1;
/// and where it plays sound.
const FAST_WITH_SOUND: u32 = 2;
/// A vCPU that is idle for less of the time, in percent, is used to the full.
const IDLE: u64 = 5;

/// What the host orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EpisodeOrder {
    pub(crate) tasks: BTreeSet<u32>,
    pub(crate) left: Duration,
    pub(crate) sound: bool,
}

/// Isolates background work.
#[derive(Debug)]
pub(crate) struct Isolator {
    kernel: Linux,
    guardian: Option<Guardian>,
    ledger: Ledger,
    episode: Option<Episode>,
    state: Isolation,
}

/// An episode that goes on.
#[derive(Debug)]
struct Episode {
    tasks: BTreeSet<u32>,
    until: Instant,
    look: Instant,
    /// vCPUs for what is no background work.
    fast: u32,
    /// Of each vCPU the ticks in which it was idle, and all, at the last look.
    idle: Vec<(u32, u64, u64)>,
}

impl Isolator {
    pub(crate) fn new() -> Isolator {
        Isolator {
            kernel: Linux { own: Vec::new() },
            guardian: None,
            ledger: Ledger::default(),
            episode: None,
            state: Isolation::Ready,
        }
    }

    /// What it does now.
    pub(crate) fn state(&self) -> Isolation {
        self.state
    }

    /// When it is to [look](Self::look) next.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.episode.as_ref().map(|episode| episode.look.min(episode.until))
    }

    /// An episode begins, in place of one that goes on.
    pub(crate) fn begin(&mut self, order: EpisodeOrder, now: Instant) {
        if order.tasks.is_empty() {
            return self.end();
        }
        let least = if order.sound { FAST_WITH_SOUND } else { FAST };
        let fast = self.episode.as_ref().map_or(least, |episode| episode.fast.max(least));
        self.episode = Some(Episode {
            tasks: order.tasks,
            until: now + order.left + EPISODE_GRACE,
            look: now + INTERVAL,
            fast,
            idle: self.kernel.idle(),
        });
        self.divide();
    }

    /// Ends what is over, and finds what is new.
    pub(crate) fn look(&mut self, now: Instant) {
        let Some(episode) = &mut self.episode else { return };
        if now >= episode.until {
            return self.end();
        }
        if now < episode.look {
            return;
        }
        episode.look = now + INTERVAL;
        let idle = self.kernel.idle();
        if let Isolation::Divided { slow, .. } = self.state
            && is_saturated(&episode.idle, &idle, Cpus(slow))
        {
            episode.fast = episode.fast.saturating_add(1);
        }
        episode.idle = idle;
        self.divide();
    }

    /// Nothing is isolated any more.
    pub(crate) fn end(&mut self) {
        self.episode = None;
        self.state = Isolation::Ready;
        self.undo();
    }

    fn undo(&mut self) {
        if !self.ledger.is_empty() {
            self.ledger.undo(&mut self.kernel);
            if let Some(guardian) = &mut self.guardian {
                // Undoing once more does no harm.
                let _ = guardian.note(&self.ledger);
            }
        }
    }

    fn divide(&mut self) {
        self.state = match self.try_divide() {
            Ok(state) => state,
            Err(refusal) => {
                self.undo();
                Isolation::Refused(refusal)
            }
        };
    }

    fn try_divide(&mut self) -> Result<Isolation, Refusal> {
        let Some(episode) = &self.episode else { return Ok(Isolation::Ready) };
        if self.guardian.as_mut().is_none_or(|guardian| !guardian.is_alive()) {
            // Without it nothing stays moved.
            self.guardian = None;
            self.ledger.undo(&mut self.kernel);
            let guardian = Guardian::start().map_err(|_| Refusal::Guardian)?;
            self.kernel.own = vec![std::process::id(), guardian.id()];
            self.guardian = Some(guardian);
        }
        let guardian = self.guardian.as_mut().ok_or(Refusal::Guardian)?;
        let online = self.kernel.online().map_err(|_| Refusal::Kernel)?;
        let partition = Partition::of(online, episode.fast).ok_or(Refusal::Vcpus)?;
        let divided = self
            .ledger
            .divide(&mut self.kernel, partition, &episode.tasks, |ledger| guardian.note(ledger))
            .map_err(|trouble| match trouble {
                Trouble::Vcpus => Refusal::Vcpus,
                Trouble::Threads => Refusal::Threads,
                Trouble::Kernel => Refusal::Kernel,
            })?;
        if divided.background == 0 {
            // All have ended: everybody has all vCPUs.
            self.undo();
            return Ok(Isolation::Ready);
        }
        let count = |threads| u16::try_from(threads).unwrap_or(u16::MAX);
        Ok(Isolation::Divided {
            slow: partition.slow.0,
            background: count(divided.background),
            others: count(divided.others),
        })
    }
}

/// Whether all vCPUs but the slow ones were used to the full between two looks.
fn is_saturated(before: &[(u32, u64, u64)], now: &[(u32, u64, u64)], slow: Cpus) -> bool {
    let fast = || now.iter().filter(|(cpu, ..)| !slow.has(*cpu));
    fast().next().is_some()
        && fast().all(|(cpu, idle, all)| {
            let then = before.iter().find(|(of, ..)| of == cpu);
            then.is_some_and(|(_, idle_then, all_then)| {
                let (idle, all) = (idle.saturating_sub(*idle_then), all.saturating_sub(*all_then));
                all > 0 && idle.saturating_mul(100) < all.saturating_mul(IDLE)
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpus_are_saturated_when_none_of_the_fast_ones_has_been_idle() {
        let before = [(0, 100, 1000), (1, 0, 1000), (2, 500, 1000)];
        let slow = Cpus(0b100);
        assert!(is_saturated(&before, &[(0, 104, 1100), (1, 0, 1100), (2, 600, 1100)], slow));
        assert!(!is_saturated(&before, &[(0, 105, 1100), (1, 0, 1100), (2, 500, 1100)], slow));
        assert!(!is_saturated(&before, &before, slow), "no time has passed");
        assert!(!is_saturated(&[], &[], slow));
    }
}
