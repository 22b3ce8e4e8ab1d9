//! What holds for a scenario on an emulated host.

use crate::allowed::{Violation, quoted, require};
use crate::scenario::{Agent, Arm, Guest, Host, Machine, Scenario};
use crate::study::PeriodSlice;
use frontdesk_workload::WorkloadKind;
use std::time::Duration;

impl Scenario {
    /// What an emulated host has no means for.
    pub(crate) fn validate_emulated(&self) -> Result<(), Violation> {
        if self.host.machine == Machine::This {
            let seen = self.arms.iter().find(|(_, arm)| arm.identity.is_some());
            let key = seen.map(|(name, _)| format!("arms.{name}.identity")).unwrap_or_default();
            let allowed = "nothing, unless host.machine = \"kvm\": here the plugin tells tasks";
            require(seen.is_none(), key, "given", allowed)?;
            let told = self.arms.iter().find(|(_, arm)| arm.agent == Some(Agent::Reporter));
            let key = told.map(|(name, _)| format!("arms.{name}.agent")).unwrap_or_default();
            let allowed = "another, unless host.machine = \"kvm\": here the plugin tells tasks";
            return require(told.is_none(), key, quoted("reporter"), allowed);
        }
        for vm in &self.vms {
            let key = format!("vm.{}.debian", vm.name);
            require(
                !vm.debian,
                key,
                true,
                "false, with host.machine = \"kvm\": its guests have no Debian system",
            )?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overrides;
    use std::path::Path;

    fn load(set: &[&str]) -> Result<Scenario, String> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/kvm/echo-mixed.toml");
        let set = set.iter().map(|set| (*set).to_owned()).collect();
        Scenario::load(&file, &Overrides { set, ..Overrides::default() }).map_err(|error| error.to_string())
    }

    #[test]
    fn a_dilation_is_in_every_duration_and_in_no_ratio() {
        let scenario = load(&["host.dilation=10", "arms.frontdesk.policy.tavs.io_threshold=2ms"]).unwrap();
        let slow = scenario.dilated();
        assert_eq!(slow.duration, scenario.duration * 10);
        assert_eq!(slow.warmup, scenario.warmup * 10);
        let think = [Duration::from_millis(100), Duration::from_secs(1)];
        assert_eq!(slow.scaled_think(think), scenario.scaled_think(think).map(|think| think * 10));
        assert_eq!(slow.scaled_cost(think[0]), scenario.scaled_cost(think[0]) * 10);
        let of_arm = slow.arms["frontdesk"].policy.as_ref().unwrap();
        assert_eq!(of_arm.tavs.io_threshold, Duration::from_millis(20));
        assert_eq!(slow.policy.ledger.period, scenario.policy.ledger.period * 10);
        assert_eq!(slow.policy.tavs.pb_ratio.to_bits(), scenario.policy.tavs.pb_ratio.to_bits());
        assert_eq!(slow.checks.compare, scenario.checks.compare);
        // It is in there once.
        assert_eq!(slow.dilated(), slow);
        let same = load(&["host.dilation=1"]).unwrap();
        assert_eq!(same.dilated(), same);
    }

    #[test]
    fn what_an_emulated_host_has_no_means_for_is_told() {
        for (set, says) in [
            (&["host.machine=this"][..], "host.dilation = 15"),
            (&["host.dilation=0.5"], "host.dilation = 0.5"),
            (&["host.machine=this", "host.dilation=1", "host.disturb=2"], "host.disturb = 2"),
            (&["host.machine=this", "host.dilation=1", "host.vhost=true"], "host.vhost = true"),
            (
                &["host.machine=this", "host.dilation=1", "host.nested_paging=false"],
                "host.nested_paging = false",
            ),
            (
                &["host.machine=this", "host.dilation=1", "arms.frontdesk.identity=thread-switches"],
                "arms.frontdesk.identity = given",
            ),
            (&["arms.stock.identity=thread-switches"], "arms.stock.identity = given"),
            (&["host.disturb=65"], "host.disturb = 65"),
            (
                &["host.machine=this", "host.dilation=1", "arms.stock.agent=reporter"],
                "arms.stock.agent = \"reporter\"",
            ),
            (&["checks.plugin_cpu_slowdown=0.1"], "checks.plugin_cpu_slowdown = 0.1"),
            (&["guest.debian.packages=[]", "vm.mixed.debian=true"], "vm.mixed.debian = true"),
        ] {
            let error = load(set).unwrap_err();
            assert!(error.contains(says), "{set:?}: {error}");
        }
        assert_eq!(load(&[]).unwrap().host.cpus(), 2);
    }
}
