//! The threads of a member, and what each does in it.

/// What a thread does in its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberRole {
    /// It computes: a vCPU, or any thread of a process.
    Worker,
    /// A thread of a VM that delivers what its vCPUs wait for: it comes before them.
    Emulator,
}

/// The threads of a member.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberThreads {
    /// Process, thread and role of each.
    pub(super) all: Vec<(i32, i32, MemberRole)>,
}
