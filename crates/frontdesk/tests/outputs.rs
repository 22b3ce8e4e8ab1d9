//! Results that go to standard output.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// A short run, in a folder of its own.
fn sim(folder: &Path, arguments: &[&str]) -> Output {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/echo-mixed.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.current_dir(folder).arg("sim").arg(file).args(["--repeat", "1", "--duration", "1s"]);
    command.args(["--arms", "stock"]).args(arguments).output().unwrap()
}

fn is_empty(folder: &Path) -> bool {
    folder.read_dir().unwrap().next().is_none()
}

#[test]
fn a_dash_is_standard_output_and_the_table_makes_way() {
    let folder = tempfile::tempdir().unwrap();
    let without = sim(folder.path(), &[]);
    let table = String::from_utf8(without.stdout).unwrap();
    assert!(table.contains("stock"), "{table}");
    let with = sim(folder.path(), &["--json", "-"]);
    let told = String::from_utf8(with.stderr).unwrap();
    assert!(told.contains(&table), "{told}");
    let result: Value = serde_json::from_slice(&with.stdout).unwrap();
    assert_eq!(result["scenario"], "echo-mixed");
    assert!(is_empty(folder.path()), "there is no file called -");
}

#[test]
fn results_of_a_sweep_go_to_standard_output_too() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = ["--sweep", "vm.cpu.count=1,2", "--csv", "-", "--json", "out.json"];
    let lines = String::from_utf8(sim(folder.path(), &sweep).stdout).unwrap();
    let counts: Vec<_> = lines.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(counts[0], "vm.cpu.count");
    assert!(counts[1..].iter().all(|count| ["1", "2"].contains(count)) && counts.contains(&"2"), "{lines}");
    assert!(folder.path().join("out.json").exists() && !folder.path().join("-").exists());
}

#[test]
fn only_one_result_goes_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    for two in [["--json", "-", "--html", "-"], ["--csv", "-", "--svg", "-"]] {
        let output = sim(folder.path(), &two);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("only one result can be written to standard output"), "{told}");
        assert!(output.stdout.is_empty() && is_empty(folder.path()));
    }
}
