//! Who plays, and how many frames it shows.

use crate::films::*;
use crate::world::{ECHO, HOG, MS, US, VM, World};
use frontdesk_engine::{Config, EventKind, MediaDevice, Profile, Region, TaskId, Thread};

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
