//! What is told of one thing that was examined.

use serde::Serialize;

/// How well something serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Everything frontdesk wants.
    Ok,
    /// Works with less, or only some parts of frontdesk need it.
    Limited,
    /// Something does not work at all.
    Missing,
}

/// One thing that was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was examined, in a word or two.
    pub area: &'static str,
    /// How well it serves.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What would help, where it is not [`Status::Ok`].
    pub advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(area: &'static str, found: impl Into<String>) -> Finding {
        Finding { area, status: Status::Ok, found: found.into(), advice: None }
    }

    pub(super) fn limited(
        area: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { area, status: Status::Limited, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn missing(
        area: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { area, status: Status::Missing, found: found.into(), advice: Some(advice.into()) }
    }
}
