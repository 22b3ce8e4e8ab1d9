//! `frontdesk lab` with a study of reservations: its result, and that nothing stays. Needs root. Times are
//! never asserted.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// Shortened to what a test needs. One at a time: each starts a daemon, of which there is one.
fn lab(scenario: &str, folder: &Path, arguments: &[&str]) -> Output {
    static LAB: Mutex<()> = Mutex::new(());
    let _alone = LAB.lock().unwrap_or_else(PoisonError::into_inner);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/vsched").join(scenario);
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.arg("lab").arg(file).args(["--repeats", "1", "--duration", "300ms"]).args(arguments);
    command.arg("--json").arg(folder.join("out.json")).arg("--svg").arg(folder.join("out.svg"));
    command.arg("--html").arg(folder.join("out.html"));
    let output = command.output().unwrap();
    assert_eq!(workers(), 0, "left behind");
    output
}

fn result(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("out.json")).unwrap()).unwrap()
}

/// Processes of the machine whose command line has the word that makes a worker.
fn workers() -> usize {
    let lines = fs::read_dir("/proc").unwrap().flatten().map(|entry| fs::read(entry.path().join("cmdline")));
    lines.flatten().filter(|line| line.split(|byte| *byte == 0).any(|word| word == b"lab-worker")).count()
}

#[test]
fn each_arm_has_numbers_of_each_case_and_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let cases = r#"study.cases=[["10ms","2ms"],["20ms","4ms"]]"#;
    let checks = r#"check=[{name="x",measure="miss-time",arm="user",at_most=1000.0}]"#;
    let output = lab("precision.toml", folder.path(), &["--set", cases, "--set", checks]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let result = result(folder.path());
    let table = &result["tables"][0];
    let names: Vec<_> = table["rows"].as_array().unwrap().iter().map(|row| row[0].clone()).collect();
    let arms = ["user", "user-hard", "sched-deadline"];
    let expected =
        arms.iter().flat_map(|arm| ["10ms/2ms", "20ms/4ms"].map(|case| serde_json::json!([arm, case])));
    assert_eq!(names, expected.collect::<Vec<_>>());
    let columns = table["columns"].as_array().unwrap();
    let periods = columns.iter().position(|column| column == "periods").unwrap();
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(row[1].as_array().unwrap().len(), columns.len());
        assert!(row[1][periods].as_f64().unwrap() > 10.0, "{row}");
    }
    assert_eq!(result["checks"].as_array().unwrap().len(), 1);
    assert!(fs::read_to_string(folder.path().join("out.svg")).unwrap().starts_with("<svg"));
    assert!(fs::read_to_string(folder.path().join("out.html")).unwrap().contains("10ms/2ms"));
}

#[test]
fn a_parallel_program_makes_steps_with_and_without_reservations() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(
        "bsp.toml",
        folder.path(),
        &["--set", r#"study.cases=[["20ms","5ms"]]"#, "--set", "study.contention=[0.0,1.0]"],
    );
    let told = String::from_utf8_lossy(&output.stderr);
    // Whether the bar is reached in so short a time is not the question.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{told}");
    let result = result(folder.path());
    let rows = result["tables"][0]["rows"].as_array().unwrap();
    let rates: Vec<&Value> = rows.iter().filter(|row| row[0][1] != "contention").collect();
    assert_eq!(rates.len(), 5, "{rows:?}");
    // Whatever else runs here may keep it from any step in so short a time, but not where it has slices.
    for row in rates {
        let rate = row[1][0].as_f64().unwrap();
        assert!(rate > 0.0 || row[0][0] == "stock", "{rows:?}");
    }
}

#[test]
fn a_study_that_cannot_be_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    for (set, says) in [
        ("cpus=[999]", "cpus = [999]: allowed is the CPUs of this machine"),
        (r#"study.cases=[["10ms","20ms"]]"#, "study.cases.0.1 = 20ms: allowed is 10us to 10ms"),
        ("check.0.measure=reaction", r#"check.0.measure = "reaction": allowed is one of median-error"#),
        (
            "arms.sched-deadline.hard=true",
            r#"arms.sched-deadline.hard = true: allowed is only with by = "frontdesk""#,
        ),
    ] {
        let output = lab("precision.toml", folder.path(), &["--set", set]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(says), "{told}");
    }
}
