//! `frontdesk capacity`: what it finds, whoever makes the runs, and what it refuses.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("scenarios/capacity")
}

fn capacity(profile: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.arg("capacity").arg(profile).args(arguments).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it finds of the desktops that all answer and compute, in short runs.
fn found(arguments: &[&str]) -> Value {
    let short = ["--set", "duration=2s", "--set", "warmup=1s", "--json", "-"];
    let output = capacity(&scenarios().join("echo.toml"), &[&short[..], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn frontdesk_holds_more_desktops_than_stock_on_any_number_of_threads() {
    let alone = found(&["--limit", "p95 <= 20 ms", "--jobs", "1"]);
    let arms = alone["arms"].as_array().unwrap();
    let held = |arm: &Value| arm["held"]["desktops"].as_u64().unwrap();
    assert_eq!([&arms[0]["arm"], &arms[1]["arm"]], ["stock", "frontdesk"]);
    assert!(held(&arms[0]) < held(&arms[1]), "{alone}");
    for arm in arms {
        let verdict = |desktops: u64| {
            let tried = arm["tried"].as_array().unwrap();
            let tried = tried.iter().find(|tried| tried["desktops"].as_u64() == Some(desktops));
            tried.map(|tried| tried["verdict"].as_str().unwrap().to_owned())
        };
        let tried = u32::try_from(arm["tried"].as_array().unwrap().len()).unwrap();
        let confidence = arm["confidence"].as_f64().unwrap();
        assert!((confidence - (1.0 - 0.002 * f64::from(tried))).abs() < 1e-9, "{arm}");
        if held(arm) > 0 {
            assert_eq!(verdict(held(arm)).unwrap(), "kept");
        }
        if let Some(most) = arm["held"]["at_most"].as_u64() {
            assert_eq!(verdict(most + 1).unwrap(), "broken");
        }
    }
    let cluster = ["--hosts", "10", "--spare", "1"];
    let of_ten = found(&[&["--limit", "p95 <= 20 ms", "--jobs", "3"], &cluster[..]].concat());
    assert_eq!(of_ten["arms"], alone["arms"]);
    for (of_ten, of_one) in of_ten["cluster"]["arms"].as_array().unwrap().iter().zip(arms) {
        assert_eq!((&of_ten["arm"], held(of_ten)), (&of_one["arm"], 9 * held(of_one)));
    }
    let none = capacity(&scenarios().join("echo.toml"), &["--hosts", "2", "--spare", "2"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(told(&none).contains("1 at most"), "{}", told(&none));
}

/// What a slower host gives is made by the model, with costs ten times as high.
#[test]
fn a_calibrated_model_is_as_slow_as_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let lab = folder.path().join("lab.json");
    let scenario = scenarios().join("../echo-mixed.toml");
    let mut sim = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    sim.arg("sim").arg(&scenario).args(["--arms", "io-only", "--json"]).arg(&lab);
    for (key, us) in [
        ("costs.packet_in", 50),
        ("costs.packet_out", 70),
        ("costs.block", 20),
        ("costs.timer", 60),
        ("guest.receive", 310),
        ("guest.request", 170),
        ("guest.send", 160),
    ] {
        sim.args(["--set", &format!("sim.{key}={us}us")]);
    }
    let output = sim.output().unwrap();
    assert!(lab.is_file(), "{}", told(&output));
    let limit = ["--arms", "stock", "--limit", "p95 <= 20 ms"];
    let files = ["--calibrate", scenario.to_str().unwrap(), lab.to_str().unwrap()];
    let (fast, slow) = (found(&limit), found(&[&limit[..], &files].concat()));
    let factor = slow["calibration"]["cost_factor"].as_f64().unwrap();
    assert!((9.0..11.0).contains(&factor), "{slow}");
    let held = |found: &Value| found["arms"][0]["held"]["desktops"].as_u64().unwrap();
    assert!(held(&slow) < held(&fast), "{slow} {fast}");

    let missing = capacity(&scenarios().join("echo.toml"), &[&files[..2], &["no-such.json"]].concat());
    assert!(
        missing.status.code() == Some(2) && told(&missing).contains("no-such.json"),
        "{}",
        told(&missing)
    );
}

#[test]
fn a_page_and_a_plot_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let [page, plot] = ["page.html", "plot.svg"].map(|name| folder.path().join(name));
    let arguments = ["--arms", "stock", "--html", page.to_str().unwrap(), "--plot", plot.to_str().unwrap()];
    found(&[&arguments[..], &["--limit", "mean <= 20 ms"]].concat());
    assert!(fs::read_to_string(page).unwrap().contains("mean &lt;= 20ms"));
    assert!(fs::read_to_string(plot).unwrap().starts_with("<svg"));
}

/// Desktops of all kinds, in short runs: letters of all, and programs that are started, have answers.
#[test]
fn the_mixed_profile_is_answered() {
    let short = ["--set", "duration=4s", "--set", "warmup=1s", "--arms", "frontdesk", "--json", "-"];
    let output =
        capacity(&scenarios().join("mixed.toml"), &[&short[..], &["--limit", "p95 <= 50 ms"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["arms"][0]["held"]["desktops"].as_u64().unwrap() >= 10, "{found}");
}

#[test]
fn a_recording_becomes_a_profile_that_is_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/echo-mixed.fdsk");
    let write = folder.path().join("recorded");
    let derive = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
        command.args(["capacity", "--from"]).arg(&recording).arg("--write").arg(&write).output().unwrap()
    };
    let output = derive();
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("mixed") && said.contains("requests"), "{said}");
    let short = ["--set", "duration=2s", "--set", "warmup=1s", "--limit", "p95 <= 50 ms"];
    let output = capacity(&write.join("profile.toml"), &short);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", told(&output));

    let again = derive();
    assert_eq!(again.status.code(), Some(2));
    assert!(told(&again).contains("is there already"), "{}", told(&again));
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    let alone = command.args(["capacity", "--from"]).arg(&recording).output().unwrap();
    assert!(told(&alone).contains("--write <FOLDER>"), "{}", told(&alone));
}

#[test]
fn a_limit_that_not_even_one_desktop_keeps_is_a_failure() {
    let short = ["--set", "duration=1s", "--set", "warmup=0s", "--limit", "mean <= 1us"];
    let output = capacity(&scenarios().join("echo.toml"), &short);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = scenarios().join("../desktops/echo.toml");
    let refused = |mix: &str, arguments: &[&str]| {
        let profile = folder.path().join("p.toml");
        fs::write(&profile, format!("scenario = {scenario:?}\n{mix}\n")).unwrap();
        let output = capacity(&profile, arguments);
        assert_eq!(output.status.code(), Some(2), "{}", told(&output));
        told(&output)
    };
    let told = refused("[mix]\ndeks = 1", &[]);
    assert!(told.contains("mix.deks: there is no such VM; allowed is desk"), "{told}");
    let told = refused("[mix]\ndesk = 0", &[]);
    assert!(told.contains("mix.desk: 0: allowed is 1 to 1000"), "{told}");
    let told = refused("[mix]", &[]);
    assert!(told.contains("mix: at least one VM is a desktop"), "{told}");
    let told = refused("[mixture]\ndesk = 1", &[]);
    assert!(told.contains("p.toml:2: unknown field `mixture`"), "{told}");
    let told = refused("[mix]\ndesk = 1", &["--limit", "p95 < 100 ms"]);
    assert!(told.contains("is no limit: it has no <="), "{told}");
    let told = refused("[mix]\ndesk = 1", &["--set", "vm.desk.vcpus=99"]);
    assert!(told.contains("allowed is 1 to 16"), "{told}");
}
