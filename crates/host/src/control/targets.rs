//! What can be reserved for: the VMs that the daemon follows, and the processes in `/proc`. Found by the
//! thread that serves the client; the daemon's loop is only asked for its VMs and reservations.

use crate::control::request::LoopHandle;
use frontdesk_control_protocol::{Answer, Query, Refusal, SCHEMA, Target, TargetStatus, Targets};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// At most so many processes are told.
const MOST: usize = 200;
/// CPU use is looked at over this time. The kernel's account has a granularity of some milliseconds.
const SPAN: Duration = Duration::from_millis(250);
/// A task of the kernel's own (`PF_KTHREAD`).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// VMs and processes.
pub(crate) fn find(asker: &LoopHandle) -> Result<Targets, Refusal> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let begun = Instant::now();
    let before: HashMap<(i32, u64), u64> =
        processes().map(|(pid, stat)| ((pid, stat.started), stat.ticks)).collect();
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
    let others = processes().filter(|(pid, stat)| *pid != own && stat.parent != own);
    let mut targets: Vec<TargetStatus> = others
        .filter_map(|(pid, stat)| {
            let folder = format!("/proc/{pid}");
            let unit = fs::read_to_string(format!("{folder}/cgroup")).ok().and_then(|groups| unit(&groups));
            let (target, name) = match vms.get(&pid) {
                Some(vm) => (Target::Vm(vm.clone()), vm.clone()),
                None => (Target::Process(pid), stat.name),
            };
            let used = stat.ticks.saturating_sub(*before.get(&(pid, stat.started)).unwrap_or(&stat.ticks));
            let reserved = reserved.contains(&target)
                || unit.as_ref().is_some_and(|unit| reserved.contains(&Target::Unit(unit.clone())));
            Some(TargetStatus {
                target,
                name,
                pid,
                uid: fs::metadata(folder).ok()?.uid(),
                unit,
                cpu_ratio: used as f64 / span,
                threads: stat.threads,
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
fn processes() -> impl Iterator<Item = (i32, Stat)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = Stat::read(&entry.path())?;
        (stat.flags & KERNEL_THREAD == 0).then_some((pid, stat))
    })
}

/// What `/proc/PID/stat` tells.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    parent: i32,
    flags: u32,
    /// CPU time, in clock ticks.
    ticks: u64,
    threads: u32,
    /// In clock ticks since boot; tells a process from another with its number.
    started: u64,
}

impl Stat {
    fn read(process: &Path) -> Option<Stat> {
        // A name is bytes.
        let bytes = fs::read(process.join("stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&bytes))
    }

    /// The second field, the name, may hold anything, hence counting starts behind its last bracket.
    fn parse(text: &str) -> Option<Stat> {
        let (begin, rest) = text.rsplit_once(')')?;
        let (_, name) = begin.split_once('(')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Stat {
            name: name.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
            ticks: number(11)?.checked_add(number(12)?)?,
            threads: fields.get(17)?.parse().ok()?,
            started: number(19)?,
        })
    }
}

/// The systemd unit in a process's `/proc/PID/cgroup`: the last part of the path that is one, in systemd's
/// own hierarchy where there are several.
fn unit(groups: &str) -> Option<String> {
    let mut paths = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let (_, path) =
        paths.find(|(controllers, _)| controllers.is_empty() || *controllers == "name=systemd")?;
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    path.rsplit('/').find(is_unit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let text = "7 (a) S 1 (b) R 3 7 7 0 -1 4194560 97 0 0 0 11 31 0 0 20 0 4 0 1234 1 1 1\n";
        let stat = Stat {
            name: "a) S 1 (b".into(),
            parent: 3,
            flags: 4_194_560,
            ticks: 42,
            threads: 4,
            started: 1234,
        };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }

    #[test]
    fn units_are_found_on_both_versions_of_control_groups() {
        let one = "12:cpu:/x.service\n1:name=systemd:/system.slice/render.service/worker\n";
        assert_eq!(unit(one).as_deref(), Some("render.service"));
        let user = "/user.slice/user-0.slice/user@0.service/app.slice/run-u1.scope";
        assert_eq!(unit(&format!("0::{user}\n")).as_deref(), Some("run-u1.scope"));
        assert_eq!(unit("0::/init\n"), None);
        assert_eq!(unit("no lines as they should be"), None);
    }

    #[test]
    fn we_are_among_the_processes_and_no_kernel_thread_is() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(processes().any(|(pid, stat)| pid == own && stat.threads > 0));
        assert!(processes().all(|(_, stat)| stat.name != "kthreadd"));
    }

    proptest! {
        #[test]
        fn fuzz_stat_and_cgroup_files(text in "(\\PC|\n){0,200}|[0-9]+ \\(.{0,9}\\) [A-Z]( -?[0-9]{0,25}){0,30}") {
            let _ = (Stat::parse(&text), unit(&text));
        }
    }
}
