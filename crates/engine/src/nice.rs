//! What Linux makes of niceness: the weight of a thread in its fair class.

/// Weight for each nice value from -20 on: each step is about 10 % of a CPU.
const WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121,
    2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29,
    23, 18, 15,
];

const LEAST: i8 = -20;
const MOST: i8 = 19;

/// The nice value whose weight is nearest, as a ratio, to this many permille of that of `nice`.
#[must_use]
pub fn nice_for(nice: i8, permille: u32) -> i8 {
    // In thousandths, of at most 88761 * 2^32: the square fits.
    let wanted = u128::from(nice_weight(nice)) * u128::from(permille);
    let lighter = (nice_values()).find(|nice| u128::from(nice_weight(*nice)) * 1000 <= wanted);
    match lighter {
        None => MOST,
        Some(LEAST) => LEAST,
        Some(lighter) => {
            let heavier = lighter - 1;
            let middle = u128::from(nice_weight(lighter)) * u128::from(nice_weight(heavier)) * 1_000_000;
            if wanted * wanted < middle { lighter } else { heavier }
        }
    }
}

fn nice_values() -> impl Iterator<Item = i8> {
    LEAST..=MOST
}

/// The weight of a nice value; those beyond -20 and 19 count as these.
#[must_use]
pub fn nice_weight(nice: i8) -> u32 {
    let index = i16::from(nice.clamp(LEAST, MOST)) - i16::from(LEAST);
    usize::try_from(index).ok().and_then(|index| WEIGHTS.get(index)).copied().unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_ratio_wins() {
        assert_eq!(nice_for(0, 1000), 0);
        // The ratios of vAMP: 1:3, 1:9, 1:18.
        assert_eq!((nice_for(0, 333), nice_for(0, 111), nice_for(0, 56)), (5, 10, 13));
        assert_eq!((nice_for(0, 3000), nice_for(0, 64_000), nice_for(0, 1)), (-5, -19, 19));
        assert_eq!(
            (nice_for(-5, 333), nice_for(5, 3000), nice_for(19, 1), nice_for(-20, 64_000)),
            (0, 0, 19, -20)
        );
        assert_eq!((nice_for(0, 0), nice_for(0, u32::MAX), nice_for(i8::MIN, 1000)), (19, -20, -20));
    }

    proptest::proptest! {
        #[test]
        fn no_other_is_nearer(nice in -20..=19i8, permille in 1..=64_000u32) {
            let wanted = f64::from(nice_weight(nice)) * f64::from(permille) / 1000.0;
            let distance = |nice| (f64::from(nice_weight(nice)) / wanted).ln().abs();
            let found = distance(nice_for(nice, permille));
            let least = nice_values().map(distance).fold(f64::INFINITY, f64::min);
            proptest::prop_assert!(found <= least + 1e-9);
        }

        #[test]
        fn an_ordinary_weight_changes_nothing(nice in -20..=19i8) {
            proptest::prop_assert_eq!(nice_for(nice, 1000), nice);
        }
    }
}
