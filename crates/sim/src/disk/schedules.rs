//! What a scheduler of the disk does.

use super::request::DiskRequest;
use crate::queue::{NEVER, Nanos};
use frontdesk_engine::UserInput;
use std::fmt::Debug;

/// Whose request is served next.
pub(super) trait Schedules: Debug {
    fn submit(&mut self, request: DiskRequest, now: Nanos);

    /// The next request, if one is to be served now.
    fn next(&mut self, now: Nanos) -> Option<DiskRequest>;

    /// The request that was next takes so long.
    fn takes(&mut self, _request: &DiskRequest, _time: Nanos) {}

    /// A request has been served.
    fn done(&mut self, _request: &DiskRequest, _now: Nanos) {}

    /// When there may be a next one although nothing happened.
    fn wakes(&self) -> Nanos {
        NEVER
    }

    /// A person did something in a VM.
    fn input(&mut self, _vm: usize, _input: UserInput, _now: Nanos) {}
}
