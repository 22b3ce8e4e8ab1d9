//! A qcow2 image: QEMU's storage daemon shows its content as a raw file, which is served as any other is.

use crate::consistency::run;
use crate::pattern::{BLOCK, Pattern};
use crate::trials::{MODULES, PATIENCE, SIZE, Trials, trial, wait_for};
use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn all() -> Vec<Trial> {
    vec![trial("a_snapshot_in_qcow2_is_served", snapshot)]
}

/// QEMU's storage daemon, ended when dropped.
struct Daemon {
    pid_file: PathBuf,
}

impl Daemon {
    /// Shows the content of `image` at `raw`.
    fn start(image: &Path, raw: &Path) -> Result<Daemon> {
        File::create(raw)?;
        let pid_file = image.with_extension("pid");
        let file =
            format!("driver=file,node-name=file,filename={},cache.direct=on,aio=io_uring", image.display());
        let export = format!("type=fuse,id=alice,node-name=alice,mountpoint={},writable=on", raw.display());
        let pid = pid_file.to_string_lossy().into_owned();
        let arguments = [
            "--daemonize",
            "--pidfile",
            &pid,
            "--blockdev",
            &file,
            "--blockdev",
            "driver=qcow2,node-name=alice,file=file,discard=unmap",
            "--export",
            &export,
        ];
        run("qemu-storage-daemon", &arguments).context("Debian's qemu-utils has it: tools/setup.sh vms")?;
        Ok(Daemon { pid_file })
    }

    /// Ends it, and waits until it has written what it knows.
    fn end(&self) -> Result<()> {
        let Ok(pid) = fs::read_to_string(&self.pid_file) else { return Ok(()) };
        let pid = Pid::from_raw(pid.trim().parse()?).context("a pid")?;
        kill_process(pid, Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while self.pid_file.exists() {
            ensure!(Instant::now() < deadline, "the storage daemon does not end");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn block(image: &Path, at: u64) -> Result<Pattern> {
    let mut block = vec![0; BLOCK];
    File::open(image)?.read_exact_at(&mut block, at)?;
    Pattern::read(&block)
}

fn snapshot() -> Result<()> {
    let trials = Trials::new(&MODULES, SIZE)?;
    let path = |name: &str| trials.folder.path().join(name);
    let text = |name: &str| path(name).to_string_lossy().into_owned();
    // What the snapshot is of.
    let mut data = vec![0; BLOCK];
    Pattern { block: 32 << 20, generation: 42 }.write(&mut data);
    File::options().write(true).open(&trials.image)?.write_all_at(&data, 32 << 20)?;
    run("qemu-img", &["convert", "-O", "qcow2", &trials.image.to_string_lossy(), &text("base.qcow2")])?;
    let base = text("base.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &text("alice.qcow2")])?;
    let before = fs::read(path("base.qcow2"))?;

    let daemon = Daemon::start(&path("alice.qcow2"), &path("alice.raw"))?;
    let served = Trials { image: path("alice.raw"), ..trials };
    let back_end = served.back_end("")?;
    ensure!(!back_end.said()?.contains("no direct I/O"), "{}", back_end.said()?);
    let mut vm = served.boot(&back_end, &["task=use"])?;
    wait_for(&mut vm, &back_end, "guest: done")?;
    drop((vm, back_end));
    daemon.end()?;

    let path = |name: &str| served.folder.path().join(name);
    let text = |name: &str| path(name).to_string_lossy().into_owned();
    run("qemu-img", &["check", "-q", &text("alice.qcow2")])?;
    run("qemu-img", &["convert", "-O", "raw", &text("alice.qcow2"), &text("flat.raw")])?;
    ensure!(block(&path("flat.raw"), 65536)? == Pattern { block: 65536, generation: 7 }, "what the VM wrote");
    let kept = block(&path("flat.raw"), 32 << 20)?;
    ensure!(kept == Pattern { block: 32 << 20, generation: 42 }, "what was there before: {kept:?}");
    ensure!(fs::read(path("base.qcow2"))? == before, "what the snapshot is of has changed");
    Ok(())
}
