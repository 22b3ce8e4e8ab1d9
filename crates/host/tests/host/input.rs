//! What a person does at a VM, heard by a probe in its QEMU. This process stands for one: it has the
//! function, and gives it what QEMU does.

use crate::support::{eventually, trial};
use anyhow::{Result, ensure};
use frontdesk_engine::{EventKind, UserInput, VmId};
use frontdesk_probes::bpf::{BpfSource, BpfStats};
use libtest_mimic::Trial;
use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

const VM: VmId = VmId(9);
/// What the flood guard lets pass in a millisecond.
const A_MILLISECOND: u64 = 16;

// Of QEMU's `qapi/ui.json`.
const RET: u32 = 35;
const KP_ENTER: u32 = 78;
const A: u32 = 36;
const LEFT: u32 = 0;
const WHEEL_UP: u32 = 3;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bpf_hears_keys_and_buttons", hears_keys_and_buttons),
        trial("bpf_guards_against_a_flood_of_keys", guards_against_a_flood_of_keys),
    ]
}

/// A key's value: its code.
#[repr(C)]
struct KeyValue {
    kind: u32,
    qcode: u64,
}

#[repr(C)]
struct Key {
    value: *const KeyValue,
    down: bool,
}

#[repr(C)]
struct Button {
    which: u32,
    down: bool,
}

#[repr(C)]
struct InputEvent {
    kind: u32,
    data: *const c_void,
}

/// As QEMU's: what is probed is that it is called.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn qemu_input_event_send_impl(console: *const c_void, event: *const InputEvent) {
    std::hint::black_box((console, event));
}

fn send(kind: u32, data: *const c_void) {
    let call = std::hint::black_box(qemu_input_event_send_impl as extern "C" fn(_, _));
    call(ptr::null(), &raw const *Box::new(InputEvent { kind, data }));
}

fn key(code: u32, down: bool) {
    let value = KeyValue { kind: 1, qcode: code.into() };
    let key = Key { value: &raw const value, down };
    send(0, (&raw const key).cast());
}

fn button(which: u32, down: bool) {
    let button = Button { which, down };
    send(1, (&raw const button).cast());
}

/// Follows this process.
fn follow() -> Result<BpfSource> {
    let mut source = BpfSource::open()?;
    source.follow(VM, &[], &[])?;
    let own = i32::try_from(std::process::id())?;
    let probes = source.qemu_probes().attach(own);
    source.follow_process(VM, own, probes)?;
    Ok(source)
}

fn inputs(source: &mut BpfSource) -> Result<Vec<UserInput>> {
    let mut events = Vec::new();
    source.drain(&mut events)?;
    let input = |event: &frontdesk_engine::Event| match event.kind {
        EventKind::Input { vm: VM, input } => Some(input),
        _ => None,
    };
    ensure!(events.iter().all(|event| input(event).is_some()), "{events:?}");
    Ok(events.iter().filter_map(input).collect())
}

fn hears_keys_and_buttons() -> Result<()> {
    let mut source = follow()?;
    for code in [RET, A, KP_ENTER] {
        key(code, true);
        key(code, false);
    }
    for which in [LEFT, WHEEL_UP] {
        button(which, true);
        button(which, false);
    }
    // A motion, and what no QEMU sends.
    let button = Button { which: LEFT, down: false };
    send(2, (&raw const button).cast());
    send(0, ptr::null());
    send(1, ptr::without_provenance(8));
    let dangling = Key { value: ptr::null(), down: true };
    send(0, (&raw const dangling).cast());
    let heard = inputs(&mut source)?;
    let expected = [UserInput::Enter, UserInput::Key, UserInput::Enter, UserInput::Button, UserInput::Key];
    ensure!(heard == expected, "{heard:?}");
    source.unfollow(VM);
    key(RET, true);
    ensure!(inputs(&mut source)?.is_empty(), "heard after unfollow");
    Ok(())
}

fn guards_against_a_flood_of_keys() -> Result<()> {
    const FLOOD: u64 = 20_000;
    let mut source = follow()?;
    let began = Instant::now();
    for _ in 0..FLOOD {
        key(RET, true);
    }
    let milliseconds = u64::try_from(began.elapsed().as_millis())? + 2;
    let heard = u64::try_from(inputs(&mut source)?.len())?;
    let BpfStats { suppressed, lost, .. } = source.stats()?;
    ensure!(heard + suppressed + lost == FLOOD, "{heard} {:?}", source.stats()?);
    ensure!(heard > 0 && heard <= A_MILLISECOND * milliseconds, "{heard} in {milliseconds} ms");
    // What is held back is over when the flood is.
    eventually("a key is heard again", || {
        key(A, true);
        inputs(&mut source).is_ok_and(|heard| !heard.is_empty())
    })
}
