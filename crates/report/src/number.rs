//! Numbers as people read them.

use frontdesk_scenario::{Bar, Check, Latency, NumberTable, Rate, Unit};
use std::ops::RangeInclusive;

/// About three significant digits: 0.012, 1.15, 74.8, 1234, 5.21 M.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 999_950.0 {
        format!("{:.2} M", value / 1e6)
    } else if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 {
        format!("{value:.2}")
    } else if size >= 0.000_5 || size == 0.0 {
        format!("{value:.3}")
    } else {
        format!("{value:.1e}")
    }
}

/// A number without trailing zeros, for bars and ticks: what a person wrote, not what was measured.
pub(crate) fn trimmed(value: f64) -> String {
    let text = number(value);
    let (digits, unit) = text.split_at(text.find([' ', 'e']).unwrap_or(text.len()));
    if digits.contains('.') {
        format!("{}{unit}", digits.trim_end_matches('0').trim_end_matches('.'))
    } else {
        text
    }
}

/// A number, or a dash for what was not measured.
pub(crate) fn optional(value: Option<f64>) -> String {
    value.map_or_else(dash, number)
}

/// The numbers of each row of a table. A column of nothing but whole ones counts something.
pub(crate) fn cells(of: &NumberTable) -> Vec<Vec<String>> {
    let in_column = |column: usize| of.rows.iter().filter_map(move |(_, row)| *row.get(column)?);
    let counts = |column| in_column(column).all(|value| value.fract() == 0.0 && value.abs() < 1e6);
    let columns = of.rows.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
    let counts: Vec<bool> = (0..columns).map(counts).collect();
    let text = |(value, counts): (&Option<f64>, &bool)| match value {
        Some(count) if *counts => format!("{count:.0}"),
        other => optional(*other),
    };
    of.rows.iter().map(|(_, row)| row.iter().zip(&counts).map(text).collect()).collect()
}

/// A fraction in percent, with one decimal.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// A dash: not measured.
pub(crate) fn dash() -> String {
    "–".to_owned()
}

/// Median, 99th percentile and largest, as "50 / 91 / 115".
pub(crate) fn latency(latency: Option<Latency>) -> String {
    let show = |of: Latency| format!("{} / {} / {}", number(of.p50), number(of.p99), number(of.max));
    latency.map_or_else(dash, show)
}

/// Throughput in the unit in which it is shown.
pub(crate) fn scaled(rate: Rate) -> (f64, &'static str) {
    match rate.unit {
        Unit::Operations => (rate.per_s, "ops/s"),
        Unit::Bytes => (rate.per_s / 1e6, "MB/s"),
    }
}

/// Throughput, as "12.5 MB/s".
pub(crate) fn throughput(rate: Rate) -> String {
    let (value, unit) = scaled(rate);
    format!("{} {unit}", number(value))
}

/// Smallest and largest, as "0.98 – 1.02".
pub(crate) fn extent(extent: RangeInclusive<f64>) -> String {
    format!("{} – {}", number(*extent.start()), number(*extent.end()))
}

/// Smallest and largest of some values; `None` if there are none.
pub(crate) fn extent_of(values: impl IntoIterator<Item = f64>) -> Option<RangeInclusive<f64>> {
    let extend = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    let (low, high) = values.into_iter().fold((f64::INFINITY, f64::NEG_INFINITY), extend);
    (low <= high).then_some(low..=high)
}

/// The spread of a check, or a dash.
pub(crate) fn spread(check: &Check) -> String {
    check.spread.map_or_else(dash, |(low, high)| extent(low..=high))
}

/// The bar of a check, as "≤ 1.15".
pub(crate) fn bar(bar: Bar) -> String {
    match bar {
        Bar::AtMost(limit) => format!("≤ {}", trimmed(limit)),
        Bar::AtLeast(limit) => format!("≥ {}", trimmed(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_three_digits_at_every_size() {
        let shown =
            [0.0, 0.000_04, 0.012_34, 0.9994, 0.9996, 1.1512, 9.996, 74.75, 99.96, 1234.4, 5_214_000.0];
        let shown = shown.map(number).join(" ");
        assert_eq!(shown, "0.000 4.0e-5 0.012 0.999 1.00 1.15 10.0 74.8 100 1234 5.21 M");
    }

    #[test]
    fn trailing_zeros_go_and_others_stay() {
        let shown = [0.0, 0.1, 1.15, 20.0, 200.0, 5e6, 0.000_02].map(trimmed).join(" ");
        assert_eq!(shown, "0 0.1 1.15 20 200 5 M 2e-5");
    }

    #[test]
    fn throughput_has_the_unit_that_it_counts() {
        let shown = [Unit::Operations, Unit::Bytes].map(|unit| throughput(Rate { per_s: 1_234_500.0, unit }));
        assert_eq!(shown, ["1.23 M ops/s", "1.23 MB/s"]);
    }

    #[test]
    fn the_extent_ignores_what_is_not_a_number() {
        assert_eq!(extent_of([2.0, f64::NAN, 1.0]), Some(1.0..=2.0));
        assert_eq!(extent_of([]), None);
    }
}
