//! Whether a person waits for what they have just started (vAMP §3.1.2): an episode, which begins with an
//! input or with sound, and ends with the next input, or by time.

use crate::config::Asymmetric as Config;
use crate::event::Time;
use crate::nanos::nanos;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest episode that can be configured, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// What an episode begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeCause {
    /// The Enter key was pressed.
    Enter,
    /// A button of the mouse was released.
    Button,
    /// A packet came to this TCP port.
    Port(u16),
    /// The guest played sound.
    Sound,
}

impl fmt::Display for EpisodeCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EpisodeCause::Enter => out.write_str("the Enter key"),
            EpisodeCause::Button => out.write_str("a button of the mouse"),
            EpisodeCause::Port(port) => write!(out, "a packet to TCP port {port}"),
            EpisodeCause::Sound => out.write_str("sound"),
        }
    }
}

/// A time in which what is no background work is probably what a person waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Episode {
    pub(crate) cause: EpisodeCause,
    pub(crate) since: Time,
    /// When it ends by itself.
    pub(crate) until: Time,
}

/// The latest episode of a guest.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Episodes(Option<Episode>);

impl Episodes {
    /// Checks what was loaded.
    pub(super) fn check(self, now: Time) -> Result<(), StateError> {
        let bounded = |episode: Episode| episode.until <= now.plus(LONGEST);
        check(self.0.is_none_or(bounded), "an episode longer than any")
    }

    /// The episode that goes on now.
    pub(crate) fn current(self, now: Time) -> Option<Episode> {
        self.0.filter(|episode| now < episode.until)
    }

    /// One begins, in place of that which went on. Sound begins none while one goes on: it is to be heard all
    /// the time. Returns whether one does.
    pub(super) fn begin(&mut self, cause: EpisodeCause, now: Time, config: &Config) -> bool {
        if cause == EpisodeCause::Sound && self.current(now).is_some() {
            return false;
        }
        self.0 = Some(Episode { cause, since: now, until: now.plus(nanos(config.max_episode)) });
        true
    }

    /// It ends. Returns whether one went on.
    pub(super) fn end(&mut self, now: Time) -> bool {
        self.0.take().is_some_and(|episode| now < episode.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_episode_ends_with_the_next_input_or_by_time() {
        let (mut episodes, config) = (Episodes::default(), Config::default());
        assert!(episodes.begin(EpisodeCause::Enter, Time(0), &config));
        assert!(episodes.current(Time(5 * SECOND - 1)).is_some());
        assert_eq!(episodes.current(Time(5 * SECOND)), None);
        assert!(episodes.begin(EpisodeCause::Button, Time(SECOND), &config));
        let episode = episodes.current(Time(5 * SECOND)).unwrap();
        assert_eq!((episode.cause, episode.since), (EpisodeCause::Button, Time(SECOND)));
        assert!(episodes.end(Time(2 * SECOND)) && !episodes.end(Time(2 * SECOND)));
        assert_eq!(episodes.current(Time(2 * SECOND)), None);
    }

    /// "once an audio device access initiates an interactive episode, subsequent accesses are ignored until
    /// the episode is finished"
    #[test]
    fn sound_begins_an_episode_only_when_none_goes_on() {
        let (mut episodes, config) = (Episodes::default(), Config::default());
        assert!(episodes.begin(EpisodeCause::Sound, Time(0), &config));
        assert!((1..5).all(|second| !episodes.begin(EpisodeCause::Sound, Time(second * SECOND), &config)));
        assert!(episodes.begin(EpisodeCause::Sound, Time(5 * SECOND), &config), "after its end");
        assert!(episodes.begin(EpisodeCause::Enter, Time(6 * SECOND), &config));
        assert!(!episodes.begin(EpisodeCause::Sound, Time(7 * SECOND), &config));
    }
}
