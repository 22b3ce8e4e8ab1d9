//! Films as the engine hears of them: frames, sound, and who has the CPU meanwhile.

use crate::world::{HOG, MS, US, VM, World};
use frontdesk_engine::{
    ActionKind, Config, EventKind, MediaDevice, MultimediaExplain, Profile, Region, TaskId, Thread, VmId,
};

pub(crate) const PLAYER: TaskId = TaskId(0x3000_0000);
pub(crate) const SERVER: TaskId = TaskId(0x4000_0000);
pub(crate) const SOUND_SERVER: TaskId = TaskId(0x5000_0000);
pub(crate) const SECOND_PLAYER: TaskId = TaskId(0x6000_0000);
pub(crate) const OTHER: VmId = VmId(2);
pub(crate) const REGION: Region = Region { x: 100, y: 80, width: 640, height: 354 };
/// Between two frames of a film.
pub(crate) const FRAME: u64 = 41_708 * US;

/// Without boosts, so that the ledger, which takes them back, changes no share.
pub(crate) fn config(profile: Profile) -> Config {
    let mut config = Config::default();
    config.ledger.longest_wait = std::time::Duration::ZERO;
    (config.multimedia.profile, config.multimedia.boost) = (profile, false);
    config
}

pub(crate) fn tick(world: &mut World, nanos: u64) {
    let to = world.now + nanos;
    while let Some(due) = world.engine.next_deadline().filter(|due| due.0 <= to) {
        world.engine.on_deadline(due);
    }
    world.now = to;
}

pub(crate) fn access(world: &mut World, device: MediaDevice, in_interrupt: bool) {
    world.feed(EventKind::DeviceAccess { vm: VM, vcpu: 0, device, in_interrupt });
}

pub(crate) fn switch(world: &mut World, task: TaskId) {
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task });
}

pub(crate) fn multimedia(world: &World) -> Option<MultimediaExplain> {
    world.engine.explain(VM).unwrap().multimedia
}

/// Who draws a frame, by which display server or itself, and where.
#[derive(Clone, Copy)]
pub(crate) struct Drawn {
    pub(crate) player: TaskId,
    pub(crate) server: Option<TaskId>,
    pub(crate) at: Region,
}

impl Default for Drawn {
    fn default() -> Self {
        Drawn { player: PLAYER, server: None, at: REGION }
    }
}

/// The player draws a frame, by a display server or itself, and plays. The rest of the time is the hog's.
pub(crate) fn frame(world: &mut World, by_server: bool, length: u64) {
    frame_at(world, Drawn { server: by_server.then_some(SERVER), ..Drawn::default() }, length);
}

pub(crate) fn frame_at(world: &mut World, drawn: Drawn, length: u64) {
    world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
    tick(world, 50 * US);
    switch(world, drawn.player);
    tick(world, 10 * MS);
    access(world, MediaDevice::Sound, false);
    if let Some(server) = drawn.server {
        switch(world, server);
        tick(world, MS);
    }
    access(world, MediaDevice::Display, false);
    tick(world, 100 * US);
    world.feed(EventKind::DisplayUpdate { vm: VM, region: Some(drawn.at) });
    world.feed(EventKind::GpuDone { vm: VM });
    switch(world, HOG);
    let rest = length - 10 * MS - 150 * US - if drawn.server.is_some() { MS } else { 0 };
    tick(world, rest);
}

/// The same when others have the CPU for most of the time.
pub(crate) fn late_frame(world: &mut World, length: u64) {
    let (thread, late) = (Thread::Vcpu(0), length - 30 * MS);
    world.feed(EventKind::Stop { vm: VM, thread, runnable: true });
    tick(world, late);
    world.feed(EventKind::Run { vm: VM, thread, pcpu: 0 });
    frame(world, false, length - late);
}

pub(crate) fn shares(actions: Vec<ActionKind>) -> Vec<u32> {
    let share = |kind| match kind {
        ActionKind::Share { permille, .. } => Some(permille),
        _ => None,
    };
    actions.into_iter().filter_map(share).collect()
}

/// Idles for so long, and wakes by itself.
pub(crate) fn idle(world: &mut World, nanos: u64) {
    let thread = Thread::Vcpu(0);
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.feed(EventKind::Stop { vm: VM, thread, runnable: false });
    tick(world, nanos);
    world.feed(EventKind::Wake { vm: VM, thread, by: None });
}
