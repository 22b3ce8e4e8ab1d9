//! The network correlation: which destination ports lead to an I/O-bound task (TAVS §3.3.2).

use crate::event::Protocol;
use crate::state::{StateError, check};
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

/// Packets remembered before a time slice (TAVS §4.3.2: up to 16 entries).
const MAX_RECORDED: usize = 16;
const PORTS: usize = 65_536;
const WORD_BITS: u32 = u64::BITS;

/// A destination of packets inside a VM.
pub(crate) type Port = (Protocol, u16);

/// An N-bit saturating counter for each port: N x 8 KB per protocol, held once that protocol is seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PortMap {
    bits: u32,
    tcp: Vec<u64>,
    udp: Vec<u64>,
}

impl PortMap {
    pub(crate) fn new(bits: u32) -> PortMap {
        PortMap { bits: bits.clamp(1, 8), tcp: Vec::new(), udp: Vec::new() }
    }

    /// Words of a protocol's counters.
    fn length(&self) -> usize {
        PORTS.div_ceil((WORD_BITS / self.bits) as usize)
    }

    /// Checks a map that was loaded.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        check((1..=8).contains(&self.bits), "port counters of a width that there is not")?;
        let whole = |words: &[u64]| words.is_empty() || words.len() == self.length();
        check(whole(&self.tcp) && whole(&self.udp), "counters for other than all ports")
    }

    fn words(&self, protocol: Protocol) -> &Vec<u64> {
        match protocol {
            Protocol::Tcp => &self.tcp,
            Protocol::Udp => &self.udp,
        }
    }

    fn max(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Word and shift of a port's counter.
    fn place(&self, port: u16) -> (usize, u32) {
        let per_word = WORD_BITS / self.bits;
        let index = u32::from(port);
        ((index / per_word) as usize, index % per_word * self.bits)
    }

    pub(crate) fn counter(&self, (protocol, port): Port) -> u64 {
        let (word, shift) = self.place(port);
        self.words(protocol).get(word).map_or(0, |w| w >> shift & self.max())
    }

    /// Whether the most significant bit of the port's counter is set.
    pub(crate) fn predicts(&self, port: Port) -> bool {
        self.counter(port) >> (self.bits - 1) == 1
    }

    /// Learns from one packet: up if it did what is counted, down if not.
    pub(crate) fn learn(&mut self, port: Port, did: bool) {
        let old = self.counter(port);
        let new = if did { (old + 1).min(self.max()) } else { old.saturating_sub(1) };
        if new == old {
            return;
        }
        let (word, shift) = self.place(port.1);
        let (mask, length) = (self.max() << shift, self.length());
        let words = match port.0 {
            Protocol::Tcp => &mut self.tcp,
            Protocol::Udp => &mut self.udp,
        };
        if words.is_empty() {
            words.resize(length, 0);
        }
        words[word] = words[word] & !mask | new << shift;
    }

    /// Ports whose counter is not zero, in order. Words without any are skipped, so that looking is cheap.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Port, u64)> {
        let (per_word, bits, max) = (WORD_BITS / self.bits, self.bits, self.max());
        [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(move |protocol| {
            let words = (0u32..).zip(self.words(protocol)).filter(|(_, word)| **word != 0);
            words.flat_map(move |(index, word)| {
                let counters =
                    (0..per_word).map(move |slot| (index * per_word + slot, word >> (slot * bits) & max));
                let used = counters.filter(|(_, counter)| *counter > 0);
                used.filter_map(move |(port, counter)| Some(((protocol, u16::try_from(port).ok()?), counter)))
            })
        })
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        (self.tcp.capacity() + self.udp.capacity()) * size_of::<u64>()
    }
}

/// The packets queued towards a VM since its last observation began.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Arrivals {
    ports: ArrayVec<Port, MAX_RECORDED>,
    overflow: bool,
}

impl Arrivals {
    pub(crate) fn add(&mut self, port: Port) {
        self.overflow |= self.ports.try_push(port).is_err();
    }

    /// The port if all packets went to one.
    pub(crate) fn single(&self) -> Option<Port> {
        let first = self.ports.first().copied();
        let single = !self.overflow && self.ports.iter().all(|port| Some(*port) == first);
        first.filter(|_| single)
    }

    /// An observation has begun: what comes now is for the next one.
    pub(crate) fn clear(&mut self) {
        self.ports.clear();
        self.overflow = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHO: Port = (Protocol::Tcp, 7);

    #[test]
    fn two_bits_need_two_packets_and_forgive_one() {
        let mut map = PortMap::new(2);
        map.learn(ECHO, true);
        assert!(!map.predicts(ECHO));
        map.learn(ECHO, true);
        assert!(map.predicts(ECHO));
        map.learn(ECHO, true);
        map.learn(ECHO, true);
        assert_eq!(map.counter(ECHO), 3);
        map.learn(ECHO, false);
        assert!(map.predicts(ECHO), "one stray packet does not undo the correlation");
        map.learn(ECHO, false);
        assert!(!map.predicts(ECHO));
    }

    #[test]
    fn counters_are_independent_for_every_width() {
        for bits in 1..=8 {
            let mut map = PortMap::new(bits);
            for port in [0, 1, 31, 32, 1023, u16::MAX] {
                map.learn((Protocol::Udp, port), true);
                assert_eq!(map.counter((Protocol::Tcp, port)), 0);
            }
            let ports: Vec<u16> = map.iter().map(|((_, port), _)| port).collect();
            assert_eq!(ports, [0, 1, 31, 32, 1023, u16::MAX], "{bits} bits");
        }
    }

    #[test]
    fn only_a_single_port_is_judged() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.single(), None);
        arrivals.add(ECHO);
        arrivals.add(ECHO);
        assert_eq!(arrivals.single(), Some(ECHO));
        arrivals.add((Protocol::Udp, 7));
        assert_eq!(arrivals.single(), None);
        arrivals.clear();
        for _ in 0..=MAX_RECORDED {
            arrivals.add(ECHO);
        }
        assert_eq!(arrivals.single(), None, "what was not recorded may have gone elsewhere");
    }
}
