//! The Debian package beside libvirt, in a Debian system with both: a VM that virsh defines and starts, run
//! by KVM as the user libvirt-qemu, is followed, boosted and reserved for, whatever happens to it, to libvirt
//! and to frontdesk. What an operator types is what docs/guides/libvirt.md says.
//!
//! As `package.rs`, this program boots a VM with itself as init, which hands over to systemd.

#[path = "package/guest.rs"]
mod guest;
#[path = "package/host.rs"]
mod host;
#[path = "package/init.rs"]
mod init;
#[path = "libvirt/trial.rs"]
mod libvirt_trial;
#[path = "inside/own_init.rs"]
mod own_init;
#[allow(dead_code)] // Only a part of it is for here.
#[path = "host/support.rs"]
mod support;

use anyhow::{Result, ensure};
use frontdesk_lab::{DiskConfig, DiskKind, Kernel, VmConfig, add_to_initramfs, debian, write_initramfs_with};
use libtest_mimic::Arguments;
use own_init::{console_of, libraries};
use std::{
    env,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::Duration,
};
use support::trial;

/// Generous: an emulated system on a busy machine is slow, and nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(900);

/// What an operator has on a host, and what the package needs.
const PACKAGES: [&str; 8] = [
    "apparmor",
    "iproute2",
    "libelf1",
    "libvirt-clients",
    "libvirt-daemon-system",
    "qemu-system-x86",
    "systemd-sysv",
    "zlib1g",
];

/// Kernel modules: the disk with the system, the network device of the VM inside, and KVM for it.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "ext4", "tun", "kvm_amd"];

/// The argument with which systemd starts this program.
const INSIDE: &str = "trial-inside-the-vm";

/// What it prints there when all is well.
const PASSED: &str = "the package works with libvirt";

fn main() -> ExitCode {
    if process::id() == 1 {
        init::init();
    }
    if env::args().nth(1).as_deref() == Some(INSIDE) {
        return libvirt_trial::run();
    }
    let test = trial("package_works_with_libvirt", package_works_with_libvirt);
    let built = package().is_file();
    if !built {
        eprintln!("skipping the test with libvirt: {} is not built (make deb)", package().display());
    }
    libtest_mimic::run(&Arguments::from_args(), vec![test.with_ignored_flag(!built)]).exit_code()
}

/// Where `make deb` leaves the package; the same path inside the VM's initramfs.
fn package() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    workspace.join(concat!("target/debian/frontdesk_", env!("CARGO_PKG_VERSION"), "-1_amd64.deb"))
}

fn package_works_with_libvirt() -> Result<()> {
    let run_dir = tempfile::tempdir()?;
    let system = debian(&PACKAGES.map(str::to_owned), &[], &|step| eprintln!("{step}"))?;
    let kernel = Kernel::resolve("6.1-cloud", None)?;
    let program = env::current_exe()?;
    let initrd = run_dir.path().join("initrd");
    write_initramfs_with(&kernel, &program, &MODULES, &initrd)?;
    let mut files = libraries(&program)?;
    files.insert(package());
    add_to_initramfs(&initrd, &files)?;
    let console = console_of(
        &VmConfig {
            memory_mib: 1280,
            disks: vec![DiskConfig { image: system.image, kind: DiskKind::Debian }],
            // One that can run VMs itself.
            arguments: ["-cpu", "max"].map(str::to_owned).into(),
            ..VmConfig::new("libvirt", &kernel, &initrd, run_dir.path())
        },
        PATIENCE,
    )?;
    ensure!(console.lines().any(|line| line.trim_end() == PASSED), "the VM's console:\n{console}");
    Ok(())
}
