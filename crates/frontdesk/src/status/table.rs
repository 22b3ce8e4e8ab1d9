//! The tables of `frontdesk status`.

use super::WIDTH;
use super::why::protocol;
use crate::words;
use frontdesk_control_protocol::{Status, VmStatus};
use frontdesk_engine::{Standing, TaskExplain};

/// Guest tasks that are listed; all are in the JSON.
const TASKS: usize = 20;
/// What is told of a guest task.
pub(crate) const TASK_HEADER: [&str; 6] = ["task", "belief", "I/O-bound", "CPU", "runs", "last seen"];

/// A line for each VM. Where sched_ext charges boosts, there is no debt.
pub(crate) fn vms(status: &Status) -> String {
    let charges = status.vms.iter().any(|vm| vm.charged.is_some());
    let [first, second] = if charges { ["charged", "first"] } else { ["debt", "share"] };
    let header = ["VM", "state", "tasks", "CPU", "stolen", "boosts", "hits", "PB used", first, second];
    let rows = status.vms.iter().map(|vm| {
        let [first, second] = match vm.charged {
            Some(used) => [words::duration(used.consumed_ns), words::duration(used.boosted_ns)],
            None if charges => ["-", "-"].map(str::to_owned),
            None => [
                words::signed_duration(vm.engine.debt_ns),
                words::percent(f64::from(vm.engine.share_permille) / 1000.0),
            ],
        };
        let [name, state, tasks, cpu, stolen, boosts, hits, used] = cells(vm);
        [name, state, tasks, cpu, stolen, boosts, hits, used, first, second]
    });
    words::table(&header, 2, Some(WIDTH), rows)
}

/// A line for each VM of several hosts.
pub(crate) fn vms_of_hosts<'a>(hosts: impl Iterator<Item = (&'a str, &'a Status)>) -> String {
    let header = ["VM", "host", "state", "tasks", "CPU", "stolen", "boosts", "hits", "PB used"];
    let rows = hosts.flat_map(|(host, status)| {
        status.vms.iter().map(move |vm| {
            let [name, rest @ ..] = cells(vm);
            let [state, tasks, cpu, stolen, boosts, hits, used] = rest;
            [name, host.to_owned(), state, tasks, cpu, stolen, boosts, hits, used]
        })
    });
    words::table(&header, 3, None, rows)
}

/// What is told of a VM whatever the mechanism.
fn cells(vm: &VmStatus) -> [String; 8] {
    [
        words::name(&vm.name),
        state(vm).to_owned(),
        format!("{}/{}", vm.engine.io_bound_count, vm.engine.task_count),
        words::duration(vm.ran_ns()),
        words::duration(vm.sum(|vcpu| vcpu.stolen_ns)),
        vm.boosts().to_string(),
        hits(vm.sum(|vcpu| vcpu.hits), vm.boosts()),
        words::percent(vm.engine.pb_used_ratio),
    ]
}

/// A word for how a VM is.
pub(crate) fn state(vm: &VmStatus) -> &'static str {
    match &vm.identity {
        _ if vm.trouble.is_some() => "TROUBLE",
        _ if vm.engine.paused => "paused",
        _ if vm.engine.standing == Standing::Reserved => "reserved",
        _ if vm.engine.pb_allowed_ratio <= 0.0 => "off",
        None => "blind",
        Some(identity) if identity.exact => "exact",
        Some(_) => "sampled",
    }
}

/// Frames that the players of a VM show a second, all together; `None` if nothing plays.
pub(crate) fn frame_rate(vm: &VmStatus) -> Option<f64> {
    let players = &vm.engine.multimedia.as_ref()?.players;
    (!players.is_empty()).then(|| players.iter().map(|player| player.frame_rate).sum())
}

/// The fraction of boosts in which an I/O-bound task ran (PBHR).
pub(crate) fn hits(hits: u64, boosts: u64) -> String {
    if boosts == 0 { "-".to_owned() } else { words::percent(hits as f64 / boosts as f64) }
}

/// A line for each vCPU of a VM.
pub(crate) fn vcpus(vm: &VmStatus) -> String {
    let header = ["vCPU", "runs", "CPU", "stolen", "boosted", "boosts", "hits", "by time"];
    let rows = vm.engine.vcpus.iter().map(|vcpu| {
        [
            vcpu.index.to_string(),
            vcpu.current.map_or_else(|| "-".to_owned(), |task| format!("{:#x}", task.0)),
            words::duration(vcpu.ran_ns),
            words::duration(vcpu.stolen_ns),
            words::duration(vcpu.boosted_ns),
            vcpu.boosts.to_string(),
            hits(vcpu.hits, vcpu.boosts),
            vcpu.expired.to_string(),
        ]
    });
    words::table(&header, 2, Some(WIDTH), rows)
}

/// A line for each of the guest tasks that ran last; nothing if none is known.
pub(crate) fn tasks(status: &Status, vm: &VmStatus) -> Option<String> {
    if vm.engine.tasks.is_empty() {
        return None;
    }
    let rows = vm.engine.tasks.iter().take(TASKS).map(|of| task(status, of));
    let table = words::table(&TASK_HEADER, 1, Some(WIDTH), rows);
    let rest = vm.engine.tasks.len().saturating_sub(TASKS);
    let more = if rest > 0 { format!("\nand {rest} more; --json has them") } else { String::new() };
    Some(table + &more)
}

/// The cells of a guest task.
pub(crate) fn task(status: &Status, task: &TaskExplain) -> [String; 6] {
    [
        task_name(task),
        task.belief.to_string(),
        if task.io_bound { "yes" } else { "no" }.to_owned(),
        words::duration(task.ran_ns),
        task.dispatches.to_string(),
        format!("{} ago", words::duration(status.at_ns.saturating_sub(task.last_seen.0))),
    ]
}

/// A guest task as people know it, if the guest tells, or by its number.
pub(crate) fn task_name(task: &TaskExplain) -> String {
    match (&task.name, task.pid) {
        (Some(name), Some(pid)) => format!("{} ({pid})", words::name(name)),
        (Some(name), None) => words::name(name),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => format!("{:#x}", task.id.0),
    }
}

/// The ports whose packets woke an I/O-bound task, with their counters.
pub(crate) fn ports(status: &Status, vm: &VmStatus) -> String {
    if vm.engine.ports.is_empty() {
        return "none has led to an I/O-bound task yet".to_owned();
    }
    let most = (1u64 << status.policy.tavs.counter_bits.min(8)) - 1;
    let ports = vm.engine.ports.iter().map(|port| {
        let boosts = if port.boosts { ", boosts" } else { "" };
        format!("{} {} ({} of {most}{boosts})", protocol(port.protocol), port.port, port.counter)
    });
    ports.collect::<Vec<_>>().join(", ")
}
