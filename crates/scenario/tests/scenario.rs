//! The scenario file, from text to a checked value or an error that a person can act on.

use frontdesk_engine::Protocol;
use frontdesk_scenario::{
    Arm, Daemon, LoadKind, LoadProfile, Overrides, Scenario, ScenarioError, Storm, WorkloadKind,
};
use std::path::Path;
use std::time::Duration;

const FILE: &str = include_str!("fixtures/echo-mixed.toml");
/// Every kind of workload, load, policy and check.
const EVERYTHING: &str = include_str!("fixtures/everything.toml");

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
    let ask = |port, think| LoadKind::Ask { protocol: Protocol::Udp, port, bytes: 40, think: millis(think) };
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
        vm.target(load).unwrap().name.clone()
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
    insta::assert_snapshot!(refused(&["arms.watch.policy.tavs.pb_ration=1"]), @"everything.toml:97 with --set arms.watch.policy.tavs.pb_ration=1: arms.watch.policy.tavs.pb_ration: unknown field `pb_ration`, expected one of `io_threshold`, `positive_evidence`, `negative_evidence`, `belief_threshold`, `belief_min`, `belief_max`, `pb_ratio`, `boost_limit`, `pb_period`, `max_boost`, `correlation`, `inspection_window`, `counter_bits`, `tasks_per_vcpu`, `time_slice`");
    insta::assert_snapshot!(refused(&["arms.watch.policy.tavs=1"]), @"everything.toml:97 with --set arms.watch.policy.tavs=1: arms.watch.policy.tavs: invalid type: integer `1`, expected a table");
    insta::assert_snapshot!(refused(&["arms.watch.policy.ledger.horizon=10ms"]), @"everything.toml:98 with --set arms.watch.policy.ledger.horizon=10ms: arms.watch.policy.ledger.horizon = 10ms: allowed is at least ledger.period");
    insta::assert_snapshot!(refused(&["arms.watch.policy.tavs.belief_max=10"]), @"everything.toml:97: arms.watch.policy.tavs.belief_threshold = 20: allowed is between tavs.belief_min and tavs.belief_max");
    insta::assert_snapshot!(refused(&["arms.watch.daemon=off"]), @r#"everything.toml:97: arms.watch.policy = given: allowed is only in an arm with daemon = "observe" or "act""#);
    // The arms inherit these, but are not to blame.
    insta::assert_snapshot!(refused(&["policy.tavs.pb_ratio=2"]), @"everything.toml:102 with --set policy.tavs.pb_ratio=2: policy.tavs.pb_ratio = 2: allowed is 0 to 1");
    insta::assert_snapshot!(refused(&["policy.tavs.pb_ratio=half"]), @r#"everything.toml:102 with --set policy.tavs.pb_ratio=half: policy.tavs.pb_ratio: invalid type: string "half", expected a number"#);
    insta::assert_snapshot!(refused(&["policy=1"]), @"everything.toml:100 with --set policy=1: policy: invalid type: integer `1`, expected a table");
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
    assert_eq!(scenario.loads[0].kind, LoadKind::Ask { protocol: Protocol::Udp, port: 7, bytes: 40, think });
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
    insta::assert_snapshot!(error, @"echo-mixed.toml:13 with --repeats 0: repeats = 0: allowed is 1 to 100");
}

#[test]
fn fewer_arms_drop_the_checks_that_need_others() {
    let scenario = parse(FILE, &arms(&["frontdesk", "stock"])).unwrap();
    assert!(scenario.arms.keys().eq(["stock", "frontdesk"]), "in the order of the file");
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
    assert_eq!((all.as_str(), gains), ("mean p99 p50 p95 rate time pbhr follow wasted", 1));
    assert_eq!(left(&["stock"]), ("p95".to_owned(), 0, false));
    assert_eq!(left(&["frontdesk"]), ("mean wasted".to_owned(), 0, true));
    assert_eq!(left(&["pb-1-4", "watch"]), ("follow".to_owned(), 0, true), "any arm that acts has shares");
    assert_eq!(left(&["stock", "frontdesk"]), ("mean p50 p95 rate time wasted".to_owned(), 1, true));

    insta::assert_snapshot!(parse(FILE, &arms(&["stok"])).unwrap_err(), @"echo-mixed.toml: --arms stok: there is no such arm; allowed is one of stock, observe, frontdesk, io-only");
}

#[test]
fn a_file_that_is_not_there() {
    let error = Scenario::load(Path::new("no-such.toml"), &Overrides::default()).unwrap_err();
    insta::assert_snapshot!(error, @"can not read the scenario no-such.toml");
}

#[test]
fn errors_of_syntax_point_to_the_line() {
    insta::assert_snapshot!(edited("repeats = 3", "repeats = "), @"echo-mixed.toml:13: not valid TOML: string values must be quoted, expected literal string");
    insta::assert_snapshot!(edited("repeats = 3", "name = \"again\""), @"echo-mixed.toml:13: not valid TOML: duplicate key");
}

#[test]
fn errors_of_keys_name_what_exists() {
    insta::assert_snapshot!(edited("count = 5", "cuont = 5"), @"echo-mixed.toml:45: vm.cpu.cuont: unknown field `cuont`, expected one of `name`, `count`, `vcpus`, `memory_mib`, `weight`, `disk`, `debian`, `tracked`, `workloads`");
    insta::assert_snapshot!(edited("repeats = 3\n", ""), @"echo-mixed.toml:1: missing field `repeats`");
    insta::assert_snapshot!(edited("port = 7 }", "prot = 7 }"), @"echo-mixed.toml:38: vm.mixed.workloads.echo.prot: unknown field `prot`, expected one of `name`, `run`, `protocol`, `port`, `cost`, `period`, `tasks`, `rounds`, `command`, `repeat`, `cold`, `of`");
    insta::assert_snapshot!(edited("run = \"hog\" }", "run = \"hug\" }"), @"echo-mixed.toml:39: vm.mixed.workloads.hog.run: unknown variant `hug`, expected one of `hog`, `echo`, `shift`, `read-files`, `read-burn`, `sink`, `messages`, `churn`, `program`, `storm`");
    insta::assert_snapshot!(edited("run = \"hog\" }", "run = \"hog\", port = 7 }"), @r#"echo-mixed.toml:39: vm.mixed.workloads.hog: a workload with run = "hog" has `name` and `run` only, not `port`"#);
    insta::assert_snapshot!(edited("protocol = \"tcp\", port", "port"), @r#"echo-mixed.toml:38: vm.mixed.workloads.echo: a workload with run = "echo" needs `protocol` and `port`"#);
    insta::assert_snapshot!(edited("protocol = \"tcp\"\n", "protocol = \"sctp\"\n"), @"echo-mixed.toml:51: load.0.protocol: unknown variant `sctp`, expected `tcp` or `udp`");
    insta::assert_snapshot!(edited("daemon = \"act\"", "daemon = \"on\""), @"echo-mixed.toml:67: arms.frontdesk.daemon: unknown variant `on`, expected one of `off`, `observe`, `act`");
}

#[test]
fn errors_of_durations_show_how_to_write_one() {
    insta::assert_snapshot!(edited("duration = \"20s\"", "duration = \"20 parsecs\""), @r#"echo-mixed.toml:16: duration: invalid value: string "20 parsecs", expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h" (unknown time unit "parsecs", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations))"#);
    insta::assert_snapshot!(edited("duration = \"20s\"", "duration = 20"), @r#"echo-mixed.toml:16: duration: invalid type: integer `20`, expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h""#);
    insta::assert_snapshot!(edited("\"1s\"]", "\"1\"]"), @r#"echo-mixed.toml:54: load.0.think.1: invalid value: string "1", expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h" (time unit needed, for example 1sec or 1ms)"#);
    insta::assert_snapshot!(edited("\"1s\"]", "\"1s\", \"2s\"]"), @"echo-mixed.toml:54: load.0.think: invalid length 3, expected fewer elements in array");
    insta::assert_snapshot!(refused(&["policy.tavs.max_boost=soon"]), @r#"echo-mixed.toml:1 with --set policy.tavs.max_boost=soon: policy.tavs.max_boost: invalid value: string "soon", expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h" (expected number at 0)"#);
}

#[test]
fn errors_of_types_say_what_is_expected() {
    insta::assert_snapshot!(refused(&["vm.cpu.count=many"]), @r#"echo-mixed.toml:45 with --set vm.cpu.count=many: vm.cpu.count: invalid type: string "many", expected a whole number, 0 to 65535"#);
    insta::assert_snapshot!(refused(&["load.0.port=70000"]), @"echo-mixed.toml:52 with --set load.0.port=70000: load.0.port: invalid value: integer `70000`, expected a whole number, 0 to 65535");
    insta::assert_snapshot!(refused(&["checks.pbhr=high"]), @r#"echo-mixed.toml:101 with --set checks.pbhr=high: checks.pbhr: invalid type: string "high", expected a number"#);
    insta::assert_snapshot!(refused(&["load.0.bytes=-1"]), @"echo-mixed.toml:53 with --set load.0.bytes=-1: load.0.bytes: invalid value: integer `-1`, expected a whole number, 0 or more");
}

#[test]
fn assignments_that_lead_nowhere() {
    insta::assert_snapshot!(refused(&["repeats"]), @"echo-mixed.toml: --set repeats: not of the form KEY=VALUE, as in vm.cpu.count=8");
    insta::assert_snapshot!(refused(&["vm.cpu.cuont=5"]), @"echo-mixed.toml:43 with --set vm.cpu.cuont=5: vm.cpu.cuont: unknown field `cuont`, expected one of `name`, `count`, `vcpus`, `memory_mib`, `weight`, `disk`, `debian`, `tracked`, `workloads`");
    insta::assert_snapshot!(refused(&["polcy.tavs.pb_ratio=0.25"]), @"echo-mixed.toml:1 with --set polcy.tavs.pb_ratio=0.25: polcy: unknown field `polcy`, expected one of `name`, `description`, `repeats`, `duration`, `warmup`, `think_scale`, `cost_scale`, `guest`, `host`, `vm`, `load`, `arms`, `policy`, `checks`");
    insta::assert_snapshot!(refused(&["vm.gpu.count=5"]), @r#"echo-mixed.toml: --set vm.gpu.count=5: there is no "gpu" in vm: allowed is one of mixed, cpu"#);
    insta::assert_snapshot!(refused(&["load.1.port=5"]), @r#"echo-mixed.toml: --set load.1.port=5: there is no "1" in load: allowed is one of 0"#);
    insta::assert_snapshot!(refused(&["arms.frontdsk.daemon=off"]), @r#"echo-mixed.toml: --set arms.frontdsk.daemon=off: there is no "frontdsk" in arms: allowed is one of stock, observe, frontdesk, io-only"#);
    insta::assert_snapshot!(refused(&["repeats.of=5"]), @r#"echo-mixed.toml: --set repeats.of=5: there is no "of" in repeats: a value of type integer has nothing inside"#);
    insta::assert_snapshot!(refused(&["vm..count=5"]), @r#"echo-mixed.toml: --set vm..count=5: there is no "" in vm: allowed is one of mixed, cpu"#);
}

#[test]
fn errors_of_values_name_what_is_allowed() {
    insta::assert_snapshot!(edited("count = 5", "count = 0"), @"echo-mixed.toml:45: vm.cpu.count = 0: allowed is 1 to 64");
    insta::assert_snapshot!(edited("repeats = 3", "repeats = 101"), @"echo-mixed.toml:13: repeats = 101: allowed is 1 to 100");
    insta::assert_snapshot!(edited("duration = \"20s\"", "duration = \"500ms\""), @"echo-mixed.toml:16: duration = 500ms: allowed is 1s to 1h");
    insta::assert_snapshot!(edited("think_scale = 0.2", "think_scale = nan"), @"echo-mixed.toml:20: think_scale = NaN: allowed is 0.001 to 100");
    insta::assert_snapshot!(edited("name = \"cpu\"", "name = \"c p u\""), @r#"echo-mixed.toml:44: vm.1.name = "c p u": allowed is letters, digits and `-`"#);
    insta::assert_snapshot!(edited("name = \"cpu\"", "name = \"mixed\""), @r#"echo-mixed.toml:44: vm.1.name = "mixed": allowed is a name no other entry has"#);
    insta::assert_snapshot!(edited("name = \"mixed\"", "name = \"cpu-3\""), @r#"echo-mixed.toml:44: vm.1.name = "cpu": allowed is a name from which no VM gets the name "cpu-3" of another"#);
    insta::assert_snapshot!(edited("name = \"hog\", run", "name = \"echo\", run"), @r#"echo-mixed.toml:39: vm.mixed.workloads.1.name = "echo": allowed is a name no other workload has"#);
    insta::assert_snapshot!(edited("vm_cpus = [0]", "vm_cpus = []"), @"echo-mixed.toml:28: host.vm_cpus = []: allowed is at least one CPU");
    insta::assert_snapshot!(edited("vm_cpus = [0]", "vm_cpus = [0, 0]"), @"echo-mixed.toml:28: host.vm_cpus = [0, 0]: allowed is each CPU once");
    insta::assert_snapshot!(edited("vm = \"mixed\"", "vm = \"mixt\""), @r#"echo-mixed.toml:50: load.0.vm = "mixt": allowed is one of mixed, cpu"#);
    insta::assert_snapshot!(edited("port = 7\n", "port = 8\n"), @"echo-mixed.toml:52: load.0.port = 8 (tcp): allowed is 7 (tcp)");
    insta::assert_snapshot!(edited("vm = \"mixed\"", "vm = \"cpu\""), @"echo-mixed.toml:52: load.0.port = 7 (tcp): allowed is none: no echo or shift runs in cpu");
    insta::assert_snapshot!(edited("[\"100ms\", \"1s\"]", "[\"2s\", \"1s\"]"), @"echo-mixed.toml:54: load.0.think.0 = 2s: allowed is 0s to 1s");
    insta::assert_snapshot!(edited("[\"mixed/hog\"]", "[\"hog\"]"), @r#"echo-mixed.toml:71: arms.io-only.stop.0 = "hog": allowed is one of mixed/echo, mixed/hog, cpu/hog"#);
    insta::assert_snapshot!(edited("[arms.io-only]", "[arms.idle]"), @r#"echo-mixed.toml:78: checks.compare.0.over.arm = "io-only": allowed is one of stock, observe, frontdesk, idle"#);
    insta::assert_snapshot!(edited("at_most = 1.15", ""), @"echo-mixed.toml:74: checks.compare.0.at_most = nothing: allowed is a bar here or in at_least, not both");
    insta::assert_snapshot!(refused(&["checks.compare.1.of.vm=cpu"]), @r#"echo-mixed.toml:85 with --set checks.compare.1.of.vm=cpu: checks.compare.1.of.vm = "cpu": allowed is one of mixed"#);
    insta::assert_snapshot!(refused(&["checks.compare.1.measure=median"]), @"echo-mixed.toml:84 with --set checks.compare.1.measure=median: checks.compare.mean response, stock / frontdesk.measure: unknown variant `median`, expected one of `mean`, `p50`, `p95`, `p99`, `rate`, `time`, `pbhr`, `follow`, `wasted`");
    insta::assert_snapshot!(edited("pbhr = 0.9", "pbhr = -1"), @"echo-mixed.toml:101: checks.pbhr = -1: allowed is a number, not below 0");
    insta::assert_snapshot!(edited("\"6.1-cloud\"", "\"latest\""), @r#"echo-mixed.toml:24: guest.kernel = "latest": allowed is a package series such as "6.1-cloud", or the path of a kernel image (with a `/`)"#);
    insta::assert_snapshot!(refused(&["guest.modules=/lib"]), @r#"echo-mixed.toml:22 with --set guest.modules=/lib: guest.modules = "/lib": allowed is the folder with the modules of a kernel given by path, and only beside one"#);
    insta::assert_snapshot!(refused(&["guest.kernel=./vmlinuz"]), @"echo-mixed.toml:22: guest.modules = nothing: allowed is the folder with the modules of a kernel given by path, and only beside one");
    insta::assert_snapshot!(refused(&["policy.tavs.pb_ratio=2"]), @"echo-mixed.toml:1 with --set policy.tavs.pb_ratio=2: policy.tavs.pb_ratio = 2: allowed is 0 to 1");
    insta::assert_snapshot!(refused(&["load=[]"]), @"echo-mixed.toml:77: checks.compare.0.of.vm = all under load: allowed is none: there is none");
    insta::assert_snapshot!(refused(&["vm.mixed.workloads.echo.cost=11s"]), @"echo-mixed.toml:38 with --set vm.mixed.workloads.echo.cost=11s: vm.mixed.workloads.echo.cost = 11s: allowed is 0s to 10s");
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
fn entries_have_the_keys_of_their_kind() {
    let refusals = refusals(&[
        "vm.net.workloads.hog.cost=1ms",
        "vm.net.workloads.shift.cost=1ms",
        "vm.net.workloads.echo.run=sink",
        "vm.net.workloads.sink.of=tasks",
        "vm.disk.workloads.files.period=1s",
        "vm.disk.workloads.burn.tasks=40",
        "vm.disk.workloads.chat.rounds2=1",
        "vm.disk.workloads.churn.rounds=1",
        "vm.desk.workloads.build.protocol=tcp",
        "vm.hostile.workloads.tasks.repeat=true",
        "vm.net.workloads.hog.run=echo",
        "vm.net.workloads.hog.run=shift",
        "vm.net.workloads.hog.run=sink",
        "vm.net.workloads.hog.run=messages",
        "vm.net.workloads.hog.run=program",
        "vm.net.workloads.hog.run=storm",
        "vm.hostile.workloads.tasks.of=forks",
        "vm.desk.workloads.build.cold=maybe",
        "vm.desk.workloads.build.command=make",
        "load.0.run=type",
        "load.0.run=edit",
        "load.2.bytes=1",
        "load.3.port=1",
        "load.2.run=ask",
        "load.2={ vm = \"net\", run = \"bulk\" }",
        "load.3={ vm = \"net\", run = \"edit\" }",
    ]);
    insta::assert_snapshot!(refusals, @r#"
    vm.net.workloads.hog.cost=1ms
        vm.net.workloads.hog: a workload with run = "hog" has `name` and `run` only, not `cost`
    vm.net.workloads.shift.cost=1ms
        vm.net.workloads.shift: a workload with run = "shift" has `name`, `run`, `port` and `period` only, not `cost`
    vm.net.workloads.echo.run=sink
        vm.net.workloads.echo: a workload with run = "sink" has `name`, `run` and `port` only, not `protocol`
    vm.net.workloads.sink.of=tasks
        vm.net.workloads.sink: a workload with run = "sink" has `name`, `run` and `port` only, not `of`
    vm.disk.workloads.files.period=1s
        vm.disk.workloads.files: a workload with run = "read-files" has `name` and `run` only, not `period`
    vm.disk.workloads.burn.tasks=40
        vm.disk.workloads.burn: a workload with run = "read-burn" has `name`, `run` and `cost` only, not `tasks`
    vm.disk.workloads.chat.rounds2=1
        vm.disk.workloads.chat.rounds2: unknown field `rounds2`, expected one of `name`, `run`, `protocol`, `port`, `cost`, `period`, `tasks`, `rounds`, `command`, `repeat`, `cold`, `of`
    vm.disk.workloads.churn.rounds=1
        vm.disk.workloads.churn: a workload with run = "churn" has `name` and `run` only, not `rounds`
    vm.desk.workloads.build.protocol=tcp
        vm.desk.workloads.build: a workload with run = "program" has `name`, `run`, `command`, `repeat` and `cold` only, not `protocol`
    vm.hostile.workloads.tasks.repeat=true
        vm.hostile.workloads.tasks: a workload with run = "storm" has `name`, `run` and `of` only, not `repeat`
    vm.net.workloads.hog.run=echo
        vm.net.workloads.hog: a workload with run = "echo" needs `protocol` and `port`
    vm.net.workloads.hog.run=shift
        vm.net.workloads.hog: a workload with run = "shift" needs `port` and `period`
    vm.net.workloads.hog.run=sink
        vm.net.workloads.hog: a workload with run = "sink" needs `port`
    vm.net.workloads.hog.run=messages
        vm.net.workloads.hog: a workload with run = "messages" needs `tasks` and `rounds`
    vm.net.workloads.hog.run=program
        vm.net.workloads.hog: a workload with run = "program" needs `command`
    vm.net.workloads.hog.run=storm
        vm.net.workloads.hog: a workload with run = "storm" needs `of`
    vm.hostile.workloads.tasks.of=forks
        vm.hostile.workloads.tasks.of: unknown variant `forks`, expected one of `packets`, `tasks`, `switches`
    vm.desk.workloads.build.cold=maybe
        vm.desk.workloads.build.cold: invalid type: string "maybe", expected true or false
    vm.desk.workloads.build.command=make
        vm.desk.workloads.build.command: invalid type: string "make", expected an array
    load.0.run=type
        load.0.run: unknown variant `type`, expected one of `ask`, `bulk`, `edit`
    load.0.run=edit
        load.0: a load with run = "edit" has `vm`, `run` and `think` only, not `protocol`
    load.2.bytes=1
        load.2: a load with run = "bulk" has `vm`, `run` and `port` only, not `bytes`
    load.3.port=1
        load.3: a load with run = "edit" has `vm`, `run` and `think` only, not `port`
    load.2.run=ask
        load.2: a load with run = "ask" needs `protocol`, `port`, `bytes` and `think`
    load.2={ vm = "net", run = "bulk" }
        load.2: a load with run = "bulk" needs `port`
    load.3={ vm = "net", run = "edit" }
        load.3: a load with run = "edit" needs `think`
    "#);
}

#[test]
fn workloads_and_loads_fit_their_vm() {
    let refusals = refusals(&[
        "cost_scale=0",
        "guest.debian.packages=[\"vim\", \"Vim\"]",
        "guest.debian.packages=[\"v\"]",
        "guest.debian.sources=[\"-oAPT::x\"]",
        "guest.debian.sources=[\"a b\"]",
        "vm.disk.disk.files=0",
        "vm.disk.disk.files=65537",
        "vm.disk.disk.file_kib=2",
        "vm.disk.disk.file_kib=65537",
        "vm.disk.disk={ files = 257, file_kib = 65536 }",
        "vm.net.workloads.hog.run=read-files",
        "vm.net.workloads.hog.run=read-burn",
        "vm.disk.workloads.burn.cost=11s",
        "vm.net.workloads.shift.period=99ms",
        "vm.net.workloads.shift.period=11min",
        "vm.net.workloads.shift.port=7",
        "vm.net.workloads.shift.port=0",
        "vm.net.workloads.echo.protocol=tcp",
        "vm.disk.workloads.chat.tasks=39",
        "vm.disk.workloads.chat.tasks=60",
        "vm.disk.workloads.chat.tasks=2040",
        "vm.disk.workloads.chat.rounds=0",
        "vm.desk.debian=false",
        "vm.desk.workloads.build.command=[]",
        "vm.desk.workloads.build.command=[\"make\", \"\"]",
        "vm.desk.workloads.build.command=[\"ma\\u0000ke\"]",
        "vm.desk.workloads.build.repeat=false",
        "load.0.vm=cat",
        "load.0.port=9",
        "load.0.protocol=tcp",
        "load.0.vm=disk",
        "load.0.bytes=1401",
        "load.2.port=8",
        "load.2.vm=desk",
        "load.3.vm=net",
        "load.3.think=[\"2s\", \"1s\"]",
        "load.3.think=[\"1s\", \"61min\"]",
        "vm.desk.workloads.sshd.command=[\"sshd.sh\"]",
    ]);
    insta::assert_snapshot!(refusals, @r#"
    cost_scale=0
        cost_scale = 0: allowed is 0.001 to 100
    guest.debian.packages=["vim", "Vim"]
        guest.debian.packages.1 = "Vim": allowed is the name of a Debian package: lower case letters, digits, `+`, `-` and `.`, at least two, the first a letter or digit
    guest.debian.packages=["v"]
        guest.debian.packages.0 = "v": allowed is the name of a Debian package: lower case letters, digits, `+`, `-` and `.`, at least two, the first a letter or digit
    guest.debian.sources=["-oAPT::x"]
        guest.debian.sources.0 = "-oAPT::x": allowed is the name of a Debian package: lower case letters, digits, `+`, `-` and `.`, at least two, the first a letter or digit
    guest.debian.sources=["a b"]
        guest.debian.sources.0 = "a b": allowed is the name of a Debian package: lower case letters, digits, `+`, `-` and `.`, at least two, the first a letter or digit
    vm.disk.disk.files=0
        vm.disk.disk.files = 0: allowed is 1 to 65536
    vm.disk.disk.files=65537
        vm.disk.disk.files = 65537: allowed is 1 to 65536
    vm.disk.disk.file_kib=2
        vm.disk.disk.file_kib = 2: allowed is 4 to 65536
    vm.disk.disk.file_kib=65537
        vm.disk.disk.file_kib = 65537: allowed is 4 to 65536
    vm.disk.disk={ files = 257, file_kib = 65536 }
        vm.disk.disk.file_kib = 65536: allowed is at most 65280 for 257 files, which is 16 GiB
    vm.net.workloads.hog.run=read-files
        vm.net.workloads.hog.run = "read-files": allowed is only in a VM with `disk`
    vm.net.workloads.hog.run=read-burn
        vm.net.workloads.hog.run = "read-burn": allowed is only in a VM with `disk`
    vm.disk.workloads.burn.cost=11s
        vm.disk.workloads.burn.cost = 11s: allowed is 0s to 10s
    vm.net.workloads.shift.period=99ms
        vm.net.workloads.shift.period = 99ms: allowed is 100ms to 10m
    vm.net.workloads.shift.period=11min
        vm.net.workloads.shift.period = 11m: allowed is 100ms to 10m
    vm.net.workloads.shift.port=7
        vm.net.workloads.shift.port = 7: allowed is a udp port on which no other workload listens
    vm.net.workloads.shift.port=0
        vm.net.workloads.shift.port = 0: allowed is 1 to 65535
    vm.net.workloads.echo.protocol=tcp
        everything.toml:25: vm.net.workloads.sink.port = 7: allowed is a tcp port on which no other workload listens
    vm.disk.workloads.chat.tasks=39
        vm.disk.workloads.chat.tasks = 39: allowed is 40 to 2000
    vm.disk.workloads.chat.tasks=60
        vm.disk.workloads.chat.tasks = 60: allowed is a multiple of 40
    vm.disk.workloads.chat.tasks=2040
        vm.disk.workloads.chat.tasks = 2040: allowed is 40 to 2000
    vm.disk.workloads.chat.rounds=0
        vm.disk.workloads.chat.rounds = 0: allowed is 1 to 10000
    vm.desk.debian=false
        everything.toml:46: vm.desk.workloads.sshd.run = "program": allowed is only in a VM with `debian = true`
    vm.desk.workloads.build.command=[]
        vm.desk.workloads.build.command = []: allowed is a program and its arguments
    vm.desk.workloads.build.command=["make", ""]
        vm.desk.workloads.build.command.1 = "": allowed is a word, not empty and without a zero byte
    vm.desk.workloads.build.command=["ma\u0000ke"]
        vm.desk.workloads.build.command.0 = "ma\0ke": allowed is a word, not empty and without a zero byte
    vm.desk.workloads.build.repeat=false
        everything.toml:47: vm.desk.workloads.build.cold = true: allowed is only beside `repeat = true`
    load.0.vm=cat
        load.0.vm = "cat": allowed is one of net, disk, desk, hostile
    load.0.port=9
        load.0.port = 9 (udp): allowed is one of 7 (udp), 8 (udp)
    load.0.protocol=tcp
        everything.toml:63: load.0.port = 7 (tcp): allowed is one of 7 (udp), 8 (udp)
    load.0.vm=disk
        everything.toml:63: load.0.port = 7 (udp): allowed is none: no echo or shift runs in disk
    load.0.bytes=1401
        load.0.bytes = 1401: allowed is 1 to 1400
    load.2.port=8
        load.2.port = 8 (tcp): allowed is 7 (tcp)
    load.2.vm=desk
        everything.toml:78: load.2.port = 7 (tcp): allowed is none: no sink runs in desk
    load.3.vm=net
        load.3.vm = "net": allowed is a VM in which a workload runs the program sshd
    load.3.think=["2s", "1s"]
        load.3.think.0 = 2s: allowed is 0s to 1s
    load.3.think=["1s", "61min"]
        load.3.think.1 = 1h 1m: allowed is 0s to 1h
    vm.desk.workloads.sshd.command=["sshd.sh"]
        everything.toml:81: load.3.vm = "desk": allowed is a VM in which a workload runs the program sshd
    "#);
    let lines = EVERYTHING.lines().filter(|line| !line.starts_with("debian = {"));
    let text = lines.collect::<Vec<_>>().join("\n");
    let error = Scenario::parse(&text, Path::new("everything.toml"), &Overrides::default()).unwrap_err();
    insta::assert_snapshot!(error, @"everything.toml:43: vm.desk.debian = true: allowed is only beside `guest.debian`");
}

#[test]
fn the_largest_that_is_allowed_is_allowed() {
    let overrides = set(&[
        "vm.disk.disk={ files = 256, file_kib = 65536 }",
        "vm.disk.workloads.chat.tasks=2000",
        "vm.disk.workloads.chat.rounds=10000",
        "vm.net.workloads.shift.period=10min",
        "cost_scale=100",
        "guest.debian.packages=[\"g+\", \"0a.b-c\"]",
        "vm.desk.workloads.sshd.command=[\"sshd\"]",
        "checks.compare.2.at_least=0",
        "checks.compare.0.at_most=0",
    ]);
    parse_everything(&overrides).unwrap();
}

#[test]
fn checks_are_of_what_is_measured() {
    let refusals = refusals(&[
        "checks.share_error=-0.1",
        "checks.pbhr=nan",
        "checks.compare.0.at_least=1",
        "checks.compare.0.at_most=-1",
        "checks.compare.0.at_most=inf",
        "checks.compare.2.at_least=nan",
        "checks.compare.1.minus={ arm = \"stock\" }",
        "checks.compare.0.of.arm=idle",
        "checks.compare.0.of.vm=cat",
        "checks.compare.0.of.vm=disk",
        "checks.compare.0.of.workload=sink",
        "checks.compare.1.over.workload=sshd",
        "checks.compare.1.over.arm=idle",
        "checks.compare.2.minus.arm=idle",
        "checks.compare.2.of.workload=build",
        "checks.compare.4.of={ arm = \"stock\" }",
        "checks.compare.4.of={ arm = \"stock\", vm = \"disk\" }",
        "checks.compare.4.of.vm=disc",
        "checks.compare.4.of.workload=hog",
        "checks.compare.5.of.workload=sshd",
        "checks.compare.5.of.vm=net",
        "checks.compare.6.of.arm=stock",
        "checks.compare.6.of.vm=net",
        "checks.compare.7.of.workload=shift",
        "checks.compare.7.of.arm=stock",
        "vm.net.tracked=false",
        "checks.compare.8.of.arms=stock",
        "checks.compare.8.measure=waste",
        "checks.gain.0.of.arm=idle",
        "checks.gain.0.of.vm=net",
        "checks.gain.0.of={ arm = \"stock\" }",
        "checks.gain.0.base=idle",
        "checks.gain.0.loser.vm=cat",
        "checks.gain.0.loser.workload=cat",
        "checks.gain.0.at_least=0",
        "checks.gain.0.at_least=inf",
    ]);
    insta::assert_snapshot!(refusals, @r#"
    checks.share_error=-0.1
        checks.share_error = -0.1: allowed is a number, not below 0
    checks.pbhr=nan
        checks.pbhr = NaN: allowed is a number, not below 0
    checks.compare.0.at_least=1
        everything.toml:108: checks.compare.0.at_most = set beside at_least: allowed is a bar here or in at_least, not both
    checks.compare.0.at_most=-1
        checks.compare.0.at_most = -1: allowed is a number, not below 0
    checks.compare.0.at_most=inf
        checks.compare.0.at_most = inf: allowed is a number, not below 0
    checks.compare.2.at_least=nan
        checks.compare.2.at_least = NaN: allowed is a number
    checks.compare.1.minus={ arm = "stock" }
        checks.compare.1.minus = set beside over: allowed is either over or minus
    checks.compare.0.of.arm=idle
        checks.compare.0.of.arm = "idle": allowed is one of stock, frontdesk, pb-1-4, watch
    checks.compare.0.of.vm=cat
        checks.compare.0.of.vm = "cat": allowed is one of net, desk
    checks.compare.0.of.vm=disk
        checks.compare.0.of.vm = "disk": allowed is one of net, desk
    checks.compare.0.of.workload=sink
        checks.compare.0.of.workload = "sink": allowed is one of echo, shift, sshd
    checks.compare.1.over.workload=sshd
        checks.compare.1.over.workload = "sshd": allowed is one of echo, shift
    checks.compare.1.over.arm=idle
        checks.compare.1.over.arm = "idle": allowed is one of stock, frontdesk, pb-1-4, watch
    checks.compare.2.minus.arm=idle
        checks.compare.2.minus.arm = "idle": allowed is one of stock, frontdesk, pb-1-4, watch
    checks.compare.2.of.workload=build
        checks.compare.2.of.workload = "build": allowed is one of sshd
    checks.compare.4.of={ arm = "stock" }
        checks.compare.4.of.vm = nothing: allowed is one of net, disk, desk, hostile
    checks.compare.4.of={ arm = "stock", vm = "disk" }
        checks.compare.4.of.workload = nothing: allowed is one of files, burn, chat, churn
    checks.compare.4.of.vm=disc
        checks.compare.4.of.vm = "disc": allowed is one of net, disk, desk, hostile
    checks.compare.4.of.workload=hog
        checks.compare.4.of.workload = "hog": allowed is one of files, burn, chat, churn
    checks.compare.5.of.workload=sshd
        checks.compare.5.of.workload = "sshd": allowed is one of build
    checks.compare.5.of.vm=net
        everything.toml:140: checks.compare.5.of.workload = "build": allowed is none: there is none
    checks.compare.6.of.arm=stock
        checks.compare.6.of.arm = "stock": allowed is an arm whose daemon is not off, one of frontdesk, pb-1-4, watch
    checks.compare.6.of.vm=net
        checks.compare.6.of.vm = "net": allowed is nothing: this is measured of all VMs together
    checks.compare.7.of.workload=shift
        checks.compare.7.of.workload = "shift": allowed is nothing: this is measured of all VMs together
    checks.compare.7.of.arm=stock
        checks.compare.7.of.arm = "stock": allowed is an arm whose daemon is not off, one of frontdesk, pb-1-4, watch
    vm.net.tracked=false
        everything.toml:153: checks.compare.7.measure = "follow": allowed is only beside a workload with run = "shift" in a tracked VM
    checks.compare.8.of.arms=stock
        checks.compare.wasted boosts.of.arms: unknown field `arms`, expected one of `arm`, `vm`, `workload`
    checks.compare.8.measure=waste
        checks.compare.wasted boosts.measure: unknown variant `waste`, expected one of `mean`, `p50`, `p95`, `p99`, `rate`, `time`, `pbhr`, `follow`, `wasted`
    checks.gain.0.of.arm=idle
        checks.gain.0.of.arm = "idle": allowed is one of stock, frontdesk, pb-1-4, watch
    checks.gain.0.of.vm=net
        everything.toml:165: checks.gain.0.of.workload = "files": allowed is one of echo, shift, sink, hog
    checks.gain.0.of={ arm = "stock" }
        checks.gain.0.of.vm = nothing: allowed is one of net, disk, desk, hostile
    checks.gain.0.base=idle
        checks.gain.0.base = "idle": allowed is one of stock, frontdesk, pb-1-4, watch
    checks.gain.0.loser.vm=cat
        checks.gain.0.loser.vm = "cat": allowed is one of net, disk, desk, hostile
    checks.gain.0.loser.workload=cat
        checks.gain.0.loser.workload = "cat": allowed is one of echo, shift, sink, hog
    checks.gain.0.at_least=0
        checks.gain.0.at_least = 0: allowed is a number above 0
    checks.gain.0.at_least=inf
        checks.gain.0.at_least = inf: allowed is a number above 0
    "#);
    let passive = ["arms.frontdesk.daemon=observe", "arms.pb-1-4.daemon=observe"];
    insta::assert_snapshot!(parse_everything(&set(&passive)).unwrap_err(), @r#"everything.toml:171: checks.share_error = 0.02: allowed is only beside an arm with daemon = "act""#);
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
            if path.is_dir() {
                return load_all(&path);
            }
            Scenario::load(&path, &Overrides::default()).expect("a valid scenario");
            1
        };
        entries.map(|entry| load(entry.path())).sum()
    }
    assert!(load_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")) > 0);
}
