//! The plugin as QEMU sees it. Debian ships no `qemu-plugin.h`, so the few declarations that are needed are
//! here; the symbols are resolved when QEMU loads the plugin.
//!
//! Nothing here may panic: a panic would take the VM down.

use crate::apic::{Apic, Meaning};
use crate::decode::{Store, WatchedInstruction, decode, interrupt, task};
use crate::device::{Device, Pages, may_access};
use frontdesk_ring::{Entry, EntryKind, MAX_VCPUS, Producer};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64};

type PluginId = u64;

#[repr(C)]
pub(crate) struct QemuInfo {
    target_name: *const c_char,
    version_min: c_int,
    version_current: c_int,
    system_emulation: bool,
    smp_vcpus: c_int,
    max_vcpus: c_int,
}

#[repr(C)]
struct RegisterDescriptor {
    handle: *mut c_void,
    name: *const c_char,
    feature: *const c_char,
}

#[repr(C)]
struct GArray {
    data: *mut c_char,
    len: c_uint,
}

#[repr(C)]
struct GByteArray {
    data: *mut u8,
    len: c_uint,
}

/// `QEMU_PLUGIN_CB_NO_REGS` and `QEMU_PLUGIN_CB_R_REGS`: whether the callback reads registers.
const READS_NOTHING: c_int = 0;
const READS_REGISTERS: c_int = 1;

/// `QEMU_PLUGIN_MEM_RW`: loads and stores.
const LOADS_AND_STORES: c_int = 3;

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: extern "C" fn(PluginId, c_uint));
    fn qemu_plugin_register_vcpu_exit_cb(id: PluginId, callback: extern "C" fn(PluginId, c_uint));
    fn qemu_plugin_register_vcpu_idle_cb(id: PluginId, callback: extern "C" fn(PluginId, c_uint));
    fn qemu_plugin_register_vcpu_resume_cb(id: PluginId, callback: extern "C" fn(PluginId, c_uint));
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: extern "C" fn(PluginId, *mut c_void));
    fn qemu_plugin_tb_n_insns(block: *const c_void) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const c_void) -> u64;
    fn qemu_plugin_tb_get_insn(block: *const c_void, index: usize) -> *mut c_void;
    fn qemu_plugin_insn_data(instruction: *const c_void, to: *mut c_void, len: usize) -> usize;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut c_void,
        callback: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_insn_vaddr(instruction: *const c_void) -> u64;
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut c_void,
        callback: extern "C" fn(c_uint, u32, u64, *mut c_void),
        flags: c_int,
        accesses: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_get_hwaddr(access: u32, address: u64) -> *const c_void;
    fn qemu_plugin_hwaddr_is_io(address: *const c_void) -> bool;
    fn qemu_plugin_hwaddr_device_name(address: *const c_void) -> *const c_char;
    fn qemu_plugin_get_registers() -> *mut GArray;
    fn qemu_plugin_read_register(handle: *mut c_void, to: *mut GByteArray) -> c_int;
    fn g_array_free(array: *mut GArray, free_segment: c_int) -> *mut c_char;
    fn g_byte_array_new() -> *mut GByteArray;
    fn g_byte_array_set_size(array: *mut GByteArray, len: c_uint) -> *mut GByteArray;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The version of QEMU's plugin interface that this plugin is written for.
#[unsafe(export_name = "qemu_plugin_version")]
pub(crate) static PLUGIN_VERSION: c_int = 4;

/// The general-purpose registers in the order of their numbers in instructions.
const REGISTERS: [&CStr; 16] = [
    c"rax", c"rcx", c"rdx", c"rbx", c"rsp", c"rbp", c"rsi", c"rdi", c"r8", c"r9", c"r10", c"r11", c"r12",
    c"r13", c"r14", c"r15",
];
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;

/// The upper bytes of the numbers that the interrupt controller's registers have in x2APIC mode.
const X2APIC: [u8; 3] = [0x08, 0, 0];

/// What QEMU's callbacks share. They carry no pointer of ours, so it is a global.
static PLUGIN: OnceLock<Plugin> = OnceLock::new();

struct Plugin {
    ring: Producer,
    vcpus: [VcpuState; MAX_VCPUS as usize],
}

/// State of a vCPU; used only by the thread that runs it.
struct VcpuState {
    registers: [AtomicPtr<c_void>; REGISTERS.len()],
    /// Receives register values; allocated once.
    buffer: AtomicPtr<GByteArray>,
    task: AtomicU64,
    apic: Apic,
    pages: Pages,
    /// The handler of a device's interrupt runs.
    in_interrupt: AtomicBool,
    /// Accesses to devices that were told since the task began to run or an interrupt came: a bit for each
    /// kind.
    told: AtomicU8,
}

impl VcpuState {
    const fn new() -> VcpuState {
        VcpuState {
            registers: [const { AtomicPtr::new(null_mut()) }; REGISTERS.len()],
            buffer: AtomicPtr::new(null_mut()),
            task: AtomicU64::new(0),
            apic: Apic::new(),
            pages: Pages::new(),
            in_interrupt: AtomicBool::new(false),
            told: AtomicU8::new(0),
        }
    }

    /// The value of a general-purpose register; `None` if QEMU does not tell.
    fn register(&self, number: usize) -> Option<u64> {
        let handle = self.registers.get(number)?.load(Relaxed);
        let buffer = self.buffer.load(Relaxed);
        if handle.is_null() || buffer.is_null() {
            return None;
        }
        // SAFETY: both pointers come from QEMU and glib, are never freed, and belong to this vCPU's thread.
        // After the read, `data` points to `len` bytes.
        let bytes = unsafe {
            g_byte_array_set_size(buffer, 0);
            if qemu_plugin_read_register(handle, buffer) <= 0 {
                return None;
            }
            std::slice::from_raw_parts((*buffer).data, usize::try_from((*buffer).len).ok()?)
        };
        bytes.first_chunk().copied().map(u64::from_le_bytes)
    }

    /// Something else runs from now on: the handler of a device's interrupt, or not.
    fn goes_on(&self, in_interrupt: bool) {
        self.in_interrupt.store(in_interrupt, Relaxed);
        self.told.store(0, Relaxed);
    }

    /// The lower half of a general-purpose register.
    fn register32(&self, number: usize) -> Option<u32> {
        u32::try_from(self.register(number)? & u64::from(u32::MAX)).ok()
    }
}

/// The plugin and the state of vCPU `index`.
fn vcpu(index: c_uint) -> Option<(&'static Plugin, u16, &'static VcpuState)> {
    let plugin = PLUGIN.get()?;
    let index = u16::try_from(index).ok()?;
    Some((plugin, index, plugin.vcpus.get(usize::from(index))?))
}

fn push(index: c_uint, kind: EntryKind) {
    let Some((plugin, index, _)) = vcpu(index) else { return };
    let now = clock_gettime(ClockId::Monotonic);
    let at_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
    plugin.ring.push(index, Entry { at_ns, kind });
}

fn notifies_disk(index: c_uint, in_interrupt: bool) {
    if let Some((plugin, index, _)) = vcpu(index) {
        plugin.ring.notifies_disk(index, in_interrupt);
    }
}

/// Called by QEMU when it loads the plugin. It refuses (-1) what it cannot work with.
///
/// # Safety
/// `info` is as QEMU's plugin interface describes it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    info: *const QemuInfo,
    _argc: c_int,
    _argv: *const *const c_char,
) -> c_int {
    // SAFETY: the caller promises a valid structure.
    let (info, target) = unsafe { (&*info, CStr::from_ptr((*info).target_name)) };
    if target != c"x86_64" || !info.system_emulation {
        return refuse("it works with qemu-system-x86_64 only");
    }
    let ring = match u16::try_from(info.max_vcpus).map(Producer::create) {
        Ok(Ok(ring)) => ring,
        Ok(Err(error)) => return refuse(&error.to_string()),
        Err(_) => return refuse("too many vCPUs"),
    };
    if PLUGIN.set(Plugin { ring, vcpus: [const { VcpuState::new() }; MAX_VCPUS as usize] }).is_err() {
        return refuse("it is loaded already");
    }
    // SAFETY: `id` is ours and the callbacks have the types that the interface asks for.
    unsafe {
        qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
        qemu_plugin_register_vcpu_exit_cb(id, on_vcpu_exit);
        qemu_plugin_register_vcpu_idle_cb(id, on_idle);
        qemu_plugin_register_vcpu_resume_cb(id, on_resume);
        qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    }
    0
}

/// The number of a vCPU's interrupt controller. It follows from the topology: with three cores in each of two
/// sockets, numbers 3 and 7 are left out. The plugin interface does not tell it, but QEMU exports what does;
/// should it not, all are taken to have their index.
fn apic_id(index: c_uint) -> u32 {
    type GetCpu = unsafe extern "C" fn(c_int) -> *mut c_void;
    type GetProperty = unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void) -> u64;
    // SAFETY: null is the handle for all that is loaded. The functions are what QEMU's sources say they are,
    // and may be called on the thread of a vCPU; a vCPU that calls us lives, and has this property.
    let id = unsafe {
        let get_cpu = dlsym(null_mut(), c"qemu_get_cpu".as_ptr());
        let get_property = dlsym(null_mut(), c"object_property_get_uint".as_ptr());
        if get_cpu.is_null() || get_property.is_null() {
            return index;
        }
        let get_cpu = std::mem::transmute::<*mut c_void, GetCpu>(get_cpu);
        let get_property = std::mem::transmute::<*mut c_void, GetProperty>(get_property);
        let cpu = c_int::try_from(index).map_or(null_mut(), |index| get_cpu(index));
        if cpu.is_null() { u64::MAX } else { get_property(cpu, c"apic-id".as_ptr(), null_mut()) }
    };
    u32::try_from(id).unwrap_or(index)
}

fn refuse(why: &str) -> c_int {
    // Not eprintln: it panics if standard error is closed.
    let _ = writeln!(std::io::stderr(), "frontdesk plugin: {why}");
    -1
}

extern "C" fn on_vcpu_init(_id: PluginId, index: c_uint) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    vcpu.apic.plug(apic_id(index));
    if !vcpu.buffer.load(Relaxed).is_null() {
        return;
    }
    // SAFETY: QEMU allows the call here, on the vCPU's thread. It returns an array of `len` descriptors with
    // static names, which we free; the handles in it stay valid.
    unsafe {
        vcpu.buffer.store(g_byte_array_new(), Relaxed);
        let array = qemu_plugin_get_registers();
        let Some(descriptors) = array.as_ref() else { return };
        let len = usize::try_from(descriptors.len).unwrap_or(0);
        for descriptor in std::slice::from_raw_parts(descriptors.data.cast::<RegisterDescriptor>(), len) {
            let name = CStr::from_ptr(descriptor.name);
            if let Some(slot) = REGISTERS.iter().position(|known| *known == name) {
                vcpu.registers[slot].store(descriptor.handle, Relaxed);
            }
        }
        g_array_free(array, 1);
    }
}

extern "C" fn on_vcpu_exit(_id: PluginId, index: c_uint) {
    if let Some((_, _, vcpu)) = vcpu(index) {
        vcpu.apic.unplug();
    }
}

extern "C" fn on_idle(_id: PluginId, index: c_uint) {
    push(index, EntryKind::Halt);
}

extern "C" fn on_resume(_id: PluginId, index: c_uint) {
    push(index, EntryKind::Resume);
}

extern "C" fn on_translate(_id: PluginId, block: *mut c_void) {
    // SAFETY: QEMU passes a translation block that is valid during the call, and so are the instructions in
    // it.
    unsafe {
        // Kernels live in the upper half. In a program of the lower half the instruction would fault, but
        // only after the callback: any program could then make tasks up.
        if qemu_plugin_tb_vaddr(block) >> 63 == 0 {
            return;
        }
        let mut last: Option<Instruction> = None;
        for index in 0..qemu_plugin_tb_n_insns(block) {
            let instruction = Instruction::of(block, index);
            // The way in from a device is where a block begins, or follows the mark that a jump may lead
            // there.
            if index <= 2
                && let Some(last) = last
                && let Some(vector) = interrupt(last.bytes(), instruction.bytes())
            {
                last.watch(on_interrupt, READS_NOTHING, vector.into());
            }
            match decode(instruction.bytes()) {
                Some(WatchedInstruction::LoadCr3(register)) => {
                    instruction.watch(on_load_cr3, READS_REGISTERS, register.into());
                }
                Some(WatchedInstruction::WriteMsr) => instruction.watch(on_write_msr, READS_REGISTERS, 0),
                Some(WatchedInstruction::WriteApic(store)) => {
                    instruction.watch(on_write_apic, READS_REGISTERS, store.packed());
                }
                Some(WatchedInstruction::InterruptReturn) => {
                    instruction.watch(on_interrupt_return, READS_NOTHING, 0);
                }
                None => {}
            }
            instruction.watch_accesses();
            last = Some(instruction);
        }
    }
}

/// An instruction that QEMU translates.
struct Instruction {
    handle: *mut c_void,
    bytes: [u8; 16],
    len: usize,
}

impl Instruction {
    /// # Safety
    /// `block` is a translation block during its callback, and has this many instructions.
    unsafe fn of(block: *const c_void, index: usize) -> Instruction {
        let mut bytes = [0u8; 16];
        // SAFETY: by the caller's promise; QEMU writes at most as much as there is room.
        let (handle, len) = unsafe {
            let handle = qemu_plugin_tb_get_insn(block, index);
            (handle, qemu_plugin_insn_data(handle, bytes.as_mut_ptr().cast(), bytes.len()))
        };
        Instruction { handle, bytes, len }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    /// Has accesses to devices told, if it may make some. Only while its block is translated.
    unsafe fn watch_accesses(&self) {
        // SAFETY: by the caller's promise the instruction is QEMU's still.
        unsafe {
            if may_access(qemu_plugin_insn_vaddr(self.handle), self.bytes()) {
                qemu_plugin_register_vcpu_mem_cb(
                    self.handle,
                    on_access,
                    READS_NOTHING,
                    LOADS_AND_STORES,
                    null_mut(),
                );
            }
        }
    }

    /// Has `callback` called with `data` before each time it is executed. Only while its block is translated.
    unsafe fn watch(&self, callback: extern "C" fn(c_uint, *mut c_void), flags: c_int, data: u64) {
        let data = std::ptr::without_provenance_mut(usize::try_from(data).unwrap_or(0));
        // SAFETY: by the caller's promise the instruction is QEMU's still.
        unsafe { qemu_plugin_register_vcpu_insn_exec_cb(self.handle, callback, flags, data) };
    }
}

/// Before a load of CR3; `register` is the number of the register that it loads.
extern "C" fn on_load_cr3(index: c_uint, register: *mut c_void) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    let Some(task) = vcpu.register(register.addr()).map(task) else { return };
    // Loading the value that is there is a TLB flush.
    if task != 0 && vcpu.task.load(Relaxed) != task {
        vcpu.task.store(task, Relaxed);
        vcpu.goes_on(false);
        push(index, EntryKind::Switch { task });
    }
}

/// On the way into the handler of a device's interrupt.
extern "C" fn on_interrupt(index: c_uint, vector: *mut c_void) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    let Ok(vector) = u8::try_from(vector.addr()) else { return };
    vcpu.apic.enter_device();
    vcpu.goes_on(true);
    push(index, EntryKind::Interrupt { vector });
}

/// Before a return from an interrupt or an exception.
extern "C" fn on_interrupt_return(index: c_uint, _data: *mut c_void) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    if vcpu.in_interrupt.load(Relaxed) {
        vcpu.goes_on(false);
    }
}

/// After an access to memory that may be a device's.
extern "C" fn on_access(index: c_uint, access: u32, address: u64, _data: *mut c_void) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    // SAFETY: QEMU allows these calls here, for this access, and names what it has for as long as it runs.
    let device = vcpu.pages.device(address, || unsafe {
        let address = qemu_plugin_get_hwaddr(access, address);
        if address.is_null() || !qemu_plugin_hwaddr_is_io(address) {
            return None;
        }
        let name = qemu_plugin_hwaddr_device_name(address);
        if name.is_null() { None } else { Device::of(CStr::from_ptr(name).to_bytes()) }
    });
    let Some(device) = device else { return };
    let in_interrupt = vcpu.in_interrupt.load(Relaxed);
    if device == Device::Disk {
        notifies_disk(index, in_interrupt);
        return;
    }
    let kind = 1 << (u8::from(device == Device::Sound) << 1 | u8::from(in_interrupt));
    let told = vcpu.told.load(Relaxed);
    if told & kind == 0 {
        vcpu.told.store(told | kind, Relaxed);
        push(index, EntryKind::Access { sound: device == Device::Sound, in_interrupt });
    }
}

/// Before a write of a model-specific register.
extern "C" fn on_write_msr(index: c_uint, _data: *mut c_void) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    let Some([register, upper @ ..]) = vcpu.register32(RCX).map(u32::to_le_bytes) else { return };
    if upper != X2APIC {
        return;
    }
    let (Some(high), Some(low)) = (vcpu.register32(RDX), vcpu.register32(RAX)) else { return };
    act(index, vcpu.apic.write_x2apic(register, high, low));
}

/// Before a store to the page of the interrupt controller: xAPIC mode.
extern "C" fn on_write_apic(index: c_uint, store: *mut c_void) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    let store = Store::unpacked(store.addr() as u64);
    let base = store.base.map_or(Some(0), |base| vcpu.register(base.into()));
    let (Some(base), Some(value)) = (base, vcpu.register32(store.source.into())) else { return };
    let address = base.wrapping_add_signed(store.offset.into());
    // Registers are 16 bytes apart, and there are 64.
    let Ok(register) = u8::try_from(address >> 4 & 0xff) else { return };
    act(index, vcpu.apic.write_xapic(register, value));
}

/// Reports what a write to the interrupt controller means.
fn act(index: c_uint, meaning: Option<Meaning>) {
    let Some((plugin, sender, _)) = vcpu(index) else { return };
    match meaning {
        Some(Meaning::Sends(command)) => {
            let vcpus = || (0..plugin.ring.vcpus()).zip(plugin.vcpus.iter().map(|vcpu| &vcpu.apic));
            let to = command.targets(sender, vcpus());
            // It is told first: were this thread put to sleep in between, a target would take what nobody
            // sent.
            push(index, EntryKind::Ipi { to, vector: command.vector });
            command.deliver(to, vcpus());
        }
        Some(Meaning::Taken) => push(index, EntryKind::IpiTaken),
        None => {}
    }
}
