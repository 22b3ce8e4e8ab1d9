//! How much sooner the dispatcher has to come than it is wanted: learnt from each time that it came too early or too late.

/// A member on another CPU stops sooner than this when it is told to, in nanoseconds, if nothing is wrong.
pub(super) const LAG: u64 = 150_000;

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

/// For a member on another CPU.
#[derive(Debug)]
pub(super) struct Elsewhere {
    pub(super) early: Early,
    /// How long it runs on when it is told to stop.
    pub(super) lag: Early,
}

impl Elsewhere {
    /// What it gets too much is what nobody else wanted, or little: as often too early as too late.
    pub(super) fn soft() -> Elsewhere {
        Elsewhere { early: Early::here(), lag: Early { most: LAG, ..Early::here() } }
    }

    /// It is to get no more: late once in two hundred times, at the price of waiting for the exact time, and stopped late once in five.
    pub(super) fn hard() -> Elsewhere {
        Elsewhere {
            early: Early { ns: 40_000, up: 199 * Early::DOWN, most: 150_000 },
            lag: Early { ns: 20_000, up: 4 * Early::DOWN, most: LAG },
        }
    }
}
