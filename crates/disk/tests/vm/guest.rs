//! Inside the VM: what it does with its disk, and what it says about it on its console.

mod files;

use super::own_init::{load_module, modules, mount_kernel_file_systems};
use crate::pattern::{BLOCK, Pattern};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const DISK: &str = "/dev/vda";

/// Blocks that a thread writes to.
const BLOCKS: u64 = 64;

/// Does what the kernel parameter `task` says.
pub(crate) fn main() -> Result<()> {
    mount_kernel_file_systems()?;
    for module in modules()? {
        load_module(&module, c"")?;
    }
    let deadline = Instant::now() + Duration::from_secs(600);
    while !Path::new(DISK).exists() {
        ensure!(Instant::now() < deadline, "there is no {DISK}");
        thread::sleep(Duration::from_millis(20));
    }
    println!("guest: disk of {} sectors", sectors()?);
    match parameter("task")?.as_str() {
        "use" => all_kinds()?,
        "read-only" => read_only()?,
        "resize" => resized()?,
        "churn" => churn()?,
        "generations" => generations()?,
        "rounds" => files::rounds()?,
        "killed" => files::killed()?,
        other => bail!("no task {other}"),
    }
    println!("guest: done");
    Ok(())
}

/// What the kernel was told for this VM.
fn parameter(name: &str) -> Result<String> {
    let parameters = fs::read_to_string("/proc/cmdline")?;
    let named = |word: &str| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    parameters.split_ascii_whitespace().find_map(named).with_context(|| format!("no parameter {name}"))
}

fn sectors() -> Result<u64> {
    Ok(fs::read_to_string("/sys/class/block/vda/size")?.trim().parse()?)
}

fn queue_limit(name: &str) -> Result<u64> {
    Ok(fs::read_to_string(format!("/sys/class/block/vda/queue/{name}"))?.trim().parse()?)
}

fn open(write: bool) -> Result<File> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    File::options().read(true).write(write).custom_flags(flags).open(DISK).context("open the disk")
}

/// Memory for direct I/O.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        let bytes = vec![0; bytes + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Aligned(bytes, start)
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[self.1..self.1 + len]
    }
}

/// Every kind of request.
fn all_kinds() -> Result<()> {
    let disk = open(true)?;
    let mut buffer = Aligned::new(1 << 20);
    // Small and large, at the beginning, in the middle and at the end.
    let end = sectors()? * 512;
    for (len, at) in [(512, 512), (4096, 65536), (1 << 20, 8 << 20), (4096, end - 4096)] {
        let data = buffer.get(len);
        Pattern { block: at, generation: 7 }.write(data);
        disk.write_all_at(data, at).with_context(|| format!("write {len} at {at}"))?;
        data.fill(0);
        disk.read_exact_at(data, at).with_context(|| format!("read {len} at {at}"))?;
        ensure!(Pattern::read(data)? == Pattern { block: at, generation: 7 }, "other data at {at}");
    }
    disk.sync_all().context("flush")?;
    // The page cache makes requests of other shapes.
    let cached = File::options().read(true).write(true).open(DISK)?;
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251).to_le_bytes()[0]).collect();
    cached.write_all_at(&data, 20_000_001)?;
    cached.sync_all()?;
    let mut back = vec![0; 999];
    cached.read_exact_at(&mut back, 20_000_001 + 251 * 4000)?;
    ensure!(back == data[..999], "other data through the page cache");

    ensure!(queue_limit("discard_max_bytes")? > 0, "no discard");
    ensure!(queue_limit("write_zeroes_max_bytes")? > 0, "no write-zeroes");
    let zeroes = |what: &str, buffer: &mut Aligned| -> Result<()> {
        disk.read_exact_at(buffer.get(1 << 20), 8 << 20)?;
        ensure!(buffer.get(1 << 20).iter().all(|byte| *byte == 0), "{what}: there is still data");
        Ok(())
    };
    fallocate(&disk, FallocateFlags::ZERO_RANGE, 8 << 20, 1 << 20).context("write zeroes")?;
    zeroes("write zeroes", &mut buffer)?;
    Pattern { block: 0, generation: 1 }.write(buffer.get(1 << 20));
    disk.write_all_at(buffer.get(1 << 20), 8 << 20)?;
    fallocate(&disk, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8 << 20, 1 << 20)
        .context("unmap")?;
    zeroes("unmap", &mut buffer)?;

    let serial = fs::read_to_string("/sys/class/block/vda/serial")?;
    println!("guest: serial {}", serial.trim());
    println!("guest: {} queues", fs::read_dir("/sys/class/block/vda/mq")?.count());
    Ok(())
}

fn read_only() -> Result<()> {
    ensure!(fs::read_to_string("/sys/class/block/vda/ro")?.trim() == "1", "it is not read-only");
    let mut buffer = Aligned::new(BLOCK);
    open(false)?.read_exact_at(buffer.get(BLOCK), 0)?;
    ensure!(Pattern::read(buffer.get(BLOCK))?.generation == 42, "other data");
    ensure!(open(true).and_then(|disk| Ok(disk.write_all_at(buffer.get(BLOCK), 0)?)).is_err(), "written");
    Ok(())
}

fn resized() -> Result<()> {
    let before = sectors()?;
    println!("guest: ready");
    let deadline = Instant::now() + Duration::from_secs(600);
    while sectors()? == before {
        ensure!(Instant::now() < deadline, "nobody said that the disk has grown");
        thread::sleep(Duration::from_millis(20));
    }
    println!("guest: grown to {} sectors", sectors()?);
    let mut buffer = Aligned::new(BLOCK);
    let disk = open(true)?;
    Pattern { block: 1, generation: 1 }.write(buffer.get(BLOCK));
    disk.write_all_at(buffer.get(BLOCK), sectors()? * 512 - BLOCK as u64).context("write behind the old end")
}

/// Many writers, each with blocks of its own, each sure at all times of what is in them, until the parameter
/// `seconds` is over.
fn churn() -> Result<()> {
    println!("guest: ready");
    let deadline = Instant::now() + Duration::from_secs(parameter("seconds")?.parse()?);
    let writers: Vec<_> = (0..8).map(|writer| thread::spawn(move || write_until(deadline, writer))).collect();
    let mut writes = 0;
    for writer in writers {
        writes += writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
    }
    println!("guest: {writes} writes verified");
    Ok(())
}

fn write_until(deadline: Instant, writer: u64) -> Result<u64> {
    let disk = open(true)?;
    let mut buffer = Aligned::new(BLOCK);
    let mut written = BTreeMap::new();
    let mut random = writer + 1;
    let mut writes = 0;
    let first = writer * BLOCKS;
    let check = |index: u64, generation: u64, buffer: &mut Aligned| -> Result<()> {
        let block = first + index;
        disk.read_exact_at(buffer.get(BLOCK), block * BLOCK as u64)?;
        let found = Pattern::read(buffer.get(BLOCK))?;
        ensure!(found == Pattern { block, generation }, "block {block}: {found:?}, wanted {generation}");
        Ok(())
    };
    // The first pass writes each once, so that each has something to be checked.
    while writes < BLOCKS || Instant::now() < deadline {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let index = if writes < BLOCKS { writes } else { (random >> 33) % BLOCKS };
        writes += 1;
        Pattern { block: first + index, generation: writes }.write(buffer.get(BLOCK));
        disk.write_all_at(buffer.get(BLOCK), (first + index) * BLOCK as u64)?;
        written.insert(index, writes);
        if random >> 60 == 0 {
            disk.sync_data()?;
        }
        let other = (random >> 40) % BLOCKS;
        if let Some(generation) = written.get(&other) {
            check(other, *generation, &mut buffer)?;
        }
    }
    for (index, generation) in written {
        check(index, generation, &mut buffer)?;
    }
    Ok(writes)
}

/// Writes all blocks again and again, says so when a generation is durable, and does not end.
fn generations() -> Result<()> {
    let disk = open(true)?;
    let mut buffer = Aligned::new(BLOCK);
    // Generations go on where the VM before ended.
    disk.read_exact_at(buffer.get(BLOCK), 0)?;
    let last = Pattern::read(buffer.get(BLOCK)).map_or(0, |pattern| pattern.generation);
    for generation in last + 1.. {
        for block in 0..BLOCKS {
            Pattern { block, generation }.write(buffer.get(BLOCK));
            disk.write_all_at(buffer.get(BLOCK), block * BLOCK as u64)?;
        }
        disk.sync_data()?;
        println!("guest: durable {generation}");
    }
    Ok(())
}
