//! Which instructions are watched, and what their operands mean. x86-64 only.

/// An instruction that a guest kernel uses for something we want to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// `mov cr3, REGISTER`: the number of the general-purpose register.
    LoadCr3(u8),
    /// `wrmsr`.
    WriteMsr,
}

/// What the instruction that `bytes` begin with is to us.
pub(crate) fn decode(bytes: &[u8]) -> Option<Watched> {
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
            Some(Watched::LoadCr3(operands & 7 | rex_b << 3))
        }
        [0x0f, 0x30, ..] => Some(Watched::WriteMsr),
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
        assert_eq!(decode(&[0x0f, 0x22, 0xd8]), Some(Watched::LoadCr3(0)), "mov cr3, rax");
        assert_eq!(decode(&[0x0f, 0x22, 0xdf]), Some(Watched::LoadCr3(7)), "mov cr3, rdi");
        assert_eq!(decode(&[0x41, 0x0f, 0x22, 0xdc]), Some(Watched::LoadCr3(12)), "mov cr3, r12");
        assert_eq!(decode(&[0x66, 0x49, 0x0f, 0x22, 0xd8]), Some(Watched::LoadCr3(8)), "with prefixes");
        assert_eq!(decode(&[0x41, 0x66, 0x0f, 0x22, 0xdc]), Some(Watched::LoadCr3(4)), "REX is not last");
    }

    #[test]
    fn wrmsr_is_found() {
        assert_eq!(decode(&[0x0f, 0x30]), Some(Watched::WriteMsr));
        assert_eq!(decode(&[0x3e, 0x0f, 0x30]), Some(Watched::WriteMsr));
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
    fn a_task_is_the_page_table_alone() {
        // PCID 5, no-flush bit, and the user half of an isolated page table.
        assert_eq!(task(0x8000_0001_2345_6000 | 5 | 1 << 12), 0x1_2345_6000);
    }
}
