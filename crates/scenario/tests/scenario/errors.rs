//! What is refused, and in which words.

use super::{edited, refused};
use frontdesk_scenario::{Overrides, Scenario};
use std::path::Path;

#[test]
fn a_file_that_is_not_there() {
    let error = Scenario::load(Path::new("no-such.toml"), &Overrides::default()).unwrap_err();
    insta::assert_snapshot!(error, @"cannot read the scenario no-such.toml");
}

#[test]
fn errors_of_syntax_point_to_the_line() {
    insta::assert_snapshot!(edited("repeats = 3", "repeats = "), @"echo-mixed.toml:14: not valid TOML: string values must be quoted, expected literal string");
    insta::assert_snapshot!(edited("repeats = 3", "name = \"again\""), @"echo-mixed.toml:14: not valid TOML: duplicate key");
}

#[test]
fn errors_of_keys_name_what_exists() {
    insta::assert_snapshot!(edited("count = 5", "cuont = 5"), @"echo-mixed.toml:46: vm.cpu.cuont: unknown field `cuont`, expected one of `name`, `count`, `vcpus`, `memory_mib`, `weight`, `disk`, `debian`, `desktop`, `tracked`, `workloads` (did you mean `count`?)");
    insta::assert_snapshot!(edited("repeats = 3\n", ""), @"echo-mixed.toml:1: missing field `repeats`");
    insta::assert_snapshot!(edited("port = 7 }", "prot = 7 }"), @r#"echo-mixed.toml:39: vm.mixed.workloads.echo.prot: unknown field `prot`, expected one of `protocol`, `port`, `cost` (did you mean `port` or `protocol`?), with run = "echo""#);
    insta::assert_snapshot!(edited("run = \"hog\" }", "run = \"hug\" }"), @"echo-mixed.toml:40: vm.mixed.workloads.hog.run: unknown variant `hug`, expected one of `hog`, `echo`, `shift`, `read-files`, `read-burn`, `read-burst`, `write-sync`, `sink`, `messages`, `team`, `churn`, `program`, `play`, `video`, `scroll`, `app`, `boot`, `rt-app`, `storm` (did you mean `hog`?)");
    insta::assert_snapshot!(edited("run = \"hog\" }", "run = \"hog\", port = 7 }"), @r#"echo-mixed.toml:40: vm.mixed.workloads.hog: no further keys are allowed, with run = "hog""#);
    insta::assert_snapshot!(edited("protocol = \"tcp\", port", "port"), @r#"echo-mixed.toml:39: vm.mixed.workloads.echo: missing field `protocol`, with run = "echo""#);
    insta::assert_snapshot!(edited("protocol = \"tcp\"\n", "protocol = \"sctp\"\n"), @"echo-mixed.toml:53: load.0.protocol: unknown variant `sctp`, expected `tcp` or `udp`");
    insta::assert_snapshot!(edited("daemon = \"act\"", "daemon = \"on\""), @"echo-mixed.toml:69: arms.frontdesk.daemon: unknown variant `on`, expected one of `off`, `observe`, `act`");
}

#[test]
fn errors_of_durations_show_how_to_write_one() {
    insta::assert_snapshot!(edited("duration = \"20s\"", "duration = \"20 parsecs\""), @r#"echo-mixed.toml:17: duration: invalid value: string "20 parsecs", expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h" (unknown time unit "parsecs", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations))"#);
    insta::assert_snapshot!(edited("duration = \"20s\"", "duration = 20"), @r#"echo-mixed.toml:17: duration: invalid type: integer `20`, expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h""#);
    insta::assert_snapshot!(edited("\"1s\"]", "\"1\"]"), @r#"echo-mixed.toml:56: load.0.think.1: invalid value: string "1", expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h" (time unit needed, for example 1sec or 1ms)"#);
    insta::assert_snapshot!(edited("\"1s\"]", "\"1s\", \"2s\"]"), @"echo-mixed.toml:56: load.0.think: invalid length 3, expected fewer elements in array");
    insta::assert_snapshot!(refused(&["policy.tavs.max_boost=soon"]), @r#"echo-mixed.toml:1 with --set policy.tavs.max_boost=soon: policy.tavs.max_boost: invalid value: string "soon", expected a text with a number and a unit, as in "500us", "150ms", "20s", "10min" or "1h" (expected number at 0)"#);
}

#[test]
fn errors_of_types_say_what_is_expected() {
    insta::assert_snapshot!(refused(&["vm.cpu.count=many"]), @r#"echo-mixed.toml:46 with --set vm.cpu.count=many: vm.cpu.count: invalid type: string "many", expected a whole number, 0 to 65535"#);
    insta::assert_snapshot!(refused(&["load.0.port=70000"]), @"echo-mixed.toml:54 with --set load.0.port=70000: load.0.port: invalid value: integer `70000`, expected a whole number, 0 to 65535");
    insta::assert_snapshot!(refused(&["checks.pbhr=high"]), @r#"echo-mixed.toml:103 with --set checks.pbhr=high: checks.pbhr: invalid type: string "high", expected a number"#);
    insta::assert_snapshot!(refused(&["load.0.bytes=-1"]), @"echo-mixed.toml:55 with --set load.0.bytes=-1: load.0.bytes: invalid value: integer `-1`, expected a whole number, 0 or more");
}

#[test]
fn assignments_that_lead_nowhere() {
    insta::assert_snapshot!(refused(&["repeats"]), @"echo-mixed.toml: --set repeats: not of the form KEY=VALUE, as in vm.cpu.count=8");
    insta::assert_snapshot!(refused(&["vm.cpu.cuont=5"]), @"echo-mixed.toml:44 with --set vm.cpu.cuont=5: vm.cpu.cuont: unknown field `cuont`, expected one of `name`, `count`, `vcpus`, `memory_mib`, `weight`, `disk`, `debian`, `desktop`, `tracked`, `workloads` (did you mean `count`?)");
    insta::assert_snapshot!(refused(&["polcy.tavs.pb_ratio=0.25"]), @"echo-mixed.toml:1 with --set polcy.tavs.pb_ratio=0.25: polcy: unknown field `polcy`, expected one of `name`, `description`, `repeats`, `duration`, `warmup`, `think_scale`, `cost_scale`, `guest`, `host`, `disk_model`, `vm`, `load`, `arms`, `policy`, `sim`, `checks` (did you mean `policy`?)");
    insta::assert_snapshot!(refused(&["vm.gpu.count=5"]), @r#"echo-mixed.toml: --set vm.gpu.count=5: there is no "gpu" in vm: allowed is one of mixed, cpu (did you mean `cpu`?)"#);
    insta::assert_snapshot!(refused(&["load.1.port=5"]), @r#"echo-mixed.toml: --set load.1.port=5: there is no "1" in load: allowed is one of 0"#);
    insta::assert_snapshot!(refused(&["arms.frontdsk.daemon=off"]), @r#"echo-mixed.toml: --set arms.frontdsk.daemon=off: there is no "frontdsk" in arms: allowed is one of stock, observe, frontdesk, io-only (did you mean `frontdesk`?)"#);
    insta::assert_snapshot!(refused(&["repeats.of=5"]), @r#"echo-mixed.toml: --set repeats.of=5: there is no "of" in repeats: a value of type integer has nothing inside"#);
    insta::assert_snapshot!(refused(&["vm..count=5"]), @r#"echo-mixed.toml: --set vm..count=5: there is no "" in vm: allowed is one of mixed, cpu"#);
}

#[test]
fn errors_of_values_name_what_is_allowed() {
    insta::assert_snapshot!(edited("count = 5", "count = 0"), @"echo-mixed.toml:46: vm.cpu.count = 0: allowed is 1 to 64");
    insta::assert_snapshot!(edited("repeats = 3", "repeats = 1001"), @"echo-mixed.toml:14: repeats = 1001: allowed is 1 to 1000");
    insta::assert_snapshot!(edited("duration = \"20s\"", "duration = \"500ms\""), @"echo-mixed.toml:17: duration = 500ms: allowed is 1s to 1day");
    insta::assert_snapshot!(edited("think_scale = 0.2", "think_scale = nan"), @"echo-mixed.toml:21: think_scale = NaN: allowed is 0.001 to 100");
    insta::assert_snapshot!(edited("name = \"cpu\"", "name = \"c p u\""), @r#"echo-mixed.toml:45: vm.1.name = "c p u": allowed is letters, digits and `-`"#);
    insta::assert_snapshot!(edited("name = \"cpu\"", "name = \"mixed\""), @r#"echo-mixed.toml:45: vm.1.name = "mixed": allowed is a name no other entry has"#);
    insta::assert_snapshot!(edited("name = \"mixed\"", "name = \"cpu-3\""), @r#"echo-mixed.toml:45: vm.1.name = "cpu": allowed is a name from which no VM gets the name "cpu-3" of another"#);
    insta::assert_snapshot!(edited("name = \"hog\", run", "name = \"echo\", run"), @r#"echo-mixed.toml:40: vm.mixed.workloads.1.name = "echo": allowed is a name no other workload has"#);
    insta::assert_snapshot!(edited("vm_cpus = [0]", "vm_cpus = []"), @"echo-mixed.toml:29: host.vm_cpus = []: allowed is at least one CPU");
    insta::assert_snapshot!(edited("vm_cpus = [0]", "vm_cpus = [0, 0]"), @"echo-mixed.toml:29: host.vm_cpus = [0, 0]: allowed is each CPU once");
    insta::assert_snapshot!(edited("vm = \"mixed\"", "vm = \"mixt\""), @r#"echo-mixed.toml:52: load.0.vm = "mixt": allowed is one of mixed, cpu"#);
    insta::assert_snapshot!(edited("port = 7\n", "port = 8\n"), @"echo-mixed.toml:54: load.0.port = 8 (tcp): allowed is 7 (tcp)");
    insta::assert_snapshot!(edited("vm = \"mixed\"", "vm = \"cpu\""), @"echo-mixed.toml:54: load.0.port = 7 (tcp): allowed is none: no echo, shift or read-burst runs in cpu");
    insta::assert_snapshot!(edited("[\"100ms\", \"1s\"]", "[\"2s\", \"1s\"]"), @"echo-mixed.toml:56: load.0.think.0 = 2s: allowed is 0s to 1s");
    insta::assert_snapshot!(edited("[\"mixed/hog\"]", "[\"hog\"]"), @r#"echo-mixed.toml:73: arms.io-only.stop.0 = "hog": allowed is one of mixed/echo, mixed/hog, cpu/hog"#);
    insta::assert_snapshot!(edited("[arms.io-only]", "[arms.idle]"), @r#"echo-mixed.toml:80: checks.compare.0.over.arm = "io-only": allowed is one of stock, observe, frontdesk, idle"#);
    insta::assert_snapshot!(edited("at_most = 1.15", ""), @"echo-mixed.toml:76: checks.compare.0.at_most = nothing: allowed is a bar here or in at_least, not both");
    insta::assert_snapshot!(refused(&["checks.compare.1.of.vm=cpu"]), @r#"echo-mixed.toml:87 with --set checks.compare.1.of.vm=cpu: checks.compare.1.of.vm = "cpu": allowed is one of mixed"#);
    insta::assert_snapshot!(refused(&["checks.compare.1.measure=median"]), @"echo-mixed.toml:86 with --set checks.compare.1.measure=median: checks.compare.mean response, stock / frontdesk.measure: unknown variant `median`, expected one of `mean`, `p50`, `p95`, `p99`, `max`, `rate`, `time`, `frames`, `dropped`, `jitter`, `estimate-error`, `recovery`, `share`, `pbhr`, `unanswered`, `follow`, `wasted` (did you mean `mean`?)");
    insta::assert_snapshot!(edited("pbhr = 0.9", "pbhr = -1"), @"echo-mixed.toml:103: checks.pbhr = -1: allowed is a number, not below 0");
    insta::assert_snapshot!(edited("\"6.1-cloud\"", "\"latest\""), @r#"echo-mixed.toml:25: guest.kernel = "latest": allowed is a package series such as "6.1-cloud", or the path of a kernel image (with a `/`)"#);
    insta::assert_snapshot!(refused(&["guest.modules=/lib"]), @r#"echo-mixed.toml:23 with --set guest.modules=/lib: guest.modules = "/lib": allowed is the folder with the modules of a kernel given by path, and only beside one"#);
    insta::assert_snapshot!(refused(&["guest.kernel=./vmlinuz"]), @"echo-mixed.toml:23: guest.modules = nothing: allowed is the folder with the modules of a kernel given by path, and only beside one");
    insta::assert_snapshot!(refused(&["policy.tavs.pb_ratio=2"]), @"echo-mixed.toml:1 with --set policy.tavs.pb_ratio=2: policy.tavs.pb_ratio = 2: allowed is 0 to 1");
    insta::assert_snapshot!(refused(&["load=[]"]), @"echo-mixed.toml:79: checks.compare.0.of.vm = all under load: allowed is none: there is none");
    insta::assert_snapshot!(refused(&["vm.mixed.workloads.echo.cost=11s"]), @"echo-mixed.toml:39 with --set vm.mixed.workloads.echo.cost=11s: vm.mixed.workloads.echo.cost = 11s: allowed is 0s to 10s");
}

#[test]
fn a_modelled_machine_that_cannot_work_is_refused() {
    let says = |set: &str, part: &str| {
        let error = refused(&[set]);
        assert!(error.contains(part), "{error} without {part}");
    };
    says("sim.pcpus=0", "sim.pcpus = 0: allowed is 1 to 128");
    says("vm.mixed.weight=0", "vm.mixed.weight = 0: allowed is 2 to 262144");
    says("sim.driver_weight=0", "sim.driver_weight = 0: allowed is 1 to 262144");
    says("sim.costs.packet_in=9999999h", "sim.costs.packet_in = ");
    says("load.0.think=[\"1h\", \"99999999h\"]", "load.0.think.1 = ");
    says("duration=99999999h", "duration = ");
    let reservation = "sim.reservations.mixed={ period = \"99999999h\", slice = \"1h\" }";
    says(reservation, "sim.reservations.mixed.period = ");
    let reservation = "sim.reservations.mixed={ period = \"1ms\", slice = \"2ms\" }";
    says(reservation, "sim.reservations.mixed.slice = 2ms: allowed is 1us to 1ms");
    says("sim.netwrk.latency=1ms", "did you mean `network`?");
    let cap = "sim={ scheduler = \"credit\", cap = { cpu = 1601 } }";
    says(cap, "sim.cap.cpu = 1601: allowed is 1 to 1600");
    says("sim.cap.cpu=50", "sim.cap.cpu = 50: allowed is only with `scheduler = \"credit\"`");
    says("sim.cap.gpu=50", "sim.cap = \"gpu\": allowed is one of mixed, cpu");
    says("sim.pin.gpu=[[0]]", "sim.pin = \"gpu\": allowed is one of mixed, cpu");
    says(
        "sim.pin.cpu=[[0], [0]]",
        "sim.pin.cpu = [[0], [0]]: allowed is a list for each vCPU, of which cpu has 1",
    );
    says("sim.pin.cpu=[[]]", "sim.pin.cpu.0 = []: allowed is at least one physical CPU");
    // The host has one CPU for VMs.
    says("sim.pin.cpu=[[0, 1]]", "sim.pin.cpu.0.1 = 1: allowed is 0 to 0");
    says("arms.stock.sim.pin.cpu=[[1]]", "arms.stock.sim.pin.cpu.0.0 = 1: allowed is 0 to 0");
}

#[test]
fn desktops_have_what_they_need_and_one_person_each() {
    let file = include_str!("../../../../scenarios/mm/desktop.toml");
    let refused = |from: &str, to: &str| {
        assert!(file.contains(from), "{from}");
        let text = file.replace(from, to);
        Scenario::parse(&text, "desktop.toml".as_ref(), &Overrides::default()).unwrap_err().to_string()
    };
    for (from, to, says) in [
        ("\"6.1-plain\"", "\"6.1-cloud\"", "guest.kernel = \"6.1-cloud\": allowed is a kernel with drivers"),
        ("memory_mib = 768", "memory_mib = 256", "vm.office.memory_mib = 256: allowed is at least 512"),
        (
            "name = \"film\"\nmemory_mib = 768\ndesktop = true",
            "name = \"film\"",
            "only in a VM with `desktop = true`",
        ),
        (
            "name = \"reader\"\nmemory_mib = 768\ndesktop = true",
            "name = \"reader\"",
            "a VM with `desktop = true`",
        ),
        (
            "vm = \"reader\"",
            "vm = \"office\"",
            "load.1.vm = \"office\": allowed is a desktop in front of which nobody",
        ),
        ("gnumeric /root", "gnumeric\\n/root", "load.0.command = \"gnumeric\\n/root"),
        ("command = \"gnumeric /root/sheet.csv\"", "command = \"\"", "printable ASCII, 1 to 200 characters"),
        ("film = \"mpeg4\"", "film = \"mpeg2\"", "expected `mpeg4` or `h264`"),
        (
            "film = \"mpeg4\"",
            "film = \"mpeg4\", at = [0, 1001]",
            "vm.film.workloads.player.at.1 = 1001: allowed is 0 to 1000",
        ),
    ] {
        let error = refused(from, to);
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn frames_recover_from_what_begins_in_another_vm() {
    let file = include_str!("../../../../scenarios/mm/adapt.toml");
    let shift = "run = \"shift\", port = 7000, period = \"10s\"";
    assert!(file.contains(shift));
    let text = file.replace(shift, "run = \"hog\"");
    let error = Scenario::parse(&text, "adapt.toml".as_ref(), &Overrides::default()).unwrap_err().to_string();
    let says = "checks.compare.0.measure = \"recovery\": allowed is only beside a workload with \
                run = \"shift\" in another VM";
    assert!(error.contains(says), "{error}");
}
