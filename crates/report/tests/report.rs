//! What the report shows, from a made-up result.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod synthetic;

use frontdesk_report::{Quantity, html, perfetto, svg_arms, svg_cdf, table};
use frontdesk_scenario::{
    BeliefPoint, DiskSlice, DisplayMark, EpisodeSlice, Figure, FrameRatePoint, Frames, HostInfo, Lost, Mark,
    NumberTable, Outcome, Rate, RunSlice, Series, SoundMark, Timeline, Unit, WeightSlice,
};
use serde_json::Value;
use std::collections::BTreeMap;

fn nothing() -> Outcome {
    Outcome {
        scenario: "empty".to_owned(),
        host: HostInfo::default(),
        arms: [("stock".to_owned(), Default::default())].into_iter().collect(),
        checks: Vec::new(),
        tables: Vec::new(),
        figures: Vec::new(),
        screenshots: Vec::new(),
    }
}

#[test]
fn an_emulated_host_is_told_with_its_dilation_and_what_disturbed_it() {
    let mut outcome = synthetic::outcome();
    let outer = outcome.host.clone();
    outcome.host.kernel = "6.12.117+deb12-amd64".to_owned();
    outcome.host.qemu = "7.2.22".to_owned();
    outcome.host.dilation = Some(10.0);
    outcome.host.emulated_on = Some(Box::new(outer));
    outcome.arms["frontdesk"].repeats[1].voided =
        vec!["VM cpu-1 ended (signal: 6)\n  console: Kernel panic".to_owned()];
    outcome.arms["frontdesk"].repeats[2].lost = Some(Lost { gaps: 3, ms: 47.0, longest_ms: 31.0 });
    outcome.arms["stock"].repeats[0].lost = Some(Lost::default());
    let text = table(&outcome, 80, false);
    let end = text.find("Throughput").unwrap();
    insta::assert_snapshot!(text[..end]);
    let page = html(&outcome, &[]).unwrap();
    assert!(page.contains("made again, for in an earlier attempt VM cpu-1 ended"), "no note in the page");
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
     stock       mixed        180   16.4   11.7   58.6   60.0
     observe     mixed        180   17.5   13.6   71.6   72.1
     frontdesk   mixed        180   2.09   2.06   3.03   3.07
     io-only     mixed        180   1.99   1.94   3.25   3.45

    Throughput (median over the repeats)
     arm         VM/workload   throughput
    ──────────────────────────────────────
     stock       mixed/echo    9.70 ops/s
     stock       mixed/files    12.6 MB/s
     observe     mixed/echo    10.4 ops/s
     observe     mixed/files    12.5 MB/s
     frontdesk   mixed/echo    9.81 ops/s
     frontdesk   mixed/files    32.1 MB/s
     io-only     mixed/echo    10.2 ops/s
     io-only     mixed/files    12.3 MB/s

    Time of an operation in ms (median over the repeats)
     arm         VM/workload   operations   mean    p50    max
    ───────────────────────────────────────────────────────────
     stock       mixed/build            5   2532   2521   2636
     observe     mixed/build            5   2530   2533   2671
     frontdesk   mixed/build            5   2551   2543   2603
     io-only     mixed/build            5   2602   2616   2670

    Arms
     arm            CPU share   boosts    PBHR        decision µs   daemon CPU
                                                      p50/p99/max
    ───────────────────────────────────────────────────────────────────────────
     stock       0.992 – 1.01        0       –                  –            –
     observe     0.995 – 1.01        0       –                  –        1.1 %
     frontdesk   0.992 – 1.01     1236   0.932   58.0 / 228 / 412        1.8 %
     io-only     0.062 – 1.20        0       –                  –            –

    Belief: time until it follows a task that changes, in ms
     arm         to I/O-bound   to CPU-bound   missed changes   wasted boosts
    ──────────────────────────────────────────────────────────────────────────
     frontdesk           84.5           61.1                0              12

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
        "Mean response by arm",
        "Throughput by arm",
        "Time of an operation by arm",
        "Response times",
        "CPU shares",
        "From packet to guest task",
        "Degree of belief, observe, repeat 1",
        "Degree of belief, frontdesk, repeat 1",
    ];
    for title in titles {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert_eq!(page.matches("<svg").count(), 8);
    // Boosts of one arm are compared with nothing.
    assert!(!page.contains("PBHR by arm"));
    // What fills the CPU is in the table, in each arm, but in no plot.
    assert_eq!(page.matches("mixed/hog").count(), 4);
    assert_eq!(page.matches("mixed/files").count(), 5);
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
        arm.rates.insert(hostile.to_owned(), Rate::default());
        arm.times_ms.insert(hostile.to_owned(), Default::default());
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
    // In the title, the heading, the CPU, the check, the arm's rows and legends, the VM's row and label, the
    // workload's rows and panels, the task.
    assert!(page.matches("&lt;script&gt;").count() >= 19);
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

/// A text in a picture: what it says and where it is at most, given how wide letters are in the fonts of
/// browsers.
#[derive(Debug)]
struct Label {
    text: String,
    x: [f64; 2],
    y: [f64; 2],
}

fn labels(svg: &str) -> Vec<Label> {
    let label = |element: &str| {
        let (tag, rest) = element.split_once('>').unwrap();
        let attribute = |name| attribute(tag, name);
        let number = |name| attribute(name).unwrap().parse::<f64>().unwrap();
        let text = rest.split("</text>").next().unwrap().trim().to_owned();
        let size = number("font-size");
        let length = 0.62 * size * f64::from(u32::try_from(text.chars().count()).unwrap());
        let along = match attribute("text-anchor").unwrap() {
            "start" => [0.0, length],
            "middle" => [-length / 2.0, length / 2.0],
            _ => [-length, 0.0],
        };
        let across = match attribute("dy").unwrap() {
            "0.76em" => [0.0, size],
            "0.5ex" => [-size / 2.0, size / 2.0],
            _ => [-size, 0.0],
        };
        let upright = attribute("transform").is_some();
        let (x, y) = if upright { (across, [-along[1], -along[0]]) } else { (along, across) };
        let shift = |range: [f64; 2], by: f64| range.map(|value| value + by);
        Label { text, x: shift(x, number("x")), y: shift(y, number("y")) }
    };
    svg.split("<text").skip(1).map(label).filter(|label| !label.text.is_empty()).collect()
}

/// The value of an attribute.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()
}

/// Width and height of a picture.
fn size(svg: &str) -> [f64; 2] {
    ["width", "height"].map(|name| attribute(svg, name).unwrap().parse().unwrap())
}

#[test]
fn arms_side_by_side_have_names_and_numbers_that_do_not_overlap() {
    let windows = ["w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "no-correlation"];
    let ratios = ["stock", "pb-0", "pb-1-16", "pb-1-8", "pb-1-4", "pb-1-2", "pb-1"];
    let unbroken = ["stock", "frontdeskwithoutanything", "a", "b", "c", "d", "e", "f", "g", "h"];
    let many: Vec<_> = (10..50).map(|number| format!("a{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    // With the height of a row, in which the names take one line, two, or more if they are upright.
    let cases: [(&[&str], usize, f64); 5] = [
        // Six VMs: two panels in a row.
        (&["stock", "frontdesk"], 6, 412.0),
        (&ratios, 1, 412.0),
        (&windows, 1, 440.0),
        (&unbroken, 1, 672.0),
        (&many, 1, 420.0),
    ];
    for (arms, vms, row) in cases {
        let svg = svg_arms(&synthetic::arms(arms, vms), &Quantity::REPORT).unwrap();
        let panels = vms + 4;
        assert_eq!(svg.matches("<circle").count(), panels * arms.len(), "{arms:?}");
        let [width, height] = size(&svg);
        assert_eq!(height, 5.0 * row, "{arms:?}");
        let labels = labels(&svg);
        for (index, one) in labels.iter().enumerate() {
            assert!(one.x[0] >= 0.0 && one.x[1] <= width && one.y[0] >= 0.0 && one.y[1] <= height, "{one:?}");
            for other in &labels[index + 1..] {
                let apart = |one: [f64; 2], other: [f64; 2]| one[1] <= other[0] || other[1] <= one[0];
                assert!(apart(one.x, other.x) || apart(one.y, other.y), "{one:?} {other:?}");
            }
        }
        for arm in arms.iter().filter(|arm| !arm.contains("correlation")) {
            let named = labels.iter().filter(|label| label.text == **arm).count();
            assert_eq!(named, panels, "{arm}");
        }
    }
}

#[test]
fn a_quantity_has_a_panel_for_each_of_its_subjects() {
    let outcome = synthetic::arms(&["pb-0", "pb-1"], 2);
    let titles = |quantities: &[Quantity]| {
        let svg = svg_arms(&outcome, quantities).unwrap();
        let labels = labels(&svg).into_iter().map(|label| label.text);
        labels.filter(|text| text.contains(' ')).collect::<Vec<_>>()
    };
    assert_eq!(
        titles(&[Quantity::Response]),
        ["Mean response of mixed-1, ms", "Mean response of mixed-2, ms"]
    );
    let throughput = ["Throughput of mixed/echo, ops/s", "Throughput of mixed/files, MB/s"];
    assert_eq!(titles(&[Quantity::Throughput]), throughput);
    assert_eq!(titles(&[Quantity::OperationTime]), ["Time of an operation of mixed/build, ms"]);
    assert_eq!(titles(&[Quantity::Pbhr]), ["Fraction of boosts that hit (PBHR)"]);
    // An arm without such a number is left out of the panel.
    let mut outcome = synthetic::arms(&["stock", "pb-0", "pb-1"], 1);
    assert!(svg_arms(&outcome, &[Quantity::Throughput]).unwrap().contains("\nstock\n"));
    outcome.arms["stock"].rates.clear();
    outcome.arms["pb-1"].rates.insert("net/sink".to_owned(), Rate { per_s: 1e6, unit: Unit::Bytes });
    outcome.arms["stock"].rates.insert("net/sink".to_owned(), Rate { per_s: 1e6, unit: Unit::Bytes });
    let svg = svg_arms(&outcome, &[Quantity::Throughput]).unwrap();
    let names =
        labels(&svg).into_iter().map(|label| label.text).filter(|text| outcome.arms.contains_key(text));
    assert_eq!(names.collect::<Vec<_>>(), ["stock", "pb-1", "pb-0", "pb-1", "pb-0", "pb-1"]);
    let none = svg_arms(&nothing(), &Quantity::REPORT).unwrap();
    assert!(none.contains("No two arms have a number in common.") && !none.contains("<circle"));
}

#[test]
fn films_are_shown_with_the_frames_that_were_seen_and_dropped() {
    let text = table(&synthetic::outcome(), 80, false);
    assert!(!text.contains("Frames"), "where none are, there is no table of them");
    let mut outcome = synthetic::outcome();
    for (arm, per_s, estimate_error) in [("stock", 15.81, None), ("frontdesk", 23.78, Some(0.0018))] {
        let dropped = 1.0 - per_s / 23.92;
        let frames =
            Frames { per_s, deviation: 3.1, dropped, jitter_ms: 32.8, estimate_error, recovery_s: None };
        outcome.arms[arm].frames.insert("film/player".to_owned(), frames);
    }
    let text = table(&outcome, 80, false);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let frames = text[text.find("Frames").unwrap()..].lines().map(words).take(5).collect::<Vec<_>>();
    assert_eq!(frames[0], "Frames (median over the repeats)");
    assert_eq!(frames[1], "arm VM/workload frames/s ± dropped jitter ms estimate off");
    assert_eq!(frames[3], "stock film/player 15.8 3.10 33.9 % 32.8 –");
    assert_eq!(frames[4], "frontdesk film/player 23.8 3.10 0.6 % 32.8 0.2 %");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let page = html(&outcome, &[]).unwrap();
    for shown in ["Frames a second", "33.9 %", "0.6 %", "0.2 %", "Dropped frames of film/player, %"] {
        assert!(page.contains(shown), "no {shown} in the page");
    }
    outcome.arms.values_mut().flat_map(|arm| arm.frames.values_mut()).for_each(|of| of.dropped = 0.0);
    let none = svg_arms(&outcome, &[Quantity::Dropped]).unwrap();
    assert!(none.contains("No two arms have a number in common."));
}

#[test]
fn a_mark_is_the_median_with_the_spread_of_the_repeats() {
    let mut outcome = synthetic::arms(&["stock", "frontdesk"], 1);
    for arm in outcome.arms.values_mut() {
        for (repeat, per_s) in arm.repeats.iter_mut().zip([2e6, 4e6, 3e6]) {
            repeat.rates = [("vm/work".to_owned(), Rate { per_s, unit: Unit::Bytes })].into_iter().collect();
        }
        arm.rates = arm.repeats[2].rates.clone();
    }
    let svg = svg_arms(&outcome, &[Quantity::Throughput]).unwrap();
    let numbers: Vec<_> = labels(&svg).into_iter().filter(|label| label.text == "3.00").collect();
    assert_eq!(numbers.len(), 2);
    // The axis goes from 0 to 1.2 times the highest, and is 280 pixels high.
    let line =
        svg.split('<').find(|tag| tag.starts_with("polyline") && tag.contains("stroke=\"#D55E00\"")).unwrap();
    let ends = attribute(line, "points").unwrap().split_whitespace();
    let ends = ends.map(|end| end.split_once(',').unwrap().1.parse().unwrap());
    let ends: Vec<f64> = ends.collect();
    let circle = svg.split('<').find(|tag| tag.starts_with("circle")).unwrap();
    let median: f64 = attribute(circle, "cy").unwrap().parse().unwrap();
    assert!((ends[0] - ends[1] - 280.0 * 2.0 / 4.8).abs() < 2.0, "{ends:?}");
    assert!(numbers[0].y[1] < ends[1], "the number is above the line");
    assert!((f64::midpoint(ends[0], ends[1]) - median).abs() < 1.5, "{ends:?} {median}");
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
    let pending = timeline.reads.iter().filter(|read| read.done.is_none()).count();
    assert!(pending > 0);
    assert_eq!(count("i"), timeline.packets.len() + pending);
    assert_eq!((count("b"), count("e")), (timeline.reads.len() - pending, timeline.reads.len() - pending));
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
        "block reads",
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
fn reads_last_from_request_to_completion() {
    let timeline = synthetic::timelines().remove(1);
    let events = trace(&timeline);
    let begins = events.iter().filter(|event| event["ph"] == "b");
    for begin in begins {
        let same = |event: &&Value| event["ph"] == "e" && event["id"] == begin["id"];
        let ends: Vec<_> = events.iter().filter(same).collect();
        assert_eq!(ends.len(), 1, "{begin}");
        for key in ["pid", "cat", "name"] {
            assert_eq!(ends[0][key], begin[key]);
        }
        assert_eq!((&begin["pid"], &begin["args"]["decision"]), (&Value::from(3), &Value::from("no boost")));
        let lasts = ends[0]["ts"].as_f64().unwrap() - begin["ts"].as_f64().unwrap();
        assert!((lasts - 900_000.0).abs() < 1e-3, "{lasts}");
    }
}

#[test]
fn a_film_has_tracks_for_its_pictures_its_sound_and_its_frames() {
    let task = "0x5000".to_owned();
    let timeline = Timeline {
        vms: vec!["film".to_owned()],
        updates: vec![DisplayMark { vm: 0, at: 1_000, region: "640x354+192+397".to_owned() }],
        sounds: vec![
            SoundMark { vm: 0, at: 2_000, vcpu: 1, task: Some(task.clone()) },
            SoundMark { vm: 0, at: 3_000, vcpu: 1, task: None },
        ],
        frame_rates: vec![FrameRatePoint {
            vm: 0,
            task,
            at: 4_000,
            rate: 23.5,
            desired: 24.0,
            share_permille: 2000,
        }],
        ..Timeline::default()
    };
    let events = trace(&timeline);
    let (named, track) = (|name| named(&events, name), |name| track(&events, name));
    assert_eq!(&named("640x354+192+397")["tid"], track("display"));
    for name in ["0x5000", "interrupt"] {
        assert_eq!(
            (&named(name)["tid"], &named(name)["args"]["vcpu"]),
            (track("sound card"), &Value::from(1))
        );
    }
    assert_eq!(named("frames/s of 0x5000")["args"]["shown"], 23.5);
    assert_eq!(named("share for 0x5000")["args"]["permille"], 2000);
}

/// The event with this name.
fn named<'a>(events: &'a [Value], name: &str) -> &'a Value {
    events.iter().find(|event| event["name"] == name).unwrap()
}

/// The number of the track with this name.
fn track<'a>(events: &'a [Value], name: &str) -> &'a Value {
    let of = |event: &&Value| event["ph"] == "M" && event["args"]["name"] == name;
    &events.iter().find(of).unwrap()["tid"]
}

#[test]
fn episodes_and_slow_vcpus_have_tracks() {
    let timeline = Timeline {
        vms: vec!["desk".to_owned()],
        episodes: vec![EpisodeSlice { vm: 0, cause: "the Enter key".to_owned(), start: 1_000, end: 9_000 }],
        weights: vec![WeightSlice { vm: 0, vcpu: 1, permille: 333, start: 2_000, end: 3_000 }],
        ..Timeline::default()
    };
    let events = trace(&timeline);
    let (named, track) = (|name| named(&events, name), |name| track(&events, name));
    assert_eq!(&named("the Enter key")["tid"], track("episodes"));
    assert_eq!(
        (&named("slow")["tid"], &named("slow")["args"]["permille"]),
        (track("weight of vCPU 1"), &Value::from(333))
    );
}

#[test]
fn a_trace_shows_what_a_disk_did_and_why() {
    let work = |vm, task: Option<&str>, [start, begun, end]: [u64; 3]| DiskSlice {
        vm,
        operation: "read".to_owned(),
        bytes: 4096,
        class: "high".to_owned(),
        why: "of a media player".to_owned(),
        task: task.map(str::to_owned),
        start,
        begun,
        end,
    };
    let disk_work =
        vec![work(0, Some("0x5000"), [1_000, 2_000, 9_000]), work(1, None, [1_500, 1_500, 2_500])];
    let vms = vec!["desk".to_owned(), "other".to_owned()];
    let events = trace(&Timeline { vms, disk_work, ..Timeline::default() });
    let of_first: Vec<_> = events.iter().filter(|event| event["id"] == 0).collect();
    let told: Vec<_> =
        of_first.iter().map(|event| (event["ph"].as_str().unwrap(), event["ts"].as_f64().unwrap())).collect();
    assert_eq!(told, [("b", 1.0), ("b", 2.0), ("e", 9.0), ("e", 9.0)]);
    assert_eq!(of_first[0]["name"], "high read");
    assert_eq!(
        (&of_first[0]["args"]["task"], &of_first[0]["args"]["why"]),
        (&"0x5000".into(), &"of a media player".into())
    );
    assert_eq!(
        events.iter().filter(|event| event["args"]["name"] == "disk").count(),
        2,
        "a track for each VM"
    );
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
        let odd =
            [("nan", f64::NAN), ("inf", f64::INFINITY), ("max", f64::MAX), ("low", -f64::MAX), ("none", 0.0)];
        for (name, value) in odd {
            let rate = Rate { per_s: value, unit: Unit::Operations };
            arm.rates.insert(format!("mixed/{name}"), rate);
            arm.repeats[0].rates.insert(format!("mixed/{name}"), rate);
            arm.repeats[0].times_ms.insert("mixed/build".to_owned(), vec![value]);
            arm.repeats[1].times_ms.insert("mixed/build".to_owned(), Vec::new());
        }
        arm.repeats[0].samples_ms.insert("mixed".to_owned(), vec![f64::INFINITY, f64::NAN, 0.0, -1.0, 1e300]);
    }
    html(&outcome, &timelines).unwrap();
}

#[test]
fn an_empty_trace_is_valid() {
    assert_eq!(trace(&Timeline::default()).len(), 1);
}

#[test]
fn a_study_is_told_as_a_table_and_drawn() {
    let chart = |mark| Figure::Chart {
        title: "a <chart>".to_owned(),
        x: "x".to_owned(),
        log_x: mark == Mark::Line,
        y: "y".to_owned(),
        mark,
        series: vec![Series { name: "ours".to_owned(), points: vec![(1.0, 0.0), (2.0, 50.0), (4.0, 100.0)] }],
    };
    let map = Figure::Map {
        title: "a map".to_owned(),
        x: "period".to_owned(),
        y: "slice".to_owned(),
        columns: vec!["1ms".to_owned(), "10ms".to_owned()],
        rows: vec!["0.5".to_owned()],
        cells: vec![vec![Some(33.25), None]],
    };
    let empty = Figure::Chart {
        title: "nothing".to_owned(),
        x: "x".to_owned(),
        log_x: true,
        y: "y".to_owned(),
        mark: Mark::Dot,
        series: Vec::new(),
    };
    let numbers = NumberTable {
        title: "Numbers".to_owned(),
        names: vec!["arm".to_owned()],
        columns: vec!["missed, %".to_owned(), "worst".to_owned(), "runs".to_owned()],
        rows: vec![(vec!["ours".to_owned()], vec![Some(0.125), None, Some(37.0)])],
    };
    let figures = vec![chart(Mark::Line), chart(Mark::Dot), chart(Mark::Bar), map, empty];
    let outcome = Outcome { tables: vec![numbers], figures, ..nothing() };
    let text = frontdesk_report::table(&outcome, 80, false);
    assert!(text.contains("missed, %") && text.contains("0.125") && text.contains('–'), "{text}");
    // A count has no decimals.
    assert!(text.contains(" 37") && !text.contains("37."), "{text}");
    let svg = frontdesk_report::svg_figures(&outcome).unwrap();
    for told in ["a &lt;chart&gt;", "a map", "33.2", "10ms", "ours"] {
        assert!(svg.contains(told), "{told}");
    }
    let page = frontdesk_report::html(&outcome, &[]).unwrap();
    assert!(page.contains("a &lt;chart&gt;") && page.contains("0.125"));
}
