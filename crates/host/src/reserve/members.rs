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
pub(super) mod tests {
    use super::*;
    use frontdesk_linux::sched::{self, Attributes};
    use std::process::{Child, Command};

    /// A process that has a number which a member had before, ended with the value.
    pub(in super::super) struct Stranger(Child);

    impl Stranger {
        pub(in super::super) fn start() -> Stranger {
            Stranger(Command::new("sleep").arg("600").spawn().unwrap())
        }

        pub(in super::super) fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }

        /// A member whose thread had that number, and has ended.
        pub(in super::super) fn member(&self) -> MemberThreads {
            let own = ThreadId::of(self.pid(), self.pid()).unwrap();
            let thread = ThreadId { started: own.started - 1, ..own }.pin();
            MemberThreads { all: vec![MemberThread { thread, role: MemberRole::Worker }] }
        }

        /// How it is scheduled, where, and whether it is stopped.
        pub(in super::super) fn now(&self) -> (Attributes, Vec<u16>, bool) {
            let pid = self.pid();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            (sched::get(pid).unwrap(), sched::affinity(pid).unwrap(), stat.contains(") T"))
        }
    }

    impl Drop for Stranger {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
