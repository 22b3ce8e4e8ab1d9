//! The actuator of how threads are scheduled: for each thread of a VM, what it had, what is wanted of it, and
//! one change where they differ.
//!
//! A thread's state is a function of what it had when its VM was adopted, of its weight and of its boost.
//! Nothing else is remembered, so boosts and weights may come and go in any order, and the guardian needs to
//! know of each thread only once.

mod error;
mod scheduling;
mod wanted;

pub use error::ThreadsError;
pub use scheduling::SchedulingError;
pub(crate) use scheduling::{Scheduling, attributes_of};
pub(crate) use wanted::HIGHEST_PRIORITY;
pub use wanted::{EMULATOR_PRIORITY, MULTIMEDIA, VCPU_PRIORITY};

use frontdesk_control_protocol::BY_REAL_TIME;
use frontdesk_engine::{Boost, BoostTarget, Foreseen, Protocol, Time, VmId, nice_weight};
use frontdesk_guardian::{Guardian, GuardianError};
use frontdesk_linux::Tap;
use frontdesk_linux::cgroup::RealTimeRule;
use frontdesk_linux::sched::ThreadId;
use frontdesk_probes::scx::{Mandate, Scx, Usage};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use wanted::{ORDINARY, ThreadRole, Wish, by_real_time, by_sched_ext};

/// Which mechanism is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MechanismChoice {
    /// Real time, where the kernel lets VMs in control groups be real-time at all; otherwise sched_ext.
    ///
    /// Real time comes first because the kernel runs every ordinary thread before those of sched_ext: a
    /// process beside the VMs that computes would take nearly the whole CPU from them. `docs/sched-ext.md`
    /// has the measurements.
    #[default]
    Auto,
    /// Real-time priority while boosted; the VMs stay with the kernel's scheduler.
    RealTime,
    /// sched_ext, and real time where that is absent, taken or ejected.
    SchedExt,
}

/// What carries out what is wanted of threads.
#[derive(Debug, Default)]
enum Mechanism {
    /// Real-time priority, and niceness. What a VM runs boosted comes on top of its fair share, and the
    /// engine's ledger takes it back.
    #[default]
    RealTime,
    /// The scheduler of frontdesk's own. Boosted time is charged in the kernel: there is nothing to take
    /// back.
    SchedExt(Box<Scx>),
}

/// The threads of the VMs that it has adopted.
#[derive(Debug, Default)]
pub struct Threads {
    mechanism: Mechanism,
    vms: HashMap<VmId, Adopted>,
}

#[derive(Debug, Default)]
struct Adopted {
    /// Boosts that the kernel gave by itself and the engine ordered as well, and when the last one was given.
    taken_over: u64,
    last_gift: Time,
    /// vCPUs first: when boosts end at once, a boosted one must not meet ordinary emulator threads.
    threads: Vec<AdoptedThread>,
    emulators: Boost,
}

#[derive(Debug)]
struct AdoptedThread {
    scheduling: Scheduling,
    role: ThreadRole,
    wish: Wish,
}

impl Threads {
    /// None yet, by real time and niceness.
    #[must_use]
    pub fn by_real_time() -> Threads {
        Threads::default()
    }

    /// None yet, by frontdesk's own scheduler.
    #[must_use]
    pub fn by_sched_ext(scx: Scx) -> Threads {
        Threads { mechanism: Mechanism::SchedExt(Box::new(scx)), vms: HashMap::new() }
    }

    /// None yet, by the mechanism that is wanted and can be had. Where sched_ext is wanted but cannot be had,
    /// the log says why. `fast_path` is whether that is to have a [fast path](Threads::has_fast_path), and
    /// `real_time` what the kernel thinks of real-time threads in the VMs' control groups.
    #[must_use]
    pub fn start(choice: MechanismChoice, fast_path: bool, real_time: RealTimeRule) -> Threads {
        let wanted = match choice {
            MechanismChoice::RealTime => false,
            MechanismChoice::SchedExt => true,
            MechanismChoice::Auto => real_time == RealTimeRule::Refused,
        };
        match wanted.then(|| Scx::load(fast_path)) {
            Some(Ok(scx)) => Threads::by_sched_ext(scx),
            Some(Err(error)) => {
                tracing::warn!("{BY_REAL_TIME}: {error}");
                Threads::default()
            }
            None => Threads::default(),
        }
    }

    /// Whether boosts are real time. Only then do the VMs need real-time budgets, and the engine's changes of
    /// share be carried out: under sched_ext what they would take back has not been given.
    #[must_use]
    pub fn is_real_time(&self) -> bool {
        matches!(self.mechanism, Mechanism::RealTime)
    }

    /// Adopts a VM: records with the guardian what its threads have. A VM adopted before is released first.
    /// Threads that have vanished are left out, and so are those that somebody made real-time: they are ahead
    /// as it is. `weight` is that of the VM in the units of `cpu.shares`; real time leaves that to the VM's
    /// control group.
    ///
    /// # Errors
    /// If a thread's attributes cannot be read, recorded or changed; the VM is then not adopted.
    pub fn adopt(
        &mut self,
        vm: VmId,
        weight: u32,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), ThreadsError> {
        self.release(vm, guardian)?;
        if let Mechanism::SchedExt(scx) = &mut self.mechanism {
            scx.open(vm, weight)?;
        }
        self.vms.insert(vm, Adopted::default());
        let result = self.renew(vm, vcpus, emulators, guardian);
        if result.is_err() {
            // What failed is told; that taking the rest back fails as well adds nothing.
            let _ = self.release(vm, guardian);
        }
        result
    }

    /// Adopts what is new among the threads of an adopted VM, and lets go of those that are gone; the others
    /// keep what is wanted of them. A VM that is not adopted is no error.
    ///
    /// # Errors
    /// As [`Threads::adopt`]; the VM then keeps the threads that it has.
    pub fn renew(
        &mut self,
        vm: VmId,
        vcpus: &[(u16, ThreadId)],
        emulators: &[ThreadId],
        guardian: &Guardian,
    ) -> Result<(), ThreadsError> {
        let Threads { mechanism, vms } = self;
        let Some(adopted) = vms.get_mut(&vm) else { return Ok(()) };
        let vcpus = vcpus.iter().map(|&(index, thread)| (ThreadRole::Vcpu(index), thread));
        let all: Vec<_> =
            vcpus.chain(emulators.iter().map(|&thread| (ThreadRole::Emulator, thread))).collect();
        // One that does something else from now on is taken anew, and so its number is known to be no
        // stranger's.
        let gone = |thread: &mut AdoptedThread| !all.contains(&(thread.role, thread.scheduling.thread()));
        let gone: Vec<AdoptedThread> = adopted.threads.extract_if(.., gone).collect();
        mechanism.give_back(vm, gone, guardian)?;
        for (role, thread) in all {
            if adopted.threads.iter().any(|known| known.scheduling.thread() == thread) {
                continue;
            }
            let thread = thread.pin();
            let original = attributes_of(&thread).map_err(ThreadsError::sched(vm))?;
            let Some(original) = original.filter(|original| original.policy.nice().is_some()) else {
                continue;
            };
            let scheduling = Scheduling::take(thread, original, guardian)?;
            let boost = if role == ThreadRole::Emulator { adopted.emulators } else { Boost::None };
            let mut thread = AdoptedThread { scheduling, role, wish: Wish { boost, ..ORDINARY } };
            let result = mechanism.enter(vm, &mut thread);
            adopted.threads.push(thread);
            result?;
        }
        adopted.threads.sort_by_key(|thread| thread.role == ThreadRole::Emulator);
        Ok(())
    }

    /// Looks at the nice values of an adopted VM's vCPUs, which an operator may have changed by hand: what
    /// was set last is kept when boosts end. Returns what each vCPU's weight is by its own nice value, in
    /// permille of an ordinary thread's.
    ///
    /// # Errors
    /// If a thread's attributes cannot be read, recorded or changed.
    pub fn look(&mut self, vm: VmId, guardian: &Guardian) -> Result<Vec<(u16, u32)>, ThreadsError> {
        let Threads { mechanism, vms } = self;
        let Some(adopted) = vms.get_mut(&vm) else { return Ok(Vec::new()) };
        let mut weights = Vec::new();
        for thread in &mut adopted.threads {
            let ThreadRole::Vcpu(index) = thread.role else { continue };
            thread.scheduling.look(guardian).map_err(ThreadsError::of(vm))?;
            // If another value was found, a weight is relative to that from now on.
            mechanism.settle(vm, thread)?;
            let nice = thread.scheduling.original().policy.nice().and_then(|nice| i8::try_from(nice).ok());
            let permille = u64::from(nice_weight(nice.unwrap_or(0))) * 1000 / u64::from(nice_weight(0));
            weights.push((index, u32::try_from(permille).unwrap_or(u32::MAX)));
        }
        Ok(weights)
    }

    /// Sets the dispatch preference of a vCPU, or of the emulator threads of a VM. Repeating a preference
    /// costs nothing; a VM, vCPU or thread that is not there (any more) needs none.
    ///
    /// # Errors
    /// If the kernel refuses. A boost that fails is taken back.
    pub fn boost(&mut self, vm: VmId, target: BoostTarget, level: Boost) -> Result<(), ThreadsError> {
        let Threads { mechanism, vms } = self;
        let Some(adopted) = vms.get_mut(&vm) else { return Ok(()) };
        let result = mechanism.boost(vm, adopted, target, level);
        if result.is_err() && level > Boost::None {
            let _ = mechanism.boost(vm, adopted, target, Boost::None);
        }
        result
    }

    /// Sets the weight of a vCPU among the threads of its VM, in permille of what it had. It holds whenever
    /// the vCPU is not boosted. A VM or vCPU that is not there (any more) needs none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn weigh(&mut self, vm: VmId, vcpu: u16, permille: u32) -> Result<(), ThreadsError> {
        let Threads { mechanism, vms } = self;
        let Some(adopted) = vms.get_mut(&vm) else { return Ok(()) };
        let mut vcpus = adopted.threads.iter_mut().filter(|thread| thread.role == ThreadRole::Vcpu(vcpu));
        vcpus.try_for_each(|thread| mechanism.wish(vm, thread, Wish { weight: permille, ..thread.wish }))
    }

    /// Changes the weight of a VM. Real time leaves that to the VM's control group.
    ///
    /// # Errors
    /// If the scheduler cannot be told.
    pub fn set_weight(&mut self, vm: VmId, weight: u32) -> Result<(), ThreadsError> {
        match &mut self.mechanism {
            Mechanism::RealTime => {}
            Mechanism::SchedExt(scx) => scx.set_weight(vm, weight)?,
        }
        Ok(())
    }

    /// Whether any vCPU of the VM is boosted.
    #[must_use]
    pub fn is_boosted(&self, vm: VmId) -> bool {
        let boosted =
            |thread: &AdoptedThread| thread.role != ThreadRole::Emulator && thread.wish.boost > Boost::None;
        self.vms.get(&vm).is_some_and(|adopted| adopted.threads.iter().any(boosted))
    }

    /// What sched_ext has charged an adopted VM with; `None` by real time, where the kernel keeps no such
    /// account.
    ///
    /// # Errors
    /// If the account cannot be read.
    pub fn usage(&self, vm: VmId) -> Result<Option<Usage>, ThreadsError> {
        match &self.mechanism {
            Mechanism::RealTime => Ok(None),
            Mechanism::SchedExt(scx) => Ok(scx.usage(vm)?),
        }
    }

    /// Gives the threads of a VM what they had when adopted, and forgets it. A VM that is not adopted is no
    /// error.
    ///
    /// # Errors
    /// If a thread cannot be restored: the guardian still has it on record.
    pub fn release(&mut self, vm: VmId, guardian: &Guardian) -> Result<(), ThreadsError> {
        let Some(adopted) = self.vms.remove(&vm) else { return Ok(()) };
        let result = self.mechanism.give_back(vm, adopted.threads, guardian);
        if let Mechanism::SchedExt(scx) = &mut self.mechanism {
            scx.close(vm);
        }
        result
    }

    /// Why the kernel has ejected frontdesk's scheduler, if it is the mechanism and has been. Costs a look at
    /// memory.
    #[must_use]
    pub fn ejected(&self) -> Option<String> {
        match &self.mechanism {
            Mechanism::RealTime => None,
            Mechanism::SchedExt(scx) => scx.ejected(),
        }
    }

    /// Goes on by real time if the kernel has [ejected](Threads::ejected) the scheduler, and tells why it
    /// has. The VMs stay adopted with their weights, unboosted, and need real-time budgets from now on.
    ///
    /// What fails about one VM is told in the log, and that VM is not adopted any more.
    ///
    /// # Errors
    /// If the guardian does not answer.
    pub fn fall_back(&mut self, guardian: &Guardian) -> Result<Option<String>, GuardianError> {
        let Some(reason) = self.ejected() else { return Ok(None) };
        self.mechanism = Mechanism::RealTime;
        let mut failed = Vec::new();
        for (vm, adopted) in &mut self.vms {
            adopted.emulators = Boost::None;
            let wish = |thread: &mut AdoptedThread| {
                self.mechanism.wish(*vm, thread, Wish { boost: Boost::None, ..thread.wish })
            };
            if let Err(error) = adopted.threads.iter_mut().try_for_each(wish) {
                tracing::warn!("the VM is no longer boosted: {error}");
                failed.push(*vm);
            }
        }
        for vm in failed {
            match self.release(vm, guardian) {
                Err(ThreadsError::Guardian(error)) => return Err(error),
                // What failed was told.
                Ok(()) | Err(ThreadsError::Thread { .. } | ThreadsError::Scx(_)) => {}
            }
        }
        Ok(Some(reason))
    }

    /// Whether the kernel may be mandated to boost by itself when a packet comes, before the engine hears of
    /// it. The engine decides all the same: what it foresees is mandated for one packet, and when it has been
    /// told of that, the boost is its own, or taken back. [`Threads::set_taps`], [`Threads::learn_port`] and
    /// [`Threads::mandate`] do nothing where it may not.
    #[must_use]
    pub fn has_fast_path(&self) -> bool {
        match &self.mechanism {
            Mechanism::RealTime => false,
            Mechanism::SchedExt(scx) => scx.has_fast_path(),
        }
    }

    /// Says on which taps the packets of an adopted VM come.
    pub fn set_taps(&mut self, vm: VmId, taps: &[Tap]) {
        match &mut self.mechanism {
            Mechanism::SchedExt(scx) if scx.has_fast_path() => scx.set_taps(vm, taps),
            Mechanism::SchedExt(_) | Mechanism::RealTime => {}
        }
    }

    /// Says whether an I/O-bound task waits for packets to this port, and returns what was said before.
    pub fn learn_port(&mut self, vm: VmId, protocol: Protocol, port: u16, awaited: bool) -> bool {
        match &mut self.mechanism {
            Mechanism::SchedExt(scx) if scx.has_fast_path() => scx.learn_port(vm, protocol, port, awaited),
            Mechanism::SchedExt(_) | Mechanism::RealTime => false,
        }
    }

    /// A vCPU's boost was ordered because of what came at `at`: if the kernel gave it by itself before, how
    /// long after the packet that was, in nanoseconds.
    ///
    /// # Errors
    /// The scheduler cannot be asked.
    pub fn take_over(&mut self, vm: VmId, vcpu: u16, at: Time) -> Result<Option<u64>, ThreadsError> {
        let Threads { mechanism: Mechanism::SchedExt(scx), vms } = self else { return Ok(None) };
        let Some(adopted) = vms.get_mut(&vm) else { return Ok(None) };
        let is_it = |thread: &&AdoptedThread| thread.role == ThreadRole::Vcpu(vcpu);
        let tid = adopted.threads.iter().find(is_it).map(|thread| thread.scheduling.thread().tid);
        let Some(gift) =
            scx.gift(vm)?.filter(|gift| gift.at <= at && gift.vcpus.iter().any(|of| Some(*of) == tid))
        else {
            return Ok(None);
        };
        // It may have been given to several vCPUs.
        if std::mem::replace(&mut adopted.last_gift, gift.at) != gift.at {
            adopted.taken_over += 1;
        }
        Ok(Some(gift.took_ns))
    }

    /// How many boosts of an adopted VM that the kernel gave by itself the engine has ordered as well.
    #[must_use]
    pub fn taken_over(&self, vm: VmId) -> u64 {
        self.vms.get(&vm).map_or(0, |adopted| adopted.taken_over)
    }

    /// Mandates what the engine foresees, and nothing else from now on. `handled` is the time of the last
    /// packet to a known port if any was handled since the last call: what the kernel gave for it is taken
    /// back.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn mandate(
        &mut self,
        vm: VmId,
        handled: Option<Time>,
        foreseen: Option<&Foreseen>,
    ) -> Result<(), ThreadsError> {
        let Threads { mechanism: Mechanism::SchedExt(scx), vms } = self else { return Ok(()) };
        let Some(adopted) = vms.get(&vm).filter(|_| scx.has_fast_path()) else { return Ok(()) };
        let mandate = foreseen.map(|foreseen| {
            let is_foreseen =
                |role| matches!(role, ThreadRole::Vcpu(index) if foreseen.vcpus.contains(&index));
            let vcpus = adopted.threads.iter().filter(|thread| is_foreseen(thread.role));
            Mandate {
                vcpus: vcpus.map(|thread| thread.scheduling.thread().tid).collect(),
                level: foreseen.level,
                lasts_ns: foreseen.lasts_ns,
            }
        });
        Ok(scx.mandate(vm, handled, mandate)?)
    }
}

impl Mechanism {
    /// Takes a thread in that is on the guardian's record.
    fn enter(&mut self, vm: VmId, thread: &mut AdoptedThread) -> Result<(), ThreadsError> {
        if let Mechanism::SchedExt(scx) = self {
            let vcpu = match thread.role {
                ThreadRole::Vcpu(index) => Some(index),
                ThreadRole::Emulator => None,
            };
            // Its account must be known before it runs.
            scx.enter(vm, thread.scheduling.thread().tid, vcpu)?;
        }
        self.settle(vm, thread)
    }

    /// Gives a thread what is wanted of it.
    fn settle(&self, vm: VmId, thread: &mut AdoptedThread) -> Result<(), ThreadsError> {
        let original = thread.scheduling.original();
        let wanted = match self {
            Mechanism::RealTime => by_real_time(original, thread.role, thread.wish),
            Mechanism::SchedExt(_) => by_sched_ext(original),
        };
        thread.scheduling.set(wanted).map_err(ThreadsError::of(vm))
    }

    /// Changes what is wanted of a thread.
    fn wish(&self, vm: VmId, thread: &mut AdoptedThread, wish: Wish) -> Result<(), ThreadsError> {
        let before = std::mem::replace(&mut thread.wish, wish);
        if let (Mechanism::SchedExt(scx), ThreadRole::Vcpu(_)) = (self, thread.role) {
            let tid = thread.scheduling.thread().tid;
            if before.weight != wish.weight {
                scx.weigh(vm, tid, wish.weight)?;
            }
            if before.boost != wish.boost {
                scx.boost(vm, tid, wish.boost)?;
            }
        }
        self.settle(vm, thread)
    }

    /// Goes on where it can, and tells the first failure.
    fn boost(
        &self,
        vm: VmId,
        adopted: &mut Adopted,
        target: BoostTarget,
        level: Boost,
    ) -> Result<(), ThreadsError> {
        let role = match target {
            BoostTarget::Vcpu(index) => ThreadRole::Vcpu(index),
            BoostTarget::Emulators => {
                let before = std::mem::replace(&mut adopted.emulators, level);
                // One call for all of them.
                if let Mechanism::SchedExt(scx) = self
                    && before != level
                {
                    scx.boost_emulators(vm, level)?;
                }
                ThreadRole::Emulator
            }
        };
        let mut result = Ok(());
        for thread in adopted.threads.iter_mut().filter(|thread| thread.role == role) {
            result = result.and(self.wish(vm, thread, Wish { boost: level, ..thread.wish }));
        }
        result
    }

    /// Gives threads what they had. Goes on where it can, and tells the first failure.
    fn give_back(
        &self,
        vm: VmId,
        threads: Vec<AdoptedThread>,
        guardian: &Guardian,
    ) -> Result<(), ThreadsError> {
        let mut result = Ok(());
        for mut thread in threads {
            let restored = thread.scheduling.set(thread.scheduling.original()).map_err(ThreadsError::of(vm));
            if let Mechanism::SchedExt(scx) = self {
                scx.leave(thread.scheduling.thread().tid);
            }
            match restored {
                Ok(()) => thread.scheduling.forget(guardian)?,
                error => result = result.and(error),
            }
        }
        result
    }
}
