//! The result model: what is measured, and what scripts read.

use frontdesk_engine::{Event, EventKind, MediaDevice, Region, TaskId, Time, VmId};
use frontdesk_scenario::{Bar, BlockMark, Check, Rate, Summary, Timeline, Tracer, Unit, mean_and_deviation};

fn samples(range: std::ops::RangeInclusive<u32>) -> Vec<f64> {
    range.map(f64::from).collect()
}

#[test]
fn percentiles_are_nearest_rank() {
    let mut backwards = samples(1..=100);
    backwards.reverse();
    let of = Summary::of(&backwards).unwrap();
    assert_eq!(of, Summary { count: 100, mean: 50.5, p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 });
    let one = Summary::of(&[7.0]).unwrap();
    assert_eq!(one, Summary { count: 1, mean: 7.0, p50: 7.0, p95: 7.0, p99: 7.0, max: 7.0 });
    assert_eq!(Summary::of(&[]), None);
}

#[test]
fn a_check_compares_the_median_with_its_bar() {
    let check = Check::median("gain", &[9.0, 4.0, 2.0], Bar::AtLeast(4.0));
    assert_eq!((check.value, check.spread, check.pass), (Some(4.0), Some((2.0, 9.0)), true));
    let check = Check::median("gain", &[5.0, 2.0], Bar::AtMost(3.0));
    assert_eq!((check.value, check.pass), (Some(3.5), false));
    let check = Check::median("gain", &[5.0], Bar::AtMost(5.0));
    assert_eq!((check.spread, check.pass), (None, true));
}

#[test]
fn what_was_not_measured_does_not_pass() {
    for values in [&[][..], &[f64::NAN], &[f64::INFINITY]] {
        let check = Check::median("gain", values, Bar::AtLeast(0.0));
        assert_eq!((check.value, check.pass), (None, false), "{values:?}");
    }
}

#[test]
fn a_check_is_easy_to_read_for_scripts_and_reads_back() {
    let check = Check::median("gain", &[4.5], Bar::AtLeast(4.0));
    let json = serde_json::to_string(&check).unwrap();
    assert_eq!(json, r#"{"name":"gain","value":4.5,"spread":null,"bar":{"at_least":4.0},"pass":true}"#);
    let absent = serde_json::to_string(&Check::median("gain", &[], Bar::AtMost(1.0))).unwrap();
    let back: Check = serde_json::from_str(&absent).unwrap();
    assert_eq!((back.value, back.pass), (None, false));
}

#[test]
fn throughput_says_of_what() {
    let rate = Rate { per_s: 1.5e6, unit: Unit::Bytes };
    let json = serde_json::to_string(&rate).unwrap();
    assert_eq!(json, r#"{"per_s":1500000.0,"unit":"bytes"}"#);
    assert_eq!(serde_json::from_str::<Rate>(&json).unwrap(), rate);
}

#[test]
fn a_timeline_from_before_disks_reads_back() {
    let read = BlockMark { vm: 0, at: 1, done: None, decision: "no boost".to_owned() };
    let timeline = Timeline { reads: vec![read], ..Timeline::default() };
    let mut json = serde_json::to_value(&timeline).unwrap();
    assert_eq!(serde_json::from_value::<Timeline>(json.clone()).unwrap().reads.len(), 1);
    json.as_object_mut().unwrap().remove("reads");
    assert_eq!(serde_json::from_value::<Timeline>(json).unwrap().reads.len(), 0);
}

#[test]
fn a_timeline_has_what_is_shown_and_played() {
    let vm = VmId(4);
    let mut tracer = Tracer::new(Time(1_000), Time(9_000));
    tracer.add_vm(vm, "film");
    let sound =
        |in_interrupt| EventKind::DeviceAccess { vm, vcpu: 0, device: MediaDevice::Sound, in_interrupt };
    let region = Some(Region { x: 192, y: 397, width: 640, height: 354 });
    for (at, kind) in [
        (0, EventKind::DisplayUpdate { vm, region: None }),
        (2_000, EventKind::TaskSwitch { vm, vcpu: 0, task: TaskId(0x5000) }),
        (3_000, sound(false)),
        (4_000, sound(true)),
        (4_500, EventKind::DeviceAccess { vm, vcpu: 0, device: MediaDevice::Display, in_interrupt: false }),
        (5_000, EventKind::DisplayUpdate { vm, region }),
        (6_000, EventKind::DisplayUpdate { vm: VmId(5), region }),
        (10_000, sound(false)),
    ] {
        tracer.event(&Event { at: Time(at), kind }, None);
    }
    let timeline = tracer.finish(Time(9_000), 0);
    let updates: Vec<_> =
        timeline.updates.iter().map(|update| (update.vm, update.at, update.region.as_str())).collect();
    assert_eq!(updates, [(0, 4_000, "640x354+192+397")]);
    let sounds: Vec<_> = timeline.sounds.iter().map(|sound| (sound.at, sound.task.as_deref())).collect();
    assert_eq!(sounds, [(2_000, Some("0x5000")), (3_000, None)]);
}

#[test]
fn a_deviation_is_of_all_values() {
    assert_eq!(mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), (5.0, 2.0));
    assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
}
