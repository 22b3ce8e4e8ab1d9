//! What looks after tasks inside VMs: frontdesk's own, and what others would use in its place.

use super::desktops::SESSION;
use super::{Lab, LabError};
use frontdesk_lab_guest::Job;
use frontdesk_scenario::Agent;

/// What a VM's agent is called among its jobs; no workload has a name with a space.
const AGENT: &str = "its agent";
/// What a careful user gives background work.
const NICE: i8 = 10;

impl Lab<'_> {
    /// Starts and stops what looks after tasks inside the VMs that are followed.
    pub(super) fn set_agents(&mut self, arm: &str) -> Result<(), LabError> {
        let wanted = self.scenario.arms[arm].agent;
        for vm in self.vms.values_mut().filter(|vm| vm.tracked && vm.agent != wanted) {
            if vm.agent.is_some_and(|agent| agent != Agent::Nice) {
                vm.vm.stop(AGENT)?;
            }
            // What that has set stays.
            if vm.agent.is_some_and(|agent| !agent.is_ours()) {
                for name in &vm.running {
                    vm.vm.set_nice(name, 0)?;
                }
            }
            let program = || {
                let program = self.config.reporter.as_ref();
                program.map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
            };
            match wanted {
                None => {}
                Some(Agent::Nice) => {
                    for name in vm.running.iter().filter(|name| *name != SESSION) {
                        vm.vm.set_nice(name, NICE)?;
                    }
                }
                Some(Agent::SpikeProtection) => vm.vm.start(AGENT, Job::SpikeProtection)?,
                Some(agent @ (Agent::Reporter | Agent::Extension)) => {
                    let isolate = agent == Agent::Extension;
                    vm.vm.start(AGENT, Job::Reporter { program: program(), isolate })?;
                }
            }
            vm.agent = wanted;
        }
        Ok(())
    }
}
