//! How much sooner the dispatcher has to come than it is wanted: learnt from each time that it came too early or too late.

/// How much before its time the timer is set.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) ns: u64,
    /// By how much it grows when that was too late.
    up: u64,
    most: u64,
}

impl Early {
    /// By how much it shrinks when it was too early.
    const DOWN: u64 = 250;

    /// Where we run in the place of the member, and waiting for the exact time would take from it: as often too early as too late.
    pub(super) fn here() -> Early {
        Early { ns: 15_000, up: Self::DOWN, most: 50_000 }
    }

    pub(super) fn adjust(&mut self, learns: bool, late: bool) {
        self.ns = match (learns, late) {
            (false, _) => self.ns,
            (true, true) => (self.ns + self.up).min(self.most),
            (true, false) => self.ns.saturating_sub(Self::DOWN),
        };
    }
}
