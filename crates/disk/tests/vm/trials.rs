//! What is tried.

use crate::backend::Backend;
use crate::own_init::libraries;
use crate::pattern::{BLOCK, Pattern};
use anyhow::{Context as _, Result, ensure};
use frontdesk_disk::{ServeConfig, VmDisk, serve};
use frontdesk_lab::{Kernel, RunningVm, VmConfig, add_to_initramfs, write_initramfs_with};
use libtest_mimic::{Failed, Trial};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, thread};
use tempfile::TempDir;

/// Generous: emulated guests on a busy machine are slow, and nothing here is about speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(420);

/// Bytes of an image.
pub(crate) const SIZE: u64 = 64 << 20;

/// What a guest needs to have a disk.
pub(crate) const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

pub(crate) fn trial(name: &str, run: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || run().map_err(|e| Failed::from(format!("{e:#}"))))
}

/// How many kills the long trials have: what the environment's `KILLS` says, or 100.
pub(crate) fn many() -> u32 {
    env::var("KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(100)
}

/// A time below this many milliseconds, so that a kill never comes at the same moment of what goes on.
pub(crate) fn random_ms(below: u64) -> Duration {
    Duration::from_millis(RandomState::new().build_hasher().finish() % below)
}

pub(crate) fn all() -> Vec<Trial> {
    vec![
        trial("every_kind_of_request", every_kind_of_request),
        trial("read_only", read_only),
        trial("a_disk_grows_while_its_vm_runs", grows),
        trial("killed_back_ends_lose_and_repeat_nothing", || killed_back_ends(5)),
        trial("killed_back_ends_lose_and_repeat_nothing_many_times", || killed_back_ends(many()))
            .with_ignored_flag(true),
        trial("killed_vms_lose_nothing_that_was_durable", || killed_vms(3)),
        trial("killed_vms_lose_nothing_that_was_durable_many_times", || killed_vms(many()))
            .with_ignored_flag(true),
        trial("two_back_ends_are_refused", two_back_ends),
    ]
}

/// What a trial has: a folder, an image in it, and what a VM boots.
pub(crate) struct Trials {
    pub(crate) folder: TempDir,
    pub(crate) image: PathBuf,
    pub(crate) kernel: Kernel,
    pub(crate) initrd: PathBuf,
}

impl Trials {
    /// With an empty image of `size` bytes, and a guest that has these modules.
    pub(crate) fn new(modules: &[&str], size: u64) -> Result<Trials> {
        // Beside what is built, for /tmp may be memory, and has no such disk.
        let target = env::current_exe()?.ancestors().nth(3).context("the target folder")?.to_owned();
        let folder = tempfile::Builder::new().prefix("disk-").tempdir_in(target)?;
        let image = folder.path().join("alice.img");
        File::create(&image)?.set_len(size)?;
        let kernel = Kernel::resolve("6.12-cloud", None)?;
        let program = env::current_exe()?;
        let initrd = folder.path().join("initrd");
        write_initramfs_with(&kernel, &program, modules, &initrd)?;
        add_to_initramfs(&initrd, &libraries(&program)?.into_iter().collect())?;
        Ok(Trials { folder, image, kernel, initrd })
    }

    pub(crate) fn back_end(&self, options: &str) -> Result<Backend> {
        Backend::start(self.folder.path(), &self.image, options)
    }

    /// Boots a VM on the back end's disk.
    pub(crate) fn boot(&self, back_end: &Backend, parameters: &[&str]) -> Result<RunningVm> {
        self.boot_with(back_end, parameters, &[])
    }

    /// The same, with more arguments for QEMU.
    pub(crate) fn boot_with(
        &self,
        back_end: &Backend,
        parameters: &[&str],
        more: &[&str],
    ) -> Result<RunningVm> {
        let socket = back_end.socket();
        let arguments = [
            "-object",
            "memory-backend-memfd,id=memory,size=384M,share=on",
            "-machine",
            "memory-backend=memory",
            "-chardev",
            &format!("socket,id=disk,path={},reconnect=1", socket.display()),
            "-device",
            "vhost-user-blk-pci,chardev=disk,num-queues=2,queue-size=128",
        ];
        let config = VmConfig {
            memory_mib: 384,
            vcpus: 1,
            parameters: parameters.iter().map(|word| (*word).to_owned()).collect(),
            arguments: arguments.iter().chain(more).map(|word| (*word).to_owned()).collect(),
            ..VmConfig::new("alice", &self.kernel, &self.initrd, self.folder.path())
        };
        Ok(RunningVm::boot(&config)?)
    }
}

/// What the guest has said yet. QEMU makes the file when it starts.
pub(crate) fn console(vm: &RunningVm) -> String {
    String::from_utf8_lossy(&fs::read(vm.console()).unwrap_or_default()).into_owned()
}

/// Waits until the guest says that.
pub(crate) fn wait_for(vm: &mut RunningVm, back_end: &Backend, text: &str) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let alive = vm.is_alive();
        let console = console(vm);
        if console.contains(text) {
            return Ok(console);
        }
        ensure!(
            alive && Instant::now() < deadline,
            "the guest never says {text}; its console:\n{console}\nthe back end:\n{}",
            back_end.said()?
        );
        thread::sleep(Duration::from_millis(20));
    }
}

fn every_kind_of_request() -> Result<()> {
    let trials = Trials::new(&MODULES, SIZE)?;
    let back_end = trials.back_end("")?;
    let mut vm = trials.boot(&back_end, &["task=use"])?;
    let console = wait_for(&mut vm, &back_end, "guest: done")?;
    for wanted in [format!("disk of {} sectors", SIZE / 512), "serial alice".into(), "1 queues".into()] {
        ensure!(console.contains(&wanted), "{wanted}: {console}");
    }
    let mut block = vec![0; BLOCK];
    File::open(&trials.image)?.read_exact_at(&mut block, 65536)?;
    ensure!(Pattern::read(&block)? == Pattern { block: 65536, generation: 7 }, "the image has other data");
    Ok(())
}

fn read_only() -> Result<()> {
    let trials = Trials::new(&MODULES, SIZE)?;
    let mut block = vec![0; BLOCK];
    Pattern { block: 0, generation: 42 }.write(&mut block);
    File::options().write(true).open(&trials.image)?.write_all_at(&block, 0)?;
    let back_end = trials.back_end(",readonly")?;
    let mut vm = trials.boot(&back_end, &["task=read-only"])?;
    wait_for(&mut vm, &back_end, "guest: done").map(drop)
}

fn grows() -> Result<()> {
    let trials = Trials::new(&MODULES, SIZE)?;
    let back_end = trials.back_end("")?;
    let mut vm = trials.boot(&back_end, &["task=resize"])?;
    wait_for(&mut vm, &back_end, "guest: ready")?;
    File::options().write(true).open(&trials.image)?.set_len(2 * SIZE)?;
    let console = wait_for(&mut vm, &back_end, "guest: done")?;
    ensure!(console.contains(&format!("grown to {} sectors", 2 * SIZE / 512)), "{console}");
    Ok(())
}

fn killed_back_ends(times: u32) -> Result<()> {
    let trials = Trials::new(&MODULES, SIZE)?;
    let mut back_end = trials.back_end("")?;
    // QEMU connects again after a second.
    let seconds = format!("seconds={}", 10 + times * 3 / 2);
    let mut vm = trials.boot(&back_end, &["task=churn", &seconds])?;
    wait_for(&mut vm, &back_end, "guest: ready")?;
    let mut recovered = 0;
    for _ in 0..times {
        thread::sleep(random_ms(500));
        back_end.kill()?;
        back_end.restart()?;
        back_end.connected(&mut vm)?;
        thread::sleep(Duration::from_millis(100));
        recovered += u32::from(back_end.said()?.contains("in flight go on"));
    }
    let console = wait_for(&mut vm, &back_end, "guest: done")?;
    ensure!(console.contains("writes verified") && !console.contains("I/O error"), "{console}");
    // A few kills may all come between two requests.
    ensure!(recovered > 0 || times < 20, "nothing was ever in flight: the trial shows nothing");
    let line = console.lines().find(|line| line.contains("verified")).unwrap_or_default();
    println!("measured: {line}, requests in flight at {recovered} of {times} kills");
    Ok(())
}

fn killed_vms(times: u32) -> Result<()> {
    let trials = Trials::new(&MODULES, SIZE)?;
    let back_end = trials.back_end("")?;
    let mut last = 0;
    for time in 0..times {
        let mut vm = trials.boot(&back_end, &["task=generations"])?;
        wait_for(&mut vm, &back_end, &format!("durable {}", last + 2))?;
        thread::sleep(random_ms(300));
        // Kills it.
        let console_path = vm.console().to_owned();
        drop(vm);
        let console = String::from_utf8_lossy(&fs::read(console_path)?).into_owned();
        let said = console.lines().filter_map(|line| line.split("durable ").nth(1));
        let durable = said.filter_map(|number| number.trim().parse().ok()).max().unwrap_or(0);
        ensure!(durable > last, "it wrote nothing");
        let deadline = Instant::now() + PATIENCE;
        while back_end.said()?.matches(": disconnected").count() <= usize::try_from(time)? {
            ensure!(Instant::now() < deadline, "the back end does not see it");
            thread::sleep(Duration::from_millis(10));
        }
        let image = File::open(&trials.image)?;
        let mut block = vec![0; BLOCK];
        for number in 0..64 {
            image.read_exact_at(&mut block, number * BLOCK as u64)?;
            let found = Pattern::read(&block)?;
            ensure!(found.block == number && found.generation >= durable, "{found:?}, durable {durable}");
        }
        last = durable + 1;
    }
    Ok(())
}

fn two_back_ends() -> Result<()> {
    let trials = Trials::new(&MODULES, SIZE)?;
    let _back_end = trials.back_end("")?;
    let elsewhere = trials.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere)?;
    let disk = VmDisk { name: "bob".into(), image: trials.image.clone(), read_only: false };
    let config = ServeConfig { daemon: elsewhere.join("none"), ..ServeConfig::new(&[disk], &elsewhere) };
    let error = serve(&config, eventfd(0, EventfdFlags::CLOEXEC)?);
    let error = error.err().context("two back ends write to one image")?.to_string();
    ensure!(error.contains("another process uses it"), "{error}");
    ensure!(!Path::new(&elsewhere).join("bob.sock").exists(), "there is a socket");
    Ok(())
}
