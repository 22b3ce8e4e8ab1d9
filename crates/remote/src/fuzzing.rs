//! What files and users may say of passwords and servers: bodies of property tests, and of fuzzing with
//! coverage (`fuzz/`).

use crate::Fingerprint;
use crate::client::{Address, parse_hosts};
use crate::password::Hashed;

/// A hash is none, or is the same when it is read again.
pub fn password_file(text: &str) {
    if let Some(hashed) = Hashed::parse(text) {
        let again = Hashed::parse(hashed.as_str());
        assert_eq!(again.as_ref().map(Hashed::as_str), Some(hashed.as_str()));
    }
}

/// A file of known servers is none, or is the same when it is written and read again.
pub fn known_hosts(text: &[u8]) {
    if let Ok(hosts) = parse_hosts(text) {
        let again = serde_json::to_vec(&hosts).unwrap_or_default();
        assert!(parse_hosts(&again).is_ok_and(|same| same == hosts));
    }
}

/// The address and the fingerprint of a server, as a user gives them.
pub fn of_a_server(text: &str) {
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse::<Address>().ok(), Some(address));
    }
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string().parse::<Fingerprint>().ok(), Some(fingerprint));
    }
}
