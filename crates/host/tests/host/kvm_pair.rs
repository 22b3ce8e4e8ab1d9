//! A tiny guest with two vCPUs that interrupt each other: a few instructions in 32-bit protected mode,
//! without paging.
//!
//! One of them sends what it is told to. The other one has its clock interrupt it once, and then halts and
//! counts what it takes.

use crate::kvm_guest::{CODE, END_PORT, Memory, STEP_PORT, flat_memory, interrupt_gate, memory_region};
use anyhow::{Context as _, Result, bail};
use kvm_bindings::{KVM_MP_STATE_RUNNABLE, kvm_mp_state, kvm_msi, kvm_regs};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

/// KVM's numbers of the vCPUs. The second socket of a machine begins with such a number.
const SENDER_ID: u32 = 0;
pub(crate) const RECEIVER_ID: u32 = 5;

/// The vector of a device.
pub(crate) const DEVICE: u8 = 0x30;
/// Vectors of the other vCPU.
pub(crate) const CALL: u8 = 0xfb;
pub(crate) const RESCHEDULE: u8 = 0xfd;
const CLOCK: u8 = 0xec;
const END: u8 = 0x31;

const RECEIVER_CODE: u32 = CODE + 0x800;
const HANDLERS: u32 = 0x2000;
/// What the sender is told: COMMAND and TIMES follow.
const DESTINATION: u32 = 0x3000;
const COUNTS: u32 = 0x3010;
const STACKS: [u32; 2] = [0x8000, 0x9000];

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A handler, which counts what it takes, and tells the interrupt controller (EOI).
fn handler(count: u32) -> Vec<u8> {
    let mut code = vec![0xff, 0x05]; // inc dword [count]
    code.extend(count.to_le_bytes());
    code.extend(set(0xb0, 0));
    code.push(0xcf); // iret
    code
}

/// Sets a register of the interrupt controller's.
fn set(register: u32, value: u32) -> Vec<u8> {
    let mut code = vec![0xc7, 0x05]; // mov dword [register], value
    code.extend((0xfee0_0000 + register).to_le_bytes());
    code.extend(value.to_le_bytes());
    code
}

/// Switches the interrupt controller on, which then answers to a bit of its own in logical mode.
fn switch_on(logical: u32) -> Vec<u8> {
    [set(0xf0, 0x1ff), set(0xd0, logical << 24)].concat()
}

fn sender() -> Vec<u8> {
    let mut code = switch_on(1);
    code.extend([
        0xe6, 0x42, // again: out STEP_PORT, al
        0x8b, 0x0d, 0x08, 0x30, 0x00, 0x00, // mov ecx, [TIMES]
        0x85, 0xc9, // test ecx, ecx
        0x74, 0x2f, // jz end
        0x8b, 0x1d, 0x00, 0x30, 0x00, 0x00, // mov ebx, [DESTINATION]
        0x8b, 0x35, 0x04, 0x30, 0x00, 0x00, // mov esi, [COMMAND]
        0x78, 0x10, // js call
        0x89, 0x1d, 0x10, 0x03, 0xe0, 0xfe, // mov [0xfee00310], ebx
        0x89, 0x35, 0x00, 0x03, 0xe0, 0xfe, // send: mov [0xfee00300], esi
        0xe2, 0xf8, // loop send
        0xeb, 0xd6, // jmp again
        0xc1, 0xeb, 0x18, // call: shr ebx, 24
        0x31, 0xc9, // xor ecx, ecx
        0x31, 0xd2, // xor edx, edx
        0xb8, 0x0a, 0x00, 0x00, 0x00, // mov eax, KVM_HC_SEND_IPI
        0x0f, 0x01, 0xd9, // vmmcall
        0xeb, 0xc5, // jmp again
        0xe6, 0x43, // end: out END_PORT, al
    ]);
    code
}

fn receiver() -> Vec<u8> {
    // The clock ticks once, some microseconds later.
    let clock = [set(0x3e0, 0xb), set(0x320, CLOCK.into()), set(0x380, 1000)].concat();
    let mut code = [switch_on(2), clock].concat();
    code.extend([
        0xfb, // sti
        0xf4, // halt: hlt
        0xeb, 0xfd, // jmp halt
    ]);
    code
}

/// An interrupt command: its two halves, as in xAPIC mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) destination: u32,
    pub(crate) low: u32,
    /// How often, or [`BY_HYPERCALL`].
    pub(crate) times: u32,
}

/// Once, by the hypercall that Linux has for interrupts to many: the destination is a bit for each number.
pub(crate) const BY_HYPERCALL: u32 = u32::MAX;

/// Which count a vector adds to.
fn count_of(vector: u8) -> u32 {
    COUNTS
        + if vector == DEVICE {
            0
        } else if vector == CLOCK {
            4
        } else {
            8
        }
}

/// A running guest. It has to be ended: [`end`](Self::end).
pub(crate) struct Pair {
    memory: Arc<Memory>,
    vm: VmFd,
    /// Threads of the vCPUs, the sender's first.
    pub(crate) tids: [i32; 2],
    begin: Vec<mpsc::Sender<()>>,
    commands: mpsc::Sender<Command>,
    ready: mpsc::Receiver<()>,
    vcpus: Vec<JoinHandle<Result<()>>>,
}

impl Pair {
    /// Makes a guest, whose vCPUs wait for [`begin`](Self::begin).
    pub(crate) fn new() -> Result<Pair> {
        let memory = Arc::new(Memory::new());
        flat_memory(&memory);
        memory.write(CODE, &sender());
        memory.write(RECEIVER_CODE, &receiver());
        let out_to_end = vec![0xe6, 0x43]; // out END_PORT, al
        let nothing = vec![0xcf]; // iret
        let taken = |vector| (vector, handler(count_of(vector)));
        let handlers =
            [taken(DEVICE), taken(CLOCK), taken(CALL), taken(RESCHEDULE), (END, out_to_end), (2, nothing)];
        for (address, (vector, code)) in (HANDLERS..).step_by(0x20).zip(handlers) {
            memory.write(address, &code);
            interrupt_gate(&memory, vector, address);
        }

        let kvm = Kvm::new().context("open /dev/kvm")?;
        let vm = kvm.create_vm().context("make a VM")?;
        // SAFETY: the memory lives as long as the threads that run the guest, and is only used by atomic
        // operations.
        unsafe { vm.set_user_memory_region(memory_region(&memory)?) }.context("give the VM memory")?;
        vm.create_irq_chip().context("make interrupt controllers")?;
        let (commands, told) = mpsc::channel();
        let (tell_ready, ready) = mpsc::channel();
        let mut next = Some(move || {
            let _ = tell_ready.send(());
            told.recv().unwrap_or(Command { destination: 0, low: 0, times: 0 })
        });
        let (mut begin, mut vcpus, mut tids) = (Vec::new(), Vec::new(), [0; 2]);
        let ids = [SENDER_ID, RECEIVER_ID].into_iter().zip([CODE, RECEIVER_CODE]).zip(STACKS);
        for (((id, code), stack), tid) in ids.zip(&mut tids) {
            let vcpu = vm.create_vcpu(id.into()).context("make a vCPU")?;
            prepare(&vcpu, code, stack)?;
            let (tell, begun) = mpsc::channel();
            let (tell_tid, own_tid) = mpsc::channel();
            let (memory, mut next) = (Arc::clone(&memory), next.take());
            vcpus.push(thread::spawn(move || {
                let mut first = CpuSet::new();
                first.set(0);
                sched_setaffinity(None, &first)?;
                tell_tid.send(gettid().as_raw_nonzero().get())?;
                // If nobody says so, it is not to begin.
                if begun.recv().is_ok() { run(vcpu, &memory, next.as_mut()) } else { Ok(()) }
            }));
            *tid = own_tid.recv()?;
            begin.push(tell);
        }
        Ok(Pair { memory, vm, tids, begin, commands, ready, vcpus })
    }

    /// Has both vCPUs run, and the sender wait for commands.
    pub(crate) fn begin(&self) -> Result<()> {
        self.begin.iter().try_for_each(|begin| begin.send(()))?;
        self.ready.recv_timeout(PATIENCE).context("the sender begins")
    }

    /// Has the sender carry out a command, and waits until it has.
    pub(crate) fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command)?;
        self.ready.recv_timeout(PATIENCE).context("the sender is ready for the next command")
    }

    /// Interrupts the receiver as a device does.
    pub(crate) fn interrupt(&self, vector: u8) -> Result<()> {
        let address_lo = 0xfee0_0000 | RECEIVER_ID << 12;
        let message = kvm_msi { address_lo, data: vector.into(), ..kvm_msi::default() };
        self.vm.signal_msi(message).context("send a message")?;
        Ok(())
    }

    /// How often the receiver took this vector, or one of its kind.
    pub(crate) fn taken(&self, vector: u8) -> u32 {
        self.memory.word(count_of(vector)).load(SeqCst)
    }

    /// How often its clock has interrupted it.
    pub(crate) fn ticks(&self) -> u32 {
        self.taken(CLOCK)
    }

    /// Ends both.
    pub(crate) fn end(self) -> Result<()> {
        self.interrupt(END)?;
        drop((self.commands, self.begin));
        self.vcpus
            .into_iter()
            .try_for_each(|vcpu| vcpu.join().unwrap_or_else(|_| bail!("the thread of a vCPU panicked")))
    }
}

/// 32-bit protected mode without paging.
fn prepare(vcpu: &VcpuFd, code: u32, stack: u32) -> Result<()> {
    // Numeric errors, extension type, protection.
    crate::kvm_guest::protected_mode(vcpu, |system| system.cr0 = 0x31)?;
    let general = kvm_regs { rip: code.into(), rsp: stack.into(), rflags: 2, ..kvm_regs::default() };
    vcpu.set_regs(&general).context("set the registers")?;
    // But the first one, they wait for another one to start them.
    vcpu.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE }).context("have it run")
}

fn run(mut vcpu: VcpuFd, memory: &Memory, mut next: Option<&mut impl FnMut() -> Command>) -> Result<()> {
    loop {
        match vcpu.run().context("run the guest")? {
            VcpuExit::IoOut(END_PORT, _) => return Ok(()),
            VcpuExit::IoOut(STEP_PORT, _) => {
                let command = next.as_mut().context("the receiver is given no commands")?();
                memory.write_words(DESTINATION, &[command.destination << 24, command.low, command.times]);
            }
            other => bail!("the guest left unexpectedly: {other:?}"),
        }
    }
}
