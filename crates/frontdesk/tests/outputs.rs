//! Results that go to standard output.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

/// A short run, in a folder of its own.
fn sim(folder: &Path, arguments: &[&str]) -> Output {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/echo-mixed.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.current_dir(folder).arg("sim").arg(file).args(["--repeat", "1", "--duration", "1s"]);
    if !arguments.contains(&"--arms") {
        command.args(["--arms", "stock"]);
    }
    command.args(arguments).output().unwrap()
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

/// What happened, as Perfetto opens it: also of an arm in which no daemon ran, and else of the last that had
/// one.
#[test]
fn a_trace_has_all_that_ran() {
    let folder = tempfile::tempdir().unwrap();
    let trace = |arms: &str| {
        let output = sim(folder.path(), &["--trace", "trace.json", "--arms", arms]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        let trace = std::fs::read(folder.path().join("trace.json")).unwrap();
        serde_json::from_slice::<Value>(&trace).unwrap()["traceEvents"].as_array().unwrap().clone()
    };
    let named = |events: &[Value], kind: &str| -> BTreeSet<String> {
        let of = events.iter().filter(|event| event["ph"] == "M" && event["name"] == kind);
        of.map(|event| event["args"]["name"].as_str().unwrap().to_owned()).collect()
    };
    for (arms, boosts) in [("stock", false), ("stock,frontdesk", true)] {
        let events = trace(arms);
        let processes = named(&events, "process_name");
        let vms = ["mixed", "cpu-1", "cpu-2", "cpu-3", "cpu-4", "cpu-5"].map(|name| format!("VM {name}"));
        let all = vms.into_iter().chain(["physical CPUs".to_owned()]).collect();
        assert_eq!(processes, all, "{arms}");
        let tracks = named(&events, "thread_name");
        assert!(tracks.contains("CPU 0") && tracks.contains("vCPU 0"), "{arms}: {tracks:?}");
        assert_eq!(tracks.contains("boosts of vCPU 0"), boosts, "{arms}: {tracks:?}");
        let slices = |name: &str| {
            let of = events.iter().filter(|event| event["ph"] == "X" && event["name"] == name);
            of.map(|event| event["dur"].as_f64().unwrap()).sum::<f64>() / 1e6
        };
        // Six VMs share a CPU for a second: each vCPU had about a sixth of it, on the track of the CPU.
        let shares = ["mixed", "cpu-1", "cpu-5"].map(|vm| slices(&format!("{vm} vCPU 0")));
        assert!(shares.iter().all(|share| (0.1..0.3).contains(share)), "{arms}: {shares:?}");
        assert_eq!(slices("boost") > 0.0, boosts, "{arms}");
        let packets = events.iter().filter(|event| event["ph"] == "i" && event["name"] == "tcp 7").count();
        assert!(packets > 2, "{arms}: {packets} packets");
    }
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
