//! The threads of a member, and what each does in it.

use frontdesk_linux::sched::{PinnedThread, ThreadId};

/// What a thread does in its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberRole {
    /// It computes: a vCPU, or any thread of a process.
    Worker,
    /// A thread of a VM that delivers what its vCPUs wait for: it comes before them.
    Emulator,
}

/// A thread of a member.
#[derive(Clone, Debug)]
pub(super) struct MemberThread {
    pub(super) thread: PinnedThread,
    pub(super) role: MemberRole,
}

/// The threads of a member.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberThreads {
    pub(super) all: Vec<MemberThread>,
}

impl MemberThreads {
    /// Whether it has such a thread.
    pub(super) fn has(&self, thread: ThreadId) -> bool {
        self.all.iter().any(|member| member.thread.id() == thread)
    }
}

#[cfg(test)]
pub(super) mod tests;
