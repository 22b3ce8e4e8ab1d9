//! The smallest guest that KVM runs and that has tasks: a few instructions in 32-bit protected mode, and page
//! tables to load.

use anyhow::{Context as _, Result, bail, ensure};
use kvm_bindings::{kvm_msi, kvm_regs, kvm_segment, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuExit, VcpuFd, VmFd};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use vmm_sys_util::eventfd::EventFd;

/// Page tables, all of them the identity on the first 4 MiB: a task each.
pub(crate) const TASKS: [u32; 3] = [0x1_0000, 0x2_0000, 0x3_0000];

pub(crate) const CODE: u32 = 0x1000;
const NMI_HANDLER: u32 = 0x2000;
const COMMAND: u32 = 0x3000;
const HALTS: u32 = 0x3004;
const STEPS: u32 = 0x4000;
const GDT: u32 = 0x5000;
const IDT: u32 = 0x6000;
const STACK: u32 = 0x8000;
const PAGES: usize = 64;

/// How long user space takes for a step of the guest, so that the guest stays below the flood guard.
const PACE: Duration = Duration::from_micros(200);

/// The flood guard counts for so long before it begins anew.
const FLOOD_WINDOW: Duration = Duration::from_millis(1);

/// The port to which the guest writes between steps.
pub(crate) const STEP_PORT: u16 = 0x42;
/// The port to which the guest writes when it has come to its end.
pub(crate) const END_PORT: u16 = 0x43;

/// What the guest does between the steps of [`Program::Steps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// Nothing that leaves the guest.
    Nothing,
    /// Writes to a port: leaves for user space.
    Out,
    /// CPUID: leaves for KVM, and comes back soon.
    CpuId,
}

/// What the guest does, until the command is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    /// Loads the task that the command names, again and again.
    Obey,
    /// Loads the tasks of the list, one after the other, and halts; then all over again.
    Steps(Between),
}

impl Program {
    fn code(self) -> Vec<u8> {
        match self {
            Program::Obey => vec![
                0xa1, 0x00, 0x30, 0x00, 0x00, // mov eax, [COMMAND]
                0x85, 0xc0, // test eax, eax
                0x74, 0x05, // jz +5
                0x0f, 0x22, 0xd8, // mov cr3, eax
                0xeb, 0xf2, // jmp -14
                0xe6, 0x43, // out END_PORT, al
            ],
            Program::Steps(between) => {
                let [first, second] = match between {
                    Between::Nothing => [0x90, 0x90], // nop; nop
                    Between::Out => [0xe6, 0x42],     // out 0x42, al
                    Between::CpuId => [0x0f, 0xa2],   // cpuid
                };
                vec![
                    0xbe, 0x00, 0x40, 0x00, 0x00, // mov esi, STEPS
                    0xad, // lodsd
                    0x85, 0xc0, // test eax, eax
                    0x74, 0x07, // jz +7
                    0x0f, 0x22, 0xd8, // mov cr3, eax
                    first, second, 0xeb, 0xf4, // jmp -12
                    0xff, 0x05, 0x04, 0x30, 0x00, 0x00, // inc dword [HALTS]
                    0xf4, // hlt
                    0x83, 0x3d, 0x00, 0x30, 0x00, 0x00, 0x00, // cmp dword [COMMAND], 0
                    0x75, 0xdf, // jne -33
                    0xe6, 0x43, // out END_PORT, al
                ]
            }
        }
    }
}

#[repr(C, align(4096))]
struct Page([AtomicU32; 1024]);

/// The guest's memory, which the host writes to while it runs.
pub(crate) struct Memory(Vec<Page>);

impl Memory {
    pub(crate) fn new() -> Memory {
        let page = || Page([const { AtomicU32::new(0) }; 1024]);
        Memory(std::iter::repeat_with(page).take(PAGES).collect())
    }

    pub(crate) fn word(&self, address: u32) -> &AtomicU32 {
        let word = usize::try_from(address).expect("an address fits") / 4;
        &self.0[word / 1024].0[word % 1024]
    }

    pub(crate) fn write(&self, address: u32, bytes: &[u8]) {
        for (at, chunk) in (address..).step_by(4).zip(bytes.chunks(4)) {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(at).store(u32::from_le_bytes(word), SeqCst);
        }
    }

    pub(crate) fn write_words(&self, address: u32, words: &[u32]) {
        for (at, word) in (address..).step_by(4).zip(words) {
            self.word(at).store(*word, SeqCst);
        }
    }
}

/// Segments of code and data, from 0 to 4 GiB.
pub(crate) fn flat_memory(memory: &Memory) {
    memory.write_words(GDT, &[0, 0, 0x0000_ffff, 0x00cf_9a00, 0x0000_ffff, 0x00cf_9200]);
}

/// Has the guest handle a vector: a 32-bit interrupt gate.
pub(crate) fn interrupt_gate(memory: &Memory, vector: u8, handler: u32) {
    memory.write_words(IDT + u32::from(vector) * 8, &[8 << 16 | handler, 0x8e00]);
}

/// All of it, from address 0.
pub(crate) fn memory_region(memory: &Memory) -> Result<kvm_userspace_memory_region> {
    Ok(kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: u64::try_from(PAGES * size_of::<Page>())?,
        userspace_addr: u64::try_from(memory.0.as_ptr().expose_provenance())?,
    })
}

/// A running guest with one vCPU. It has to be ended: [`end`](Self::end).
pub(crate) struct Guest {
    memory: Arc<Memory>,
    vm: VmFd,
    /// Thread of the vCPU.
    pub(crate) tid: i32,
    begin: mpsc::Sender<()>,
    vcpu: JoinHandle<Result<()>>,
}

impl Guest {
    /// Makes a guest, whose vCPU waits for [`begin`](Self::begin). With `halts`, it halts inside KVM, until
    /// [`wake`](Self::wake); without, it comes back from a halt at once, by way of user space, and ends after
    /// that many.
    pub(crate) fn new(program: Program, steps: &[u32], halts: Halts) -> Result<Guest> {
        let memory = Arc::new(Memory::new());
        memory.write(CODE, &program.code());
        memory.write(NMI_HANDLER, &[0xcf]); // iret
        memory.write_words(COMMAND, &[TASKS[0]]);
        memory.write_words(STEPS, steps);
        flat_memory(&memory);
        // Vector 2 is the NMI's.
        interrupt_gate(&memory, 2, NMI_HANDLER);
        for table in TASKS {
            memory.write_words(table, &[0x87]); // 4 MiB, present, writable, for all
        }

        let kvm = Kvm::new().context("open /dev/kvm")?;
        let vm = kvm.create_vm().context("make a VM")?;
        // SAFETY: the memory lives as long as the thread that runs the guest, and is only used by atomic
        // operations.
        unsafe { vm.set_user_memory_region(memory_region(&memory)?) }.context("give the VM memory")?;
        if halts == Halts::InKvm {
            vm.create_irq_chip().context("make interrupt controllers")?;
        }
        let vcpu = vm.create_vcpu(0).context("make a vCPU")?;
        if halts == Halts::InKvm {
            // Only when it is set, KVM learns which vCPU it belongs to.
            let apic = vcpu.get_lapic().context("read the local APIC")?;
            vcpu.set_lapic(&apic).context("set the local APIC")?;
        }
        prepare(&vcpu)?;

        let (begin, begun) = mpsc::channel();
        let (tell_tid, tid) = mpsc::channel();
        let shared = Arc::clone(&memory);
        let vcpu = thread::spawn(move || {
            // The test's thread runs there, too, and takes the CPU from the guest now and then.
            let mut first = CpuSet::new();
            first.set(0);
            sched_setaffinity(None, &first)?;
            tell_tid.send(gettid().as_raw_nonzero().get())?;
            // If nobody says so, it is not to begin.
            if begun.recv().is_ok() { run(vcpu, &shared, halts) } else { Ok(()) }
        });
        Ok(Guest { memory, vm, tid: tid.recv()?, begin, vcpu })
    }

    pub(crate) fn begin(&self) -> Result<()> {
        Ok(self.begin.send(())?)
    }

    pub(crate) fn command(&self, task: u32) {
        self.memory.word(COMMAND).store(task, SeqCst);
    }

    /// How often it has come to a halt, which it tells before it does.
    pub(crate) fn halts(&self) -> u32 {
        self.memory.word(HALTS).load(SeqCst)
    }

    /// Interrupts the guest's halt.
    pub(crate) fn wake(&self) -> Result<()> {
        // As a device would: a message to the local APIC of vCPU 0, delivered as NMI.
        let nmi = kvm_msi { address_lo: 0xfee0_0000, data: 4 << 8, ..kvm_msi::default() };
        ensure!(self.vm.signal_msi(nmi).context("send an NMI")? > 0, "nobody took the NMI");
        Ok(())
    }

    /// What the guest writes to a port goes to an eventfd, and not to user space.
    pub(crate) fn ring(&self, port: u16, doorbell: &EventFd) -> Result<()> {
        let port = IoEventAddress::Pio(port.into());
        self.vm.register_ioevent(doorbell, &port, NoDatamatch).context("set a doorbell")
    }

    /// The same, of this value only.
    pub(crate) fn ring_for(&self, port: u16, value: u8, doorbell: &EventFd) -> Result<()> {
        let port = IoEventAddress::Pio(port.into());
        self.vm.register_ioevent(doorbell, &port, value).context("set a doorbell")
    }

    /// Waits until the guest has come to its end, after telling it to.
    pub(crate) fn end(self) -> Result<()> {
        self.command(0);
        self.wait()
    }

    /// Waits until the guest has come to its end.
    pub(crate) fn wait(self) -> Result<()> {
        drop(self.begin);
        self.vcpu.join().unwrap_or_else(|_| bail!("the vCPU's thread panicked"))
    }
}

/// Runs a test on the CPU that the guests run on: so that it takes the CPU from them.
pub(crate) fn pinned(test: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = sched_getaffinity(None)?;
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first)?;
    let result = test();
    sched_setaffinity(None, &before)?;
    result
}

/// What a halt of the guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Halts {
    /// KVM's business: its thread sleeps until an interrupt comes.
    InKvm,
    /// User space's, which lets the guest go on at once, and ends it after that many.
    InUserSpace(u32),
}

/// 32-bit protected mode with paging, in the first task.
fn prepare(vcpu: &VcpuFd) -> Result<()> {
    protected_mode(vcpu, |system| {
        system.cr0 = 0x8000_0031; // paging, numeric errors, extension type, protection
        system.cr3 = TASKS[0].into();
        system.cr4 = 0x10; // pages of 4 MiB
    })?;
    let general = kvm_regs { rip: CODE.into(), rsp: STACK.into(), rflags: 2, ..kvm_regs::default() };
    vcpu.set_regs(&general).context("set the registers")
}

/// 32-bit protected mode, and what `more` makes of it.
pub(crate) fn protected_mode(vcpu: &VcpuFd, more: impl FnOnce(&mut kvm_sregs)) -> Result<()> {
    let code = kvm_segment {
        limit: u32::MAX,
        selector: 8,
        type_: 11,
        present: 1,
        s: 1,
        db: 1,
        g: 1,
        ..kvm_segment::default()
    };
    let data = kvm_segment { selector: 16, type_: 3, ..code };
    let mut system = vcpu.get_sregs().context("read the system registers")?;
    system.cs = code;
    (system.ds, system.es, system.fs, system.gs, system.ss) = (data, data, data, data, data);
    (system.gdt.base, system.gdt.limit) = (GDT.into(), 3 * 8 - 1);
    (system.idt.base, system.idt.limit) = (IDT.into(), 256 * 8 - 1);
    more(&mut system);
    vcpu.set_sregs(&system).context("set the system registers")
}

fn run(mut vcpu: VcpuFd, memory: &Memory, halts: Halts) -> Result<()> {
    let mut halted = 0;
    loop {
        match vcpu.run().context("run the guest")? {
            VcpuExit::IoOut(END_PORT, _) => return Ok(()),
            VcpuExit::IoOut(..) => thread::sleep(PACE),
            VcpuExit::Hlt => {
                halted += 1;
                if halts == Halts::InUserSpace(halted) {
                    memory.word(COMMAND).store(0, SeqCst);
                    // What the flood guard held back is told at the next exit after its window.
                    thread::sleep(2 * FLOOD_WINDOW);
                }
            }
            other => bail!("the guest left unexpectedly: {other:?}"),
        }
    }
}
