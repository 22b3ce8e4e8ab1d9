//! Who comes before whom on a CPU, as levels that change as little as can be: each change of a level costs a
//! system call.

/// Levels there are, from 1 to this; a higher one comes first.
pub const LEVELS: u8 = 22;

/// Gives a level to each, the first the highest. `current` has what each has now. Those that can keep theirs
/// do.
pub(super) fn assign(current: &[Option<u8>]) -> Vec<u8> {
    let mut levels = Vec::with_capacity(current.len());
    let mut above = LEVELS + 1;
    for (at, own) in current.iter().enumerate() {
        let level = match own {
            Some(level) if *level < above => *level,
            _ => {
                let below = current[at + 1..].iter().flatten().find(|level| **level < above).copied();
                let below = below.unwrap_or(0);
                below + (above - below) / 2
            }
        };
        if level == 0 || level >= above {
            return spread(current.len());
        }
        levels.push(level);
        above = level;
    }
    levels
}

/// Even distances; if there are more than levels, the last share the lowest.
fn spread(count: usize) -> Vec<u8> {
    let levels = usize::from(LEVELS);
    let level = |at: usize| levels.saturating_sub((at + 1) * levels / (count + 1)).max(1);
    (0..count).map(|at| u8::try_from(level(at)).unwrap_or(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_place_keeps_it() {
        assert_eq!(assign(&[None]), [11]);
        assert_eq!(assign(&[Some(11), None]), [11, 5]);
        assert_eq!(assign(&[None, Some(11)]), [17, 11]);
        assert_eq!(assign(&[Some(11), None, Some(5)]), [11, 8, 5]);
        assert_eq!(assign(&[Some(5), Some(11)]), [5, 2], "they have changed places");
    }

    #[test]
    fn levels_fall_whatever_was_before() {
        // Each newcomer comes first, then each last, until there is no room between.
        for at_front in [true, false] {
            let mut held: Vec<Option<u8>> = Vec::new();
            for _ in 0..usize::from(LEVELS) {
                held.insert(if at_front { 0 } else { held.len() }, None);
                let levels = assign(&held);
                assert!(levels.is_sorted_by(|a, b| a > b) && levels.iter().all(|l| (1..=LEVELS).contains(l)));
                held = levels.into_iter().map(Some).collect();
            }
        }
        assert!(assign(&[None; 300]).into_iter().all(|level| (1..=LEVELS).contains(&level)));
    }
}
