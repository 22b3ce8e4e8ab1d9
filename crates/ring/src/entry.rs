//! What the ring carries.

/// One event of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it happened: CLOCK_MONOTONIC of the host, in nanoseconds.
    pub at_ns: u64,
    /// What happened.
    pub kind: Kind,
}

/// What an [`Entry`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The guest loaded another address space.
    Switch {
        /// The address space: CR3 without its flag bits. Never 0.
        task: u64,
    },
    /// The vCPU halted.
    Halt,
    /// The halted vCPU goes on.
    Resume,
    /// The guest sent an inter-processor interrupt.
    Ipi {
        /// Destination field of the interrupt command; `u32::MAX` for a broadcast.
        dest: u32,
        /// Interrupt vector.
        vector: u8,
    },
}

const SWITCH: u64 = 1;
const HALT: u64 = 2;
const RESUME: u64 = 3;
const IPI: u64 = 4;

/// Words of an entry in memory: time, kind and two arguments.
pub(crate) const WORDS: usize = 4;

impl Entry {
    pub(crate) fn encode(self) -> [u64; WORDS] {
        let (kind, a, b) = match self.kind {
            Kind::Switch { task } => (SWITCH, task, 0),
            Kind::Halt => (HALT, 0, 0),
            Kind::Resume => (RESUME, 0, 0),
            Kind::Ipi { dest, vector } => (IPI, u64::from(dest), u64::from(vector)),
        };
        [self.at_ns, kind, a, b]
    }

    /// `None` for what no producer of this layout version writes.
    pub(crate) fn decode([at_ns, kind, a, b]: [u64; WORDS]) -> Option<Entry> {
        let kind = match kind {
            SWITCH if a != 0 => Kind::Switch { task: a },
            HALT => Kind::Halt,
            RESUME => Kind::Resume,
            IPI => Kind::Ipi { dest: a.try_into().ok()?, vector: b.try_into().ok()? },
            _ => return None,
        };
        Some(Entry { at_ns, kind })
    }
}
