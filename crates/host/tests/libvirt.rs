//! The Debian package beside libvirt, in a Debian system with both: a VM that virsh defines and starts, run
//! by KVM as the user libvirt-qemu, is followed, boosted and reserved for, whatever happens to it, to libvirt
//! and to frontdesk. What an operator types is what docs/guides/libvirt.md says. Then the same for a VM
//! without libvirt, by docs/guides/proxmox.md, as far as that is about plain QEMU.
//!
//! As `package.rs`, this program boots a VM with itself as init, which hands over to systemd.

#[path = "package/guest.rs"]
mod guest;
#[path = "libvirt/guide.rs"]
mod guide;
#[path = "package/host.rs"]
mod host;
#[path = "package/init.rs"]
mod init;
#[path = "libvirt/trial.rs"]
mod libvirt_trial;
#[path = "inside/own_init.rs"]
mod own_init;
#[path = "libvirt/plain.rs"]
mod plain;
#[path = "libvirt/proxmox.rs"]
mod proxmox;
#[path = "libvirt/response.rs"]
mod response;
#[allow(dead_code)] // Only a part of it is for here.
#[path = "host/support.rs"]
mod support;

use anyhow::{Result, ensure};
use frontdesk_lab::{
    DiskConfig, DiskKind, Kernel, Release, VmConfig, add_to_initramfs, debian, write_initramfs_with,
};
use frontdesk_testing::{Need, leave_out};
use libtest_mimic::Arguments;
use own_init::{console_of, libraries};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::Duration,
};
use support::trial;

/// Generous: an emulated system on a busy machine is slow, and nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(1500);

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

/// On the kernel's command line: what may happen is tried, rather than what the guide says.
const FAULTS: &str = "trial.faults";

/// Kernel modules of guests that answer.
const GUEST_MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "virtio_console"];

/// What the kernel has said when QEMU's emulation of several vCPUs with KVM in them went wrong, each on a
/// thread of its own. On one thread it was not seen.
const EMULATION_BROKE: &str = "Kernel panic - not syncing: corrupted stack end";

/// What it prints there when all is well.
const PASSED: &str = "the package works with libvirt";

fn main() -> ExitCode {
    if process::id() == 1 {
        init::init();
    }
    if env::args().nth(1).as_deref() == Some(INSIDE) {
        return libvirt_trial::run();
    }
    let mut arguments = Arguments::from_args();
    // One VM at a time is load enough.
    arguments.test_threads = Some(1);
    let tests = vec![
        trial("package_works_with_libvirt_on_linux_6_1", || passes("6.1-cloud", &[], None)),
        trial("package_works_with_libvirt_on_linux_6_12", || passes("6.12-cloud", &[], None)),
        // No matter of the kernel's age; this one needs no more rights than the package gives.
        trial("package_survives_what_happens_to_vms_and_libvirt", || passes("6.12-cloud", &[FAULTS], None)),
    ];
    // A measurement, not a test: cargo test --release -p frontdesk-host --test libvirt -- --ignored response
    let measured = trial("response_times_with_the_package", response_times).with_ignored_flag(true);
    // By night: each takes ten minutes and more, for libvirt in an emulated system is slow.
    let tests = tests.into_iter().map(|test| test.with_ignored_flag(true)).chain([measured]).collect();
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// Where `make deb` leaves the package; the same path inside the VM's initramfs.
fn package() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    workspace.join(concat!("target/debian/frontdesk_", env!("CARGO_PKG_VERSION"), "-1_amd64.deb"))
}

fn passes(kernel: &str, parameters: &[&str], guests: Option<&Path>) -> Result<()> {
    if !package().is_file() {
        let why = format!("{} is not built (make deb)", package().display());
        leave_out("package_* with libvirt", Need::Package, why);
        return Ok(());
    }
    // Where much happens to VMs it goes wrong in one run of three.
    let mut console = console_with(kernel, parameters, guests, parameters.contains(&FAULTS))?;
    if console.contains(EMULATION_BROKE) {
        eprintln!("{EMULATION_BROKE}: the emulated kernel broke; once more, on one thread");
        console = console_with(kernel, parameters, guests, true)?;
    }
    ensure!(console.lines().any(|line| line.trim_end() == PASSED), "the VM's console:\n{console}");
    console.lines().filter(|line| line.starts_with("response: ")).for_each(|line| eprintln!("{line}"));
    Ok(())
}

/// Measures how soon a VM answers.
fn response_times() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kernel = Kernel::resolve("6.1-cloud", None)?;
    fs::copy(&kernel.image, folder.path().join("kernel"))?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = workspace.join("target/x86_64-unknown-linux-gnu/release/frontdesk-lab-guest");
    write_initramfs_with(&kernel, &program, &GUEST_MODULES, &folder.path().join("initrd"))?;
    let parameter = format!("{}={}", init::GUESTS_PARAMETER, folder.path().display());
    passes("6.12-cloud", &[&parameter], Some(folder.path()))
}

/// Boots the system, and returns what it says until it has ended. It takes a folder with guests in.
fn console_with(
    kernel: &str,
    parameters: &[&str],
    guests: Option<&Path>,
    one_thread: bool,
) -> Result<String> {
    let run_dir = tempfile::tempdir()?;
    let system = debian(Release::Bookworm, &PACKAGES.map(str::to_owned), &[], &|step| eprintln!("{step}"))?;
    let kernel = Kernel::resolve(kernel, None)?;
    let program = env::current_exe()?;
    let initrd = run_dir.path().join("initrd");
    write_initramfs_with(&kernel, &program, &MODULES, &initrd)?;
    let mut files = libraries(&program)?;
    files.insert(package());
    files.extend(guests.iter().flat_map(|folder| ["kernel", "initrd"].map(|file| folder.join(file))));
    add_to_initramfs(&initrd, &files)?;
    console_of(
        &VmConfig {
            memory_mib: if guests.is_some() { 2560 } else { 1280 },
            disks: vec![DiskConfig { image: system.image, kind: DiskKind::Debian }],
            // One for VMs, and one for the rest.
            vcpus: 2,
            one_thread,
            parameters: parameters.iter().copied().map(str::to_owned).collect(),
            ..VmConfig::new("libvirt", &kernel, &initrd, run_dir.path())
        },
        PATIENCE,
    )
}
