//! What is tried in the Debian system.

use crate::{
    FAULTS, PASSED,
    guest::{self, Guest, HARDWARE, PORT, TAP, THEIRS, make_tap, sum},
    guide::Guide,
    host::{
        active_daemon, another_daemon, no_process_is_left, run_for_output, status_of, step, systemctl,
        type_in,
    },
    init::{DEB, GUESTS_PARAMETER, HOME, parameter},
    own_init::load_module,
    plain::{self, FLOOD, Plain},
    proxmox, response,
    support::eventually,
};
use anyhow::{Context as _, Result, ensure};
use procfs::process::Process;
use rustix::{io::Errno, system::delete_module};
use std::{
    cell::Cell,
    ffi::CStr,
    fs,
    net::{Ipv4Addr, UdpSocket},
    process::ExitCode,
};

pub(crate) const CONFIGURATION: &str = "/etc/frontdesk/frontdesk.toml";

/// A second network device for VMs, and the guest's address on it.
const OTHER_TAP: &str = "vm-tap-2";
const OTHER_ADDRESS: &str = "10.99.1.2";

/// For as much CPU time a guest floods.
const FLOODS_SECONDS: u64 = 5;

/// Grants what probes in QEMU take.
const GRANT: &str = r"printf '[Service]\nCapabilityBoundingSet=CAP_SYS_ADMIN\n' > /etc/systemd/system/frontdesk.service.d/reads.conf";

/// Does the trial, and tells how it went.
pub(crate) fn run() -> ExitCode {
    match trial() {
        Ok(()) => {
            println!("{PASSED}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            for unit in ["frontdesk", "libvirtd"] {
                let log = run_for_output("journalctl", &["--no-pager", "-o", "cat", "-u", unit]);
                println!("the journal of {unit}: {}", log.unwrap_or_else(|error| error.to_string()));
            }
            println!("the trial failed: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn trial() -> Result<()> {
    if parameter(GUESTS_PARAMETER)?.is_some() {
        return response::measure();
    }
    let faults = parameter(FAULTS)?.is_some();
    guest::prepare()?;
    plain::prepare()?;
    // As udev has it where it runs.
    run_for_output("chmod", &["666", "/dev/kvm"])?;
    fs::write(format!("{HOME}/alice.xml"), definition("alice", "firmware", &devices()))?;
    virsh(&["define", &format!("{HOME}/alice.xml")])?;
    if faults {
        return survives();
    }
    follows_the_guide()?;
    // No matter of the kernel's age, and this one needs no more rights than the package gives.
    if is_linux_6_1()? { Ok(()) } else { proxmox::follows_the_guide() }
}

/// What the guide says, and what else the kernel's age matters for.
fn follows_the_guide() -> Result<()> {
    let mut guide = Guide::open(include_str!("../../../../docs/guides/libvirt.md"));

    step("install");
    guide.follow("apt-get install ./frontdesk_*_amd64.deb")?;
    guide.follow("systemctl is-active frontdesk")?;
    guide.follow("frontdesk doctor")?;
    // Later kernels need no such right.
    let grants = is_linux_6_1()?;
    for command in [
        "mkdir -p /etc/systemd/system/frontdesk.service.d",
        GRANT,
        "systemctl daemon-reload",
        "systemctl restart frontdesk",
    ] {
        if grants {
            guide.follow(command)?;
        } else {
            guide.pass(command)?;
        }
    }

    step("start");
    guide.follow("virsh start alice")?;
    let alice = running("alice")?;
    alice.is_untouched()?;
    let told = alice.is_followed()?;
    ensure!(told["identity"]["source"] == "KVM, CR3 at exits", "{told:#}");
    for command in ["systemctl status frontdesk", "frontdesk status", "frontdesk status --why alice"] {
        let told = guide.follow(command)?;
        ensure!(told.contains("alice") || told.contains("1 VM"), "{command}: {told}");
    }
    virsh(&["schedinfo", "alice", "--live", "--config", "--set", "cpu_shares=200"])?;
    ensure!(weight(&alice)? == "200", "libvirt has set {}", weight(&alice)?);
    // A weight of 100 is 1024.
    alice.becomes("its new weight is taken", |told| told["weight"] == 2048)?;

    step("configure");
    configure()?;
    let holds = guide.follow("frontdesk run --check")?;
    ensure!(holds.contains("correlation = false"), "{holds}");
    guide.follow("systemctl reload frontdesk")?;

    step("boost");
    alice.is_seen_and_boosted()?;

    step("reserve, pause and resume");
    alice.is_reserved_paused_and_released(|command| guide.follow(command))?;

    let alice = is_followed_without_nested_paging(grants)?;

    step("purge");
    guide.follow("apt-get purge --yes frontdesk")?;
    if grants {
        guide.follow("rm -r /etc/systemd/system/frontdesk.service.d")?;
    } else {
        guide.pass("rm -r /etc/systemd/system/frontdesk.service.d")?;
    }
    no_process_is_left()?;
    alice.is_untouched()?;
    ensure!(weight(&alice)? == "200", "its weight is {}", weight(&alice)?);
    ensure!(virsh(&["domstate", "alice"])? == "running", "the VM does not run");
    virsh(&["destroy", "alice"])?;
    virsh(&["undefine", "alice"])?;
    guide.ended()
}

fn is_linux_6_1() -> Result<bool> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?.starts_with("6.1."))
}

/// Has any packet boost, and VMs found by their QMP sockets, too.
fn configure() -> Result<()> {
    let shipped = fs::read_to_string(CONFIGURATION)?;
    let sockets = format!("vms.qmp = ['{HOME}/vms/*.qmp']\n");
    Ok(fs::write(CONFIGURATION, format!("{sockets}{}{shipped}", guest::CONFIGURATION))?)
}

/// What may happen to a VM, to libvirt and to frontdesk.
fn survives() -> Result<()> {
    step("install and start");
    run_for_output("dpkg", &["-i", DEB])?;
    configure()?;
    systemctl(&["reload", "frontdesk"])?;
    let alice = started()?;

    step("KVM is to be unloaded");
    is_not_unloaded_below(&alice)?;

    step("virsh suspend and resume");
    virsh(&["suspend", "alice"])?;
    owes_nothing_while_suspended(&alice)?;
    virsh(&["resume", "alice"])?;
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;

    step("virsh reboot and reset");
    // Such a guest does not listen to it.
    virsh(&["reboot", "alice"])?;
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
    started()?;

    step("virsh managedsave");
    virsh(&["managedsave", "alice"])?;
    eventually("it is forgotten", || status_of("alice").is_err())?;
    let alice = started()?;

    step("death of the daemon");
    let before = active_daemon()?;
    type_in("frontdesk reserve alice --period 100ms --slice 20ms")?;
    systemctl(&["kill", "--kill-who=main", "--signal=KILL", "frontdesk"])?;
    another_daemon(before)?;
    eventually("it is put back", || alice.is_untouched().is_ok())?;
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;

    step("upgrade");
    let before = active_daemon()?;
    run_for_output("dpkg", &["-i", DEB])?;
    ensure!(active_daemon()? != before, "the former daemon still runs");
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;

    step("a VM of somebody else, which does nothing but leave its guest");
    let other = Plain::start("other", &["-bios", &format!("{HOME}/{FLOOD}")])?;
    eventually("it runs", || other.computes())?;
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;
    ensure!(status_of("other").is_err(), "it is followed");
    other.0.is_untouched()?;
    drop(other);

    step("the same, as one of libvirt's");
    fs::write(format!("{HOME}/flood.xml"), definition("flood", FLOOD, ""))?;
    virsh(&["create", &format!("{HOME}/flood.xml")])?;
    let flood = running("flood")?;
    flood.is_followed()?;
    alice.is_seen_and_boosted()?;
    // What she does costs the daemon something, too.
    virsh(&["suspend", "alice"])?;
    standing_still(&alice)?;
    flood_costs_little(&flood)?;
    virsh(&["resume", "alice"])?;
    virsh(&["destroy", "flood"])?;

    step("live migration");
    migrates()
}

/// KVM's modules are loaded anew while the daemon runs, without nested paging and with it. Returns alice as
/// it then is.
fn is_followed_without_nested_paging(grants: bool) -> Result<Guest> {
    step("KVM without nested paging");
    let before = active_daemon()?;
    virsh(&["destroy", "alice"])?;
    load_kvm(c"npt=0")?;
    virsh(&["start", "alice"])?;
    let alice = running("alice")?;
    let told = alice.is_followed()?;
    let wanted = if grants { "KVM, CR3 loads" } else { "KVM, CR3 at thread switches" };
    ensure!(told["identity"]["source"] == wanted, "{told:#}");
    alice.is_seen_and_boosted()?;
    virsh(&["destroy", "alice"])?;
    load_kvm(c"npt=1")?;
    let alice = started()?;
    ensure!(active_daemon()? == before, "another daemon runs");
    Ok(alice)
}

/// Loads KVM anew, while the daemon runs.
fn load_kvm(parameters: &CStr) -> Result<()> {
    // The daemon takes its programs out when it follows no VM under KVM any more, and till then the module is
    // in use.
    eventually("KVM is unloaded", || delete_module(c"kvm_amd", 0).is_ok())?;
    load_module("kvm-amd.ko", parameters)?;
    // As udev has it where it runs.
    run_for_output("chmod", &["666", "/dev/kvm"])?;
    Ok(())
}

/// A VM moves from one QEMU to another, and from that to a third one while it is reserved for. Packets for it
/// come by another network device of the host's meanwhile.
fn migrates() -> Result<()> {
    // Alice's device is for the one that moves.
    virsh(&["destroy", "alice"])?;
    make_tap(OTHER_TAP, "10.99.1.1", OTHER_ADDRESS)?;
    let from = Plain::start_desktop("carol-1", TAP, None)?;
    from.0.is_followed()?;
    from.0.is_seen_and_boosted()?;
    // As Proxmox does: QEMU tells of it.
    from.tell("stop")?;
    from.0.becomes("it is paused", |told| told["paused"] == true)?;
    let before = standing_still(&from.0)?;
    let heard =
        packets_until(&from.0, "packets are let be", |outcomes| outcomes["paused"].as_u64() > Some(0))?;
    ensure!(heard["vcpus"][0]["boosts"] == before["vcpus"][0]["boosts"], "boosted while paused: {heard:#}");
    from.tell("cont")?;
    from.0.becomes("it goes on", |told| told["paused"] == false)?;
    from.tell("system_reset")?;
    from.0.has_tasks()?;

    let incoming = format!("unix:{HOME}/vms/carol-2.state");
    let to = Plain::start_desktop("carol-2", OTHER_TAP, Some(&incoming))?;
    to.0.is_followed()?;
    moves(from, &to, &incoming)?;
    to.0.is_seen_and_boosted_at(OTHER_ADDRESS)?;

    type_in("frontdesk reserve carol-2 --period 100ms --slice 20ms")?;
    to.0.becomes("it is reserved for", |told| told["standing"] == "reserved")?;
    let incoming = format!("unix:{HOME}/vms/carol-3.state");
    let back = Plain::start_desktop("carol-3", TAP, Some(&incoming))?;
    back.0.is_followed()?;
    moves(to, &back, &incoming)?;
    // Where something is wrong, as with a VM that has ended, it fails with what it lists.
    let listed = || type_in("frontdesk list").unwrap_or_else(|error| error.to_string());
    let ended = "vm:carol-2: it has ended, and its reservation with it";
    eventually("its reservation ends", || listed().contains(ended))?;
    back.0.is_seen_and_boosted()
}

/// Moves a VM to a QEMU that waits for it, and ends the one that it leaves.
fn moves(from: Plain, to: &Plain, incoming: &str) -> Result<()> {
    from.tell(&format!("migrate -d {incoming}"))?;
    from.0.becomes("it has moved", |told| told["paused"] == true)?;
    to.0.has_tasks()?;
    ensure!(status_of(to.0.name)?["paused"] == false, "it does not run");
    let left = from.0.name;
    drop(from);
    eventually("it is forgotten", || status_of(left).is_err())?;
    to.0.is_followed()?;
    Ok(())
}

/// A module of KVM's stays as long as a VM needs it, and nothing is changed by the attempt to unload it.
fn is_not_unloaded_below(vm: &Guest) -> Result<()> {
    let told = delete_module(c"kvm_amd", 0);
    ensure!(told == Err(Errno::AGAIN), "KVM is unloaded while a VM runs: {told:?}");
    vm.is_followed()?;
    vm.is_seen_and_boosted()
}

/// Packets come for a VM that libvirt has suspended, of which frontdesk does not hear: what they boost ends
/// by time, and counts for nothing, as the vCPU does not run.
fn owes_nothing_while_suspended(vm: &Guest) -> Result<()> {
    let before = standing_still(vm)?;
    packets_until(vm, "packets are decided", |outcomes| sum(outcomes) > decisions(&before))?;
    let after = standing_still(vm)?;
    for of in ["ran_ns", "boosted_ns"] {
        ensure!(after["vcpus"][0][of] == before["vcpus"][0][of], "{of} has grown: {before:#} {after:#}");
    }
    ensure!(after["debt_ns"].as_i64() <= before["debt_ns"].as_i64().max(Some(0)), "{before:#} {after:#}");
    eventually("it is put back", || vm.is_untouched().is_ok())
}

/// Waits until nothing that a VM was given lasts, and nothing more comes. Returns what is told of it.
fn standing_still(vm: &Guest) -> Result<serde_json::Value> {
    let last = Cell::new(None);
    vm.becomes("nothing lasts", |told| {
        let decided = last.replace(Some(decisions(told)));
        let more = decided != Some(decisions(told));
        !more && told["vcpus"][0]["boosted"] == false && told["share_permille"] == 1000
    })
}

/// Decisions about packets, of those that are told of.
fn decisions(told: &serde_json::Value) -> u64 {
    sum(&told["recent"]["packets"][0]["outcomes"])
}

/// Sends a VM packets until what was decided about them is so.
fn packets_until(
    vm: &Guest,
    what: &str,
    is_so: impl Fn(&serde_json::Value) -> bool,
) -> Result<serde_json::Value> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    vm.becomes(what, |told| {
        let _ = socket.send_to(b"?", (THEIRS, PORT));
        is_so(&told["recent"]["packets"][0]["outcomes"])
    })
}

/// A guest leaves for KVM again and again, and nobody else has the daemon do anything: it does not do much.
fn flood_costs_little(flood: &Guest) -> Result<()> {
    let daemon = active_daemon()?.parse()?;
    let used = |pid| -> Result<u64> {
        let stat = Process::new(pid)?.stat()?;
        Ok(stat.utime + stat.stime)
    };
    let (flood_before, daemon_before) = (used(flood.pid.cast_signed())?, used(daemon)?);
    let mut flooded = 0;
    eventually("it floods for some time", || {
        flooded = used(flood.pid.cast_signed()).map_or(0, |now| now - flood_before);
        flooded > FLOODS_SECONDS * procfs::ticks_per_second()
    })?;
    let worked = used(daemon)? - daemon_before;
    ensure!(
        worked * 10 < flooded,
        "the daemon used {worked} ticks of CPU time while the guest used {flooded}"
    );
    Ok(())
}

/// A VM in libvirt's words, with a firmware for its guest: what is special about it is that it is small.
fn definition(name: &str, firmware: &str, devices: &str) -> String {
    format!(
        "<domain type='kvm'>
  <name>{name}</name>
  <memory unit='MiB'>32</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><loader readonly='yes' type='rom'>{HOME}/{firmware}</loader></os>
  <features><acpi/></features>
  <cpu mode='host-passthrough'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    {devices}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"
    )
}

/// What makes it one that is worked in.
fn devices() -> String {
    format!(
        "<disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{HOME}/disk'/><target dev='hda' bus='ide'/>
    </disk>
    <interface type='ethernet'>
      <mac address='{HARDWARE}'/><target dev='{TAP}' managed='no'/><model type='virtio'/><rom enabled='no'/>
    </interface>"
    )
}

/// Alice, just started, followed and boosted.
fn started() -> Result<Guest> {
    virsh(&["start", "alice"])?;
    let alice = running("alice")?;
    alice.is_followed()?;
    alice.is_seen_and_boosted()?;
    Ok(alice)
}

/// The VM that has just been started.
pub(crate) fn running(name: &'static str) -> Result<Guest> {
    let pid = fs::read_to_string(format!("/run/libvirt/qemu/{name}.pid")).context("the VM's process id")?;
    Ok(Guest { name, pid: pid.trim().parse()? })
}

/// The weight of its control group.
fn weight(vm: &Guest) -> Result<String> {
    Ok(fs::read_to_string(format!("{}/cpu.weight", group_of(vm)?))?.trim_end().to_owned())
}

/// Its control group.
pub(crate) fn group_of(vm: &Guest) -> Result<String> {
    let group = fs::read_to_string(format!("/proc/{}/cgroup", vm.pid))?;
    let group = group.lines().find_map(|line| line.strip_prefix("0::")).context("its control group")?;
    // libvirt has a group for QEMU's threads below that of the VM.
    let of_vm = group.split_inclusive(".scope").next().context("its scope")?;
    Ok(format!("/sys/fs/cgroup{of_vm}"))
}

pub(crate) fn virsh(arguments: &[&str]) -> Result<String> {
    run_for_output("virsh", arguments)
}
