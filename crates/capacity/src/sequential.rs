//! How many runs it takes to know: Wald's sequential probability ratio test.
//!
//! Runs with other seeds are independent of each other; each keeps the limit or does not. Tested is whether a
//! run keeps it with a probability of [`KEEPS`] rather than [`DOUBTFUL`], with errors of [`WRONG`] at most
//! either way (A. Wald, "Sequential tests of statistical hypotheses", Annals of Mathematical Statistics 16,
//! 1945).

/// With this probability a run keeps the limit where it is held.
const KEEPS: f64 = 0.95;
/// With this one it does where it is not.
const DOUBTFUL: f64 = 0.5;
/// The likelihood ratio that decides is the inverse of this, and runs of the other kind reach that no more
/// often. So a search that tries 25 numbers, which is one up to 4096 desktops, is right with 95 %.
const WRONG: f64 = 0.002;
/// After so many runs nothing is decided any more.
pub const MOST_RUNS: u32 = 40;

/// What the runs say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The limit is kept.
    Kept,
    /// It is not.
    Broken,
    /// [`MOST_RUNS`] runs do not tell.
    Undecided,
}

/// The test, as far as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequential {
    runs: u32,
    log_ratio: f64,
}

impl Sequential {
    /// Another run; whether it `kept` the limit. Returns the verdict when there is one.
    pub fn add(&mut self, kept: bool) -> Option<Verdict> {
        self.runs += 1;
        self.log_ratio +=
            if kept { (KEEPS / DOUBTFUL).ln() } else { ((1.0 - KEEPS) / (1.0 - DOUBTFUL)).ln() };
        let bound = -WRONG.ln();
        match self.log_ratio {
            ratio if ratio >= bound => Some(Verdict::Kept),
            ratio if ratio <= -bound => Some(Verdict::Broken),
            _ if self.runs >= MOST_RUNS => Some(Verdict::Undecided),
            _ => None,
        }
    }
}

/// The probability, at least, that of so many tests one after the other none is wrong. Which numbers are
/// tried depends on the verdicts; but the first that is wrong is one of those that are tried if all are
/// right.
#[must_use]
pub(crate) fn confidence(tests: usize) -> f64 {
    (0..tests).fold(1.0, |left, _| f64::max(left - WRONG, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(mut kept: impl FnMut(u32) -> bool) -> (u32, Verdict) {
        let mut test = Sequential::default();
        (1..).find_map(|run| Some((run, test.add(kept(run))?))).unwrap()
    }

    #[test]
    fn ten_that_keep_it_or_three_that_do_not_are_enough() {
        assert_eq!(verdict(|_| true), (10, Verdict::Kept));
        assert_eq!(verdict(|_| false), (3, Verdict::Broken));
        assert_eq!(verdict(|run| run != 1), (15, Verdict::Kept), "one that does not takes four more");
    }

    #[test]
    fn who_keeps_it_in_three_of_four_is_not_told_for_ever() {
        let (runs, _) = verdict(|run| run % 4 != 0);
        assert!(runs <= MOST_RUNS);
    }

    /// Of ten thousand tests of runs with a known probability, a pseudo-random sequence of them.
    #[test]
    fn it_is_wrong_in_one_of_five_hundred_at_most() {
        let mut state = 1_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f64::from(u32::try_from(state >> 32).unwrap()) / 2.0_f64.powi(32)
        };
        for (probability, wrong) in [(KEEPS, Verdict::Broken), (DOUBTFUL, Verdict::Kept)] {
            let wrong = (0..10_000).filter(|_| verdict(|_| random() < probability).1 == wrong).count();
            assert!(wrong <= 30, "{wrong} of 10,000 with {probability}");
        }
    }

    #[test]
    fn errors_of_several_tests_add_up() {
        for (tests, least) in [(0, 1.0), (1, 0.998), (25, 0.95), (500, 0.0), (501, 0.0)] {
            assert!((confidence(tests) - least).abs() < 1e-9, "{tests}: {}", confidence(tests));
        }
    }
}
