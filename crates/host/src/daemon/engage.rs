//! Taking control of VMs and giving it up again: whatever fails about one VM is that VM's affair alone.

use super::followed::{EngageError, FollowedVm, VmControls};
use super::{Daemon, DaemonError};
use crate::budget::Budget;
use crate::clock::monotonic;
use crate::config::Settings;
use crate::notification::VmCgroup;
use crate::share::ShareControl;
use frontdesk_control_protocol::{EJECTED, NOT_ACTING};
use frontdesk_engine::{Capabilities, EventKind, Standing, VmId, nanos};
use frontdesk_guardian::GroupError;
use frontdesk_linux::cgroup::{Group, RealTimeRule};
use frontdesk_linux::realtime;
use frontdesk_record::Record;

/// How much of a VM's real-time budget it may count on: what comes in a burst is on top of it, and a VM that
/// oversteps its budget is stalled.
const BUDGET_USED: f64 = 0.8;
const SHARED_GROUP: &str = "it shares its CPU control group with other processes, whose share frontdesk would change; start each VM in \
                            a group of its own, for example with `systemd-run --scope -p CPUWeight=100`";

impl Daemon {
    /// Takes control of a VM, or looks whether all is well with one that is under control. Where the daemon
    /// only watches, nothing.
    pub(super) fn engage(&mut self, id: VmId, place: Result<VmCgroup, String>) -> Result<(), DaemonError> {
        let result = match place {
            _ if !self.act || self.vms.iter().any(|vm| vm.id == id && vm.reserved) => Ok(()),
            Err(reason) => Err(EngageError::Vm(reason)),
            Ok(place) if !place.alone => {
                Err(EngageError::Vm(format!("{SHARED_GROUP} (it is in {})", place.group.dir().display())))
            }
            Ok(place) => self.take_control(id, place.group),
        };
        match result {
            Ok(()) => {
                if let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) {
                    vm.trouble = None;
                }
            }
            Err(EngageError::Vm(reason)) => self.disengage(id, reason)?,
            Err(EngageError::Daemon(error)) => return Err(error),
        }
        self.tell_weight(id)?;
        self.tell_limit(id)?;
        self.tell_policy(id)?;
        self.tell_standing(id)
    }

    fn take_control(&mut self, id: VmId, group: Group) -> Result<(), EngageError> {
        let Some(guardian) = &self.guardian else { return Ok(()) };
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
        if let Some(control) = &mut vm.control {
            if control.group == group {
                return Ok(control.share.refresh(guardian)?);
            }
            // It was moved: the former group is no longer its own.
            self.let_go(id).map_err(EngageError::Daemon)?;
            return self.take_control(id, group);
        }
        self.threads.adopt(id, vm.weight, &vm.qemu.vcpus, &vm.qemu.emulators, guardian)?;
        let mut share = ShareControl::take(&group, guardian)?;
        if vm.settings.weight.is_some() {
            share.set_base(vm.settings.shares(), guardian)?;
        }
        self.threads.set_weight(id, share.base())?;
        self.threads.set_taps(id, &vm.qemu.taps);
        vm.control = Some(VmControls { group, share });
        self.budgets_stale = true;
        Ok(())
    }

    /// Follows the threads of a VM under control that came or went.
    pub(super) fn hold_threads(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(guardian) = &self.guardian else { return Ok(()) };
        let Some(vm) = self.vms.iter().find(|vm| vm.id == id && vm.control.is_some()) else { return Ok(()) };
        match self.threads.renew(id, &vm.qemu.vcpus, &vm.qemu.emulators, guardian).map_err(EngageError::from)
        {
            Ok(()) => Ok(()),
            Err(EngageError::Vm(reason)) => self.disengage(id, reason),
            Err(EngageError::Daemon(error)) => Err(error),
        }
    }

    /// Gives up control of a VM, which is watched on. It is tried again when the VM is looked at the next
    /// time.
    pub(super) fn disengage(&mut self, id: VmId, reason: String) -> Result<(), DaemonError> {
        self.let_go(id)?;
        if let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) {
            if vm.told.as_ref() != Some(&reason) {
                tracing::warn!(vm = vm.name, "{NOT_ACTING}: {reason}");
                vm.told = Some(reason.clone());
            }
            vm.trouble = Some(reason);
        }
        self.tell_standing(id)
    }

    /// Puts a VM back as it was.
    pub(super) fn let_go(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(guardian) = &self.guardian else { return Ok(()) };
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
        let released = self.threads.release(id, guardian).map_err(EngageError::from);
        let control = vm.control.take();
        self.budgets_stale |= control.is_some();
        let shared =
            control.map_or(Ok(()), |control| control.share.release(guardian)).map_err(EngageError::from);
        for result in [released, shared] {
            match result {
                Ok(()) => {}
                Err(EngageError::Vm(reason)) => tracing::warn!(
                    vm = vm.name,
                    "the VM could not be put back as it was, which is tried again at the end: {reason}"
                ),
                Err(EngageError::Daemon(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the engine what the operator wants for a VM.
    fn tell_policy(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
        let policy = vm.settings.policy();
        if vm.policy.replace(policy) == Some(policy) {
            return Ok(());
        }
        self.recordings.push(|| Record::Policy { vm: id, policy });
        self.engine.configure_vm(id, policy)?;
        self.reconsider_mandate(id);
        self.apply()
    }

    /// Tells the engine whether a VM is acted on.
    pub(super) fn tell_standing(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
        let standing = match vm.control {
            _ if vm.reserved => Standing::Reserved,
            Some(_) => Standing::Acting,
            None => Standing::Observed,
        };
        if std::mem::replace(&mut vm.standing, standing) == standing {
            return Ok(());
        }
        self.feed(EventKind::Standing { vm: id, standing })
    }

    /// Tells the engine what can be done on this host.
    pub(super) fn tell_world(&mut self) -> Result<(), DaemonError> {
        let world = Capabilities {
            acts: self.act,
            charges_boosts: !self.threads.is_real_time(),
            realtime_permille: realtime_permille(self.budget),
            slice_ns: self.slice_ns,
            silence_ns: self.identities.longest_silence().map_or(0, nanos),
        };
        if world == self.engine.capabilities() {
            return Ok(());
        }
        self.feed(EventKind::World(world))
    }

    /// Tells the engine the weight of a VM, which others may have changed.
    fn tell_weight(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
        let weight = vm.control.as_ref().map_or(vm.weight, |control| control.share.base());
        if std::mem::replace(&mut vm.weight, weight) == weight {
            return Ok(());
        }
        tracing::info!(vm = vm.name, weight, "the VM has another weight");
        if let Err(error) = self.threads.set_weight(id, weight) {
            tracing::warn!(vm = vm.name, "{error}");
        }
        self.feed(EventKind::Weight { vm: id, weight })
    }

    /// Tells the engine whether a VM that is acted on may only have so much.
    fn tell_limit(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
        let limited = vm.control.as_ref().is_some_and(|control| control.group.is_limited());
        if std::mem::replace(&mut vm.limited, limited) == limited {
            return Ok(());
        }
        tracing::info!(vm = vm.name, limited, "whether somebody limits the VM's CPU time has changed");
        self.feed(EventKind::Limited { vm: id, limited })
    }

    /// Tells the engine the weights of a VM's vCPUs inside it, where they are others than it was told.
    pub(super) fn tell_vcpu_weights(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(guardian) = &self.guardian else { return Ok(()) };
        let weights = match self.threads.look(id, guardian).map_err(EngageError::from) {
            Ok(weights) => weights,
            Err(EngageError::Vm(reason)) => return self.disengage(id, reason),
            Err(EngageError::Daemon(error)) => return Err(error),
        };
        for (vcpu, permille) in weights {
            let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
            if vm.vcpu_weights.insert(vcpu, permille).unwrap_or(1000) == permille {
                continue;
            }
            tracing::info!(vm = vm.name, vcpu, permille, "a vCPU has another weight inside its VM");
            self.feed(EventKind::VcpuWeight { vm: id, vcpu, permille })?;
        }
        Ok(())
    }

    /// Splits the real-time budget anew when VMs have come or gone. What cannot have one is only watched, the
    /// latest first.
    pub(super) fn grant(&mut self) -> Result<(), DaemonError> {
        if !self.threads.is_real_time() {
            return Ok(());
        }
        while std::mem::take(&mut self.budgets_stale) {
            let Some(guardian) = &self.guardian else { return Ok(()) };
            let controls = self.vms.iter().filter_map(|vm| vm.control.as_ref());
            let groups: Vec<Group> = controls.map(|control| control.group.clone()).collect();
            match self.budgets.grant(&groups, guardian) {
                Ok(budget) => {
                    self.budget = budget;
                    self.tell_world()?;
                }
                Err(GroupError::Guardian(error)) => return Err(error.into()),
                Err(error) => {
                    let under_control = || self.vms.iter().rev().filter(|vm| vm.control.is_some());
                    let gone = under_control().find(|vm| !group_exists(vm));
                    let Some(vm) = gone.or_else(|| under_control().next()) else {
                        tracing::warn!("the real-time budgets of control groups stay as they are: {error}");
                        return Ok(());
                    };
                    let id = vm.id;
                    self.disengage(id, error.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Goes on by real time if the kernel has ejected frontdesk's scheduler. Where the kernel refuses real
    /// time, too, all VMs are only watched from now on, and each is told so when no budget is granted.
    pub(super) fn check_threads(&mut self) -> Result<(), DaemonError> {
        let Some(guardian) = &self.guardian else { return Ok(()) };
        if let Some(reason) = self.threads.fall_back(guardian)? {
            let then = match self.budgets.rule() {
                RealTimeRule::Refused => {
                    "no VM is boosted any more, for this kernel refuses real time in control groups; restart the daemon to \
                     load the scheduler again"
                }
                RealTimeRule::Free | RealTimeRule::Budget => "boosts go on by real-time priority",
            };
            let ejection = format!("{EJECTED} ({reason}): {then}");
            tracing::warn!("{ejection}");
            self.ejection = Some(ejection);
            self.budgets_stale = true;
            self.tell_world()?;
        }
        Ok(())
    }

    fn configure(&mut self, policy: frontdesk_engine::Config) -> Result<(), DaemonError> {
        if policy != self.policy {
            self.policy = policy.clone();
            self.recordings.push(|| Record::Config(policy.clone()));
            self.bpf.count_acknowledgements(policy.tavs.acknowledgements)?;
            self.identities.set_io_threshold(policy.tavs.io_threshold);
            self.engine.configure(policy)?;
            self.reconsider_mandates();
        }
        Ok(())
    }

    /// Takes another configuration, and keeps all that is known.
    pub(super) fn reload(&mut self, settings: Settings) -> Result<(), DaemonError> {
        self.supervisor.reloading(monotonic());
        let before = std::mem::replace(&mut self.settings, settings);
        let sizes = |settings: &Settings| (settings.tavs.counter_bits, settings.tavs.tasks_per_vcpu);
        if sizes(&before) != sizes(&self.settings) {
            tracing::info!(
                "tavs.counter_bits and tavs.tasks_per_vcpu are sizes of tables: the new ones hold for VMs that come after"
            );
        }
        self.configure(self.settings.engine())?;
        if before.daemon.cpus != self.settings.daemon.cpus
            && let Err(error) = realtime::pin(&self.settings.daemon.cpus)
        {
            tracing::warn!("daemon.cpus stays as it was: {error}");
        }
        if before.control != self.settings.control {
            tracing::warn!("what [control] says holds from the next start");
        }
        let ids: Vec<VmId> = self.vms.iter().map(|vm| vm.id).collect();
        for id in ids {
            self.reconsider(id)?;
        }
        self.watcher.set(self.settings.vms.clone());
        tracing::info!("the configuration was reloaded");
        self.supervisor.ready(&self.summary());
        Ok(())
    }

    /// Stays with the configuration that there is, and says why.
    pub(super) fn refuse(&self, reason: &str) {
        tracing::error!("the configuration stays as it was, for the new one is wrong: {reason}");
        // Whoever asked for another one waits for an answer.
        self.supervisor.reloading(monotonic());
        self.supervisor.ready(&format!("{}; the new configuration is wrong: {reason}", self.summary()));
    }

    /// Applies what the configuration now says about a VM.
    fn reconsider(&mut self, id: VmId) -> Result<(), DaemonError> {
        let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else { return Ok(()) };
        let settings = self.settings.of_vm(&vm.name);
        let before = std::mem::replace(&mut vm.settings, settings);
        if before.weight != vm.settings.weight
            && let (Some(control), Some(guardian)) = (&mut vm.control, &self.guardian)
        {
            match control.share.set_base(vm.settings.shares(), guardian).map_err(EngageError::from) {
                Ok(()) => {}
                Err(EngageError::Vm(reason)) => self.disengage(id, reason)?,
                Err(EngageError::Daemon(error)) => return Err(error),
            }
        }
        self.tell_weight(id)?;
        self.tell_policy(id)
    }
}

/// What a VM may count on of its real-time budget, in permille of a CPU.
fn realtime_permille(budget: Option<Budget>) -> u32 {
    // No budget is more than some CPUs, and the smallest is still one.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    budget.map_or(1000, |budget| ((budget.cpus() * BUDGET_USED * 1000.0).round() as u32).max(1))
}

fn group_exists(vm: &FollowedVm) -> bool {
    vm.control.as_ref().is_some_and(|control| control.group.dir().is_dir())
}
