//! The kernel: what it is, allows and schedules.

use super::file::{full_version, read, version};
use super::{Finding, machine};
use crate::reserve;
use crate::reserve::ReserveMechanism;
use frontdesk_linux::cgroup::{Hierarchy, RealTimeRule, Version};
use frontdesk_probes::bpf::Heard;
use frontdesk_probes::scx::ScxError;
use frontdesk_probes::{bpf, scx};
use std::{fs::OpenOptions, path::Path};

/// Capabilities frontdesk uses, by bit of `CapEff`.
const CAPABILITIES: [(u32, &str); 5] = [
    (12, "CAP_NET_ADMIN"),
    (21, "CAP_SYS_ADMIN"),
    (23, "CAP_SYS_NICE"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];
/// Since then, sched_switch has the arguments the BPF programs read.
const OLDEST: (u32, u32) = (5, 18);
/// What frontdesk is tested with.
const TESTED: (u32, u32) = (6, 1);

pub(super) fn privilege() -> Finding {
    const AREA: &str = "privilege";
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let lacking: Vec<&str> =
        CAPABILITIES.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|&(_, name)| name).collect();
    let user = if rustix::process::geteuid().is_root() { "root" } else { "not root" };
    if lacking.is_empty() {
        Finding::ok(AREA, format!("{user}, with all capabilities used"))
    } else {
        Finding::missing(
            AREA,
            format!("{user}, without {}", lacking.join(", ")),
            "run as root, outside of a container",
        )
    }
}

pub(super) fn release() -> Finding {
    const AREA: &str = "kernel";
    let release = release_name();
    match version(&release) {
        Some(found) if found >= TESTED => Finding::ok(AREA, format!("Linux {release}")),
        Some(found) if found >= OLDEST => {
            Finding::limited(AREA, format!("Linux {release}"), "frontdesk is tested with Linux 6.1 and newer")
        }
        _ => Finding::missing(AREA, format!("Linux {release:?}"), "use Linux 6.1 or newer"),
    }
}

fn release_name() -> String {
    read("/proc/sys/kernel/osrelease").unwrap_or_default()
}

pub(super) fn btf() -> Finding {
    const AREA: &str = "BTF";
    const PATH: &str = "/sys/kernel/btf/vmlinux";
    if Path::new(PATH).exists() {
        Finding::ok(AREA, PATH)
    } else {
        Finding::missing(
            AREA,
            format!("no {PATH}"),
            "use a kernel with CONFIG_DEBUG_INFO_BTF, as distribution kernels are; BPF programs need it to load",
        )
    }
}

pub(super) fn bpf_programs() -> Vec<Finding> {
    const AREAS: [&str; bpf::PROGRAMS.len()] = [
        "BPF on_switch",
        "BPF on_waking",
        "BPF on_wakeup",
        "BPF on_transmit",
        "BPF on_receive",
        "BPF on_read",
        "BPF on_read_done",
        "BPF on_display",
        "BPF on_gpu",
        "BPF on_input",
    ];
    let verdicts = bpf::probe();
    AREAS
        .into_iter()
        .zip(bpf::PROGRAMS)
        .zip(verdicts)
        .map(|((area, (_, purpose)), (_, verdict))| match verdict {
            Ok(()) => Finding::ok(area, format!("loads ({purpose})")),
            Err(e) => Finding::missing(area, format!("is refused ({purpose})"), e.to_string()),
        })
        .collect()
}

/// What is heard of VMs by probes on functions of QEMU.
pub(super) fn probed_functions() -> Vec<Finding> {
    const AREAS: [(&str, Heard, &str); 4] = [
        ("reads of VMs", Heard::Reads, "the ends of disk reads boost nobody"),
        ("displays of VMs", Heard::Display, "films are not known, and their VMs not helped"),
        ("graphics of VMs", Heard::Gpu, "frames are known from displays only"),
        ("input of VMs", Heard::Input, "what a person starts is known by configured ports and by sound only"),
    ];
    let Some(qemu) = machine::qemu_path() else {
        return vec![Finding::limited("displays of VMs", "there is no QEMU to look at", "see QEMU")];
    };
    let module = machine::qemu_module(bpf::GPU_MODULE);
    let failures = match bpf::probe_functions(&qemu, module.as_deref()) {
        Ok(failures) => failures,
        Err(error) => {
            return vec![Finding::limited(
                "displays of VMs",
                "the kernel refuses the BPF programs",
                error.to_string(),
            )];
        }
    };
    let finding = |(area, heard, without): (_, Heard, &str)| {
        if heard == Heard::Gpu && module.is_none() {
            return Finding::limited(area, format!("{} is not installed", bpf::GPU_MODULE), without);
        }
        match failures.iter().find(|(failed, _)| *failed == heard) {
            None => Finding::ok(area, format!("{heard} are heard, by probes in QEMU")),
            Some((_, error)) => Finding::limited(area, error.to_string(), format!("without that, {without}")),
        }
    };
    AREAS.into_iter().map(finding).collect()
}

pub(super) fn control_groups() -> Finding {
    const AREA: &str = "control groups";
    match Hierarchy::detect() {
        Ok(hierarchy) => {
            let version = match hierarchy.version() {
                Version::V1 => 1,
                Version::V2 => 2,
            };
            Finding::ok(
                AREA,
                format!("cpu controller in version {version} at {}", hierarchy.mount().display()),
            )
        }
        Err(e) => Finding::missing(AREA, "no cpu controller", e.to_string()),
    }
}

pub(super) fn real_time_groups() -> Finding {
    const AREA: &str = "real time in groups";
    match Hierarchy::detect().map(|hierarchy| (hierarchy.real_time(), hierarchy)) {
        Ok((RealTimeRule::Free, _)) => Finding::ok(AREA, "needs no budget (no RT_GROUP_SCHED)"),
        Ok((RealTimeRule::Budget, hierarchy)) => {
            let file = |name| read(hierarchy.mount().join(name)).unwrap_or_default();
            let (runtime, period) = (file("cpu.rt_runtime_us"), file("cpu.rt_period_us"));
            Finding::ok(
                AREA,
                format!("by budget (RT_GROUP_SCHED); the root group has {runtime} of {period} us"),
            )
        }
        Ok((RealTimeRule::Refused, _)) => Finding::missing(
            AREA,
            "refused outside of the root group (RT_GROUP_SCHED with control groups version 2)",
            "boot with rt_group_sched=0 (Linux 6.16 or newer) or use a kernel without RT_GROUP_SCHED; otherwise only VMs \
             in the root group can be boosted",
        ),
        Err(_) => Finding::limited(AREA, "no cpu controller to ask", "see control groups"),
    }
}

pub(super) fn real_time_throttle() -> Finding {
    const AREA: &str = "real-time throttle";
    let knob =
        |name: &str| read(format!("/proc/sys/kernel/{name}")).and_then(|text| text.parse::<i64>().ok());
    match (knob("sched_rt_runtime_us"), knob("sched_rt_period_us")) {
        (Some(0), _) => Finding::missing(
            AREA,
            "real time is switched off",
            "sysctl kernel.sched_rt_runtime_us=950000, the kernel's default",
        ),
        (Some(runtime), Some(period)) if runtime < 0 || runtime >= period => Finding::limited(
            AREA,
            "none: a real-time thread that spins is never stopped",
            "sysctl kernel.sched_rt_runtime_us=950000, the kernel's default, keeps a boosted VM from taking a CPU for good",
        ),
        (Some(runtime), Some(period)) => Finding::ok(AREA, format!("{runtime} of {period} us")),
        _ => Finding::limited(AREA, "cannot be read", "mount /proc with sys"),
    }
}

/// Whether the kernel's own scheduler may forget somebody when weights change.
pub(super) fn weights() -> Finding {
    weights_of(&release_name())
}

fn weights_of(release: &str) -> Finding {
    const AREA: &str = "changes of weight";
    // Since 6d71a9c61604 whoever runs is placed too far behind when its weight changes, and so goes on;
    // 101f3498b4bd takes that back.
    const BROKEN: [std::ops::Range<(u32, u32, u32)>; 2] = [(6, 13, 0)..(6, 18, 45), (6, 19, 0)..(7, 0, 0)];
    match full_version(release) {
        Some(found) if BROKEN.iter().any(|broken| broken.contains(&found)) => Finding::limited(
            AREA,
            format!(
                "Linux {release} may let a vCPU that could run wait for seconds when weights of control groups \
                 change, as parts of them do all the time where VMs with several vCPUs share CPUs"
            ),
            "use Linux 6.18.45 or newer (7.0, if it is 6.19); it concerns VMs with several vCPUs, with and \
             without frontdesk",
        ),
        _ => Finding::ok(AREA, "nobody is known to be forgotten"),
    }
}

pub(super) fn fair_server() -> Finding {
    const AREA: &str = "fair server";
    const FIRST: (u32, u32) = (6, 12);
    let first = Path::new(reserve::FAIR_SERVERS).join("cpu0");
    let milliseconds = |name| Some(read(first.join(name))?.parse::<u64>().ok()? / 1_000_000);
    // Opening it changes nothing.
    match (OpenOptions::new().write(true).open(first.join("runtime")), version(&release_name())) {
        (Ok(_), _) => {
            let (runtime, period) = (milliseconds("runtime"), milliseconds("period"));
            let found = format!("{} of {} ms", runtime.unwrap_or_default(), period.unwrap_or_default());
            Finding::ok(AREA, format!("{found} of each CPU for ordinary threads; lowered for reservations"))
        }
        (Err(_), Some(release)) if release < FIRST => Finding::ok(AREA, "none before Linux 6.12"),
        (Err(error), _) => Finding::limited(
            AREA,
            format!("cannot be lowered for reservations ({}: {error})", first.display()),
            "above 0.95 of a CPU whole periods will be lost to the kernel's fair server; mount debugfs, as systemd does, and do without the \
             kernel's lockdown",
        ),
    }
}

pub(super) fn reservations() -> Finding {
    const AREA: &str = "reservations";
    let mechanism = Hierarchy::detect().map(|hierarchy| ReserveMechanism::Auto.on(&hierarchy));
    match (reserve::probe(), mechanism) {
        (Err(e), _) => Finding::missing(AREA, "run time cannot be measured", e.to_string()),
        (Ok(()), Ok(ReserveMechanism::Deadline)) => Finding::limited(
            AREA,
            "by SCHED_DEADLINE, which enforces slices by its timer tick",
            "precise below ten ticks only by real-time priority: see real time in groups",
        ),
        (Ok(()), Ok(_)) => Finding::ok(AREA, "by real-time priority, changed at the end of each slice"),
        (Ok(()), Err(_)) => Finding::missing(AREA, "no cpu controller", "see control groups"),
    }
}

pub(super) fn sched_ext() -> Finding {
    const AREA: &str = "sched_ext";
    match scx::probe() {
        Ok(()) => Finding::ok(AREA, "available"),
        Err(ScxError::Busy { name, state }) if name.starts_with(scx::NAME) => {
            Finding::ok(AREA, format!("{state}, by frontdesk"))
        }
        Err(error @ ScxError::Busy { .. }) => Finding::limited(
            AREA,
            error.to_string(),
            "not needed for boosts by real time; it schedules the VMs as it sees fit, and frontdesk's measure of their fair shares may not \
             be its own",
        ),
        Err(error) => Finding::limited(AREA, error.to_string(), "not needed for boosts by real time"),
    }
}

pub(super) fn autogroup() -> Finding {
    const AREA: &str = "autogroup";
    match read("/proc/sys/kernel/sched_autogroup_enabled").as_deref() {
        Some("1") => Finding::limited(
            AREA,
            "on: VMs outside of control groups of their own are grouped by session, whatever their nice values",
            "start each VM in a control group of its own, as libvirt and the lab do, or sysctl \
             kernel.sched_autogroup_enabled=0",
        ),
        _ => Finding::ok(AREA, "off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn kernels_that_forget_somebody_are_named() {
        for (release, status) in [
            ("6.1.0-41-amd64", Status::Ok),
            ("6.12.48+deb13-amd64", Status::Ok),
            ("6.13.0", Status::Limited),
            ("6.18.44-fc", Status::Limited),
            ("6.18.45", Status::Ok),
            ("6.19.3", Status::Limited),
            ("7.0.0", Status::Ok),
            ("of my own", Status::Ok),
        ] {
            assert_eq!(weights_of(release).status, status, "{release}");
        }
    }
}
