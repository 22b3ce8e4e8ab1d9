//! The clock that all events carry.

use frontdesk_engine::Time;
use frontdesk_linux::monotonic_ns;

/// The time now.
pub(crate) fn monotonic() -> Time {
    Time(monotonic_ns())
}
