//! The keys of an entry whose `run` says what it is.

/// The keys that a flat entry has, which depend on its `run`.
pub(super) struct Keys {
    /// What the entry is.
    pub(super) entry: &'static str,
    pub(super) run: &'static str,
    pub(super) always: &'static [&'static str],
    pub(super) needed: &'static [&'static str],
    pub(super) optional: &'static [&'static str],
}

impl Keys {
    /// Refuses a key that is set and that the entry does not have.
    pub(super) fn refuse_others(&self, set: &[(&'static str, bool)]) -> Result<(), String> {
        let own = || self.always.iter().chain(self.needed).chain(self.optional);
        let other = set.iter().find(|(key, set)| *set && !own().any(|own| own == key));
        other.map_or(Ok(()), |(key, _)| {
            Err(format!("a {} with run = {:?} has {} only, not `{key}`", self.entry, self.run, listed(own())))
        })
    }

    /// That one is missing which it needs.
    pub(super) fn lacks(&self) -> String {
        format!("a {} with run = {:?} needs {}", self.entry, self.run, listed(self.needed))
    }
}

/// "`a`, `b` and `c`".
fn listed<'a>(keys: impl IntoIterator<Item = &'a &'static str>) -> String {
    let keys: Vec<_> = keys.into_iter().map(|key| format!("`{key}`")).collect();
    match keys.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
