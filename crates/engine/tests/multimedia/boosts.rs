//! What boosts a VM with a film.

use crate::films::*;
use crate::world::{ECHO, HOG, MS, US, VM, World, boost};
use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Capabilities, Config, EventKind, Profile, Standing, Thread, VmPolicy,
};

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

/// Goes on with the task that is loaded.
fn go_on(world: &mut World) {
    world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
    world.feed(EventKind::Resume { vm: VM, vcpu: 0 });
}

/// A halted vCPU that wakes by itself does so for a timer, where timers are not told; whose, is guessed by
/// what ran there last.
#[test]
fn a_wake_up_stands_for_a_timer_of_what_ran_last() {
    for (last, boosts) in [(PLAYER, vec![boost(Boost::Multimedia)]), (HOG, vec![])] {
        let mut world = World::new(Config::default());
        (0..10).for_each(|_| frame(&mut world, false, FRAME));
        switch(&mut world, last);
        world.actions();
        idle(&mut world, 20 * MS);
        assert_eq!(world.actions(), boosts, "{last:?}");
    }
}

/// A guest whose vCPU wakes some ten thousand times a second, as on real desktops: boosts are bounded while
/// it plays, and there are none before and after that.
#[test]
fn a_flood_of_wake_ups_gives_few_boosts_and_none_where_nothing_plays() {
    let flood = |world: &mut World, milliseconds: u64| {
        world.all_actions();
        for _ in 0..milliseconds * 20 {
            idle(world, 25 * US);
            go_on(world);
            tick(world, 25 * US);
        }
        world.all_actions()
    };
    let mut world = World::new(Config::default());
    switch(&mut world, PLAYER);
    assert_eq!(flood(&mut world, 1000), []);
    assert_eq!(multimedia(&world), None);
    for _ in 0..240 {
        frame(&mut world, false, 20 * MS);
        switch(&mut world, PLAYER);
        flood(&mut world, 20);
    }
    let playing = multimedia(&world).unwrap();
    let seconds = 240 * 40 / 1000;
    assert!((200 * seconds..=250 * seconds + 250).contains(&playing.boosts), "{playing:?}");
    assert!(playing.limited > 20 * playing.boosts, "{playing:?}");
    // It has ended, though what is loaded is still the player.
    flood(&mut world, 5000);
    assert_eq!(multimedia(&world).unwrap().players, []);
    assert_eq!(flood(&mut world, 1000), []);
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
