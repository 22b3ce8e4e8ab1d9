//! What the TCG plugin costs the guest: the same work in two VMs, with and without it, in turn.

use crate::lab::{LabConfig, LabError, interrupted};
use crate::{Kernel, RunningVm, VmConfig, cpu};
use frontdesk_lab_guest::Work;
use frontdesk_scenario::{Extra, Scenario};
use std::path::Path;
use std::time::Duration;

/// Rounds; each gives one value for each kind of work.
const ROUNDS: usize = 5;
/// In a round the VMs take turns this often, so that the machine's slower and faster moments meet both alike.
const TURNS: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(120);
const SPIN: Work = Work::Spin { steps: 25_000_000 };
const FORK: Work = Work::Fork { rounds: 40 };

/// Measures the slowdown of CPU-bound and of fork-heavy guest work, one value per round.
///
/// Compared is the CPU time of the whole VM, so that what else runs on the machine does not count.
pub(crate) fn measure(
    scenario: &Scenario,
    config: &LabConfig,
    kernel: &Kernel,
    initrd: &Path,
    run_dir: &Path,
    extra: &mut Extra,
) -> Result<(), LabError> {
    let boot = |name: &str, plugin| -> Result<RunningVm, LabError> {
        let mut vm = RunningVm::boot(&VmConfig {
            plugin,
            cpus: scenario.host.vm_cpus.clone(),
            ..VmConfig::new(name, kernel, initrd, run_dir)
        })?;
        vm.wait_ready(TIMEOUT)?;
        Ok(vm)
    };
    let mut with = boot("plugin-on", config.plugin.clone())?;
    let mut without = boot("plugin-off", None)?;
    // The first round warms the translation caches and is not counted.
    for round in 0..=ROUNDS {
        for (work, slowdowns) in [(SPIN, &mut extra.plugin_cpu), (FORK, &mut extra.plugin_fork)] {
            interrupted(&config.stop)?;
            let mut costs = [0.0, 0.0];
            for turn in 0..TURNS {
                // Who goes first alternates, too.
                let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
                for vm in order {
                    costs[vm] += cost(if vm == 0 { &mut with } else { &mut without }, work)?;
                }
            }
            if round > 0 {
                slowdowns.push(costs[0] / costs[1] - 1.0);
            }
        }
    }
    Ok(())
}

/// CPU seconds that the VM used for the work.
fn cost(vm: &mut RunningVm, work: Work) -> Result<f64, LabError> {
    let time = |vm: &RunningVm| {
        cpu::process_ns(vm.pid())
            .map_err(|source| LabError::Io { what: format!("CPU time of VM {}", vm.name()), source })
    };
    let before = time(vm)?;
    vm.run(work, TIMEOUT)?;
    Ok(Duration::from_nanos(time(vm)?.saturating_sub(before)).as_secs_f64())
}
