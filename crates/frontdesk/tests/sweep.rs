//! `frontdesk sweep`: what it says, that it goes on after it was stopped or killed, the README's commands.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// A folder of its own to work in, with the repository's scenarios.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    symlink(root().join("scenarios"), folder.path().join("scenarios")).unwrap();
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    command.current_dir(folder).arg("sweep").args(arguments);
    command
}

fn sweep(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// So many runs, each of some seconds of simulated time.
fn write_sweep(folder: &Path, seeds: u32) {
    let text = format!(
        "scenario = \"scenarios/echo-mixed.toml\"
        arms = [\"stock\"]
        seeds = {seeds}
        set = {{ duration = \"10s\", warmup = \"0s\" }}
        grid.vm.cpu.count = [1, 2]"
    );
    fs::write(folder.join("s.toml"), text).unwrap();
}

/// The files with rows of some runs.
fn parts(folder: &Path) -> usize {
    let names = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("rows-")).count()
}

/// A sweep that has written the rows of some of its runs.
fn begun(folder: &Path) -> Child {
    let mut child = command(folder, &["s.toml", "--out", "out"]).stderr(Stdio::null()).spawn().unwrap();
    while parts(&folder.join("out")) == 0 {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it wrote");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn rows(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("rows.parquet")).unwrap()
}

/// Whether git can do something in the repository.
fn git(arguments: &[&str]) -> bool {
    let output = Command::new("git").current_dir(root()).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn the_commands_of_the_readme_do_what_they_say() {
    let folder = place();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let section = readme.split("\n## Sweep it\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let commands = section.lines().filter_map(|line| line.strip_prefix("target/release/frontdesk sweep "));
    let mut last = String::new();
    for line in commands {
        let output = sweep(folder.path(), &line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{line}: {}", told(&output));
        last = String::from_utf8(output.stdout).unwrap();
    }
    assert!(last.contains("Effect of each parameter") && last.contains("vm.cpu.count"), "{last}");
    let report = fs::read_to_string(folder.path().join("neighbours/report.html")).unwrap();
    assert!(report.contains("p99_ms of mixed over vm.cpu.count") && report.contains("<svg"), "{report}");
    assert!(report.contains("Pareto front: the least p99_ms of mixed and the least cpu_share of mixed"));
    assert!(report.contains("on the front") && last.contains("Pareto front"), "{last}");
    let rows: Value = serde_json::from_slice(&fs::read(folder.path().join("rows.json")).unwrap()).unwrap();
    let rows = rows.as_array().unwrap();
    assert!(rows.iter().all(|row| row["error"].is_null() && row["version"].is_string()));
    let commits: BTreeSet<Option<&str>> = rows.iter().map(|row| row["commit"].as_str()).collect();
    let commit = commits.first().unwrap().unwrap_or_default();
    let length = if git(&["rev-parse", "HEAD"]) { 40 } else { 0 };
    assert_eq!((commits.len(), commit.len()), (1, length), "{commits:?}");
    assert!(commit.is_empty() || git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]), "{commit}");
    let mean = |arm: &str| {
        let of =
            rows.iter().filter(|row| row["arm"] == arm && row["vm"] == "mixed" && row["vm.cpu.count"] == 7);
        of.filter_map(|row| row["mean_ms"].as_f64()).reduce(f64::max).unwrap()
    };
    assert!(mean("frontdesk") < mean("stock") / 2.0);
}

#[test]
fn after_a_kill_and_after_ctrl_c_it_goes_on_and_the_rows_are_the_same() {
    let folder = place();
    write_sweep(folder.path(), 400);
    let mut child = begun(folder.path());
    let second = sweep(folder.path(), &["s.toml", "--out", "out"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(told(&second).contains(&format!("another sweep writes into out (process {})", child.id())));
    child.kill().unwrap();
    child.wait().unwrap();
    let before = parts(&folder.path().join("out"));
    assert!(before > 0 && !folder.path().join("out/rows.parquet").exists());

    let mut again = command(folder.path(), &["s.toml", "--out", "out"]);
    let again = again.stderr(Stdio::piped()).spawn().unwrap();
    while parts(&folder.path().join("out")) == before {
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = rustix::process::Pid::from_child(&again);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let output = again.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", told(&output));
    assert!(
        told(&output).contains("of 800 runs, and the same command goes on from there"),
        "{}",
        told(&output)
    );

    let last = sweep(folder.path(), &["s.toml", "--out", "out"]);
    assert_eq!(last.status.code(), Some(0), "{}", told(&last));
    let whole = sweep(folder.path(), &["s.toml", "--out", "whole", "--jobs", "1"]);
    assert_eq!(whole.status.code(), Some(0), "{}", told(&whole));
    assert_eq!(rows(&folder.path().join("out")), rows(&folder.path().join("whole")));
    assert_eq!(parts(&folder.path().join("out")), 0);
    let report = fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert!(report.contains("Effect of each parameter") && !report.contains("Pareto"), "it has none");
}

/// Twenty desktops on two hosts, of which one fails in the second of two parts of the day: three hosts with
/// somebody on them, in two arms.
const CLUSTER: &str = "
    scenario = \"scenarios/desktops/office.toml\"
    arms = [\"stock\", \"frontdesk\"]
    set = { duration = \"600s\", warmup = \"0s\" }
    cluster.desktops = 20
    cluster.hosts = 2
    cluster.room = 20
    cluster.placement = \"spread\"
    cluster.mix = { task-worker = 3, developer = 1 }
    cluster.in-use = [0.5, 0.9]
    cluster.failure = [{ hosts = 1, from = 1 }]
    cluster.limit = { measure = \"p95_ms\", most = 20.0 }";

#[test]
fn a_cluster_is_planned_and_goes_on_after_it_was_killed() {
    let folder = place();
    fs::write(folder.path().join("s.toml"), CLUSTER).unwrap();
    let planned = sweep(folder.path(), &["s.toml", "--plan"]);
    assert_eq!(planned.status.code(), Some(0), "{}", told(&planned));
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(text.starts_with("6 runs, 1h of simulated time.") && text.contains("On 256 CPUs"), "{text}");
    assert!(!folder.path().join("s").exists(), "a plan keeps nothing");

    // On one thread, so that some are done and others not.
    let one = ["s.toml", "--out", "out", "--jobs", "1"];
    let mut child = command(folder.path(), &one).stderr(Stdio::null()).spawn().unwrap();
    while parts(&folder.path().join("out")) == 0 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let last = sweep(folder.path(), &["s.toml", "--out", "out", "--json", "rows.json"]);
    assert_eq!(last.status.code(), Some(0), "{}", told(&last));
    let whole = sweep(folder.path(), &["s.toml", "--out", "whole"]);
    assert_eq!(whole.status.code(), Some(0), "{}", told(&whole));
    assert_eq!(rows(&folder.path().join("out")), rows(&folder.path().join("whole")));

    let rows: Value = serde_json::from_slice(&fs::read(folder.path().join("rows.json")).unwrap()).unwrap();
    let of_part = |part: u64| {
        let rows = rows.as_array().unwrap().iter();
        let rows = rows.filter(|row| row["cluster.part"] == part && row["arm"] == "stock");
        let hosts: BTreeSet<u64> = rows.clone().map(|row| row["cluster.host"].as_u64().unwrap()).collect();
        (hosts.len(), rows.count())
    };
    let ((hosts, desktops), (left, more)) = (of_part(0), of_part(1));
    assert_eq!((hosts, left), (2, 1), "one has failed");
    assert!((1..20).contains(&desktops) && desktops < more && more <= 20, "{desktops} and {more}");
    let text = String::from_utf8(last.stdout).unwrap();
    assert!(text.contains("p95_ms <= 20"), "{text}");
}

#[test]
fn a_full_disk_is_said_and_what_was_written_is_kept() {
    let folder = place();
    write_sweep(folder.path(), 400);
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    // A file system of its own, that nobody else sees and that is gone with the process.
    let script = "mount -t tmpfs -o size=64k tmpfs out && \"$0\" sweep s.toml --out out; code=$?; \
        ls out; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_frontdesk")]).current_dir(folder.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    let said = told(&output);
    assert!(said.contains("No space left on device") && said.contains("run the sweep again"), "{said}");
    let listed = String::from_utf8(output.stdout).unwrap();
    assert!(listed.contains("rows-") && !listed.contains("unfinished"), "{listed}");
}

#[test]
fn what_makes_no_sense_is_refused_and_makes_no_folder() {
    let folder = place();
    for (grid, says) in [
        ("vm.cpu.cuont = [1]", "unknown field `cuont`"),
        ("policy.tavs.pb_ratio = [0.5, 2]", "policy.tavs.pb_ratio = 2: allowed is 0 to 1"),
    ] {
        let text = format!("scenario = \"scenarios/echo-mixed.toml\"\ngrid.{grid}");
        fs::write(folder.path().join("s.toml"), text).unwrap();
        let output = sweep(folder.path(), &["s.toml"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            told(&output).starts_with("frontdesk: s.toml: ") && told(&output).contains(says),
            "{}",
            told(&output)
        );
        assert!(!folder.path().join("s").exists());
    }
}
