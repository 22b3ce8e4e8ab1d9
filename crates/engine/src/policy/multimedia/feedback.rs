//! The share that a task's frames need, found by feedback (MM Algorithm 1).

use crate::config::Multimedia as Config;
use crate::infer::FrameRate;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// The share that a VM has of itself, in permille of its weight.
pub(super) const ORIGINAL: u32 = 1000;

/// A film that shows less than this part of its usual frames for some seconds is slow (not in the paper).
const SLOW: f64 = 0.95;

/// After so many periods without missing frames the average that lasts is settled.
const CALM: u8 = 4;

/// Whether the rate that a film shows is known to be its own (not in the paper). One that has had too little
/// from its first frame on shows what it can, and nothing tells that there are to be more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum OwnRate {
    /// Not yet; so many periods have passed without missing frames.
    Unknown {
        calm: u8,
    },
    /// It is tried for so many periods more whether a larger share gives more frames than these with that
    /// share.
    Tried {
        periods: u8,
        share: u32,
        rate: f64,
    },
    Known,
}

impl Default for OwnRate {
    fn default() -> Self {
        OwnRate::Unknown { calm: 0 }
    }
}

/// What Algorithm 1 keeps of a task (§5.4: of each, where there are several).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Feedback {
    /// In permille of the VM's weight.
    pub(super) share: u32,
    /// Frames a second.
    pub(super) desired: f64,
    increased: bool,
    negative_count: u32,
    /// Frames a second that it showed for some seconds.
    #[serde(default)]
    usual: f64,
    #[serde(default)]
    own_rate: OwnRate,
}

impl Feedback {
    pub(super) fn new(desired: f64) -> Feedback {
        Feedback {
            share: ORIGINAL,
            desired,
            increased: false,
            negative_count: 0,
            usual: 0.0,
            own_rate: OwnRate::default(),
        }
    }

    /// Checks one that was loaded.
    pub(super) fn check(&self) -> Result<(), StateError> {
        let tried = match self.own_rate {
            OwnRate::Tried { share, rate, .. } => rate.is_finite() && share >= ORIGINAL,
            OwnRate::Unknown { .. } | OwnRate::Known => true,
        };
        let numbers = self.desired.is_finite() && self.usual.is_finite() && tried;
        let sound = numbers && (ORIGINAL..=most(16.0)).contains(&self.share);
        check(sound, "a share out of range for a film")
    }

    /// Whether frames are missing, and ever more (lines 3 and 8).
    pub(super) fn misses(&self, fps: &FrameRate) -> bool {
        fps.current <= fps.previous && fps.current < self.desired
    }

    /// Lines 3 to 5. `beyond`: others took CPU time from the VM, so that a larger share is of use.
    pub(super) fn fast_start(&mut self, fps: &FrameRate, beyond: bool, config: &Config) {
        if self.misses(fps) && beyond {
            self.share = self.share.saturating_mul(2).min(most(config.most_share()));
        }
    }

    /// Beyond the paper: whether it shows fewer frames than it did, though as many as are desired. Where a
    /// film waits for its sound, both become slow together, and no frame is missed.
    fn is_slow(&self, fps: &FrameRate, config: &Config) -> bool {
        config.early && fps.lasting < self.usual * SLOW
    }

    /// Lines 7 to 28.
    pub(super) fn normal(&mut self, fps: &FrameRate, beyond: bool, config: &Config) {
        if self.misses(fps) || self.is_slow(fps, config) {
            if self.increased {
                self.negative_count = self.negative_count.saturating_add(1);
                if self.negative_count >= config.negative_count {
                    self.share = (self.share / 2).max(ORIGINAL);
                    self.negative_count = 0;
                    self.desired = self.desired.min(fps.current);
                    self.usual = self.usual.min(fps.lasting);
                }
                self.increased = false;
            } else if beyond {
                self.increase(config);
            } else {
                // What others do not take is no matter of the share.
                self.increased = true;
            }
        } else {
            self.negative_count = 0;
            self.increased = false;
            if config.early && beyond {
                self.seek_own_rate(fps, config);
            }
        }
        self.desired = self.desired.max(fps.current * config.tolerance);
        self.usual = self.usual.max(fps.lasting);
    }

    /// No frame is missed, and others take CPU time from the VM: tries once whether more of it gives more
    /// frames. What does not is given back.
    fn seek_own_rate(&mut self, fps: &FrameRate, config: &Config) {
        self.own_rate = match self.own_rate {
            OwnRate::Unknown { calm } if calm < CALM => OwnRate::Unknown { calm: calm + 1 },
            OwnRate::Unknown { .. } => {
                let tried = OwnRate::Tried { periods: CALM, share: self.share, rate: fps.lasting };
                self.increase(config);
                self.increased = false;
                tried
            }
            OwnRate::Tried { periods: 0, share, rate } => {
                if fps.lasting * SLOW.sqrt() > rate {
                    OwnRate::Unknown { calm: CALM }
                } else {
                    self.share = self.share.min(share);
                    OwnRate::Known
                }
            }
            OwnRate::Tried { periods, share, rate } => OwnRate::Tried { periods: periods - 1, share, rate },
            OwnRate::Known => OwnRate::Known,
        };
    }

    /// Lines 9 and 10.
    pub(super) fn increase(&mut self, config: &Config) {
        self.share = self.share.saturating_add(most(config.share_unit)).min(most(config.most_share()));
        self.increased = true;
    }
}

/// A multiple of the original share, in permille of the weight.
fn most(times: f64) -> u32 {
    // Configured, up to 16.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let permille = (times * f64::from(ORIGINAL)) as u32;
    permille
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Profile;
    use crate::event::Time;

    const SECOND: u64 = 1_000_000_000;

    fn config() -> Config {
        Config { profile: Profile::Personal, ..Config::default() }
    }

    fn rate(previous: f64, current: f64) -> FrameRate {
        let mut rate = FrameRate::default();
        (rate.previous, rate.current) = (previous, current);
        rate
    }

    fn state(feedback: Feedback) -> (u32, f64, bool, u32) {
        (feedback.share, feedback.desired, feedback.increased, feedback.negative_count)
    }

    /// §5.2: "exponentially increases share with a short interval (line 3~5)".
    #[test]
    fn a_fast_start_doubles_as_long_as_it_is_of_no_avail() {
        let (config, mut feedback) = (config(), Feedback::new(20.0));
        feedback.fast_start(&rate(0.0, 0.0), true, &config);
        feedback.fast_start(&rate(5.0, 5.0), true, &config);
        assert_eq!(feedback.share, 4000);
        feedback.fast_start(&rate(5.0, 6.0), true, &config);
        assert_eq!(feedback.share, 4000, "line 3: it rises");
        feedback.fast_start(&rate(21.0, 20.0), true, &config);
        assert_eq!(feedback.share, 4000, "line 3: it is what is desired");
        feedback.fast_start(&rate(6.0, 6.0), false, &config);
        assert_eq!(feedback.share, 4000, "nobody else wants the CPU");
        (0..40).for_each(|_| feedback.fast_start(&rate(6.0, 6.0), true, &config));
        assert_eq!(feedback.share, 8000, "max_share");
        assert_eq!((feedback.desired, feedback.increased, feedback.negative_count), (20.0, false, 0));
    }

    /// Line by line.
    #[test]
    fn a_share_rises_by_a_unit_and_falls_by_half_after_three_raises_in_vain() {
        let (config, mut feedback) = (config(), Feedback::new(20.0));
        let mut normal = |previous, current| {
            feedback.normal(&rate(previous, current), true, &config);
            state(feedback)
        };
        assert_eq!(normal(12.0, 10.0), (2000, 20.0, true, 0), "lines 8 to 10");
        assert_eq!(normal(10.0, 14.0), (2000, 20.0, false, 0), "line 23: it helped");
        assert_eq!(normal(14.0, 14.0), (3000, 20.0, true, 0));
        assert_eq!(normal(14.0, 14.0), (3000, 20.0, false, 1), "lines 12 and 20");
        assert_eq!(normal(14.0, 14.0), (4000, 20.0, true, 1), "a second chance");
        assert_eq!(normal(14.0, 14.0), (4000, 20.0, false, 2));
        assert_eq!(normal(14.0, 14.0), (5000, 20.0, true, 2), "a third");
        assert_eq!(normal(14.0, 14.0), (2500, 14.0, false, 0), "lines 14 to 17");
        assert_eq!(normal(14.0, 14.0), (2500, 14.0, false, 0), "what is desired is reached");
        assert_eq!(normal(14.0, 24.0), (2500, 24.0 * 0.8, false, 0), "lines 26 and 27");
        assert_eq!(normal(24.0, 20.0), (2500, 24.0 * 0.8, false, 0), "within the tolerance");
        assert_eq!(normal(20.0, 19.0), (3500, 24.0 * 0.8, true, 0));
    }

    #[test]
    fn a_share_is_never_below_the_original_one_nor_above_max_share() {
        let mut config = config();
        for (times, highest) in [(None, 8000), (Some(1.0), 1000), (Some(1.5), 1500)] {
            config.max_share = times;
            let mut feedback = Feedback::new(20.0);
            let shares: Vec<u32> = (0..60)
                .map(|_| {
                    feedback.desired = 20.0;
                    feedback.normal(&rate(3.0, 3.0), true, &config);
                    feedback.share
                })
                .collect();
            assert!(shares.iter().all(|share| (1000..=highest).contains(share)), "{shares:?}");
            let most = shares.iter().max().copied();
            assert!(times.is_none() || most == Some(highest), "{shares:?}");
        }
    }

    /// Beyond the paper: 22 of 24 frames a second are within the tolerance, and yet the film has become slow.
    /// A frame more or less in a second says nothing.
    #[test]
    fn a_film_that_becomes_slow_gets_more_until_that_is_in_vain() {
        for early in [false, true] {
            let mut config = config();
            config.early = early;
            let mut fps = FrameRate::new(0.0, Time(0), true);
            let (mut feedback, mut counted, mut second) = (Feedback::new(20.0), 0.0, 0);
            let mut play = |frames: f64| {
                counted += frames;
                second += 1;
                fps.sample(counted, Time(second * SECOND), 0.8);
                feedback.normal(&fps, true, &config);
                feedback.share
            };
            let played = [24.0, 25.0, 23.0, 24.0, 23.0, 25.0, 24.0, 24.0, 23.0, 24.0, 24.0, 25.0];
            let shares = played.map(&mut play);
            // Once it is tried whether there are more.
            assert_eq!((shares[3], shares[11]), (1000, 1000), "{shares:?}");
            assert_eq!(shares.iter().max(), Some(if early { &2000 } else { &1000 }));
            let shares: Vec<u32> = (0..3).map(|_| play(22.0)).collect();
            assert_eq!(shares[2], if early { 2000 } else { 1000 }, "{shares:?}");
            let shares: Vec<u32> = (0..8).map(|_| play(24.0)).collect();
            assert_eq!(shares[7], if early { 2000 } else { 1000 }, "it helped: {shares:?}");
            // Another film, of fewer frames.
            let highest = (0..60).map(|_| play(15.0)).max();
            assert!(highest <= Some(6000), "{highest:?}");
            let before = play(15.0);
            assert!((0..60).all(|_| play(15.0) == before), "it is as it is");
        }
    }

    /// Beyond the paper: a film that is starved from its first frame on, and shows 22 of 24 frames a second
    /// with twice its share.
    #[test]
    fn it_is_tried_once_whether_a_larger_share_gives_more_frames() {
        for (early, needed) in [(true, 1000), (true, 2500), (true, 4500), (false, 2500)] {
            let mut config = config();
            config.early = early;
            let mut fps = FrameRate::new(0.0, Time(0), true);
            let (mut feedback, mut counted) = (Feedback::new(20.0), 0.0);
            feedback.share = 2000;
            let shares: Vec<u32> = (1..=60)
                .map(|second| {
                    // As much as that gives, and a frame more or less.
                    let frames = if feedback.share >= needed { 24.0 } else { 22.0 };
                    counted += frames + if second % 2 == 0 { 0.5 } else { -0.5 };
                    fps.sample(counted, Time(second * SECOND), 0.8);
                    feedback.normal(&fps, true, &config);
                    feedback.share
                })
                .collect();
            let expected = if early && needed == 2500 { 3000 } else { 2000 };
            assert!(shares[40..].iter().all(|share| *share == expected), "{needed}: {shares:?}");
        }
    }

    /// A film whose rate its share does not bound: where nobody else wants the CPU, what is desired falls to
    /// what is seen (§5.2, the first two cases), and nothing is taken from anybody.
    #[test]
    fn alone_only_the_desired_rate_adapts() {
        let (config, mut feedback) = (config(), Feedback::new(20.0));
        (0..6).for_each(|_| feedback.normal(&rate(12.0, 12.0), false, &config));
        assert_eq!(state(feedback), (1000, 12.0, false, 0));
    }

    /// §5.2, footnote 5: EWMA = (1 - w) EWMA + w value, with 0.8 for what is drawn and 0.2 for a GPU.
    #[test]
    fn rates_are_averaged_as_the_paper_does() {
        for (weight, expected) in [(0.8, [19.2, 23.04, 4.608]), (0.2, [4.8, 8.64, 6.912])] {
            let mut fps = FrameRate::new(0.0, Time(0), false);
            let counts = [24.0, 48.0, 48.0];
            for (second, (counted, expected)) in (1..).zip(counts.into_iter().zip(expected)) {
                let before = fps.current;
                fps.sample(counted, Time(second * SECOND), weight);
                assert!((fps.current - expected).abs() < 1e-9, "{fps:?}, not {expected}");
                assert_eq!(fps.previous, before);
            }
        }
    }

    /// Beyond the paper: what is first measured is the average, and is no rise.
    #[test]
    fn an_average_that_is_seeded_begins_with_the_first_rate() {
        let mut fps = FrameRate::new(100.0, Time(0), true);
        let mut game = Feedback::new(70.0);
        fps.sample(150.0, Time(SECOND), 0.2);
        assert_eq!((fps.previous, fps.current), (50.0, 50.0));
        game.normal(&fps, true, &config());
        assert_eq!(game.share, 2000, "a second, and not as long as an average rises");
        fps.sample(220.0, Time(2 * SECOND), 0.2);
        assert_eq!((fps.previous, fps.current), (50.0, 54.0));
    }
}
