//! Calls of the disk policy.

#![no_main]

use frontdesk_engine::UserInput;
use frontdesk_engine::disk::DiskOperation;
use frontdesk_testing::disk_calls::{Call, served_once};

/// Words of a call: which, and its numbers.
fn call(bytes: &[u8; 12]) -> Call {
    let [which, small, a, b, ..] = *bytes;
    let long = bytes[4..].iter().fold(0_u64, |long, byte| long << 8 | u64::from(*byte));
    let (vm, task) = (u32::from(small % 4), u64::from(a % 4));
    match which % 9 {
        0 | 1 => {
            let operations =
                [DiskOperation::Read, DiskOperation::Write, DiskOperation::Flush, DiskOperation::Discard];
            let (operation, task) = (operations[usize::from(b % 4)], (a < 200).then_some(task));
            Call::Ask { vm, task, operation, bytes: long >> (b >> 2), offset: long }
        }
        2 => Call::Complete(usize::from(a)),
        3 => Call::CompleteUnknown(long),
        4 => Call::Input(vm, [UserInput::Enter, UserInput::Button, UserInput::Key][usize::from(a % 3)]),
        5 => Call::Named(vm, task, ["mpv", "sh", ""][usize::from(b % 3)].to_owned()),
        6 => Call::Limits(vm, (long >> 32) as u32, long as u32),
        7 => Call::Wait(long >> (b >> 2)),
        _ => Call::Back(long >> (b >> 2)),
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((choice, calls)) = bytes.split_first() else { return };
    let calls = calls.as_chunks().0.iter().map(call).collect();
    served_once(calls, choice & 1 == 1, choice & 2 == 2, choice & 4 == 4);
});
