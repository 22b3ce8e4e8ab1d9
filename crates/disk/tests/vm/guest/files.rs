//! Inside the VM: file systems on the disk, and what is in them after a kill.

use super::{Aligned, DISK, parameter};
use crate::pattern::{BLOCK, Pattern};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Where the programs are: a disk of the host's own, so that they can be run whatever becomes of the other.
const TOOLS_DISK: &str = "/dev/vdb";
const TOOLS: &str = "/tools";
const FILES: &str = "/files";

/// Blocks of the file that is written again and again.
const BLOCKS: u64 = 64;
/// Names that are kept.
const NAMES: u64 = 20;

/// Runs a program of the tools' disk.
fn tool(program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(Path::new(TOOLS).join(program));
    let output =
        command.args(arguments).env("LD_LIBRARY_PATH", TOOLS).output().context(program.to_owned())?;
    let said = || [&output.stdout[..], &output.stderr].concat();
    ensure!(output.status.success(), "{program}: {}: {}", output.status, String::from_utf8_lossy(&said()));
    Ok(())
}

/// A file system on the disk.
struct Files {
    kind: String,
}

impl Files {
    fn new() -> Result<Files> {
        for folder in [TOOLS, FILES] {
            fs::create_dir_all(folder)?;
        }
        mount(TOOLS_DISK, TOOLS, "ext4", MountFlags::RDONLY, None).context("mount the tools")?;
        Ok(Files { kind: parameter("fs")? })
    }

    fn mount(&self) -> Result<()> {
        mount(DISK, FILES, self.kind.as_str(), MountFlags::empty(), None).context("mount")
    }

    /// Whatever is wrong with the file system, nothing is mended.
    fn unmount_and_check(&self) -> Result<()> {
        unmount(FILES, UnmountFlags::empty()).context("unmount")?;
        match self.kind.as_str() {
            "xfs" => tool("xfs_repair", &["-n", DISK]),
            _ => tool("e2fsck", &["-f", "-n", DISK]),
        }
    }
}

/// fio writes a file of this name in blocks of many sizes, and compares what it reads of it.
fn fio(name: &str, more: &[&str]) -> Result<()> {
    let name = format!("--name={name}");
    let common = ["--thread", "--ioengine=libaio", "--direct=1", "--verify=crc32c", "--verify_fatal=1"];
    let place = ["--directory=/files", "--bsrange=4k-64k", "--iodepth=16", &name];
    tool("fio", &[&common[..], &place, more].concat())
}

/// Writes that the disk has done.
fn writes() -> Result<u64> {
    let numbers = fs::read_to_string("/sys/class/block/vda/stat")?;
    Ok(numbers.split_ascii_whitespace().nth(4).context("a number of writes")?.parse()?)
}

/// Rounds of mounting, writing, comparing, unmounting and checking, as many as the parameter `rounds` says.
pub(super) fn rounds() -> Result<()> {
    let files = Files::new()?;
    let rounds: u32 = parameter("rounds")?.parse()?;
    for round in 0..rounds {
        files.mount()?;
        let (before, ended) = (writes()?, AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Acquire) && writes().is_ok_and(|now| now < before + 50) {
                    thread::sleep(Duration::from_millis(5));
                }
                println!("guest: round {round} writes");
            });
            let written = fio("random", &["--rw=randwrite", "--size=48m", "--randrepeat=0", "--fsync=32"]);
            ended.store(true, Ordering::Release);
            written
        })?;
        files.unmount_and_check()?;
        println!("guest: round {round} consistent");
    }
    Ok(())
}

/// Checks what a VM that was killed has left, writes without end, and says what is durable.
pub(super) fn killed() -> Result<()> {
    let files = Files::new()?;
    let durable: u64 = parameter("durable")?.parse()?;
    let whole = ["--rw=write", "--size=4m", "--end_fsync=1"];
    // Mounting does what the file system's journal says.
    files.mount()?;
    if durable > 0 {
        files.unmount_and_check()?;
        files.mount()?;
        fio("whole", &[&whole[..], &["--verify_only"]].concat())?;
        check(durable)?;
    } else {
        fio("whole", &whole)?;
        fs::create_dir(Path::new(FILES).join("names"))?;
    }
    println!("guest: consistent");
    // It runs until the VM is killed, and ends only if there is something wrong.
    thread::spawn(|| {
        let Err(e) = (0..).try_for_each(|_| fio("load", &["--rw=randwrite", "--size=24m"])) else { return };
        println!("guest: load: {e:#}");
    });
    generations(durable)
}

fn check(durable: u64) -> Result<()> {
    let file = File::open(Path::new(FILES).join("blocks"))?;
    let mut block = vec![0; BLOCK];
    for number in 0..BLOCKS {
        file.read_exact_at(&mut block, number * BLOCK as u64)?;
        let found = Pattern::read(&block)?;
        ensure!(found.block == number && found.generation >= durable, "{found:?}, durable {durable}");
    }
    let name = Path::new(FILES).join("names").join(durable.to_string());
    let content = fs::read_to_string(&name).with_context(|| format!("{} was durable", name.display()))?;
    ensure!(content == durable.to_string(), "{}: {content}", name.display());
    Ok(())
}

/// Writes all blocks, and a file with a name of its own, and says so when both are durable.
fn generations(last: u64) -> Result<()> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let path = Path::new(FILES).join("blocks");
    let blocks = File::options().create(true).truncate(false).write(true).custom_flags(flags).open(path)?;
    let names = Path::new(FILES).join("names");
    let mut buffer = Aligned::new(BLOCK);
    for generation in last + 1.. {
        for block in 0..BLOCKS {
            Pattern { block, generation }.write(buffer.get(BLOCK));
            blocks.write_all_at(buffer.get(BLOCK), block * BLOCK as u64)?;
        }
        blocks.sync_all()?;
        let name = names.join(generation.to_string());
        fs::write(&name, generation.to_string())?;
        File::open(&name)?.sync_all()?;
        File::open(&names)?.sync_all()?;
        println!("guest: durable {generation}");
        if let Some(old) = generation.checked_sub(NAMES) {
            // A VM before this one may have been killed before it removed it, and one that was killed may
            // have gone farther than it said.
            let _ = fs::remove_file(names.join(old.to_string()));
        }
    }
    Ok(())
}
