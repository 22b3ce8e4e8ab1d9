//! Sets of CPUs, and how the vCPUs are divided (vAMP §3.3).

use std::fmt;

/// A set of the first 64 CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cpus(pub(crate) u64);

impl Cpus {
    /// Reads what the kernel writes: groups of 32 bits in hexadecimal digits, the highest first. `None` if it
    /// is none, or there are CPUs beyond the first 64.
    pub(crate) fn parse(text: &str) -> Option<Cpus> {
        let mut set = 0u64;
        for group in text.trim().split(',') {
            let group = u32::from_str_radix(group, 16).ok()?;
            if set >> 32 != 0 {
                return None;
            }
            set = set << 32 | u64::from(group);
        }
        Some(Cpus(set))
    }

    /// Those in both.
    pub(crate) fn and(self, other: Cpus) -> Cpus {
        Cpus(self.0 & other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn has(self, cpu: u32) -> bool {
        1u64.checked_shl(cpu).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Their numbers.
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |cpu| self.has(*cpu))
    }
}

/// As the kernel reads it.
impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x},{:08x}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

/// Who has which vCPUs in an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// For what a person waits for, and all else that is no background work.
    pub(crate) fast: Cpus,
    /// For background work.
    pub(crate) slow: Cpus,
}

impl Partition {
    /// Gives all but background work the first `fast` of the CPUs, but never none nor all; `None` if there
    /// are fewer than two.
    pub(crate) fn of(online: Cpus, fast: u32) -> Option<Partition> {
        let most = online.0.count_ones().checked_sub(1).filter(|most| *most > 0)?;
        let first = online.iter().take(usize::try_from(fast.clamp(1, most)).ok()?);
        let fast = Cpus(first.fold(0, |set, cpu| set | 1 << cpu));
        Some(Partition { fast, slow: Cpus(online.0 & !fast.0) })
    }

    /// Where a thread may run in an episode that may run on `own` otherwise: nowhere else. One that may run
    /// on none of the vCPUs that are for its like stays where it is.
    pub(crate) fn target(self, own: Cpus, background: bool) -> Cpus {
        let wanted = own.and(if background { self.slow } else { self.fast });
        if wanted.is_empty() { own } else { wanted }
    }

    /// Where a device's interrupts go that go to `own` otherwise: to fast vCPUs.
    pub(crate) fn interrupt_target(self, own: Cpus) -> Cpus {
        let wanted = own.and(self.fast);
        if wanted.is_empty() { self.fast } else { wanted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sets_are_read_and_written_as_the_kernel_does() {
        for (text, set) in
            [("3\n", 3), ("ff,00000001", 0xff_0000_0001), ("00000000,00000003", 3), ("0,0,f", 15)]
        {
            assert_eq!(Cpus::parse(text), Some(Cpus(set)));
        }
        for text in ["", "x", "1,00000000,00000000", "-1"] {
            assert_eq!(Cpus::parse(text), None);
        }
    }

    proptest! {
        #[test]
        fn a_set_is_read_as_it_was_written(set: u64) {
            prop_assert_eq!(Cpus::parse(&Cpus(set).to_string()), Some(Cpus(set)));
        }

        #[test]
        fn a_partition_has_all_vcpus_and_both_sides_some(online: u64, fast: u32) {
            match Partition::of(Cpus(online), fast) {
                None => prop_assert!(online.count_ones() < 2),
                Some(partition) => {
                    prop_assert!(!partition.fast.is_empty() && !partition.slow.is_empty());
                    prop_assert!(partition.fast.and(partition.slow).is_empty());
                    prop_assert_eq!(partition.fast.0 | partition.slow.0, online);
                }
            }
        }

        #[test]
        fn a_thread_gets_no_cpu_that_it_had_not(online: u64, fast: u32, own in 1u64.., background: bool) {
            let Some(partition) = Partition::of(Cpus(online), fast) else { return Ok(()) };
            let (own, target) = (Cpus(own), partition.target(Cpus(own), background));
            prop_assert!(!target.is_empty());
            prop_assert_eq!(target.and(own), target);
            let side = if background { partition.slow } else { partition.fast };
            prop_assert!(target == own || target.and(side) == target);
        }
    }
}
