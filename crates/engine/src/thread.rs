//! Run, wait and sleep time of one host thread of a VM.

use crate::event::Time;

/// Whether a thread runs, waits or sleeps, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not yet heard of, or events were lost: nothing is counted.
    #[default]
    Unknown,
    Sleeping,
    Runnable,
    Running,
}

/// Time accounts of one host thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadTimes {
    state: State,
    since: Time,
    /// Nanoseconds on a physical CPU.
    pub(crate) ran: u64,
    /// Nanoseconds runnable but not running: stolen time.
    pub(crate) waited: u64,
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

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Running
    }
}
