//! What is said over the control socket: a line of JSON each way.

use crate::control::model::Status;
use serde::{Deserialize, Serialize};

/// A request longer than this is refused.
pub(crate) const MAX_QUERY_BYTES: usize = 4096;
/// An answer longer than this was not written by a daemon.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Query {
    /// The state of the daemon and its VMs.
    Status {
        /// Only the VM with this name, but everything about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vm: Option<String>,
    },
    /// From the answer on, the connection carries a recording.
    Record {},
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Query::Status`].
    Status(Box<Status>),
    /// To [`Query::Record`]; the recording follows.
    Record {},
    /// It is not done.
    Refused(Refusal),
}

/// Why a request is not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people: what was wrong, and what they can do.
    pub message: String,
}

/// The kinds of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The client's user may not look in.
    Forbidden,
    /// The request is not one.
    Malformed,
    /// No VM has the name.
    UnknownVm,
    /// Too many clients at once.
    Busy,
    /// The daemon can't do it.
    Unavailable,
}

impl Refusal {
    pub(crate) fn new(kind: RefusalKind, message: impl Into<String>) -> Refusal {
        Refusal { kind, message: message.into() }
    }
}

impl Query {
    /// Understands a request line, without its end.
    pub(crate) fn parse(line: &[u8]) -> Result<Query, Refusal> {
        serde_json::from_slice(line).map_err(|error| {
            let message =
                format!("the request is not understood ({error}); it is a line like {{\"status\":{{}}}}");
            Refusal::new(RefusalKind::Malformed, message)
        })
    }
}

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    // The messages have only string keys and finite numbers, so this does not fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented() {
        let status = |vm: Option<&str>| Query::Status { vm: vm.map(str::to_owned) };
        assert_eq!(Query::parse(br#"{"status":{}}"#), Ok(status(None)));
        assert_eq!(Query::parse(br#"{"status":{"vm":"alice"}}"#), Ok(status(Some("alice"))));
        assert_eq!(Query::parse(br#"{"record":{}}"#), Ok(Query::Record {}));
        for nonsense in
            [&b""[..], b"{", b"status", br#"{"stop":{}}"#, br#"{"status":{"vms":1}}"#, b"\xff\xfe"]
        {
            assert_eq!(Query::parse(nonsense).unwrap_err().kind, RefusalKind::Malformed);
        }
        for query in [status(None), status(Some("a\nb")), Query::Record {}] {
            let line = line(&query);
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(Query::parse(&line[..line.len() - 1]), Ok(query));
        }
    }
}
