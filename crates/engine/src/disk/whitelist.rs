//! Names that can be trusted (§3.2.2): in one desktop environment the same names are the same applications,
//! so that what was found of one VM's tells of the others'.
//!
//! Guests say what their tasks are called, and may lie: it does not matter, for the limiter bounds what a VM
//! can gain.

use super::config::DiskConfig;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Most names that are known; those that were not found for longest are forgotten.
const NAMES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Identifications of a name, after which both counts are halved: names can change what they mean.
const MANY: u32 = 1 << 10;

/// What was found of a name.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    identifications: u32,
    interactive: u32,
}

#[derive(Debug)]
pub(super) struct WhiteList {
    names: LruCache<Arc<str>, Found>,
}

impl Default for WhiteList {
    fn default() -> Self {
        WhiteList { names: LruCache::new(NAMES) }
    }
}

impl WhiteList {
    /// An application of this name was looked at.
    pub(super) fn identified(&mut self, name: &Arc<str>, interactive: bool) {
        let found = self.names.get_or_insert_mut(name.clone(), Found::default);
        found.identifications += 1;
        found.interactive += u32::from(interactive);
        if found.identifications >= MANY {
            found.identifications /= 2;
            found.interactive /= 2;
        }
    }

    pub(super) fn trusts(&self, name: &str, config: &DiskConfig) -> bool {
        self.names.peek(name).is_some_and(|found| {
            let rate = f64::from(found.interactive) / f64::from(found.identifications);
            found.identifications >= config.identifications && rate >= config.identified
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_needs_many_identifications_and_most_of_them_interactive() {
        let config = DiskConfig::default();
        let mut list = WhiteList::default();
        let [writer, backup] = ["writer", "backup"].map(Arc::from);
        for time in 0..8 {
            assert!(!list.trusts("writer", &config), "after {time}");
            list.identified(&writer, time != 3);
            list.identified(&backup, time > 2);
        }
        assert!(list.trusts("writer", &config), "7 of 8");
        assert!(!list.trusts("backup", &config), "5 of 8");
        (0..2).for_each(|_| list.identified(&writer, false));
        assert!(!list.trusts("writer", &config), "7 of 10");
    }

    #[test]
    fn names_are_bounded_and_so_are_counts() {
        let mut list = WhiteList::default();
        let name: Arc<str> = Arc::from("writer");
        (0..10_000).for_each(|_| list.identified(&name, true));
        assert!(list.names.peek("writer").unwrap().identifications < MANY);
        (0..5_000).for_each(|number| list.identified(&Arc::from(number.to_string()), true));
        assert_eq!(list.names.len(), NAMES.get());
    }
}
