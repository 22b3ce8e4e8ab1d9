//! The control group of all that has reservations, on version 1: what is in it and not in its slice runs only
//! when nothing else does, whatever group it came from, and what is in its slice has a real-time budget.
//!
//! Idle scheduling (`SCHED_IDLE`) alone is relative to the thread's own group, and every group has its share:
//! it would give a thread out of its slice what its group is worth. Below the root, `cpu.idle` is relative to
//! all. On version 2 processes stay in their groups, which systemd knows them by.

use super::fair::FAIR_SERVERS;
use super::threads::TakeError;
use super::{ReserveMechanism, ReserveSettings};
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_linux::cgroup::{CgroupError, Group, Hierarchy, RealTimeRule, Version, read_number};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

const NAME: &str = "frontdesk-reserved";
const PERIOD_US: u64 = 1_000_000;
const RUNTIME: &str = "cpu.rt_runtime_us";
const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const THROTTLE_PERIOD: &str = "/proc/sys/kernel/sched_rt_period_us";

/// Lets reserved targets use their part of each CPU in real time. With budgets of groups, the group's must
/// fit in beside those of others: the root's must hold all of them, and the throttle the root's; each group
/// is still throttled by its own. Without, the throttle is what limits all that is real-time before Linux
/// 6.12, and what can be had by `SCHED_DEADLINE`.
pub(crate) fn make_room(
    hierarchy: &Hierarchy,
    settings: &ReserveSettings,
    guardian: &Guardian,
) -> Result<(), String> {
    if hierarchy.real_time() == RealTimeRule::Budget {
        return [Path::new(THROTTLE), &hierarchy.mount().join(RUNTIME)]
            .into_iter()
            .try_for_each(|file| change(file, PERIOD_US.to_string(), guardian))
            .map_err(|error| error.to_string());
    }
    let by_deadline = settings.mechanism.on(hierarchy) == ReserveMechanism::Deadline;
    // Where there are fair servers, there is no other use of it.
    if (by_deadline || !Path::new(FAIR_SERVERS).exists())
        && let Err(error) = raise_throttle(settings.real_time(), guardian)
    {
        tracing::warn!("above what the kernel's throttle leaves, whole periods may be lost: {error}");
    }
    Ok(())
}

/// One that allows as much already, or is off, stays as it is.
fn raise_throttle(part: f64, guardian: &Guardian) -> Result<(), TakeError> {
    let period = read_number(Path::new(THROTTLE_PERIOD))?;
    let wanted = Duration::from_micros(period.unsigned_abs()).mul_f64(part).as_micros();
    match u128::try_from(read_number(Path::new(THROTTLE))?) {
        Ok(allowed) if allowed < wanted => change(Path::new(THROTTLE), wanted.to_string(), guardian),
        _ => Ok(()),
    }
}

/// The group.
pub(super) struct ReservedGroup {
    group: Group,
    /// What it may use of each CPU in real time while there are reservations, in microseconds; `None` where
    /// the kernel asks for no budget.
    runtime_us: Option<u128>,
}

impl ReservedGroup {
    /// Makes the group, without real time; `None` where there is none to make. It is to use this part of each
    /// CPU in real time.
    pub(super) fn make(
        hierarchy: &Hierarchy,
        real_time: f64,
        guardian: &Guardian,
    ) -> Result<Option<ReservedGroup>, TakeError> {
        if hierarchy.version() == Version::V2 {
            return Ok(None);
        }
        let group = guardian.create_group(&hierarchy.root_group(), NAME)?;
        change(&group.dir().join("cpu.idle"), "1".into(), guardian)?;
        let runtime = Duration::from_micros(PERIOD_US).mul_f64(real_time).as_micros();
        let has_budget = hierarchy.real_time() == RealTimeRule::Budget;
        if has_budget {
            // On a busy machine the kernel counts the budget of a group for a while after it was removed, and
            // the next daemon's would not fit in.
            guardian.record(Undo::File { path: group.dir().join(RUNTIME), content: "0".into() })?;
        }
        Ok(Some(ReservedGroup { group, runtime_us: has_budget.then_some(runtime) }))
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Gives it its real time, before what is in it becomes real-time.
    pub(super) fn open(&self) -> Result<(), TakeError> {
        self.runtime_us.map_or(Ok(()), |runtime| self.set_runtime(runtime))
    }

    /// Leaves its real time to others: nothing in it is real-time any more.
    pub(super) fn close(&self) -> Result<(), TakeError> {
        self.runtime_us.map_or(Ok(()), |_| self.set_runtime(0))
    }

    /// At the end, the guardian takes it before the group goes.
    fn set_runtime(&self, runtime_us: u128) -> Result<(), TakeError> {
        let file = self.group.dir().join(RUNTIME);
        let content = runtime_us.to_string();
        Ok(fs::write(&file, &content).map_err(failed(&format!("write {content} to"), &file))?)
    }
}

/// Writes something else to a file, unless it is there already; the guardian puts back what was there.
fn change(file: &Path, content: String, guardian: &Guardian) -> Result<(), TakeError> {
    let before = fs::read_to_string(file).map_err(failed("read", file))?.trim().to_owned();
    if before == content {
        return Ok(());
    }
    guardian.record(Undo::File { path: file.to_owned(), content: before })?;
    Ok(fs::write(file, &content).map_err(failed(&format!("write {content} to"), file))?)
}

fn failed(action: &str, file: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let (action, path) = (action.to_owned(), file.to_owned());
    move |source| CgroupError::File { action, path, source, advice: "; reservations need it" }
}
