//! The machine and the programs on it.

use super::Finding;
use super::file::{read, version};
use procfs::{CpuInfo, Current as _, Meminfo};
use std::{
    fs::OpenOptions,
    io,
    path::Path,
    process::{Command, Stdio},
};

const QEMU: &str = "qemu-system-x86_64";
/// The first QEMU whose TCG plugins can read registers.
const QEMU_OLDEST: (u32, u32) = (9, 2);
/// Six small lab VMs of about 240 MiB each, and room to breathe.
const MEMORY_WANTED_MIB: u64 = 2048;
const MEMORY_LEAST_MIB: u64 = 512;

pub(super) fn cpus() -> Finding {
    const AREA: &str = "CPUs";
    match std::thread::available_parallelism().map(usize::from) {
        Ok(1) => Finding::limited(
            AREA,
            "1 online",
            "works; lab measurements want a second one, so that the measuring does not compete with the measured",
        ),
        Ok(count) => Finding::ok(AREA, format!("{count} online")),
        Err(e) => {
            Finding::limited(AREA, format!("cannot be counted: {e}"), "check the affinity of this process")
        }
    }
}

pub(super) fn memory() -> Finding {
    const AREA: &str = "memory";
    let available = Meminfo::current().ok().and_then(|memory| memory.mem_available);
    match available.map(|bytes| bytes >> 20) {
        Some(mib) if mib >= MEMORY_WANTED_MIB => Finding::ok(AREA, format!("{mib} MiB available")),
        Some(mib) if mib >= MEMORY_LEAST_MIB => Finding::limited(
            AREA,
            format!("{mib} MiB available"),
            "a lab VM takes about 240 MiB: run fewer at once",
        ),
        Some(mib) => {
            Finding::missing(AREA, format!("{mib} MiB available"), "free at least 512 MiB for the lab")
        }
        None => Finding::limited(AREA, "cannot be told", "mount /proc"),
    }
}

pub(super) fn kvm() -> Finding {
    const AREA: &str = "KVM";
    const PATH: &str = "/dev/kvm";
    let hardware = CpuInfo::current().is_ok_and(|cpus| {
        cpus.flags(0).is_some_and(|flags| flags.contains(&"vmx") || flags.contains(&"svm"))
    });
    match (opens(PATH), hardware) {
        (Ok(()), true) => Finding::ok(AREA, PATH),
        (Ok(()), false) => Finding::limited(
            AREA,
            format!("{PATH} without hardware virtualisation"),
            "VMs run faster under -accel tcg here; in a cloud VM, ask for nested virtualisation",
        ),
        (Err(e), _) => Finding::limited(
            AREA,
            format!("cannot open {PATH}: {e}"),
            "VMs run under -accel tcg, several times slower; enable virtualisation in the firmware and load kvm_intel or \
             kvm_amd",
        ),
    }
}

pub(super) fn taps() -> Finding {
    const AREA: &str = "tap devices";
    const PATH: &str = "/dev/net/tun";
    match opens(PATH) {
        Ok(()) => Finding::ok(AREA, PATH),
        Err(e) => Finding::missing(
            AREA,
            format!("cannot open {PATH}: {e}"),
            "modprobe tun; in a container, pass the device in. Without it lab VMs have no network",
        ),
    }
}

pub(super) fn namespaces() -> Finding {
    const AREA: &str = "network namespaces";
    let limit = read("/proc/sys/user/max_net_namespaces").and_then(|text| text.parse::<u64>().ok());
    match (Path::new("/proc/self/ns/net").exists(), limit) {
        (true, Some(0)) => Finding::missing(
            AREA,
            "forbidden",
            "sysctl user.max_net_namespaces=1000; the lab keeps its networks in one",
        ),
        (true, _) => Finding::ok(AREA, "available"),
        (false, _) => Finding::missing(AREA, "not in this kernel", "use a kernel with CONFIG_NET_NS"),
    }
}

pub(super) fn qemu() -> Finding {
    const AREA: &str = "QEMU";
    let install = "install QEMU 9.2 or newer (Debian 12 has one in bookworm-backports: apt-get install -t \
                   bookworm-backports qemu-system-x86); older ones lack the plugin interface that frontdesk uses";
    match qemu_version() {
        Ok((line, true)) => Finding::ok(AREA, line),
        Ok((line, false)) => {
            Finding::limited(AREA, line, format!("enough for VMs under KVM; for those under TCG {install}"))
        }
        Err(e) => Finding::missing(AREA, format!("cannot run {QEMU}: {e}"), install),
    }
}

/// The QEMU that is found by name.
pub(super) fn qemu_path() -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let qemu = std::env::split_paths(&path).map(|folder| folder.join(QEMU)).find(|path| path.is_file())?;
    qemu.into_os_string().into_string().ok()
}

/// Where distributions put the modules of QEMU.
const QEMU_MODULES: [&str; 4] =
    ["/usr/lib/*/qemu", "/usr/lib/qemu", "/usr/lib64/qemu", "/usr/lib64/qemu-kvm"];

/// A module of QEMU with this file name.
pub(super) fn qemu_module(name: &str) -> Option<String> {
    let found = QEMU_MODULES.iter().filter_map(|folder| glob::glob(&format!("{folder}/{name}")).ok());
    found.flatten().flatten().find_map(|path| path.into_os_string().into_string().ok())
}

/// What QEMU says it is, and whether it is new enough for the plugin.
pub(super) fn qemu_version() -> io::Result<(String, bool)> {
    let text = run(QEMU)?;
    let line = text.lines().next().unwrap_or_default();
    Ok((line.to_owned(), version(line).is_some_and(|found| found >= QEMU_OLDEST)))
}

/// The programs that the lab runs, for each package of Debian's.
pub(super) fn programs() -> Vec<Finding> {
    let fetch = "needed to fetch guest kernels; without them, give the lab a kernel image by path";
    vec![
        programs_of("packages", &["apt-get", "dpkg"], fetch),
        programs_of(
            "kernel modules",
            &["modprobe", "depmod"],
            "apt-get install kmod; the lab orders guest modules with it",
        ),
        programs_of("network", &["ip"], "apt-get install iproute2; the lab makes the VMs' network with it"),
    ]
}

fn programs_of(area: &'static str, programs: &[&str], advice: &str) -> Finding {
    let lacking: Vec<&str> = programs.iter().copied().filter(|program| run(program).is_err()).collect();
    if lacking.is_empty() {
        Finding::ok(area, format!("{} can be run", programs.join(" and ")))
    } else {
        Finding::limited(area, format!("cannot run {}", lacking.join(" and ")), advice)
    }
}

fn opens(path: &str) -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(path).map(drop)
}

/// What a program says to `--version`.
fn run(program: &str) -> io::Result<String> {
    // iproute2 has its own way.
    let version = if program == "ip" { "-V" } else { "--version" };
    let output = Command::new(program).arg(version).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(io::Error::other(format!("it exits with {}", output.status)))
    }
}
