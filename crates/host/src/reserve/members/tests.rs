//! A thread that has ended, for the tests of who changes threads.

use super::*;
use frontdesk_linux::sched::{self, Attributes};
use std::process::{Child, Command};

/// A process that has a number which a member had before, ended with the value.
pub(in crate::reserve) struct Stranger(Child);

impl Stranger {
    pub(in crate::reserve) fn start() -> Stranger {
        Stranger(Command::new("sleep").arg("600").spawn().unwrap())
    }

    pub(in crate::reserve) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// A member whose thread had that number, and has ended.
    pub(in crate::reserve) fn member(&self) -> MemberThreads {
        let own = ThreadId::of(self.pid(), self.pid()).unwrap();
        let thread = ThreadId { started: own.started - 1, ..own }.pin();
        MemberThreads { all: vec![MemberThread { thread, role: MemberRole::Worker }] }
    }

    /// How it is scheduled, where, and whether it is stopped.
    pub(in crate::reserve) fn now(&self) -> (Attributes, Vec<u16>, bool) {
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
