//! The commands about recordings: good ones, broken ones, and a daemon that sends one over its socket.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_engine::reservation::{
    Dispatch, Dispatcher, Member, Reading, Reservation, ReservationEvent, ReservationEventKind, TargetId,
};
use frontdesk_engine::{Config, Time};
use frontdesk_record::{Record, Recorder};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

const FRONTDESK: &str = env!("CARGO_BIN_EXE_frontdesk");
const BYTES: &[u8] = include_bytes!("data/echo-mixed.fdsk");
const HEADER: usize = 12;

fn frontdesk(arguments: &[&str]) -> Output {
    Command::new(FRONTDESK).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn sample() -> String {
    format!("{}/tests/data/echo-mixed.fdsk", env!("CARGO_MANIFEST_DIR"))
}

/// Where the frames of the recording begin, and where the last ends.
fn frames() -> Vec<usize> {
    let mut places = vec![HEADER];
    while let Some(length) = BYTES[*places.last().unwrap()..].first_chunk() {
        places.push(places.last().unwrap() + 8 + u32::from_le_bytes(*length) as usize);
    }
    assert_eq!(places.last(), Some(&BYTES.len()));
    places
}

/// `frontdesk replay` of these bytes.
fn replay(bytes: &[u8]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.fdsk");
    fs::write(&file, bytes).unwrap();
    frontdesk(&["replay", file.to_str().unwrap()])
}

#[test]
fn the_recorded_run_is_the_same_again() {
    let output = frontdesk(&["replay", &sample()]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).ends_with("all the same\n"), "{}", out(&output));
    assert_eq!(err(&output), "");
    let json: Value = serde_json::from_slice(&frontdesk(&["replay", "--json", &sample()]).stdout).unwrap();
    assert!(json["events"].as_u64().unwrap() > 20_000 && json["mismatch"].is_null());
}

/// A recording of 60 ms in which a process has 2 of each 10 ms; with the loss of some decisions, and with
/// some that were made otherwise.
fn reserved(file: &Path, lost: bool, otherwise: u64) {
    const MS: u64 = 1_000_000;
    let member = Member { target: TargetId(4), index: 0 };
    let mut dispatcher = Dispatcher::new(0);
    let mut recorder = Recorder::create(file).unwrap();
    recorder.push(&Record::Config(Config::default()));
    recorder.push(&Record::Dispatcher { cpu: 0, state: Box::new(dispatcher.clone()) });
    recorder.push(&Record::Target { target: member.target, name: "pid:4711\u{1b}[2J".to_owned() });
    for n in 0..=60 {
        let reservation = Reservation { period_ns: 10 * MS, slice_ns: 2 * MS, hard: true, phase_ns: None };
        let kind = match n {
            0 => ReservationEventKind::Set { member, cpu: 1, reservation, since: None },
            _ => ReservationEventKind::Decide { tolerance_ns: 0 },
        };
        // It runs in the first milliseconds of each period, but not in the last.
        let reading = Reading {
            ran_ns: (n.min(50) / 10 * 2 + (n.min(50) % 10).min(2)) * MS,
            ready: true,
            woken: Time(0),
        };
        let event = ReservationEvent { at: Time(n * MS), readings: vec![(member, reading)], kind };
        dispatcher.on_event(&event);
        let mut dispatches: Vec<Dispatch> = std::iter::from_fn(|| dispatcher.poll_action()).collect();
        if !dispatches.is_empty() && n / 10 < otherwise {
            dispatches.pop();
        }
        if lost && (12..15).contains(&n) {
            continue;
        }
        if lost && n == 15 {
            recorder.push(&Record::DecisionsLost { decisions: 4 });
            recorder.push(&Record::Dispatcher { cpu: 0, state: Box::new(dispatcher.clone()) });
            continue;
        }
        recorder.push(&Record::Decision { cpu: 0, event, dispatches });
    }
    recorder.finish().unwrap();
}

#[test]
fn decisions_about_reservations_are_gone_through_and_misses_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reserved.fdsk");
    let name = file.to_str().unwrap();
    reserved(&file, false, 0);
    let output = frontdesk(&["replay", name]);
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("reservations: 61 decisions in 0.1 s, 11 dispatches, all the same\n"), "{text}");
    let row = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(row, ["pid:4711?[2J", "0", "6", "1", "0"], "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let json: Value = serde_json::from_slice(&frontdesk(&["replay", "--json", name]).stdout).unwrap();
    let told = &json["reservations"];
    assert_eq!(
        (&told["decisions"], &told["differences"], &told["first"]),
        (&61.into(), &0.into(), &Value::Null)
    );
    assert_eq!(told["members"][0]["missed"], 1);

    reserved(&file, true, 0);
    let output = frontdesk(&["replay", name]);
    let text = out(&output);
    assert!(output.status.success() && text.contains("all the same"), "{text}");
    assert!(text.contains("4 decisions came faster than they could be recorded"), "{text}");

    reserved(&file, false, 3);
    let output = frontdesk(&["replay", name]);
    let text = out(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("6 decisions not the same") && text.contains("first is record 4,"), "{text}");
    assert!(text.contains("recorded: nothing\n") && text.contains("on cpu1 runs at level"), "{text}");
    assert!(text.contains("pid:4711"), "the others are told all the same: {text}");
    let output = frontdesk(&["replay", "--json", name]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &json["reservations"]["differences"]), (Some(1), &6.into()));
    assert!(json["reservations"]["first"]["recorded"].as_array().unwrap().is_empty());
}

#[test]
fn a_recording_that_was_cut_is_replayed_up_to_there() {
    let frames = frames();
    let middle = frames[frames.len() / 2];
    for (length, rest) in [(middle, None), (middle + 5, Some(5)), (middle + 100, Some(100)), (HEADER, None)] {
        let output = replay(&BYTES[..length]);
        assert_eq!(output.status.code(), Some(0));
        assert!(out(&output).contains("all the same"));
        let err = err(&output);
        assert!(err.contains("has no end"), "{err}");
        assert_eq!(
            err.contains(&format!("; {} bytes of a last frame", rest.unwrap_or(0))),
            rest.is_some(),
            "{err}"
        );
    }
}

#[test]
fn broken_recordings_are_refused_in_words() {
    let (mut newer, mut older) = (BYTES.to_vec(), BYTES.to_vec());
    newer[8] += 1;
    older[8] -= 1;
    let (reads, later, earlier) = (BYTES[8], newer[8], older[8]);
    let reads = format!("reads version {reads}");
    let (later, earlier) = (format!("format version {later}"), format!("format version {earlier}"));
    let mut damaged = BYTES.to_vec();
    damaged[frames()[1] + 50] ^= 4;
    for (bytes, words) in [
        (&newer, &[&later, &reads, "a later release recorded it; use that one"][..]),
        (&older, &[&earlier, &reads, "use the release that recorded it, or record anew"]),
        (&damaged, &["is damaged at byte", "records", "checksum"]),
        (&b"#!/bin/sh\nexit 0\n".to_vec(), &["is not a recording", "frontdesk record"]),
        (&Vec::new(), &["is not a recording"]),
    ] {
        let output = replay(bytes);
        assert_eq!(output.status.code(), Some(2));
        for word in words {
            assert!(err(&output).contains(word), "{word}: {}", err(&output));
        }
    }
}

#[test]
fn what_a_later_release_added_is_left_out_and_told() {
    // A frame with "Weather", a record that this release does not know, at the end.
    let block = zstd::bulk::compress(b"\x67Weather", 1).unwrap();
    let length = u32::try_from(block.len()).unwrap().to_le_bytes();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&length), &block).to_le_bytes();
    let frames = frames();
    let last = frames[frames.len() - 2];
    let mut later = [&BYTES[..last], &length, &sum, &block, &BYTES[last..]].concat();
    later[10] = u8::MAX;
    let output = replay(&later);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("all the same"), "{}", out(&output));
    assert!(err(&output).contains("left out that this one does not know: 1;"), "{}", err(&output));
}

#[test]
fn two_configurations_are_compared_on_eighty_columns_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("other.toml");
    fs::write(&config, "[tavs]\nbelief_threshold = 40\n").unwrap();
    let config = config.to_str().unwrap();
    let output = frontdesk(&["replay", &sample(), "--config", config]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).lines().all(|line| line.chars().count() <= 80), "{}", out(&output));
    assert!(out(&output).contains("no I/O-bound task"), "{}", out(&output));
    let output = frontdesk(&["replay", &sample(), "--config", config, "--json", "--vm", "mixed"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let summary = &json["summary"];
    assert_eq!(summary["vms"].as_array().unwrap().len(), 1);
    let differences = json["differences"].as_array().unwrap().len() as u64;
    assert_eq!(differences, summary["only_a"].as_u64().unwrap() + summary["only_b"].as_u64().unwrap());
    assert!(differences > 0);
    fs::write(folder.path().join("other.toml"), "[tavs]\npb_ratio = 7.0\n").unwrap();
    let output = frontdesk(&["replay", &sample(), "--config", config]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("tavs.pb_ratio = 7"), "{}", err(&output));
}

#[test]
fn sampled_tasks_are_compared_on_eighty_columns_and_as_json() {
    let output = frontdesk(&["replay", &sample(), "--sampled"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).lines().all(|line| line.chars().count() <= 80), "{}", out(&output));
    let json: Value =
        serde_json::from_slice(&frontdesk(&["replay", &sample(), "--sampled", "--json"]).stdout).unwrap();
    assert!(json["vms"][0]["agreed"].as_u64().unwrap() > 0);
}

#[test]
fn a_trace_goes_from_standard_input_to_standard_output() {
    let mut child = Command::new(FRONTDESK)
        .args(["export", "--perfetto", "-", "-o", "-", "--from", "5s", "--for", "1s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may have all that it wants before the end.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(BYTES)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert!(output.status.success());
    let trace: Value = serde_json::from_slice(&output.stdout).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let slices = events.iter().filter(|event| event["ph"] == "X");
    assert!(slices.clone().count() > 100);
    assert!(slices.clone().any(|slice| slice["name"] == "boost"));
    assert!(slices.clone().all(|slice| slice["ts"].as_f64().unwrap() <= 1_000_000.0));
}

/// A daemon, as far as a client can tell: answers one request, then does with the connection what `then`
/// says.
fn daemon(
    folder: &Path,
    answer: &'static str,
    then: impl FnOnce(UnixStream) + Send + 'static,
) -> (PathBuf, JoinHandle<()>) {
    let socket = folder.join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let thread = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
        assert_eq!(request, "{\"record\":{}}\n");
        stream.write_all(answer.as_bytes()).unwrap();
        then(stream);
    });
    (socket, thread)
}

const YES: &str = "{\"record\":{}}\n";

fn record(socket: &Path, file: &Path) -> Command {
    let mut command = Command::new(FRONTDESK);
    command.arg("record").arg(file).arg("--socket").arg(socket).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Sends all but the last frame, tells by `sent`, waits until the client wants no more, and completes the
/// recording.
fn send_until_told(mut stream: UnixStream, sent: impl FnOnce()) {
    let frames = frames();
    let last = frames[frames.len() - 2];
    stream.write_all(&BYTES[..last]).unwrap();
    sent();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "a client that says more");
    stream.write_all(&BYTES[last..]).unwrap();
}

#[test]
fn a_recording_ends_by_time_and_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, daemon) = daemon(folder.path(), YES, |stream| send_until_told(stream, || ()));
    let file = folder.path().join("new.fdsk");
    let output = record(&socket, &file).args(["--duration", "300ms"]).output().unwrap();
    daemon.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(fs::read(&file).unwrap(), BYTES);
    // It is there now, and stays.
    let output = record(Path::new("/nonexistent"), &file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(&file).unwrap(), BYTES);
}

/// Where a thread's stack has no room, there is no thread.
#[test]
fn without_a_thread_it_says_so_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, daemon) = daemon(folder.path(), YES, drop);
    let file = folder.path().join("new.fdsk");
    let output = record(&socket, &file).env("RUST_MIN_STACK", (1_u64 << 60).to_string()).output().unwrap();
    daemon.join().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("cannot start a thread") && err(&output).contains("ulimit -u"));
    assert!(!file.exists());
}

#[test]
fn a_recording_ends_by_a_signal_and_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (sent, is_sent) = std::sync::mpsc::channel();
    let (socket, daemon) =
        daemon(folder.path(), YES, |stream| send_until_told(stream, move || sent.send(()).unwrap()));
    let file = folder.path().join("new.fdsk");
    let child = record(&socket, &file).spawn().unwrap();
    is_sent.recv().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    daemon.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(fs::read(&file).unwrap(), BYTES);
}

#[test]
fn a_recording_whose_daemon_dies_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, daemon) = daemon(folder.path(), YES, |mut stream| {
        stream.write_all(&BYTES[..BYTES.len() / 2]).unwrap();
    });
    let file = folder.path().join("new.fdsk");
    fs::write(&file, "an old one").unwrap();
    let output = record(&socket, &file).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "not without --force");
    assert!(err(&output).contains("--force"), "{}", err(&output));
    let output = record(&socket, &file).arg("--force").output().unwrap();
    daemon.join().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("ended early"), "{}", err(&output));
    assert_eq!(fs::read(&file).unwrap(), &BYTES[..BYTES.len() / 2]);
    assert!(out(&replay(&fs::read(&file).unwrap())).contains("all the same"));
}

#[test]
fn a_daemon_that_refuses_or_lies_leaves_no_file() {
    for (answer, words) in [
        (
            "{\"refused\":{\"kind\":\"unavailable\",\"message\":\"4 others are being made\"}}\n",
            "4 others are being made",
        ),
        ("SSH-2.0-OpenSSH\n", "is not a frontdesk daemon"),
        ("{\"record\":{}}\nrubbish that is no recording", "is not a recording"),
        ("", "is not a frontdesk daemon"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (socket, daemon) = daemon(folder.path(), answer, drop);
        let file = folder.path().join("new.fdsk");
        let output = record(&socket, &file).output().unwrap();
        daemon.join().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains(words), "{}", err(&output));
        assert!(!file.exists());
    }
}
