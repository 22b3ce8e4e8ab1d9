//! The lab inside an emulated host.

use super::order::{self, Failure, Order, PROGRESS, Product};
use crate::lab::{self, LabConfig, LabError, Made, Progress};
use frontdesk_lab_guest::HANDOVER;
use frontdesk_scenario::{Guest, Outcome, Scenario, Timeline};
use std::path::Path;
use std::process::ExitCode;

/// The first argument of this program when it is the lab in an emulated host: [`inside`] is called then.
pub const INSIDE_ARGUMENT: &str = "lab-inside";

/// The shortest time slice of the host's scheduler.
const SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";

/// Runs the scenario that the host was made for.
#[must_use]
pub fn inside() -> ExitCode {
    let folder = Path::new(HANDOVER);
    let product: Product = carry_out(folder).map_err(|error| Failure {
        said: error.to_string(),
        lost: error.downcast_ref().is_some_and(LabError::is_of_lost_vm),
    });
    let file = folder.join(order::OUT).join(order::PRODUCT);
    let text = serde_json::to_vec(&product).map_err(std::io::Error::from);
    match text.and_then(|text| std::fs::write(file, text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leaving the result: {error}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(folder: &Path) -> Result<(Outcome, Vec<Timeline>), Box<dyn std::error::Error>> {
    let Order { scenario, recordings, release, made } =
        serde_json::from_slice(&std::fs::read(folder.join(order::ORDER))?)?;
    let dilation = scenario.host.dilation;
    dilate_slice(dilation)?;
    let kernel = folder.join(order::KERNEL);
    let scenario = scenario.dilated();
    let guest = Guest {
        kernel: kernel.join(order::IMAGE).to_string_lossy().into_owned(),
        modules: Some(kernel.join("lib/modules").join(release)),
        ..scenario.guest.clone()
    };
    let scenario = Scenario { guest, ..scenario };
    let kept = recordings.into_iter().enumerate();
    let config = LabConfig {
        guest: folder.join(order::GUEST),
        reporter: Some(folder.join(order::REPORTER)).filter(|program| program.exists()),
        plugin: None,
        frontdesk: folder.join(order::FRONTDESK),
        recordings: kept.map(|(at, of)| (of, folder.join(order::OUT).join(order::recording(at)))).collect(),
        stop: Default::default(),
        dilation,
    };
    let (mut outcome, timelines) = lab::run(&scenario, &config, made, &keep, &tell)?;
    outcome.host.dilation = Some(dilation).filter(|dilation| *dilation > 1.0);
    Ok((outcome, timelines))
}

/// Leaves a repeat for whoever goes on when this host is lost.
fn keep(number: usize, made: &Made) -> Result<(), LabError> {
    let file = Path::new(HANDOVER).join(order::OUT).join(order::made(number));
    let kept = serde_json::to_vec(made).map_err(std::io::Error::from);
    let kept = kept.and_then(|text| std::fs::write(&file, text));
    kept.map_err(|source| LabError::Io { what: format!("writing {}", file.display()), source })?;
    // All of it, to where it is found although the disk is never unmounted.
    rustix::fs::sync();
    Ok(())
}

/// Says on the console how far the run is.
fn tell(progress: &Progress) {
    if let Ok(text) = serde_json::to_string(progress) {
        // In a line of its own, whatever the kernel says meanwhile.
        println!("\n{PROGRESS}{text}");
    }
}

/// Makes the scheduler's slice as much longer as everything else takes.
fn dilate_slice(dilation: f64) -> Result<(), Box<dyn std::error::Error>> {
    let slice: f64 = std::fs::read_to_string(SLICE)?.trim().parse()?;
    std::fs::write(SLICE, format!("{:.0}", slice * dilation))?;
    Ok(())
}
