//! What a VM draws, heard by probes in its QEMU. This process stands for one: it has one of the functions.

use crate::support::{eventually, trial};
use anyhow::{Result, ensure};
use frontdesk_engine::{EventKind, Region, VmId};
use frontdesk_probes::bpf::{BpfSource, BpfStats, Heard};
use libtest_mimic::Trial;
use std::ffi::{c_int, c_void};
use std::time::Instant;

const VM: VmId = VmId(7);
/// What the flood guard lets pass in a millisecond.
const A_MILLISECOND: u64 = 16;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bpf_hears_what_is_drawn", hears_what_is_drawn),
        trial("bpf_guards_against_a_flood_of_frames", guards_against_a_flood_of_frames),
    ]
}

/// As QEMU's: what is probed is that it is called.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn dpy_gfx_update(console: *const c_void, x: c_int, y: c_int, width: c_int, height: c_int) {
    std::hint::black_box((console, x, y, width, height));
}

fn draw(x: c_int, y: c_int, width: c_int, height: c_int) {
    let call = std::hint::black_box(dpy_gfx_update as extern "C" fn(_, _, _, _, _));
    call(std::ptr::null(), x, y, width, height);
}

/// Follows this process.
fn follow() -> Result<BpfSource> {
    let mut source = BpfSource::open()?;
    source.follow(VM, &[], &[])?;
    let own = i32::try_from(std::process::id())?;
    let probes = source.qemu_probes().attach(own);
    // A QEMU that lacks a function tells what else it has.
    let failed: Vec<Heard> = probes.failures().iter().map(|(heard, _)| *heard).collect();
    ensure!(failed == [Heard::Reads], "{:?}", probes.failures());
    ensure!(probes.failures()[0].1.to_string().contains("block_acct_start"), "{:?}", probes.failures());
    source.follow_process(VM, own, probes)?;
    Ok(source)
}

fn regions(source: &mut BpfSource) -> Result<Vec<Region>> {
    let mut events = Vec::new();
    source.drain(&mut events)?;
    let region = |event: &frontdesk_engine::Event| match event.kind {
        EventKind::DisplayUpdate { vm: VM, region } => region,
        _ => None,
    };
    ensure!(events.iter().all(|event| region(event).is_some()), "{events:?}");
    Ok(events.iter().filter_map(region).collect())
}

fn hears_what_is_drawn() -> Result<()> {
    let mut source = follow()?;
    draw(192, 397, 640, 354);
    // Whatever a device says.
    draw(-5, 70_000, c_int::MAX, c_int::MIN);
    let expected = [
        Region { x: 192, y: 397, width: 640, height: 354 },
        Region { x: 0, y: u16::MAX, width: u16::MAX, height: 0 },
    ];
    let heard = regions(&mut source)?;
    ensure!(heard == expected, "{heard:?}");
    source.unfollow(VM);
    draw(1, 2, 3, 4);
    ensure!(regions(&mut source)?.is_empty(), "heard after unfollow");
    Ok(())
}

fn guards_against_a_flood_of_frames() -> Result<()> {
    const FLOOD: u64 = 20_000;
    let mut source = follow()?;
    let began = Instant::now();
    for _ in 0..FLOOD {
        draw(0, 0, 1024, 768);
    }
    let milliseconds = u64::try_from(began.elapsed().as_millis())? + 2;
    let heard = u64::try_from(regions(&mut source)?.len())?;
    let BpfStats { updates, suppressed, lost, .. } = source.stats()?;
    ensure!(updates == FLOOD && heard + suppressed + lost == FLOOD, "{heard} {:?}", source.stats()?);
    ensure!(heard > 0 && heard <= A_MILLISECOND * milliseconds, "{heard} in {milliseconds} ms");
    // What is held back is over when the flood is.
    eventually("a frame is heard again", || {
        draw(1, 2, 3, 4);
        regions(&mut source).is_ok_and(|heard| !heard.is_empty())
    })
}
