//! What a study found: numbers of each case of each arm, one per repeat, and what becomes of them.

use frontdesk_scenario::{
    Bar, Check, Figure, Mark, NumberTable, Series, Study, StudyCheck, StudyMeasure, float, median,
};
use indexmap::{IndexMap, IndexSet};

/// Points that a line has at most.
const MOST_POINTS: usize = 200;
/// Bars of a histogram.
const BINS: usize = 25;

/// Numbers by arm and case, then by column: one for each repeat.
#[derive(Debug, Default)]
pub(super) struct Findings {
    rows: IndexMap<(String, String), IndexMap<&'static str, Vec<f64>>>,
}

impl Findings {
    pub(super) fn add(&mut self, arm: &str, case: &str, column: &'static str, value: f64) {
        let row = self.rows.entry((arm.to_owned(), case.to_owned())).or_default();
        row.entry(column).or_default().push(value);
    }

    pub(super) fn measured(&mut self, arm: &str, case: &str, measure: StudyMeasure, value: f64) {
        self.add(arm, case, measure.key(), value);
    }

    /// The median over the repeats.
    pub(super) fn median(&self, arm: &str, case: &str, column: &str) -> Option<f64> {
        median(self.rows.get(&(arm.to_owned(), case.to_owned()))?.get(column)?.iter().copied())
    }

    /// All of it. `title` says what the cases are.
    pub(super) fn table(&self, title: &str) -> NumberTable {
        let columns: IndexSet<&str> = self.rows.values().flat_map(IndexMap::keys).copied().collect();
        let rows = self.rows.iter().map(|((arm, case), numbers)| {
            let numbers = columns.iter().map(|column| median(numbers.get(column)?.iter().copied()));
            (vec![arm.clone(), case.clone()], numbers.collect())
        });
        NumberTable {
            title: format!("{title} (median over the repeats)"),
            names: vec!["arm".to_owned(), "case".to_owned()],
            rows: rows.collect(),
            columns: columns.iter().map(|column| label(column).to_owned()).collect(),
        }
    }

    pub(super) fn checks(&self, study: &Study) -> Vec<Check> {
        let repeats = usize::try_from(study.repeats).unwrap_or(usize::MAX);
        let checks = study.checks.iter().filter_map(|check| {
            let bar = check.bar()?;
            let values: Vec<f64> = (0..repeats).map_while(|repeat| self.worst(check, bar, repeat)).collect();
            Some(Check::median(check.name.as_str(), &values, bar))
        });
        checks.collect()
    }

    /// The value of a check in a repeat: of its case, or of the worst.
    fn worst(&self, check: &StudyCheck, bar: Bar, repeat: usize) -> Option<f64> {
        let number = |arm: &String, case: &String| {
            let row = self.rows.get(&(arm.clone(), case.clone()))?;
            row.get(check.measure.key())?.get(repeat).copied()
        };
        let cases = self.rows.keys().filter(|(arm, case)| {
            *arm == check.arm && check.case.as_ref().is_none_or(|wanted| wanted == case)
        });
        let values = cases.filter_map(|(arm, case)| {
            let value = number(arm, case)?;
            Some(match &check.over {
                Some(other) => ratio(value, number(other, case)?),
                None => value,
            })
        });
        values.reduce(match bar {
            Bar::AtMost(_) => f64::max,
            Bar::AtLeast(_) => f64::min,
        })
    }
}

/// Two that are both nothing are alike.
fn ratio(of: f64, over: f64) -> f64 {
    if of == over { 1.0 } else { of / over }
}

/// What a column is, for a reader; short, for there are many.
fn label(column: &str) -> &str {
    match column {
        "median-error" => "error %",
        "shortfall" => "short %",
        "overrun" => "over %",
        "miss-rate" => "missed %",
        "stall-rate" => "in stalls %",
        "miss-time" => "worst %",
        "reaction" => "p99, ms",
        "daemon-cpu" => "daemon, % of a CPU",
        "kept" => "rate kept",
        other => other,
    }
}

/// The distribution of samples of each arm, in percent.
pub(super) fn distribution(title: String, x: &str, log_x: bool, arms: &IndexMap<String, Vec<f64>>) -> Figure {
    let series = arms.iter().map(|(arm, samples)| {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let stride = sorted.len().div_ceil(MOST_POINTS).max(1);
        let of = float_len(sorted.len());
        let last = sorted.len().saturating_sub(1);
        let kept = sorted.iter().enumerate().filter(|(index, _)| index % stride == 0 || *index == last);
        let points = kept.map(|(index, value)| (*value, float_len(index + 1) / of * 100.0));
        Series { name: arm.clone(), points: points.collect() }
    });
    let y = "at most that, %".to_owned();
    Figure::Chart { title, x: x.to_owned(), log_x, y, mark: Mark::Line, series: series.collect() }
}

/// How many samples of each arm are how large; `None` if there are none.
pub(super) fn histogram(title: String, x: &str, arms: &IndexMap<String, Vec<f64>>) -> Option<Figure> {
    let most = arms.values().flatten().copied().reduce(f64::max)?;
    let width = most / float_len(BINS);
    let series = arms.iter().map(|(arm, samples)| {
        let mut counts = [0_usize; BINS];
        for sample in samples {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let bin = (sample / width) as usize;
            counts[bin.min(BINS - 1)] += 1;
        }
        let points = counts.iter().enumerate();
        let points = points.map(|(bin, count)| ((float_len(bin) + 0.5) * width, float_len(*count)));
        Series { name: arm.clone(), points: points.collect() }
    });
    let (x, y) = (x.to_owned(), "missed deadlines".to_owned());
    Some(Figure::Chart { title, x, log_x: false, y, mark: Mark::Bar, series: series.collect() })
}

fn float_len(count: usize) -> f64 {
    float(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(case: Option<&str>, over: Option<&str>) -> StudyCheck {
        StudyCheck {
            name: "it".to_owned(),
            measure: StudyMeasure::Shortfall,
            arm: "ours".to_owned(),
            case: case.map(str::to_owned),
            over: over.map(str::to_owned),
            at_most: Some(1.0),
            at_least: None,
        }
    }

    #[test]
    fn a_check_is_of_its_case_or_the_worst_and_over_the_same_of_another_arm() {
        let mut findings = Findings::default();
        for (arm, case, value) in
            [("ours", "a", 2.0), ("ours", "b", 3.0), ("theirs", "a", 8.0), ("theirs", "b", 6.0)]
        {
            findings.measured(arm, case, StudyMeasure::Shortfall, value);
        }
        let worst = |case, over| findings.worst(&check(case, over), Bar::AtMost(1.0), 0);
        assert_eq!(worst(Some("a"), None), Some(2.0));
        assert_eq!(worst(None, None), Some(3.0));
        assert_eq!(worst(None, Some("theirs")), Some(0.5));
        assert_eq!(worst(Some("c"), None), None);
        assert_eq!(findings.worst(&check(None, None), Bar::AtLeast(1.0), 0), Some(2.0));
        assert_eq!(findings.worst(&check(None, None), Bar::AtMost(1.0), 1), None, "no second repeat");
    }

    #[test]
    fn a_histogram_counts_every_sample_once() {
        let arms = IndexMap::from([("ours".to_owned(), vec![0.1, 0.2, 5.0, 5.0])]);
        let Some(Figure::Chart { series, .. }) = histogram("t".into(), "x", &arms) else {
            panic!("no figure")
        };
        let counts: Vec<f64> = series[0].points.iter().map(|(_, count)| *count).collect();
        assert_eq!((counts[0], counts[BINS - 1], counts.iter().sum::<f64>()), (1.0, 2.0, 4.0));
        assert_eq!(histogram("t".into(), "x", &IndexMap::new()), None);
    }

    #[test]
    fn a_distribution_ends_at_everything() {
        let samples = (0..1000).map(f64::from).collect();
        let arms = IndexMap::from([("ours".to_owned(), samples)]);
        let Figure::Chart { series, .. } = distribution("t".into(), "x", false, &arms) else {
            panic!("a map")
        };
        assert_eq!(series[0].points.last(), Some(&(999.0, 100.0)));
        assert!(series[0].points.len() <= MOST_POINTS + 1);
    }
}
