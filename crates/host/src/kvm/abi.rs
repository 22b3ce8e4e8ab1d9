//! The records and map entries shared with the BPF programs, field by field as `bpf/kvm.bpf.c` lays them out.

use frontdesk_engine::{Event, EventKind, TaskId, Time, VmId};

const KIND_SWITCH: u16 = 1;
const KIND_HALT: u16 = 2;
const KIND_RESUME: u16 = 3;
const KIND_SEEN: u16 = 4;

/// One of the counters the programs keep: its index in the map `counters`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    Pushed = 0,
    Suppressed = 1,
    Lost = 2,
}

/// Value of the map `vcpus` (struct vcpu): nothing reported, no window opened yet.
pub(super) fn vcpu_value(vm: VmId, index: u16) -> [u8; 48] {
    let mut value = [0; 48];
    value[..4].copy_from_slice(&vm.0.to_ne_bytes());
    value[4..6].copy_from_slice(&index.to_ne_bytes());
    value
}

/// Decodes a record of the ring (struct record), or `None` if it is none of ours.
pub(super) fn decode(record: &[u8]) -> Option<Event> {
    let (at, rest) = record.split_first_chunk()?;
    let (task, rest) = rest.split_first_chunk()?;
    let (vm, rest) = rest.split_first_chunk()?;
    let (index, rest) = rest.split_first_chunk()?;
    let vm = VmId(u32::from_ne_bytes(*vm));
    let vcpu = u16::from_ne_bytes(*index);
    let task = TaskId(u64::from_ne_bytes(*task));
    let kind = match u16::from_ne_bytes(*rest.first_chunk()?) {
        KIND_SWITCH => EventKind::TaskSwitch { vm, vcpu, task },
        KIND_SEEN => EventKind::TaskSeen { vm, vcpu, task },
        KIND_HALT => EventKind::Halt { vm, vcpu },
        KIND_RESUME => EventKind::Resume { vm, vcpu },
        _ => return None,
    };
    Some(Event { at: Time(u64::from_ne_bytes(*at)), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_each_kind_and_refuses_the_rest() {
        let record = |kind: u16| {
            let mut bytes = [7_000_000_001_u64, 0x1_2345_6000].map(u64::to_ne_bytes).concat();
            bytes.extend(3_u32.to_ne_bytes());
            bytes.extend([2, kind].map(u16::to_ne_bytes).concat());
            bytes
        };
        let (vm, vcpu) = (VmId(3), 2);
        let kind = |kind| decode(&record(kind)).map(|event| (event.at, event.kind));
        let at = Time(7_000_000_001);
        let task = TaskId(0x1_2345_6000);
        assert_eq!(kind(1), Some((at, EventKind::TaskSwitch { vm, vcpu, task })));
        assert_eq!(kind(4), Some((at, EventKind::TaskSeen { vm, vcpu, task })));
        assert_eq!(kind(2), Some((at, EventKind::Halt { vm, vcpu })));
        assert_eq!(kind(3), Some((at, EventKind::Resume { vm, vcpu })));
        assert_eq!(kind(5), None, "unknown kind");
        assert_eq!(decode(&record(1)[..23]), None, "cut short");
    }
}
