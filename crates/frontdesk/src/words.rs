//! Numbers, names and tables as the commands write them.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, presets};

/// What a thread that cannot be had is told as.
pub(crate) const NO_THREAD: &str = "cannot start a thread; there are too many processes or too little memory (ulimit -u, and of a service TasksMax=)";

/// A fraction in per cent.
pub(crate) fn percent(ratio: f64) -> String {
    let tenths = format!("{:.1}", ratio * 100.0);
    format!("{} %", tenths.strip_suffix(".0").unwrap_or(&tenths))
}

/// A time in the unit that suits it.
pub(crate) fn duration(ns: u64) -> String {
    const UNITS: [(f64, &str); 5] = [(3600e9, "h"), (60e9, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    if ns == 0 {
        return "0".to_owned();
    }
    let time = ns as f64;
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| time >= *unit).unwrap_or((1e3, "µs"));
    let value = time / unit;
    if value < 9.95 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

/// A time that somebody chose, exactly: in the largest unit in which it has at most three decimals, or whole
/// minutes.
pub(crate) fn time(ns: u64) -> String {
    // Each with what it has to be a multiple of.
    const UNITS: [(u64, u64, &str); 5] = [
        (60_000_000_000, 60_000_000_000, "min"),
        (1_000_000_000, 1_000_000, "s"),
        (1_000_000, 1_000, "ms"),
        (1_000, 1, "µs"),
        (1, 1, "ns"),
    ];
    let fits = |(unit, step, _): &(u64, u64, _)| ns >= *unit && ns.is_multiple_of(*step);
    let (unit, _, name) = UNITS.into_iter().find(fits).unwrap_or((1, 1, "ns"));
    let decimals = format!("{:03}", (ns % unit) * 1000 / unit);
    match decimals.trim_end_matches('0') {
        "" => format!("{} {name}", ns / unit),
        decimals => format!("{}.{decimals} {name}", ns / unit),
    }
}

/// [`duration`] for a time that may be negative.
pub(crate) fn signed_duration(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", duration(ns.unsigned_abs()))
}

/// A number of bytes in the unit that suits it.
pub(crate) fn bytes(count: usize) -> String {
    let kilobytes = count as f64 / 1024.0;
    if kilobytes < 1024.0 { format!("{kilobytes:.0} KB") } else { format!("{:.1} MB", kilobytes / 1024.0) }
}

/// A number of things.
pub(crate) fn count(count: impl Into<u64>, one: &str, many: &str) -> String {
    match count.into() {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// A name that somebody else chose, without what a terminal would take for a command, and not longer than
/// fits.
pub(crate) fn name(name: &str) -> String {
    const MOST: usize = 40;
    let mut plain: String =
        name.chars().take(MOST).map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    if name.chars().nth(MOST).is_some() {
        plain.push('…');
    }
    plain
}

/// Text without control characters but the ends of lines.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { '?' } else { letter }).collect()
}

/// A table without lines.
pub(crate) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

/// A table, the first `texts` columns of which hold text and the others numbers; folded where it would be
/// wider than `width`.
pub(crate) fn table<const N: usize>(
    header: &[&str; N],
    texts: usize,
    width: Option<u16>,
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(presets::NOTHING.header_separator(rule)).set_header(header);
    rows.for_each(|row| {
        table.add_row(row);
    });
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index >= texts {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(width) = width {
        table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.force_no_tty();
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_that_suit_them() {
        let durations =
            [0, 80_000, 999_949, 9_960_000, 1_200_000_000, 59_000_000_000, 7_200_000_000_000].map(duration);
        assert_eq!(durations, ["0", "80 µs", "1000 µs", "10 ms", "1.2 s", "59 s", "2.0 h"]);
        assert_eq!(signed_duration(-1_500_000), "-1.5 ms");
        let times = [15_800_000, 200_000, 600_000_000_000, 90_000_000_000, 1_000_000_001, 1_050, 0].map(time);
        assert_eq!(times, ["15.8 ms", "200 µs", "10 min", "90 s", "1000000.001 µs", "1.05 µs", "0 ns"]);
        assert_eq!([0.0, 0.004, 0.125, 1.0].map(percent), ["0 %", "0.4 %", "12.5 %", "100 %"]);
        assert_eq!([2048, 3 << 20].map(bytes), ["2 KB", "3.0 MB"]);
        assert_eq!([count(1u32, "read", "reads"), count(3u32, "read", "reads")], ["1 read", "3 reads"]);
    }

    #[test]
    fn a_guest_cannot_write_to_the_terminal() {
        assert_eq!(name("\x1b[2Jsshd\n"), "?[2Jsshd?");
        assert_eq!(name(&"x".repeat(100)).chars().count(), 41);
    }
}
