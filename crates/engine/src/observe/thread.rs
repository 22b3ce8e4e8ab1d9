//! Run, wait and sleep time of one host thread of a VM.

use crate::event::Time;
use serde::{Deserialize, Serialize};

/// Whether a thread runs, waits or sleeps, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum RunState {
    /// Not yet heard of, or events were lost: nothing is counted.
    #[default]
    Unknown,
    Sleeping,
    Runnable,
    Running,
}

/// Time accounts of one host thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ThreadTimes {
    state: RunState,
    since: Time,
    /// Nanoseconds on a physical CPU.
    pub(crate) ran: u64,
    /// Nanoseconds runnable but not running: stolen time.
    pub(crate) waited: u64,
    /// How long it slept and waited since the last settlement.
    slept_in_window: u64,
    waited_in_window: u64,
    /// Whether it was woken and has not run since.
    woken: bool,
    /// Since when it has wanted a physical CPU without getting one by itself.
    #[serde(default)]
    starved_since: Option<Time>,
    /// The physical CPU it last ran on.
    pub(crate) pcpu: Option<u16>,
}

impl ThreadTimes {
    /// Brings the accounts up to `now`; returns the time it ran since the last call.
    pub(crate) fn account(&mut self, now: Time) -> u64 {
        let elapsed = now.since(self.since);
        self.since = now;
        match self.state {
            RunState::Running => {
                self.ran = self.ran.saturating_add(elapsed);
                elapsed
            }
            RunState::Runnable => {
                self.waited = self.waited.saturating_add(elapsed);
                self.waited_in_window = self.waited_in_window.saturating_add(elapsed);
                0
            }
            RunState::Sleeping => {
                self.slept_in_window = self.slept_in_window.saturating_add(elapsed);
                0
            }
            RunState::Unknown => 0,
        }
    }

    /// Until when the accounts are up to date.
    pub(crate) fn accounted(&self) -> Time {
        self.since
    }

    /// Nanoseconds on a physical CPU by `now`.
    pub(crate) fn ran_by(&self, now: Time) -> u64 {
        self.ran.saturating_add(if self.is_running() { now.since(self.since) } else { 0 })
    }

    /// The thread got a physical CPU, because it was `boosted` or by itself. Call after
    /// [`account`](Self::account), like the next two.
    pub(crate) fn run(&mut self, pcpu: u16, boosted: bool) {
        self.state = RunState::Running;
        self.woken = false;
        self.starved_since = self.starved_since.filter(|_| boosted);
        self.pcpu = Some(pcpu);
    }

    /// The thread lost its physical CPU.
    pub(crate) fn stop(&mut self, runnable: bool) {
        self.state = if runnable { RunState::Runnable } else { RunState::Sleeping };
        self.woken = false;
        self.starved_since = runnable.then(|| self.starved_since.unwrap_or(self.since));
    }

    /// The thread became runnable. A wake-up of a running thread changes nothing.
    pub(crate) fn wake(&mut self) {
        if self.state != RunState::Running {
            self.state = RunState::Runnable;
            self.woken = true;
            self.starved_since.get_or_insert(self.since);
        }
    }

    /// Events were lost: what the thread does is unknown until the next one.
    pub(crate) fn forget(&mut self) {
        self.state = RunState::Unknown;
        self.woken = false;
        self.starved_since = None;
    }

    /// What it would have run since the last settlement beyond what it did: what it waited would have made it
    /// sleep sooner, and beyond what it slept it would have used it. A thread that sleeps a lot gets all it
    /// wants, though late; one that computes, and sleeps only while its emulator has it wait for a moment,
    /// does not.
    pub(crate) fn unmet(&self) -> u64 {
        self.waited_in_window.saturating_sub(self.slept_in_window)
    }

    /// Starts a new settlement window.
    pub(crate) fn restart_window(&mut self) {
        (self.waited_in_window, self.slept_in_window) = (0, 0);
    }

    /// Whether it was woken and has not run since: what it slept for, it has or is about to take.
    pub(crate) fn is_woken(&self) -> bool {
        self.woken
    }

    /// Since when it has wanted a physical CPU, if it wants one now. That it ran boosted in between does not
    /// count: what else gives it one has not.
    pub(crate) fn starved_since(&self) -> Option<Time> {
        self.starved_since.filter(|_| self.state == RunState::Runnable)
    }

    /// Whether it runs or wants to.
    pub(crate) fn is_awake(&self) -> bool {
        matches!(self.state, RunState::Running | RunState::Runnable)
    }

    /// Whether it neither runs nor wants to.
    pub(crate) fn is_asleep(&self) -> bool {
        self.state == RunState::Sleeping
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == RunState::Running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiting delays a thread that sleeps in between, but it gets all it wanted; one that hardly sleeps
    /// wants nearly all of it.
    #[test]
    fn a_thread_wanted_what_it_waited_beyond_what_it_slept() {
        let threads = || [ThreadTimes::default(), ThreadTimes::default(), ThreadTimes::default()];
        let [mut hungry, mut dozer, mut sleeper] = threads();
        for thread in [&mut hungry, &mut dozer, &mut sleeper] {
            thread.account(Time(0));
            thread.wake();
            thread.account(Time(40));
            thread.run(0, false);
            thread.account(Time(50));
        }
        hungry.stop(true);
        dozer.stop(false);
        sleeper.stop(false);
        dozer.account(Time(51));
        dozer.run(0, false);
        for thread in [&mut hungry, &mut dozer, &mut sleeper] {
            thread.account(Time(100));
        }
        assert_eq!((hungry.unmet(), dozer.unmet(), sleeper.unmet()), (90, 39, 0));
        for thread in [&mut hungry, &mut dozer, &mut sleeper] {
            thread.restart_window();
            thread.account(Time(110));
        }
        assert_eq!((hungry.unmet(), dozer.unmet(), sleeper.unmet()), (10, 0, 0));
        assert_eq!((hungry.ran, hungry.waited), (10, 100));
    }

    #[test]
    fn a_boost_does_not_end_that_a_thread_starves_and_a_turn_of_its_own_does() {
        let mut thread = ThreadTimes::default();
        let at = |thread: &mut ThreadTimes, time| {
            thread.account(Time(time));
        };
        at(&mut thread, 10);
        thread.wake();
        at(&mut thread, 30);
        assert_eq!(thread.starved_since(), Some(Time(10)));
        thread.run(0, true);
        assert_eq!(thread.starved_since(), None, "it runs");
        at(&mut thread, 40);
        thread.stop(true);
        assert_eq!(thread.starved_since(), Some(Time(10)));
        at(&mut thread, 50);
        thread.run(0, false);
        at(&mut thread, 60);
        thread.stop(true);
        assert_eq!(thread.starved_since(), Some(Time(60)));
        thread.stop(false);
        thread.wake();
        assert_eq!(thread.starved_since(), Some(Time(60)));
        at(&mut thread, 70);
        thread.stop(false);
        at(&mut thread, 80);
        thread.wake();
        assert_eq!(thread.starved_since(), Some(Time(80)), "who sleeps wants none");
    }
}
