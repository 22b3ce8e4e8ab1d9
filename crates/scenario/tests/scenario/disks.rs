//! The modelled disk of the lab, and who decides on it.

use frontdesk_scenario::{ArmDisk, IoScheduler, LoadKind, Overrides, Scenario, WorkloadKind};
use std::path::Path;

const BURSTS: &str = include_str!("../../../../scenarios/vsip/bursts.toml");

fn parse(assignments: &[&str]) -> Result<Scenario, String> {
    let set = assignments.iter().map(ToString::to_string).collect();
    let overrides = Overrides { set, ..Overrides::default() };
    Scenario::parse(BURSTS, Path::new("bursts.toml"), &overrides).map_err(|error| error.to_string())
}

#[test]
fn arms_say_who_decides() {
    let scenario = parse(&[]).unwrap();
    assert!(scenario.disk_model.unwrap().has_arm());
    let of = |arm: &str| scenario.disk_of(&scenario.arms[arm]);
    assert_eq!(of("none"), ArmDisk::default());
    assert!(of("bfq").low_latency && !of("bfq-steady").low_latency);
    assert_eq!(
        (of("bfq-first").scheduler, of("bfq-first").first),
        (IoScheduler::Bfq, vec!["desk".to_owned()])
    );
    assert_eq!(of("bfq-weight").weights["desk"], 1000);
    let (vsip, flash) = (of("vsip"), of("vsip-flash"));
    assert!(vsip.back_end && vsip.arm && flash.back_end && !flash.arm);
    assert!(scenario.has_keyboard("desk") && !scenario.has_keyboard("reader"));
    assert!(matches!(scenario.loads[0].kind, LoadKind::Ask { enter: true, .. }));
    let open = WorkloadKind::ReadBurst { port: 7, reads: 10, read_kib: 128, save_kib: 0 };
    assert_eq!(scenario.vms[0].workloads[0].kind, open);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = [
        ("disk_model.mb_per_s=0", "disk_model.mb_per_s = 0: allowed is 0.1 to 100000"),
        ("disk_model.seek=2s", "disk_model.seek = 2s: allowed is 0s to 1s"),
        ("arms.none.disk.first=[\"desk\"]", "with another `scheduler` than \"none\""),
        ("arms.mq-deadline.disk.weights={ desk = 10 }", "only with `scheduler = \"bfq\"`"),
        ("arms.mq-deadline.disk.low_latency=false", "only with `scheduler = \"bfq\"`"),
        ("arms.vsip.disk.first=[\"desk\"]", "not with `back_end`"),
        ("arms.none.disk.arm=false", "only with `back_end = true`"),
        ("arms.bfq-first.disk.first=[\"nobody\"]", "allowed is one of desk, reader"),
        ("arms.bfq-weight.disk.weights.desk=0", "allowed is 1 to 1000"),
        ("arms.bfq.disk.scheduler=cfq", "unknown variant `cfq`"),
        ("vm.desk.workloads.open.read_kib=6", "allowed is a multiple of 4"),
        ("vm.desk.workloads.open.reads=0", "allowed is 1 to 10000"),
    ];
    for (assignment, why) in refused {
        let error = parse(&[assignment]).unwrap_err();
        assert!(error.contains(why), "{assignment}: {error}");
    }
    let error = parse(&["vm.desk.desktop=true", "vm.desk.memory_mib=768"]).unwrap_err();
    assert!(error.contains("with a Debian system has no other disk"), "{error}");
    let without =
        BURSTS.replacen("[disk_model]\nseek = \"17ms\"\nrotation = \"8333us\"\nmb_per_s = 100.0\n", "", 1);
    let error = Scenario::parse(&without, Path::new("bursts.toml"), &Overrides::default()).unwrap_err();
    assert!(error.to_string().contains("only beside a `disk_model`"), "{error}");
}
