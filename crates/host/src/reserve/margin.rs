//! How much sooner than it is wanted the dispatcher has to be woken for the end of a slice: learnt from each
//! time that it came too early or too late.

/// How much before its time the timer is set.
#[derive(Debug)]
pub(super) struct Early {
    /// In nanoseconds, for slices that are long enough.
    pub(super) ns: u64,
    /// By how much it grows when that was too late.
    up: u64,
}

impl Early {
    /// By how much it shrinks when it was too early.
    const DOWN: u64 = 250;
    /// No member loses more of its slice.
    const MOST: u64 = 50_000;

    /// What such a member gets too much is what nobody else wanted, or little: as often too early as too
    /// late.
    pub(super) fn soft() -> Early {
        Early { ns: 15_000, up: Self::DOWN }
    }

    /// It is to get no more: late once in twenty times.
    pub(super) fn hard() -> Early {
        Early { ns: 30_000, up: 19 * Self::DOWN }
    }

    /// For a slice of so many nanoseconds: a quarter of it at most.
    pub(super) fn of(&self, slice_ns: u64) -> u64 {
        self.ns.min(slice_ns / 4)
    }

    pub(super) fn adjust(&mut self, late: bool) {
        self.ns = if late { (self.ns + self.up).min(Self::MOST) } else { self.ns.saturating_sub(Self::DOWN) };
    }
}
