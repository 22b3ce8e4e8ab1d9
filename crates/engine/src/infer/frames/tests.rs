use super::super::asking::Asking;
use super::*;

const MS: u64 = 1_000_000;
const PLAYER: TaskId = TaskId(1);
const SERVER: TaskId = TaskId(2);
const TERMINAL: TaskId = TaskId(3);
const HOG: TaskId = TaskId(4);
const FILM: Region = Region { x: 100, y: 100, width: 640, height: 354 };
const LINE: Region = Region { x: 900, y: 600, width: 400, height: 16 };

/// The display server draws after this task.
fn after(before: Option<TaskId>) -> Drawing {
    let mut asking = Asking::default();
    asking.dispatched(before, None);
    asking.drawing(0, SERVER)
}

fn count(frames: &Frames, task: TaskId) -> f64 {
    frames.count(task, false)
}

/// Shows a film and lines of a terminal by a display server, each frame after whoever asked, but some after a
/// task that computes.
#[test]
fn a_display_server_shows_for_the_task_before_it_or_the_next_by_region() {
    let mut frames = Frames::default();
    for n in 0..100u64 {
        let at = |part: u64| Time(n * 40 * MS + part * 7 * MS);
        // Every fourth time, the request came late: something else ran before the server, the film after it.
        let late = n % 4 == 3;
        frames.update(Some(FILM), after(Some(if late { HOG } else { PLAYER })), false, at(0));
        frames.next(0, Some(if late { PLAYER } else { HOG }));
        frames.update(Some(LINE), after(Some(TERMINAL)), false, at(1));
        frames.next(0, Some(HOG));
    }
    assert_eq!((count(&frames, PLAYER), count(&frames, TERMINAL)), (100.0, 100.0));
    assert_eq!((count(&frames, HOG), count(&frames, SERVER)), (0.0, 0.0));
}

/// A smooth film leaves its vCPU idle between two frames, with its address space loaded: it goes on without a
/// switch, and nobody is seen to run before the display server. A pointer that moves meanwhile is not its.
#[test]
fn a_film_that_goes_on_from_idleness_shows_its_frames_and_no_others() {
    let mut frames = Frames::default();
    let mut asking = Asking::default();
    asking.dispatched(None, Some(PLAYER));
    let by = asking.drawing(0, SERVER);
    for n in 0..100u64 {
        frames.update(Some(FILM), by, false, Time(n * 40 * MS));
        frames.next(0, Some(HOG));
        frames.update(Some(LINE), by, false, Time((n * 40 + 20) * MS));
        frames.next(0, None);
    }
    assert_eq!((count(&frames, PLAYER), count(&frames, SERVER)), (100.0, 100.0));
    assert_eq!(count(&frames, HOG), 0.0);
}

#[test]
fn a_task_that_draws_for_itself_shows_its_own_frames() {
    let mut frames = Frames::default();
    let by = after(Some(HOG));
    assert_eq!(frames.update(None, by, true, Time(0)), Some(Shown { task: SERVER, missed: false }));
    assert!(frames.update(None, after(None), false, Time(MS)).is_some_and(|shown| shown.task == SERVER));
    assert!(frames.draws(SERVER));
}

#[test]
fn a_batch_of_updates_is_one_frame() {
    let mut frames = Frames::default();
    let by = after(None);
    let strip = |n: u16| Some(Region { y: 100 * n, height: 100, ..FILM });
    for n in 0..50u64 {
        for part in 0..4u16 {
            frames.update(strip(part), by, false, Time(n * 40 * MS + u64::from(part) * MS));
        }
    }
    assert_eq!(count(&frames, SERVER), 50.0);
    // What is drawn again is another frame, however soon.
    for n in 0..10u64 {
        frames.update(strip(0), by, false, Time(3000 * MS + n * MS));
    }
    assert_eq!(count(&frames, SERVER), 60.0);
    for n in 0..10u64 {
        frames.update(None, by, false, Time(4000 * MS + n * MS));
    }
    assert_eq!(count(&frames, SERVER), 70.0, "and each flip");
}

/// A directory listing in a terminal beside a film: the display server is hardly ever at rest, and what it
/// draws for the two is less than a batch apart. Who ran before it is mostly, but not always, who asked.
#[test]
fn what_two_windows_show_at_once_is_no_single_frame() {
    const WINDOW: Region = Region { x: 740, ..FILM };
    let mut frames = Frames::default();
    for n in 0..400u64 {
        let at = |nanos: u64| Time(n * 40 * MS + nanos);
        for line in 0..20u64 {
            frames.update(Some(WINDOW), after(Some(TERMINAL)), false, at(line * 2 * MS));
            if line == 10 {
                // Every fourth time the server finds both requests when it runs.
                let both = n % 4 == 3 && n > 8;
                let before = if both { TERMINAL } else { PLAYER };
                frames.update(Some(FILM), after(Some(before)), false, at(line * 2 * MS + MS));
            }
            frames.next(0, Some(HOG));
        }
    }
    assert_eq!((count(&frames, PLAYER), count(&frames, TERMINAL)), (400.0, 8000.0));
    assert_eq!((count(&frames, HOG), count(&frames, SERVER)), (0.0, 0.0));
}

/// A film in strips, and a line of a terminal at once after each frame.
#[test]
fn a_batch_goes_on_beside_a_window_elsewhere() {
    let mut frames = Frames::default();
    let strip = |n: u16| Some(Region { y: 100 * n, height: 100, ..FILM });
    for n in 0..100u64 {
        for part in 0..4u16 {
            let at = Time(n * 40 * MS + u64::from(part) * MS);
            frames.update(strip(part), after(Some(PLAYER)), false, at);
        }
        frames.update(Some(LINE), after(Some(TERMINAL)), false, Time(n * 40 * MS + 4 * MS));
        frames.next(0, None);
    }
    assert_eq!((count(&frames, PLAYER), count(&frames, TERMINAL)), (100.0, 100.0));
}

#[test]
fn a_missed_frame_shows_in_a_regular_film_only() {
    let mut frames = Frames::default();
    let by = after(None);
    let mut now = 0;
    let mut show = |frames: &mut Frames, after: u64| {
        now += after * MS;
        frames.update(Some(FILM), by, false, Time(now)).is_some_and(|shown| shown.missed)
    };
    assert!(![1, 300, 20, 900, 5, 5, 400].iter().any(|after| show(&mut frames, *after)), "no film");
    assert!(!(0..40).any(|_| show(&mut frames, 42)));
    assert!(![42, 40, 44, 60, 41].iter().any(|after| show(&mut frames, *after)));
    assert!(show(&mut frames, 84), "one is missing");
    assert!(!show(&mut frames, 42));
    // At half the rate for good: that is how it is then.
    let missed = (0..50).filter(|_| show(&mut frames, 84)).count();
    assert!((1..10).contains(&missed), "{missed}");
}

/// §5.1.2: linear in frames, 110 of them for each until it is learnt.
#[test]
fn a_graphics_processor_completes_so_much_for_a_frame() {
    let mut frames = Frames::default();
    (0..7700u64).for_each(|n| frames.gpu_done(Time(n * 1_000_000_000 / 7700)));
    assert_eq!(frames.count(PLAYER, true), 70.0);
    assert!(frames.only_gpu(Time(1000 * MS)));
    for n in 0..200u64 {
        let at = Time(2000 * MS + n * 20 * MS);
        (0..3).for_each(|_| frames.gpu_done(at));
        frames.update(None, after(None), false, at);
    }
    assert!((frames.gpu_per_frame - 3.0).abs() < 0.1, "{}", frames.gpu_per_frame);
    assert!(!frames.only_gpu(Time(6000 * MS)));
}

/// A display that changes now and then: it completes something, and then it is seen what.
#[test]
fn what_comes_before_a_picture_is_no_game() {
    let mut frames = Frames::default();
    for n in 0..20u64 {
        let at = Time(n * 3000 * MS);
        (0..3).for_each(|_| frames.gpu_done(at));
        assert!(!frames.only_gpu(at), "{n}");
        frames.update(None, after(None), false, at);
    }
}

#[test]
fn many_tasks_are_bounded() {
    let mut frames = Frames::default();
    for task in 0..10_000u64 {
        frames.update(Some(FILM), after(Some(TaskId(task))), false, Time(task * MS));
        frames.next(0, None);
    }
    assert!(frames.displaying.len() <= MOST_TASKS && frames.check().is_ok());
}

/// The rule by which "the written pages correspond to its recently displayed region" (§5.1.1).
#[test]
fn regions_are_the_same_if_they_have_half_in_common() {
    let moved = |by| Region { x: FILM.x + by, ..FILM };
    assert!(same(FILM, FILM) && same(FILM, moved(320)) && !same(FILM, moved(321)));
    assert!(!same(FILM, Region { x: 200, y: 200, width: 8, height: 16 }), "a cursor in it");
    let largest = Region { x: u16::MAX, y: u16::MAX, width: u16::MAX, height: u16::MAX };
    assert!(same(largest, largest));
}
