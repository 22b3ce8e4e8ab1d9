//! What the report shows, from a made-up result.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod synthetic;

use frontdesk_report::{html, perfetto, svg_cdf, table};
use frontdesk_scenario::{BeliefPoint, HostInfo, Outcome, RunSlice, Timeline};
use serde_json::Value;
use std::collections::BTreeMap;

fn nothing() -> Outcome {
    Outcome {
        scenario: "empty".to_owned(),
        host: HostInfo::default(),
        arms: [("stock".to_owned(), Default::default())].into_iter().collect(),
        checks: Vec::new(),
    }
}

#[test]
fn tables_fit_a_terminal() {
    let text = table(&synthetic::outcome(), 80, false);
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{widest:?}");
    insta::assert_snapshot!(text, @"
    Response time in ms (median over the repeats)
     arm         VM      requests   mean    p50    p99    max
    ──────────────────────────────────────────────────────────
     stock       mixed        180   15.8   11.8   49.6   50.3
     observe     mixed        180   18.0   14.5   71.6   72.1
     frontdesk   mixed        180   2.07   2.00   3.07   3.17
     io-only     mixed        180   1.98   1.94   3.25   3.45

    Arms
     arm            CPU share   boosts    PBHR        decision µs   daemon CPU
                                                      p50/p99/max
    ───────────────────────────────────────────────────────────────────────────
     stock       0.992 – 1.01        0       –                  –            –
     observe     0.992 – 1.01        0       –                  –        1.1 %
     frontdesk   0.990 – 1.01     1236   0.932   58.0 / 228 / 412        1.8 %
     io-only     0.062 – 1.19        0       –                  –            –

    Checks
     check                                  value          spread      bar   result
    ────────────────────────────────────────────────────────────────────────────────
     mean response, frontdesk over           1.09     1.06 – 1.11   ≤ 1.15     pass
     io-only
     mean response, stock over frontdesk     6.31     5.92 – 7.05      ≥ 4     pass
     p99 response, stock over frontdesk      13.2     9.40 – 16.9      ≥ 5     pass
     CPU time over fair share, deviation    0.019   0.012 – 0.024   ≤ 0.02     pass
     boosts in which an I/O-bound task      0.930   0.910 – 0.950    ≥ 0.9     pass
     ran
     packet to boost, p99, µs                 228       203 – 241    ≤ 200     FAIL
     CPU time of the daemon                 0.018   0.017 – 0.018   ≤ 0.03     pass
     slowdown by the plugin, CPU-bound      0.043               –    ≤ 0.1     pass
     slowdown by the plugin, fork-heavy         –               –    ≤ 0.1     FAIL
     events per second of the engine       8.40 M               –    ≥ 5 M     pass
    ");
}

#[test]
fn colour_comes_only_when_asked_for() {
    let outcome = synthetic::outcome();
    assert!(!table(&outcome, 80, false).contains('\x1b'));
    assert!(table(&outcome, 80, true).contains('\x1b'));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = html(&synthetic::outcome(), &synthetic::timelines()).unwrap();
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("Failed: 2 of 10 checks"));
    let titles = [
        "Checks",
        "Arms",
        "Response times",
        "CPU shares",
        "From packet to guest task",
        "Degree of belief, observe, repeat 1",
        "Degree of belief, frontdesk, repeat 1",
    ];
    for title in titles {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert_eq!(page.matches("<svg").count(), 5);
}

#[test]
fn text_from_outside_stays_text() {
    let hostile = "<script>alert('&')</script>";
    let mut outcome = synthetic::outcome();
    hostile.clone_into(&mut outcome.scenario);
    hostile.clone_into(&mut outcome.host.cpu);
    hostile.clone_into(&mut outcome.checks[0].name);
    let arm = outcome.arms.swap_remove("frontdesk").unwrap();
    outcome.arms.insert(hostile.to_owned(), arm);
    for arm in outcome.arms.values_mut() {
        arm.cpu_share.insert(hostile.to_owned(), 1.0);
    }
    let mut timelines = synthetic::timelines();
    for timeline in &mut timelines {
        hostile.clone_into(&mut timeline.arm);
        hostile.clone_into(&mut timeline.vms[0]);
        for point in &mut timeline.beliefs {
            hostile.clone_into(&mut point.task);
        }
    }
    let page = html(&outcome, &timelines).unwrap();
    assert!(!page.contains("<script"));
    // In the title, the heading, the CPU, the check, the arm's rows and legends, the VM's row and label, the task.
    assert!(page.matches("&lt;script&gt;").count() >= 9);
}

#[test]
fn a_result_without_measurements_is_shown_as_such() {
    let page = html(&nothing(), &[Timeline::default()]).unwrap();
    assert!(page.contains("No checks in this run"));
    assert!(!page.contains("<svg"));
    assert!(table(&nothing(), 80, false).contains("stock"));
}

#[test]
fn the_picture_has_a_line_and_a_name_for_each_arm() {
    let svg = svg_cdf(&synthetic::outcome()).unwrap();
    for (arm, colour) in
        [("stock", "#D55E00"), ("observe", "#E69F00"), ("frontdesk", "#0072B2"), ("io-only", "#009E73")]
    {
        assert!(svg.contains(&format!("\n{arm}\n")), "{arm}");
        assert_eq!(
            svg.matches(&format!("<polyline fill=\"none\" opacity=\"1\" stroke=\"{colour}\"")).count(),
            1
        );
    }
    // An arm without samples has neither.
    assert!(!svg_cdf(&nothing()).unwrap().contains("stock"));
}

/// The events of a trace.
fn trace(timeline: &Timeline) -> Vec<Value> {
    let mut json = Vec::new();
    perfetto(timeline, &mut json).unwrap();
    let trace: Value = serde_json::from_slice(&json).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// Start and end, in microseconds, of the slices of each track, in the order written.
fn slices(events: &[Value]) -> BTreeMap<(u64, u64), Vec<(f64, f64)>> {
    let mut tracks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let start = event["ts"].as_f64().unwrap();
        tracks.entry(track).or_default().push((start, start + event["dur"].as_f64().unwrap()));
    }
    tracks
}

#[test]
fn slices_of_a_track_are_sorted_and_do_not_overlap() {
    let mut timeline = synthetic::timelines().remove(1);
    // The made-up slices overlap by 123 ns; here they are out of order, too.
    timeline.runs.reverse();
    let tracks = slices(&trace(&timeline));
    assert_eq!(tracks.len(), 3, "a physical CPU, a vCPU and its boosts");
    for (track, slices) in tracks {
        for pair in slices.windows(2) {
            // What adding a start and a duration in doubles may be off, far below a nanosecond.
            assert!(pair[0].1 <= pair[1].0 + 1e-6, "{track:?}: {pair:?}");
            assert!(pair[0].0 <= pair[0].1, "{track:?}: {pair:?}");
        }
    }
}

#[test]
fn a_trace_says_what_it_shows() {
    let timeline = synthetic::timelines().remove(1);
    let events = trace(&timeline);
    let count = |ph: &str| events.iter().filter(|event| event["ph"] == ph).count();
    assert_eq!(count("X"), timeline.runs.len() + timeline.tasks.len() + timeline.boosts.len());
    assert_eq!(count("i"), timeline.packets.len());
    assert_eq!(count("C"), timeline.beliefs.len());
    let names =
        events.iter().filter(|event| event["ph"] == "M").map(|event| event["args"]["name"].as_str().unwrap());
    let expected = [
        "physical CPUs",
        "VM mixed",
        "VM cpu-1",
        "VM cpu-2",
        "CPU 0",
        "vCPU 0",
        "boosts of vCPU 0",
        "packets",
    ];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    // Every event belongs to a process that has a name.
    let named: Vec<_> =
        events.iter().filter(|event| event["name"] == "process_name").map(|event| &event["pid"]).collect();
    assert!(events.iter().all(|event| named.contains(&&event["pid"])));
    let packet = events.iter().find(|event| event["ph"] == "i").unwrap();
    assert_eq!((&packet["name"], &packet["args"]["port"]), (&Value::from("tcp 7"), &Value::from(7)));
    let boost = events.iter().find(|event| event["name"] == "boost").unwrap();
    assert!(boost["args"]["hit"].is_boolean());
}

#[test]
fn times_keep_their_nanoseconds() {
    let hour = 3_600_000_000_000;
    let run = RunSlice { vm: 5, thread: "vCPU 0".to_owned(), pcpu: 3, start: hour + 1, end: hour + 1235 };
    let timeline = Timeline { runs: vec![run], ..Timeline::default() };
    let mut json = Vec::new();
    perfetto(&timeline, &mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert!(
        json.contains(r##""name":"#5 vCPU 0","pid":1,"tid":3,"ts":3600000000.001,"dur":1.234"##),
        "{json}"
    );
}

#[test]
fn odd_measurements_do_no_harm() {
    let mut outcome = synthetic::outcome();
    let mut timelines = synthetic::timelines();
    for timeline in &mut timelines {
        timeline.packets.truncate(1);
        timeline.packets[0].at = 0;
        timeline.packets[0].task_delay = Some(u64::MAX);
        timeline.beliefs.truncate(1);
        timeline.beliefs[0] =
            BeliefPoint { vm: usize::MAX, at: 0, belief: i32::MIN, ..timeline.beliefs[0].clone() };
        timeline.boosts[0].vm = usize::MAX;
        trace(timeline);
    }
    for arm in outcome.arms.values_mut() {
        arm.cpu_share.insert("mixed".to_owned(), f64::NAN);
        arm.repeats[0].samples_ms.insert("mixed".to_owned(), vec![f64::INFINITY, f64::NAN, 0.0, -1.0, 1e300]);
    }
    html(&outcome, &timelines).unwrap();
}

#[test]
fn an_empty_trace_is_valid() {
    assert_eq!(trace(&Timeline::default()).len(), 1);
}
