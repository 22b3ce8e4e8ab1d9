//! Which instructions are watched, and what their operands mean. x86-64 only.

/// An instruction that a guest kernel uses for something we want to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedInstruction {
    /// `mov cr3, REGISTER`: the number of the general-purpose register.
    LoadCr3(u8),
    /// `wrmsr`.
    WriteMsr,
    /// A store to the page of the vCPU's interrupt controller.
    WriteApic(Store),
    /// `iret` or `iretq`.
    InterruptReturn,
}

/// A store of a 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    /// Number of the register that is stored.
    pub(crate) source: u8,
    /// Number of the register in the address, if there is one.
    pub(crate) base: Option<u8>,
    /// The rest of the address.
    pub(crate) offset: i32,
}

impl Store {
    /// As one number, to come back by [`unpacked`](Store::unpacked).
    pub(crate) fn packed(self) -> u64 {
        u64::from(self.offset.cast_unsigned())
            | u64::from(self.source) << 32
            | u64::from(self.base.unwrap_or(NO_BASE)) << 40
    }

    pub(crate) fn unpacked(packed: u64) -> Store {
        let [a, b, c, d, source, base, ..] = packed.to_le_bytes();
        Store { source, base: (base != NO_BASE).then_some(base), offset: i32::from_le_bytes([a, b, c, d]) }
    }
}

const NO_BASE: u8 = u8::MAX;

/// Linux maps the page among the 16 that begin here, whatever its version and configuration, and address
/// randomisation leaves them where they are. This is the upper half of an offset.
const APIC_PAGES: u16 = 0xff5f;

/// What the instruction that `bytes` begin with is to us.
pub(crate) fn decode(bytes: &[u8]) -> Option<WatchedInstruction> {
    let mut rex = 0;
    let mut rest = bytes;
    while let [prefix, tail @ ..] = rest {
        match prefix {
            // A REX prefix counts only if it is the last one.
            0x40..=0x4f => rex = *prefix,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 => rex = 0,
            _ => break,
        }
        rest = tail;
    }
    let (rex_r, rex_b) = (rex & 4, rex & 1);
    match rest {
        // REX.R would make it CR11, which does not exist. The mode bits of the operand byte are ignored by
        // the CPU.
        [0x0f, 0x22, operands, ..] if operands >> 3 & 7 == 3 && rex_r == 0 => {
            Some(WatchedInstruction::LoadCr3(operands & 7 | rex_b << 3))
        }
        [0x0f, 0x30, ..] => Some(WatchedInstruction::WriteMsr),
        [0xcf, ..] => Some(WatchedInstruction::InterruptReturn),
        [0x89, tail @ ..] if rex & 0b1010 == 0 => {
            store(tail, rex_r << 1, rex_b << 3).map(WatchedInstruction::WriteApic)
        }
        _ => None,
    }
}

/// The store of a 32-bit register to the interrupt controller's page that has these operands. The two forms
/// that Linux's `native_apic_mem_write` has: to a register's fixed address, and to the page at an offset.
fn store(operands: &[u8], source: u8, base: u8) -> Option<Store> {
    let (byte, base, offset) = match operands {
        [byte, 0x25, offset @ ..] if byte & 0b1100_0111 == 0b100 => (byte, None, offset),
        [byte, offset @ ..] if byte >> 6 == 0b10 && byte & 7 != 4 => (byte, Some(byte & 7 | base), offset),
        _ => return None,
    };
    let [a, b, c, d] = *offset.first_chunk()?;
    let offset = i32::from_le_bytes([a, b, c, d]);
    let store = Store { source: byte >> 3 & 7 | source, base, offset };
    (u16::from_le_bytes([c, d]) == APIC_PAGES).then_some(store)
}

/// Those below are the processor's exceptions.
const FIRST_VECTOR: u8 = 0x20;

/// The vector, if these are the two instructions by which Linux enters the handler of a device's interrupt:
/// `push VECTOR`, then a jump to what all have in common. What enters otherwise are exceptions, system calls,
/// and the interrupts that the kernel itself deals with: its clock's, and those of other vCPUs.
pub(crate) fn interrupt(first: &[u8], second: &[u8]) -> Option<u8> {
    match (first, second) {
        ([0x6a, vector @ FIRST_VECTOR..=u8::MAX], [0xe9 | 0xeb, ..]) => Some(*vector),
        _ => None,
    }
}

/// The task that a CR3 value names: the page table's address without the flag and PCID bits (0 to 11), the
/// bit in which the kernel's and the user's half of an isolated page table differ (12), and the no-flush bit
/// and those above the address (52 to 63).
pub(crate) fn task(cr3: u64) -> u64 {
    cr3 & 0x000f_ffff_ffff_e000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cr3_loads_are_found_with_any_source_register() {
        assert_eq!(decode(&[0x0f, 0x22, 0xd8]), Some(WatchedInstruction::LoadCr3(0)), "mov cr3, rax");
        assert_eq!(decode(&[0x0f, 0x22, 0xdf]), Some(WatchedInstruction::LoadCr3(7)), "mov cr3, rdi");
        assert_eq!(decode(&[0x41, 0x0f, 0x22, 0xdc]), Some(WatchedInstruction::LoadCr3(12)), "mov cr3, r12");
        assert_eq!(
            decode(&[0x66, 0x49, 0x0f, 0x22, 0xd8]),
            Some(WatchedInstruction::LoadCr3(8)),
            "with prefixes"
        );
        assert_eq!(
            decode(&[0x41, 0x66, 0x0f, 0x22, 0xdc]),
            Some(WatchedInstruction::LoadCr3(4)),
            "REX is not last"
        );
    }

    #[test]
    fn wrmsr_is_found() {
        assert_eq!(decode(&[0x0f, 0x30]), Some(WatchedInstruction::WriteMsr));
        assert_eq!(decode(&[0x3e, 0x0f, 0x30]), Some(WatchedInstruction::WriteMsr));
    }

    #[test]
    fn other_instructions_are_left_alone() {
        for bytes in [
            &[0x0f, 0x22, 0xc0][..],   // mov cr0, rax
            &[0x0f, 0x22, 0xe0],       // mov cr4, rax
            &[0x0f, 0x20, 0xd8],       // mov rax, cr3
            &[0x44, 0x0f, 0x22, 0xd8], // mov cr11, rax
            &[0x0f, 0x32],             // rdmsr
            &[0x48, 0x0f],             // cut short
            &[0x0f, 0x22],             // cut short
            &[0x90, 0x0f, 0x22, 0xd8], // nop first
            &[],
        ] {
            assert_eq!(decode(bytes), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn stores_to_the_interrupt_controller_are_found() {
        let store =
            |source, base, offset| Some(WatchedInstruction::WriteApic(Store { source, base, offset }));
        let (command, page) = (-0xa0_2d00, -0xa0_3000);
        assert_eq!(
            decode(&[0x89, 0x3c, 0x25, 0x00, 0xd3, 0x5f, 0xff]),
            store(7, None, command),
            "edi to an address"
        );
        assert_eq!(
            decode(&[0x89, 0xb7, 0x00, 0xd0, 0x5f, 0xff]),
            store(6, Some(7), page),
            "esi to rdi + the page"
        );
        assert_eq!(decode(&[0x45, 0x89, 0x84, 0x25, 0x00, 0xd0, 0x5f, 0xff]), None, "with an index");
        assert_eq!(
            decode(&[0x45, 0x89, 0x87, 0x00, 0xd0, 0x5f, 0xff]),
            store(8, Some(15), page),
            "r8d to r15"
        );
        assert_eq!(decode(&[0x48, 0x89, 0x3c, 0x25, 0x00, 0xd3, 0x5f, 0xff]), None, "64 bits");
        assert_eq!(decode(&[0x8b, 0x04, 0x25, 0x00, 0xd3, 0x5f, 0xff]), None, "a load");
        assert_eq!(decode(&[0x89, 0x3c, 0x25, 0x00, 0xd3, 0x6f, 0xff]), None, "elsewhere");
        assert_eq!(decode(&[0x89, 0x3c, 0x25, 0x00, 0xd3, 0x5f]), None, "cut short");
        assert_eq!(decode(&[0x89, 0xd8]), None, "between registers");
        for packed in [
            Store { source: 8, base: Some(15), offset: page },
            Store { source: 7, base: None, offset: command },
        ] {
            assert_eq!(Store::unpacked(packed.packed()), packed);
        }
    }

    #[test]
    fn returns_from_interrupts_are_found() {
        let iret = Some(WatchedInstruction::InterruptReturn);
        assert_eq!([decode(&[0x48, 0xcf]), decode(&[0xcf])], [iret, iret]);
        assert_eq!(decode(&[0xc3]), None, "from a function");
    }

    #[test]
    fn devices_enter_by_their_vector_and_a_jump() {
        assert_eq!(interrupt(&[0x6a, 0x21], &[0xe9, 0x61, 0x0b, 0, 0]), Some(0x21));
        assert_eq!(interrupt(&[0x6a, 0xe0], &[0xeb, 0x10]), Some(0xe0));
        assert_eq!(interrupt(&[0x6a, 0xff], &[0xe8, 0, 0, 0, 0]), None, "the kernel's own go on with a call");
        assert_eq!(interrupt(&[0x68, 0x21, 0, 0, 0], &[0xe9, 0, 0, 0, 0]), None);
        assert_eq!(interrupt(&[0x6a, 0x0e], &[0xe9, 0, 0, 0, 0]), None, "an exception while Linux boots");
        assert_eq!(interrupt(&[], &[]), None);
    }

    #[test]
    fn a_task_is_the_page_table_alone() {
        // PCID 5, no-flush bit, and the user half of an isolated page table.
        assert_eq!(task(0x8000_0001_2345_6000 | 5 | 1 << 12), 0x1_2345_6000);
    }
}
