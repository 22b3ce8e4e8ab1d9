//! What the ring carries.

/// One event of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it happened: CLOCK_MONOTONIC of the host, in nanoseconds.
    pub at_ns: u64,
    /// What happened.
    pub kind: EntryKind,
}

/// What an [`Entry`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
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
        /// The vCPUs that it goes to: a bit for each index.
        to: u64,
        /// Interrupt vector.
        vector: u8,
    },
    /// The vCPU entered the handler of a device's interrupt.
    Interrupt {
        /// Interrupt vector.
        vector: u8,
    },
    /// The vCPU took an inter-processor interrupt that was sent to it.
    IpiTaken,
    /// The vCPU accessed a display or a sound card; the first time since another task or the handler of an
    /// interrupt began to run.
    Access {
        /// Whether it was a sound card.
        sound: bool,
        /// Whether it did so in the handler of a device's interrupt.
        in_interrupt: bool,
    },
}

const SWITCH: u64 = 1;
const HALT: u64 = 2;
const RESUME: u64 = 3;
const IPI: u64 = 4;
const INTERRUPT: u64 = 5;
const IPI_TAKEN: u64 = 6;
const ACCESS: u64 = 7;

/// For which entries a wake-up is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// [`EntryKind::Switch`] and [`EntryKind::Halt`].
    pub tasks: bool,
    /// [`EntryKind::Interrupt`], [`EntryKind::Ipi`] and [`EntryKind::IpiTaken`].
    pub interrupts: bool,
}

const TASKS: u64 = 1;
const INTERRUPTS: u64 = 2;

impl Interest {
    /// Tasks alone.
    pub const TASKS: Interest = Interest { tasks: true, interrupts: false };
    /// Interrupts alone.
    pub const INTERRUPTS: Interest = Interest { tasks: false, interrupts: true };

    /// As a set of bits in memory.
    pub(crate) fn bits(self) -> u64 {
        (if self.tasks { TASKS } else { 0 }) | (if self.interrupts { INTERRUPTS } else { 0 })
    }
}

impl EntryKind {
    /// The bit of the interest that it is of; 0 if of none.
    pub(crate) fn interest(self) -> u64 {
        match self {
            EntryKind::Switch { .. } | EntryKind::Halt => TASKS,
            EntryKind::Interrupt { .. } | EntryKind::Ipi { .. } | EntryKind::IpiTaken => INTERRUPTS,
            EntryKind::Resume | EntryKind::Access { .. } => 0,
        }
    }

    /// Whether it tells what a vCPU runs, which nothing else does.
    pub(crate) fn tells_tasks(self) -> bool {
        matches!(self, EntryKind::Switch { .. } | EntryKind::Halt | EntryKind::Resume)
    }
}

/// Words of an entry in memory: time, kind and two arguments.
pub(crate) const WORDS: usize = 4;

impl Entry {
    pub(crate) fn encode(self) -> [u64; WORDS] {
        let (kind, a, b) = match self.kind {
            EntryKind::Switch { task } => (SWITCH, task, 0),
            EntryKind::Halt => (HALT, 0, 0),
            EntryKind::Resume => (RESUME, 0, 0),
            EntryKind::Ipi { to, vector } => (IPI, to, u64::from(vector)),
            EntryKind::Interrupt { vector } => (INTERRUPT, u64::from(vector), 0),
            EntryKind::IpiTaken => (IPI_TAKEN, 0, 0),
            EntryKind::Access { sound, in_interrupt } => (ACCESS, sound.into(), in_interrupt.into()),
        };
        [self.at_ns, kind, a, b]
    }

    /// `None` for what no producer of this layout version writes.
    pub(crate) fn decode([at_ns, kind, a, b]: [u64; WORDS]) -> Option<Entry> {
        let kind = match kind {
            SWITCH if a != 0 => EntryKind::Switch { task: a },
            HALT => EntryKind::Halt,
            RESUME => EntryKind::Resume,
            IPI => EntryKind::Ipi { to: a, vector: b.try_into().ok()? },
            INTERRUPT => EntryKind::Interrupt { vector: a.try_into().ok()? },
            IPI_TAKEN => EntryKind::IpiTaken,
            ACCESS => EntryKind::Access { sound: a != 0, in_interrupt: b != 0 },
            _ => return None,
        };
        Some(Entry { at_ns, kind })
    }
}
