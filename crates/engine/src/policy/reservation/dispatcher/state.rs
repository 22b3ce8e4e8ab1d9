//! What the dispatcher knows of a member.

use crate::Time;
use crate::policy::reservation::{DispatchKind, LEVELS, MemberAccount, RECENT, Reading, Reservation};
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberState {
    pub(super) cpu: u16,
    pub(super) reservation: Reservation,
    /// Length of the current period: shorter than usual if the reservation began in its middle.
    pub(super) length: u64,
    /// When the current period ends.
    pub(super) end: Time,
    /// Of the slice that is left; never before `end`.
    pub(super) deadline: Time,
    /// What the current period has of the slice.
    slice: u64,
    /// What is left of that.
    pub(super) left: u64,
    /// What was last said about it.
    #[serde(rename = "told")]
    pub(super) dispatched: Option<DispatchKind>,
    pub(super) paused: bool,
    pub(super) reading: Reading,
    /// CPU time of its reservation that it used in the current period.
    used: u64,
    /// The machine stood still in the current period.
    pub(super) stalled: bool,
    pub(super) account: MemberAccount,
}

impl MemberState {
    /// One whose first period has not begun.
    pub(super) fn new(cpu: u16, reservation: Reservation, reading: Reading) -> MemberState {
        MemberState {
            cpu,
            reservation,
            length: 0,
            end: Time::default(),
            deadline: Time::default(),
            slice: 0,
            left: 0,
            dispatched: None,
            paused: false,
            reading,
            used: 0,
            stalled: false,
            account: MemberAccount::default(),
        }
    }

    /// Whether a member can be in this state: it was loaded.
    pub(super) fn check(&self) -> Result<(), StateError> {
        let MemberAccount { periods, missed, stalled, recent, .. } = &self.account;
        check(self.length > 0, "a reservation without a period")?;
        check(self.deadline >= self.end, "a deadline before the end of its period")?;
        check(self.left <= self.slice, "more left of a slice than it has")?;
        let level = self.dispatched.and_then(DispatchKind::level);
        check(level.is_none_or(|level| (1..=LEVELS).contains(&level)), "a level that there is not")?;
        check(stalled <= missed && missed <= periods, "more periods missed than there were")?;
        check(recent.len() <= RECENT, "more periods remembered than are kept")
    }

    pub(super) fn is_eligible(&self) -> bool {
        !self.paused && self.left > 0
    }

    /// It ran and slept as the reading says; whether that changed its deadline.
    pub(super) fn charge(&mut self, now: Reading) -> bool {
        let ran = now.ran_ns.saturating_sub(self.reading.ran_ns);
        let on_reservation = self.dispatched.is_some_and(DispatchKind::is_run);
        self.account.charge(ran, on_reservation.then_some(self.left));
        if on_reservation {
            self.left = self.left.saturating_sub(ran);
            self.used = self.used.saturating_add(ran);
        }
        let woke = now.ready && now.woken > self.reading.woken;
        self.reading = now;
        woke && self.postpone(now.woken)
    }

    /// How long what is left of its slice takes at its rate.
    fn needs(&self) -> u64 {
        let product = u128::from(self.left) * u128::from(self.reservation.period_ns);
        u64::try_from(product.div_ceil(u128::from(self.reservation.slice_ns.max(1)))).unwrap_or(u64::MAX)
    }

    /// A wake-up after this time postpones its deadline.
    pub(super) fn late(&self) -> Time {
        Time(self.deadline.0.saturating_sub(self.needs()))
    }

    /// It woke up, or goes on: what is left of its slice, at its rate, may take longer than its period.
    pub(super) fn postpone(&mut self, woken: Time) -> bool {
        let deadline = woken.plus(self.needs());
        let later = deadline > self.deadline;
        self.deadline = self.deadline.max(deadline);
        later
    }

    /// Its reservation changes: of the current period, only what has passed counts.
    pub(super) fn cut(&mut self, now: Time) {
        let to_come =
            u128::from(self.slice) * u128::from(self.end.since(now)) / u128::from(self.length.max(1));
        let passed = self.slice.saturating_sub(u64::try_from(to_come).unwrap_or(u64::MAX));
        self.account.reserved_ns = self.account.reserved_ns.saturating_add(passed);
    }

    /// The current period is over.
    pub(super) fn close(&mut self, now: Time, wall_offset: u64, tolerance: u64) {
        let period = self.reservation.period_ns;
        let wanted = self.reading.ready && !self.paused;
        // Who came late has until later: what it can still get until then is not missed yet.
        let lacking = self.left.saturating_sub(self.deadline.since(self.end));
        let shortfall = (wanted && lacking > tolerance).then_some(lacking);
        self.account.close(self.end, self.slice, self.used, shortfall, self.stalled);
        let skipped = now.since(self.end) / period.max(1);
        if skipped > 0 {
            self.account.skip(skipped, self.reservation.slice_ns, wanted);
        }
        let begin = self.end.plus(skipped.saturating_mul(period));
        // When what it has used is paid for at its rate: after the period if it came late. It would take from
        // others if its next slice did not wait for that.
        let paid = self.late();
        let end = match self.reservation.phase_ns {
            // Where the wall clock was adjusted, one period is shorter or longer, by half at most.
            Some(phase) => boundary_after(begin.plus(period / 2).max(now), period, wall_offset, phase),
            None => begin.plus(period),
        };
        self.begin(begin, end);
        self.deadline = self.deadline.max(paid.plus(period));
    }

    pub(super) fn begin(&mut self, begin: Time, end: Time) {
        self.length = end.since(begin).max(1);
        (self.end, self.deadline) = (end, end);
        self.slice = self.reservation.slice_in(self.length);
        self.left = self.slice;
        self.used = 0;
    }
}

/// The first time after `time` that is `phase` after a multiple of the period on the wall clock.
pub(super) fn boundary_after(time: Time, period: u64, wall_offset: u64, phase: u64) -> Time {
    let period = u128::from(period.max(1));
    // How long before time zero the wall clock was at such a point.
    let offset = (u128::from(wall_offset) + period - u128::from(phase) % period) % period;
    let next = ((u128::from(time.0) + offset) / period + 1) * period - offset;
    Time(u64::try_from(next).unwrap_or(u64::MAX))
}
