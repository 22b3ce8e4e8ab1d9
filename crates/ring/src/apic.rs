//! Where an inter-processor interrupt of an x86 guest goes: both the plugin and the daemon hear of the command only.

/// To whom an interrupt command is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    Own,
    /// All, the sender included.
    All,
    /// All but the sender.
    Others,
    /// The vCPU with this APIC id.
    Physical(u32),
    /// Those of a cluster of 16, given by its number in the upper half and a bit for each in the lower one.
    Logical(u32),
}

/// An ordinary interrupt that a vCPU sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Interrupt vector.
    pub vector: u8,
    /// To whom.
    pub to: Destination,
}

/// In either mode.
const X2APIC_BROADCAST: u32 = u32::MAX;

impl Command {
    /// What a write of `low` to the interrupt command register sends, in x2APIC mode, with the destination in its upper half; `None` for
    /// what is not an ordinary interrupt (NMI, INIT, start-up).
    #[must_use]
    pub fn x2apic(destination: u32, low: u32) -> Option<Command> {
        let (delivery, logical, shorthand) = (low >> 8 & 7, low >> 11 & 1 == 1, low >> 18 & 3);
        let [vector, ..] = low.to_le_bytes();
        if delivery > 1 {
            return None;
        }
        let to = match (shorthand, logical) {
            (1, _) => Destination::Own,
            (2, _) => Destination::All,
            (3, _) => Destination::Others,
            _ if destination == X2APIC_BROADCAST => Destination::All,
            (_, true) => Destination::Logical(destination),
            (_, false) => Destination::Physical(destination),
        };
        Some(Command { vector, to })
    }

    /// The vCPUs that it goes to, a bit for each index, if vCPU `sender` sends it and the vCPUs have these APIC ids.
    #[must_use]
    pub fn targets(self, sender: u16, ids: impl IntoIterator<Item = (u16, u32)>) -> u64 {
        let is_addressed = |index: u16, id: u32| match self.to {
            Destination::Own => index == sender,
            Destination::All => true,
            Destination::Others => index != sender,
            Destination::Physical(physical) => id == physical,
            Destination::Logical(logical) => id >> 4 == logical >> 16 && logical & 1 << (id & 15) != 0,
        };
        ids.into_iter()
            .filter(|(index, id)| is_addressed(*index, *id))
            .fold(0, |to, (index, _)| to | 1u64.checked_shl(index.into()).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_interrupts_are_commands() {
        let to = |destination, low| Command::x2apic(destination, low).map(|command| command.to);
        assert_eq!(to(2, 0xfb), Some(Destination::Physical(2)), "fixed");
        assert_eq!(to(2, 0x1fb), Some(Destination::Physical(2)), "lowest priority");
        assert_eq!(to(2, 0x8fd), Some(Destination::Logical(2)));
        assert_eq!(to(0, 0xc_00fc), Some(Destination::Others));
        assert_eq!(to(0, 0x8_00fc), Some(Destination::All));
        assert_eq!(to(u32::MAX, 0x8fc), Some(Destination::All), "broadcast");
        assert_eq!(to(0, 0x4_40fb), Some(Destination::Own));
        assert_eq!(to(0, 0x40fb), Some(Destination::Physical(0)), "level bit");
        assert_eq!(to(1, 0x400), None, "NMI");
        assert_eq!(to(1, 0x4500), None, "INIT");
        assert_eq!(to(1, 0x4608), None, "start-up");
        assert_eq!(Command::x2apic(2, 0x8fd).unwrap().vector, 0xfd);
    }

    #[test]
    fn destinations_are_sets_of_vcpus() {
        // Two sockets of three cores: the second one's ids begin at 4. The last is in another cluster.
        let ids = [(0, 0), (1, 1), (2, 2), (3, 4), (4, 5), (5, 6), (6, 0x12)];
        let targets = |to| Command { vector: 0xfd, to }.targets(3, ids);
        assert_eq!(targets(Destination::Own), 0b000_1000);
        assert_eq!(targets(Destination::All), 0b111_1111);
        assert_eq!(targets(Destination::Others), 0b111_0111);
        assert_eq!(targets(Destination::Physical(5)), 0b001_0000);
        assert_eq!(targets(Destination::Physical(3)), 0, "no such vCPU");
        assert_eq!(targets(Destination::Logical(0b101_0001)), 0b010_1001);
        assert_eq!(targets(Destination::Logical(0x1_0004)), 0b100_0000);
        assert_eq!(targets(Destination::Logical(0x2_0004)), 0, "no such cluster");
        assert_eq!(Command { vector: 0xfd, to: Destination::All }.targets(0, [(64, 64)]), 0, "no such bit");
    }
}
