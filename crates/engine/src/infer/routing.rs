//! Which vCPU takes the interrupts of which kind of device: a guest spreads them as it likes, and rarely
//! changes that.

use serde::{Deserialize, Serialize};

/// A kind of device whose interrupts are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Device {
    Network,
    Disk,
}

/// vCPUs that interrupts are known of; as many as a set of vCPUs holds.
const VCPUS: u16 = 64;
/// What an interrupt adds to the score of the vCPU that takes it; each that another takes costs it 1. So up
/// to four queues keep theirs.
const GAIN: u8 = 4;
/// Who has this score is one that takes them.
const SURE: u8 = 6;
/// Largest score: a former taker is forgotten after as many.
const MOST: u8 = 64;

/// What was learnt of the routes of one kind of device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Route {
    /// Vector and score for each vCPU that ever took one; short, as a device has one vector for each of its
    /// queues.
    takers: Vec<(u16, u8, u8)>,
    /// Whether something was delivered whose interrupt has not been taken.
    expected: bool,
}

/// The routes of a VM's interrupts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Routing {
    network: Route,
    disk: Route,
}

/// Takers remembered for a kind of device.
const TAKERS: usize = 16;

impl Routing {
    /// Checks routes that were loaded.
    pub(crate) fn is_sound(&self) -> bool {
        [&self.network, &self.disk].iter().all(|route| route.takers.len() <= TAKERS)
    }

    fn route(&mut self, device: Device) -> &mut Route {
        match device {
            Device::Network => &mut self.network,
            Device::Disk => &mut self.disk,
        }
    }

    /// Something of this kind was handed to the guest, which is interrupted for it.
    pub(crate) fn delivered(&mut self, device: Device) {
        self.route(device).expected = true;
    }

    /// A vCPU took an interrupt. The first one after a delivery is for it.
    pub(crate) fn interrupt(&mut self, vcpu: u16, vector: u8) {
        if vcpu >= VCPUS {
            return;
        }
        for route in [&mut self.network, &mut self.disk] {
            if std::mem::take(&mut route.expected) {
                route.taken(vcpu, vector);
            }
        }
    }

    /// The vCPUs that take the interrupts of this kind, as bits; `None` if that is not known.
    pub(crate) fn takers(&self, device: Device) -> Option<u64> {
        let route = if device == Device::Network { &self.network } else { &self.disk };
        let sure = route.takers.iter().filter(|(_, _, score)| *score >= SURE);
        let takers = sure.fold(0u64, |takers, (vcpu, ..)| takers | 1 << (vcpu % VCPUS));
        (takers != 0).then_some(takers)
    }
}

impl Route {
    fn taken(&mut self, vcpu: u16, vector: u8) {
        let mut found = false;
        for (by, its, score) in &mut self.takers {
            if (*by, *its) == (vcpu, vector) {
                *score = score.saturating_add(GAIN).min(MOST);
                found = true;
            } else {
                *score = score.saturating_sub(1);
            }
        }
        self.takers.retain(|(.., score)| *score > 0);
        if !found && self.takers.len() < TAKERS {
            self.takers.push((vcpu, vector, GAIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interrupt_after_a_delivery_is_for_it() {
        let mut routing = Routing::default();
        assert_eq!(routing.takers(Device::Network), None);
        for _ in 0..3 {
            routing.interrupt(0, 0x30);
            routing.delivered(Device::Network);
            routing.interrupt(2, 0x24);
            routing.interrupt(1, 0xec);
        }
        assert_eq!(routing.takers(Device::Network), Some(1 << 2));
        assert_eq!(routing.takers(Device::Disk), None);
    }

    #[test]
    fn several_queues_have_several_takers_and_a_stray_one_is_none() {
        let mut routing = Routing::default();
        for round in 0..40u16 {
            routing.delivered(Device::Disk);
            routing.interrupt(round % 4, 0x40);
        }
        assert_eq!(routing.takers(Device::Disk), Some(0b1111));
        routing.delivered(Device::Disk);
        routing.interrupt(9, 0x22);
        assert_eq!(routing.takers(Device::Disk), Some(0b1111));
        // The guest moves them all to another vCPU.
        for _ in 0..100 {
            routing.delivered(Device::Disk);
            routing.interrupt(7, 0x40);
        }
        assert_eq!(routing.takers(Device::Disk), Some(1 << 7));
        routing.interrupt(u16::MAX, 0);
        assert!(routing.is_sound());
    }
}
