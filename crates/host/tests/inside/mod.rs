//! A host in a VM: a test program boots a VM with itself as init, and does trials in there that the machine's
//! own kernel does not allow.

mod own_init;

use anyhow::{Context as _, Result, ensure};
use frontdesk_lab::{Kernel, VmConfig, add_to_initramfs, write_initramfs_with};
use libtest_mimic::{Arguments, ColorSetting, Trial};
use own_init::{console_of, consoles_of, libraries, load_module, modules, mount_kernel_file_systems};
use rustix::{
    mount::{MountFlags, mount},
    process::{WaitOptions, setsid, wait},
};
use std::{
    env,
    path::{Path, PathBuf},
    process::{self, Command, ExitCode},
    time::Duration,
};

/// Generous: emulated guests on a busy machine are slow, and nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(1500);

/// What the trials run beside the test program itself.
const TOOLS: [&str; 3] = ["/bin/sleep", "/bin/false", "/bin/ip"];

/// Kernel modules for the trials: taps, and network cards.
const MODULES_NEEDED: [&str; 3] = ["tun", "virtio_pci", "virtio_net"];

/// The argument with which init starts the test program.
const INSIDE: &str = "trials-inside-the-vm";

/// What init prints when the trials have passed.
const PASSED: &str = "init: the trials ended with exit status: 0";

/// What a kernel says when QEMU's emulation of several vCPUs executes code that another vCPU is replacing, as
/// kernels do when they attach BPF programs.
const EMULATION_BROKE: &str = "Oops: int3";

/// What such a program does. As process 1, it makes a system of the VM; started by that, it runs the trials
/// in there; with another word, it is what `role` makes of it; and else it runs those that boot VMs.
pub(crate) fn main(
    role: impl FnOnce(&str) -> Option<ExitCode>,
    inside: fn() -> Vec<Trial>,
    outside: Vec<Trial>,
) -> ExitCode {
    if process::id() == 1 {
        own_init::end(set_up_and_run_trials());
    }
    let word = env::args().nth(1).unwrap_or_default();
    if word == INSIDE {
        log();
        let arguments =
            Arguments { test_threads: Some(1), color: Some(ColorSetting::Never), ..Arguments::default() };
        return libtest_mimic::run(&arguments, inside()).exit_code();
    }
    role(&word).unwrap_or_else(|| {
        // One VM at a time is load enough.
        let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
        libtest_mimic::run(&arguments, outside).exit_code()
    })
}

/// Boots a VM in which this program, as init, runs itself once more with the argument [`INSIDE`], waits until
/// the VM has ended, and checks that all trials passed, at least one with each of these prefixes. Once more
/// if the emulation broke the kernel, which says nothing about the trials.
pub(crate) fn trials_pass(kernel: &str, vcpus: u16, memory_mib: u32, prefixes: &[&str]) -> Result<()> {
    let mut console = console_of_trials(kernel, vcpus, memory_mib)?;
    if console.contains(EMULATION_BROKE) {
        eprintln!("{EMULATION_BROKE}: the emulated kernel broke; once more");
        console = console_of_trials(kernel, vcpus, memory_mib)?;
    }
    all_passed(&console, prefixes).with_context(|| format!("the VM's console:\n{console}"))?;
    tell_measured(&console);
    Ok(())
}

/// The same in two VMs at once, each with one vCPU and a network card on the same wire. The kernel of each is
/// told its parameter.
pub(crate) fn trials_pass_on_two(
    kernel: &str,
    memory_mib: u32,
    parameters: &[String; 2],
    prefixes: &[&str],
) -> Result<()> {
    let run_dir = tempfile::tempdir()?;
    let (kernel, initrd) = image(kernel, run_dir.path())?;
    let end = |side: usize| run_dir.path().join(format!("wire-{side}")).display().to_string();
    let config = |side: usize| {
        let (local, remote) = (end(side), end(1 - side));
        // Packets go from one QEMU to the other as datagrams, and nowhere else.
        let wire = "dgram,id=wire,local.type=unix,remote.type=unix";
        let card = format!("virtio-net-pci,netdev=wire,mac=52:54:00:fd:01:0{side},romfile=");
        let network = format!("{wire},local.path={local},remote.path={remote}");
        VmConfig {
            memory_mib,
            parameters: vec![parameters[side].clone()],
            arguments: vec!["-netdev".into(), network, "-device".into(), card],
            ..VmConfig::new(&format!("host-{side}"), &kernel, &initrd, run_dir.path())
        }
    };
    let consoles = consoles_of(&[config(0), config(1)], PATIENCE)?;
    for console in &consoles {
        all_passed(console, prefixes)
            .with_context(|| format!("the VMs' consoles:\n{}", consoles.concat()))?;
    }
    consoles.iter().for_each(|console| tell_measured(console));
    Ok(())
}

/// For those who run this by hand, with --nocapture.
fn tell_measured(console: &str) {
    // The first line of a trial follows its name.
    let measured = |line: &str| line.find("measured:").map(|at| line[at..].to_owned());
    console.lines().filter_map(measured).for_each(|line| println!("{line}"));
}

/// Boots the VM, and returns what it says until it has ended.
fn console_of_trials(kernel: &str, vcpus: u16, memory_mib: u32) -> Result<String> {
    let run_dir = tempfile::tempdir()?;
    let (kernel, initrd) = image(kernel, run_dir.path())?;
    let config = VmConfig { vcpus, memory_mib, ..VmConfig::new("host", &kernel, &initrd, run_dir.path()) };
    console_of(&config, PATIENCE)
}

/// What such a VM boots into.
fn image(kernel: &str, run_dir: &Path) -> Result<(Kernel, PathBuf)> {
    let kernel = Kernel::resolve(kernel, None)?;
    let program = env::current_exe()?;
    let initrd = run_dir.join("initrd");
    write_initramfs_with(&kernel, &program, &MODULES_NEEDED, &initrd)?;
    let tools = TOOLS.map(PathBuf::from);
    let mut files = libraries(&program)?;
    for tool in &tools {
        files.extend(libraries(tool)?);
    }
    files.extend(tools);
    add_to_initramfs(&initrd, &files)?;
    Ok((kernel, initrd))
}

fn all_passed(console: &str, prefixes: &[&str]) -> Result<()> {
    let ran = |prefix: &str| console.lines().any(|line| line.starts_with(&format!("test {prefix}")));
    for prefix in prefixes {
        ensure!(ran(prefix), "no trial {prefix}* ran");
    }
    ensure!(console.contains(" 0 ignored"), "trials were left out");
    ensure!(console.contains("test result: ok.") && console.contains(" 0 failed"), "not all trials passed");
    ensure!(console.lines().any(|line| line.trim_end() == PASSED), "the trials did not end well");
    Ok(())
}

/// Makes a system of the VM, runs the trials in it, and tells how they ended.
fn set_up_and_run_trials() -> Result<()> {
    setsid().context("setsid")?;
    mount_kernel_file_systems()?;
    for module in modules()? {
        load_module(&module, c"")?;
    }
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MountFlags::empty(), None)
        .context("mount /sys/fs/cgroup")?;
    // As systemd does.
    mount("debugfs", "/sys/kernel/debug", "debugfs", MountFlags::empty(), None)
        .context("mount /sys/kernel/debug")?;
    let trials = Command::new("/proc/self/exe").arg(INSIDE).env("PATH", "/bin").spawn().context("trials")?;
    // Orphans become children of process 1, and stay zombies until it waits for them.
    loop {
        if let Some((pid, status)) = wait(WaitOptions::empty())?
            && pid.as_raw_nonzero().get() == trials.id().cast_signed()
        {
            match status.exit_status() {
                Some(code) => println!("init: the trials ended with exit status: {code}"),
                None => println!("init: the trials ended with {status:?}"),
            }
            return Ok(());
        }
    }
}

/// The console is shown if something fails, and then what the BPF verifier says is wanted; to standard error,
/// for trials print lines of their own.
fn log() {
    tracing_subscriber::fmt()
        .with_env_filter("libbpf=debug,warn")
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
}
