//! Run, wait and sleep time of one host thread of a VM.

use crate::event::Time;
use serde::{Deserialize, Serialize};

/// Whether a thread runs, waits or sleeps, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum State {
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
    state: State,
    since: Time,
    /// Nanoseconds on a physical CPU.
    pub(crate) ran: u64,
    /// Nanoseconds runnable but not running: stolen time.
    pub(crate) waited: u64,
    /// Whether it slept since the last settlement, and how long it waited since then.
    slept: bool,
    waited_in_window: u64,
    /// The physical CPU it last ran on.
    pub(crate) pcpu: Option<u16>,
}

impl ThreadTimes {
    /// Brings the accounts up to `now`; returns the time it ran since the last call.
    pub(crate) fn account(&mut self, now: Time) -> u64 {
        let elapsed = now.since(self.since);
        self.since = now;
        match self.state {
            State::Running => {
                self.ran = self.ran.saturating_add(elapsed);
                elapsed
            }
            State::Runnable => {
                self.waited = self.waited.saturating_add(elapsed);
                self.waited_in_window = self.waited_in_window.saturating_add(elapsed);
                0
            }
            State::Unknown | State::Sleeping => 0,
        }
    }

    /// The thread got a physical CPU. Call after [`account`](Self::account).
    pub(crate) fn run(&mut self, pcpu: u16) {
        self.state = State::Running;
        self.pcpu = Some(pcpu);
    }

    /// The thread lost its physical CPU.
    pub(crate) fn stop(&mut self, runnable: bool) {
        self.state = if runnable { State::Runnable } else { State::Sleeping };
        self.slept |= !runnable;
    }

    /// The thread became runnable. A wake-up of a running thread changes nothing.
    pub(crate) fn wake(&mut self) {
        if self.state != State::Running {
            self.state = State::Runnable;
        }
    }

    /// Events were lost: what the thread does is unknown until the next one.
    pub(crate) fn forget(&mut self) {
        self.state = State::Unknown;
    }

    /// What it would have run since the last settlement beyond what it did. A thread that slept got all it wanted, though
    /// late; one that never did would have used all the time it waited.
    pub(crate) fn unmet(&self) -> u64 {
        if self.slept { 0 } else { self.waited_in_window }
    }

    /// Starts a new settlement window.
    pub(crate) fn restart_window(&mut self) {
        self.waited_in_window = 0;
        self.slept = self.state == State::Sleeping;
    }

    /// Whether it runs or wants to.
    pub(crate) fn is_awake(&self) -> bool {
        matches!(self.state, State::Running | State::Runnable)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiting delays a thread that sleeps in between, but it gets all it wanted; one that never sleeps wants it all.
    #[test]
    fn only_a_thread_that_never_slept_wanted_more() {
        let (mut hungry, mut sleeper) = (ThreadTimes::default(), ThreadTimes::default());
        for thread in [&mut hungry, &mut sleeper] {
            thread.account(Time(0));
            thread.wake();
            thread.account(Time(40));
            thread.run(0);
            thread.account(Time(50));
        }
        hungry.stop(true);
        sleeper.stop(false);
        assert_eq!((hungry.unmet(), sleeper.unmet()), (40, 0));
        for thread in [&mut hungry, &mut sleeper] {
            thread.restart_window();
            thread.account(Time(60));
        }
        assert_eq!((hungry.unmet(), sleeper.unmet()), (10, 0));
        assert_eq!((hungry.ran, hungry.waited), (10, 50));
    }
}
