//! Guest task identity, interrupts and doorbells under KVM, on a host that has KVM: a VM with an AMD
//! processor that can run VMs itself.
//!
//! The host that runs the tests may have no hardware virtualisation. So this program boots a VM with itself
//! as init, and does the trials of `host` with tiny guests in there, first with nested paging, then without:
//! they are built into it, too.

#[path = "host/askers.rs"]
mod askers;
#[path = "host/fake_qemu.rs"]
mod fake_qemu;
#[path = "host/kvm.rs"]
mod kvm;
#[path = "host/kvm_guest.rs"]
mod kvm_guest;
#[path = "host/kvm_interrupts.rs"]
mod kvm_interrupts;
#[path = "host/kvm_pair.rs"]
mod kvm_pair;
#[path = "host/kvm_vhost.rs"]
mod kvm_vhost;
#[path = "inside/own_init.rs"]
mod own_init;
#[path = "host/support.rs"]
#[allow(dead_code)] // Not all of what the trials share is for these.
mod support;

use anyhow::{Context as _, Result, bail, ensure};
use frontdesk_lab::{Kernel, VmConfig, add_to_initramfs, write_initramfs_with};
use frontdesk_probes::kvm::Method;
use libtest_mimic::{Arguments, ColorSetting, Failed, Trial};
use own_init::{console_of, libraries, load_module, modules, mount_kernel_file_systems};
use rustix::{process::setsid, system::delete_module};
use std::{
    env,
    ffi::CStr,
    path::Path,
    process::{self, Command, ExitCode},
    time::Duration,
};
use support::trial;

/// Generous: emulated guests on a busy machine are slow, and nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(1500);

/// What the trials run beside this program itself.
const TOOL: &str = "/bin/sleep";

/// Kernel modules: KVM, which is loaded more than once and so comes last, and a device that the kernel
/// emulates.
const MODULES: [&str; 2] = ["vhost_net", "kvm_amd"];

/// How KVM is loaded, the method that is best then, and the others that work.
const SETTINGS: [(&CStr, Method, Method); 2] =
    [(c"npt=1", Method::Exit, Method::Switch), (c"npt=0", Method::Trap, Method::Switch)];

fn main() -> ExitCode {
    if process::id() == 1 {
        init();
    }
    match env::args().nth(1).as_deref() {
        Some(askers::ARGUMENT) => return askers::back_end(),
        Some("fake-qemu") => return fake_qemu::main(),
        _ => {}
    }
    if let Some(setting) = env::args().nth(1).and_then(|argument| inside(&argument)) {
        return trials(setting);
    }
    let mut arguments = Arguments::from_args();
    // One VM at a time is load enough.
    arguments.test_threads = Some(1);
    // The same on other kernels: by night.
    let trials = vec![
        trial("kvm_trials_pass_on_linux_6_1", || kvm_trials_pass_on("6.1-cloud")).with_ignored_flag(true),
        trial("kvm_trials_pass_on_linux_6_12", || kvm_trials_pass_on("6.12-cloud")),
        trial("kvm_trials_pass_on_linux_7_3", || kvm_trials_pass_on("7.3-cloud")).with_ignored_flag(true),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The argument with which init starts this program for the setting.
fn argument(setting: usize) -> String {
    format!("trials-inside-the-vm-{setting}")
}

fn inside(argument: &str) -> Option<usize> {
    (0..SETTINGS.len()).find(|setting| self::argument(*setting) == argument)
}

/// What init prints when the trials with a setting have passed.
fn passed(setting: usize) -> String {
    format!("init: the trials with {:?} ended with exit status: 0", SETTINGS[setting].0)
}

fn kvm_trials_pass_on(kernel: &str) -> Result<()> {
    let run_dir = tempfile::tempdir()?;
    let kernel = Kernel::resolve(kernel, None)?;
    let program = env::current_exe()?;
    let initrd = run_dir.path().join("initrd");
    write_initramfs_with(&kernel, &program, &MODULES, &initrd)?;
    let mut files = libraries(&program)?;
    files.extend(libraries(Path::new(TOOL))?);
    files.insert(TOOL.into());
    add_to_initramfs(&initrd, &files)?;
    // What the flood guard lets through is a matter of time, and how fast this machine emulates shall not
    // matter.
    let vm = VmConfig {
        // Half of it is for files, and the program is there twice: as what passes for a QEMU, too.
        memory_mib: 768,
        counted_time: true,
        ..VmConfig::new("host-kvm", &kernel, &initrd, run_dir.path())
    };
    let console = console_of(&vm, PATIENCE)?;
    all_passed(&console).with_context(|| format!("the VM's console:\n{console}"))
}

fn all_passed(console: &str) -> Result<()> {
    let has_passed = |of: &str, suffix: &str| {
        console.lines().any(|line| {
            let ok = line.trim_end().ends_with(" ok");
            line.starts_with(&format!("test {of}")) && line.contains(suffix) && ok
        })
    };
    ensure!(has_passed("askers_", ""), "no trial askers_* passed");
    ensure!(has_passed("kvm_vhost_", ""), "no trial kvm_vhost_* passed");
    for (setting, (_, best, other)) in SETTINGS.into_iter().enumerate() {
        for method in [best, other] {
            let suffix = format!("_by_{method:?}").to_lowercase();
            ensure!(has_passed("kvm_", &suffix), "no trial *{suffix} passed");
        }
        let suffix = format!("_interrupts_by_{best:?}").to_lowercase();
        ensure!(has_passed("kvm_tells_", &suffix), "no trial kvm_tells_*{suffix} passed");
        let passed = passed(setting);
        ensure!(console.lines().any(|line| line.trim_end() == passed), "{passed:?} is missing");
    }
    Ok(())
}

/// Is process 1: makes a system of the VM, runs the trials in it, tells how they ended, and powers the VM
/// off.
fn init() -> ! {
    own_init::end(set_up_and_run_trials())
}

fn set_up_and_run_trials() -> Result<()> {
    setsid().context("setsid")?;
    mount_kernel_file_systems()?;
    let modules = modules()?;
    let Some((kvm_amd, others)) = modules.split_last() else { bail!("no modules") };
    for module in others {
        load_module(module, c"")?;
    }
    for (setting, (parameter, ..)) in SETTINGS.into_iter().enumerate() {
        load_module(kvm_amd, parameter)?;
        let mut trials = Command::new("/proc/self/exe");
        let status = trials.arg(argument(setting)).env("PATH", "/bin").status().context("the trials")?;
        println!("init: the trials with {parameter:?} ended with {status}");
        // The kernel refuses while a program is attached to it.
        delete_module(c"kvm_amd", 0).context("unload kvm_amd")?;
    }
    Ok(())
}

/// The trials themselves, in a VM.
fn trials(setting: usize) -> ExitCode {
    let (parameter, best, other) = SETTINGS[setting];
    let chosen = Trial::test("the_best_method_is_chosen", move || match frontdesk_probes::kvm::probe() {
        Ok(method) if method == best => Ok(()),
        other => Err(Failed::from(format!("with {parameter:?}: {other:?}"))),
    });
    let arguments =
        Arguments { test_threads: Some(1), color: Some(ColorSetting::Never), ..Arguments::default() };
    let mut trials = kvm::trials(&[best, other]);
    // Samples at thread switches tell no interrupts.
    trials.extend(kvm_interrupts::trials(&[best]));
    trials.extend(kvm_vhost::trials());
    trials.extend(askers::trials());
    trials.push(chosen);
    libtest_mimic::run(&arguments, trials).exit_code()
}
