//! Sweeps into folders: the same rows whatever happens in between, and what is refused.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_sweep::{Ended, Folder, Progress, Sweep, SweepError, Workers, run};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

/// A folder with a sweep file, a scenario, and room for results.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// With the repository's example, and a sweep over it.
    fn new(design: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(scenarios().join("echo-mixed.toml"), folder.path().join("echo-mixed.toml")).unwrap();
        let place = Place { folder };
        place.write("sweep.toml", &format!("scenario = \"echo-mixed.toml\"\n{design}"));
        place
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn sweep(&self) -> Arc<Sweep> {
        Arc::new(Sweep::load(&self.folder.path().join("sweep.toml")).unwrap())
    }

    fn out(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, name: &str) -> Result<Folder, SweepError> {
        Folder::open(&self.out(name), &self.sweep())
    }

    /// Stops it after the first run. Returns the file with the rows, and what is missing.
    fn begin(&self, name: &str) -> (PathBuf, Vec<usize>) {
        let mut folder = self.open(name).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stop_now = |Progress { done, .. }| stop.store(done > 0, Ordering::Relaxed);
        let ended = run(&self.sweep(), &mut folder, Workers::Threads(1), &stop, &stop_now).unwrap();
        assert_eq!(ended, Ended::Stopped);
        let names = names(&self.out(name));
        let part = names.iter().find(|name| name.starts_with("rows-")).unwrap();
        (self.out(name).join(part), folder.missing())
    }

    /// Runs it to its end, and reads the file with all rows.
    fn finish(&self, name: &str, threads: usize) -> Vec<u8> {
        let sweep = self.sweep();
        let mut folder = Folder::open(&self.out(name), &sweep).unwrap();
        let ended = run(&sweep, &mut folder, Workers::Threads(threads), &Arc::default(), &|_| {}).unwrap();
        assert_eq!((ended, folder.missing()), (Ended::Finished, Vec::new()));
        fs::read(folder.file()).unwrap()
    }
}

/// Sixteen runs.
const DESIGN: &str = "
    arms = [\"stock\", \"frontdesk\"]
    seeds = [7, 3]
    set = { duration = \"1s\", warmup = \"1s\" }
    [grid]
    vm.cpu.count = [1, 2]
    [random]
    points = 2
    ranges.policy.tavs.io_threshold = { from = \"100us\", to = \"10ms\", scale = \"log\" }
";

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn rows_are_the_same_on_any_number_of_threads_and_however_often_it_was_stopped() {
    let place = Place::new(DESIGN);
    let one = place.finish("one", 1);
    assert_eq!(one, place.finish("three", 3));
    assert_eq!(names(&place.out("one")), ["lock", "rows.parquet", "sweep.json"]);
    let sweep = place.sweep();
    let mut stops = 0;
    loop {
        let mut folder = place.open("stopped").unwrap();
        let before = folder.missing().len();
        let stop = Arc::new(AtomicBool::new(false));
        let started = Cell::new(0);
        let ended = run(
            &sweep,
            &mut folder,
            Workers::Threads(1),
            &stop,
            &|Progress { done, total, left, .. }| {
                let own = done + before - total;
                // Runs of earlier times say nothing of how long others take.
                assert_eq!(left.is_some(), own > 0, "{own} of {before}, and {left:?} left");
                assert_eq!(
                    left == Some(Duration::ZERO),
                    done == total,
                    "{done} of {total}, and {left:?} left"
                );
                started.set(started.get().max(own));
                stop.store(started.get() >= 3, Ordering::Relaxed);
            },
        );
        let all = folder.missing().is_empty();
        assert_eq!(ended.unwrap(), if all { Ended::Finished } else { Ended::Stopped });
        if all {
            break;
        }
        stops += 1;
        let kept = before - folder.missing().len();
        assert!(kept >= 3, "{kept} runs are kept of three or more that were done");
    }
    assert!(stops >= 2, "it was stopped {stops} times");
    assert_eq!(one, fs::read(place.out("stopped/rows.parquet")).unwrap());
    let folder = place.open("stopped").unwrap();
    let parameters: Vec<&str> =
        folder.layout().varied().map(|column| folder.layout().columns[column].0.as_str()).collect();
    assert_eq!(parameters, ["vm.cpu.count", "policy.tavs.io_threshold_s"]);
    assert_eq!((folder.failures(), folder.missing().len()), (0, 0));
}

#[test]
fn what_is_damaged_is_computed_again_and_nothing_else() {
    let place = Place::new(DESIGN);
    let sweep = place.sweep();
    // It ends with two files or more: one after the first run, and the rest.
    let (part, left) = place.begin("out");
    let whole = fs::read(&part).unwrap();
    place.write("out/rows-000009.parquet.unfinished", "half");
    // Whole, it is not computed again.
    assert_eq!(place.open("out").unwrap().missing(), left);
    assert!(!place.out("out/rows-000009.parquet.unfinished").exists());
    fs::write(&part, &whole[..whole.len() / 2]).unwrap();
    let folder = place.open("out").unwrap();
    assert_eq!(folder.damaged, std::slice::from_ref(&part));
    assert_eq!(folder.missing().len(), sweep.runs());
    drop(folder);
    let rows = place.finish("out", 2);
    assert_eq!(rows, place.finish("other", 2));
    // The file with all rows is cut, at its end or nearly whole.
    for length in [rows.len() - 1, rows.len() / 2, 0] {
        fs::write(place.out("out/rows.parquet"), &rows[..length]).unwrap();
        let folder = place.open("out").unwrap();
        assert_eq!(folder.damaged, [place.out("out/rows.parquet")], "{length} bytes");
        assert_eq!((folder.rows().len(), folder.missing().len()), (0, sweep.runs()), "{length} bytes");
    }
    assert_eq!(place.finish("out", 2), rows);
    // As if it was killed when all rows were in one file, and before the parts were gone.
    fs::write(&part, &whole).unwrap();
    assert_eq!(place.finish("out", 2), rows);
    assert!(!part.exists());
}

#[test]
fn a_folder_is_for_one_sweep_and_one_writer() {
    let place = Place::new(DESIGN);
    let first = place.open("out").unwrap();
    let error = place.open("out").unwrap_err().to_string();
    assert!(
        error.contains(&format!("(process {})", std::process::id())) && error.contains("--out"),
        "{error}"
    );
    drop(first);
    place.open("out").unwrap();
    for changed in ["sweep.toml", "echo-mixed.toml"] {
        let path = place.out(changed);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n# Something else.\n")).unwrap();
        let error = place.open("out").unwrap_err().to_string();
        assert!(error.contains("results of another sweep") && error.contains("remove this one"), "{error}");
        fs::write(&path, text).unwrap();
        place.open("out").unwrap();
    }
    fs::create_dir(place.out("mine")).unwrap();
    place.write("mine/letter.txt", "Dear");
    let error = place.open("mine").unwrap_err().to_string();
    assert!(error.contains("but no results of a sweep"), "{error}");
    assert_eq!(names(&place.out("mine")), ["letter.txt"]);
}

#[test]
fn rows_of_two_builds_are_not_mixed() {
    let place = Place::new(DESIGN);
    let rows = place.finish("out", 2);
    let origin = place.out("out").join("sweep.json");
    let own = fs::read_to_string(&origin).unwrap();
    let older = own.replacen("\"built\": \"", "\"built\": \"0.0.1 of ", 1);
    assert_ne!(older, own);
    // All of them are of one build.
    fs::write(&origin, &older).unwrap();
    assert_eq!(place.finish("out", 2), rows);
    assert_eq!(fs::read_to_string(&origin).unwrap(), older);
    // Some are.
    let (part, _) = place.begin("part");
    fs::write(place.out("part/sweep.json"), &older).unwrap();
    let error = place.open("part").unwrap_err().to_string();
    assert!(error.contains("another build of frontdesk, 0.0.1 of ") && error.contains("--out"), "{error}");
    assert!(part.exists());
    // None is.
    fs::remove_file(part).unwrap();
    assert_eq!(place.finish("part", 2), rows);
    assert_eq!(fs::read_to_string(place.out("part/sweep.json")).unwrap(), own);
}

/// A task that nobody wakes.
const FORGOTTEN: &str = r#"{ "tasks": { "t": { "run": 100, "suspend": "t" } } }"#;

#[test]
fn a_run_that_fails_is_a_row_with_its_error() {
    let place = Place::new(
        "arms = [\"stock\"]
        set = { duration = \"1s\", warmup = \"1s\" }
        [grid]
        vm.cpu.workloads = [
            [{ name = \"t\", run = \"rt-app\", file = \"t.json\" }],
            [{ name = \"t\", run = \"hog\" }],
        ]",
    );
    place.write("t.json", FORGOTTEN);
    let rows = place.finish("out", 2);
    let folder = place.open("out").unwrap();
    let column = |name| folder.layout().column(name).unwrap();
    let errors: Vec<&str> = folder.rows().iter().filter_map(|row| row[column("error")].text()).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("waits for resumption of t"), "{errors:?}");
    assert!(
        folder.rows().iter().any(|row| row[column("mean_ms")].number().is_some()),
        "the other one has numbers"
    );
    assert_eq!((folder.failures(), folder.missing().len()), (1, 0));
    drop(folder);
    assert_eq!(rows, place.finish("again", 1));
}

/// The first runs of each, a second of them: of the whole sweep there may be thousands.
#[test]
fn sweeps_that_come_with_frontdesk_can_be_run() {
    let short = toml::Table::from_iter(["duration", "warmup"].map(|key| (key.to_owned(), "1s".into())));
    let mut runs = 0;
    for entry in fs::read_dir(scenarios().join("sweeps")).unwrap() {
        let path = entry.unwrap().path();
        let place = Place { folder: tempfile::tempdir().unwrap() };
        let mut text: toml::Table = toml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let scenario = path.with_file_name(text["scenario"].as_str().unwrap());
        text.insert("scenario".to_owned(), scenario.to_str().unwrap().into());
        let set = text.entry("set").or_insert_with(|| toml::Table::new().into()).as_table_mut().unwrap();
        set.extend(short.clone());
        place.write("sweep.toml", &toml::to_string(&text).unwrap());
        let sweep = place.sweep();
        runs += sweep.runs();
        let mut folder = place.open("out").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let enough = |Progress { done, .. }| stop.store(done > 0, Ordering::Relaxed);
        run(&sweep, &mut folder, Workers::Threads(1), &stop, &enough).unwrap();
        let name = path.display();
        assert!(!folder.rows().is_empty() && folder.failures() == 0, "{name}: {:?}", folder.rows());
        let vms = folder.layout().column("vm").unwrap();
        assert!(folder.rows().iter().all(|row| row[vms].text().is_some()), "{name}");
    }
    assert!(runs > 9_000, "{runs} in all");
}

/// Two hosts, each with one desktop that is in use all day, of three parts.
const CLUSTER: &str = "
    arms = [\"stock\"]
    set = { duration = \"2s\", warmup = \"1s\" }
    [cluster]
    desktops = 2
    hosts = 2
    room = 1
    placement = \"spread\"
    mix = { mixed = 1 }
    in-use = [1.0, 1.0, 1.0]
    limit = { measure = \"p95_ms\", most = 20.0 }
";

#[test]
fn a_cluster_has_other_vms_in_other_parts_of_the_day() {
    let without = "
        [[cluster.change]]
        from = 0
        to = 3
        set.vm.cpu.count = 1
        [[cluster.change]]
        from = 2
        to = 1
        set.vm.cpu.count = 0
    ";
    let place = Place::new(&format!("{CLUSTER}{without}"));
    place.finish("out", 2);
    let folder = place.open("out").unwrap();
    let column = |name| folder.layout().column(name).unwrap();
    let (part, vm) = (column("cluster.part"), column("vm"));
    let rows = folder.rows().iter().map(|row| (row[part].clone(), row[vm].text().unwrap()));
    let has =
        |of, name| rows.clone().any(|(part, vm)| part == frontdesk_sweep::Cell::Whole(of) && vm == name);
    assert_eq!([0, 1, 2].map(|part| has(part, "mixed")), [true; 3]);
    assert_eq!([0, 1, 2].map(|part| has(part, "cpu")), [false, true, false]);
}

#[test]
fn a_change_of_what_is_not_there_is_refused() {
    for (set, says) in [
        ("set.vm.cup.count = 0", "there is no VM \"cup\"; allowed is a count of one of mixed, cpu"),
        ("set.vm.cup.count = 1", "cup"),
        ("set.duraton = \"1s\"", "duraton"),
    ] {
        let change = format!("[[cluster.change]]\nfrom = 1\nto = 2\n{set}");
        let place = Place::new(&format!("{CLUSTER}{change}"));
        let error = Sweep::load(&place.out("sweep.toml")).unwrap_err();
        let said = format!("{error}: {:?}", std::error::Error::source(&error));
        assert!(said.contains(says), "{said}");
    }
}
