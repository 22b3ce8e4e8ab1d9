//! The passwords, of which only argon2id hashes are kept.

use crate::sessions::Right;
use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use ring::rand::{SecureRandom, SystemRandom};

/// The longest password that is looked at.
pub(crate) const MAX_PASSWORD_BYTES: usize = 1024;

/// A hash as it is kept in a file, in the PHC format.
#[derive(Clone)]
pub(crate) struct Hashed(String);

impl Hashed {
    /// Hashes a password, with argon2's own recommended costs; none if the system gives no chance for the
    /// salt.
    pub(crate) fn new(password: &str) -> Option<Hashed> {
        let mut salt = [0; 16];
        SystemRandom::new().fill(&mut salt).ok()?;
        let salt = SaltString::encode_b64(&salt).ok()?;
        let hash = Argon2::default().hash_password(password.as_bytes(), &salt).ok()?;
        Some(Hashed(hash.to_string()))
    }

    /// What is in a file; none if that is no hash.
    pub(crate) fn parse(text: &str) -> Option<Hashed> {
        let text = text.trim_end();
        PasswordHash::new(text).ok().filter(|hash| hash.hash.is_some()).map(|_| Hashed(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes a while, and memory, so that guessing does.
    pub(crate) fn is_of(&self, password: &str) -> bool {
        PasswordHash::new(&self.0)
            .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
    }
}

/// The passwords of a host.
#[derive(Clone, Debug)]
pub(crate) struct Passwords {
    /// Of those who may do what the server may.
    pub(crate) change: Hashed,
    /// Of those who may only look in, if there is one.
    pub(crate) look: Option<Hashed>,
}

impl Passwords {
    /// What a password lets its holder do. Takes a while, too.
    pub(crate) fn right_of(&self, password: &str) -> Option<Right> {
        let looks = || self.look.as_ref().is_some_and(|look| look.is_of(password));
        if self.change.is_of(password) { Some(Right::Change) } else { looks().then_some(Right::Look) }
    }
}

impl std::fmt::Debug for Hashed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Hashed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_password_is_right() {
        let hashed = Hashed::new("correct horse").unwrap();
        assert!(hashed.is_of("correct horse"));
        assert!(!hashed.is_of("correct horsf") && !hashed.is_of(""));
        assert_ne!(hashed.as_str(), Hashed::new("correct horse").unwrap().as_str(), "salted");
        assert!(hashed.as_str().starts_with("$argon2id$"));
        assert!(Hashed::parse(&format!("{}\n", hashed.as_str())).unwrap().is_of("correct horse"));
        assert!(Hashed::parse("").is_none() && Hashed::parse("correct horse").is_none());
    }

    #[test]
    fn each_password_has_its_right() {
        let change = Hashed::new("correct horse").unwrap();
        let mut passwords = Passwords { change, look: None };
        assert_eq!(passwords.right_of("battery staple"), None);
        passwords.look = Hashed::new("battery staple");
        assert_eq!(passwords.right_of("battery staple"), Some(Right::Look));
        assert_eq!(passwords.right_of("correct horse"), Some(Right::Change));
        assert_eq!(passwords.right_of(""), None);
    }

    proptest! {
        #[test]
        fn fuzz_hash_files(text in "\\PC{0,60}|\\$argon2id\\$v=[0-9]{0,12}\\$[a-z=0-9,]{0,40}(\\$[A-Za-z0-9+/]{0,50}){0,3}") {
            crate::fuzzing::password_file(&text);
        }
    }
}
