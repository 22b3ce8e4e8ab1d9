//! What is said over the control socket: a line of JSON each way.

use crate::model::Status;
use crate::reservation::{Fit, Reservation, Reservations, Reserve, Targets};
use crate::target::Target;
use serde::{Deserialize, Serialize};

/// A request longer than this is refused.
pub const MAX_QUERY_BYTES: usize = 4096;
/// An answer longer than this was not written by a daemon.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

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
    /// A reservation for a target, in place of the one it has. Answered with [`Answer::Reservation`].
    Reserve(Reserve),
    /// Ordinary scheduling for a target again. Answered with what its reservation was, as
    /// [`Answer::Reservation`].
    Release {
        /// The target.
        target: Target,
    },
    /// Stops a target; its reservation stays. Answered with [`Answer::Reservation`].
    Pause {
        /// The target.
        target: Target,
    },
    /// Lets a paused target run. Answered with [`Answer::Reservation`].
    Resume {
        /// The target.
        target: Target,
    },
    /// All reservations, and what room there is.
    Reservations {},
    /// What can be reserved for: VMs and processes.
    Targets {},
}

impl Query {
    /// Whether it asks for a change, rather than for a look.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Query::Reserve(_) | Query::Release { .. } | Query::Pause { .. } | Query::Resume { .. } => true,
            Query::Status { .. } | Query::Record {} | Query::Reservations {} | Query::Targets {} => false,
        }
    }
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Query::Status`].
    Status(Box<Status>),
    /// To [`Query::Record`]; the recording follows.
    Record {},
    /// To whatever is asked about one reservation.
    Reservation(Box<Reservation>),
    /// To [`Query::Reservations`].
    Reservations(Box<Reservations>),
    /// To [`Query::Targets`].
    Targets(Box<Targets>),
    /// It is not done.
    Refused(Refusal),
}

impl Answer {
    /// The schema that the answer says it is of, if it does.
    #[must_use]
    pub fn schema(&self) -> Option<u32> {
        match self {
            Answer::Status(status) => Some(status.schema),
            Answer::Reservations(reservations) => Some(reservations.schema),
            Answer::Targets(targets) => Some(targets.schema),
            Answer::Record {} | Answer::Reservation(_) | Answer::Refused(_) => None,
        }
    }
}

/// Why a request is not fulfilled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people: what was wrong, and what they can do.
    pub message: String,
    /// With [`RefusalKind::Infeasible`]: what would fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
}

/// The kinds of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The client's user may not ask for this.
    Forbidden,
    /// Over the network: the password is wrong, or was not given yet.
    Unauthenticated,
    /// The request is not one.
    Malformed,
    /// No VM has the name.
    UnknownVm,
    /// Too many clients at once.
    Busy,
    /// The daemon cannot do it.
    Unavailable,
    /// A value of a reservation is out of its range.
    Invalid,
    /// There is not so much left to reserve; [`Refusal::fit`] tells what would fit.
    Infeasible,
    /// There is no such VM, process, unit or control group.
    UnknownTarget,
    /// The target has no reservation to release, pause or resume.
    NotReserved,
    /// A part of the target has a reservation under another name.
    Overlapping,
    /// It is not for reservations: a thread of the kernel, the daemon itself, or a target without processes.
    Unsuitable,
}

impl Refusal {
    /// A refusal that says why.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Refusal {
        Refusal { kind, message: message.into(), fit: None }
    }
}

impl Query {
    /// Understands a request line, without its end.
    ///
    /// # Errors
    /// [`RefusalKind::Malformed`] if it is not a request.
    pub fn parse(line: &[u8]) -> Result<Query, Refusal> {
        serde_json::from_slice(line).map_err(|error| {
            let message =
                format!("the request is not understood ({error}); it is a line like {{\"status\":{{}}}}");
            Refusal::new(RefusalKind::Malformed, message)
        })
    }
}

/// A message as a line, with its end.
#[must_use]
pub fn line(message: &impl Serialize) -> Vec<u8> {
    // The messages have only string keys and finite numbers, so this does not fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fuzz_a_request_is_understood_or_refused(line in prop::collection::vec(any::<u8>(), 0..200)) {
            crate::fuzzing::request(&line);
        }

        /// Nearly right ones come further.
        #[test]
        fn fuzz_a_reservation_is_understood_or_refused(
            verb in "reserve|release|pause|resume|targets|[a-z]{1,8}",
            key in "target|period_ns|[a-z_]{1,9}",
            target in "\\PC{0,20}",
            number in "-?[0-9]{1,30}(e[0-9]{1,3})?|null|true|\\[\\]",
        ) {
            let target = serde_json::to_string(&target).unwrap();
            for line in [
                format!("{{\"{verb}\":{{\"target\":{target}}}}}"),
                format!("{{\"{verb}\":{{\"target\":{target},\"{key}\":{number},\"slice_ns\":{number}}}}}"),
            ] {
                crate::fuzzing::request(line.as_bytes());
            }
        }
    }

    #[test]
    fn requests_are_as_documented() {
        let status = |vm: Option<&str>| Query::Status { vm: vm.map(str::to_owned) };
        assert_eq!(Query::parse(br#"{"status":{}}"#), Ok(status(None)));
        assert_eq!(Query::parse(br#"{"status":{"vm":"alice"}}"#), Ok(status(Some("alice"))));
        assert_eq!(Query::parse(br#"{"record":{}}"#), Ok(Query::Record {}));
        for nonsense in [
            &b""[..],
            b"{",
            b"status",
            br#"{"stop":{}}"#,
            br#"{"status":{"vms":1}}"#,
            b"\xff\xfe",
            br#"{"release":{}}"#,
            br#"{"release":{"target":7}}"#,
            br#"{"release":{"target":"pid:-7"}}"#,
            br#"{"reserve":{"target":"pid:7","period_ns":-1,"slice_ns":1}}"#,
            br#"{"reserve":{"target":"pid:7","period_ns":1e9,"slice_ns":1}}"#,
            br#"{"reserve":{"target":"pid:7","period_ns":2,"slice_ns":1,"soft":true}}"#,
        ] {
            assert_eq!(Query::parse(nonsense).unwrap_err().kind, RefusalKind::Malformed);
        }
        let reserve = br#"{"reserve":{"target":"pid:42","period_ns":10000000,"slice_ns":2000000}}"#;
        let target = Target::Process(42);
        let asked = Query::Reserve(Reserve {
            target: target.clone(),
            period_ns: 10_000_000,
            slice_ns: 2_000_000,
            hard: false,
            phase_ns: None,
        });
        assert_eq!(Query::parse(reserve), Ok(asked.clone()));
        assert!(asked.changes() && !Query::Targets {}.changes());
        for query in [
            status(None),
            status(Some("a\nb")),
            Query::Record {},
            asked,
            Query::Release { target: target.clone() },
            Query::Pause { target: target.clone() },
            Query::Resume { target },
            Query::Reservations {},
            Query::Targets {},
        ] {
            let line = line(&query);
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(Query::parse(&line[..line.len() - 1]), Ok(query));
        }
    }
}
