//! What docs/guides/proxmox.md says of plain QEMU.

use crate::{
    guest::{self, Guest, HARDWARE, TAP},
    guide::Guide,
    host::{no_process_is_left, step, systemctl},
    init::HOME,
    libvirt_trial::CONFIGURATION,
};
use anyhow::{Context as _, Result, ensure};
use std::{fs, path::Path};

const PAGE: &str = include_str!("../../../../docs/guides/proxmox.md");

/// Follows it, in a system without the package.
pub(crate) fn follows_the_guide() -> Result<()> {
    let mut guide = Guide::open(PAGE);

    step("plain QEMU: install");
    guide.follow("apt-get install ./frontdesk_*_amd64.deb")?;
    guide.follow("frontdesk doctor")?;

    step("plain QEMU: start");
    guide.follow("echo 'd /run/vms 0750 libvirt-qemu root' > /etc/tmpfiles.d/vms.conf")?;
    guide.follow("systemd-tmpfiles --create vms.conf")?;
    guide.follow_with(
        "systemd-run --scope --unit=alice -p CPUWeight=100 --uid=libvirt-qemu qemu-system-x86_64 -accel kvm \
         -name alice,debug-threads=on -qmp unix:/run/vms/alice.qmp,server=on,wait=off -daemonize ...",
        &format!(
            "-cpu host -m 32 -display none -nodefaults -no-user-config -bios {HOME}/firmware \
             -drive file={HOME}/vms/disk,format=raw,if=ide \
             -netdev tap,id=net,ifname={TAP},script=no,downscript=no \
             -device virtio-net-pci,netdev=net,mac={HARDWARE},romfile="
        ),
    )?;
    let members = fs::read_to_string("/sys/fs/cgroup/system.slice/alice.scope/cgroup.procs")?;
    let alice = Guest { name: "alice", pid: members.trim_end().parse().context(members)? };
    alice.is_untouched()?;

    step("plain QEMU: tell");
    let shipped = fs::read_to_string(CONFIGURATION)?;
    fs::write(CONFIGURATION, format!("{}{shipped}\n{}", guest::CONFIGURATION, configuration()?))?;
    guide.follow("frontdesk run --check")?;
    guide.follow("systemctl reload frontdesk")?;
    let told = alice.is_followed()?;
    ensure!(told["identity"]["source"] == "KVM, CR3 at exits", "{told:#}");
    let told = guide.follow("frontdesk status")?;
    ensure!(told.contains("alice"), "{told}");

    step("plain QEMU: boost and reserve");
    alice.is_seen_and_boosted()?;
    let told = guide.follow("frontdesk status --why alice")?;
    ensure!(told.contains("alice"), "{told}");
    alice.is_reserved_paused_and_released(|command| guide.follow(command))?;

    step("plain QEMU: purge");
    guide.follow("apt-get purge --yes frontdesk")?;
    guide.follow("rm /etc/tmpfiles.d/vms.conf")?;
    no_process_is_left()?;
    alice.is_untouched()?;
    ensure!(Path::new("/run/vms/alice.qmp").exists(), "its socket is gone");
    systemctl(&["stop", "alice.scope"])?;
    guide.ended()
}

/// What the page says is to be in the configuration.
fn configuration() -> Result<&'static str> {
    let (_, after) = PAGE.split_once("```toml\n").context("the page has no configuration")?;
    Ok(after.split_once("```").context("it does not end")?.0)
}
