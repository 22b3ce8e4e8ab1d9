//! Ranges of values, and how points are drawn from them.

use frontdesk_scenario::float;
use frontdesk_sim::Rng;
use serde::Deserialize;
use std::time::Duration;
use toml::Value;

/// How values lie between the ends of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Scale {
    /// Any as often as any other.
    #[default]
    Linear,
    /// Each factor as often as any other.
    Log,
}

/// A range as a sweep file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    from: Value,
    to: Value,
    #[serde(default)]
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Whole,
    Number,
    /// Nanoseconds.
    Time,
}

/// A range of values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    unit: Unit,
    from: f64,
    to: f64,
    scale: Scale,
}

impl Range {
    /// Reads `{ from = ..., to = ..., scale = "log" }`: whole numbers, numbers, or times as text.
    ///
    /// # Errors
    /// What is wrong, and what would be accepted.
    pub(crate) fn parse(value: &Value) -> Result<Range, String> {
        let document = value.clone().try_into::<Document>();
        let Document { from, to, scale } = document.map_err(|error| error.message().to_owned())?;
        let (first, last) = (number(&from), number(&to));
        let (Some((first_unit, from)), Some((last_unit, to))) = (first, last) else {
            return Err("from and to are numbers, or times such as \"500us\"".to_owned());
        };
        let unit = match (first_unit, last_unit) {
            (one, other) if one == other => one,
            (Unit::Time, _) | (_, Unit::Time) => return Err("from and to are of one kind".to_owned()),
            _ => Unit::Number,
        };
        if from >= to || !from.is_finite() || !to.is_finite() {
            return Err("from is below to".to_owned());
        }
        if scale == Scale::Log && from <= 0.0 {
            return Err("with scale = \"log\", from is above 0".to_owned());
        }
        Ok(Range { unit, from, to, scale })
    }

    /// The value at a part of the range, 0 to below 1.
    fn at(self, part: f64) -> Value {
        // Of whole numbers the last has a part as large as the others'.
        let (from, to) = match self.unit {
            Unit::Whole => (self.from, self.to + 1.0),
            Unit::Number | Unit::Time => (self.from, self.to),
        };
        let value = match self.scale {
            Scale::Linear => from + part * (to - from),
            Scale::Log => from * (to / from).powf(part),
        };
        match self.unit {
            #[allow(clippy::cast_possible_truncation)] // Between two whole numbers.
            Unit::Whole => Value::Integer(value.floor().clamp(self.from, self.to) as i64),
            Unit::Number => Value::Float(six_digits(value).clamp(self.from, self.to)),
            Unit::Time => {
                let nanos = six_digits(value).round().clamp(self.from, self.to);
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between two durations.
                let time = Duration::from_nanos(nanos as u64);
                Value::String(humantime::format_duration(time).to_string())
            }
        }
    }
}

fn number(value: &Value) -> Option<(Unit, f64)> {
    match value {
        #[allow(clippy::cast_precision_loss)] // No key of a scenario needs such numbers.
        Value::Integer(whole) => Some((Unit::Whole, *whole as f64)),
        Value::Float(number) => Some((Unit::Number, *number)),
        Value::String(text) => {
            let nanos = u64::try_from(humantime::parse_duration(text).ok()?.as_nanos()).ok()?;
            Some((Unit::Time, float(nanos)))
        }
        _ => None,
    }
}

/// A number in six digits: readable, and the same whatever the last bits of a logarithm are.
fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drawing {
    /// Each by itself.
    Random,
    /// Each range is cut into as many equal parts as there are points, and each part has one (Latin
    /// hypercube).
    LatinHypercube,
}

/// Draws so many points, each with a value of each range. The same seed gives the same points.
pub(crate) fn draw(drawing: Drawing, ranges: &[Range], points: usize, seed: u64) -> Vec<Vec<Value>> {
    let mut drawn = vec![Vec::with_capacity(ranges.len()); points];
    for (stream, range) in (0..).zip(ranges) {
        let mut rng = Rng::new(seed, stream);
        let mut parts: Vec<u64> = (0..points as u64).collect();
        for last in (1..points).rev() {
            let other = usize::try_from(rng.uniform(0, last as u64)).unwrap_or(0);
            parts.swap(last, other);
        }
        for (point, part) in drawn.iter_mut().zip(parts) {
            const UNIT: u64 = 1 << 53;
            let random = float(rng.uniform(0, UNIT - 1)) / float(UNIT);
            point.push(range.at(match drawing {
                Drawing::Random => random,
                Drawing::LatinHypercube => (float(part) + random) / float(points as u64),
            }));
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Result<Range, String> {
        Range::parse(&text.parse().unwrap())
    }

    fn numbers(drawn: &[Vec<Value>]) -> Vec<f64> {
        drawn.iter().map(|point| number(&point[0]).unwrap().1).collect()
    }

    #[test]
    fn a_latin_hypercube_has_one_point_in_each_part_and_random_points_have_not() {
        let ranges =
            [range("{ from = 0.0, to = 20.0 }").unwrap(), range("{ from = 0.0, to = 1.0 }").unwrap()];
        let parts = |drawing| {
            let drawn = draw(drawing, &ranges, 20, 3);
            #[allow(clippy::cast_possible_truncation)]
            let mut parts: Vec<i64> = numbers(&drawn).iter().map(|number| number.floor() as i64).collect();
            assert_eq!(drawn, draw(drawing, &ranges, 20, 3));
            assert_ne!(drawn, draw(drawing, &ranges, 20, 4));
            let unsorted = parts.clone();
            parts.sort_unstable();
            assert_ne!(unsorted, parts, "points are in no order");
            parts
        };
        assert_eq!(parts(Drawing::LatinHypercube), (0..20).collect::<Vec<_>>());
        assert_ne!(parts(Drawing::Random), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn values_are_of_the_kind_of_the_ends_and_lie_between_them() {
        let whole = draw(Drawing::Random, &[range("{ from = 1, to = 3 }").unwrap()], 200, 1);
        let found: std::collections::BTreeSet<_> = whole.iter().map(|of| of[0].to_string()).collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["1", "2", "3"]);
        let times = range("{ from = \"100us\", to = \"10ms\", scale = \"log\" }").unwrap();
        let drawn = draw(Drawing::LatinHypercube, &[times], 100, 1);
        let nanos = numbers(&drawn);
        assert!(nanos.iter().all(|nanos| (1e5..=1e7).contains(nanos)), "{nanos:?}");
        // As many below the geometric mean as above it.
        assert_eq!(nanos.iter().filter(|nanos| **nanos < 1e6).count(), 50);
        let Value::String(text) = &drawn[0][0] else { panic!("{drawn:?}") };
        assert!(humantime::parse_duration(text).is_ok());
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for (text, says) in [
            ("{ from = 3, to = 1 }", "from is below to"),
            ("{ from = 0.0, to = 1.0, scale = \"log\" }", "from is above 0"),
            ("{ from = \"1ms\", to = 3 }", "of one kind"),
            ("{ from = \"x\", to = \"y\" }", "times such as"),
            ("{ from = 1 }", "missing field `to`"),
            ("{ from = 1, to = 2, skale = 3 }", "unknown field `skale`"),
        ] {
            let error = range(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
