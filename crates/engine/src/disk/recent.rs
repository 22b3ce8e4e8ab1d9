//! When an application asked for something since the last input.

use crate::event::Time;
use arrayvec::ArrayVec;

/// Times that are known.
const TIMES: usize = 64;

/// When requests came, of many only every so manyth.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    /// With how many requests each stands for.
    times: ArrayVec<(Time, u32), TIMES>,
    each: u32,
    /// Requests since the last of them.
    more: u32,
}

impl Recent {
    /// A request came. Those before `from` will not be asked for.
    pub(super) fn note(&mut self, now: Time, from: Time) {
        self.more += 1;
        if self.more < self.each {
            return;
        }
        if self.times.is_full() {
            self.times.retain(|(at, _)| *at >= from);
            if self.times.len() > TIMES / 2 {
                self.each = self.each.max(1).saturating_mul(2);
                let pairs = self.times.chunks(2);
                let merged = |pair: &[(Time, u32)]| {
                    let requests =
                        pair.iter().fold(0, |sum: u32, (_, requests)| sum.saturating_add(*requests));
                    (pair[pair.len() - 1].0, requests)
                };
                self.times = pairs.map(merged).collect();
            } else {
                self.each /= 2;
            }
        }
        self.times.push((now, std::mem::take(&mut self.more)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty() && self.more == 0
    }

    /// Requests from then on; to `last`, if that is given.
    pub(super) fn between(&self, first: Time, last: Option<Time>) -> u32 {
        let within = |at: Time| at >= first && last.is_none_or(|last| at <= last);
        let noted = self.times.iter().filter(|(at, _)| within(*at)).map(|(_, requests)| *requests);
        // Those that are not noted are the latest.
        noted.fold(if last.is_none() { self.more } else { 0 }, u32::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn of_many_requests_it_is_still_known_when_they_came() {
        let mut recent = Recent::default();
        // A thousand a second, of which those of the last four seconds are asked for.
        for number in 0..20_000_u64 {
            let now = Time(number * SECOND / 1_000);
            recent.note(now, Time(now.0.saturating_sub(4 * SECOND)));
        }
        let half = recent.between(Time(18 * SECOND), None);
        assert!((1_900..2_100).contains(&half), "{half} in two seconds");
        assert!(recent.each >= 64, "{}", recent.each);
    }
}
