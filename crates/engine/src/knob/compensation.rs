//! What share lets a VM have what it is due while its vCPUs have unequal weights.
//!
//! The world's scheduler divides a VM's share among physical CPUs by the weights of what runs there. A VM
//! with a fast vCPU on one and a slow one on another gets little more on the first, and much less on the
//! second. The ledger evens out what is left: it is slower than guests change tasks.

/// An ordinary share or weight, in permille.
const ORDINARY: u32 = 1000;
/// Highest compensation, in permille.
const MOST: u32 = 16 * ORDINARY;
/// Halvings of the range in which it is looked for: to less than a permille.
const HALVINGS: u32 = 14;

/// The share, in permille of what it is else, with which a VM of which so many vCPUs are `fast` and so many
/// `slow`, with a weight of so many permille of theirs, gets half of as many physical CPUs: it is taken to
/// share each with as much that wants it as well.
pub(crate) fn compensation(fast: u32, slow: u32, slow_permille: u32) -> u32 {
    let (fast, slow, weight) = (f64::from(fast), f64::from(slow), f64::from(slow_permille) / 1000.0);
    if fast * slow == 0.0 {
        return ORDINARY;
    }
    let (all, weights) = (fast + slow, fast + slow * weight);
    let got = |share: f64| {
        let of = |weight: f64| share * weight / weights / (share * weight / weights + 1.0 / all);
        fast * of(1.0) + slow * of(weight)
    };
    let (mut least, mut most) = (ORDINARY, MOST);
    for _ in 0..HALVINGS {
        let middle = u32::midpoint(least, most);
        if got(f64::from(middle) / 1000.0) < all / 2.0 {
            least = middle;
        } else {
            most = middle;
        }
    }
    most
}

/// Whether a compensation is worth to be told: it differs by a fifth, or is none any more.
pub(crate) fn is_worth(before: u32, now: u32) -> bool {
    now != before && now == ORDINARY || now / 6 > before / 5 || before / 6 > now / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With two vCPUs it is 1 / 2 sqrt(f (1 - f)), f being the fast one's part of their weights.
    #[test]
    fn a_vm_with_a_fast_and_a_slow_vcpu_gets_what_it_would_with_equal_ones() {
        for slow in [333u32, 111, 56, 15] {
            let part = 1000.0 / f64::from(1000 + slow);
            let expected = 500.0 / (part * (1.0 - part)).sqrt();
            let found = f64::from(compensation(1, 1, slow));
            assert!((found / expected - 1.0).abs() < 0.002, "{slow}: {found}, {expected}");
        }
        assert!((9000..10_000).contains(&compensation(1, 3, 15)), "{}", compensation(1, 3, 15));
    }

    #[test]
    fn equal_vcpus_need_none() {
        for (fast, slow) in [(0, 0), (2, 0), (0, 4)] {
            assert_eq!(compensation(fast, slow, 15), ORDINARY);
        }
        assert!(compensation(2, 2, 1000) <= ORDINARY + 1);
        assert_eq!(compensation(1, 63, 1), MOST);
    }

    #[test]
    fn little_is_left_to_the_ledger() {
        assert!(!is_worth(1000, compensation(1, 1, 333)), "low");
        assert!(is_worth(1000, compensation(1, 1, 111)) && is_worth(1250, 1000) && is_worth(1001, 1000));
        assert!(!is_worth(1000, 1000) && !is_worth(4000, 4100));
    }
}
