//! What is to be kept: `p95 <= 100 ms`.

use frontdesk_scenario::{Repeat, mean_and_deviation, quantile};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A limit of response times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Whose are looked at.
    pub whose: Whose,
    /// What of them.
    pub statistic: Statistic,
    /// The most that it may be.
    pub most: Duration,
}

/// Whose response times are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those of all desktops together.
    All,
    /// Those of the desktop that is worst off.
    Worst,
}

/// What is looked at of response times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// Their mean.
    Mean,
    /// What so many percent of them reach at most, by nearest rank. 1 to 100.
    Percentile(u8),
}

/// A text is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no limit: {1}; allowed is one like \"p95 <= 100 ms\", with p1 to p100 or mean, and \"worst \" \
     before it for the desktop that is worst off"
)]
pub struct LimitError(String, &'static str);

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        let wrong = |why| LimitError(text.to_owned(), why);
        let (of, most) = text.split_once("<=").ok_or_else(|| wrong("it has no <="))?;
        let most = humantime::parse_duration(most.trim())
            .map_err(|_| wrong("after <= stands no time with a unit"))?;
        let of = of.trim();
        let (whose, of) =
            of.strip_prefix("worst ").map_or((Whose::All, of), |of| (Whose::Worst, of.trim_start()));
        let percentile = || of.strip_prefix('p')?.parse().ok().filter(|percent| (1..=100).contains(percent));
        let statistic = match of {
            "mean" => Statistic::Mean,
            _ => Statistic::Percentile(percentile().ok_or_else(|| wrong("what is limited is not known"))?),
        };
        if most.is_zero() {
            return Err(wrong("nothing is answered in no time"));
        }
        Ok(Limit { whose, statistic, most })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} <= {}", self.what(), humantime::format_duration(self.most))
    }
}

impl Limit {
    /// What is limited, as in "worst p95".
    #[must_use]
    pub fn what(&self) -> String {
        let worst = if self.whose == Whose::Worst { "worst " } else { "" };
        match self.statistic {
            Statistic::Mean => format!("{worst}mean"),
            Statistic::Percentile(percent) => format!("{worst}p{percent}"),
        }
    }

    /// The most that is allowed, in milliseconds.
    #[must_use]
    pub fn most_ms(&self) -> f64 {
        self.most.as_secs_f64() * 1e3
    }

    /// What a run gave, in milliseconds. Who still waited at its end, and for longer than is allowed, counts
    /// with what that was until then. Infinite if somebody whose responses are looked at has none.
    #[must_use]
    pub fn measure(&self, run: &Repeat) -> f64 {
        let mut samples = run.samples_ms.clone();
        for (whose, waited) in &run.open_ms {
            for late in waited.iter().filter(|waited| **waited > self.most_ms()) {
                samples.entry(whose.clone()).or_default().push(*late);
            }
        }
        match self.whose {
            // Who was never answered is not made up for by the others.
            Whose::All if samples.values().any(Vec::is_empty) => f64::INFINITY,
            Whose::All => self.of(samples.into_values().flatten().collect()),
            Whose::Worst => {
                let of_each = samples.into_values().map(|samples| self.of(samples));
                of_each.max_by(f64::total_cmp).unwrap_or(f64::INFINITY)
            }
        }
    }

    fn of(self, mut samples: Vec<f64>) -> f64 {
        if samples.is_empty() {
            return f64::INFINITY;
        }
        match self.statistic {
            Statistic::Mean => mean_and_deviation(&samples).0,
            Statistic::Percentile(percent) => {
                samples.sort_by(f64::total_cmp);
                quantile(&samples, percent.into()).unwrap_or(f64::INFINITY)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written() {
        for (text, written) in [
            ("p95 <= 100 ms", "p95 <= 100ms"),
            ("p100<=1s", "p100 <= 1s"),
            (" worst  mean <= 20ms", "worst mean <= 20ms"),
        ] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_would_be_one() {
        for (text, why) in [
            ("p95 < 100 ms", "it has no <="),
            ("p95 <= 100", "after <= stands no time with a unit"),
            ("p0 <= 1 s", "what is limited is not known"),
            ("p101 <= 1 s", "what is limited is not known"),
            ("best p95 <= 1 s", "what is limited is not known"),
            ("mean <= 0 s", "nothing is answered in no time"),
        ] {
            let error = text.parse::<Limit>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("\"p95 <= 100 ms\""), "{error}");
        }
    }

    #[test]
    fn the_worst_is_that_of_one_desktop() {
        let mut run = Repeat::default();
        run.samples_ms.insert("a".to_owned(), vec![1.0; 98]);
        run.samples_ms.insert("b".to_owned(), vec![50.0, 60.0]);
        let measure = |limit: &str| limit.parse::<Limit>().unwrap().measure(&run);
        assert_eq!(measure("p95 <= 1 s"), 1.0);
        assert_eq!(measure("p99 <= 1 s"), 50.0);
        assert_eq!(measure("worst p95 <= 1 s"), 60.0);
        assert_eq!(measure("worst mean <= 1 s"), 55.0);
        run.samples_ms.insert("c".to_owned(), Vec::new());
        let limit: Limit = "worst p95 <= 1 s".parse().unwrap();
        assert_eq!(limit.measure(&run), f64::INFINITY, "who was never answered");
        let limit: Limit = "mean <= 1 s".parse().unwrap();
        assert_eq!(limit.measure(&run), f64::INFINITY, "nor do the others make up for that");
        run.open_ms.insert("c".to_owned(), vec![9_000.0]);
        assert_eq!("worst mean <= 1 s".parse::<Limit>().unwrap().measure(&run), 9_000.0, "who still waits");
        run.open_ms.insert("a".to_owned(), vec![900.0]);
        assert_eq!("p50 <= 1 s".parse::<Limit>().unwrap().measure(&run), 1.0, "nobody knows yet");
    }
}
