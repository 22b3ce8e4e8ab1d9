//! What raises the share of a VM with a film, and what gives it back.

use crate::films::*;
use crate::world::{ECHO, HOG, MS, VM, World, boost};
use frontdesk_engine::{ActionKind, Boost, BoostTarget, Config, EventKind, MediaDevice, Profile, Thread};

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
            // Until then it may be tried whether more gives more frames.
            if world.now - begun >= 30_000 * MS {
                highest = highest.max(share);
            }
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

/// A player that computes and is heard, but shows nothing, for a second. Others have the CPU for `waits` of
/// it.
fn second_without_frames(world: &mut World, waits: u64) {
    for _ in 0..25 {
        world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: true });
        tick(world, waits / 25);
        world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
        switch(world, PLAYER);
        tick(world, (1000 * MS - waits) / 25);
        access(world, MediaDevice::Sound, false);
    }
}

/// Its share after each second.
fn shares_without_frames(world: &mut World, seconds: u32, waits: u64) -> Vec<u32> {
    let share = |_| {
        second_without_frames(world, waits);
        world.engine.explain(VM).unwrap().share_permille
    };
    (0..seconds).map(share).collect()
}

/// Nothing else tells of a film that has been starved from its begin on.
#[test]
fn a_film_that_is_heard_and_shows_nothing_gets_more_for_a_while_and_then_seldom() {
    let mut world = World::new(config(Profile::Personal));
    let share = shares_without_frames(&mut world, 90, 667 * MS);
    let begins: Vec<usize> = (1..90).filter(|at| share[*at] > 1000 && share[at - 1] == 1000).collect();
    // Three seconds long, and ten, twenty and forty after another.
    let between: Vec<usize> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(begins[0] <= 3 && (12..=15).contains(&between[0]), "{share:?}");
    assert!((22..=25).contains(&between[1]) && (42..=45).contains(&between[2]), "{share:?}");
    assert!(share.iter().filter(|share| **share > 1000).count() <= 3 * begins.len(), "{share:?}");
    assert_eq!(share.iter().max(), Some(&8000));
}

#[test]
fn one_that_then_shows_frames_is_a_film() {
    let mut world = World::new(config(Profile::Personal));
    shares_without_frames(&mut world, 3, 667 * MS);
    (0..200).for_each(|_| frame(&mut world, false, FRAME));
    let film = multimedia(&world).unwrap();
    assert_eq!(film.players.len(), 1, "{film:?}");
    assert!(film.players[0].frame_rate > 20.0 && film.players[0].task == PLAYER, "{film:?}");
    // It is starved again later, and so is tried again at once.
    let share = shares_without_frames(&mut world, 15, 667 * MS);
    assert!(share[12..].iter().any(|share| *share > 1000), "{share:?}");
}

#[test]
fn what_is_heard_gets_no_more_where_it_waits_little_or_on_a_host_of_several_people() {
    for (profile, waits) in [(Profile::Personal, 300 * MS), (Profile::Shared, 667 * MS)] {
        let mut world = World::new(config(profile));
        let share = shares_without_frames(&mut world, 10, waits);
        assert!(share.iter().all(|share| *share == 1000), "{profile:?}: {share:?}");
    }
}

/// Music beside a build, which then seems to be what a sound server plays for: seldom, it may not be told
/// from a film.
#[test]
fn music_gets_more_only_seldom_for_what_else_computes() {
    let mut world = World::new(config(Profile::Personal));
    let mut raised = 0;
    for _ in 0..600 {
        for _ in 0..25 {
            world.feed(EventKind::Stop { vm: VM, thread: Thread::Vcpu(0), runnable: true });
            tick(&mut world, 26 * MS);
            world.feed(EventKind::Run { vm: VM, thread: Thread::Vcpu(0), pcpu: 0 });
            switch(&mut world, PLAYER);
            tick(&mut world, MS);
            access(&mut world, MediaDevice::Sound, false);
            switch(&mut world, HOG);
            tick(&mut world, 13 * MS);
        }
        raised += u32::from(world.engine.explain(VM).unwrap().share_permille > 1000);
    }
    assert!(raised <= 3 * 6, "{raised} s of ten minutes");
}
