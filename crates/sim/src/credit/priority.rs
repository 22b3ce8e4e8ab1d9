//! What comes before what.

/// Priorities, as Xen has them: -64 is that of an idle physical CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Nothing runs.
    Idle,
    /// More used than earned.
    Over,
    /// Credit is left.
    Under,
    /// Woken while UNDER, or partially boosted (TAVS §3.2). MM calls it IOBOOST.
    Boost,
    /// Woken by a multimedia event (MM: MMBOOST).
    Multimedia,
}
