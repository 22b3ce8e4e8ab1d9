//! What guests show: films, games and terminals, each in a window. When each frame is due, and which are
//! late.

use crate::queue::Nanos;
use frontdesk_engine::{Region, TaskId};
use frontdesk_scenario::LateFrames;
use std::collections::VecDeque;

/// Frames of a film that are ready before they are due, at most.
pub(crate) const AHEAD: u32 = 4;

/// A window, and the frames that are shown in it.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Its workload, by its number in the guest.
    pub(crate) workload: usize,
    /// The address space of who shows something in it.
    pub(crate) space: TaskId,
    pub(crate) region: Region,
    /// A channel in which there is a message for each frame that may be begun.
    pub(super) room: usize,
    /// From one frame of a film to the next. Others show theirs when they are ready.
    period: Option<Nanos>,
    late: LateFrames,
    /// CPU time of each frame, over and over.
    costs: Box<[Nanos]>,
    /// When the first frame was due.
    began: Option<Nanos>,
    /// The frame that is worked at, or is the next to be.
    next: u64,
    /// When those are due that are ready.
    ready: VecDeque<Nanos>,
}

/// What a window is made of.
#[derive(Clone, Debug)]
pub(crate) struct WindowSpec {
    pub(crate) workload: usize,
    pub(crate) period: Option<Nanos>,
    pub(crate) late: LateFrames,
    /// CPU time of each frame, over and over; not empty.
    pub(crate) costs: Vec<Nanos>,
}

impl Window {
    pub(super) fn new(spec: WindowSpec, space: TaskId, room: usize, region: Region) -> Window {
        Window {
            workload: spec.workload,
            space,
            region,
            room,
            period: spec.period,
            late: spec.late,
            costs: spec.costs.into(),
            began: None,
            next: 0,
            ready: VecDeque::new(),
        }
    }

    fn due(&self, frame: u64) -> Option<Nanos> {
        Some(self.began?.saturating_add(self.period?.saturating_mul(frame)))
    }

    /// Begins with the next frame, past those that are late already if such are dropped. Returns what it
    /// costs, and how many were dropped.
    pub(super) fn begin(&mut self, now: Nanos) -> (Nanos, u64) {
        let first = self.next;
        if let Some(period) = self.period {
            // As many frames are made ready first as can be.
            let lead = period.saturating_mul(u64::from(AHEAD));
            let began = *self.began.get_or_insert(now.saturating_add(lead));
            if self.late == LateFrames::Drop {
                self.next = self.next.max(now.saturating_sub(began).div_ceil(period.max(1)));
            }
        }
        let count = u64::try_from(self.costs.len()).unwrap_or(u64::MAX).max(1);
        let place = usize::try_from(self.next % count).unwrap_or(0);
        (self.costs.get(place).copied().unwrap_or(0), self.next - first)
    }

    /// The frame that was begun is ready.
    pub(super) fn finish(&mut self) {
        self.ready.extend(self.due(self.next));
        self.next += 1;
    }

    /// When the first frame that is ready is due.
    pub(super) fn first_due(&self) -> Option<Nanos> {
        self.ready.front().copied()
    }

    /// Shows the first frame that is ready; false if it is dropped, being more than a period late.
    pub(super) fn show(&mut self, now: Nanos) -> bool {
        let (Some(due), Some(period)) = (self.ready.pop_front(), self.period) else { return true };
        let delay = now.saturating_sub(due);
        if delay <= period {
            return true;
        }
        if self.late == LateFrames::Delay {
            self.began = self.began.map(|began| began.saturating_add(delay));
            self.ready.iter_mut().for_each(|due| *due = due.saturating_add(delay));
        }
        self.late == LateFrames::Delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Nanos = 40_000_000;

    fn film(late: LateFrames, costs: &[Nanos]) -> Window {
        let spec = WindowSpec { workload: 0, period: Some(PERIOD), late, costs: costs.to_vec() };
        Window::new(spec, TaskId(1), 0, Region { x: 0, y: 0, width: 640, height: 354 })
    }

    #[test]
    fn frames_are_due_a_period_after_each_other_once_some_are_ready() {
        let mut film = film(LateFrames::Drop, &[1, 2, 3]);
        for cost in [1, 2, 3, 1] {
            assert_eq!(film.begin(7), (cost, 0));
            film.finish();
        }
        for frame in 0..u64::from(AHEAD) {
            let due = 7 + PERIOD * (u64::from(AHEAD) + frame);
            assert_eq!(film.first_due(), Some(due));
            assert!(film.show(due + PERIOD), "not yet late");
        }
        assert_eq!(film.first_due(), None);
    }

    #[test]
    fn late_frames_are_dropped_before_they_are_worked_at_if_that_is_known() {
        let mut film = film(LateFrames::Drop, &[1, 2, 3]);
        film.begin(0);
        film.finish();
        let began = PERIOD * u64::from(AHEAD);
        assert!(!film.show(began + PERIOD + 1));
        assert_eq!(film.begin(began + 4 * PERIOD + 1), (3, 4), "goes on with the sixth");
        film.finish();
        assert_eq!(film.first_due(), Some(began + 5 * PERIOD));
    }

    #[test]
    fn a_film_that_delays_shows_all_and_takes_longer() {
        let mut film = film(LateFrames::Delay, &[1]);
        film.begin(0);
        film.finish();
        film.begin(0);
        film.finish();
        let began = PERIOD * u64::from(AHEAD);
        assert!(film.show(began + 3 * PERIOD));
        assert_eq!(film.first_due(), Some(began + 4 * PERIOD));
        assert_eq!(film.begin(began + 100 * PERIOD).1, 0);
        film.finish();
        assert!(film.show(began + 4 * PERIOD));
        assert_eq!(film.first_due(), Some(began + 5 * PERIOD));
    }

    proptest! {
        /// Whatever CPU time a film gets, each of its frames is dropped or shown, in order, and none is shown
        /// before it is due, or late if late ones are dropped.
        #[test]
        fn each_frame_is_shown_in_time_or_dropped(delays in prop::collection::vec(0..5 * PERIOD, 1..200)) {
            let mut film = film(LateFrames::Drop, &[1]);
            let (mut now, mut shown, mut dropped) = (0, 0u64, 0u64);
            for delay in delays {
                dropped += film.begin(now).1;
                film.finish();
                now += delay;
                let due = film.first_due().unwrap_or(0);
                now = now.max(due);
                if film.show(now) {
                    shown += 1;
                    prop_assert!((due..=due + PERIOD).contains(&now));
                } else {
                    dropped += 1;
                    prop_assert!(now > due + PERIOD);
                }
                prop_assert_eq!(shown + dropped, film.next);
            }
        }
    }
}
