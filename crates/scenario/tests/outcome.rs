//! The result model: what is measured, and what scripts read.

use frontdesk_scenario::{Bar, BlockMark, Check, Rate, Summary, Timeline, Unit};

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
