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
#[path = "package/daemon_set.rs"]
mod daemon_set;
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
use frontdesk_lab::{
    DiskConfig, DiskKind, Kernel, Release, VmConfig, add_to_initramfs, debian, write_initramfs_with,
};
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

/// What a node of containers needs, and what their image is made of.
const FOR_CONTAINERS: [&str; 4] = ["catatonit", "crun", "dbus", "podman"];
const OF_IMAGE: [&str; 2] = ["libelf1", "zlib1g"];

/// Kernel modules: the disk with the system, the network device of a VM inside, and layers of containers.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "ext4", "tun", "overlay"];

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
        trial("package_in_a_container_acts_on_vms_of_its_node", package_by_daemon_set)
            .with_ignored_flag(true),
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
    Asked::new(&[]).passes().map(drop)
}

/// By name only: Ansible takes minutes on an emulated machine, and beside other tests a quarter of an hour.
fn package_by_ansible() -> Result<()> {
    if lacks_package("package_is_installed_and_configured_by_ansible") {
        return Ok(());
    }
    let packaging = Packaging::of("ansible")?;
    let asked = Asked { file: Some(packaging.archive.clone()), ..Asked::new(&FOR_ANSIBLE) };
    asked.told(ansible::PARAMETER, "1").told(init::GUESTS_PARAMETER, &packaging.folder()).passes().map(drop)
}

/// By name only: an image is built and run on an emulated machine.
fn package_by_daemon_set() -> Result<()> {
    if lacks_package("package_in_a_container_acts_on_vms_of_its_node") {
        return Ok(());
    }
    let packaging = Packaging::of("kubernetes")?;
    let image = debian(Release::Bookworm, &OF_IMAGE.map(str::to_owned), &[], &|step| eprintln!("{step}"))?;
    let asked = Asked {
        // Debian 12's podman does not know DaemonSets, nor all that a pod has.
        release: Release::Trixie,
        kernel: "6.12-cloud",
        memory_mib: 4096,
        disk: Some(image.image),
        file: Some(packaging.archive.clone()),
        ..Asked::new(&FOR_CONTAINERS)
    };
    asked
        .told(daemon_set::PARAMETER, "1")
        .told(init::GUESTS_PARAMETER, &packaging.folder())
        .passes()
        .map(drop)
}

/// A folder of packaging/ in an archive, in a folder of its own.
struct Packaging {
    folder: tempfile::TempDir,
    archive: PathBuf,
}

impl Packaging {
    fn of(name: &str) -> Result<Packaging> {
        let folder = tempfile::tempdir()?;
        let archive = folder.path().join(format!("{name}.tar"));
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(packaging).arg(name);
        ensure!(tar.status()?.success(), "tar");
        Ok(Packaging { folder, archive })
    }

    fn folder(&self) -> String {
        self.folder.path().display().to_string()
    }
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
    let asked = Asked { memory_mib: 3072, ..Asked::new(&[]) };
    let console = asked.told(many::PARAMETER, "1").passes()?;
    // The first line of a trial follows what systemd has said.
    let measured = |line: &str| line.find("measured:").map(|at| line[at..].to_owned());
    console.lines().filter_map(measured).for_each(|line| println!("{line}"));
    Ok(())
}

/// A Debian system in which a trial is done.
struct Asked {
    release: Release,
    /// Which packages of Debian's it has.
    packages: Vec<String>,
    kernel: &'static str,
    /// What the kernel is told.
    parameters: Vec<String>,
    memory_mib: u32,
    /// One more system, on its second disk.
    disk: Option<PathBuf>,
    /// A file from here.
    file: Option<PathBuf>,
}

impl Asked {
    /// With what the package, systemd and the trial need, and more packages.
    fn new(more: &[&str]) -> Asked {
        Asked {
            release: Release::Bookworm,
            packages: PACKAGES.iter().chain(more).map(|name| (*name).to_owned()).collect(),
            kernel: "6.1-cloud",
            parameters: Vec::new(),
            memory_mib: 1024,
            disk: None,
            file: None,
        }
    }

    fn told(mut self, name: &str, value: &str) -> Asked {
        self.parameters.push(format!("{name}={value}"));
        self
    }

    /// Does the trial. Returns what the system's console said.
    fn passes(self) -> Result<String> {
        let run_dir = tempfile::tempdir()?;
        let system = debian(self.release, &self.packages, &[], &|step| eprintln!("{step}"))?;
        let kernel = Kernel::resolve(self.kernel, None)?;
        let program = env::current_exe()?;
        let initrd = run_dir.path().join("initrd");
        write_initramfs_with(&kernel, &program, &MODULES, &initrd)?;
        let mut files = libraries(&program)?;
        files.insert(package());
        // Debian's own QEMU may be too old for the plugin; this machine's is not.
        let qemu = PathBuf::from(QEMU);
        files.extend(libraries(&qemu)?);
        files.insert(qemu);
        files.extend(self.file);
        add_to_initramfs(&initrd, &files)?;
        let disks = [system.image].into_iter().chain(self.disk);
        let console = console_of(
            &VmConfig {
                memory_mib: self.memory_mib,
                parameters: self.parameters,
                disks: disks.map(|image| DiskConfig { image, kind: DiskKind::Debian }).collect(),
                ..VmConfig::new("package", &kernel, &initrd, run_dir.path())
            },
            PATIENCE,
        )?;
        ensure!(console.lines().any(|line| line.trim_end() == PASSED), "the VM's console:\n{console}");
        Ok(console)
    }
}
