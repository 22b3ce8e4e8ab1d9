//! Who has logged in: random tokens, of which only digests are kept, in memory. They end with the server.

use crate::hash::{hex, sha256};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Sessions at once; one more ends the one that was not used for longest.
const MOST: usize = 64;
/// Bytes of chance in a token.
const BYTES: usize = 32;

/// Who holds a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A browser, as a cookie.
    Browser,
    /// The command, in a file.
    Command,
}

impl Holder {
    /// A token is good for so long.
    pub(crate) fn lifetime(self) -> Duration {
        match self {
            Holder::Browser => Duration::from_secs(12 * 3600),
            Holder::Command => Duration::from_secs(30 * 24 * 3600),
        }
    }
}

#[derive(Debug)]
struct LoginSession {
    ends: Instant,
    used: Instant,
}

/// The sessions there are.
#[derive(Debug, Default)]
pub(crate) struct Sessions(HashMap<[u8; 32], LoginSession>);

impl Sessions {
    /// A new session's token; none if the system gives no chance.
    pub(crate) fn begin(&mut self, holder: Holder, now: Instant) -> Option<String> {
        let mut bytes = [0; BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let token = hex(&bytes);
        self.0.retain(|_, session| now < session.ends);
        if self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, session)| session.used).map(|(key, _)| *key);
            oldest.and_then(|key| self.0.remove(&key));
        }
        self.0.insert(key(&token), LoginSession { ends: now + holder.lifetime(), used: now });
        Some(token)
    }

    /// Whether a token is that of a session.
    pub(crate) fn has(&mut self, token: &str, now: Instant) -> bool {
        let session = self.0.get_mut(&key(token)).filter(|session| now < session.ends);
        session.is_some_and(|session| {
            session.used = now;
            true
        })
    }

    /// Ends a session.
    pub(crate) fn end(&mut self, token: &str) {
        self.0.remove(&key(token));
    }
}

fn key(token: &str) -> [u8; 32] {
    sha256(token.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_in_time_or_when_it_is_ended() {
        let now = Instant::now();
        let mut sessions = Sessions::default();
        let token = sessions.begin(Holder::Browser, now).unwrap();
        let other = sessions.begin(Holder::Command, now).unwrap();
        assert!(token != other && token.len() == 2 * BYTES);
        assert!(sessions.has(&token, now) && !sessions.has("", now));
        let later = now + Holder::Browser.lifetime();
        assert!(!sessions.has(&token, later) && sessions.has(&other, later));
        sessions.end(&other);
        assert!(!sessions.has(&other, later));
    }

    #[test]
    fn there_are_never_too_many() {
        let now = Instant::now();
        let mut sessions = Sessions::default();
        let at = |index: usize| now + Duration::from_millis(index as u64);
        let first = sessions.begin(Holder::Browser, now).unwrap();
        let tokens: Vec<String> =
            (1..=MOST).map(|index| sessions.begin(Holder::Browser, at(index)).unwrap()).collect();
        assert!(!sessions.has(&first, at(MOST)), "the oldest had to go");
        assert!(tokens.iter().all(|token| sessions.has(token, at(MOST))));
    }
}
