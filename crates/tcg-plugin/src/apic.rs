//! The vCPUs' interrupt controllers (APICs), as far as the guest's writes to them show: where the interrupts
//! that vCPUs send each other go, and when they are taken.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

/// Numbers of the controller's registers: the low byte of the MSR's number in x2APIC mode, the offset in its
/// page by 16 in xAPIC mode.
const EOI: u8 = 0x0b;
const LOGICAL_DESTINATION: u8 = 0x0d;
const DESTINATION_FORMAT: u8 = 0x0e;
const COMMAND: u8 = 0x30;
const COMMAND_HIGH: u8 = 0x31;
const SELF_IPI: u8 = 0x3f;

/// The id of a controller that is not there. It addresses all.
const NOT_PLUGGED: u32 = u32::MAX;

/// The controller of a vCPU. Other vCPUs' threads look at it and leave their interrupts; all else is the own
/// thread's.
pub(crate) struct Apic {
    id: AtomicU32,
    /// What it answers to in xAPIC mode when addressed by a set of bits.
    logical: AtomicU8,
    /// Whether these bits are one each for eight vCPUs, rather than four clusters of four.
    flat: AtomicBool,
    /// The upper half of the interrupt command, which is written first in xAPIC mode.
    destination: AtomicU32,
    /// Vectors of interrupts that were sent to it and not taken yet.
    sent: [AtomicU64; 4],
    /// A device's interrupt was entered, and the controller not told yet.
    in_device: AtomicBool,
}

/// What a write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The vCPU sends an interrupt.
    Sends(InterruptCommand),
    /// It has taken one that a vCPU sent.
    Taken,
}

impl Apic {
    pub(crate) const fn new() -> Apic {
        Apic {
            id: AtomicU32::new(NOT_PLUGGED),
            logical: AtomicU8::new(0),
            flat: AtomicBool::new(true),
            destination: AtomicU32::new(0),
            sent: [const { AtomicU64::new(0) }; 4],
            in_device: AtomicBool::new(false),
        }
    }

    /// The vCPU is there.
    pub(crate) fn plug(&self, id: u32) {
        self.id.store(id, Relaxed);
    }

    /// The vCPU is there no more.
    pub(crate) fn unplug(&self) {
        self.id.store(NOT_PLUGGED, Relaxed);
    }

    /// The vCPU entered the handler of a device's interrupt.
    pub(crate) fn enter_device(&self) {
        self.in_device.store(true, Relaxed);
    }

    /// The guest writes `high:low` to a register, in x2APIC mode.
    pub(crate) fn write_x2apic(&self, register: u8, high: u32, low: u32) -> Option<Meaning> {
        match register {
            COMMAND => InterruptCommand::x2apic(high, low).map(Meaning::Sends),
            SELF_IPI => {
                let [vector, ..] = low.to_le_bytes();
                Some(Meaning::Sends(InterruptCommand { vector, to: Destination::Own }))
            }
            EOI => self.end(),
            _ => None,
        }
    }

    /// The guest writes to a register, in xAPIC mode.
    pub(crate) fn write_xapic(&self, register: u8, value: u32) -> Option<Meaning> {
        let [.., upper] = value.to_le_bytes();
        match register {
            COMMAND_HIGH => self.destination.store(upper.into(), Relaxed),
            LOGICAL_DESTINATION => self.logical.store(upper, Relaxed),
            DESTINATION_FORMAT => self.flat.store(upper >> 4 == 0xf, Relaxed),
            COMMAND => {
                let destination = self.destination.load(Relaxed).to_le_bytes()[0];
                return InterruptCommand::xapic(destination, value).map(Meaning::Sends);
            }
            EOI => return self.end(),
            _ => {}
        }
        None
    }

    /// The guest tells the controller that it deals with the interrupt that it entered last. Those of other
    /// vCPUs and of the clock enter by ways that do not show, so it may be the clock's that came just before;
    /// the next is then the other one.
    fn end(&self) -> Option<Meaning> {
        if self.in_device.swap(false, Relaxed) {
            return None;
        }
        // The highest comes first.
        let (word, bits) =
            self.sent.iter().map(|word| (word, word.load(Relaxed))).rfind(|(_, bits)| *bits != 0)?;
        word.fetch_and(!(1 << bits.ilog2()), Relaxed);
        Some(Meaning::Taken)
    }

    fn send(&self, vector: u8) {
        self.sent[usize::from(vector >> 6)].fetch_or(1 << (vector & 63), Relaxed);
    }

    fn answers(&self, to: Destination) -> bool {
        let (id, logical) = (self.id.load(Relaxed), self.logical.load(Relaxed));
        if id == NOT_PLUGGED {
            return false;
        }
        match to {
            Destination::Own => false,
            Destination::All | Destination::Others => true,
            Destination::Physical(physical) => id == physical,
            Destination::Cluster(cluster) => id >> 4 == cluster >> 16 && cluster & 1 << (id & 15) != 0,
            Destination::Logical(bits) if self.flat.load(Relaxed) => logical & bits != 0,
            Destination::Logical(bits) => logical >> 4 == bits >> 4 && logical & bits & 0xf != 0,
        }
    }
}

/// To whom an interrupt is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The sender.
    Own,
    /// All, the sender included.
    All,
    /// All but the sender.
    Others,
    /// The one with this id.
    Physical(u32),
    /// Some of a cluster of 16, given by its number in the upper half and a bit for each in the lower one:
    /// x2APIC.
    Cluster(u32),
    /// Those that have one of these bits among theirs: xAPIC.
    Logical(u8),
}

/// An ordinary interrupt that a vCPU sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterruptCommand {
    pub(crate) vector: u8,
    pub(crate) to: Destination,
}

impl InterruptCommand {
    fn x2apic(destination: u32, low: u32) -> Option<InterruptCommand> {
        InterruptCommand::of(low, |logical| match (destination, logical) {
            (u32::MAX, _) => Destination::All,
            (_, true) => Destination::Cluster(destination),
            (_, false) => Destination::Physical(destination),
        })
    }

    fn xapic(destination: u8, low: u32) -> Option<InterruptCommand> {
        InterruptCommand::of(low, |logical| match (destination, logical) {
            (u8::MAX, _) => Destination::All,
            (_, true) => Destination::Logical(destination),
            (_, false) => Destination::Physical(destination.into()),
        })
    }

    /// `None` for what is not an ordinary interrupt (NMI, INIT, start-up). `addressed`: to whom it goes
    /// without a shorthand, by whether the destination is logical.
    fn of(low: u32, addressed: impl Fn(bool) -> Destination) -> Option<InterruptCommand> {
        let (delivery, logical, shorthand) = (low >> 8 & 7, low >> 11 & 1 == 1, low >> 18 & 3);
        let [vector, ..] = low.to_le_bytes();
        let to = match shorthand {
            0 => addressed(logical),
            1 => Destination::Own,
            2 => Destination::All,
            _ => Destination::Others,
        };
        (delivery <= 1).then_some(InterruptCommand { vector, to })
    }

    /// The vCPUs that it goes to if the one with index `sender` sends it: a bit for each index.
    pub(crate) fn targets<'a>(self, sender: u16, vcpus: impl Iterator<Item = (u16, &'a Apic)>) -> u64 {
        let is_addressed = |index, apic: &Apic| {
            let own = index == sender;
            match self.to {
                Destination::Own => own,
                Destination::Others if own => false,
                others => apic.answers(others),
            }
        };
        vcpus.filter(|(index, apic)| is_addressed(*index, apic)).fold(0, |to, (index, _)| to | bit(index))
    }

    /// Leaves it at the vCPUs in `to`, which take it from now on.
    pub(crate) fn deliver<'a>(self, to: u64, vcpus: impl Iterator<Item = (u16, &'a Apic)>) {
        for (_, apic) in vcpus.filter(|(index, _)| to & bit(*index) != 0) {
            apic.send(self.vector);
        }
    }
}

/// The bit of a vCPU in a set of vCPUs; none beyond the 64 that it holds.
fn bit(index: u16) -> u64 {
    1u64.checked_shl(index.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RESCHEDULE: u8 = 0xfd;
    /// More than a set holds.
    const VCPUS: usize = 66;

    fn apics(ids: &[u32]) -> Vec<Apic> {
        let apic = |id| {
            let apic = Apic::new();
            apic.plug(id);
            apic
        };
        ids.iter().map(|id| apic(*id)).collect()
    }

    fn deliver(apics: &[Apic], sender: u16, command: InterruptCommand) -> u64 {
        let to = command.targets(sender, (0..).zip(apics));
        command.deliver(to, (0..).zip(apics));
        to
    }

    #[test]
    fn only_ordinary_interrupts_are_commands() {
        let to = |destination, low| InterruptCommand::x2apic(destination, low).map(|command| command.to);
        assert_eq!(to(2, 0xfb), Some(Destination::Physical(2)), "fixed");
        assert_eq!(to(2, 0x1fb), Some(Destination::Physical(2)), "lowest priority");
        assert_eq!(to(2, 0x8fd), Some(Destination::Cluster(2)));
        assert_eq!(to(0, 0xc_00fc), Some(Destination::Others));
        assert_eq!(to(0, 0x8_00fc), Some(Destination::All));
        assert_eq!(to(u32::MAX, 0x8fc), Some(Destination::All), "broadcast");
        assert_eq!(to(0, 0x4_40fb), Some(Destination::Own));
        assert_eq!(to(0, 0x40fb), Some(Destination::Physical(0)), "level bit");
        assert_eq!(to(1, 0x400), None, "NMI");
        assert_eq!(to(1, 0x4500), None, "INIT");
        assert_eq!(to(1, 0x4608), None, "start-up");
        assert_eq!(InterruptCommand::x2apic(2, 0x8fd).unwrap().vector, RESCHEDULE);
    }

    #[test]
    fn destinations_are_sets_of_vcpus() {
        // Two sockets of three cores: the second one's ids begin at 4. The last is in another cluster.
        let apics = apics(&[0, 1, 2, 4, 5, 6, 0x12]);
        let targets = |to| deliver(&apics, 3, InterruptCommand { vector: RESCHEDULE, to });
        assert_eq!(targets(Destination::Own), 0b000_1000);
        assert_eq!(targets(Destination::All), 0b111_1111);
        assert_eq!(targets(Destination::Others), 0b111_0111);
        assert_eq!(targets(Destination::Physical(5)), 0b001_0000);
        assert_eq!(targets(Destination::Physical(3)), 0, "no such vCPU");
        assert_eq!(targets(Destination::Cluster(0b101_0001)), 0b010_1001);
        assert_eq!(targets(Destination::Cluster(0x1_0004)), 0b100_0000);
        assert_eq!(targets(Destination::Cluster(0x2_0004)), 0, "no such cluster");
        apics[1].unplug();
        assert_eq!(targets(Destination::All), 0b111_1101);
        assert_eq!(targets(Destination::Others), 0b111_0101);
    }

    #[test]
    fn in_xapic_mode_the_destination_is_written_before_the_command() {
        let apics = apics(&[0, 1, 2, 3]);
        let send = |destination: u32, low| {
            apics[0].write_xapic(COMMAND_HIGH, destination << 24);
            match apics[0].write_xapic(COMMAND, low) {
                Some(Meaning::Sends(command)) => deliver(&apics, 0, command),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(send(2, 0xfd), 0b0100, "physical");
        assert_eq!(send(0xff, 0xfd), 0b1111, "broadcast");
        assert_eq!(send(0b1010, 0x8fd), 0, "none has chosen bits yet");
        for (apic, bits) in apics.iter().zip([1, 2, 4, 8]) {
            apic.write_xapic(LOGICAL_DESTINATION, bits << 24);
        }
        assert_eq!(send(0b1010, 0x8fd), 0b1010, "flat");
        for (apic, bits) in apics.iter().zip([0x01, 0x02, 0x11, 0x12]) {
            apic.write_xapic(DESTINATION_FORMAT, 0x0fff_ffff);
            apic.write_xapic(LOGICAL_DESTINATION, bits << 24);
        }
        assert_eq!(send(0x13, 0x8fd), 0b1100, "in clusters");
        assert_eq!(send(0, 0xc_00fd), 0b1110, "all but the sender");
    }

    #[test]
    fn an_interrupt_is_taken_when_the_controller_hears_of_it_next() {
        let apics = apics(&[0, 1]);
        let end = || apics[1].write_x2apic(EOI, 0, 0);
        assert_eq!(end(), None, "the clock's");
        for vector in [0xfb, RESCHEDULE, RESCHEDULE, 0x30] {
            deliver(&apics, 0, InterruptCommand { vector, to: Destination::Others });
        }
        apics[1].enter_device();
        assert_eq!(end(), None, "a device's");
        let taken = Some(Meaning::Taken);
        assert_eq!([end(), end(), end(), end()], [taken, taken, taken, None], "one of each vector");
        assert_eq!(apics[0].write_xapic(EOI, 0), None, "the other one was sent none");
        assert_eq!(
            apics[0].write_x2apic(SELF_IPI, 0, 0xf6),
            Some(Meaning::Sends(InterruptCommand { vector: 0xf6, to: Destination::Own }))
        );
        deliver(&apics, 0, InterruptCommand { vector: 0xf6, to: Destination::Own });
        assert_eq!(apics[0].write_xapic(EOI, 0), taken);
    }

    /// What happens on a vCPU.
    #[derive(Clone, Debug)]
    enum Step {
        Plug { id: u32 },
        Unplug,
        EnterDevice,
        Write { x2apic: bool, register: u8, high: u32, low: u32 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let known = [EOI, LOGICAL_DESTINATION, DESTINATION_FORMAT, COMMAND, COMMAND_HIGH, SELF_IPI];
        let register = prop_oneof![9 => prop::sample::select(known.to_vec()), 1 => any::<u8>()];
        // Small ids and ordinary commands are among them.
        let value = || prop_oneof![any::<u32>(), 0..80u32, (0..0x1000u32).prop_map(|low| low | 0xc_0000)];
        let write = (any::<bool>(), register, value(), value());
        prop_oneof![
            2 => (0..80u32).prop_map(|id| Step::Plug { id }),
            1 => Just(Step::Unplug),
            1 => Just(Step::EnterDevice),
            12 => write.prop_map(|(x2apic, register, high, low)| Step::Write { x2apic, register, high, low }),
        ]
    }

    proptest! {
        /// Whatever a guest writes, to whichever vCPUs and while some come and go: only those that are there
        /// are told, and each takes no more than it was sent.
        #[test]
        fn fuzz_writes(steps in prop::collection::vec((0..VCPUS, step()), 0..400)) {
            let apics: Vec<Apic> = (0..VCPUS).map(|_| Apic::new()).collect();
            let (mut plugged, mut sent) = (0u64, [0; VCPUS]);
            let bit = |vcpu: usize| bit(u16::try_from(vcpu).unwrap());
            for (vcpu, step) in steps {
                let apic = &apics[vcpu];
                let meaning = match step {
                    Step::Plug { id } => {
                        apic.plug(id);
                        plugged |= bit(vcpu);
                        None
                    }
                    Step::Unplug => {
                        apic.unplug();
                        plugged &= !bit(vcpu);
                        None
                    }
                    Step::EnterDevice => {
                        apic.enter_device();
                        None
                    }
                    Step::Write { x2apic: true, register, high, low } => apic.write_x2apic(register, high, low),
                    Step::Write { x2apic: false, register, low, .. } => apic.write_xapic(register, low),
                };
                match meaning {
                    Some(Meaning::Sends(command)) => {
                        let to = deliver(&apics, u16::try_from(vcpu).unwrap(), command);
                        // Who sends it is there.
                        prop_assert_eq!(to & !(plugged | bit(vcpu)), 0);
                        (0..VCPUS).filter(|of| to & bit(*of) != 0).for_each(|of| sent[of] += 1);
                    }
                    Some(Meaning::Taken) if bit(vcpu) != 0 => {
                        prop_assert!(sent[vcpu] > 0);
                        sent[vcpu] -= 1;
                    }
                    _ => {}
                }
            }
            for apic in &apics {
                apic.in_device.store(false, Relaxed);
                let taken = std::iter::from_fn(|| apic.write_x2apic(EOI, 0, 0)).take(257).count();
                prop_assert!(taken <= 256, "one of each vector at most");
            }
        }
    }
}
