//! What a VM got so far and what it wanted, as the ledger is told.

use crate::event::VmId;
use serde::{Deserialize, Serialize};

/// A set of physical CPUs; numbers above its size wrap, which can only make two pools one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PcpuSet([u64; 16]);

impl PcpuSet {
    pub(crate) fn insert(&mut self, pcpu: u16) {
        let bit = usize::from(pcpu) % (self.0.len() * 64);
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    pub(crate) fn overlaps(&self, other: &PcpuSet) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }

    pub(super) fn join(&mut self, other: &PcpuSet) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a |= b;
        }
    }

    pub(super) fn len(&self) -> u64 {
        let words = self.0.iter().filter(|word| **word != 0);
        words.map(|word| u64::from(word.count_ones())).sum()
    }
}

/// What a VM got so far, and what it wanted since the last settlement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VmAccount {
    pub(crate) vm: VmId,
    pub(crate) weight: u32,
    pub(crate) threads: u64,
    /// Nanoseconds its threads ran.
    pub(crate) ran: u64,
    /// Nanoseconds its threads would have run beyond that since the last settlement.
    pub(crate) unmet: u64,
    /// Nanoseconds its threads ran boosted.
    pub(crate) boosted: u64,
    /// Whether its share can be changed.
    pub(crate) acting: bool,
    /// Whether its vCPUs have unequal weights.
    pub(crate) uneven: bool,
    /// Whether an event waits for its answer in vain.
    pub(crate) waits: bool,
    /// Whether its times may be wrong.
    pub(crate) unsure: bool,
    /// The physical CPUs its threads ran on or waited for since the last settlement.
    pub(crate) pcpus: PcpuSet,
}

#[cfg(test)]
impl VmAccount {
    /// One of a VM with one thread and the weight 1 that has not run, on these physical CPUs.
    pub(super) fn on(vm: u32, pcpus: &[u16]) -> VmAccount {
        let mut set = PcpuSet::default();
        pcpus.iter().for_each(|pcpu| set.insert(*pcpu));
        VmAccount {
            vm: VmId(vm),
            weight: 1,
            threads: 1,
            ran: 0,
            unmet: 0,
            boosted: 0,
            acting: true,
            uneven: false,
            waits: false,
            unsure: false,
            pcpus: set,
        }
    }
}

/// What a VM got and wanted between two settlements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delta {
    pub(super) weight: u32,
    pub(super) ran: u64,
    pub(super) wanted: u64,
    pub(super) boosted: u64,
    pub(super) uneven: bool,
    pub(super) waits: bool,
}
