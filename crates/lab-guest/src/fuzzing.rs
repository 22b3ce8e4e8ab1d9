//! What a guest may say, and be told: a body of property tests, and of fuzzing with coverage (`fuzz/`).

use crate::{LabMessage, LabRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// What is understood means the same when it is said again.
pub fn message(line: &[u8]) {
    same_again::<LabMessage>(line);
    same_again::<LabRequest>(line);
}

fn same_again<T: DeserializeOwned + Serialize + PartialEq + Debug>(line: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(line) {
        let again = serde_json::to_vec(&message).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<T>(&again).ok(), Some(message));
    }
}
