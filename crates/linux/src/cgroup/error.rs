//! What can go wrong with control groups.

use std::{io, path::PathBuf};

/// What went wrong with a control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No hierarchy has the controller.
    #[error(
        "no mounted control group hierarchy has the cpu controller ({found}); mount one (version 2: `cpu` must be in \
         its cgroup.controllers) or boot a kernel with CONFIG_CGROUP_SCHED"
    )]
    NoController {
        /// What is mounted.
        found: String,
    },
    /// A process or its group cannot be found.
    #[error("cannot find the control group of process {pid}: {cause}")]
    Process {
        /// The process.
        pid: i32,
        /// Why.
        cause: String,
    },
    /// A control file refused.
    #[error("cannot {action} {}: {source}{advice}", path.display())]
    File {
        /// What was tried.
        action: String,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
        /// What the reader can do, or nothing.
        advice: &'static str,
    },
    /// A control file holds something unexpected.
    #[error("{} holds {content:?}, which is not {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it holds.
        content: String,
        /// What was expected.
        expected: String,
    },
    /// The name cannot be a group's.
    #[error("{name:?} cannot be the name of a control group: it must be one part of a path")]
    Name {
        /// The name.
        name: String,
    },
    /// The root group has neither weight nor budget to set.
    #[error(
        "the VM runs in the root control group, whose {what} cannot be set; start it in a group of its own"
    )]
    Root {
        /// What was to be set.
        what: &'static str,
    },
    /// Nothing is left of the root's real-time budget.
    #[error(
        "{groups} control groups would get {each_permille} permille of real time each, too little to be of use; other \
         groups hold {taken_permille} permille of the root's {root_permille} (cpu.rt_runtime_us per cpu.rt_period_us)"
    )]
    NoBudget {
        /// Among how many groups it was to be split.
        groups: usize,
        /// What each would get.
        each_permille: u64,
        /// What others hold.
        taken_permille: u64,
        /// What there is.
        root_permille: u64,
    },
    /// Real time cannot be had in any group but the root's.
    #[error(
        "this kernel has RT_GROUP_SCHED, which on a version 2 hierarchy refuses real time in all groups but the root's; \
         boot with rt_group_sched=0 (Linux 6.16 or newer) or a kernel without it"
    )]
    RealTimeRefused,
}
