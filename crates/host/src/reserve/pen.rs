//! The control group of all that has reservations, on version 1: what is in it and not in its slice runs only when nothing else
//! does, whatever group it came from, and what is in its slice has a real-time budget.
//!
//! Idle scheduling (`SCHED_IDLE`) alone is relative to the thread's own group, and every group has its share: it would give a thread out of
//! its slice what its group is worth. Below the root, `cpu.idle` is relative to all. On version 2 processes stay in their groups, which
//! systemd knows them by.

use super::held::HoldError;
use crate::cgroup::{CgroupError, Group, Hierarchy, RealTimeRule, Version};
use crate::guardian::{Guardian, Undo};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "frontdesk-reserved";
const PERIOD_US: u64 = 1_000_000;
const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Makes the group; `None` where there is none to make. It may use this part of each CPU in real time.
pub(super) fn make(
    hierarchy: &Hierarchy,
    real_time: f64,
    guardian: &Guardian,
) -> Result<Option<Group>, HoldError> {
    if hierarchy.version() == Version::V2 {
        return Ok(None);
    }
    if hierarchy.real_time() == RealTimeRule::Budget {
        // The budgets of its children must fit into the root's, and all within the throttle.
        for file in [Path::new(THROTTLE), &hierarchy.mount().join("cpu.rt_runtime_us")] {
            change(file, PERIOD_US.to_string(), guardian)?;
        }
    }
    let group = hierarchy.root_group().create(NAME, guardian)?;
    change(&group.dir().join("cpu.idle"), "1".into(), guardian)?;
    if hierarchy.real_time() == RealTimeRule::Budget {
        let runtime = std::time::Duration::from_micros(PERIOD_US).mul_f64(real_time).as_micros();
        change(&group.dir().join("cpu.rt_runtime_us"), runtime.to_string(), guardian)?;
    }
    Ok(Some(group))
}

fn change(file: &Path, content: String, guardian: &Guardian) -> Result<(), HoldError> {
    let failed = |action: &str| {
        let (action, path) = (action.to_owned(), PathBuf::from(file));
        move |source| CgroupError::File { action, path, source, advice: "; reservations need it" }
    };
    let before = fs::read_to_string(file).map_err(failed("read"))?.trim().to_owned();
    guardian.record(Undo::File { path: file.to_owned(), content: before })?;
    Ok(fs::write(file, &content).map_err(failed(&format!("write {content} to")))?)
}
