//! The columns that the rows of every sweep have.

use crate::table::Kind;

/// Columns before those of the parameters.
pub(crate) const FIRST: [(&str, Kind); 1] = [("run", Kind::Whole)];

/// Columns after those of the parameters.
pub(crate) const LAST: [(&str, Kind); 25] = [
    ("seed", Kind::Whole),
    ("arm", Kind::Text),
    ("vm", Kind::Text),
    ("workload", Kind::Text),
    ("requests", Kind::Whole),
    ("mean_ms", Kind::Number),
    ("p50_ms", Kind::Number),
    ("p95_ms", Kind::Number),
    ("p99_ms", Kind::Number),
    ("max_ms", Kind::Number),
    ("cpu_ms", Kind::Number),
    ("cpu_share", Kind::Number),
    ("per_s", Kind::Number),
    ("unit", Kind::Text),
    ("operation_ms", Kind::Number),
    ("frames_per_s", Kind::Number),
    ("dropped", Kind::Number),
    ("boosts", Kind::Whole),
    ("boost_hits", Kind::Whole),
    ("request_boosts", Kind::Whole),
    ("unanswered_boosts", Kind::Whole),
    ("seconds", Kind::Number),
    ("version", Kind::Text),
    ("commit", Kind::Text),
    ("error", Kind::Text),
];

/// How many of these a run that failed has not: from `vm` to `seconds`.
pub(crate) const MEASURED: usize = 20;

/// The numbers that a run measures.
pub(crate) fn measures() -> impl Iterator<Item = &'static str> {
    let measured =
        LAST.iter().skip_while(|(name, _)| *name != "requests").take_while(|(name, _)| *name != "version");
    measured.filter(|(_, kind)| *kind != Kind::Text).map(|(name, _)| *name)
}
