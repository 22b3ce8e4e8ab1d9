//! What the checks of a scenario must be: bars, and subjects that are measured.

use crate::allowed::{Violation, one_of, quoted, require};
use crate::scenario::{Across, Compare, Daemon, Gain, Measure, Scenario, Subject, VmSpec, Workload};
use frontdesk_workload::WorkloadKind;
use indexmap::IndexSet;

impl Scenario {
    pub(crate) fn validate_checks(&self) -> Result<(), Violation> {
        for check in self.checks.clone().keys() {
            let Some(bar) = *check.bar else { continue };
            let key = format!("checks.{}", check.key);
            require(bar.is_finite() && bar >= 0.0, key.as_str(), bar, "a number, not below 0")?;
            if let Some(lacking) = check.lacks(&self.arms) {
                require(false, key, bar, format!("only beside {lacking}"))?;
            }
        }
        for (index, check) in self.checks.compare.iter().enumerate() {
            self.validate_compare(&format!("checks.compare.{index}"), check)?;
        }
        for (index, check) in self.checks.gain.iter().enumerate() {
            self.validate_gain(&format!("checks.gain.{index}"), check)?;
        }
        Ok(())
    }

    fn validate_compare(&self, key: &str, check: &Compare) -> Result<(), Violation> {
        let (field, bar) = match (check.at_most, check.at_least) {
            (Some(bar), None) => ("at_most", bar),
            (None, Some(bar)) => ("at_least", bar),
            (at_most, _) => {
                let found = at_most.map_or("nothing", |_| "set beside at_least");
                let allowed = "a bar here or in at_least, not both";
                return require(false, format!("{key}.at_most"), found, allowed);
            }
        };
        let alone = check.over.is_none() || check.minus.is_none();
        require(alone, format!("{key}.minus"), "set beside over", "either over or minus")?;
        // A difference may be negative.
        let (lowest, allowed) =
            if check.minus.is_some() { (f64::MIN, "a number") } else { (0.0, "a number, not below 0") };
        require(bar.is_finite() && bar >= lowest, format!("{key}.{field}"), bar, allowed)?;
        let of_requests = matches!(
            check.measure,
            Measure::Mean | Measure::P50 | Measure::P95 | Measure::P99 | Measure::Max
        );
        let allowed = "only beside a measure of response times";
        require(check.across != Across::All || of_requests, format!("{key}.across"), quoted("all"), allowed)?;
        let sides = [("of", Some(&check.of)), ("over", check.over.as_ref()), ("minus", check.minus.as_ref())];
        for (side, subject) in sides {
            let Some(subject) = subject else { continue };
            self.validate_subject(&format!("{key}.{side}"), check.measure, subject)?;
        }
        Ok(())
    }

    fn validate_gain(&self, key: &str, check: &Gain) -> Result<(), Violation> {
        self.validate_subject(&format!("{key}.of"), Measure::Rate, &check.of)?;
        self.validate_arm(format!("{key}.base"), &check.base)?;
        let (vm, workload) = (Some(check.loser.vm.as_str()), Some(check.loser.workload.as_str()));
        self.validate_work(&format!("{key}.loser"), vm, workload, |_| true)?;
        let bar = check.at_least;
        require(bar.is_finite() && bar > 0.0, format!("{key}.at_least"), bar, "a number above 0")
    }

    fn validate_subject(&self, key: &str, measure: Measure, subject: &Subject) -> Result<(), Violation> {
        self.validate_arm(format!("{key}.arm"), &subject.arm)?;
        let (vm, workload) = (subject.vm.as_deref(), subject.workload.as_deref());
        match measure {
            Measure::Mean | Measure::P50 | Measure::P95 | Measure::P99 | Measure::Max => {
                self.validate_answers(key, vm, workload)
            }
            Measure::Share => self.validate_share(key, vm, workload),
            Measure::Rate => self.validate_work(key, vm, workload, |_| true),
            Measure::Frames | Measure::Dropped | Measure::Jitter | Measure::EstimateError => {
                self.validate_work(key, vm, workload, WorkloadKind::shows_frames)
            }
            Measure::Recovery => {
                self.validate_work(key, vm, workload, WorkloadKind::shows_frames)?;
                let mut others = self.vms.iter().filter(|other| vm.is_some_and(|vm| vm != other.name));
                let measure_key = key.rsplit_once('.').map_or(key, |(check, _)| check);
                let allowed = "only beside a workload with run = \"shift\" in another VM";
                require(others.any(shifts), format!("{measure_key}.measure"), quoted("recovery"), allowed)
            }
            Measure::Time => self.validate_work(key, vm, workload, WorkloadKind::is_timed),
            Measure::Pbhr | Measure::Unanswered => self.validate_belief(key, subject),
            Measure::Follow | Measure::Wasted => {
                self.validate_belief(key, subject)?;
                let mut seen = self.vms.iter().filter(|vm| vm.tracked);
                let measure = if measure == Measure::Follow { "follow" } else { "wasted" };
                let measure_key = key.rsplit_once('.').map_or(key, |(check, _)| check);
                let allowed = "only beside a workload with run = \"shift\" in a tracked VM";
                require(seen.any(shifts), format!("{measure_key}.measure"), quoted(measure), allowed)
            }
        }
    }

    fn validate_arm(&self, key: String, arm: &str) -> Result<(), Violation> {
        require(self.arms.contains_key(arm), key, quoted(arm), one_of(self.arms.keys()))
    }

    /// What frontdesk itself tells, which is of all VMs together.
    fn validate_belief(&self, key: &str, subject: &Subject) -> Result<(), Violation> {
        let watched = self.arms.iter().filter(|(_, arm)| arm.daemon != Daemon::Off).map(|(name, _)| name);
        let watched: Vec<_> = watched.collect();
        let allowed = format!("an arm whose daemon is not off, {}", one_of(&watched));
        require(watched.contains(&&subject.arm), format!("{key}.arm"), quoted(&subject.arm), allowed)?;
        for (field, name) in [("vm", &subject.vm), ("workload", &subject.workload)] {
            let found = name.as_deref().map(quoted).unwrap_or_default();
            let allowed = "nothing: this is measured of all VMs together";
            require(name.is_none(), format!("{key}.{field}"), found, allowed)?;
        }
        Ok(())
    }

    /// Response times: of which VMs, and of which workload in them.
    fn validate_answers(&self, key: &str, vm: Option<&str>, workload: Option<&str>) -> Result<(), Violation> {
        let waiting = self.loads.iter().filter(|load| load.kind.waits());
        // Somebody in front of a desktop asks no workload.
        let asked = waiting.filter_map(|load| {
            let vm = self.entry(&load.vm)?;
            let workload = load.target(vm);
            (workload.is_some() || load.kind.is_on_desktop()).then_some((vm, workload))
        });
        let asked: Vec<(&VmSpec, Option<&Workload>)> = asked.collect();
        let vms: IndexSet<_> = asked.iter().map(|(vm, _)| vm.name.as_str()).collect();
        let known = vm.map_or(!vms.is_empty(), |vm| vms.contains(vm));
        let found = vm.map_or_else(|| "all under load".to_owned(), quoted);
        require(known, format!("{key}.vm"), found, one_of(&vms))?;
        let Some(workload) = workload else { return Ok(()) };
        let meant = asked.iter().filter(|(entry, _)| vm.is_none_or(|vm| vm == entry.name));
        let workloads = meant.filter_map(|(_, workload)| workload.map(|workload| workload.name.as_str()));
        let workloads: IndexSet<_> = workloads.collect();
        require(workloads.contains(workload), format!("{key}.workload"), quoted(workload), one_of(&workloads))
    }

    /// CPU time, which is of a VM entry.
    fn validate_share(&self, key: &str, vm: Option<&str>, workload: Option<&str>) -> Result<(), Violation> {
        let entries = self.vms.iter().map(|vm| vm.name.as_str());
        let found = vm.map_or_else(|| "nothing".to_owned(), quoted);
        let known = vm.is_some_and(|vm| self.entry(vm).is_some());
        require(known, format!("{key}.vm"), found, one_of(entries))?;
        let found = workload.map(quoted).unwrap_or_default();
        let allowed = "nothing: this is measured of whole VMs";
        require(workload.is_none(), format!("{key}.workload"), found, allowed)
    }

    /// What a workload does: of one in one VM entry.
    fn validate_work(
        &self,
        key: &str,
        vm: Option<&str>,
        workload: Option<&str>,
        measured: fn(&WorkloadKind) -> bool,
    ) -> Result<(), Violation> {
        let found = |name: Option<&str>| name.map_or_else(|| "nothing".to_owned(), quoted);
        let Some(entry) = vm.and_then(|vm| self.entry(vm)) else {
            let entries = self.vms.iter().map(|vm| vm.name.as_str());
            return require(false, format!("{key}.vm"), found(vm), one_of(entries));
        };
        let measured = entry.workloads.iter().filter(|workload| measured(&workload.kind));
        let names: Vec<_> = measured.map(|workload| workload.name.as_str()).collect();
        let known = workload.is_some_and(|name| names.contains(&name));
        require(known, format!("{key}.workload"), found(workload), one_of(&names))
    }
}

/// Whether a VM has a workload that changes its character.
fn shifts(vm: &VmSpec) -> bool {
    vm.workloads.iter().any(|workload| matches!(workload.kind, WorkloadKind::Shift { .. }))
}
