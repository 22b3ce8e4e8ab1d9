//! The sources that tell guest tasks, of all VMs.

use super::IdentityError;
use super::names::Names;
use frontdesk_engine::{AsymmetricExplain, EpisodeCause, Event, EventKind, TaskId, Time, VmId};
use frontdesk_probes::BpfError;
use frontdesk_probes::kvm::{KvmError, KvmSource, Method, TaskMemory};
use frontdesk_qemu::reporter::{EpisodeOrder, Isolation, ReporterSource, Reporters};
use frontdesk_qemu::{QemuVm, TcgSource};
use frontdesk_ring::{Interest, TaskWords};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

/// How the tasks of guests under KVM are to be known, where there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityChoice {
    /// As well as the host allows.
    #[default]
    Auto,
    /// Not at exits, which costs a guest a little at each of them, but when the thread of a vCPU loses its
    /// CPU; a host without nested paging tells every load of CR3 all the same.
    ThreadSwitches,
}

/// Where the guest tasks of a VM are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The QEMU plugin.
    Plugin,
    /// The reporter that an operator installed in the guest.
    Reporter,
    /// KVM, by eBPF.
    Kvm(Method),
}

impl Identity {
    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Identity::Plugin => "QEMU plugin",
            Identity::Reporter => "guest reporter",
            Identity::Kvm(method) => method.name(),
        }
    }

    /// Whether every task switch is known, rather than samples of what runs: between two samples tasks run
    /// unseen, and a boost that ends with the next switch may end by time instead.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        match self {
            Identity::Plugin | Identity::Reporter => true,
            Identity::Kvm(method) => method.is_exact(),
        }
    }
}

/// For people, as in "QEMU plugin, exact".
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.name(), if self.is_exact() { "exact" } else { "sampled" })
    }
}

/// The sources that tell guest tasks, of all VMs.
///
/// # Waiting for a task switch or an interrupt
/// After [`watch`](Self::watch), call [`arm`](Self::arm), drain, and wait for [`fd`](Self::fd). In this order
/// nothing of interest is missed: it is either drained or wakes.
pub struct Identities {
    pub(super) epoll: OwnedFd,
    pub(super) plugins: BTreeMap<VmId, TcgSource>,
    /// While one speaks, it is believed rather than samples at thread switches. What is seen at exits is
    /// known at once, and so a reporter only tells names then.
    pub(super) reporters: Reporters,
    /// Of the VMs whose reporters are heard, and not believed.
    names: BTreeMap<VmId, Names>,
    /// Open while it follows a VM, for its programs cost every VM of the host, and keep KVM from being
    /// unloaded.
    pub(super) kvm: Option<KvmSource>,
    choice: IdentityChoice,
    pub(super) watched: Vec<WatchedVcpu>,
}

/// A vCPU whose next task switch or interrupt is waited for.
pub(super) struct WatchedVcpu {
    pub(super) vm: VmId,
    pub(super) vcpu: u16,
    pub(super) interest: Interest,
    /// Whether its source was asked to wake us, and has not yet.
    pub(super) armed: bool,
}

/// How often a reporter reports at most that only tells names: it costs the guest next to nothing then, for
/// it is woken by no switch.
const PACE_OF_NAMES: Duration = Duration::from_millis(500);

/// What stands for KVM among the VMs in `epoll`: one ring serves all of them.
pub(super) const KVM: u64 = u64::MAX;
/// The same for the reporters, which wait together.
pub(super) const REPORTERS: u64 = u64::MAX - 1;

impl Identities {
    /// None yet. `io_threshold` is how long an I/O-bound task runs at most.
    ///
    /// # Errors
    /// If the process can have no more descriptors.
    pub fn new(choice: IdentityChoice, io_threshold: Duration) -> io::Result<Identities> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let reporters = Reporters::new(io_threshold)?;
        epoll::add(&epoll, reporters.fd(), epoll::EventData::new_u64(REPORTERS), epoll::EventFlags::IN)?;
        Ok(Identities {
            epoll,
            plugins: BTreeMap::new(),
            reporters,
            names: BTreeMap::new(),
            kvm: None,
            choice,
            watched: Vec::new(),
        })
    }

    /// An I/O-bound task runs no longer than that from now on.
    pub fn set_io_threshold(&mut self, threshold: Duration) {
        self.reporters.set_io_threshold(threshold);
    }

    /// For how long at most nothing is heard of a vCPU that runs, where its guest's tasks are only seen at
    /// exits: each tick of the host is one. `None` if that is not known.
    #[must_use]
    pub fn longest_silence(&self) -> Option<Duration> {
        let at_exits = self.kvm.as_ref().is_some_and(|kvm| kvm.method() == Method::Exit);
        if at_exits { crate::clock::tick().map(|tick| tick + tick / 4) } else { None }
    }

    /// Finds the best source for a VM and follows the VM by it, afresh if it is followed already. Appends
    /// what its vCPUs run now, as far as it is known.
    ///
    /// # Errors
    /// [`IdentityError`] says what the VM or the host lacks. The VM can be followed all the same, but nothing
    /// in it is boosted.
    pub fn follow(
        &mut self,
        vm: VmId,
        qemu: &QemuVm,
        out: &mut Vec<EventKind>,
    ) -> Result<Identity, IdentityError> {
        self.unfollow(vm);
        if let Some(plugin) = TcgSource::find(qemu.pid)? {
            let data = epoll::EventData::new_u64(u64::from(vm.0));
            epoll::add(&self.epoll, plugin.wake_fd(), data, epoll::EventFlags::IN)?;
            // The ring only tells what changes.
            out.extend(qemu.vcpus.iter().filter_map(|(vcpu, _)| {
                let task = plugin.current_task(*vcpu)?;
                Some(EventKind::TaskSwitch { vm, vcpu: *vcpu, task })
            }));
            self.plugins.insert(vm, plugin);
            self.listen(vm, qemu, PACE_OF_NAMES)?;
            return Ok(Identity::Plugin);
        }
        let result = self.follow_by_kvm(vm, qemu);
        let at_once = matches!(result, Err(_) | Ok(Identity::Kvm(Method::Switch)));
        let has_port = self.listen(vm, qemu, if at_once { Duration::ZERO } else { PACE_OF_NAMES })?;
        match (result, has_port) {
            (Ok(identity), _) => Ok(identity),
            (Err(_), true) => Err(IdentityError::NoReporter),
            (Err(error), false) => {
                self.unfollow(vm);
                Err(error)
            }
        }
    }

    /// Listens to the guest's reporter, which may speak now or later; whether there is a port for one.
    fn listen(&mut self, vm: VmId, qemu: &QemuVm, pace: Duration) -> Result<bool, IdentityError> {
        let vcpus = qemu.vcpus.last().map_or(0, |(index, _)| index.saturating_add(1));
        let now = crate::clock::monotonic();
        self.reporters
            .follow(vm, (qemu.pid, qemu.port.as_deref()), vcpus, pace, now)
            .map_err(IdentityError::Reporter)
    }

    fn follow_by_kvm(&mut self, vm: VmId, qemu: &QemuVm) -> Result<Identity, IdentityError> {
        if !runs_under_kvm(qemu.pid)? {
            return Err(IdentityError::NoPlugin);
        }
        let kvm = self.kvm()?;
        kvm.follow(vm, &threads(qemu)).map_err(KvmError::from)?;
        Ok(Identity::Kvm(kvm.method()))
    }

    /// The VM has other vCPUs now.
    ///
    /// # Errors
    /// If they cannot be followed.
    pub fn refollow(&mut self, vm: VmId, qemu: &QemuVm) -> Result<(), BpfError> {
        // The plugin's ring has a place for every vCPU there can be.
        if self.reporters.get(vm).is_some() {
            // It is listened to already, so there is nothing that could fail.
            let _ = self.listen(vm, qemu, PACE_OF_NAMES);
        }
        match &mut self.kvm {
            Some(kvm) if kvm.follows(vm) => {
                let followed = kvm.follow(vm, &threads(qemu));
                self.rearm(vm);
                followed
            }
            _ => Ok(()),
        }
    }

    fn kvm(&mut self) -> Result<&mut KvmSource, IdentityError> {
        match self.kvm {
            Some(ref mut kvm) => Ok(kvm),
            None => {
                let kvm = KvmSource::open(self.choice == IdentityChoice::Auto)?;
                let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&self.epoll, kvm.fd(), epoll::EventData::new_u64(KVM), edge)?;
                Ok(self.kvm.insert(kvm))
            }
        }
    }

    /// Stops following a VM. One that is not followed is no error. What has not been drained may be lost.
    pub fn unfollow(&mut self, vm: VmId) {
        self.watched.retain(|watched| watched.vm != vm);
        if let Some(plugin) = self.plugins.remove(&vm) {
            // The eventfd lives on in QEMU.
            let _ = epoll::delete(&self.epoll, plugin.wake_fd());
        }
        self.reporters.unfollow(vm);
        self.names.remove(&vm);
        if let Some(kvm) = &mut self.kvm {
            kvm.unfollow(vm);
            if kvm.is_idle() {
                let _ = epoll::delete(&self.epoll, kvm.fd());
                self.kvm = None;
            }
        }
    }

    /// Where the tasks of a VM are known from; `None` if they are not.
    #[must_use]
    pub fn of(&self, vm: VmId) -> Option<Identity> {
        if self.plugins.contains_key(&vm) {
            return Some(Identity::Plugin);
        }
        let kvm = self.kvm.as_ref().filter(|kvm| kvm.follows(vm)).map(|kvm| Identity::Kvm(kvm.method()));
        let at_thread_switches = matches!(kvm, None | Some(Identity::Kvm(Method::Switch)));
        if at_thread_switches && self.reporters.get(vm).is_some_and(ReporterSource::is_live) {
            return Some(Identity::Reporter);
        }
        kvm
    }

    /// Memory in which the tasks of a VM's vCPUs can be looked up at any time, and where they are in it;
    /// `None` if nothing tells them but a guest's reporter. The VM notifies its disks by these `eventfds`,
    /// given by the kernel's numbers, which the plugin need not know.
    ///
    /// # Errors
    /// If the kernel does not take what shows them.
    pub fn task_words(
        &mut self,
        vm: VmId,
        eventfds: &[u32],
    ) -> Result<Option<(BorrowedFd<'_>, TaskWords)>, BpfError> {
        if !self.plugins.contains_key(&vm) {
            // Its vCPUs may be followed afresh for that.
            self.rearm(vm);
        }
        if let Some(plugin) = self.plugins.get(&vm) {
            return Ok(Some(plugin.task_words()));
        }
        let Some(kvm) = self.kvm.as_mut().filter(|kvm| kvm.follows(vm)) else { return Ok(None) };
        Ok(Some((kvm.show_tasks(vm, eventfds)?.as_fd(), TaskMemory::words())))
    }

    /// Which process of the guest a task is, as the guest's reporter tells: its id, and its name, which can
    /// be printed.
    #[must_use]
    pub fn process(&self, vm: VmId, task: TaskId) -> Option<(u32, &str)> {
        let process = match self.of(vm) {
            Some(Identity::Reporter) => u32::try_from(task.0).ok()?,
            _ => self.names.get(&vm)?.process(task)?,
        };
        Some((process, self.reporters.get(vm)?.name(process)?))
    }

    /// Tells the extension in a guest of the episode that goes on, if there is one and it takes orders: which
    /// of its processes are background work, as far as their ids are known (vAMP §3.3).
    pub fn tell_of_episode(&mut self, vm: VmId, asymmetric: Option<&AsymmetricExplain>, now: Time) {
        let order = asymmetric.and_then(|asymmetric| {
            let episode = asymmetric.episode.as_ref().filter(|episode| episode.acts)?;
            let tasks = asymmetric.background.iter();
            let tasks = tasks.filter_map(|tag| self.process(vm, tag.task)).map(|(process, _)| process);
            let mut tasks: Vec<u32> = tasks.collect();
            tasks.sort_unstable();
            tasks.dedup();
            let sound = episode.cause == EpisodeCause::Sound;
            Some(EpisodeOrder { since: episode.since, until: episode.until, tasks, sound })
        });
        self.reporters.order(vm, order.as_ref().filter(|order| !order.tasks.is_empty()), now);
    }

    /// The VMs whose extension takes orders, or did.
    pub fn extensions(&self) -> impl Iterator<Item = VmId> {
        let takes = |vm: &VmId| self.extension(*vm).is_some_and(|isolation| isolation != Isolation::Off);
        self.reporters.vms().filter(takes)
    }

    /// What the extension in a guest does; `None` if nobody in it speaks.
    #[must_use]
    pub fn extension(&self, vm: VmId) -> Option<Isolation> {
        let reporter = self.reporters.get(vm).filter(|reporter| reporter.is_live())?;
        Some(reporter.isolation())
    }

    /// When there is something to [drain](Self::drain) for which nobody is woken.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.reporters.next_due()
    }

    /// Becomes readable when something of interest happens on a watched vCPU, as far as that is seen.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Appends what has happened since the last call, in order for each vCPU, and at `now` what plugins have
    /// lost. Never blocks.
    ///
    /// # Errors
    /// If the ring of KVM's events cannot be read, which no working kernel makes happen.
    pub fn drain(&mut self, now: Time, out: &mut Vec<Event>) -> Result<(), BpfError> {
        let lost = |vm, count| Event { at: now, kind: EventKind::Lost { vm: Some(vm), count } };
        let begin = out.len();
        let sources = self.plugins.len();
        for (&vm, plugin) in &mut self.plugins {
            let first = out.len();
            plugin.drain(vm, now, sources, out);
            // The ring belongs to QEMU, which may write any time into it: events from the future would never
            // leave.
            let limit = crate::clock::monotonic();
            out[first..].iter_mut().for_each(|event| event.at = event.at.min(limit));
            let count = plugin.take_dropped();
            out.extend((count > 0).then(|| lost(vm, count)));
        }
        let first = out.len();
        if let Some(kvm) = &mut self.kvm {
            kvm.drain(out)?;
        }
        // What a guest's reporter tells has other names for the tasks.
        let believed: Vec<VmId> =
            self.reporters.vms().filter(|vm| self.of(*vm) == Some(Identity::Reporter)).collect();
        let is_believed = |vm: VmId| believed.contains(&vm);
        let mut index = 0;
        // Once over all of them, however many a guest makes.
        out.retain(|event| {
            index += 1;
            index <= first || !tells_tasks(event.kind).is_some_and(is_believed)
        });
        out[begin..].iter().for_each(|event| note(&mut self.names, event));
        let names = &mut self.names;
        self.reporters.drain(now, out, is_believed, |vm, told| names.entry(vm).or_default().told(told));
        Ok(())
    }

    /// How many events of which VMs were lost under KVM since the last call. Takes a system call.
    ///
    /// # Errors
    /// If the counts cannot be read, which no working kernel makes happen.
    pub fn take_lost(&mut self) -> Result<Vec<(VmId, u64)>, BpfError> {
        self.kvm.as_mut().map_or_else(|| Ok(Vec::new()), KvmSource::take_lost)
    }
}

/// What is seen of a VM whose reporter tells names.
fn note(names: &mut BTreeMap<VmId, Names>, event: &Event) {
    let at = event.at;
    let mut of = |vm: VmId, note: &dyn Fn(&mut Names)| names.get_mut(&vm).map(note);
    match event.kind {
        EventKind::TaskSwitch { vm, vcpu, task } => of(vm, &|names| names.switched(vcpu, at, Some(task))),
        EventKind::TaskSeen { vm, vcpu, task } => of(vm, &|names| names.seen(vcpu, at, task)),
        EventKind::Halt { vm, vcpu } => of(vm, &|names| names.switched(vcpu, at, None)),
        _ => None,
    };
}

/// Whose guest tasks the event is about.
fn tells_tasks(kind: EventKind) -> Option<VmId> {
    match kind {
        EventKind::TaskSwitch { vm, .. }
        | EventKind::TaskSeen { vm, .. }
        | EventKind::Halt { vm, .. }
        | EventKind::Resume { vm, .. } => Some(vm),
        _ => None,
    }
}

/// The threads of its vCPUs.
fn threads(qemu: &QemuVm) -> Vec<(u16, i32)> {
    qemu.vcpus.iter().map(|(vcpu, thread)| (*vcpu, thread.tid)).collect()
}

/// Whether a process has a virtual machine of KVM's open.
fn runs_under_kvm(pid: i32) -> Result<bool, IdentityError> {
    let path = PathBuf::from(format!("/proc/{pid}/fd"));
    let descriptors = std::fs::read_dir(&path).map_err(|source| IdentityError::Process { path, source })?;
    // One may be closed meanwhile.
    let mut targets = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    Ok(targets.any(|target| target.as_os_str() == "anon_inode:kvm-vm"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_testing::{Need, leave_out};

    #[test]
    fn people_are_told_what_it_is_worth() {
        assert_eq!(Identity::Plugin.to_string(), "QEMU plugin, exact");
        assert_eq!(Identity::Kvm(Method::Trap).to_string(), "KVM, CR3 loads, exact");
        assert_eq!(Identity::Kvm(Method::Exit).to_string(), "KVM, CR3 at exits, sampled");
    }

    #[test]
    fn a_process_runs_under_kvm_if_it_has_a_virtual_machine() {
        let own = std::process::id().cast_signed();
        assert!(!runs_under_kvm(own).unwrap());
        match kvm_ioctls::Kvm::new().and_then(|kvm| kvm.create_vm()) {
            Ok(_machine) => assert!(runs_under_kvm(own).unwrap()),
            Err(error) => leave_out("a_process_runs_under_kvm_if_it_has_a_virtual_machine", Need::Kvm, error),
        }
        let error = runs_under_kvm(-1).unwrap_err().to_string();
        assert!(error.contains("/proc/-1/fd"), "{error}");
    }
}
