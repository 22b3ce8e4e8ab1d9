//! The scenario file, from text to a checked value or an error that a person can act on.

mod bars;
mod checks;
mod disks;
mod entries;
mod errors;
mod studies;

use frontdesk_scenario::{
    Arm, Daemon, Experiment, LoadKind, LoadProfile, Overrides, Protocol, Scenario, ScenarioError, Storm,
    WorkloadKind,
};
use std::path::Path;
use std::time::Duration;

const FILE: &str = include_str!("../fixtures/echo-mixed.toml");
/// Every kind of workload, load, policy and check.
const EVERYTHING: &str = include_str!("../fixtures/everything.toml");

fn parse(text: &str, overrides: &Overrides) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, Path::new("echo-mixed.toml"), overrides)
}

fn set(assignments: &[&str]) -> Overrides {
    Overrides { set: assignments.iter().map(ToString::to_string).collect(), ..Overrides::default() }
}

fn arms(names: &[&str]) -> Overrides {
    Overrides { arms: names.iter().map(ToString::to_string).collect(), ..Overrides::default() }
}

/// Like `parse`, of the file with everything.
fn parse_everything(overrides: &Overrides) -> Result<Scenario, ScenarioError> {
    Scenario::parse(EVERYTHING, Path::new("everything.toml"), overrides)
}

/// The scenario with some assignments.
fn with(assignments: &[&str]) -> Scenario {
    parse(FILE, &set(assignments)).expect("the scenario is valid")
}

/// The error that some assignments give.
fn refused(assignments: &[&str]) -> String {
    parse(FILE, &set(assignments)).expect_err("the assignments are refused").to_string()
}

/// The error that an edit of the file gives.
fn edited(from: &str, to: &str) -> String {
    assert!(FILE.contains(from), "the file has no {from:?}");
    parse(&FILE.replacen(from, to, 1), &Overrides::default()).expect_err("the edit is refused").to_string()
}

/// What assignments to the file with everything give, for a table of them.
fn refusals(assignments: &[&str]) -> String {
    let refusals = assignments.iter().map(|assignment| {
        let error = parse_everything(&set(&[assignment])).expect_err(assignment).to_string();
        let place = format!(" with --set {assignment}: ");
        let message = error.split_once(&place).map_or(error.as_str(), |(_, message)| message);
        format!("{assignment}\n    {message}")
    });
    refusals.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_file_means_what_it_says() {
    let scenario = with(&[]);
    assert_eq!(scenario.name, "echo-mixed");
    assert_eq!(scenario.vm_names(), ["mixed", "cpu-1", "cpu-2", "cpu-3", "cpu-4", "cpu-5"]);
    assert!(scenario.arms.keys().eq(["stock", "observe", "frontdesk", "io-only"]));
    assert_eq!(scenario.arms["frontdesk"].daemon, Daemon::Act);
    let mixed = &scenario.vms[0];
    let echo = WorkloadKind::Echo { protocol: Protocol::Tcp, port: 7, cost: Duration::ZERO };
    assert_eq!(mixed.workloads[0].kind, echo);
    let io_only = &scenario.arms["io-only"];
    assert!(io_only.stops(mixed, &mixed.workloads[1]));
    assert!(!io_only.stops(mixed, &mixed.workloads[0]), "the echo goes on");
    assert!(!io_only.stops(&scenario.vms[1], &scenario.vms[1].workloads[0]), "the hogs of other VMs go on");
    let (name, load) = scenario.clients().next().unwrap();
    assert_eq!((name.as_str(), scenario.response_key("mixed", load)), ("mixed", "mixed".to_owned()));
    let LoadKind::Ask { think, .. } = load.kind else { panic!("it asks, unless it says otherwise") };
    assert_eq!(scenario.scaled_think(think), [Duration::from_millis(20), Duration::from_millis(200)]);
    assert_eq!(scenario.scaled_cost(Duration::from_millis(2)), Duration::from_millis(2));
    assert!(mixed.tracked && !mixed.debian && mixed.disk.is_none());
}

#[test]
fn every_kind_of_workload_and_load() {
    let scenario = parse_everything(&Overrides::default()).unwrap();
    let kinds = scenario.vms.iter().flat_map(|vm| &vm.workloads).map(|workload| workload.kind.clone());
    let program = |words: &[&str], repeat| WorkloadKind::Program {
        command: words.iter().map(ToString::to_string).collect(),
        repeat,
        cold: repeat,
    };
    let expected = [
        WorkloadKind::Echo { protocol: Protocol::Udp, port: 7, cost: Duration::from_micros(150) },
        WorkloadKind::Shift { port: 8, period: Duration::from_secs(2) },
        WorkloadKind::Sink { port: 7 },
        WorkloadKind::Hog,
        WorkloadKind::ReadFiles,
        WorkloadKind::ReadBurn { cost: Duration::from_millis(5) },
        WorkloadKind::Messages { tasks: 400, rounds: 100 },
        WorkloadKind::Churn,
        program(&["/usr/sbin/sshd", "-D"], false),
        program(&["make", "-C", "/usr/src/hello"], true),
        WorkloadKind::Storm { of: Storm::Packets },
        WorkloadKind::Storm { of: Storm::Tasks },
        WorkloadKind::Storm { of: Storm::Switches },
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    let millis = |millis: [u64; 2]| millis.map(Duration::from_millis);
    let ask = |port, think| LoadKind::Ask {
        protocol: Protocol::Udp,
        port,
        bytes: 40,
        think: millis(think),
        enter: false,
    };
    let kinds = scenario.loads.iter().map(|load| load.kind.clone());
    let expected = [
        ask(7, [10, 1000]),
        ask(8, [10, 10]),
        LoadKind::Bulk { port: 7 },
        LoadKind::Edit { think: millis([100, 300]) },
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    assert_eq!(scenario.scaled_cost(Duration::from_millis(5)), Duration::from_millis(30));
    let tracked = scenario.vms.iter().map(|vm| vm.tracked);
    assert!(tracked.eq([true, true, true, false]));
}

#[test]
fn answers_of_several_loads_are_told_apart() {
    let scenario = parse_everything(&Overrides::default()).unwrap();
    let clients = scenario.clients().filter(|(_, load)| load.kind.waits());
    let keys = clients.map(|(name, load)| scenario.response_key(&name, load));
    let expected = ["net-1/echo", "net-2/echo", "net-1/shift", "net-2/shift", "desk"];
    assert_eq!(keys.collect::<Vec<_>>(), expected);
    let target = |load: &LoadProfile| {
        let vm = scenario.vms.iter().find(|vm| vm.name == load.vm).unwrap();
        load.target(vm).unwrap().name.clone()
    };
    let targets = scenario.loads.iter().map(target);
    assert_eq!(targets.collect::<Vec<_>>(), ["echo", "shift", "sink", "sshd"]);
}

#[test]
fn an_arm_changes_what_its_policy_says() {
    let ratios = |assignments: &[&str]| {
        let scenario = parse_everything(&set(assignments)).unwrap();
        let ratio = |name: &str| scenario.policy_of(&scenario.arms[name]).tavs.pb_ratio;
        ["stock", "frontdesk", "pb-1-4", "watch"].map(ratio)
    };
    assert_eq!(ratios(&[]), [0.5, 0.5, 0.25, 0.5]);
    assert_eq!(ratios(&["policy.tavs.pb_ratio=1"]), [1.0, 1.0, 0.25, 1.0]);
    assert_eq!(ratios(&["arms.pb-1-4.policy.tavs.pb_ratio=0"]), [0.5, 0.5, 0.0, 0.5]);
    assert_eq!(ratios(&["arms.frontdesk.policy.tavs.pb_ratio=0"]), [0.5, 0.0, 0.25, 0.5]);

    let scenario = parse_everything(&Overrides::default()).unwrap();
    assert_eq!(scenario.arms["frontdesk"], Arm { daemon: Daemon::Act, ..Arm::default() });
    let watch = scenario.policy_of(&scenario.arms["watch"]);
    let mut expected = scenario.policy.clone();
    (expected.tavs.inspection_window, expected.tavs.correlation) = (1, false);
    expected.ledger.period = Duration::from_millis(20);
    assert_eq!(*watch, expected);
}

#[test]
fn errors_of_policies_are_where_they_belong() {
    let refused = |assignments: &[&str]| parse_everything(&set(assignments)).unwrap_err().to_string();
    insta::assert_snapshot!(refused(&["arms.pb-1-4.policy.tavs.pb_ratio=2"]), @"everything.toml:93 with --set arms.pb-1-4.policy.tavs.pb_ratio=2: arms.pb-1-4.policy.tavs.pb_ratio = 2: allowed is 0 to 1");
    insta::assert_snapshot!(refused(&["arms.watch.policy.tavs.pb_ration=1"]), @"everything.toml:98 with --set arms.watch.policy.tavs.pb_ration=1: arms.watch.policy.tavs.pb_ration: unknown field `pb_ration`, expected one of `io_threshold`, `positive_evidence`, `negative_evidence`, `belief_threshold`, `belief_min`, `belief_max`, `pb_ratio`, `boost_limit`, `pb_period`, `patience`, `max_boost`, `correlation`, `acknowledgements`, `idle`, `inspection_window`, `counter_bits`, `tasks_per_vcpu`, `time_slice` (did you mean `pb_ratio` or `pb_period` or `patience`?)");
    insta::assert_snapshot!(refused(&["arms.watch.policy.tavs=1"]), @"everything.toml:98 with --set arms.watch.policy.tavs=1: arms.watch.policy.tavs: invalid type: integer `1`, expected a table");
    insta::assert_snapshot!(refused(&["arms.watch.policy.ledger.horizon=10ms"]), @"everything.toml:99 with --set arms.watch.policy.ledger.horizon=10ms: arms.watch.policy.ledger.horizon = 10ms: allowed is at least ledger.period");
    insta::assert_snapshot!(refused(&["arms.watch.policy.tavs.belief_max=10"]), @"everything.toml:98: arms.watch.policy.tavs.belief_threshold = 20: allowed is between tavs.belief_min and tavs.belief_max");
    insta::assert_snapshot!(refused(&["arms.watch.daemon=off"]), @r#"everything.toml:98: arms.watch.policy = given: allowed is only in an arm with daemon = "observe" or "act""#);
    // The arms inherit these, but are not to blame.
    insta::assert_snapshot!(refused(&["policy.tavs.pb_ratio=2"]), @"everything.toml:103 with --set policy.tavs.pb_ratio=2: policy.tavs.pb_ratio = 2: allowed is 0 to 1");
    insta::assert_snapshot!(refused(&["policy.tavs.pb_ratio=half"]), @r#"everything.toml:103 with --set policy.tavs.pb_ratio=half: policy.tavs.pb_ratio: invalid type: string "half", expected a number"#);
    insta::assert_snapshot!(refused(&["policy=1"]), @"everything.toml:101 with --set policy=1: policy: invalid type: integer `1`, expected a table");
}

#[test]
fn nice_values_are_one_for_each_vcpu() {
    let nice = &parse_everything(&Overrides::default()).unwrap().arms["watch"].nice;
    assert_eq!((&nice["net"], &nice["desk"]), (&vec![5], &vec![0, 13]));
    insta::assert_snapshot!(refusals(&[
        "arms.watch.nice.desk=[13]",
        "arms.watch.nice.desk=[0, 20]",
        "arms.watch.nice.desc=[0, 13]",
        "arms.watch.nice.net=[300]",
    ]), @r#"
    arms.watch.nice.desk=[13]
        arms.watch.nice.desk = [13]: allowed is one value for each vCPU, of which desk has 2
    arms.watch.nice.desk=[0, 20]
        arms.watch.nice.desk.1 = 20: allowed is -20 to 19
    arms.watch.nice.desc=[0, 13]
        arms.watch.nice.desc = "desc": allowed is one of net, disk, desk, hostile
    arms.watch.nice.net=[300]
        arms.watch.nice.net.0: invalid value: integer `300`, expected i8
    "#);
}

#[test]
fn a_load_on_several_vms_has_a_client_for_each() {
    let scenario = with(&["vm.mixed.count=2"]);
    assert!(scenario.clients().map(|(name, _)| name).eq(["mixed-1", "mixed-2"]));
}

#[test]
fn what_is_written_reads_back() {
    let changed = with(&["vm.mixed.workloads.echo.cost=2ms", "policy.tavs.pb_ratio=0.25"]);
    for scenario in [changed, parse_everything(&Overrides::default()).unwrap()] {
        let text = toml::to_string(&scenario).unwrap();
        assert_eq!(parse(&text, &Overrides::default()).unwrap(), scenario);
    }
}

#[test]
fn assignments_reach_every_kind_of_key() {
    let scenario = with(&[
        "vm.cpu.count=8",
        "vm.0.memory_mib = 256",
        "vm.mixed.workloads.echo.protocol=udp",
        "load.0.protocol=udp",
        "load.0.think.1=2s",
        "policy.tavs.pb_ratio=0.25",
        "guest.kernel=6.12-cloud",
        "arms.io-only.stop=[]",
        "host.busy_cpus=[]",
    ]);
    assert_eq!(scenario.vms[1].count, 8);
    assert_eq!(scenario.vms[0].memory_mib, 256);
    let think = [Duration::from_millis(100), Duration::from_secs(2)];
    assert_eq!(
        scenario.loads[0].kind,
        LoadKind::Ask { protocol: Protocol::Udp, port: 7, bytes: 40, think, enter: false }
    );
    assert!((scenario.policy.tavs.pb_ratio - 0.25).abs() < 1e-9);
    assert_eq!(scenario.guest.kernel, "6.12-cloud");
    assert!(scenario.arms["io-only"].stop.is_empty());
    assert!(scenario.host.busy_cpus.is_empty());
}

#[test]
fn options_replace_keys() {
    let duration = Some(Duration::from_millis(2500));
    let overrides = Overrides { repeats: Some(1), duration, ..Overrides::default() };
    let scenario = parse(FILE, &overrides).unwrap();
    assert_eq!((scenario.repeats, scenario.duration), (1, Duration::from_millis(2500)));

    let overrides = Overrides { repeats: Some(0), ..Overrides::default() };
    let error = parse(FILE, &overrides).unwrap_err();
    insta::assert_snapshot!(error, @"echo-mixed.toml:14 with --repeats 0: repeats = 0: allowed is 1 to 1000");
}

#[test]
fn fewer_arms_drop_the_checks_that_need_others() {
    let scenario = parse(FILE, &arms(&["frontdesk", "stock"])).unwrap();
    assert!(scenario.arms.keys().eq(["frontdesk", "stock"]), "in the order that was asked for");
    let names = scenario.checks.compare.iter().map(|check| check.name.as_str());
    assert!(names.eq(["mean response, stock / frontdesk", "p99 response, stock / frontdesk"]));
    assert_eq!(scenario.validate(), Ok(()));

    let left = |names: &[&str]| {
        let scenario = parse_everything(&arms(names)).unwrap();
        assert_eq!(scenario.validate(), Ok(()));
        let checks = scenario.checks;
        let measures = checks.compare.iter().map(|check| format!("{:?}", check.measure).to_lowercase());
        (measures.collect::<Vec<_>>().join(" "), checks.gain.len(), checks.share_error.is_some())
    };
    let (all, gains, _) = left(&["stock", "frontdesk", "pb-1-4", "watch"]);
    assert_eq!(
        (all.as_str(), gains),
        ("mean p99 p50 p95 rate time pbhr follow wasted mean max share unanswered", 1)
    );
    assert_eq!(left(&["stock"]), ("p95".to_owned(), 0, false));
    assert_eq!(left(&["frontdesk"]), ("mean wasted".to_owned(), 0, true));
    let two = ("follow share unanswered".to_owned(), 0, true);
    assert_eq!(left(&["pb-1-4", "watch"]), two, "any arm that acts has shares");
    assert_eq!(left(&["stock", "frontdesk"]), ("mean p50 p95 rate time wasted mean max".to_owned(), 1, true));

    insta::assert_snapshot!(parse(FILE, &arms(&["stok"])).unwrap_err(), @"echo-mixed.toml: --arms stok: there is no such arm; allowed is one of stock, observe, frontdesk, io-only");
}

#[test]
fn what_fits_a_machine() {
    let scenario = with(&[]);
    // Six VMs of 128 MiB and QEMU's own memory.
    assert_eq!(scenario.fits(&[0, 1], 6 * 238), Ok(()));
    insta::assert_snapshot!(scenario.fits(&[0, 1], 6 * 238 - 1).unwrap_err(), @"vm.cpu.memory_mib = 128: allowed is what fits in 1189 MiB (of 1427 MiB available): 5 x (128 MiB + 110 MiB for QEMU) = 1190 MiB does not");
    insta::assert_snapshot!(scenario.fits(&[0], 8192).unwrap_err(), @"host.client_cpus = [1]: allowed is the CPUs of this machine, [0]");
}

#[test]
fn every_scenario_that_comes_with_frontdesk_is_valid() {
    fn load_all(folder: &Path) -> usize {
        let entries = std::fs::read_dir(folder).expect("the folder of scenarios").flatten();
        let load = |path: std::path::PathBuf| {
            // What is there names scenarios.
            if path.ends_with("sweeps") || path.ends_with("capacity") {
                return 0;
            }
            if path.is_dir() {
                return load_all(&path);
            }
            Experiment::load(&path, &Overrides::default()).expect("a valid scenario");
            1
        };
        entries.map(|entry| load(entry.path())).sum()
    }
    assert!(load_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")) > 0);
}
