//! How much anybody may ask for, and how often a password may be tried: arithmetic on times, without a clock
//! of its own. By hand: rate limiter crates have no lockouts that grow, and one for each address here would
//! not make the bucket shorter.

use lru::LruCache;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Addresses remembered. Who comes from more than so many is held back by the limits on all.
const ADDRESSES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Passwords that may be tried from an address before it has to wait.
const FREE_GUESSES: u32 = 3;
/// The longest that an address has to wait.
const LONGEST_LOCKOUT: Duration = Duration::from_secs(15 * 60);
/// After so long without a try an address begins afresh.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Whom limits are for: an address, or with IPv6 a network, for whoever has one address has all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer(IpAddr);

impl Peer {
    pub(crate) fn new(address: IpAddr) -> Peer {
        Peer(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(formatter),
            IpAddr::V6(address) => write!(formatter, "{address}/64"),
        }
    }
}

/// So long somebody has to wait.
pub(crate) type Wait = Duration;

/// Grants that are refilled steadily up to a burst.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// Grants in a second.
    rate: f64,
    burst: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: f64, burst: f64, now: Instant) -> Bucket {
        Bucket { rate, burst, level: burst, at: now }
    }

    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Wait> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed * self.rate).min(self.burst);
        self.at = self.at.max(now);
        if self.level < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.level) / self.rate));
        }
        self.level -= 1.0;
        Ok(())
    }
}

/// The limits, and what has been used of them.
#[derive(Debug)]
pub(crate) struct Limits {
    requests: LruCache<Peer, Bucket>,
    requests_of_all: Bucket,
    guesses: LruCache<Peer, Guesses>,
    guesses_of_all: Bucket,
}

/// Passwords tried from an address since the last right one.
#[derive(Clone, Copy, Debug)]
struct Guesses {
    count: u32,
    last: Instant,
}

impl Guesses {
    /// From the last free one on twice as long each time.
    fn locked_until(self) -> Instant {
        let beyond = self.count.saturating_sub(FREE_GUESSES);
        let lockout = match beyond {
            0 => Duration::ZERO,
            beyond => Duration::from_secs(1 << beyond.min(20)).min(LONGEST_LOCKOUT),
        };
        self.last + lockout
    }
}

impl Limits {
    pub(crate) fn new(now: Instant) -> Limits {
        Limits {
            requests: LruCache::new(ADDRESSES),
            requests_of_all: Bucket::new(500.0, 1000.0, now),
            guesses: LruCache::new(ADDRESSES),
            guesses_of_all: Bucket::new(1.0, 10.0, now),
        }
    }

    /// Somebody makes a request.
    pub(crate) fn request(&mut self, peer: Peer, now: Instant) -> Result<(), Wait> {
        self.requests.get_or_insert_mut(peer, || Bucket::new(100.0, 200.0, now)).take(now)?;
        self.requests_of_all.take(now)
    }

    /// Somebody tries a password. Counted as a wrong one until [`Limits::right`] says otherwise, so that many
    /// tries at once count, too.
    pub(crate) fn guess(&mut self, peer: Peer, now: Instant) -> Result<(), Wait> {
        let guesses = self.guesses.get_or_insert_mut(peer, || Guesses { count: 0, last: now });
        if now.saturating_duration_since(guesses.last) >= FORGIVEN_AFTER {
            guesses.count = 0;
        }
        let left = guesses.locked_until().saturating_duration_since(now);
        if !left.is_zero() {
            return Err(left);
        }
        self.guesses_of_all.take(now)?;
        *guesses = Guesses { count: guesses.count.saturating_add(1), last: now };
        Ok(())
    }

    /// The password was the one that may change something: nothing is left for this address to guess.
    pub(crate) fn right(&mut self, peer: Peer) {
        self.guesses.pop(&peer);
    }

    /// The password was the one that only looks in. Whoever has that may yet guess the other one: this try
    /// was no guess, and those before stay.
    pub(crate) fn right_to_look(&mut self, peer: Peer) {
        if let Some(guesses) = self.guesses.get_mut(&peer) {
            guesses.count = guesses.count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn peer(address: &str) -> Peer {
        Peer::new(address.parse().unwrap())
    }

    #[test]
    fn who_guesses_waits_twice_as_long_each_time() {
        let mut now = Instant::now();
        let mut limits = Limits::new(now);
        let guesser = peer("192.0.2.1");
        let mut waits = Vec::new();
        for _ in 0..16 {
            while let Err(wait) = limits.guess(guesser, now) {
                waits.push(wait.as_secs());
                now += wait;
            }
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]);
        limits.guess(peer("192.0.2.2"), now).expect("others may");
        now += FORGIVEN_AFTER;
        for _ in 0..FREE_GUESSES {
            limits.guess(guesser, now).expect("forgiven");
        }
    }

    #[test]
    fn the_right_password_begins_afresh() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        let user = peer("192.0.2.1");
        for _ in 0..5 {
            limits.guess(user, now).unwrap();
            limits.right(user);
        }
    }

    #[test]
    fn who_only_looks_in_may_not_guess_more_for_that() {
        let mut now = Instant::now();
        let mut limits = Limits::new(now);
        let guesser = peer("192.0.2.1");
        let mut waited = 0;
        for _ in 0..20 {
            for looks in [false, true] {
                while let Err(wait) = limits.guess(guesser, now) {
                    now += wait;
                    waited += wait.as_secs();
                }
                if looks {
                    limits.right_to_look(guesser);
                }
            }
        }
        assert!(waited > 3600, "twenty guesses took {waited} s");
    }

    #[test]
    fn guesses_from_many_addresses_are_limited_together() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        let granted = (0..1000u32).filter(|index| {
            let address = IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + index));
            limits.guess(Peer::new(address), now).is_ok()
        });
        assert_eq!(granted.count(), 10);
    }

    #[test]
    fn one_address_does_not_use_up_what_all_may_ask() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        let granted = (0..10_000).filter(|_| limits.request(peer("192.0.2.1"), now).is_ok()).count();
        assert_eq!(granted, 200);
        limits.request(peer("192.0.2.2"), now).unwrap();
        limits.request(peer("192.0.2.1"), now + Duration::from_millis(11)).unwrap();
    }

    #[test]
    fn addresses_of_a_network_are_one() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
    }

    proptest! {
        /// In any second after the burst, at most `rate` are granted.
        #[test]
        fn a_bucket_never_gives_more(steps in prop::collection::vec(0u64..50, 1..500)) {
            let begin = Instant::now();
            let mut bucket = Bucket::new(10.0, 5.0, begin);
            let (mut at, mut granted) = (0u64, 0u32);
            for step in steps {
                at += step;
                granted += u32::from(bucket.take(begin + Duration::from_millis(at)).is_ok());
                prop_assert!(f64::from(granted) <= 5.0 + at as f64 / 100.0 + 1e-6);
            }
        }
    }
}
