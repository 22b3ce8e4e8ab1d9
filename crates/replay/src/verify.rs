//! Whether the same events give the same actions.

use crate::reservations::{Redecided, Redispatch};
use crate::span::Span;
use crate::{ReplayError, Rerun};
use frontdesk_engine::Action;
use frontdesk_record::{Record, Recording};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::Read;

/// What going through a recording again gave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// Events told.
    pub events: u64,
    /// Actions decided again as recorded.
    pub actions: u64,
    /// From the first event to the last.
    pub seconds: f64,
    /// The first decision that is not as recorded; the replay ends there.
    pub mismatch: Option<Mismatch>,
    /// The same of reservations; absent if the recording says nothing of them.
    pub reservations: Option<Redecided>,
}

impl Verified {
    /// Whether everything was decided as recorded.
    #[must_use]
    pub fn is_same(&self) -> bool {
        let differences = self.reservations.as_ref().map_or(0, |redecided| redecided.differences);
        self.mismatch.is_none() && differences == 0
    }
}

/// A decision that is not as recorded.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Mismatch {
    /// Number of the record where it shows, from 1.
    pub record: u64,
    /// Seconds since the first event.
    pub at_s: f64,
    /// What was decided when the recording was made.
    pub recorded: Option<Action>,
    /// What is decided now.
    pub decided: Option<Action>,
}

/// Goes through a recording with its own parameters and compares the actions one by one, the engine's and
/// those of the dispatcher of reservations.
///
/// # Errors
/// The recording cannot be read to its end, or not be gone through.
pub fn verify<R: Read>(recording: &mut Recording<R>) -> Result<Verified, ReplayError> {
    let mut rerun = Rerun::new();
    let mut verified = Verified::default();
    let mut decided: VecDeque<Action> = VecDeque::new();
    let mut span = Span::default();
    let mut redispatch = Redispatch::default();
    while let Some(record) = recording.next().transpose()? {
        let recorded = match &record {
            Record::Applied { action, .. } | Record::Discarded(action) => Some(*action),
            Record::Vm { .. } => continue,
            about if about.is_about_reservations() => {
                redispatch.take(about, recording.records());
                continue;
            }
            _ => None,
        };
        let next = decided.pop_front();
        if next != recorded {
            let (record, at_s) = (recording.records(), span.seconds());
            verified.mismatch = Some(Mismatch { record, at_s, recorded, decided: next });
            break;
        }
        verified.actions += u64::from(recorded.is_some());
        rerun.tell(&record)?;
        if let Record::Event(event) = &record {
            verified.events += 1;
            span.add(event.at);
        }
        decided.extend(std::iter::from_fn(|| rerun.poll_action()));
    }
    // What the last event led to may have been cut off; a recording that ended in order has it.
    if verified.mismatch.is_none()
        && recording.ending() == Some(frontdesk_record::Ending::Complete)
        && let Some(action) = decided.front()
    {
        let (record, at_s) = (recording.records() + 1, span.seconds());
        verified.mismatch = Some(Mismatch { record, at_s, recorded: None, decided: Some(*action) });
    }
    verified.seconds = span.seconds();
    verified.reservations = redispatch.finish();
    Ok(verified)
}
