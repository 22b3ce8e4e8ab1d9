//! File systems in a VM, while back end or QEMU are killed: what was written is there, and fsck finds
//! nothing.

use crate::backend::Backend;
use crate::own_init::libraries;
use crate::trials::{PATIENCE, Trials, console, many, random_ms, trial, wait_for};
use anyhow::{Context as _, Result, ensure};
use frontdesk_lab::RunningVm;
use libtest_mimic::Trial;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

/// Bytes of an image: xfs wants 300 MiB.
const SIZE: u64 = 320 << 20;

/// What the guests run. Debian's packages: fio, e2fsprogs, xfsprogs.
const TOOLS: [&str; 3] = ["fio", "e2fsck", "xfs_repair"];

pub(crate) fn all() -> Vec<Trial> {
    vec![
        trial("file_systems_outlive_killed_back_ends", || killed_back_ends("ext4", 2)),
        trial("ext4_outlives_many_killed_back_ends", || killed_back_ends("ext4", many()))
            .with_ignored_flag(true),
        trial("xfs_outlives_many_killed_back_ends", || killed_back_ends("xfs", many()))
            .with_ignored_flag(true),
        trial("file_systems_outlive_killed_vms", || killed_vms("xfs", 1)),
        trial("ext4_outlives_many_killed_vms", || killed_vms("ext4", many())).with_ignored_flag(true),
        trial("xfs_outlives_many_killed_vms", || killed_vms("xfs", many())).with_ignored_flag(true),
    ]
}

/// Runs a program to its end; returns what it has said.
pub(crate) fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
    let program = program.as_ref();
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("start {}", program.display()))?;
    ensure!(output.status.success(), "{}: {output:?}", program.display());
    Ok(String::from_utf8(output.stdout)?)
}

/// A disk with what the guests run, and what that loads, all in its root. fio loads so much that it would
/// take long to boot with it.
fn tools(folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("tools");
    fs::create_dir(&tree)?;
    let mut files = BTreeSet::new();
    for tool in TOOLS {
        let script = format!("PATH=$PATH:/usr/sbin:/sbin command -v {tool}");
        let path = run("/bin/sh", &["-c", &script])
            .with_context(|| format!("{tool} is missing: tools/setup.sh vms installs it"))?;
        let path = PathBuf::from(path.trim());
        files.extend(libraries(&path)?);
        files.insert(path);
    }
    for file in files {
        fs::copy(&file, tree.join(file.file_name().context("a file has a name")?))?;
    }
    let image = folder.join("tools.img");
    File::create(&image)?.set_len(256 << 20)?;
    run("mkfs.ext4", &["-q", "-d", &tree.to_string_lossy(), &image.to_string_lossy()])?;
    Ok(image)
}

/// An image with this file system, and a VM's disk of tools.
fn with(kind: &str) -> Result<(Trials, PathBuf)> {
    let trials = Trials::new(&["virtio_pci", "virtio_blk", "ext4", "xfs"], SIZE)?;
    run(format!("/usr/sbin/mkfs.{kind}"), &["-q", &trials.image.to_string_lossy()])?;
    let tools = tools(trials.folder.path())?;
    Ok((trials, tools))
}

fn boot(trials: &Trials, back_end: &Backend, tools: &Path, parameters: &[&str]) -> Result<RunningVm> {
    let drive = format!("file={},format=raw,if=none,id=tools,readonly=on", tools.display());
    trials.boot_with(back_end, parameters, &["-drive", &drive, "-device", "virtio-blk-pci,drive=tools"])
}

fn killed_back_ends(kind: &str, times: u32) -> Result<()> {
    let (trials, tools) = with(kind)?;
    let mut back_end = trials.back_end("")?;
    let parameters = ["task=rounds", &format!("fs={kind}"), &format!("rounds={times}")];
    let mut vm = boot(&trials, &back_end, &tools, &parameters)?;
    let mut recovered = 0;
    for round in 0..times {
        wait_for(&mut vm, &back_end, &format!("round {round} writes"))?;
        thread::sleep(random_ms(800));
        back_end.kill()?;
        back_end.restart()?;
        back_end.connected(&mut vm)?;
        wait_for(&mut vm, &back_end, &format!("round {round} consistent"))?;
        recovered += u32::from(back_end.said()?.contains("in flight go on"));
    }
    let console = wait_for(&mut vm, &back_end, "guest: done")?;
    ensure!(!console.contains("I/O error"), "{console}");
    // A few kills may all come between two requests.
    ensure!(recovered > 0 || times < 20, "nothing was ever in flight: the trial shows nothing");
    println!("measured: {kind}, requests in flight at {recovered} of {times} kills of the back end");
    Ok(())
}

fn killed_vms(kind: &str, times: u32) -> Result<()> {
    let (trials, tools) = with(kind)?;
    let back_end = trials.back_end("")?;
    let mut durable = 0;
    // The last one only looks.
    for time in 0..=times {
        let parameters = ["task=killed", &format!("fs={kind}"), &format!("durable={durable}")];
        let mut vm = boot(&trials, &back_end, &tools, &parameters)?;
        wait_for(&mut vm, &back_end, "guest: consistent")?;
        if time == times {
            break;
        }
        wait_for(&mut vm, &back_end, &format!("durable {}", durable + 2))?;
        thread::sleep(random_ms(500));
        let path = vm.console().to_owned();
        let before = console(&vm);
        ensure!(!before.contains("guest: load:") && !before.contains("I/O error"), "{before}");
        // Kills it.
        drop(vm);
        let after = String::from_utf8_lossy(&fs::read(path)?).into_owned();
        let said = after.lines().filter_map(|line| line.split("durable ").nth(1));
        durable = said.filter_map(|number| number.trim().parse().ok()).max().unwrap_or(0).max(durable);
        let deadline = Instant::now() + PATIENCE;
        while back_end.said()?.matches(": disconnected").count() <= usize::try_from(time)? {
            ensure!(Instant::now() < deadline, "the back end does not see it");
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    println!("measured: {kind}, {times} VMs killed, {durable} times durable");
    Ok(())
}
