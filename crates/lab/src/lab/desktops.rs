//! The desktops of a run.

use super::{Lab, LabError, interrupted};
use crate::desktop::{screenshot, wait_for_desktop};
use crate::load::LoadError;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use frontdesk_lab_guest::Job;
use frontdesk_scenario::{Screenshot, VmSpec, WorkloadKind};
use std::sync::atomic::Ordering;

/// The name of what shows the desktop, among the workloads of its VM.
pub(super) const SESSION: &str = "desktop-session";

impl Lab<'_> {
    /// Starts the session of each desktop that has none, and waits until somebody can type.
    pub(super) fn start_desktops(&mut self) -> Result<(), LabError> {
        let mut started = Vec::new();
        for name in self.desktops() {
            let Some(vm) = self.vms.get_mut(&name) else { continue };
            if !vm.running.iter().any(|running| running == SESSION) {
                let command = vec![SESSION.to_owned()];
                let kind = WorkloadKind::Program { command, repeat: false, cold: false };
                vm.vm.start(SESSION, Job::from(kind))?;
                vm.running.push(SESSION.to_owned());
                started.push(name);
            }
        }
        for name in started {
            let Some(vm) = self.vms.get_mut(&name) else { continue };
            let socket = vm.vm.vnc().to_owned();
            let stop = &self.config.stop;
            let mut goes_on = || !stop.load(Ordering::Relaxed) && vm.vm.is_alive();
            wait_for_desktop(&name, &socket, &mut goes_on)?;
            interrupted(stop)?;
            // Its session may have ended, and says why.
            vm.vm.check()?;
        }
        Ok(())
    }

    /// Keeps what each desktop shows.
    pub(super) fn take_screenshots(&mut self, arm: &str) -> Result<(), LabError> {
        for name in self.desktops() {
            let Some(vm) = self.vms.get(&name) else { continue };
            let png = screenshot(vm.vm.vnc())
                .map_err(|error| LoadError::Desktop { vm: name.clone(), reason: error.to_string() })?;
            let png = BASE64_STANDARD.encode(png);
            self.screenshots.push(Screenshot { arm: arm.to_owned(), vm: name, png });
        }
        Ok(())
    }

    fn desktops(&self) -> Vec<String> {
        self.scenario.vms.iter().filter(|vm| vm.desktop).flat_map(VmSpec::names).collect()
    }
}
