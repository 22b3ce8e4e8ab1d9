//! What a VM has that frontdesk may change, to compare with what it had before.

use frontdesk_linux::cgroup::Group;
use frontdesk_linux::sched::{self, Attributes, Policy};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// What frontdesk may change of a VM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Had {
    pub(crate) threads: BTreeMap<i32, Thread>,
    pub(crate) share: u32,
    /// What its control group has of real time, where there is such a thing.
    real_time: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thread {
    pub(crate) attributes: Attributes,
    cpus: String,
    groups: String,
    stopped: bool,
}

impl Had {
    pub(crate) fn by(pid: u32, group: &Group) -> Had {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread may end meanwhile.
        let threads = tasks.filter_map(|task| {
            let folder = task.unwrap().path();
            let read = |file| fs::read_to_string(folder.join(file)).ok();
            let tid = folder.file_name()?.to_str()?.parse().ok()?;
            let (status, groups) = (read("status")?, read("cgroup")?);
            let said = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            let (cpus, stopped) = (said("Cpus_allowed_list:")?.to_owned(), said("State:")?.starts_with('T'));
            Some((tid, Thread { attributes: sched::get(tid).ok()?, cpus, groups, stopped }))
        });
        let real_time = fs::read_to_string(group.dir().join("cpu.rt_runtime_us")).ok();
        Had { threads: threads.collect(), share: group.weight().unwrap(), real_time }
    }

    pub(crate) fn is_boosted(&self) -> bool {
        self.threads.values().any(|thread| matches!(thread.attributes.policy, Policy::Fifo { .. }))
    }

    /// Whether each thread is scheduled as it was not before.
    pub(crate) fn is_other_than(&self, before: &Had) -> bool {
        self.threads.iter().all(|(tid, thread)| before.threads.get(tid) != Some(thread))
    }

    /// Somebody gives a thread another nice value.
    pub(crate) fn renice(&mut self, thread: u64, nice: i32) {
        let words = ["-n", &nice.to_string(), "-p", &thread.to_string()];
        assert!(Command::new("renice").args(words).status().unwrap().success());
        let had = self.threads.get_mut(&i32::try_from(thread).unwrap()).unwrap();
        let Policy::Other { nice: had, .. } = &mut had.attributes.policy else { panic!("{had:?}") };
        *had = nice;
    }
}
