//! What values are allowed, for all parts of a scenario.

use frontdesk_engine::Config;
use std::time::Duration;

pub(crate) use frontdesk_workload::{Violation, period, range, require};

/// The parameters of the engine behind a key.
pub(crate) fn validate_policy(key: &str, policy: &Config) -> Result<(), Violation> {
    policy.validate().map_err(|error| Violation {
        key: format!("{key}.{}", error.key),
        value: error.value,
        allowed: error.allowed.to_owned(),
    })
}

pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub(crate) fn name(key: &str, name: &str) -> Result<(), Violation> {
    require(is_name(name), key, quoted(name), "letters, digits and `-`")
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// "one of A, B, C" for a message.
pub(crate) fn one_of<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "none: there is none".to_owned() } else { format!("one of {}", names.join(", ")) }
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
