//! Checks are of what is measured.

use super::{parse_everything, refusals, set};

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
        "checks.compare.9.across=any",
        "checks.compare.10.of.vm=disk",
        "checks.compare.11.across=all",
        "checks.compare.11.of.vm=disc",
        "checks.compare.11.of={ arm = \"watch\" }",
        "checks.compare.11.of.workload=build",
        "checks.compare.12.across=all",
        "checks.compare.12.of.arm=stock",
        "checks.compare.12.of.vm=net",
        "checks.unanswered=-1",
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
        everything.toml:109: checks.compare.0.at_most = set beside at_least: allowed is a bar here or in at_least, not both
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
        everything.toml:141: checks.compare.5.of.workload = "build": allowed is none: there is none
    checks.compare.6.of.arm=stock
        checks.compare.6.of.arm = "stock": allowed is an arm whose daemon is not off, one of frontdesk, pb-1-4, watch
    checks.compare.6.of.vm=net
        checks.compare.6.of.vm = "net": allowed is nothing: this is measured of all VMs together
    checks.compare.7.of.workload=shift
        checks.compare.7.of.workload = "shift": allowed is nothing: this is measured of all VMs together
    checks.compare.7.of.arm=stock
        checks.compare.7.of.arm = "stock": allowed is an arm whose daemon is not off, one of frontdesk, pb-1-4, watch
    vm.net.tracked=false
        everything.toml:154: checks.compare.7.measure = "follow": allowed is only beside a workload with run = "shift" in a tracked VM
    checks.compare.8.of.arms=stock
        checks.compare.wasted boosts.of.arms: unknown field `arms`, expected one of `arm`, `vm`, `workload` (did you mean `arm`?)
    checks.compare.8.measure=waste
        checks.compare.wasted boosts.measure: unknown variant `waste`, expected one of `mean`, `p50`, `p95`, `p99`, `max`, `rate`, `time`, `frames`, `dropped`, `jitter`, `estimate-error`, `recovery`, `share`, `pbhr`, `unanswered`, `follow`, `wasted` (did you mean `wasted` or `rate`?)
    checks.compare.9.across=any
        checks.compare.mean response, frontdesk / stock, in each repeat.across: unknown variant `any`, expected one of `median`, `each`, `all`
    checks.compare.10.of.vm=disk
        checks.compare.10.of.vm = "disk": allowed is one of net, desk
    checks.compare.11.across=all
        checks.compare.11.across = "all": allowed is only beside a measure of response times
    checks.compare.11.of.vm=disc
        checks.compare.11.of.vm = "disc": allowed is one of net, disk, desk, hostile
    checks.compare.11.of={ arm = "watch" }
        checks.compare.11.of.vm = nothing: allowed is one of net, disk, desk, hostile
    checks.compare.11.of.workload=build
        checks.compare.11.of.workload = "build": allowed is nothing: this is measured of whole VMs
    checks.compare.12.across=all
        checks.compare.12.across = "all": allowed is only beside a measure of response times
    checks.compare.12.of.arm=stock
        checks.compare.12.of.arm = "stock": allowed is an arm whose daemon is not off, one of frontdesk, pb-1-4, watch
    checks.compare.12.of.vm=net
        checks.compare.12.of.vm = "net": allowed is nothing: this is measured of all VMs together
    checks.unanswered=-1
        checks.unanswered = -1: allowed is a number, not below 0
    checks.gain.0.of.arm=idle
        checks.gain.0.of.arm = "idle": allowed is one of stock, frontdesk, pb-1-4, watch
    checks.gain.0.of.vm=net
        everything.toml:194: checks.gain.0.of.workload = "files": allowed is one of echo, shift, sink, hog
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
    insta::assert_snapshot!(parse_everything(&set(&passive)).unwrap_err(), @r#"everything.toml:200: checks.share_error = 0.02: allowed is only beside an arm with daemon = "act""#);
}
