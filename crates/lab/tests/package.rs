//! The Debian package, in a Debian system with systemd: installed, reloaded, killed, upgraded and removed, beside a process that passes
//! for a QEMU.
//!
//! The host that runs the tests may have no systemd. So this program boots a VM with itself as init, which hands over to the systemd of a
//! Debian system, which starts this program once more to do the trial. It also is the process that passes for a QEMU.

#[allow(dead_code)] // systemd starts it here, for it is to have a control group of its own.
#[path = "../../host/tests/host/fake_qemu.rs"]
mod fake_qemu;
#[path = "package/init.rs"]
mod init;
#[path = "package/trial.rs"]
mod package_trial;
#[allow(dead_code)] // Only a part of it is for here.
#[path = "../../host/tests/host/support.rs"]
mod support;

use anyhow::{Context as _, Result, ensure};
use frontdesk_lab::{DiskConfig, DiskKind, Kernel, Vm, VmConfig, add_to_initramfs, debian, write_initramfs};
use libtest_mimic::Arguments;
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, ExitCode},
    thread,
    time::{Duration, Instant},
};
use support::trial;

/// Generous: an emulated system on a busy machine is slow, and nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(480);

/// What the package and systemd need.
const PACKAGES: [&str; 3] = ["libelf1", "systemd-sysv", "zlib1g"];

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
    let test = trial("package_works_and_leaves_nothing_changed", package_works);
    let built = package().is_file();
    if !built {
        eprintln!("skipping the test of the Debian package: {} is not built (make deb)", package().display());
    }
    libtest_mimic::run(&Arguments::from_args(), vec![test.with_ignored_flag(!built)]).exit_code()
}

/// Where `make deb` leaves the package; the same path inside the VM's initramfs.
fn package() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    workspace.join(concat!("target/debian/frontdesk_", env!("CARGO_PKG_VERSION"), "-1_amd64.deb"))
}

fn package_works() -> Result<()> {
    let run_dir = tempfile::tempdir()?;
    let system = debian(&PACKAGES.map(str::to_owned), &[], &|step| eprintln!("{step}"))?;
    let kernel = Kernel::resolve("6.1-cloud", None)?;
    let program = env::current_exe()?;
    let initrd = run_dir.path().join("initrd");
    write_initramfs(&kernel, &program, &initrd, true)?;
    let mut files = libraries(&program)?;
    files.insert(package());
    add_to_initramfs(&initrd, &files)?;
    let mut vm = Vm::boot(&VmConfig {
        name: "package".into(),
        vcpus: 1,
        memory_mib: 768,
        kernel: kernel.image,
        initrd,
        tap: None,
        disks: vec![DiskConfig { image: system.image, kind: DiskKind::Debian }],
        time_slice: None,
        reporter: false,
        plugin: None,
        cpus: Vec::new(),
        run_dir: run_dir.path().into(),
        cgroup_procs: Vec::new(),
    })?;
    let deadline = Instant::now() + PATIENCE;
    while vm.is_alive() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    let console = fs::read(vm.console())?;
    let console = String::from_utf8_lossy(&console);
    ensure!(console.lines().any(|line| line.trim_end() == PASSED), "the VM's console:\n{console}");
    Ok(())
}

/// The libraries that a program loads, and the loader.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("start ldd")?;
    ensure!(output.status.success(), "ldd {}: {output:?}", program.display());
    // Lines are "NAME => PATH (ADDRESS)", "PATH (ADDRESS)" for the loader, and "NAME (ADDRESS)" for what the kernel has.
    let text = String::from_utf8(output.stdout)?;
    let path =
        |line: &str| line.split_ascii_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}
