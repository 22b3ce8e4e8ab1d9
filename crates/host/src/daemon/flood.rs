//! One VM cannot keep the loop from the others.

use frontdesk_engine::{Event, EventKind, Time, VmId};
use std::collections::BTreeMap;

/// Events of a VM that are handled in a turn: more than an honest one makes between two, and work for few
/// milliseconds.
pub(super) const MOST: usize = 16_384;

/// Leaves of each VM's events at most `most`, the latest. The others are lost for that VM, and told as such
/// at `now`. What comes in order of time stays so.
pub(super) fn bound(events: &mut Vec<Event>, most: usize, now: Time) {
    if events.len() <= most {
        return;
    }
    let mut beyond = BTreeMap::<VmId, usize>::new();
    for vm in events.iter().filter_map(|event| vm_of(event.kind)) {
        *beyond.entry(vm).or_default() += 1;
    }
    beyond.retain(|_, count| *count > most);
    beyond.values_mut().for_each(|count| *count -= most);
    let lost = beyond.clone();
    events.retain(|event| {
        let left = vm_of(event.kind).and_then(|vm| beyond.get_mut(&vm)).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_none()
    });
    events.extend(
        lost.into_iter().map(|(vm, count)| Event {
            at: now,
            kind: EventKind::Lost { vm: Some(vm), count: count as u64 },
        }),
    );
}

/// The VM that an event of a source is about, as far as a guest can make many of that kind.
const fn vm_of(kind: EventKind) -> Option<VmId> {
    match kind {
        EventKind::Run { vm, .. }
        | EventKind::Stop { vm, .. }
        | EventKind::Wake { vm, .. }
        | EventKind::TaskSwitch { vm, .. }
        | EventKind::TaskSeen { vm, .. }
        | EventKind::Halt { vm, .. }
        | EventKind::Resume { vm, .. }
        | EventKind::Ipi { vm, .. }
        | EventKind::IpiTaken { vm, .. }
        | EventKind::Interrupt { vm, .. }
        | EventKind::Timer { vm, .. }
        | EventKind::Packet { vm, .. }
        | EventKind::Reply { vm, .. }
        | EventKind::BlockRead { vm, .. }
        | EventKind::BlockPending { vm, .. }
        | EventKind::BlockDone { vm, .. }
        | EventKind::DisplayUpdate { vm, .. }
        | EventKind::DeviceAccess { vm, .. }
        | EventKind::GpuDone { vm, .. }
        | EventKind::Input { vm, .. } => Some(vm),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_lost_for_who_made_it() {
        let halt = |at, vm| Event { at: Time(at), kind: EventKind::Halt { vm: VmId(vm), vcpu: 0 } };
        let lost = |vm, count| Event { at: Time(99), kind: EventKind::Lost { vm: Some(VmId(vm)), count } };
        let mut events: Vec<Event> = (0..10).map(|at| halt(at, u32::from(at % 5 == 0))).collect();
        let before = events.clone();
        bound(&mut events, 10, Time(99));
        assert_eq!(events, before, "not too many");
        bound(&mut events, 3, Time(99));
        assert_eq!(events, [halt(0, 1), halt(5, 1), halt(7, 0), halt(8, 0), halt(9, 0), lost(0, 5)]);
    }
}
