//! The eevdf model against what a kernel did, as `cargo bench -p frontdesk-sim --bench kernel -- --record
//! FILE` recorded it.

#![allow(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "parts of the bench"
)]

#[path = "../benches/kernel/case.rs"]
mod case;
#[path = "../benches/kernel/compare.rs"]
mod compare;
#[path = "../benches/kernel/model.rs"]
mod model;

use compare::Record;

#[test]
fn the_model_does_what_the_kernel_did() {
    let record: Record = serde_json::from_str(include_str!("kernel/measured.json")).unwrap();
    let mut off = Vec::new();
    for (case, measured) in &record.measured {
        let modelled = model::run(case, record.cpus, record.costs).unwrap();
        let missed = compare::rows(measured, &modelled).into_iter().filter(|row| !row.passes());
        off.extend(missed.map(|row| {
            format!(
                "{}: {} {}: kernel {:.3}, model {:.3}",
                case.name, row.who, row.what, row.kernel, row.model
            )
        }));
    }
    assert!(record.measured.len() >= 10 && off.is_empty(), "kernel {}: {off:#?}", record.kernel);
}
