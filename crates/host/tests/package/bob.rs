//! A VM that was started by hand as another user, under QEMU with the plugin.

use crate::{
    guest::{self, Guest, HARDWARE, TAP, USER},
    host::run_for_output,
    init::HOME,
};
use anyhow::{Context as _, Result};
use std::{
    fs,
    os::unix::fs::chown,
    process::{Child, Command, Stdio},
};

/// The user whose VMs are tried.
pub(crate) fn add_user() -> Result<()> {
    run_for_output("useradd", &["--system", "--no-create-home", "--home-dir", "/nonexistent", USER])?;
    Ok(())
}

/// Gives a file of the trial's to that user.
pub(crate) fn give_to_user(path: &str) -> Result<()> {
    let id = |flag| -> Result<u32> { Ok(run_for_output("id", &[flag, USER])?.parse()?) };
    Ok(chown(format!("{HOME}/{path}"), Some(id("-u")?), Some(id("-g")?))?)
}

/// The VM, and its process, which is killed with the value.
pub(crate) struct Bob(pub(crate) Guest, Child);

impl Bob {
    /// What is to be there before: his user, and his files.
    pub(crate) fn prepare() -> Result<()> {
        add_user()?;
        guest::prepare()?;
        fs::create_dir(format!("{HOME}/bob"))?;
        give_to_user("bob")?;
        give_to_user("disk")
    }

    pub(crate) fn start() -> Result<Bob> {
        // systemd-run becomes the process that it starts.
        let mut command = Command::new("systemd-run");
        command.args(["--quiet", "--scope", "--unit=bob", "--property=CPUWeight=100"]);
        command.arg(format!("--uid={USER}")).arg("qemu-system-x86_64");
        for (option, value) in [
            ("-name", "bob,debug-threads=on".to_owned()),
            ("-machine", "pc".into()),
            ("-cpu", "EPYC".into()),
            ("-accel", "tcg,thread=multi".into()),
            ("-m", "32".into()),
            ("-display", "none".into()),
            ("-bios", format!("{HOME}/firmware")),
            ("-drive", format!("file={HOME}/disk,format=raw,if=ide")),
            ("-netdev", format!("tap,id=net,ifname={TAP},script=no,downscript=no,vhost=off")),
            ("-device", format!("virtio-net-pci,netdev=net,mac={HARDWARE},romfile=")),
            ("-qmp", format!("unix:{HOME}/bob/bob.qmp,server=on,wait=off")),
            ("-plugin", "/usr/lib/frontdesk/libfrontdesk_tcg_plugin.so".into()),
        ] {
            command.arg(option).arg(value);
        }
        command.args(["-nodefaults", "-no-user-config"]).stdin(Stdio::null());
        let child = command.spawn().context("start systemd-run")?;
        Ok(Bob(Guest { name: "bob", pid: child.id() }, child))
    }
}

impl Drop for Bob {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = self.1.wait();
    }
}
