//! The records and map entries shared with the BPF programs, field by field as `bpf/kvm.bpf.c` lays them out.

use frontdesk_engine::{Event, EventKind, TaskId, Time, VmId};
use frontdesk_ring::{Interest, TaskWords};

const KIND_SWITCH: u8 = 1;
const KIND_HALT: u8 = 2;
const KIND_RESUME: u8 = 3;
const KIND_SEEN: u8 = 4;
const KIND_INTERRUPT: u8 = 5;
const KIND_IPI: u8 = 6;
const KIND_IPI_TAKEN: u8 = 7;

const INTEREST_TASKS: u8 = 1;
const INTEREST_INTERRUPTS: u8 = 2;

/// One of the counters the programs keep: its index in the map `counters`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    Pushed = 0,
    Suppressed = 1,
    Lost = 2,
}

/// Value of the map `vcpus` (struct vcpu): no task reported, no window opened yet. `interrupts`: whether they
/// are wanted. `halted`: whether that was reported. `shows`: whether its tasks are shown to back ends of
/// disks.
pub(super) fn vcpu_value(vm: VmId, index: u16, interrupts: bool, halted: bool, shows: bool) -> [u8; 160] {
    let mut value = [0; 160];
    value[..4].copy_from_slice(&vm.0.to_ne_bytes());
    value[4..6].copy_from_slice(&index.to_ne_bytes());
    value[6] = interrupts.into();
    value[7] = halted.into();
    value[148] = shows.into();
    value
}

/// Whether such a value's vCPU was last reported to be halted.
pub(super) fn is_halted(value: &[u8]) -> bool {
    value.get(7).is_some_and(|halted| *halted != 0)
}

/// Key of the map `notifiers` (struct notifier).
pub(super) fn notifier_key(vm: VmId, eventfd: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&vm.0.to_ne_bytes());
    key[4..].copy_from_slice(&eventfd.to_ne_bytes());
    key
}

/// Value of the map `askers` (struct asker), one for each vCPU.
pub(super) const ASKER: TaskWords = TaskWords { current: 0, notified: 8, notifications: 16, stride: 64 };

/// vCPUs of a VM that have one.
pub(super) const MAX_ASKERS: u16 = 512;

/// Value of the map `armed`.
pub(super) fn armed_value(interest: Interest) -> [u8; 1] {
    let bit = |wanted, bit| if wanted { bit } else { 0 };
    [bit(interest.tasks, INTEREST_TASKS) | bit(interest.interrupts, INTEREST_INTERRUPTS)]
}

/// Whether a key of the map `by_id` (struct id) is of this VM.
pub(super) fn is_id_of(vm: VmId, key: &[u8]) -> bool {
    key.first_chunk().is_some_and(|of| u32::from_ne_bytes(*of) == vm.0)
}

/// Decodes a record of the ring (struct record), or `None` if it is none of ours.
pub(crate) fn decode(record: &[u8]) -> Option<Event> {
    let (at, rest) = record.split_first_chunk()?;
    let (value, rest) = rest.split_first_chunk()?;
    let (vm, rest) = rest.split_first_chunk()?;
    let (index, rest) = rest.split_first_chunk()?;
    let vm = VmId(u32::from_ne_bytes(*vm));
    let vcpu = u16::from_ne_bytes(*index);
    let value = u64::from_ne_bytes(*value);
    let task = TaskId(value);
    let &[kind, vector] = rest.first_chunk()?;
    let kind = match kind {
        KIND_SWITCH => EventKind::TaskSwitch { vm, vcpu, task },
        KIND_SEEN => EventKind::TaskSeen { vm, vcpu, task },
        KIND_HALT => EventKind::Halt { vm, vcpu },
        KIND_RESUME => EventKind::Resume { vm, vcpu },
        KIND_INTERRUPT => EventKind::Interrupt { vm, vcpu, vector },
        KIND_IPI => EventKind::Ipi { vm, vcpu, to: value, vector },
        KIND_IPI_TAKEN => EventKind::IpiTaken { vm, vcpu },
        _ => return None,
    };
    Some(Event { at: Time(u64::from_ne_bytes(*at)), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_each_kind_and_refuses_the_rest() {
        let record = |kind: u8| {
            let mut bytes = [7_000_000_001_u64, 0x1_2345_6000].map(u64::to_ne_bytes).concat();
            bytes.extend(3_u32.to_ne_bytes());
            bytes.extend(2_u16.to_ne_bytes());
            bytes.extend([kind, 0xfd]);
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
        assert_eq!(kind(5), Some((at, EventKind::Interrupt { vm, vcpu, vector: 0xfd })));
        assert_eq!(kind(6), Some((at, EventKind::Ipi { vm, vcpu, to: task.0, vector: 0xfd })));
        assert_eq!(kind(7), Some((at, EventKind::IpiTaken { vm, vcpu })));
        assert_eq!(kind(8), None, "unknown kind");
        assert_eq!(kind(0), None, "unknown kind");
        assert_eq!(decode(&record(1)[..23]), None, "cut short");
    }

    #[test]
    fn interests_are_bits() {
        let value = |tasks, interrupts| armed_value(Interest { tasks, interrupts });
        assert_eq!([value(true, false), value(false, true), value(true, true)], [[1], [2], [3]]);
    }

    #[test]
    fn ids_are_of_the_vm_that_they_begin_with() {
        let key = [3_u32, 9].map(u32::to_ne_bytes).concat();
        assert!(is_id_of(VmId(3), &key) && !is_id_of(VmId(9), &key) && !is_id_of(VmId(3), &key[..3]));
    }
}
