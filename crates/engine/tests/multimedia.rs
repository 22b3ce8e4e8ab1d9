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
const SOUND_SERVER: TaskId = TaskId(0x5000_0000);
const SECOND_PLAYER: TaskId = TaskId(0x6000_0000);
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

/// Who draws a frame, by which display server or itself, and where.
#[derive(Clone, Copy)]
struct Drawn {
    player: TaskId,
    server: Option<TaskId>,
    at: Region,
}

impl Default for Drawn {
    fn default() -> Self {
        Drawn { player: PLAYER, server: None, at: REGION }
    }
}

/// The player draws a frame, by a display server or itself, and plays. The rest of the time is the hog's.
fn frame(world: &mut World, by_server: bool, length: u64) {
    frame_at(world, Drawn { server: by_server.then_some(SERVER), ..Drawn::default() }, length);
}

fn frame_at(world: &mut World, drawn: Drawn, length: u64) {
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

/// Idles for so long, and wakes by itself.
fn idle(world: &mut World, nanos: u64) {
    let thread = Thread::Vcpu(0);
    world.feed(EventKind::Halt { vm: VM, vcpu: 0 });
    world.feed(EventKind::Stop { vm: VM, thread, runnable: false });
    tick(world, nanos);
    world.feed(EventKind::Wake { vm: VM, thread, by: None });
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

/// What the VM has is rearranged before others lose anything, where it has another vCPU that wants CPUs.
#[test]
fn a_players_vcpu_is_fast_for_a_period_before_the_share_is_raised() {
    for (profile, runs) in [(Profile::Shared, true), (Profile::Personal, true), (Profile::Personal, false)] {
        let mut world = World::new(config(profile));
        world.feed(EventKind::VcpuAdded { vm: VM, vcpu: 1 });
        if runs {
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(1), pcpu: 1 });
            world.feed(EventKind::TaskSwitch { vm: VM, vcpu: 1, task: HOG });
        }
        let mut seen = Vec::new();
        for _ in 0..20 {
            late_frame(&mut world, 250 * MS);
            let weight = |kind| match kind {
                ActionKind::Weight { vcpu, permille, .. } => Some((vcpu, permille)),
                _ => None,
            };
            let weights = world.all_actions().into_iter().filter_map(weight);
            let raised = multimedia(&world).map_or(1000, |multimedia| multimedia.share_permille);
            seen.extend(weights.map(|weight| (weight, raised)));
        }
        let raised = multimedia(&world).unwrap().share_permille;
        assert_eq!(raised > 1000, profile == Profile::Personal);
        let fast = ((0, 9000), 1000);
        assert_eq!(seen, if runs { vec![fast] } else { vec![] }, "{profile:?}");
        tick(&mut world, 4000 * MS);
        let ordinary = ActionKind::Weight { vm: VM, vcpu: 0, permille: 1000 };
        assert_eq!(world.all_actions().contains(&ordinary), runs, "its film is over");
    }
}

/// The screen gets another size in the middle of a film, and its window another size and place: that is the
/// same film.
#[test]
fn a_film_goes_on_when_the_screen_changes_its_size() {
    let mut world = World::new(Config::default());
    (0..120).for_each(|_| frame(&mut world, true, FRAME));
    for region in [None, Some(Region { x: 0, y: 0, width: 1280, height: 1024 })] {
        world.feed(EventKind::DisplayUpdate { vm: VM, region });
    }
    let larger = Region { x: 0, y: 0, width: 1280, height: 708 };
    (0..120).for_each(|_| {
        frame_at(&mut world, Drawn { server: Some(SERVER), at: larger, ..Drawn::default() }, FRAME)
    });
    let multimedia = multimedia(&world).unwrap();
    let [player] = multimedia.players[..] else { panic!("{multimedia:?}") };
    assert_eq!(player.task, PLAYER);
    assert!((player.frame_rate / 23.976 - 1.0).abs() < 0.02, "{player:?}");
}

/// The display server dies, and its clients with it. Nothing is boosted and nothing more is given until a
/// player shows frames on another one.
#[test]
fn a_display_server_that_dies_takes_its_film_along() {
    const NEW_SERVER: TaskId = TaskId(0x7000_0000);
    let mut world = World::new(config(Profile::Personal));
    (0..40).for_each(|_| late_frame(&mut world, 100 * MS));
    assert!(shares(world.all_actions()).last().is_some_and(|share| *share > 1000));
    for _ in 0..200 {
        switch(&mut world, HOG);
        tick(&mut world, 10 * MS);
        switch(&mut world, ECHO);
        tick(&mut world, 10 * MS);
        // What is left of the sound server goes on.
        access(&mut world, MediaDevice::Sound, false);
    }
    assert_eq!(shares(world.all_actions()).last(), Some(&1000));
    assert_eq!(multimedia(&world).unwrap().players, []);
    let drawn = Drawn { player: SECOND_PLAYER, server: Some(NEW_SERVER), ..Drawn::default() };
    (0..240).for_each(|_| frame_at(&mut world, drawn, FRAME));
    let multimedia = multimedia(&world).unwrap();
    let [player] = multimedia.players[..] else { panic!("{multimedia:?}") };
    assert_eq!((player.task, player.share_permille), (SECOND_PLAYER, 1000));
    assert!((player.frame_rate / 23.976 - 1.0).abs() < 0.01, "{player:?}");
}

/// A VM that is paused while a film plays: its boost ends at once, and the frames of that time are not
/// missed.
#[test]
fn a_vm_that_is_paused_while_it_plays_misses_no_frames() {
    for pause in [300, 5000] {
        let mut boosting = config(Profile::Personal);
        boosting.multimedia.boost = true;
        let mut world = World::new(boosting);
        let thread = Thread::Vcpu(0);
        (0..240).for_each(|_| frame(&mut world, false, FRAME));
        world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
        world.all_actions();
        assert!(world.engine.explain(VM).unwrap().vcpus[0].boosted);
        world.feed(EventKind::VmPaused { vm: VM });
        world.feed(EventKind::Stop { vm: VM, thread, runnable: false });
        assert!(world.actions().contains(&boost(Boost::None)), "{pause} ms");
        tick(&mut world, pause * MS);
        assert_eq!(shares(world.all_actions()), []);
        world.feed(EventKind::VmResumed { vm: VM });
        world.feed(EventKind::Wake { vm: VM, thread, by: None });
        world.feed(EventKind::Run { vm: VM, thread, pcpu: 0 });
        (0..240).for_each(|_| frame(&mut world, false, FRAME));
        assert_eq!(shares(world.all_actions()), [], "{pause} ms");
        let player = multimedia(&world).unwrap().players[0];
        assert_eq!((player.task, player.share_permille), (PLAYER, 1000));
    }
}

/// A film that is paused, or over: its VM has its own share again two seconds later. When it goes on, it is
/// a new one.
#[test]
fn a_film_that_pauses_or_ends_gives_its_share_back() {
    for goes_on in [false, true] {
        let mut world = World::new(config(Profile::Personal));
        (0..40).for_each(|_| late_frame(&mut world, 100 * MS));
        assert!(shares(world.all_actions()).last().is_some_and(|share| *share > 1000));
        // Others work in its VM.
        let returned = (1..=10u32).find(|_| {
            for _ in 0..50 {
                switch(&mut world, HOG);
                tick(&mut world, 10 * MS);
                switch(&mut world, ECHO);
                tick(&mut world, 10 * MS);
            }
            shares(world.all_actions()).last() == Some(&1000)
        });
        assert!(returned.is_some_and(|second| second <= 2), "{returned:?}");
        tick(&mut world, 2000 * MS);
        assert_eq!(multimedia(&world).unwrap().players, []);
        assert_eq!(world.all_actions(), []);
        if goes_on {
            (0..40).for_each(|_| late_frame(&mut world, 100 * MS));
            assert!(shares(world.all_actions()).last().is_some_and(|share| *share > 1000));
        }
    }
}

/// A film that shows as many frames as its VM's part of a CPU lets it, beside one that computes.
#[test]
fn a_share_rises_as_far_as_the_frames_need_and_no_further() {
    // What a frame of 30 ms needs is 72 % of the CPU: 2.6 times the share of the other one.
    let highest_of = |early, cost: u64| {
        let mut config = config(Profile::Personal);
        config.multimedia.early = early;
        let mut world = World::new(config);
        let (mut share, mut highest, mut frames) = (1000, 1000, 0);
        let begun = world.now;
        while world.now - begun < 60_000 * MS {
            let length = FRAME.max(cost * u64::from(share + 1000) / u64::from(share));
            late_frame(&mut world, length);
            frames += u64::from(world.now - begun >= 30_000 * MS);
            share = shares(world.all_actions()).last().copied().unwrap_or(share);
            highest = highest.max(share);
        }
        (highest, frames)
    };
    for early in [false, true] {
        let (enough, _) = highest_of(early, 20 * MS);
        assert_eq!(enough, 1000, "half of the CPU does");
        let (needed, frames) = highest_of(early, 30 * MS);
        assert!((2000..=3000).contains(&needed), "{needed}");
        assert!(frames >= 20 * 30, "{frames} in 30 s");
    }
}

/// Two films, shown by one display server in the same instant and heard by one sound server.
#[test]
fn two_players_that_share_a_sound_server_are_told_apart() {
    let mut world = World::new(Config::default());
    let films = [(PLAYER, REGION, 1), (SECOND_PLAYER, Region { x: 800, ..REGION }, 2)];
    for n in 0..480u64 {
        let begun = world.now;
        world.feed(EventKind::Timer { vm: VM, vcpu: 0 });
        // The second shows every other frame.
        for (player, region, _) in films.iter().filter(|(_, _, of)| n % of == 0) {
            switch(&mut world, *player);
            tick(&mut world, MS);
            switch(&mut world, SOUND_SERVER);
            access(&mut world, MediaDevice::Sound, false);
            switch(&mut world, *player);
            tick(&mut world, 500 * US);
            switch(&mut world, SERVER);
            access(&mut world, MediaDevice::Display, false);
            world.feed(EventKind::DisplayUpdate { vm: VM, region: Some(*region) });
        }
        switch(&mut world, HOG);
        let used = world.now - begun;
        tick(&mut world, FRAME - used);
    }
    let rates: Vec<_> =
        multimedia(&world).unwrap().players.iter().map(|player| (player.task, player.frame_rate)).collect();
    assert_eq!(rates.iter().map(|(task, _)| *task).collect::<Vec<_>>(), [PLAYER, SECOND_PLAYER]);
    assert!((rates[0].1 / rates[1].1 - 2.0).abs() < 0.15, "{rates:?}");
}

/// A frame that is taken for a sound server's own makes no film of it: it would show no frames a second and
/// have ever more of the CPU for that. Whatever does show films, however starved, is one.
#[test]
fn a_single_frame_makes_no_film_of_a_sound_server() {
    for (frames, player) in [(1, false), (5, true)] {
        let mut world = World::new(config(Profile::Personal));
        for n in 0..200 {
            late_frame_of_nobody(&mut world);
            // Some seconds apart.
            if n >= 50 && n % 30 == 0 && n < 50 + 30 * frames {
                idle(&mut world, MS);
                world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
                switch(&mut world, SOUND_SERVER);
                access(&mut world, MediaDevice::Display, false);
                world.feed(EventKind::DisplayUpdate { vm: VM, region: Some(REGION) });
            }
        }
        let players = multimedia(&world).map_or(0, |multimedia| multimedia.players.len());
        assert_eq!((players == 1, !shares(world.all_actions()).is_empty()), (player, player), "{frames}");
        // Nothing more is shown, though it plays on.
        (0..110).for_each(|_| late_frame_of_nobody(&mut world));
        assert!(multimedia(&world).is_none_or(|multimedia| multimedia.players.is_empty()));
    }
}

/// The sound server plays for a task that shows nothing, while others have the CPU for most of the time.
fn late_frame_of_nobody(world: &mut World) {
    let thread = Thread::Vcpu(0);
    world.feed(EventKind::Stop { vm: VM, thread, runnable: true });
    tick(world, 60 * MS);
    world.feed(EventKind::Run { vm: VM, thread, pcpu: 0 });
    for task in [PLAYER, SOUND_SERVER] {
        switch(world, task);
        tick(world, 10 * MS);
    }
    access(world, MediaDevice::Sound, false);
    switch(world, HOG);
    tick(world, 20 * MS);
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
