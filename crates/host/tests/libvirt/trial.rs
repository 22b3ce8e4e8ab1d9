//! What is tried in the Debian system.

use crate::{
    PASSED,
    guest::{self, Guest, HARDWARE, TAP},
    host::{active_daemon, no_process_is_left, run_for_output, status_of, step, systemctl, type_in},
    init::{DEB, HOME},
    support::eventually,
};
use anyhow::{Context as _, Result, ensure};
use std::{fs, process::ExitCode};

const CONFIGURATION: &str = "/etc/frontdesk/frontdesk.toml";

/// Grants what probes in QEMU take.
const GRANT: &str = r"printf '[Service]\nCapabilityBoundingSet=CAP_SYS_ADMIN\n' > /etc/systemd/system/frontdesk.service.d/reads.conf";

/// Does the trial, and tells how it went.
pub(crate) fn run() -> ExitCode {
    match libvirt() {
        Ok(()) => {
            println!("{PASSED}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error:?}");
            for unit in ["frontdesk", "libvirtd"] {
                let log = run_for_output("journalctl", &["--no-pager", "-o", "cat", "-u", unit]);
                println!("the journal of {unit}: {}", log.unwrap_or_else(|error| error.to_string()));
            }
            ExitCode::FAILURE
        }
    }
}

fn libvirt() -> Result<()> {
    guest::prepare()?;
    // As udev has it where it runs.
    run_for_output("chmod", &["666", "/dev/kvm"])?;
    fs::write(format!("{HOME}/alice.xml"), definition())?;

    virsh(&["define", &format!("{HOME}/alice.xml")])?;
    let mut guide = Guide::open();

    step("install");
    guide.follow("apt-get install ./frontdesk_*_amd64.deb")?;
    guide.follow("systemctl is-active frontdesk")?;
    guide.follow("frontdesk doctor")?;
    guide.follow("mkdir -p /etc/systemd/system/frontdesk.service.d")?;
    guide.follow(GRANT)?;
    guide.follow("systemctl daemon-reload")?;
    guide.follow("systemctl restart frontdesk")?;

    step("start");
    guide.follow("virsh start alice")?;
    let alice = running()?;
    alice.is_untouched()?;
    let weight = weight(&alice)?;
    alice.is_followed()?;
    for command in ["systemctl status frontdesk", "frontdesk status", "frontdesk status --why alice"] {
        let told = guide.follow(command)?;
        ensure!(told.contains("alice") || told.contains("1 VM"), "{command}: {told}");
    }

    step("configure");
    let shipped = fs::read_to_string(CONFIGURATION)?;
    fs::write(CONFIGURATION, format!("{}{shipped}", guest::CONFIGURATION))?;
    let holds = guide.follow("frontdesk run --check")?;
    ensure!(holds.contains("correlation = false"), "{holds}");
    guide.follow("systemctl reload frontdesk")?;

    step("boost");
    alice.is_seen_and_boosted()?;

    step("reserve, pause and resume");
    alice.is_reserved_paused_and_released(|command| guide.follow(command))?;

    step("virsh suspend and resume");
    virsh(&["suspend", "alice"])?;
    virsh(&["resume", "alice"])?;
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;

    step("virsh reset");
    virsh(&["reset", "alice"])?;
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;

    step("restart of libvirt");
    systemctl(&["restart", "libvirtd"])?;
    ensure!(virsh(&["domstate", "alice"])? == "running", "the VM does not run");
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;

    step("virsh destroy");
    virsh(&["destroy", "alice"])?;
    eventually("it is forgotten", || status_of("alice").is_err())?;
    virsh(&["start", "alice"])?;
    let alice = running()?;
    alice.is_followed()?;

    step("upgrade");
    let before = active_daemon()?;
    run_for_output("dpkg", &["-i", DEB])?;
    ensure!(active_daemon()? != before, "the former daemon still runs");
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;

    step("purge");
    guide.follow("apt-get purge --yes frontdesk")?;
    guide.follow("rm -r /etc/systemd/system/frontdesk.service.d")?;
    no_process_is_left()?;
    alice.is_untouched()?;
    ensure!(self::weight(&alice)? == weight, "its weight is not what it was");
    ensure!(virsh(&["domstate", "alice"])? == "running", "the VM does not run");
    virsh(&["destroy", "alice"])?;
    virsh(&["undefine", "alice"])?;
    guide.ended()
}

/// What the guide says to type, in its order.
struct Guide(Vec<&'static str>);

impl Guide {
    fn open() -> Guide {
        let blocks = include_str!("../../../../docs/guides/libvirt.md").split("```").skip(1).step_by(2);
        let lines = blocks.filter_map(|block| block.strip_prefix("sh\n")).flat_map(str::lines);
        let mut lines: Vec<_> = lines.filter_map(|line| line.strip_prefix("# ")).collect();
        lines.reverse();
        Guide(lines)
    }

    /// Does what comes next in it, which is to be this.
    fn follow(&mut self, command: &str) -> Result<String> {
        let next = self.0.pop();
        ensure!(next == Some(command), "the guide says {next:?} where the trial says {command:?}");
        type_in(command)
    }

    fn ended(self) -> Result<()> {
        ensure!(self.0.is_empty(), "the guide says more: {:?}", self.0);
        Ok(())
    }
}

/// The VM in libvirt's words: what is special about it is that it is small.
fn definition() -> String {
    format!(
        "<domain type='kvm'>
  <name>alice</name>
  <memory unit='MiB'>32</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><loader readonly='yes' type='rom'>{HOME}/firmware</loader></os>
  <features><acpi/></features>
  <cpu mode='host-passthrough'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{HOME}/disk'/><target dev='hda' bus='ide'/>
    </disk>
    <interface type='ethernet'>
      <mac address='{HARDWARE}'/><target dev='{TAP}' managed='no'/><model type='virtio'/><rom enabled='no'/>
    </interface>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"
    )
}

/// The VM that has just been started.
fn running() -> Result<Guest> {
    let pid = fs::read_to_string("/run/libvirt/qemu/alice.pid").context("the VM's process id")?;
    Ok(Guest { name: "alice", pid: pid.trim().parse()? })
}

/// The weight of its control group.
fn weight(vm: &Guest) -> Result<String> {
    let group = fs::read_to_string(format!("/proc/{}/cgroup", vm.pid))?;
    let group = group.lines().find_map(|line| line.strip_prefix("0::")).context("its control group")?;
    // libvirt has a group for QEMU's threads below that of the VM.
    let of_vm = group.split_inclusive(".scope").next().context("its scope")?;
    Ok(fs::read_to_string(format!("/sys/fs/cgroup{of_vm}/cpu.weight"))?)
}

fn virsh(arguments: &[&str]) -> Result<String> {
    run_for_output("virsh", arguments)
}
