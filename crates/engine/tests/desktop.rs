//! What a real desktop tells of a film and of a terminal beside it.

#![allow(clippy::unwrap_used)] // A test that panics fails.

mod world;

use frontdesk_engine::{Config, EventKind, MediaDevice, Region, TaskId};
use world::{US, VM, World};

/// A film of 24 frames a second beside a terminal in which lines scroll, on Linux 6.1 under QEMU's emulation:
/// 284 ms of a recording, between two times at which the vCPU idled. Each event with its time in
/// microseconds: `R` the vCPU goes on, `H` halts; a small letter is a task that is dispatched: `p` the
/// player, `x` the display server, `a` the sound server, `t` the terminal, others what runs in it and about
/// it. `D` and `S` are accesses to the display and to the sound card, `I` one to the sound card in the
/// handler of an interrupt. `F` the film's frame is shown, `T` the terminal scrolls, `L` it shows a line.
/// Mostly a picture is shown before the access that asked for it is told.
const RECORDED: &str = "
R0 s40 g631 f979 e1905 t1975 x2793 D4021 t4151 f4361 s5074 T5792 H9910 R11377 H11600 R12516 p12536
x12686 F13501 D13554 I13574 a13725 S13814 p14394 w15606 x15889 p15955 a16857 S17000 p17184 H21951 R23299
H23378 R38492 I38520 a38716 S38846 p39354 H39494 R39569 H39616 R54323 x54578 F56206 D56259 p56523 w57059
p57261 a58273 S58461 p58730 s60100 g60761 f61189 e62096 t62230 x63018 I63282 a63533 S63599 p64090 x64211
T65175 D65224 t65424 x65651 p65742 f67517 p68402 f70717 s70733 H76330 R79374 H79568 R83376 H83461 R87371
H87426 R88141 I88167 a88297 S88422 p89007 H89233 R91362 H91415 R96161 x96395 F97561 D97613 p97863 a99597
S99755 w100077 a100263 p100399 x100559 p100643 a102098 S102269 p102454 H107478 R111375 H111442 R113744
I113763 a113849 S113917 p114253 H114363 R115378 H115424 R126427 s126470 g127118 f127725 e128704 t128781
x129752 D130786 T130960 t131160 x131714 f131791 s132622 p136299 x136525 F137398 D137450 p137599 I138562
a138710 S138812 w139265 a139762 p140066 a140639 S140863 p141033 s143582 p145124 H147845 R151376 H151571
R155373 H155437 R159370 H159443 R163482 I163505 a163606 S163687 p164140 H164261 R167373 H167420 R178109
x178300 F179447 D179499 p179803 w180257 p180430 a181287 S181443 p181706 H186524 R187373 H187442 R188375
I188393 a188479 S188546 p188851 H188963 R191376 H191458 R195254 s195293 g195882 f196291 e197154 t197234
x198022 T199197 D199248 t199622 x199888 f199966 s200939 H205937 R207375 H207582 R211372 H211451 R213328
I213353 a213470 S213594 p214336 H214567 R215380 H215495 R219914 x220210 F221445 D221494 p221696 w223519
x223722 p223805 a223966 S224286 p224628 H229652 R231377 H231475 R238194 I238223 a238368 S238496 p239137
H239542 R243375 H243438 R256039 s256121 g256827 f257225 e258229 t258320 x259556 L260374 D260422 t260722
x260900 T261618 D261658 t261784 x262020 p262135 x262267 F263067 D263115 I263139 a263292 S263625 p264539
x264702 p264753 w265176 p265435 f266636 p267612 a267767 S267931 p268226 f271739 s272059 p275641 s279644
p281595 H284360
";
const LENGTH: u64 = 284_400 * US;
const FRAMES: u32 = 7;

const PLAYER: TaskId = TaskId(0x3ad_8000);

fn event(letter: char) -> EventKind {
    let (vm, vcpu) = (VM, 0);
    let access = |device, in_interrupt| EventKind::DeviceAccess { vm, vcpu, device, in_interrupt };
    let update = |x, y, width, height| {
        let region = Some(Region { x, y, width, height });
        EventKind::DisplayUpdate { vm, region }
    };
    match letter {
        'R' => EventKind::Resume { vm, vcpu },
        'H' => EventKind::Halt { vm, vcpu },
        'D' => access(MediaDevice::Display, false),
        'S' => access(MediaDevice::Sound, false),
        'I' => access(MediaDevice::Sound, true),
        'F' => update(180, 80, 640, 354),
        'T' => update(503, 607, 480, 130),
        'L' => update(503, 724, 192, 13),
        'p' => EventKind::TaskSwitch { vm, vcpu, task: PLAYER },
        other => EventKind::TaskSwitch { vm, vcpu, task: TaskId(0x1000_0000 + u64::from(u32::from(other))) },
    }
}

fn pass(world: &mut World, to: u64) {
    while let Some(due) = world.engine.next_deadline().filter(|due| due.0 <= to) {
        world.engine.on_deadline(due);
    }
    world.now = to;
}

#[test]
fn a_film_beside_a_scrolling_terminal_shows_its_own_frames_and_no_others() {
    let mut world = World::new(Config::default());
    let (mut estimated, mut samples) = (0.0, 0);
    for round in 0..100 {
        let begun = world.now;
        for token in RECORDED.split_whitespace() {
            let (letter, at) = token.split_at(1);
            pass(&mut world, begun + at.parse::<u64>().unwrap() * US);
            world.feed(event(letter.chars().next().unwrap()));
        }
        pass(&mut world, begun + LENGTH);
        if round >= 20 {
            let multimedia = world.engine.explain(VM).unwrap().multimedia.unwrap();
            let [player] = &multimedia.players[..] else { panic!("{round}: {multimedia:?}") };
            assert_eq!(player.task, PLAYER);
            (estimated, samples) = (estimated + player.frame_rate, samples + 1);
        }
    }
    let real = f64::from(FRAMES) / 0.2844;
    let error = estimated / f64::from(samples) / real - 1.0;
    assert!(error.abs() < 0.01, "{error}");
}
