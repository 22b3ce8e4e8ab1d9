//! One scenario in two worlds: what reservations mean to real VMs they mean to modelled ones.
//!
//! Needs root, QEMU, and what `make build` makes. Times are never asserted: what is compared is who gets how
//! much of the CPU.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_scenario::{Outcome, Repeat};
use std::path::Path;
use std::process::{Command, Stdio};

const FRONTDESK: &str = env!("CARGO_BIN_EXE_frontdesk");

/// What `frontdesk lab` or `frontdesk sim` finds for a scenario.
fn outcome(world: &str, folder: &Path) -> Outcome {
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/vsched/beside.toml");
    let file = folder.join(format!("{world}.json"));
    let mut command = Command::new(FRONTDESK);
    command.arg(world).arg(scenario).args(["--repeats", "1", "--duration", "8s", "--json"]).arg(&file);
    let output = command.stdin(Stdio::null()).output().unwrap();
    // Checks may fail on a busy machine; what could not be run at all has another status.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{world}: {output:?}");
    serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
}

/// The part of a CPU that a VM used.
fn part(repeat: &Repeat, vm: &str) -> f64 {
    repeat.cpu_ms[vm] / 1000.0 / repeat.seconds
}

#[test]
fn reservations_mean_the_same_to_real_vms_and_to_modelled_ones() {
    let folder = tempfile::tempdir().unwrap();
    let worlds = ["lab", "sim"].map(|world| (world, outcome(world, folder.path())));
    let [(_, lab), (_, sim)] = &worlds;
    let arms = |outcome: &Outcome| outcome.arms.keys().cloned().collect::<Vec<_>>();
    assert_eq!(arms(lab), arms(sim));
    let checks =
        |outcome: &Outcome| outcome.checks.iter().map(|check| check.name.clone()).collect::<Vec<_>>();
    assert_eq!(checks(lab), checks(sim));
    for (world, outcome) in &worlds {
        let arm = |name: &str| &outcome.arms[name].repeats[0];
        let (stock, reserved) = (arm("stock"), arm("reserved"));
        let vms = |repeat: &Repeat| repeat.cpu_ms.keys().cloned().collect::<Vec<_>>();
        assert_eq!(vms(stock), vms(&sim.arms["stock"].repeats[0]), "{world}");
        // Whatever else runs on the machine: 1 of 5 ms at most, and 1 of 10 minutes as it wants all; a soft
        // limit is kept as well as the kernel preempts at ticks.
        let (interactive, batch) = (part(reserved, "interactive"), part(reserved, "batch"));
        assert!(interactive < 0.25, "{world}: {interactive}");
        assert!((0.08..0.14).contains(&batch), "{world}: {batch}");
        // VMs without a reservation are equals: the batch VM, too, where it has none.
        let others = || (1..=4).map(|number| format!("other-{number}"));
        let all = || others().chain(["batch".to_owned()]).collect::<Vec<_>>();
        for (repeat, equals) in [(stock, all()), (reserved, others().collect())] {
            let parts: Vec<f64> = equals.iter().map(|vm| part(repeat, vm)).collect();
            let least = parts.iter().copied().fold(f64::MAX, f64::min);
            let most = parts.iter().copied().fold(0.0, f64::max);
            assert!(most < 1.3 * least, "{world}: {equals:?} {parts:?}");
        }
    }
}
