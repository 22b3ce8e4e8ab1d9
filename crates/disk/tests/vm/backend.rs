//! The back end in a process of its own, which can be killed.

use crate::trials::{PATIENCE, console};
use anyhow::{Context as _, Result, ensure};
use frontdesk_disk::{ServeConfig, VmDisk};
use frontdesk_lab::RunningVm;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The argument that makes this program a back end: folder of the sockets, and disks.
pub(crate) const ROLE: &str = "serve-disks";

pub(crate) fn serve() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    match try_serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

fn try_serve() -> Result<()> {
    let mut arguments = env::args().skip(2);
    let folder = arguments.next().context("no folder")?;
    let disks = arguments.map(|disk| disk.parse()).collect::<Result<Vec<VmDisk>, _>>()?;
    let never = eventfd(0, EventfdFlags::CLOEXEC)?;
    let folder = Path::new(&folder);
    let config = ServeConfig { daemon: folder.join("none"), ..ServeConfig::new(&disks, folder) };
    Ok(frontdesk_disk::serve(&config, never)?)
}

/// A back end for one VM, killed when dropped.
pub(crate) struct Backend {
    process: Child,
    folder: PathBuf,
    disk: String,
    log: PathBuf,
    starts: u32,
}

impl Backend {
    /// Starts it, and waits until it can be connected to.
    pub(crate) fn start(folder: &Path, image: &Path, options: &str) -> Result<Backend> {
        let disk = format!("alice={}{options}", image.display());
        let log = folder.join("backend-0.log");
        let mut backend =
            Backend { process: spawn(folder, &disk, &log)?, folder: folder.to_owned(), disk, log, starts: 1 };
        backend.ready()?;
        Ok(backend)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("alice.sock")
    }

    /// What the one that runs now has said.
    pub(crate) fn said(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// Ends it without a chance to do anything.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Starts another.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.log = self.folder.join(format!("backend-{}.log", self.starts));
        self.starts += 1;
        self.process = spawn(&self.folder, &self.disk, &self.log)?;
        self.ready()
    }

    /// Waits until QEMU has connected to the one that runs now.
    pub(crate) fn connected(&self, vm: &mut RunningVm) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.said()?.contains("connected") {
            ensure!(vm.is_alive() && Instant::now() < deadline, "QEMU does not connect: {}", console(vm));
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(600);
        while !self.said()?.contains("serving") {
            ensure!(self.process.try_wait()?.is_none(), "the back end has ended: {}", self.said()?);
            ensure!(Instant::now() < deadline, "the back end does not start: {}", self.said()?);
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn spawn(folder: &Path, disk: &str, log: &Path) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args([ROLE.as_ref(), folder.as_os_str(), disk.as_ref()]);
    command.stderr(File::create(log)?).stdout(Stdio::null());
    // SAFETY: the hook makes one system call.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn().context("start the back end")
}
