//! Names that are close to one that there is not.

/// How alike two names must be, from 0 to 1, to be taken for one and the same misspelt.
const ALIKE: f64 = 0.75;

/// What a reader probably meant, to be appended to a message; empty if nothing is close. The closest comes
/// first.
pub(crate) fn did_you_mean<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let likeness = |name: &&'a str| strsim::jaro_winkler(unknown, name);
    let mut close: Vec<_> = known.into_iter().filter(|name| likeness(name) >= ALIKE).collect();
    close.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    close.truncate(3);
    let close: Vec<_> = close.into_iter().map(|name| format!("`{name}`")).collect();
    if close.is_empty() { String::new() } else { format!(" (did you mean {}?)", close.join(" or ")) }
}

/// The same for a message of serde that says what is unknown, and what would be expected.
pub(crate) fn did_you_mean_field(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((unknown, known)) if message.starts_with("unknown ") => {
            did_you_mean(unknown, known.iter().copied())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_comes_first_and_what_is_far_does_not_come() {
        let known = ["scheduler", "pcpus", "host_cpus", "costs"];
        assert_eq!(did_you_mean("sceduler", known), " (did you mean `scheduler`?)");
        assert_eq!(did_you_mean("cpus", ["pcpus", "vcpus", "tick"]), " (did you mean `vcpus` or `pcpus`?)");
        assert_eq!(did_you_mean("zebra", known), "");
        let message = "unknown field `cst`, expected one of `costs`, `guest`";
        assert_eq!(did_you_mean_field(message), " (did you mean `costs`?)");
        assert_eq!(did_you_mean_field("missing field `costs`"), "");
    }
}
