//! Which task a thread belongs to, and its name, from `/proc`. By hand: a few lines of a file for each new
//! thread, in a program that is to take next to nothing of the guest.

use frontdesk_guest_protocol::Name;
use std::collections::HashMap;
use std::fs;

/// Threads and tasks that are kept in mind. When there are more, all are looked up again.
const MAX: usize = 4096;

/// What a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadKind {
    /// The kernel's own: it has no address space, and runs in that of whoever ran before.
    Kernel,
    /// A thread of this task.
    Of(u32),
}

/// Where facts come from.
pub(crate) trait Proc {
    /// `/proc/ID/status`, if there is such a thread.
    fn status(&self, thread: u32) -> Option<String>;
}

/// The running system.
pub(crate) struct System;

impl Proc for System {
    fn status(&self, thread: u32) -> Option<String> {
        // A name is bytes.
        fs::read(format!("/proc/{thread}/status"))
            .ok()
            .map(|status| String::from_utf8_lossy(&status).into_owned())
    }
}

struct ReportedTask {
    name: Name,
    /// Whether the host knows it.
    reported: bool,
}

/// What is known of the system's threads.
pub(crate) struct Tasks<P> {
    proc: P,
    threads: HashMap<u32, ThreadKind>,
    tasks: HashMap<u32, ReportedTask>,
}

impl<P: Proc> Tasks<P> {
    pub(crate) fn new(proc: P) -> Tasks<P> {
        Tasks { proc, threads: HashMap::new(), tasks: HashMap::new() }
    }

    /// What `thread`, which runs now and is called `comm`, is.
    pub(crate) fn thread(&mut self, thread: u32, comm: &[u8]) -> ThreadKind {
        let known = self.threads.get(&thread).copied().unwrap_or_else(|| self.look_up(thread));
        // A task has the name of its first thread.
        if known == ThreadKind::Of(thread) {
            self.set_name(thread, Name::from_comm(comm));
        }
        known
    }

    fn look_up(&mut self, thread: u32) -> ThreadKind {
        if self.threads.len() >= MAX || self.tasks.len() >= MAX {
            self.threads.clear();
            self.tasks.clear();
        }
        // Who has gone already had one thread, most likely.
        let status = self.proc.status(thread);
        let found = status.as_deref().map_or(ThreadKind::Of(thread), parse_status);
        if let ThreadKind::Of(task) = found
            && task != thread
            && !self.tasks.contains_key(&task)
            && let Some(name) = self.proc.status(task).as_deref().and_then(|status| value(status, "Name:"))
        {
            self.set_name(task, Name::from_comm(name.as_bytes()));
        }
        self.threads.insert(thread, found);
        found
    }

    fn set_name(&mut self, task: u32, name: Name) {
        let known = self.tasks.entry(task).or_insert(ReportedTask { name, reported: false });
        if known.name != name {
            *known = ReportedTask { name, reported: false };
        }
    }

    /// The name of a task, if the host is yet to be told.
    pub(crate) fn unreported_name(&mut self, task: u32) -> Option<Name> {
        let task = self.tasks.get_mut(&task).filter(|task| !task.reported)?;
        task.reported = true;
        Some(task.name)
    }

    /// Somebody else listens.
    pub(crate) fn tell_all(&mut self) {
        self.tasks.values_mut().for_each(|task| task.reported = false);
    }

    /// A thread has ended: its number may go to another.
    pub(crate) fn ended(&mut self, thread: u32) {
        if self.threads.remove(&thread) == Some(ThreadKind::Of(thread)) {
            self.tasks.remove(&thread);
        }
    }
}

fn value<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

fn parse_status(status: &str) -> ThreadKind {
    // What has ended has no memory any more, but is no thread of the kernel's.
    let ended = value(status, "State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    let task = value(status, "Tgid:").and_then(|task| task.parse().ok());
    match task {
        Some(task) if ended || value(status, "VmSize:").is_some() => ThreadKind::Of(task),
        _ => ThreadKind::Kernel,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Threads by number: their text in `/proc`.
    pub(crate) type Fake = HashMap<u32, String>;

    impl Proc for Fake {
        fn status(&self, thread: u32) -> Option<String> {
            self.get(&thread).cloned()
        }
    }

    pub(crate) fn user(name: &str, task: u32) -> String {
        format!("Name:\t{name}\nState:\tR (running)\nTgid:\t{task}\nVmSize:\t 3352 kB\n")
    }

    pub(crate) fn kernel(name: &str, thread: u32) -> String {
        format!("Name:\t{name}\nState:\tI (idle)\nTgid:\t{thread}\n")
    }

    #[test]
    fn threads_belong_to_tasks() {
        let zombie = "Name:\tsh\nState:\tZ (zombie)\nTgid:\t60\n".to_owned();
        let proc = Fake::from([
            (10, kernel("kworker/0:1", 10)),
            (50, user("firefox", 50)),
            (51, user("Socket Thread", 50)),
            (60, zombie),
        ]);
        let mut tasks = Tasks::new(proc);
        assert_eq!(tasks.thread(10, b"kworker/0:1\0"), ThreadKind::Kernel);
        assert_eq!(tasks.thread(51, b"Socket Thread\0"), ThreadKind::Of(50));
        assert_eq!(tasks.unreported_name(50), Some(Name::from_comm(b"firefox")));
        assert_eq!(tasks.unreported_name(50), None);
        assert_eq!(tasks.thread(60, b"sh\0"), ThreadKind::Of(60));
        assert_eq!(tasks.thread(99, b"gone\0"), ThreadKind::Of(99));
        assert_eq!(tasks.unreported_name(99), Some(Name::from_comm(b"gone")));
        tasks.tell_all();
        assert_eq!(tasks.unreported_name(99), Some(Name::from_comm(b"gone")));
    }

    #[test]
    fn a_name_that_changes_is_told_again() {
        let mut tasks = Tasks::new(Fake::from([(7, user("sh", 7))]));
        tasks.thread(7, b"sh\0");
        assert!(tasks.unreported_name(7).is_some());
        tasks.thread(7, b"sh\0");
        assert!(tasks.unreported_name(7).is_none());
        tasks.thread(7, b"make\0");
        assert_eq!(tasks.unreported_name(7), Some(Name::from_comm(b"make")));
    }

    #[test]
    fn a_number_may_be_used_again() {
        let mut tasks = Tasks::new(Fake::from([(7, user("sh", 3))]));
        assert_eq!(tasks.thread(7, b"sh\0"), ThreadKind::Of(3));
        tasks.proc.insert(7, user("vi", 7));
        assert_eq!(tasks.thread(7, b"vi\0"), ThreadKind::Of(3), "nobody looks again while it lives");
        tasks.ended(7);
        assert_eq!(tasks.thread(7, b"vi\0"), ThreadKind::Of(7));
    }

    #[test]
    fn memory_is_bounded() {
        let mut tasks = Tasks::new(Fake::new());
        for thread in 0..100_000 {
            tasks.thread(thread, b"x\0");
            assert!(tasks.threads.len() <= MAX && tasks.tasks.len() <= MAX);
        }
    }
}
