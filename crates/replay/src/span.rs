//! How long something took.

use frontdesk_engine::Time;
use frontdesk_scenario::float;

/// From the first event to the latest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span(Option<(Time, Time)>);

impl Span {
    pub(crate) fn add(&mut self, at: Time) {
        let (first, last) = self.0.get_or_insert((at, at));
        *first = (*first).min(at);
        *last = (*last).max(at);
    }

    /// The latest time.
    pub(crate) fn end(self) -> u64 {
        self.0.map_or(0, |(_, last)| last.0)
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0.map_or(0, |(first, last)| last.since(first))
    }

    pub(crate) fn seconds(self) -> f64 {
        seconds(self.nanos())
    }
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(nanos: u64) -> f64 {
    float(nanos) / 1e9
}
