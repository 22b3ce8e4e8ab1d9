//! Films: who plays, what boosts them, and what raises the share of their VM (MM).

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Capabilities, Config, EventKind, MediaDevice, MultimediaExplain, Profile,
    Region, Standing, TaskId, Thread, VmId, VmPolicy,
};
use world::{ECHO, HOG, MS, US, VM, World, boost};

const PLAYER: TaskId = TaskId(0x3000_0000);
const SERVER: TaskId = TaskId(0x4000_0000);
const OTHER: VmId = VmId(2);
const REGION: Region = Region { x: 100, y: 80, width: 640, height: 354 };
/// Between two frames of a film.
const FRAME: u64 = 41_708 * US;

/// Without boosts, so that the ledger, which takes them back, changes no share.
fn config(profile: Profile) -> Config {
    let mut config = Config::default();
    (config.multimedia.profile, config.multimedia.boost) = (profile, false);
    config
}

fn tick(world: &mut World, nanos: u64) {
    let to = world.now + nanos;
    while let Some(due) = world.engine.next_deadline().filter(|due| due.0 <= to) {
        world.engine.on_deadline(due);
    }
    world.now = to;
}

fn access(world: &mut World, device: MediaDevice, in_interrupt: bool) {
    world.feed(EventKind::DeviceAccess { vm: VM, vcpu: 0, device, in_interrupt });
}

fn switch(world: &mut World, task: TaskId) {
    world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 0, task });
}

fn multimedia(world: &World) -> Option<MultimediaExplain> {
    world.engine.explain(VM).unwrap().multimedia
}

/// The player draws a frame, by a display server or itself, and plays. The rest of the time is the hog's.
fn frame(world: &mut World, by_server: bool, length: u64) {
    world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
    tick(world, 50 * US);
    switch(world, PLAYER);
    tick(world, 10 * MS);
    access(world, MediaDevice::Sound, false);
    if by_server {
        switch(world, SERVER);
        tick(world, MS);
    }
    access(world, MediaDevice::Display, false);
    tick(world, 100 * US);
    world.feed(EventKind::DisplayUpdate { vm: VM, region: Some(REGION) });
    world.feed(EventKind::GpuDone { vm: VM });
    switch(world, HOG);
    let rest = length - 10 * MS - 150 * US - if by_server { MS } else { 0 };
    tick(world, rest);
}

/// The same when others have the CPU for most of the time.
fn late_frame(world: &mut World, length: u64) {
    let (thread, late) = (Thread::Vcpu(0), length - 30 * MS);
    world.feed(EventKind::Stop { vm: VM, thread, runnable: true });
    tick(world, late);
    world.feed(EventKind::Run { vm: VM, thread, pcpu: 0 });
    frame(world, false, length - late);
}

fn shares(actions: Vec<ActionKind>) -> Vec<u32> {
    let share = |kind| match kind {
        ActionKind::Share { permille, .. } => Some(permille),
        _ => None,
    };
    actions.into_iter().filter_map(share).collect()
}

#[test]
fn who_shows_frames_and_plays_is_a_player_and_its_rate_is_known() {
    for by_server in [false, true] {
        let mut world = World::new(Config::default());
        (0..240).for_each(|_| frame(&mut world, by_server, FRAME));
        let multimedia = multimedia(&world).unwrap();
        let [player] = multimedia.players[..] else { panic!("{multimedia:?}") };
        assert_eq!((player.task, player.gpu, player.share_permille), (PLAYER, false, 1000));
        assert!((player.frame_rate / 23.976 - 1.0).abs() < 0.01, "{player:?}");
        assert!((player.desired_rate / player.frame_rate - 0.8).abs() < 0.02 || player.desired_rate == 20.0);
        // It ends, and so does what is known of it.
        tick(&mut world, 5000 * MS);
        assert_eq!(world.engine.explain(VM).unwrap().multimedia.unwrap().players, []);
    }
}

/// §5.1.1, "a displaying task that has accessed audio"; an access in an interrupt's handler is of no task.
#[test]
fn frames_without_sound_and_sound_without_frames_are_no_film() {
    for (sound, frames, in_interrupt) in [(false, true, false), (true, false, false), (true, true, true)] {
        let mut world = World::new(Config::default());
        for _ in 0..100 {
            world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
            switch(&mut world, PLAYER);
            tick(&mut world, MS);
            if sound {
                access(&mut world, MediaDevice::Sound, in_interrupt);
            }
            if frames {
                access(&mut world, MediaDevice::Display, false);
                world.feed(EventKind::DisplayUpdate { vm: VM, region: Some(REGION) });
            }
            switch(&mut world, HOG);
            tick(&mut world, FRAME);
        }
        assert_eq!(
            (multimedia(&world), world.all_actions()),
            (None, vec![]),
            "sound {sound}, frames {frames}"
        );
    }
}

#[test]
fn a_timer_boosts_a_player_above_other_io_until_another_task_runs() {
    let mut world = World::new(Config::default());
    (0..10).for_each(|_| frame(&mut world, false, FRAME));
    world.all_actions();
    let emulators = |level| ActionKind::Boost { vm: VM, target: BoostTarget::Emulators, level };
    let watch = |on| ActionKind::Watch { vm: VM, vcpu: 0, on };
    world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
    let begun = [emulators(Boost::Multimedia), boost(Boost::Multimedia), watch(true)];
    assert_eq!(world.all_actions(), begun);
    tick(&mut world, MS);
    switch(&mut world, ECHO);
    assert_eq!(world.all_actions(), [], "the guest finishes something first");
    tick(&mut world, MS);
    switch(&mut world, PLAYER);
    tick(&mut world, MS);
    switch(&mut world, HOG);
    assert_eq!(world.all_actions(), [watch(false), boost(Boost::None), emulators(Boost::None)]);
    // By time at last.
    world.feed(EventKind::GpuDone { vm: VM });
    assert_eq!(world.all_actions(), begun);
    world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
    tick(&mut world, 10 * MS);
    let ended = [boost(Boost::None), watch(false), emulators(Boost::None)];
    assert_eq!(world.all_actions(), ended, "and no sooner, and no later for another one");
}

/// A halted vCPU that wakes by itself does so for a timer, where timers are not told.
#[test]
fn a_wake_up_stands_for_a_timer() {
    let mut world = World::new(Config::default());
    (0..10).for_each(|_| frame(&mut world, false, FRAME));
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: false });
    tick(&mut world, 20 * MS);
    world.actions();
    world.feed(EventKind::Wake { vm: VM, thread: Thread::Vcpu(0), by: None });
    assert_eq!(world.actions(), [boost(Boost::Multimedia)]);
}

/// One that owns less ends its own only: the boost for a packet goes on when that for the film is over.
#[test]
fn a_film_and_a_packet_boost_one_vcpu() {
    let mut config = Config::default();
    config.tavs.pb_ratio = 1.0;
    config.multimedia.max_boost = std::time::Duration::from_millis(2);
    let mut world = World::new(config);
    world.learn_echo();
    (0..10).for_each(|_| frame(&mut world, false, FRAME));
    world.actions();
    world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
    tick(&mut world, MS);
    world.packet(7);
    assert_eq!(world.actions(), [boost(Boost::Multimedia)]);
    let before = world.engine.explain(VM).unwrap().vcpus[0].boosts;
    tick(&mut world, 2 * MS);
    assert_eq!(world.actions(), [boost(Boost::Io)]);
    tick(&mut world, 100 * MS);
    assert_eq!(world.actions(), [boost(Boost::None)]);
    assert_eq!(world.engine.explain(VM).unwrap().vcpus[0].boosts, before, "counted when it was given");
}

/// A VM whose frames are late because of others gets more, twice as much every 200 ms at first, and what it
/// had when its film is over; on a shared host it gets nothing.
#[test]
fn missing_frames_raise_the_share_at_the_cost_of_others_where_that_is_allowed() {
    for profile in [Profile::Shared, Profile::Personal] {
        let mut world = World::new(config(profile));
        (0..20).for_each(|_| late_frame(&mut world, 250 * MS));
        let raised = shares(world.all_actions());
        let now = multimedia(&world).unwrap().share_permille;
        tick(&mut world, 4000 * MS);
        match profile {
            Profile::Shared => assert_eq!((raised, now), (vec![], 1000)),
            Profile::Personal => {
                assert_eq!(raised.first(), Some(&2000));
                assert!(raised.iter().all(|share| (1000..=8000).contains(share)) && now > 1000, "{raised:?}");
                assert_eq!(shares(world.all_actions()).last(), Some(&1000));
            }
        }
        assert_eq!(world.engine.explain(VM).unwrap().share_permille, 1000);
    }
}

/// Where nobody else wants the CPU, a film that shows few frames takes nothing.
#[test]
fn a_slow_film_on_an_idle_host_changes_nothing() {
    let mut world = World::new(config(Profile::Personal));
    (0..60).for_each(|_| frame(&mut world, false, 100 * MS));
    let multimedia = multimedia(&world).unwrap();
    assert_eq!((shares(world.all_actions()), multimedia.share_permille), (vec![], 1000));
    assert!((multimedia.players[0].frame_rate - 10.0).abs() < 0.1, "{multimedia:?}");
}

/// The estimator knows a frame that is missing: that is some tenths of a second, not a bad second and more.
#[test]
fn a_missed_frame_raises_the_share_at_once_if_early() {
    let raised_after = |early| {
        let mut config = config(Profile::Personal);
        config.multimedia.early = early;
        let mut world = World::new(config);
        (0..120).for_each(|_| frame(&mut world, false, FRAME));
        world.all_actions();
        let begun = world.now;
        while shares(world.all_actions()).is_empty() {
            late_frame(&mut world, 3 * FRAME);
        }
        (world.now - begun) / MS
    };
    let (early, later) = (raised_after(true), raised_after(false));
    assert!(early <= 300 && later > 700, "{early} and {later} ms");
}

#[test]
fn nothing_is_done_about_a_vm_that_is_not_to_be_acted_on() {
    let late = |world: &mut World| (0..20).for_each(|_| late_frame(world, 250 * MS));
    let nothing = |mut world: World| {
        late(&mut world);
        assert!(multimedia(&world).is_some_and(|multimedia| multimedia.players.len() == 1));
        assert_eq!(world.all_actions(), []);
    };
    let new = || {
        let mut config = config(Profile::Personal);
        config.multimedia.boost = true;
        World::new(config)
    };
    let mut world = new();
    world.engine.configure_vm(VM, VmPolicy { off: true, pb_ratio: None }).unwrap();
    nothing(world);
    for standing in [Standing::Observed, Standing::Reserved] {
        let mut world = new();
        world.feed(EventKind::Standing { vm: VM, standing });
        nothing(world);
    }
    let mut world = new();
    world.feed(EventKind::World(Capabilities { acts: false, ..Capabilities::default() }));
    nothing(world);
    // And what there is ends when it is no longer to be.
    for ends in [
        EventKind::VmPaused { vm: VM },
        EventKind::VmReset { vm: VM },
        EventKind::Standing { vm: VM, standing: Standing::Reserved },
    ] {
        let mut world = World::new(config(Profile::Personal));
        late(&mut world);
        assert!(shares(world.all_actions()).last().is_some_and(|share| *share > 1000));
        world.feed(ends);
        assert_eq!(shares(world.all_actions()), [1000], "{ends:?}");
        assert_eq!(multimedia(&world).unwrap().players, []);
    }
}

/// A passthrough GPU: no frame is seen but by what it completes, 110 for a frame.
#[test]
fn a_game_is_known_by_what_its_gpu_completes() {
    let mut world = World::new(Config::default());
    for n in 0..7700 * 8u64 {
        if n % 77 == 0 {
            switch(&mut world, PLAYER);
            access(&mut world, MediaDevice::Sound, false);
        }
        tick(&mut world, 1_000_000_000 / 7700);
        world.feed(EventKind::GpuDone { vm: VM });
    }
    let multimedia = multimedia(&world).unwrap();
    assert_eq!(multimedia.players.len(), 1);
    let player = multimedia.players[0];
    assert!(player.gpu && player.task == PLAYER);
    // Of an average with a weight of 0.2, seven seconds from nothing are 79 %.
    assert!((50.0..=70.1).contains(&player.frame_rate), "{player:?}");
}

/// Two VMs that compute on one CPU, one of which flips frames, plays silence and sets timers without end: it
/// gets no more than `max_share` allows, and what it gets it does not get by boosts.
#[test]
fn a_hostile_guest_gains_nothing_above_max_share() {
    const QUANTUM: u64 = MS;
    for (max_share, bar) in [(1.0, 0.5), (4.0, 0.8)] {
        let mut config = Config::default();
        config.multimedia.max_share = Some(max_share);
        let mut world = World::new(config);
        world.feed(EventKind::VmAdded { vm: OTHER, vcpus: 1, weight: 1024 });
        world.feed(EventKind::Wake { vm: OTHER, thread: Thread::Vcpu(0), by: None });
        world.feed(EventKind::TaskSwitch { vm: OTHER, vcpu: 0, task: HOG });
        let thread = Thread::Vcpu(0);
        // Who never ran anywhere shares no CPU with anybody.
        for (from, to) in [(VM, OTHER), (OTHER, VM)] {
            world.feed(EventKind::Stop { vm: from, thread, runnable: true });
            world.feed(EventKind::Run { vm: to, thread, pcpu: 0 });
            tick(&mut world, MS);
        }
        let (mut running, mut boosted, mut share) = (VM, false, 1000);
        let (mut virtual_times, mut ran) = ([0.0f64; 2], [0u64; 2]);
        let steps = 20_000u64;
        for step in 0..steps {
            // What it runs, it runs as a player.
            if running == VM {
                switch(&mut world, PLAYER);
                access(&mut world, MediaDevice::Sound, false);
                access(&mut world, MediaDevice::Display, false);
                world.feed(EventKind::DisplayUpdate { vm: VM, region: None });
            }
            world.feed(EventKind::GpuDone { vm: VM });
            world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
            for kind in world.all_actions() {
                match kind {
                    ActionKind::Boost { vm: VM, target: BoostTarget::Vcpu(0), level } => {
                        boosted = level > Boost::None;
                    }
                    ActionKind::Share { vm: VM, permille } => share = permille,
                    ActionKind::Share { permille, .. } => assert!(permille <= 16_000),
                    _ => {}
                }
            }
            // Real time goes first, and is not charged to the fair class.
            let next = if boosted || virtual_times[0] <= virtual_times[1] { VM } else { OTHER };
            if next != running {
                world.feed(EventKind::Stop { vm: running, thread, runnable: true });
                world.feed(EventKind::Run { vm: next, thread, pcpu: 0 });
                running = next;
            }
            let (index, weight) = if next == VM { (0, f64::from(share)) } else { (1, 1000.0) };
            if !(boosted && next == VM) {
                virtual_times[index] += 1000.0 / weight;
            }
            // The first seconds are for the film to be found and the share to be raised.
            ran[index] += u64::from(step >= steps / 2);
            tick(&mut world, QUANTUM);
        }
        let total = u32::try_from(ran[0] + ran[1]).unwrap();
        let got = f64::from(u32::try_from(ran[0]).unwrap()) / f64::from(total);
        assert!(got <= bar + 0.02, "max_share {max_share}: {got}");
        assert!(multimedia(&world).unwrap().boosts > 100, "{:?}", multimedia(&world));
    }
}

#[test]
fn a_film_that_ends_leaves_nothing_behind() {
    let mut world = World::new(config(Profile::Personal));
    (0..20).for_each(|_| late_frame(&mut world, 250 * MS));
    tick(&mut world, 10_000 * MS);
    assert_eq!(world.engine.next_deadline(), None);
    world.all_actions();
    world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
    world.feed(EventKind::GpuDone { vm: VM });
    assert_eq!(world.all_actions(), []);
    assert!(world.engine.explain(VM).unwrap().vcpus.iter().all(|vcpu| !vcpu.boosted));
}
