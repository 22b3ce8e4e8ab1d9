//! The records and map entries shared with the BPF programs, field by field as `bpf/frontdesk.bpf.c` lays
//! them out.

use crate::packet::{PROTOCOL_TCP, PROTOCOL_UDP};
use frontdesk_engine::{Event, EventKind, Protocol, Region, Thread, Time, UserInput, VmId};

const KIND_RUN: u8 = 1;
const KIND_STOP: u8 = 2;
const KIND_WAKE: u8 = 3;
const KIND_PACKET: u8 = 4;
const KIND_READ: u8 = 5;
const KIND_READ_PENDING: u8 = 6;
const KIND_READ_DONE: u8 = 7;
const KIND_REPLY: u8 = 8;
const KIND_DISPLAY: u8 = 9;
const KIND_GPU: u8 = 10;
const KIND_INPUT: u8 = 11;

const ROLE_VCPU: u16 = 0;
const ROLE_EMULATOR: u16 = 1;

const INPUT_ENTER: u8 = 1;
const INPUT_KEY: u8 = 2;
const INPUT_BUTTON: u8 = 3;

/// One of the counters the programs keep: its index in the map `counters`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    Packets = 0,
    Pushed = 1,
    Woken = 2,
    NoPayload = 3,
    Other = 4,
    Suppressed = 5,
    Lost = 6,
    Reads = 7,
    Updates = 8,
}

/// Value of the map `threads` (struct thread): nobody wakes it yet.
pub(super) fn thread_value(vm: VmId, thread: Thread) -> [u8; 12] {
    let (role, index) = match thread {
        Thread::Vcpu(index) => (ROLE_VCPU, index),
        Thread::Emulator(index) => (ROLE_EMULATOR, index),
    };
    let mut value = [0; 12];
    value[..4].copy_from_slice(&vm.0.to_ne_bytes());
    value[4..6].copy_from_slice(&role.to_ne_bytes());
    value[6..8].copy_from_slice(&index.to_ne_bytes());
    value
}

/// Value of the map `taps` (struct tap): nothing asked or replied, no window opened yet.
pub(super) fn tap_value(vm: VmId) -> [u8; 24] {
    let mut value = [0; 24];
    value[..4].copy_from_slice(&vm.0.to_ne_bytes());
    value
}

/// Value of the map `processes` (struct process): nothing in flight, no window opened yet.
pub(super) fn process_value(vm: VmId) -> [u8; 56] {
    let mut value = [0; 56];
    value[..4].copy_from_slice(&vm.0.to_ne_bytes());
    value
}

/// Value of the map `others` (struct others) on a CPU: nothing ran yet.
pub(super) const NO_OTHERS: [u8; 32] = [0; 32];

/// What such a value says by the time `now`, in nanoseconds: for how long they ran, and for how long those
/// that have stopped had waited for that. `None` if it is none of ours.
pub(super) fn others(value: &[u8], now: u64) -> Option<(u64, u64)> {
    let &[ran, since, waited, _] = value.as_chunks::<8>().0 else { return None };
    let [ran, since, waited] = [ran, since, waited].map(u64::from_ne_bytes);
    Some((ran.saturating_add(if since > 0 { now.saturating_sub(since) } else { 0 }), waited))
}

/// Decodes a record of the ring (struct record), or `None` if it is none of ours.
pub(crate) fn decode(record: &[u8]) -> Option<Event> {
    let at = Time(u64::from_ne_bytes(record.get(..8)?.try_into().ok()?));
    let vm = VmId(u32::from_ne_bytes(record.get(8..12)?.try_into().ok()?));
    let &[kind, detail] = record.get(12..14)? else { return None };
    let half = |from: usize| Some(u16::from_ne_bytes(record.get(from..from + 2)?.try_into().ok()?));
    let (role, index, cpu) = (half(14)?, half(16)?, half(18)?);
    let word = u32::from_ne_bytes(record.get(20..24)?.try_into().ok()?);
    let request = u64::from(word);
    let waker = word.checked_sub(1).and_then(|index| u16::try_from(index).ok());
    let thread = || match role {
        ROLE_VCPU => Some(Thread::Vcpu(index)),
        ROLE_EMULATOR => Some(Thread::Emulator(index)),
        _ => None,
    };
    let protocol = || match detail {
        PROTOCOL_TCP => Some(Protocol::Tcp),
        PROTOCOL_UDP => Some(Protocol::Udp),
        _ => None,
    };
    let kind = match kind {
        KIND_RUN => EventKind::Run { vm, thread: thread()?, pcpu: cpu },
        KIND_STOP => EventKind::Stop { vm, thread: thread()?, runnable: detail != 0 },
        KIND_WAKE => EventKind::Wake { vm, thread: thread()?, by: waker },
        KIND_PACKET => EventKind::Packet { vm, protocol: protocol()?, port: index },
        KIND_REPLY => EventKind::Reply { vm, protocol: protocol()?, port: index },
        KIND_READ => EventKind::BlockRead { vm, request },
        KIND_READ_PENDING => EventKind::BlockPending { vm },
        KIND_READ_DONE => EventKind::BlockDone { vm, request },
        KIND_DISPLAY => {
            let (width, height) = (half(22)?, half(20)?);
            EventKind::DisplayUpdate { vm, region: Some(Region { x: role, y: index, width, height }) }
        }
        KIND_GPU => EventKind::GpuDone { vm },
        KIND_INPUT => {
            let input = match detail {
                INPUT_ENTER => UserInput::Enter,
                INPUT_KEY => UserInput::Key,
                INPUT_BUTTON => UserInput::Button,
                _ => return None,
            };
            EventKind::Input { vm, input }
        }
        _ => return None,
    };
    Some(Event { at, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, detail: u8, role: u16, index: u16) -> Vec<u8> {
        let mut bytes = 7_000_000_001_u64.to_ne_bytes().to_vec();
        bytes.extend(3_u32.to_ne_bytes());
        bytes.extend([kind, detail]);
        bytes.extend([role, index, 1].map(u16::to_ne_bytes).concat());
        bytes.extend(5_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn decodes_each_kind_and_refuses_the_rest() {
        let vm = VmId(3);
        let expect =
            |bytes: Vec<u8>, kind| assert_eq!(decode(&bytes), Some(Event { at: Time(7_000_000_001), kind }));
        expect(record(1, 0, 0, 2), EventKind::Run { vm, thread: Thread::Vcpu(2), pcpu: 1 });
        expect(record(2, 1, 1, 0), EventKind::Stop { vm, thread: Thread::Emulator(0), runnable: true });
        expect(record(3, 0, 0, 5), EventKind::Wake { vm, thread: Thread::Vcpu(5), by: Some(4) });
        expect(record(4, 17, 0, 53), EventKind::Packet { vm, protocol: Protocol::Udp, port: 53 });
        expect(record(5, 0, 0, 0), EventKind::BlockRead { vm, request: 5 });
        expect(record(6, 0, 0, 0), EventKind::BlockPending { vm });
        expect(record(7, 0, 0, 0), EventKind::BlockDone { vm, request: 5 });
        expect(record(8, 6, 0, 443), EventKind::Reply { vm, protocol: Protocol::Tcp, port: 443 });
        let region = Some(Region { x: 192, y: 397, width: 0, height: 5 });
        expect(record(9, 0, 192, 397), EventKind::DisplayUpdate { vm, region });
        expect(record(10, 0, 0, 0), EventKind::GpuDone { vm });
        assert_eq!(decode(&record(1, 0, 9, 0)), None, "unknown role");
        assert_eq!(decode(&record(4, 1, 0, 0)), None, "ICMP");
        let inputs = [UserInput::Enter, UserInput::Key, UserInput::Button];
        for (detail, input) in (1..).zip(inputs) {
            expect(record(11, detail, 0, 0), EventKind::Input { vm, input });
        }
        assert_eq!(decode(&record(11, 4, 0, 0)), None, "unknown input");
        assert_eq!(decode(&record(12, 0, 0, 0)), None, "unknown kind");
        assert_eq!(decode(&record(1, 0, 0, 2)[..19]), None, "cut short");
    }

    #[test]
    fn what_others_run_is_told_while_they_do() {
        let value = |ran: u64, since: u64| [ran, since, 5, 3].map(u64::to_ne_bytes).concat();
        assert_eq!(others(&NO_OTHERS, 100), Some((0, 0)));
        assert_eq!(others(&value(7, 0), 100), Some((7, 5)));
        assert_eq!(others(&value(7, 60), 100), Some((47, 5)));
        assert_eq!(others(&value(7, 101), 100), Some((7, 5)), "begun since");
        assert_eq!(others(&value(u64::MAX, 1), 100), Some((u64::MAX, 5)));
        assert_eq!(others(&[0; 31], 100), None);
    }

    proptest::proptest! {
        /// Records of any content and length; most have a kind that there is.
        #[test]
        fn fuzz_records(mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..40), kind in 0..13u8) {
            if let Some(byte) = bytes.get_mut(12) {
                *byte = kind;
            }
            crate::fuzzing::record(&bytes);
        }
    }
}
