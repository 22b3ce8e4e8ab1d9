//! A VM whose process 1 is the test program itself.

use anyhow::{Context as _, Result, ensure};
use frontdesk_lab::{RunningVm, VmConfig};
use frontdesk_lab_guest::{MODULES, MODULES_ORDER};
use rustix::{
    io::Errno,
    mount::{MountFlags, mount},
    system::{RebootCommand, finit_module, reboot},
    termios::tcdrain,
};
use std::{
    collections::BTreeSet,
    ffi::CStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{self, Command},
    slice, thread,
    time::{Duration, Instant},
};

/// Boots a VM, and returns what it says until it has ended, or this time is over.
pub(crate) fn console_of(config: &VmConfig, patience: Duration) -> Result<String> {
    Ok(consoles_of(slice::from_ref(config), patience)?.concat())
}

/// The same for VMs that run at the same time.
pub(crate) fn consoles_of(configs: &[VmConfig], patience: Duration) -> Result<Vec<String>> {
    let mut vms = configs.iter().map(RunningVm::boot).collect::<Result<Vec<_>, _>>()?;
    let deadline = Instant::now() + patience;
    while vms.iter_mut().any(RunningVm::is_alive) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    vms.iter().map(|vm| Ok(String::from_utf8_lossy(&fs::read(vm.console())?).into_owned())).collect()
}

/// The libraries that a program loads, and the loader.
pub(crate) fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("start ldd")?;
    ensure!(output.status.success(), "ldd {}: {output:?}", program.display());
    // Lines are "NAME => PATH (ADDRESS)", "PATH (ADDRESS)" for the loader, and "NAME (ADDRESS)" for what the
    // kernel has.
    let text = String::from_utf8(output.stdout)?;
    let path =
        |line: &str| line.split_ascii_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}

/// The end of process 1: says what went wrong, if anything did, and powers the VM off.
pub(crate) fn end(result: Result<()>) -> ! {
    if let Err(e) = result {
        println!("init: {e:#}");
    }
    let _ = tcdrain(io::stdout());
    // If even that fails, the end of process 1 panics the kernel, which ends the VM.
    let _ = reboot(RebootCommand::PowerOff);
    process::exit(1)
}

/// Mounts the kernel's own file systems, of which every system has these.
pub(crate) fn mount_kernel_file_systems() -> Result<()> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        match mount(kind, target, kind, MountFlags::empty(), None) {
            // The kernel may have mounted devtmpfs.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(e) => return Err(e).with_context(|| format!("mount {target}")),
        }
    }
    Ok(())
}

/// The kernel modules that the initramfs has, in the order in which to load them.
pub(crate) fn modules() -> Result<Vec<String>> {
    let order = fs::read_to_string(Path::new(MODULES).join(MODULES_ORDER)).context("the list of modules")?;
    Ok(order.lines().map(str::to_owned).collect())
}

/// Loads one of them.
pub(crate) fn load_module(module: &str, parameters: &CStr) -> Result<()> {
    let file = File::open(Path::new(MODULES).join(module))?;
    finit_module(file, parameters, 0).with_context(|| format!("load {module}"))
}
