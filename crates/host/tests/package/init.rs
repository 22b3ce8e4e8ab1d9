//! Process 1 of the VM, until systemd is.

use crate::{
    INSIDE,
    own_init::{self, load_module, modules, mount_kernel_file_systems},
    package,
};
use anyhow::{Context as _, Result, ensure};
use frontdesk_lab_guest::{DEBIAN, MODULES};
use rustix::{
    mount::{MountFlags, mount, mount_move},
    process::{chdir, chroot},
};
use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt as _},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Folder of the trial in the Debian system. Like everything that is put there, it is in memory and not part
/// of the system.
pub(crate) const HOME: &str = "/run/package-trial";

/// The package there.
pub(crate) const DEB: &str = "/run/package-trial/frontdesk_0_amd64.deb";

/// On the kernel's command line: a folder of the initramfs whose files are for VMs in the system,
pub(crate) const GUESTS_PARAMETER: &str = "trial.guests";
/// where they are then here.
pub(crate) const GUESTS: &str = "/run/package-trial/guests";

/// Units that would take the console, ask for things or do their own business in between.
const MASKED: [&str; 4] =
    ["serial-getty@ttyS0.service", "systemd-firstboot.service", "timers.target", "getty.target"];

/// Copies what is below a folder of the initramfs, and not in the Debian system, into that.
fn add_missing(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let from = entry?.path();
        let to = Path::new(DEBIAN).join(from.strip_prefix("/")?);
        if from.is_dir() {
            add_missing(&from)?;
        } else if !to.exists() {
            fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
        }
    }
    Ok(())
}

/// What the kernel's command line says of this.
pub(crate) fn parameter(name: &str) -> Result<Option<String>> {
    let line = fs::read_to_string("/proc/cmdline")?;
    let value = |word: &str| Some(word.strip_prefix(name)?.trim_start_matches('=').to_owned());
    Ok(line.split_whitespace().find_map(value))
}

/// How long the disk may take to appear.
const PATIENCE: Duration = Duration::from_secs(300);

/// Boots the Debian system. If that fails, says why and powers the VM off.
pub(crate) fn init() -> ! {
    own_init::end(boot())
}

fn boot() -> Result<()> {
    mount_kernel_file_systems()?;
    for module in modules()? {
        load_module(&module, c"")?;
    }
    let begin = Instant::now();
    while !Path::new("/dev/vda").exists() {
        ensure!(begin.elapsed() < PATIENCE, "there is no /dev/vda");
        thread::sleep(Duration::from_millis(10));
    }
    fs::create_dir_all(DEBIAN)?;
    mount("/dev/vda", DEBIAN, "ext4", MountFlags::empty(), None).context("mount the Debian system")?;
    let inside = |path: &str| format!("{DEBIAN}{path}");
    // As on every host: only root makes folders there.
    mount("tmpfs", inside("/run"), "tmpfs", MountFlags::empty(), c"mode=0755").context("mount /run")?;
    let units = inside("/run/systemd/system");
    fs::create_dir_all(inside(HOME))?;
    fs::create_dir_all(format!("{units}/multi-user.target.wants"))?;
    for (from, to) in [(Path::new("/proc/self/exe"), &*format!("{HOME}/trial")), (&package(), DEB)] {
        let what = || format!("copy {}", from.display());
        fs::copy(from, inside(to)).with_context(what)?;
    }
    if let Some(folder) = parameter(GUESTS_PARAMETER)? {
        fs::create_dir_all(inside(GUESTS))?;
        for file in fs::read_dir(folder)? {
            let file = file?;
            fs::copy(file.path(), Path::new(&inside(GUESTS)).join(file.file_name()))?;
        }
    }
    // What the Debian system has is what it uses.
    fs::create_dir_all(inside(MODULES))?;
    for folder in ["/lib", "/usr", MODULES].map(Path::new) {
        if folder.exists() {
            add_missing(folder)?;
        }
    }
    for unit in MASKED {
        symlink("/dev/null", format!("{units}/{unit}"))?;
    }
    let unit = format!(
        "[Unit]\nSuccessAction=poweroff-force\nFailureAction=poweroff-force\n\
         [Service]\nType=oneshot\nExecStart={HOME}/trial {INSIDE}\nStandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS0\n"
    );
    fs::write(format!("{units}/trial.service"), unit)?;
    symlink("../trial.service", format!("{units}/multi-user.target.wants/trial.service"))?;
    // As switch_root(8) does it.
    chdir(DEBIAN)?;
    mount_move(".", "/")?;
    chroot(".")?;
    chdir("/")?;
    Err(Command::new("/sbin/init").exec()).context("start systemd")
}
