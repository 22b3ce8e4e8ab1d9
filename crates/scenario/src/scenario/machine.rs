//! The machine that a scenario runs on.

use super::{Arm, Guest, Host, Scenario};
use crate::allowed::{Violation, quoted, range, require};
use crate::study::PeriodSlice;
use frontdesk_workload::WorkloadKind;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The machine that is the host of the VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// This one, whose QEMU emulates the VMs' CPUs.
    #[default]
    This,
    /// An emulated one, made for the run, with an AMD processor that can run VMs: its guests run under KVM.
    Kvm,
}

impl Host {
    /// Number of CPUs of an emulated host that has all those that the scenario names.
    #[must_use]
    pub fn cpus(&self) -> u16 {
        let all = [&self.vm_cpus, &self.client_cpus, &self.busy_cpus].into_iter().flatten();
        all.max().map_or(1, |highest| highest.saturating_add(1))
    }

    pub(crate) fn validate(&self) -> Result<(), Violation> {
        range("host.dilation", self.dilation, 1.0..=100.0)?;
        let real = self.machine == Machine::This;
        #[allow(clippy::float_cmp)] // Exactly what is there if nothing was given.
        let dilated = self.dilation != 1.0;
        let allowed = "1, unless machine = \"kvm\": only emulated hosts are slow";
        require(!(real && dilated), "host.dilation", self.dilation, allowed)
    }
}

impl Scenario {
    /// What an emulated host has no means for.
    pub(crate) fn validate_emulated(&self) -> Result<(), Violation> {
        if self.host.machine == Machine::This {
            return Ok(());
        }
        for vm in &self.vms {
            let key = format!("vm.{}.debian", vm.name);
            require(!vm.debian, key, true, "false, with host.machine = \"kvm\": its guests have no Debian system")?;
        }
        let by_path = self.guest.kernel.contains('/');
        let allowed = "a package series, with host.machine = \"kvm\"";
        require(!by_path, "guest.kernel", quoted(&self.guest.kernel), allowed)?;
        let checks = &self.checks;
        for (key, bar) in [
            ("checks.plugin_cpu_slowdown", checks.plugin_cpu_slowdown),
            ("checks.plugin_fork_slowdown", checks.plugin_fork_slowdown),
        ] {
            let found = bar.unwrap_or_default();
            require(bar.is_none(), key, found, "nothing, with host.machine = \"kvm\": no plugin is there")?;
        }
        Ok(())
    }

    /// The same for a host on which everything takes `host.dilation` times as long: every duration of the
    /// load, of the engine and of reservations multiplied by it, and bars that are durations alike. What is
    /// left has no dilation.
    #[must_use]
    pub fn dilated(&self) -> Scenario {
        let dilation = self.host.dilation;
        let by = |duration: Duration| duration.mul_f64(dilation);
        let mut scenario = Scenario {
            duration: by(self.duration),
            warmup: by(self.warmup),
            think_scale: self.think_scale * dilation,
            cost_scale: self.cost_scale * dilation,
            guest: Guest { time_slice: self.guest.time_slice.map(by), ..self.guest.clone() },
            host: Host { dilation: 1.0, ..self.host.clone() },
            policy: self.policy.dilated(dilation),
            ..self.clone()
        };
        for workload in scenario.vms.iter_mut().flat_map(|vm| &mut vm.workloads) {
            if let WorkloadKind::Shift { period, .. } = &mut workload.kind {
                *period = by(*period);
            }
        }
        for arm in scenario.arms.values_mut() {
            let Arm { policy, reserve, .. } = arm;
            *policy = policy.as_ref().map(|policy| policy.dilated(dilation));
            for of in reserve.values_mut() {
                *of = PeriodSlice { period: by(of.period), slice: by(of.slice) };
            }
        }
        let bar = &mut scenario.checks.decision_p99_us;
        *bar = bar.map(|bar| bar * dilation);
        scenario
    }
}
