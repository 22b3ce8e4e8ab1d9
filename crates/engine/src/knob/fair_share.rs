//! What would have been fair: who shared physical CPUs with whom, and what each was due of them.

use super::account::{Delta, PcpuSet, VmAccount};
use std::collections::VecDeque;

/// What would have been fair in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fair {
    pub(super) share: u64,
    /// What it could have had beyond that but did not want.
    pub(super) unwanted: u64,
}

/// Groups VMs that shared a physical CPU, directly or through others: only they took time from each other. By
/// their places in `claims`.
pub(super) fn pools(claims: &[VmAccount]) -> Vec<VecDeque<usize>> {
    let mut pools: Vec<(PcpuSet, VecDeque<usize>)> = Vec::new();
    for (place, claim) in claims.iter().enumerate() {
        let mut touching = pools.extract_if(.., |(pcpus, _)| pcpus.overlaps(&claim.pcpus));
        let (mut pcpus, mut members) = touching.next().unwrap_or_default();
        for (others, more) in touching {
            pcpus.join(&others);
            members.extend(more);
        }
        pcpus.join(&claim.pcpus);
        members.push_front(place);
        pools.push((pcpus, members));
    }
    pools.into_iter().map(|(_, members)| members).collect()
}

/// Weighted max-min fair shares of `capacity`: nobody gets more than it wanted, and what it leaves goes to
/// the others by weight. In the order of `claims`.
pub(super) fn fair_shares(capacity: u64, claims: &[Delta]) -> Vec<Fair> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    // By wanted / weight, compared crosswise to stay in integers.
    order.sort_by_cached_key(|i| {
        u128::from(claims[*i].wanted) * 1_000_000 / u128::from(claims[*i].weight.max(1))
    });
    let mut shares = vec![Fair { share: 0, unwanted: 0 }; claims.len()];
    let mut left = u128::from(capacity);
    let mut weights: u128 = claims.iter().map(|claim| u128::from(claim.weight.max(1))).sum();
    for i in order {
        let weight = u128::from(claims[i].weight.max(1));
        let most = u64::try_from(left * weight / weights).unwrap_or(u64::MAX);
        let share = most.min(claims[i].wanted);
        shares[i] = Fair { share, unwanted: most - share };
        left -= u128::from(share);
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(weight: u32, ran: u64, wanted: u64) -> Delta {
        Delta { weight, ran, wanted, boosted: 0, uneven: false, waits: false }
    }

    #[test]
    fn fair_shares_follow_weights_and_demand() {
        let fair = |share, unwanted| Fair { share, unwanted };
        assert_eq!(fair_shares(600, &[delta(1, 0, 600); 6]), [fair(100, 0); 6]);
        assert_eq!(fair_shares(600, &[delta(2, 0, 600), delta(1, 0, 600)]), [fair(400, 0), fair(200, 0)]);
        let modest = [delta(1, 0, 60), delta(1, 0, 600), delta(1, 0, 600)];
        assert_eq!(fair_shares(600, &modest), [fair(60, 140), fair(270, 0), fair(270, 0)]);
        assert_eq!(fair_shares(0, &[delta(1, 0, 60)]), [fair(0, 0)]);
    }

    #[test]
    fn vms_on_different_cpus_are_settled_apart() {
        let on = VmAccount::on;
        let pools = pools(&[on(0, &[0]), on(1, &[1]), on(2, &[2, 3]), on(3, &[0, 1])]);
        let mut sizes: Vec<usize> = pools.iter().map(VecDeque::len).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 3]);
    }
}
