//! Who has logged in: random tokens, of which only digests are kept, in memory. They end with the server.

use crate::hash::{hex, sha256};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Sessions at once; one more ends the one that was not used for longest, of those that only look if there
/// are any.
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

/// What whoever has logged in may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// See everything and change nothing.
    Look,
    /// What the server may.
    Change,
}

#[derive(Debug)]
struct LoginSession {
    right: Right,
    ends: Instant,
    used: Instant,
}

/// The sessions there are.
#[derive(Debug, Default)]
pub(crate) struct Sessions(HashMap<[u8; 32], LoginSession>);

impl Sessions {
    /// A new session's token; none if the system gives no chance.
    pub(crate) fn begin(&mut self, holder: Holder, right: Right, now: Instant) -> Option<String> {
        let mut bytes = [0; BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let token = hex(&bytes);
        self.0.retain(|_, session| now < session.ends);
        if self.0.len() >= MOST {
            let rank = |session: &LoginSession| (session.right == Right::Change, session.used);
            let oldest = self.0.iter().min_by_key(|(_, session)| rank(session)).map(|(key, _)| *key);
            oldest.and_then(|key| self.0.remove(&key));
        }
        self.0.insert(key(&token), LoginSession { right, ends: now + holder.lifetime(), used: now });
        Some(token)
    }

    /// What the holder of a token may do; none if it is no session's.
    pub(crate) fn right(&mut self, token: &str, now: Instant) -> Option<Right> {
        let session = self.0.get_mut(&key(token)).filter(|session| now < session.ends)?;
        session.used = now;
        Some(session.right)
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
        let token = sessions.begin(Holder::Browser, Right::Change, now).unwrap();
        let other = sessions.begin(Holder::Command, Right::Look, now).unwrap();
        assert!(token != other && token.len() == 2 * BYTES);
        assert_eq!((sessions.right(&token, now), sessions.right("", now)), (Some(Right::Change), None));
        let later = now + Holder::Browser.lifetime();
        assert_eq!((sessions.right(&token, later), sessions.right(&other, later)), (None, Some(Right::Look)));
        sessions.end(&other);
        assert_eq!(sessions.right(&other, later), None);
    }

    #[test]
    fn there_are_never_too_many() {
        let now = Instant::now();
        let mut sessions = Sessions::default();
        let at = |index: usize| now + Duration::from_millis(index as u64);
        let steering = sessions.begin(Holder::Command, Right::Change, now).unwrap();
        let mut begin = |index| sessions.begin(Holder::Browser, Right::Look, at(index)).unwrap();
        let first = begin(1);
        let tokens: Vec<String> = (2..=MOST).map(begin).collect();
        assert_eq!(sessions.right(&first, at(MOST)), None, "the oldest that looks had to go");
        assert!(tokens.iter().all(|token| sessions.right(token, at(MOST)).is_some()));
        assert_eq!(sessions.right(&steering, at(MOST)), Some(Right::Change), "who looks ends nobody else");
    }
}
