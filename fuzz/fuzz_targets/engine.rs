//! Any events, each after a time since the last: whatever the engine begins it ends in time, and decides the
//! same again.

#![no_main]

use frontdesk_engine::{Event, EventKind, Time, VmId};
use frontdesk_testing::all_ends::{all_ends, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (mut now, mut rest) = (0_u64, bytes);
    let added = (0..3).map(|vm| EventKind::VmAdded { vm: VmId(vm), vcpus: 2, weight: 1024 });
    let mut events: Vec<Event> = added.map(|kind| Event { at: Time(0), kind }).collect();
    while let Ok(((step, kind), more)) = postcard::take_from_bytes::<(i32, EventKind)>(rest) {
        rest = more;
        let kind = match kind {
            // Each costs its part of memory and time, and says nothing more.
            EventKind::VmAdded { vm, vcpus, weight } => EventKind::VmAdded { vm, vcpus: vcpus % 64, weight },
            kind => kind,
        };
        // A negative one is late.
        events.push(Event { at: Time(now.saturating_add_signed(step.into())), kind });
        now = now.saturating_add(step.max(0).unsigned_abs().into());
    }
    let (engine, actions) = run(&events);
    assert_eq!(actions, run(&events).1);
    all_ends(engine, actions, &events);
});
