//! A sweep: a scenario, and which sets of parameters it is run with.

use crate::cluster::{Cluster, DayPart};
use crate::columns::measures;
use crate::document::{
    Document, MOST_RUNS, OF_CLUSTER, Objective, Points, Wrong, flat, of_cluster, points, seeds,
};
use crate::error::SweepError;
use frontdesk_scenario::{Overrides, Scenario, WorkloadKind};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::Value;

/// A sweep: a scenario, and the sets of parameters to run it with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sweep {
    /// The sweep file.
    pub path: PathBuf,
    /// The scenario's name.
    pub scenario: String,
    /// The keys that are varied.
    pub keys: Vec<String>,
    /// The sets of parameters: a value for each key.
    pub points: Vec<Vec<Value>>,
    /// Where random numbers begin, one run of each set and arm for each.
    pub seeds: Vec<u64>,
    /// The arms.
    pub arms: Vec<String>,
    /// What the Pareto front is of: two, or none.
    pub pareto: Vec<Objective>,
    /// The cluster that the sets of parameters are of, and its day, if they are of one.
    pub(crate) cluster: Option<(Cluster, Vec<DayPart>)>,
    /// The scenario file, its text, and the keys that are set in all runs.
    scenario_path: PathBuf,
    scenario_text: String,
    set: Vec<String>,
    /// Texts of all files that the results follow from, by what they are.
    pub(crate) sources: BTreeMap<String, String>,
    /// The files that the scenario names, and what they are called among the sources.
    pub(crate) files: BTreeMap<PathBuf, String>,
    /// Where these files are instead, in a process that has only their texts.
    #[serde(skip)]
    pub(crate) placed: BTreeMap<PathBuf, PathBuf>,
}

/// A run of a sweep.
#[derive(Clone, Copy, Debug)]
pub struct SweepRun<'a> {
    /// Its number, from 0.
    pub number: usize,
    /// A value for each key.
    pub point: &'a [Value],
    /// Where random numbers begin.
    pub seed: u64,
    /// The arm.
    pub arm: &'a str,
}

impl Sweep {
    /// Reads a sweep file and its scenario, and checks the scenario with each set of parameters.
    ///
    /// # Errors
    /// A file cannot be read, the design makes no sense, or the scenario refuses a set of parameters: a key
    /// that it does not know, or a value out of its range.
    pub fn load(path: &Path) -> Result<Sweep, SweepError> {
        let text = read(path)?;
        let document: Document = toml::from_str(&text).map_err(|error| {
            let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
            let (line, message) = (before.matches('\n').count() + 1, error.message().trim_end().to_owned());
            SweepError::Syntax { path: path.to_owned(), line, message }
        })?;
        let scenario_path = path.parent().unwrap_or(Path::new("")).join(&document.scenario);
        let scenario_text = read(&scenario_path)?;
        let wrong = |(key, message): Wrong| SweepError::Key { path: path.to_owned(), key, message };
        let cluster = document.cluster.clone().map(|cluster| {
            let day = cluster.check().map(|()| cluster.day());
            day.map(|day| (cluster, day)).map_err(|(key, message)| wrong((format!("cluster.{key}"), message)))
        });
        let cluster = cluster.transpose()?;
        let mut design = points(&document).map_err(wrong)?;
        if let Some((cluster, day)) = &cluster {
            if !design.keys.is_empty() || !document.pareto.is_empty() {
                let message = "allowed is nothing else beside it: no grid, random, latin-hypercube or pareto";
                return Err(wrong(("cluster".to_owned(), message.to_owned())));
            }
            design = of_cluster(cluster, day);
            if design.points.is_empty() {
                let message = "nobody is in use on any host in any part of the day: there is nothing to run";
                return Err(wrong(("cluster.in-use".to_owned(), message.to_owned())));
            }
            // Each is parsed below, of which there must be an end.
            if design.points.len() > MOST_RUNS {
                let message =
                    format!("that makes {} runs or more: allowed are up to {MOST_RUNS}", design.points.len());
                return Err(wrong(("cluster".to_owned(), message)));
            }
        }
        let Points { keys, points } = design;
        let set = flat(&document.set, |_| false).into_iter().map(|(key, value)| format!("{key}={value}"));
        let mut sweep = Sweep {
            path: path.to_owned(),
            scenario: String::new(),
            keys,
            points,
            seeds: seeds(document.seeds.as_ref()).map_err(|message| wrong(("seeds".to_owned(), message)))?,
            arms: document.arms,
            pareto: document.pareto,
            cluster,
            scenario_path,
            set: set.collect(),
            sources: BTreeMap::from([
                ("sweep".to_owned(), text),
                ("scenario".to_owned(), scenario_text.clone()),
            ]),
            scenario_text,
            files: BTreeMap::new(),
            placed: BTreeMap::new(),
        };
        sweep.check().map_err(wrong)?;
        let folder = sweep.scenario_path.parent().unwrap_or(Path::new("")).to_owned();
        sweep.check_mix()?;
        for point in 0..sweep.points.len() {
            let mut scenario = sweep.scenario_with(&sweep.points[point], sweep.arms.clone())?;
            for file in files(&mut scenario) {
                let name = file.strip_prefix(&folder).unwrap_or(file).display().to_string();
                sweep.sources.insert(name.clone(), read(file)?);
                sweep.files.insert(file.clone(), name);
            }
            if point == 0 {
                let vms = scenario.vm_names();
                let is_vm = |of: &Objective| {
                    of.of.split('/').next().is_some_and(|vm| vms.iter().any(|own| own == vm))
                };
                if let Some(unknown) = sweep.pareto.iter().find(|of| !is_vm(of)) {
                    let message =
                        format!("there is no VM {:?}; allowed is one of {}", unknown.of, vms.join(", "));
                    return Err(wrong(("pareto.of".to_owned(), message)));
                }
                sweep.arms = scenario.arms.keys().cloned().collect();
                sweep.scenario = scenario.name;
            }
        }
        let runs = sweep.runs();
        if runs > MOST_RUNS {
            let message = format!("that makes {runs} runs: allowed are up to {MOST_RUNS}");
            return Err(wrong(("points, seeds and arms".to_owned(), message)));
        }
        Ok(sweep)
    }

    /// The desktops of a cluster are VMs in which somebody waits for one thing: the response times of a VM.
    fn check_mix(&self) -> Result<(), SweepError> {
        let Some((cluster, _)) = &self.cluster else { return Ok(()) };
        let overrides = Overrides { set: self.set.clone(), ..Overrides::default() };
        let scenario = Scenario::parse(&self.scenario_text, &self.scenario_path, &overrides);
        let scenario = scenario
            .map_err(|source| SweepError::Scenario { path: self.path.clone(), source: Box::new(source) })?;
        for kind in cluster.mix.keys() {
            let waited_for =
                scenario.loads.iter().filter(|load| load.vm == *kind && load.kind.waits()).count();
            let message = if !scenario.vms.iter().any(|vm| vm.name == *kind) {
                let names: Vec<&str> = scenario.vms.iter().map(|vm| vm.name.as_str()).collect();
                format!("there is no such VM; allowed is one of {}", names.join(", "))
            } else if waited_for != 1 {
                format!(
                    "{waited_for} of its [[load]] are waited for; allowed is one, whose response times count"
                )
            } else {
                continue;
            };
            return Err(SweepError::Key {
                path: self.path.clone(),
                key: format!("cluster.mix.{kind}"),
                message,
            });
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Wrong> {
        if self.keys.iter().any(|key| key == "repeats")
            || self.set.iter().any(|set| set.starts_with("repeats="))
        {
            let message = "a sweep has a run for each of its seeds instead: give more of these";
            return Err(("repeats".to_owned(), message.to_owned()));
        }
        if ![0, 2].contains(&self.pareto.len()) {
            return Err(("pareto".to_owned(), "allowed are two entries, or none".to_owned()));
        }
        if let Some(wrong) = self.pareto.iter().find(|of| measures().all(|known| known != of.measure)) {
            let known = measures().collect::<Vec<_>>().join(", ");
            let message = format!("{:?} is no measure; allowed is one of {known}", wrong.measure);
            return Err(("pareto.measure".to_owned(), message));
        }
        Ok(())
    }

    /// How many runs it has.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.points.len().saturating_mul(self.seeds.len()).saturating_mul(self.arms.len().max(1))
    }

    /// A run by its number: all arms of a seed follow each other, and all seeds of a set of parameters. In a
    /// cluster each set of parameters has seeds of its own, for hosts are no copies of each other.
    #[must_use]
    pub fn run(&self, number: usize) -> Option<SweepRun<'_>> {
        let (rest, arm) = (number / self.arms.len(), number % self.arms.len());
        let (point, seed) = (rest / self.seeds.len(), rest % self.seeds.len());
        let (most, least) = (self.seeds.iter().max()?, self.seeds.iter().min()?);
        let own = if self.cluster.is_some() { (most - least + 1).wrapping_mul(point as u64) } else { 0 };
        let (point, seed) = (self.points.get(point)?, self.seeds[seed].wrapping_add(own));
        Some(SweepRun { number, point, seed, arm: &self.arms[arm] })
    }

    /// The scenario of a run.
    ///
    /// # Errors
    /// The scenario refuses its parameters.
    pub(crate) fn scenario_of(&self, run: SweepRun<'_>) -> Result<Scenario, SweepError> {
        let mut scenario = self.scenario_with(run.point, vec![run.arm.to_owned()])?;
        for file in files(&mut scenario) {
            if let Some(placed) = self.placed.get(file) {
                file.clone_from(placed);
            }
        }
        Ok(scenario)
    }

    /// A message with the names that files have where the sweep was read.
    pub(crate) fn as_named(&self, message: String) -> String {
        let shown = |path: &Path| path.display().to_string();
        self.placed
            .iter()
            .fold(message, |message, (name, placed)| message.replace(&shown(placed), &shown(name)))
    }

    /// What a cluster's scenario has in the part of the day that a set of parameters is of.
    fn changed(&self, point: &[Value]) -> Vec<(String, &Value)> {
        let part = self.keys.iter().zip(point).find(|(key, _)| *key == OF_CLUSTER[0]);
        let part = part.and_then(|(_, part)| usize::try_from(part.as_integer()?).ok());
        let (Some((cluster, _)), Some(part)) = (&self.cluster, part) else { return Vec::new() };
        let changes = cluster.changes.iter().filter(|change| change.holds(part));
        changes.flat_map(|change| flat(&change.set, |_| false)).collect()
    }

    fn scenario_with(&self, point: &[Value], arms: Vec<String>) -> Result<Scenario, SweepError> {
        let of_scenario = |(key, _): &(&String, &Value)| !OF_CLUSTER.contains(&key.as_str());
        let changed = self.changed(point);
        let changed = changed.iter().map(|(key, value)| (key, *value));
        // A change may be changed by another one, and counts of desktops by none.
        let own: IndexMap<&String, &Value> =
            changed.chain(self.keys.iter().zip(point).filter(of_scenario)).collect();
        // Of desktops of a kind, or of VMs at this time of the day, there may be none.
        let is_none = |(key, value): &(&String, &Value)| {
            self.cluster.is_some()
                && **value == Value::Integer(0)
                && key.starts_with("vm.")
                && key.ends_with(".count")
        };
        let (none, own): (Vec<_>, Vec<_>) = own.into_iter().partition(is_none);
        let own = own.into_iter().map(|(key, value)| format!("{key}={value}"));
        let set = self.set.iter().cloned().chain(own).collect();
        let overrides = Overrides { set, repeats: Some(1), duration: None, arms };
        let parsed = Scenario::parse(&self.scenario_text, &self.scenario_path, &overrides);
        let mut scenario = parsed
            .map_err(|source| SweepError::Scenario { path: self.path.clone(), source: Box::new(source) })?;
        for kind in none.into_iter().filter_map(|(key, _)| key.strip_prefix("vm.")?.strip_suffix(".count")) {
            if !scenario.vms.iter().any(|vm| vm.name == kind) {
                let names: Vec<&str> = scenario.vms.iter().map(|vm| vm.name.as_str()).collect();
                let message =
                    format!("there is no VM {kind:?}; allowed is a count of one of {}", names.join(", "));
                return Err(SweepError::Key {
                    path: self.path.clone(),
                    key: "cluster.change.set".to_owned(),
                    message,
                });
            }
            scenario.remove_vm(kind);
        }
        Ok(scenario)
    }
}

/// The files that a scenario names.
fn files(scenario: &mut Scenario) -> impl Iterator<Item = &mut PathBuf> {
    let workloads = scenario.vms.iter_mut().flat_map(|vm| &mut vm.workloads);
    workloads.filter_map(|workload| match &mut workload.kind {
        WorkloadKind::RtApp { file } => Some(file),
        _ => None,
    })
}

fn read(path: &Path) -> Result<String, SweepError> {
    std::fs::read_to_string(path).map_err(|source| SweepError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads a sweep over the repository's example.
    fn load(text: &str) -> Result<Sweep, SweepError> {
        let folder = tempfile::tempdir().unwrap();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/echo-mixed.toml");
        std::fs::copy(example, folder.path().join("echo-mixed.toml")).unwrap();
        let path = folder.path().join("sweep.toml");
        std::fs::write(&path, format!("scenario = \"echo-mixed.toml\"\n{text}")).unwrap();
        Sweep::load(&path)
    }

    #[test]
    fn each_value_is_combined_with_each_other_point_and_each_run_has_a_number() {
        let sweep = load(
            "seeds = [5, 7]
            arms = [\"frontdesk\", \"stock\"]
            grid.vm.cpu.count = [1, 3]
            [latin-hypercube]
            points = 4
            [latin-hypercube.ranges]
            \"policy.tavs.pb_ratio\" = { from = 0.1, to = 0.5 }
            policy.tavs.io_threshold = { from = \"100us\", to = \"10ms\", scale = \"log\" }",
        );
        let sweep = sweep.unwrap();
        assert_eq!(sweep.keys, ["vm.cpu.count", "policy.tavs.pb_ratio", "policy.tavs.io_threshold"]);
        assert_eq!((sweep.points.len(), sweep.runs(), sweep.scenario.as_str()), (8, 32, "echo-mixed"));
        let runs: Vec<_> = (0..sweep.runs()).map(|number| sweep.run(number).unwrap()).collect();
        assert!(sweep.run(32).is_none());
        assert_eq!((runs[0].seed, runs[0].arm), (5, "frontdesk"));
        assert_eq!((runs[1].seed, runs[1].arm), (5, "stock"));
        assert_eq!((runs[2].seed, runs[2].arm), (7, "frontdesk"));
        assert_eq!(runs[3].point, runs[0].point);
        assert_ne!(runs[4].point, runs[0].point);
        assert_eq!(runs[31].point[0], Value::Integer(3));
        let scenario = sweep.scenario_of(runs[31]).unwrap();
        assert_eq!((scenario.vm_names().len(), scenario.repeats), (4, 1));
        assert_eq!(scenario.arms.keys().collect::<Vec<_>>(), ["stock"]);
    }

    const CLUSTER: &str = "[cluster]
        desktops = 5
        hosts = 3
        room = 3
        placement = \"fill\"
        mix = { mixed = 1 }
        in-use = [1.0, 0.0, 1.0]
        limit = { measure = \"p95_ms\", most = 10.0 }
        failure = [{ hosts = 3, from = 2 }]";

    #[test]
    fn a_cluster_has_a_run_for_each_host_in_each_part_of_the_day() {
        let sweep = load(&format!("seeds = [5, 7]\narms = [\"stock\"]\n{CLUSTER}")).unwrap();
        assert_eq!(sweep.keys, ["cluster.part", "cluster.host", "vm.mixed.count"]);
        // Nobody is there in the second part, and no host in the third.
        let whole = |numbers: [i64; 3]| numbers.map(Value::Integer).to_vec();
        assert_eq!(sweep.points, [whole([0, 0, 3]), whole([0, 1, 2])]);
        let runs: Vec<_> = (0..sweep.runs()).map(|number| sweep.run(number).unwrap().seed).collect();
        assert_eq!(runs, [5, 7, 8, 10], "each host has its own");
        let scenario = sweep.scenario_of(sweep.run(2).unwrap()).unwrap();
        assert_eq!(scenario.vm_names()[..2], ["mixed-1", "mixed-2"]);
        assert!(sweep.cluster.unwrap().1[2].homeless == 5);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_key_before_anything_runs() {
        let pareto = |measure: &str, of: &str| {
            let entry = format!("{{ measure = {measure:?}, of = {of:?}, goal = \"least\" }}");
            format!("pareto = [{entry}, {entry}]")
        };
        let drawn = "[random]\npoints = 3\n[random.ranges]\n";
        for (text, says) in [
            ("grid.vm.cpu.cuont = [1]".to_owned(), "vm.cpu.cuont: unknown field `cuont`"),
            ("grid.vm.cpu.count = [1, 65]".to_owned(), "vm.cpu.count = 65: allowed is 1 to 64"),
            ("grid.policy.tavs.pb_ratio = 0.5".to_owned(), "grid.policy.tavs.pb_ratio: allowed is a list"),
            (format!("{drawn}policy.tavs.pb_ratio = {{ from = 0.5, to = 9.0 }}"), "allowed is 0 to 1"),
            (
                format!("{drawn}vm.cpu.count = {{ from = 3, to = 1 }}"),
                "random.ranges.vm.cpu.count: from is below",
            ),
            (
                format!("grid.vm.cpu.count = [1]\n{drawn}vm.cpu.count = {{ from = 1, to = 3 }}"),
                "varied twice",
            ),
            ("[random]\npoints = 0\nranges = {}".to_owned(), "random.points: allowed is 1"),
            ("set.repeats = 3".to_owned(), "repeats: a sweep has a run for each of its seeds"),
            ("seeds = [1, 1]".to_owned(), "seeds: allowed is how many"),
            ("seeds = 0".to_owned(), "seeds: allowed is how many"),
            ("arms = [\"stok\"]".to_owned(), "there is no such arm"),
            ("\nseads = 3".to_owned(), "sweep.toml:3: unknown field `seads`"),
            (CLUSTER.replace("hosts = 3", "hosts = 0"), "cluster.hosts: 0: allowed is 1 to 10000"),
            (CLUSTER.replace("[1.0, 0.0, 1.0]", "[0.0, 0.0, 0.0]"), "cluster.in-use: nobody is in use"),
            (CLUSTER.replace("mixed", "cpu"), "cluster.mix.cpu: 0 of its [[load]] are waited for"),
            (
                CLUSTER.replace("mixed", "desk"),
                "cluster.mix.desk: there is no such VM; allowed is one of mixed",
            ),
            (format!("set = {{ duraton = \"1s\" }}\n{CLUSTER}"), "unknown field `duraton`"),
            (format!("grid.vm.cpu.count = [1]\n{CLUSTER}"), "cluster: allowed is nothing else beside it"),
            ("seeds = 50_000".to_owned(), "250000 runs: allowed are up to 100000"),
            (
                pareto("p99", "mixed"),
                "pareto.measure: \"p99\" is no measure; allowed is one of requests, mean_ms",
            ),
            (pareto("p99_ms", "mixd"), "pareto.of: there is no VM \"mixd\"; allowed is one of mixed, cpu-1"),
            (
                "pareto = [{ measure = \"p99_ms\", of = \"mixed\", goal = \"least\" }]".to_owned(),
                "two entries",
            ),
        ] {
            let error = load(&text).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("sweep.toml"), "{text}: {error}");
        }
    }
}
