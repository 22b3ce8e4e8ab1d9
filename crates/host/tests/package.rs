//! The Debian package, in a Debian system with systemd: installed, reloaded, killed, upgraded and removed,
//! beside a process that passes for a QEMU and a real one of another user.
//!
//! The host that runs the tests may have no systemd. So this program boots a VM with itself as init, which
//! hands over to the systemd of a Debian system, which starts this program once more to do the trial. It also
//! is the process that passes for a QEMU.

#[path = "package/ansible.rs"]
mod ansible;
#[path = "package/bob.rs"]
mod bob;
#[allow(dead_code)] // systemd starts it here, for it is to have a control group of its own.
#[path = "host/fake_qemu.rs"]
mod fake_qemu;
#[path = "package/guest.rs"]
mod guest;
#[path = "package/host.rs"]
mod host;
#[path = "package/init.rs"]
mod init;
#[path = "package/many.rs"]
mod many;
#[path = "inside/own_init.rs"]
mod own_init;
#[path = "package/trial.rs"]
mod package_trial;
#[allow(dead_code)] // Only a part of it is for here.
#[path = "host/support.rs"]
mod support;

use anyhow::{Result, ensure};
use frontdesk_lab::{DiskConfig, DiskKind, Kernel, VmConfig, add_to_initramfs, debian, write_initramfs_with};
use frontdesk_testing::{Need, leave_out};
use libtest_mimic::Arguments;
use own_init::{console_of, libraries};
use std::{
    env,
    path::{Path, PathBuf},
    process::{self, Command, ExitCode},
    time::Duration,
};
use support::trial;

/// Generous: an emulated system on a busy machine is slow, and nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(1500);

/// What the package, systemd and the trial need.
const PACKAGES: [&str; 4] = ["iproute2", "libelf1", "systemd-sysv", "zlib1g"];

/// What a host needs for Ansible, and the program that has the role done.
const FOR_ANSIBLE: [&str; 3] = ["ansible-core", "python3-apt", "sudo"];

/// Kernel modules: the disk with the system, and the network device of a VM inside.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "ext4", "tun"];

/// Where Debian has QEMU.
const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// The argument with which systemd starts this program.
const INSIDE: &str = "trial-inside-the-vm";

/// What it prints there when all is well.
const PASSED: &str = "the package passed";

fn main() -> ExitCode {
    if process::id() == 1 {
        init::init();
    }
    match env::args().nth(1).as_deref() {
        Some("fake-qemu") => return fake_qemu::main(),
        Some(INSIDE) => return package_trial::run(),
        _ => {}
    }
    let tests = vec![
        trial("package_works_and_leaves_nothing_changed", package_works),
        trial("package_is_installed_and_configured_by_ansible", package_by_ansible).with_ignored_flag(true),
        trial("package_boosts_a_hundred_vms_of_another_user", package_boosts_many).with_ignored_flag(true),
    ];
    // One VM at a time is load enough.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// Where `make deb` leaves the package; the same path inside the VM's initramfs.
fn package() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    workspace.join(concat!("target/debian/frontdesk_", env!("CARGO_PKG_VERSION"), "-1_amd64.deb"))
}

fn package_works() -> Result<()> {
    if lacks_package("package_works_and_leaves_nothing_changed") {
        return Ok(());
    }
    passes(1024, &[], &[], None).map(drop)
}

/// By name only: Ansible takes minutes on an emulated machine, and beside other tests a quarter of an hour.
fn package_by_ansible() -> Result<()> {
    if lacks_package("package_is_installed_and_configured_by_ansible") {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(folder.path().join(ansible::ARCHIVE));
    ensure!(tar.arg("--directory").arg(packaging).arg("ansible").status()?.success(), "tar");
    let parameters = [
        format!("{}=1", ansible::PARAMETER),
        format!("{}={}", init::GUESTS_PARAMETER, folder.path().display()),
    ];
    passes(1024, &parameters, &FOR_ANSIBLE, Some(&folder.path().join(ansible::ARCHIVE))).map(drop)
}

/// Whether there is no package, which then is said.
fn lacks_package(test: &str) -> bool {
    let lacks = !package().is_file();
    if lacks {
        leave_out(test, Need::Package, format!("{} is not built (make deb)", package().display()));
    }
    lacks
}

/// By name only: with a hundred processes the emulated machine takes minutes.
fn package_boosts_many() -> Result<()> {
    ensure!(package().is_file(), "{} is not built (make deb)", package().display());
    let console = passes(3072, &[format!("{}=1", many::PARAMETER)], &[], None)?;
    // The first line of a trial follows what systemd has said.
    let measured = |line: &str| line.find("measured:").map(|at| line[at..].to_owned());
    console.lines().filter_map(measured).for_each(|line| println!("{line}"));
    Ok(())
}

/// Does a trial in a Debian system, whose kernel is told these parameters; it has more packages and a file
/// from here. Returns what its console said.
fn passes(memory_mib: u32, parameters: &[String], more: &[&str], file: Option<&Path>) -> Result<String> {
    let run_dir = tempfile::tempdir()?;
    let packages: Vec<String> = PACKAGES.iter().chain(more).map(|name| (*name).to_owned()).collect();
    let system = debian(&packages, &[], &|step| eprintln!("{step}"))?;
    let kernel = Kernel::resolve("6.1-cloud", None)?;
    let program = env::current_exe()?;
    let initrd = run_dir.path().join("initrd");
    write_initramfs_with(&kernel, &program, &MODULES, &initrd)?;
    let mut files = libraries(&program)?;
    files.insert(package());
    // Debian 12's own QEMU is too old for the plugin; this machine's is not.
    let qemu = PathBuf::from(QEMU);
    files.extend(libraries(&qemu)?);
    files.insert(qemu);
    files.extend(file.map(Path::to_owned));
    add_to_initramfs(&initrd, &files)?;
    let console = console_of(
        &VmConfig {
            memory_mib,
            parameters: parameters.to_vec(),
            disks: vec![DiskConfig { image: system.image, kind: DiskKind::Debian }],
            ..VmConfig::new("package", &kernel, &initrd, run_dir.path())
        },
        PATIENCE,
    )?;
    ensure!(console.lines().any(|line| line.trim_end() == PASSED), "the VM's console:\n{console}");
    Ok(console)
}
