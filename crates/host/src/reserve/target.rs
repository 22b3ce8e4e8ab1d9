//! What a request names: which processes and threads, and whether they may have a reservation.

use super::members::MemberRole;
use frontdesk_control_protocol::{Refusal, RefusalKind, Target};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::sched::ThreadId;
use procfs::ProcessCGroups;
use procfs::process::{Process, Stat, StatFlags};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// More than this of a target are refused.
const MOST_THREADS: usize = 4096;

/// A VM that the daemon follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VmThreads {
    pub(crate) name: String,
    pub(crate) pid: i32,
    /// The threads of its vCPUs.
    pub(crate) vcpus: Vec<i32>,
}

/// What a target consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// For people.
    pub(super) name: String,
    pub(super) processes: Vec<i32>,
    /// Whether processes that they start belong to it.
    pub(super) family: bool,
    /// Of each vCPU the thread; empty if it is no VM.
    pub(super) vcpus: Vec<i32>,
}

/// A thread of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TargetThread {
    pub(super) thread: ThreadId,
    pub(super) role: MemberRole,
    /// The index of its member.
    pub(super) member: usize,
}

impl Found {
    /// Finds what a target consists of. `own` are the processes of the daemon itself.
    pub(super) fn find(
        target: &Target,
        vms: &[VmThreads],
        own: &[i32],
        hierarchy: &Hierarchy,
    ) -> Result<Found, Refusal> {
        let unknown = |message: String| Refusal::new(RefusalKind::UnknownTarget, message);
        let found = match target {
            Target::Vm(name) => {
                let vm = vms.iter().find(|vm| vm.name == *name);
                let vm = vm.ok_or_else(|| {
                    unknown(format!("no VM {name:?} is followed; `frontdesk ps` tells which are"))
                })?;
                if vm.vcpus.is_empty() {
                    return Err(Refusal::new(
                        RefusalKind::Unsuitable,
                        format!("the VM {name:?} has no vCPUs"),
                    ));
                }
                let vcpus = vm.vcpus.clone();
                Found { name: name.clone(), processes: vec![vm.pid], family: false, vcpus }
            }
            Target::Process(pid) => {
                if let Some(vm) = vms.iter().find(|vm| vm.pid == *pid) {
                    let message = format!("process {pid} is the VM {:?}: reserve for vm:{0}", vm.name);
                    return Err(Refusal::new(RefusalKind::Unsuitable, message));
                }
                let stat = stat_of(*pid).ok_or_else(|| unknown(format!("there is no process {pid}")))?;
                Found { name: stat.comm, processes: vec![*pid], family: false, vcpus: Vec::new() }
            }
            Target::Unit(name) => {
                let processes = processes_where(|groups| {
                    groups.into_iter().any(|group| is_of_unit(&group.pathname, name))
                });
                Found { name: name.clone(), processes, family: true, vcpus: Vec::new() }
            }
            Target::Cgroup(path) => {
                let path = Path::new(path.trim_start_matches('/'));
                let processes = processes_where(|groups| {
                    hierarchy.path_in(groups).is_some_and(|group| group.starts_with(path))
                });
                Found { name: format!("/{}", path.display()), processes, family: true, vcpus: Vec::new() }
            }
        };
        if found.processes.is_empty() {
            return Err(unknown(format!("{target} has no processes")));
        }
        found.check(target, own)?;
        Ok(found)
    }

    fn check(&self, target: &Target, own: &[i32]) -> Result<(), Refusal> {
        let unsuitable = |message: String| Err(Refusal::new(RefusalKind::Unsuitable, message));
        for pid in &self.processes {
            let (Some(stat), Some(process)) = (stat_of(*pid), process_of(*pid)) else { continue };
            if own.contains(pid) {
                return unsuitable(format!(
                    "process {pid} of {target} is frontdesk itself, which keeps the reservations"
                ));
            }
            if stat.flags & StatFlags::PF_KTHREAD.bits() != 0 {
                return unsuitable(format!(
                    "process {pid} of {target} is a thread of the kernel, {}",
                    stat.comm
                ));
            }
            if process != *pid {
                return unsuitable(format!(
                    "{pid} is a thread of process {process}: a process has a reservation as a whole"
                ));
            }
            if has_ended(&stat) {
                let message = format!("process {pid} has ended already");
                return Err(Refusal::new(RefusalKind::UnknownTarget, message));
            }
            if *pid == 1 {
                return unsuitable("process 1 starts all others: if it waited, so would they".to_owned());
            }
        }
        Ok(())
    }

    /// Its members: one for each vCPU, or one for all of it.
    pub(super) fn members(&self) -> usize {
        self.vcpus.len().max(1)
    }

    /// The threads that there are now.
    pub(super) fn threads(&self) -> Result<Vec<TargetThread>, Refusal> {
        let mut parts = Vec::new();
        for pid in &self.processes {
            parts.extend(threads_of(*pid).map(|thread| self.part(thread)));
        }
        if parts.len() > MOST_THREADS {
            let message =
                format!("it has {} threads, and at most {MOST_THREADS} can be reserved for", parts.len());
            return Err(Refusal::new(RefusalKind::Unsuitable, message));
        }
        if parts.is_empty() {
            return Err(Refusal::new(RefusalKind::UnknownTarget, "it has just ended"));
        }
        Ok(parts)
    }

    /// What a thread does for it. The threads of a VM that are no vCPU run with the first one.
    pub(super) fn part(&self, thread: ThreadId) -> TargetThread {
        match self.vcpus.iter().position(|vcpu| *vcpu == thread.tid) {
            Some(member) => TargetThread { thread, role: MemberRole::Worker, member },
            None if self.vcpus.is_empty() => TargetThread { thread, role: MemberRole::Worker, member: 0 },
            None => TargetThread { thread, role: MemberRole::Emulator, member: 0 },
        }
    }
}

/// The threads of a process.
pub(super) fn threads_of(pid: i32) -> impl Iterator<Item = ThreadId> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(move |task| ThreadId::of(pid, task.file_name().to_str()?.parse().ok()?))
}

/// The processes that a process has started.
pub(super) fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map_while(|child| child.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Whether a control group is that of a unit of the system's, or below it: slices lead to a unit, and what is
/// below that the unit names as it likes. So no user's own unit passes for one of the system's.
fn is_of_unit(group: &str, unit: &str) -> bool {
    for part in group.split('/').filter(|part| !part.is_empty()) {
        if part == unit {
            return true;
        }
        if Path::new(part).extension().is_none_or(|kind| kind != "slice") {
            return false;
        }
    }
    false
}

/// The processes whose control groups are such.
fn processes_where(is_member: impl Fn(&ProcessCGroups) -> bool) -> Vec<i32> {
    let all = procfs::process::all_processes().into_iter().flatten().flatten();
    let members: BTreeSet<i32> = all
        .filter(|process| process.cgroups().is_ok_and(|groups| is_member(&groups)))
        .filter(|process| process.stat().is_ok_and(|stat| !has_ended(&stat)))
        .map(|process| process.pid)
        .collect();
    members.into_iter().collect()
}

/// What the kernel tells of a process or thread.
fn stat_of(pid: i32) -> Option<Stat> {
    Process::new(pid).ok()?.stat().ok()
}

fn has_ended(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X')
}

/// The process that a thread is of. By hand: the procfs crate wants the name in that file to be UTF-8.
fn process_of(thread: i32) -> Option<i32> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(target: &str, own: &[i32]) -> (RefusalKind, String) {
        let vms = [
            VmThreads { name: "alice".into(), pid: 77, vcpus: vec![78] },
            VmThreads { name: "mute".into(), pid: 79, vcpus: vec![] },
        ];
        let hierarchy = Hierarchy::detect().unwrap();
        let refusal = Found::find(&target.parse().unwrap(), &vms, own, &hierarchy).unwrap_err();
        (refusal.kind, refusal.message)
    }

    #[test]
    fn what_can_have_no_reservation_is_told_why() {
        let own = i32::try_from(std::process::id()).unwrap();
        for (target, kind, message) in [
            ("pid:4194304", RefusalKind::UnknownTarget, "there is no process 4194304"),
            ("pid:1", RefusalKind::Unsuitable, "process 1 starts all others"),
            ("pid:77", RefusalKind::Unsuitable, "reserve for vm:alice"),
            (&own.to_string(), RefusalKind::Unsuitable, "is frontdesk itself"),
            ("vm:bob", RefusalKind::UnknownTarget, "no VM \"bob\" is followed"),
            ("vm:mute", RefusalKind::Unsuitable, "has no vCPUs"),
            ("unit:no-such.service", RefusalKind::UnknownTarget, "has no processes"),
            ("cgroup:/no/such", RefusalKind::UnknownTarget, "has no processes"),
        ] {
            let (found, told) = refused(target, &[own]);
            assert!(found == kind && told.contains(message), "{target}: {told}");
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let target = format!("pid:{}", child.id());
        let dead = || stat_of(i32::try_from(child.id()).unwrap()).is_some_and(|stat| has_ended(&stat));
        while !dead() {
            std::thread::yield_now();
        }
        assert!(refused(&target, &[]).1.contains("has ended already"));
        child.wait().unwrap();
        // The kernel's threads are children of process 2, if this is no container.
        if let Some(stat) = stat_of(2).filter(|stat| stat.comm == "kthreadd") {
            assert!(stat.flags & StatFlags::PF_KTHREAD.bits() != 0);
            assert!(refused("pid:2", &[]).1.contains("thread of the kernel"));
        }
    }

    #[test]
    fn a_unit_is_the_systems_and_no_users() {
        for (group, is) in [
            ("/system.slice/render.service", true),
            ("/system.slice/system-render.slice/render.service", true),
            ("/machine.slice/render.service/libvirt/vcpu0", true),
            ("/render.service", true),
            // What a user starts.
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/render.service", false),
            ("/system.slice/other.service/render.service", false),
            ("/system.slice/render.service.d", false),
            ("/", false),
        ] {
            assert_eq!(is_of_unit(group, "render.service"), is, "{group}");
        }
        assert!(is_of_unit("/user.slice/user-1000.slice/session-3.scope", "user-1000.slice"));
    }

    #[test]
    fn threads_of_a_vm_run_with_their_vcpu_or_with_the_first() {
        let found = Found { name: "vm".into(), processes: vec![1], family: false, vcpus: vec![11, 12] };
        let part = |tid| {
            let part = found.part(ThreadId { pid: 1, tid, started: 0 });
            (part.role, part.member)
        };
        assert_eq!(found.members(), 2);
        assert_eq!(part(11), (MemberRole::Worker, 0));
        assert_eq!(part(12), (MemberRole::Worker, 1));
        assert_eq!(part(1), (MemberRole::Emulator, 0));
    }
}
