//! Workloads and loads: the keys of each kind, and what fits the VM it is in.

use super::{EVERYTHING, parse_everything, refusals, set};
use frontdesk_scenario::{Overrides, Scenario};
use std::path::Path;

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
        vm.net.workloads.hog: no further keys are allowed, with run = "hog"
    vm.net.workloads.shift.cost=1ms
        vm.net.workloads.shift.cost: unknown field `cost`, expected `port` or `period`, with run = "shift"
    vm.net.workloads.echo.run=sink
        everything.toml:23: vm.net.workloads.echo.protocol: unknown field `protocol`, expected `port` (did you mean `port`?), with run = "sink"
    vm.net.workloads.sink.of=tasks
        vm.net.workloads.sink.of: unknown field `of`, expected `port`, with run = "sink"
    vm.disk.workloads.files.period=1s
        vm.disk.workloads.files: no further keys are allowed, with run = "read-files"
    vm.disk.workloads.burn.tasks=40
        vm.disk.workloads.burn.tasks: unknown field `tasks`, expected `cost`, with run = "read-burn"
    vm.disk.workloads.chat.rounds2=1
        vm.disk.workloads.chat.rounds2: unknown field `rounds2`, expected `tasks` or `rounds` (did you mean `rounds`?), with run = "messages"
    vm.disk.workloads.churn.rounds=1
        vm.disk.workloads.churn: no further keys are allowed, with run = "churn"
    vm.desk.workloads.build.protocol=tcp
        vm.desk.workloads.build.protocol: unknown field `protocol`, expected one of `command`, `repeat`, `cold`, with run = "program"
    vm.hostile.workloads.tasks.repeat=true
        vm.hostile.workloads.tasks.repeat: unknown field `repeat`, expected `of`, with run = "storm"
    vm.net.workloads.hog.run=echo
        vm.net.workloads.hog: missing field `protocol`, with run = "echo"
    vm.net.workloads.hog.run=shift
        vm.net.workloads.hog: missing field `port`, with run = "shift"
    vm.net.workloads.hog.run=sink
        vm.net.workloads.hog: missing field `port`, with run = "sink"
    vm.net.workloads.hog.run=messages
        vm.net.workloads.hog: missing field `tasks`, with run = "messages"
    vm.net.workloads.hog.run=program
        vm.net.workloads.hog: missing field `command`, with run = "program"
    vm.net.workloads.hog.run=storm
        vm.net.workloads.hog: missing field `of`, with run = "storm"
    vm.hostile.workloads.tasks.of=forks
        vm.hostile.workloads.tasks.of: unknown variant `forks`, expected one of `packets`, `tasks`, `switches`
    vm.desk.workloads.build.cold=maybe
        vm.desk.workloads.build.cold: invalid type: string "maybe", expected true or false
    vm.desk.workloads.build.command=make
        vm.desk.workloads.build.command: invalid type: string "make", expected an array
    load.0.run=type
        load.0.run: unknown variant `type`, expected one of `ask`, `bulk`, `edit`, `launch`, `page`
    load.0.run=edit
        everything.toml:62: load.0.protocol: unknown field `protocol`, expected `think`, with run = "edit"
    load.2.bytes=1
        load.2.bytes: unknown field `bytes`, expected `port`, with run = "bulk"
    load.3.port=1
        load.3.port: unknown field `port`, expected `think`, with run = "edit"
    load.2.run=ask
        load.2: missing field `protocol`, with run = "ask"
    load.2={ vm = "net", run = "bulk" }
        load.2: missing field `port`, with run = "bulk"
    load.3={ vm = "net", run = "edit" }
        load.3: missing field `think`, with run = "edit"
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
        everything.toml:63: load.0.port = 7 (udp): allowed is none: no echo, shift or read-burst runs in disk
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
