//! The profile: which VMs of a scenario are desktops, and in what proportion.

use crate::error::CapacityError;
use frontdesk_scenario::{Overrides, Scenario};
use indexmap::IndexMap;
use serde::Deserialize;
use std::path::Path;

/// VMs of an entry at most, as in a scenario.
const MOST_OF_AN_ENTRY: u32 = 64;

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    /// The scenario, relative to the profile.
    scenario: String,
    /// Desktops of each kind, in proportion: the name of a VM entry, and its part.
    mix: IndexMap<String, u32>,
}

/// Which VMs of a scenario are desktops, and in what proportion. All other VMs are there whatever the number
/// of desktops.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The scenario, with the arms that are wanted, and without checks.
    pub scenario: Scenario,
    /// The VM entries that are desktops, and their parts of the mix.
    pub mix: IndexMap<String, u32>,
}

impl Profile {
    /// Reads a profile and its scenario, which `overrides` change.
    ///
    /// # Errors
    /// [`CapacityError`] names the file, the key and what is allowed.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Profile, CapacityError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| CapacityError::Read { path: path.to_owned(), source })?;
        let file: ProfileFile = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let (path, line) = (path.to_owned(), before.matches('\n').count() + 1);
            CapacityError::Syntax { path, line, message: error.message().to_owned() }
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let scenario = Scenario::load(&folder.join(&file.scenario), overrides)?;
        Profile::of(scenario, file.mix, path)
    }

    fn of(mut scenario: Scenario, mix: IndexMap<String, u32>, path: &Path) -> Result<Profile, CapacityError> {
        let wrong = |key: &str, message: String| {
            Err(CapacityError::Key { path: path.to_owned(), key: key.to_owned(), message })
        };
        let entries: Vec<&str> = scenario.vms.iter().map(|vm| vm.name.as_str()).collect();
        for (name, part) in &mix {
            let key = format!("mix.{name}");
            if !entries.contains(&name.as_str()) {
                let message = format!("there is no such VM; allowed is {}", entries.join(", "));
                return wrong(&key, message);
            }
            if !(1..=1000).contains(part) {
                return wrong(&key, format!("{part}: allowed is 1 to 1000"));
            }
        }
        if mix.is_empty() {
            return wrong("mix", format!("at least one VM is a desktop; allowed is {}", entries.join(", ")));
        }
        if !mix.keys().any(|name| scenario.loads.iter().any(|load| load.vm == *name)) {
            return wrong("mix", "no desktop is asked for anything: none has a [[load]]".to_owned());
        }
        // Bars are of the scenario as it stands.
        scenario.checks = Default::default();
        Ok(Profile { scenario, mix })
    }

    /// How many desktops of each kind there are of so many, in the order of the mix: as near to the
    /// proportions as whole numbers can be (largest remainders), and the first of those that are as near.
    #[must_use]
    pub fn counts(&self, desktops: u32) -> Vec<u32> {
        let all: u64 = self.mix.values().map(|part| u64::from(*part)).sum();
        let exact = |part: &u32| u64::from(*part) * u64::from(desktops);
        let mut counts: Vec<u32> =
            self.mix.values().map(|part| u32::try_from(exact(part) / all).unwrap_or(u32::MAX)).collect();
        let mut by_rest: Vec<usize> = (0..counts.len()).collect();
        by_rest.sort_by_key(|index| std::cmp::Reverse(exact(&self.mix[*index]) % all));
        let missing = desktops - counts.iter().sum::<u32>();
        by_rest.into_iter().take(missing as usize).for_each(|index| counts[index] += 1);
        counts
    }

    /// The largest number of desktops that can be modelled: no kind has more than 64.
    #[must_use]
    pub fn most(&self) -> u32 {
        let fits = |desktops: &u32| self.counts(*desktops).iter().all(|count| *count <= MOST_OF_AN_ENTRY);
        (1..).take_while(fits).last().unwrap_or(1)
    }

    /// The scenario with so many desktops.
    #[must_use]
    pub fn scenario(&self, desktops: u32) -> Scenario {
        let mut scenario = self.scenario.clone();
        for (name, count) in self.mix.keys().zip(self.counts(desktops)) {
            if count == 0 {
                scenario.remove_vm(name);
            }
            let entry = scenario.vms.iter_mut().find(|vm| vm.name == *name);
            entry.into_iter().for_each(|vm| vm.count = u16::try_from(count).unwrap_or(u16::MAX));
        }
        scenario
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A profile of these parts, of desktops that are asked.
    fn profile(parts: &[u32]) -> Profile {
        let entry = |index: usize| format!("kind-{index}");
        let mut text =
            "name = \"x\"\ndescription = \"X.\"\nrepeats = 1\nduration = \"1s\"\nwarmup = \"0s\"\n\
                        think_scale = 1.0\nguest = { kernel = \"6.1-cloud\" }\n\
                        host = { vm_cpus = [0], client_cpus = [1] }\narms.stock = {}\n"
                .to_owned();
        for index in 0..parts.len() {
            text += &format!(
                "[[vm]]\nname = \"{0}\"\nworkloads = [{{ name = \"e\", run = \"echo\", protocol = \"udp\", \
                 port = 7 }}]\n[[load]]\nvm = \"{0}\"\nprotocol = \"udp\"\nport = 7\nbytes = 40\n\
                 think = [\"10ms\", \"20ms\"]\n",
                entry(index)
            );
        }
        let scenario = Scenario::parse(&text, Path::new("x.toml"), &Overrides::default()).unwrap();
        let mix = parts.iter().enumerate().map(|(index, part)| (entry(index), *part)).collect();
        Profile::of(scenario, mix, Path::new("p.toml")).unwrap()
    }

    #[test]
    fn a_mix_is_kept_as_far_as_whole_desktops_can() {
        let profile = profile(&[6, 3, 1]);
        assert_eq!(profile.counts(1), [1, 0, 0]);
        assert_eq!(profile.counts(2), [1, 1, 0]);
        assert_eq!(profile.counts(5), [3, 2, 0], "the first of those that are as near");
        assert_eq!(profile.counts(10), [6, 3, 1]);
        assert_eq!(profile.most(), 107);
        let scenario = profile.scenario(2);
        assert_eq!(scenario.vm_names(), ["kind-0", "kind-1"]);
        assert_eq!(scenario.loads.len(), 2);
        assert_eq!(profile.scenario(10).vm_names().len(), 10);
    }

    proptest! {
        #[test]
        fn none_is_forgotten_and_none_is_off_by_one(
            parts in proptest::collection::vec(1_u32..1000, 1..5),
            desktops in 1_u32..200,
        ) {
            let profile = profile(&parts);
            let counts = profile.counts(desktops);
            prop_assert_eq!(counts.iter().sum::<u32>(), desktops);
            let all: u32 = parts.iter().sum();
            for (count, part) in counts.iter().zip(&parts) {
                let exact = f64::from(desktops) * f64::from(*part) / f64::from(all);
                prop_assert!((f64::from(*count) - exact).abs() < 1.0);
            }
        }
    }
}
