//! The plugin as QEMU sees it. Debian ships no `qemu-plugin.h`, so the few declarations that are needed are
//! here; the symbols are resolved when QEMU loads the plugin.
//!
//! Nothing here may panic: a panic would take the VM down.

use crate::decode::{Watched, decode, task};
use frontdesk_ring::apic::Command;
use frontdesk_ring::{Entry, Kind, MAX_VCPUS, Producer};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU64};

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

/// `QEMU_PLUGIN_CB_R_REGS`: the callback reads registers.
const READS_REGISTERS: c_int = 1;

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: extern "C" fn(PluginId, c_uint));
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
    fn qemu_plugin_get_registers() -> *mut GArray;
    fn qemu_plugin_read_register(handle: *mut c_void, to: *mut GByteArray) -> c_int;
    fn g_array_free(array: *mut GArray, free_segment: c_int) -> *mut c_char;
    fn g_byte_array_new() -> *mut GByteArray;
    fn g_byte_array_set_size(array: *mut GByteArray, len: c_uint) -> *mut GByteArray;
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

/// The x2APIC's interrupt command register.
const MSR_X2APIC_ICR: u32 = 0x830;

/// What QEMU's callbacks share. They carry no pointer of ours, so it is a global.
static PLUGIN: OnceLock<Plugin> = OnceLock::new();

struct Plugin {
    ring: Producer,
    vcpus: [Vcpu; MAX_VCPUS as usize],
}

/// State of a vCPU; used only by the thread that runs it.
struct Vcpu {
    registers: [AtomicPtr<c_void>; REGISTERS.len()],
    /// Receives register values; allocated once.
    buffer: AtomicPtr<GByteArray>,
    task: AtomicU64,
}

impl Vcpu {
    const fn new() -> Vcpu {
        Vcpu {
            registers: [const { AtomicPtr::new(null_mut()) }; REGISTERS.len()],
            buffer: AtomicPtr::new(null_mut()),
            task: AtomicU64::new(0),
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

    /// The lower half of a general-purpose register.
    fn register32(&self, number: usize) -> Option<u32> {
        u32::try_from(self.register(number)? & u64::from(u32::MAX)).ok()
    }
}

/// The plugin and the state of vCPU `index`.
fn vcpu(index: c_uint) -> Option<(&'static Plugin, u16, &'static Vcpu)> {
    let plugin = PLUGIN.get()?;
    let index = u16::try_from(index).ok()?;
    Some((plugin, index, plugin.vcpus.get(usize::from(index))?))
}

fn push(index: c_uint, kind: Kind) {
    let Some((plugin, index, _)) = vcpu(index) else { return };
    let now = clock_gettime(ClockId::Monotonic);
    let at_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
    plugin.ring.push(index, Entry { at_ns, kind });
}

/// Called by QEMU when it loads the plugin. It refuses (-1) what it can not work with.
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
    if PLUGIN.set(Plugin { ring, vcpus: [const { Vcpu::new() }; MAX_VCPUS as usize] }).is_err() {
        return refuse("it is loaded already");
    }
    // SAFETY: `id` is ours and the callbacks have the types that the interface asks for.
    unsafe {
        qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
        qemu_plugin_register_vcpu_idle_cb(id, on_idle);
        qemu_plugin_register_vcpu_resume_cb(id, on_resume);
        qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    }
    0
}

fn refuse(why: &str) -> c_int {
    // Not eprintln: it panics if standard error is closed.
    let _ = writeln!(std::io::stderr(), "frontdesk plugin: {why}");
    -1
}

extern "C" fn on_vcpu_init(_id: PluginId, index: c_uint) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
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

extern "C" fn on_idle(_id: PluginId, index: c_uint) {
    push(index, Kind::Halt);
}

extern "C" fn on_resume(_id: PluginId, index: c_uint) {
    push(index, Kind::Resume);
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
        for index in 0..qemu_plugin_tb_n_insns(block) {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            let mut bytes = [0u8; 16];
            let len = qemu_plugin_insn_data(instruction, bytes.as_mut_ptr().cast(), bytes.len());
            let (callback, data): (extern "C" fn(c_uint, *mut c_void), usize) =
                match decode(bytes.get(..len).unwrap_or(&bytes)) {
                    Some(Watched::LoadCr3(register)) => (on_load_cr3, usize::from(register)),
                    Some(Watched::WriteMsr) => (on_write_msr, 0),
                    None => continue,
                };
            let data = std::ptr::without_provenance_mut(data);
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, callback, READS_REGISTERS, data);
        }
    }
}

/// Before a load of CR3; `register` is the number of the register that it loads.
extern "C" fn on_load_cr3(index: c_uint, register: *mut c_void) {
    let Some((_, _, vcpu)) = vcpu(index) else { return };
    let Some(task) = vcpu.register(register.addr()).map(task) else { return };
    // Loading the value that is there is a TLB flush.
    if task != 0 && vcpu.task.load(Relaxed) != task {
        vcpu.task.store(task, Relaxed);
        push(index, Kind::Switch { task });
    }
}

/// Before a write of a model-specific register.
extern "C" fn on_write_msr(index: c_uint, _data: *mut c_void) {
    let Some((plugin, sender, vcpu)) = vcpu(index) else { return };
    if vcpu.register32(RCX) != Some(MSR_X2APIC_ICR) {
        return;
    }
    let (Some(high), Some(low)) = (vcpu.register32(RDX), vcpu.register32(RAX)) else { return };
    let Some(command) = Command::x2apic(high, low) else { return };
    let ids = (0..plugin.ring.vcpus()).map(|vcpu| (vcpu, u32::from(vcpu)));
    push(index, Kind::Ipi { to: command.targets(sender, ids), vector: command.vector });
}
