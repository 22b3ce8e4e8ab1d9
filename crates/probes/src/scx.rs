//! The sched_ext mechanism: a BPF scheduler of frontdesk's own runs the threads of VMs, and charges boosts
//! like all other run time.
//!
//! `bpf/scx.bpf.c` says how it schedules, and `docs/sched-ext.md` what that means for a host.

pub(crate) mod abi;
mod skeleton;

pub use abi::{Gift, Mandate, Usage};

use crate::libbpf::silence_libbpf;
use crate::packet::{MAX_TAPS, tap_key};
use abi::{EMULATOR, MAX_VMS, ScxCommand};
use frontdesk_engine::{Boost, Protocol, Time, VmId};
use frontdesk_linux::Tap;
use libbpf_rs::{
    Link, MapCore, MapFlags, OpenObject, ProgramInput,
    skel::{OpenSkel as _, SkelBuilder as _},
};
use skeleton::{ScxSkel, ScxSkelBuilder};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    mem::MaybeUninit,
    path::Path,
};

/// Where the kernel tells about sched_ext.
const SYSFS: &str = "/sys/kernel/sched_ext";

/// Ports of a VM that are known to the kernel; packets to others are only user space's business.
const MAX_PORTS: usize = 256;

/// What the kernel calls the scheduler, at least in front.
pub const NAME: &str = "frontdesk";

/// Why the scheduler cannot be had, or not run a VM.
#[derive(Debug, thiserror::Error)]
pub enum ScxError {
    /// The kernel has no sched_ext.
    #[error(
        "this kernel has no sched_ext ({SYSFS}): Linux 6.12 or newer built with CONFIG_SCHED_CLASS_EXT has it"
    )]
    Absent,
    /// There can be only one such scheduler.
    #[error("the sched_ext scheduler {name:?} is {state}, and the kernel runs only one: stop it first")]
    Busy {
        /// The other scheduler.
        name: String,
        /// What the kernel says of it, such as "enabled".
        state: String,
    },
    /// libbpf or the kernel refused.
    #[error(
        "cannot {step} the sched_ext scheduler: {cause}; the log of target \"libbpf\" has what the verifier says"
    )]
    Setup {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        cause: String,
    },
    /// A map or program of the scheduler failed.
    #[error("cannot {step} of VM {vm}: {cause}", vm = .vm.0)]
    Vm {
        /// The VM.
        vm: VmId,
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        cause: String,
    },
}

/// The scheduler is asked about threads that may not leave their CPU, too (`SCX_OPS_ENQ_MIGRATION_DISABLED`).
/// While one of its programs runs, the kernel takes the thread that is just losing the CPU for one: without
/// this it would get a new slice each time an ordinary thread preempts it, and keep the CPU from all others.
const ENQ_MIGRATION_DISABLED: u64 = 1 << 4;

/// Whether the kernel has sched_ext and nobody else uses it.
///
/// # Errors
/// [`ScxError::Absent`] or [`ScxError::Busy`].
pub fn probe() -> Result<(), ScxError> {
    let read =
        |file: &str| fs::read_to_string(Path::new(SYSFS).join(file)).map(|text| text.trim().to_owned());
    let state = read("state").map_err(|_| ScxError::Absent)?;
    if state == "disabled" {
        return Ok(());
    }
    Err(ScxError::Busy { name: read("root/ops").unwrap_or_default(), state })
}

/// The loaded scheduler. It runs the threads whose policy is `SCHED_EXT`, by what it was told of them.
/// Dropping it, or the end of its process, gives them back to the kernel's scheduler, though their policy
/// stays.
pub struct Scx {
    skel: ScxSkel<'static>,
    vms: HashMap<VmId, ScxAccount>,
    has_fast_path: bool,
    _links: Vec<Link>,
}

impl std::fmt::Debug for Scx {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Scx").field("vms", &self.vms).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct ScxAccount {
    number: u32,
    weight: u32,
    fast_path: FastPath,
}

/// What the kernel was told of a VM, so that it may boost by itself until user space takes that over or back.
/// A mandate is for one boost: a flood of packets gains nothing before user space has handled the first.
#[derive(Debug, Default)]
struct FastPath {
    taps: Vec<[u8; 20]>,
    ports: HashSet<[u8; 8]>,
    mandated: Option<Mandate>,
}

impl Scx {
    /// Loads the scheduler and makes it the kernel's. It has no threads yet. With `fast_path` it may be
    /// [mandated](Scx::mandate) to boost by itself, for packets that whoever listens to them from now on
    /// hears of later.
    ///
    /// # Errors
    /// What [`probe`] says, or [`ScxError::Setup`].
    pub fn load(fast_path: bool) -> Result<Scx, ScxError> {
        probe()?;
        silence_libbpf();
        // Kernels before 6.14 refuse the flag, and have no need of it.
        Scx::load_with(ENQ_MIGRATION_DISABLED, fast_path).or_else(|_| Scx::load_with(0, fast_path))
    }

    fn load_with(flags: u64, fast_path: bool) -> Result<Scx, ScxError> {
        let setup = |step| move |e: libbpf_rs::Error| ScxError::Setup { step, cause: format!("{e:#}") };
        // Once per run of the daemon, some bytes that are not worth a self-referential struct.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = ScxSkelBuilder::default().open(storage).map_err(setup("open"))?;
        open.progs.on_transmit.set_autoload(fast_path);
        open.struct_ops.frontdesk_mut().flags |= flags;
        let mut skel = open.load().map_err(setup("load"))?;
        let mut links = vec![skel.maps.frontdesk.attach_struct_ops().map_err(setup("start"))?];
        if fast_path {
            links.push(skel.progs.on_transmit.attach_trace().map_err(setup("attach the fast path of"))?);
        }
        Ok(Scx { skel, vms: HashMap::new(), has_fast_path: fast_path, _links: links })
    }

    /// Opens the account of a VM. `weight` is in the units of `cpu.shares` (1024 is the default).
    ///
    /// # Errors
    /// There are too many.
    pub fn open(&mut self, vm: VmId, weight: u32) -> Result<(), ScxError> {
        let taken: BTreeSet<u32> = self.vms.values().map(|account| account.number).collect();
        // Account 0 is that of threads that are no VM's.
        let number = (1..MAX_VMS).find(|number| !taken.contains(number)).ok_or_else(|| ScxError::Vm {
            vm,
            step: "open the account",
            cause: format!("there are {} already", MAX_VMS - 1),
        })?;
        update(&self.skel.maps.accounts, vm, number, &Usage::default().encode())?;
        self.vms.insert(vm, ScxAccount { number, weight: 0, fast_path: FastPath::default() });
        self.set_weight(vm, weight)
    }

    /// Closes the account of a VM, whose threads have left.
    pub fn close(&mut self, vm: VmId) {
        self.leave_fast_path(vm);
        self.vms.remove(&vm);
        self.tell_total_weight();
    }

    /// Charges a thread to the account of its VM from now on. `vcpu` is its index if it is one; the others
    /// are emulator threads.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn enter(&self, vm: VmId, tid: i32, vcpu: Option<u16>) -> Result<(), ScxError> {
        let Some(account) = self.vms.get(&vm) else { return Ok(()) };
        let vcpu = vcpu.map_or(EMULATOR, u32::from);
        update(&self.skel.maps.threads, vm, tid.cast_unsigned(), &abi::thread(account.number, vcpu))
    }

    /// Forgets a thread, and what was wanted of it.
    pub fn leave(&self, tid: i32) {
        // Deleting fails only for what is not there.
        let _ = self.skel.maps.threads.delete(&tid.to_ne_bytes());
    }

    /// Sets the dispatch preference of a vCPU.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn boost(&self, vm: VmId, tid: i32, level: Boost) -> Result<(), ScxError> {
        self.order(vm, ScxCommand::Boost { tid, level })
    }

    /// Sets the dispatch preference of the emulator threads of a VM: one system call, whatever their number.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn boost_emulators(&self, vm: VmId, level: Boost) -> Result<(), ScxError> {
        let Some(account) = self.vms.get(&vm) else { return Ok(()) };
        self.order(vm, ScxCommand::BoostEmulators { account: account.number, level })
    }

    /// Sets the weight of a vCPU among the threads of its VM, in permille of an ordinary thread's.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn weigh(&self, vm: VmId, tid: i32, permille: u32) -> Result<(), ScxError> {
        self.order(vm, ScxCommand::Weigh { tid, permille: permille.clamp(1, abi::MAX_PERMILLE) })
    }

    fn order(&self, vm: VmId, order: ScxCommand) -> Result<(), ScxError> {
        let failed = |cause| ScxError::Vm { vm, step: "change the boosts and weights", cause };
        let mut context = order.encode();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        self.skel.progs.obey.test_run(input).map(drop).map_err(|e| failed(format!("{e:#}")))
    }

    /// Changes the weight of a VM, from the next run of its threads on. One without account is no error.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn set_weight(&mut self, vm: VmId, weight: u32) -> Result<(), ScxError> {
        let Some(account) = self.vms.get_mut(&vm) else { return Ok(()) };
        account.weight = weight.clamp(1, abi::MAX_WEIGHT);
        update(&self.skel.maps.weights, vm, account.number, &account.weight.to_ne_bytes())?;
        self.tell_total_weight();
        Ok(())
    }

    /// The more weight there is in all, the less a VM may be ahead of the others.
    fn tell_total_weight(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.total_weight = self.vms.values().map(|account| u64::from(account.weight)).sum();
        }
    }

    /// What the VM has used since its account was opened, as the scheduler charged it; `None` if it has none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn usage(&self, vm: VmId) -> Result<Option<Usage>, ScxError> {
        let Some(account) = self.vms.get(&vm) else { return Ok(None) };
        let failed = |cause| ScxError::Vm { vm, step: "read the account", cause };
        let value = self.skel.maps.accounts.lookup(&account.number.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(|e| failed(format!("{e:#}")))?;
        let usage = value.as_deref().and_then(Usage::decode);
        usage.map(Some).ok_or_else(|| failed("it has another size".to_owned()))
    }

    /// Why the kernel has ejected the scheduler, if it has: an administrator's wish, a fault, or a thread
    /// that did not get to run for seconds. Its threads are then scheduled like ordinary ones. Costs a look
    /// at memory.
    #[must_use]
    pub fn ejected(&self) -> Option<String> {
        let bss = self.skel.maps.bss_data.as_deref()?;
        // SAFETY: the reference is valid; the kernel writes there at any time.
        let ejection = unsafe { std::ptr::from_ref(&bss.ejection).read_volatile() };
        (ejection.kind != 0).then(|| abi::text(&ejection.reason, &ejection.message))
    }

    /// Whether the kernel may be mandated to boost by itself.
    #[must_use]
    pub fn has_fast_path(&self) -> bool {
        self.has_fast_path
    }

    /// Says on which taps the packets of a VM come. Those of one that is another VM's, or for which there is
    /// no room, take the way through user space, and a VM without account has none.
    pub fn set_taps(&mut self, vm: VmId, taps: &[Tap]) {
        let Some(account) = self.vms.get_mut(&vm) else { return };
        let map = &self.skel.maps.taps;
        // Deleting fails only for what is not there.
        account.fast_path.taps.drain(..).for_each(|key| drop(map.delete(&key)));
        for tap in taps.iter().take(MAX_TAPS) {
            let Some(key) = tap_key(tap.netns, &tap.ifname) else { continue };
            if map.update(&key, &abi::receiver(vm, account.number), MapFlags::NO_EXIST).is_ok() {
                account.fast_path.taps.push(key);
            }
        }
    }

    /// Says whether packets to a port are those that a [mandate](Scx::mandate) is for. Repeating it costs
    /// nothing. Returns whether it was said before that they are.
    pub fn learn_port(&mut self, vm: VmId, protocol: Protocol, port: u16, awaited: bool) -> bool {
        let Some(account) = self.vms.get_mut(&vm) else { return false };
        let (map, ports) = (&self.skel.maps.ports, &mut account.fast_path.ports);
        let key = abi::port(vm, protocol, port);
        let known = ports.contains(&key);
        if known && !awaited {
            ports.remove(&key);
            let _ = map.delete(&key);
        } else if !known && awaited && ports.len() < MAX_PORTS {
            // Where the map is full, its packets take the way through user space.
            if map.update(&key, &[1], MapFlags::ANY).is_ok() {
                ports.insert(key);
            }
        }
        known
    }

    /// Says what the kernel may do by itself for a VM from now on. `handled` says up to when user space has
    /// handled the packets that may have used the former mandate, if any may: what the kernel gave for
    /// them is taken back, and what user space has [ordered](Scx::boost) holds. If the kernel has given
    /// something for a later packet, nothing is mandated before that is handled, too.
    ///
    /// One system call if there is anything to say.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn mandate(
        &mut self,
        vm: VmId,
        handled: Option<Time>,
        mandate: Option<Mandate>,
    ) -> Result<(), ScxError> {
        let Some(account) = self.vms.get_mut(&vm) else { return Ok(()) };
        let fast_path = &mut account.fast_path;
        if handled.is_none() && fast_path.mandated == mandate {
            return Ok(());
        }
        let mut context = abi::mandate(account.number, handled.unwrap_or(Time(0)), mandate.as_ref());
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        let failed = |cause| ScxError::Vm { vm, step: "mandate boosts", cause };
        let output = self.skel.progs.mandate.test_run(input).map_err(|e| failed(format!("{e:#}")))?;
        fast_path.mandated = mandate.filter(|_| output.return_value == 0);
        Ok(())
    }

    /// What the kernel has given a VM by itself and user space has not taken over or back yet.
    ///
    /// # Errors
    /// The scheduler cannot be asked.
    pub fn gift(&self, vm: VmId) -> Result<Option<Gift>, ScxError> {
        let Some(account) = self.vms.get(&vm).filter(|_| self.has_fast_path) else { return Ok(None) };
        let failed = |e| ScxError::Vm { vm, step: "ask for the kernel's boosts", cause: format!("{e:#}") };
        let found = self.skel.maps.mandates.lookup(&account.number.to_ne_bytes(), MapFlags::ANY);
        Ok(found.map_err(failed)?.and_then(|bytes| Gift::decode(&bytes)))
    }

    /// Forgets what the kernel was told for a VM.
    fn leave_fast_path(&mut self, vm: VmId) {
        // Whatever it gave ends with the threads, which have left.
        let _ = self.mandate(vm, Some(Time(u64::MAX)), None);
        let Some(account) = self.vms.get_mut(&vm) else { return };
        let FastPath { taps, ports, .. } = std::mem::take(&mut account.fast_path);
        taps.into_iter().for_each(|key| drop(self.skel.maps.taps.delete(&key)));
        ports.into_iter().for_each(|key| drop(self.skel.maps.ports.delete(&key)));
    }
}

fn update(map: &impl MapCore, vm: VmId, key: u32, value: &[u8]) -> Result<(), ScxError> {
    let failed = |e| ScxError::Vm { vm, step: "tell the scheduler", cause: format!("{e:#}") };
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY).map_err(failed)
}
