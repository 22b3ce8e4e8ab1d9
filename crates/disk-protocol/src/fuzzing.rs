//! What daemon and back end may say to each other: a body of property tests, and of fuzzing with coverage
//! (`fuzz/`).

use crate::{FromDaemon, FromDisk};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A message is none, or is the same when it is sent again.
pub fn message(said: &[u8]) {
    same_again::<FromDisk>(said);
    same_again::<FromDaemon>(said);
}

fn same_again<T: DeserializeOwned + Serialize + PartialEq + Debug>(said: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(said) {
        let again = serde_json::to_vec(&message).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<T>(&again).ok(), Some(message));
    }
}
