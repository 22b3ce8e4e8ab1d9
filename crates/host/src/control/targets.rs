//! What can be reserved for: the VMs that the daemon follows, and the processes in `/proc`. Found by the
//! thread that serves the client; the daemon's loop is only asked for its VMs and reservations.

use crate::control::request::LoopHandle;
use frontdesk_control_protocol::{Answer, Query, Refusal, SCHEMA, Target, TargetStatus, Targets};
use procfs::process::{Process, Stat, StatFlags};
use procfs::{ProcessCGroup, ProcessCGroups};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// At most so many processes are told.
const MOST: usize = 200;
/// CPU use is looked at over this time. The kernel's account has a granularity of some milliseconds.
const SPAN: Duration = Duration::from_millis(250);

/// VMs and processes.
pub(crate) fn find(asker: &LoopHandle) -> Result<Targets, Refusal> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let begun = Instant::now();
    let before: HashMap<(i32, u64), u64> =
        processes().map(|(_, stat)| ((stat.pid, stat.starttime), ticks(&stat))).collect();
    std::thread::sleep(SPAN);
    let span = begun.elapsed().as_secs_f64() * rustix::param::clock_ticks_per_second() as f64;
    let vms: HashMap<i32, String> =
        asker.status(None, 0)?.vms.into_iter().map(|vm| (vm.pid, vm.name)).collect();
    let reserved: HashSet<Target> = match asker.reservation(Query::Reservations {}) {
        Ok(Answer::Reservations(all)) => all.reservations.into_iter().map(|one| one.target).collect(),
        // A daemon that has none.
        _ => HashSet::new(),
    };
    // Its guardian is its child.
    let others = processes().filter(|(_, stat)| stat.pid != own && stat.ppid != own);
    let mut targets: Vec<TargetStatus> = others
        .filter_map(|(process, stat)| {
            let pid = stat.pid;
            let unit = process.cgroups().ok().and_then(|groups| unit(&groups));
            let ticks = ticks(&stat);
            let used = ticks.saturating_sub(*before.get(&(pid, stat.starttime)).unwrap_or(&ticks));
            let (target, name) = match vms.get(&pid) {
                Some(vm) => (Target::Vm(vm.clone()), vm.clone()),
                None => (Target::Process(pid), stat.comm),
            };
            let reserved = reserved.contains(&target)
                || unit.as_ref().is_some_and(|unit| reserved.contains(&Target::Unit(unit.clone())));
            Some(TargetStatus {
                target,
                name,
                pid,
                uid: process.uid().ok()?,
                unit,
                cpu_ratio: used as f64 / span,
                threads: u32::try_from(stat.num_threads).ok()?,
                reserved,
            })
        })
        .collect();
    targets.sort_by(|one, other| {
        let is_process = |target: &TargetStatus| matches!(target.target, Target::Process(_));
        let by_kind = is_process(one).cmp(&is_process(other));
        let by_use = if is_process(one) {
            other.cpu_ratio.total_cmp(&one.cpu_ratio)
        } else {
            one.name.cmp(&other.name)
        };
        by_kind.then(by_use).then(one.pid.cmp(&other.pid))
    });
    let left_off = targets.len().saturating_sub(MOST);
    targets.truncate(MOST);
    Ok(Targets { schema: SCHEMA, targets, left_off })
}

/// The processes there are, without the kernel's own threads.
fn processes() -> impl Iterator<Item = (Process, Stat)> {
    let all = procfs::process::all_processes().into_iter().flatten().flatten();
    all.filter_map(|process| {
        let stat = process.stat().ok()?;
        (stat.flags & StatFlags::PF_KTHREAD.bits() == 0).then_some((process, stat))
    })
}

/// CPU time, in clock ticks.
fn ticks(stat: &Stat) -> u64 {
    stat.utime.saturating_add(stat.stime)
}

/// The systemd unit of a process's control groups: the last part of the path that is one, in systemd's own
/// hierarchy where there are several.
fn unit(groups: &ProcessCGroups) -> Option<String> {
    let is_systemds =
        |group: &&ProcessCGroup| group.controllers.is_empty() || group.controllers == ["name=systemd"];
    let path = &groups.into_iter().find(is_systemds)?.pathname;
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    path.rsplit('/').find(is_unit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromRead as _;

    #[test]
    fn units_are_found_on_both_versions_of_control_groups() {
        let unit = |text: &str| unit(&ProcessCGroups::from_read(text.as_bytes()).unwrap());
        let one = "12:cpu:/x.service\n1:name=systemd:/system.slice/render.service/worker\n";
        assert_eq!(unit(one).as_deref(), Some("render.service"));
        let user = "/user.slice/user-0.slice/user@0.service/app.slice/run-u1.scope";
        assert_eq!(unit(&format!("0::{user}\n")).as_deref(), Some("run-u1.scope"));
        assert_eq!(unit("0::/init\n"), None);
    }

    #[test]
    fn we_are_among_the_processes_and_no_kernel_thread_is() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(processes().any(|(_, stat)| stat.pid == own && stat.num_threads > 0));
        assert!(processes().all(|(_, stat)| stat.comm != "kthreadd"));
    }
}
