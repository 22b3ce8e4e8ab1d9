//! What the scheduler and user space tell each other, as `bpf/scx.bpf.c` lays it out.

use crate::packet::{PROTOCOL_TCP, PROTOCOL_UDP};
use frontdesk_engine::{Boost, Protocol, Time, VmId};
use std::ffi::c_char;

pub(super) const MAX_VMS: u32 = 1024;
/// The vCPU number of an emulator thread.
pub(super) const EMULATOR: u32 = u32::MAX;
/// What `cpu.shares` can hold.
pub(super) const MAX_WEIGHT: u32 = 262_144;

/// What a VM has used, as the scheduler charged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all its threads, in nanoseconds.
    pub consumed_ns: u64,
    /// The part of it in which they went first.
    pub boosted_ns: u64,
    /// How many times a thread of it got a CPU.
    pub runs: u64,
    /// The part of them in which it went first.
    pub boosted_runs: u64,
    /// How many boosts the kernel gave by itself.
    pub gifts: u64,
}

/// What the kernel may do by itself when a packet comes to a [port](crate::scx::Scx::learn_port) of a VM:
/// once, boost these vCPUs and the emulator threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mandate {
    /// Thread ids, of which the first 8 count.
    pub vcpus: Vec<i32>,
    /// The preference.
    pub level: Boost,
    /// How long, in nanoseconds, if user space says nothing before.
    pub lasts_ns: u64,
}

/// A boost that the kernel gave by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gift {
    /// When.
    pub at: Time,
    /// How long after the packet, in nanoseconds, all that it is for went first.
    pub took_ns: u64,
    /// Thread ids of the vCPUs.
    pub vcpus: Vec<i32>,
}

impl Gift {
    /// From a `struct mandate`, if it was used.
    pub(crate) fn decode(mandate: &[u8]) -> Option<Gift> {
        let (times, rest) = mandate.split_first_chunk::<24>()?;
        let time = |index: usize| times[index * 8..][..8].try_into().map_or(0, u64::from_ne_bytes);
        let tids = rest.get(8..)?.chunks_exact(4).map(|tid| tid.try_into().map_or(0, i32::from_ne_bytes));
        let vcpus = tids.filter(|tid| *tid > 0).collect();
        (time(0) > 0).then(|| Gift { at: Time(time(0)), took_ns: time(2), vcpus })
    }
}

/// The greatest weight that the engine gives a vCPU among the threads of its VM, in permille.
pub(super) const MAX_PERMILLE: u32 = 64_000;

const ACCOUNT_SIZE: usize = 88;

/// Which of its 64-bit words counts the boosts that the kernel gave by itself: the last one.
const GIFTS: usize = 10;

impl Usage {
    /// A whole account that has used this, but nothing else on record.
    pub(super) fn encode(&self) -> [u8; ACCOUNT_SIZE] {
        let mut bytes = [0; ACCOUNT_SIZE];
        let fields = [self.consumed_ns, self.boosted_ns, self.runs, self.boosted_runs];
        for (to, field) in bytes.chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        bytes[GIFTS * 8..].copy_from_slice(&self.gifts.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(account: &[u8]) -> Option<Usage> {
        let account: &[u8; ACCOUNT_SIZE] = account.try_into().ok()?;
        let field = |index: usize| {
            let bytes = account[index * 8..][..8].try_into();
            bytes.map_or(0, u64::from_ne_bytes)
        };
        Some(Usage {
            consumed_ns: field(0),
            boosted_ns: field(1),
            runs: field(2),
            boosted_runs: field(3),
            gifts: field(GIFTS),
        })
    }
}

/// A `struct thread` that is not boosted and has an ordinary weight.
pub(super) fn thread(account: u32, vcpu: u32) -> [u8; 40] {
    let mut bytes = [0; 40];
    for (to, field) in bytes.chunks_exact_mut(4).zip([account, vcpu, 0, ORDINARY]) {
        to.copy_from_slice(&field.to_ne_bytes());
    }
    bytes
}

const ORDINARY: u32 = 1000;

/// What is wanted from now on.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScxCommand {
    Boost { tid: i32, level: Boost },
    BoostEmulators { account: u32, level: Boost },
    Weigh { tid: i32, permille: u32 },
}

impl ScxCommand {
    /// A `struct order`.
    pub(super) fn encode(self) -> [u8; 12] {
        let fields = match self {
            ScxCommand::Boost { tid, level: to } => [0, tid.cast_unsigned(), level(to)],
            ScxCommand::BoostEmulators { account, level: to } => [1, account, level(to)],
            ScxCommand::Weigh { tid, permille } => [2, tid.cast_unsigned(), permille],
        };
        let mut bytes = [0; 12];
        for (to, field) in bytes.chunks_exact_mut(4).zip(fields) {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }
}

fn level(level: Boost) -> u32 {
    match level {
        Boost::None => 0,
        Boost::Io => 1,
        Boost::Multimedia => 2,
    }
}

/// A `struct mandate_order`: `handled` are the packets up to then.
pub(super) fn mandate(account: u32, handled: Time, mandate: Option<&Mandate>) -> [u8; 56] {
    let mut bytes = [0; 56];
    bytes[..8].copy_from_slice(&handled.0.to_ne_bytes());
    bytes[16..20].copy_from_slice(&account.to_ne_bytes());
    if let Some(mandate) = mandate {
        bytes[8..16].copy_from_slice(&mandate.lasts_ns.to_ne_bytes());
        bytes[20..24].copy_from_slice(&level(mandate.level).to_ne_bytes());
        for (to, tid) in bytes[24..].chunks_exact_mut(4).zip(&mandate.vcpus) {
            to.copy_from_slice(&tid.to_ne_bytes());
        }
    }
    bytes
}

/// Value of the map `taps` (struct receiver).
pub(super) fn receiver(vm: VmId, account: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&vm.0.to_ne_bytes());
    bytes[4..].copy_from_slice(&account.to_ne_bytes());
    bytes
}

/// Key of the map `ports` (struct port).
pub(super) fn port(vm: VmId, protocol: Protocol, number: u16) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&vm.0.to_ne_bytes());
    bytes[4..6].copy_from_slice(&number.to_ne_bytes());
    bytes[6] = match protocol {
        Protocol::Tcp => PROTOCOL_TCP,
        Protocol::Udp => PROTOCOL_UDP,
    };
    bytes
}

/// Two strings of the kernel as one text.
pub(super) fn text(reason: &[c_char], message: &[c_char]) -> String {
    let string = |chars: &[c_char]| {
        let bytes: Vec<u8> =
            chars.iter().map(|&char| char.cast_unsigned()).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    match (string(reason), string(message)) {
        (reason, message) if message.is_empty() => reason,
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_laid_out_as_in_c() {
        let usage = Usage { consumed_ns: 4, boosted_ns: 3, runs: 2, boosted_runs: 1, gifts: 9 };
        let bytes = usage.encode();
        assert_eq!((&bytes[24..32], &bytes[80..]), (&1_u64.to_ne_bytes()[..], &9_u64.to_ne_bytes()[..]));
        assert_eq!(Usage::decode(&bytes), Some(usage));
        assert_eq!(Usage::decode(&bytes[1..]), None);
    }

    #[test]
    fn mandates_and_ports_are_laid_out_as_in_c() {
        let some = Mandate { vcpus: vec![7, 8], level: Boost::Io, lasts_ns: 5 };
        let bytes = mandate(3, Time(6), Some(&some));
        let words = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
        assert_eq!(words.collect::<Vec<_>>(), [6, 0, 5, 0, 3, 1, 7, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mandate(3, Time(6), None)[20..], [0; 36], "nothing at all");
        let mut expected = 9_u32.to_ne_bytes().to_vec();
        expected.extend(443_u16.to_ne_bytes());
        assert_eq!(port(VmId(9), Protocol::Udp, 443)[..], [expected, vec![17, 0]].concat());
    }

    #[test]
    fn a_gift_is_read_as_it_is_laid_out_in_c() {
        let bytes = |at: u64| {
            let times = [at, 5, 9].map(u64::to_ne_bytes).concat();
            let rest = [0, 1, 7, 8, 0, 0, 0, 0, 0, 0].map(i32::to_ne_bytes).concat();
            [times, rest].concat()
        };
        let gift = Gift { at: Time(6), took_ns: 9, vcpus: vec![7, 8] };
        assert_eq!(Gift::decode(&bytes(6)), Some(gift));
        assert_eq!(Gift::decode(&bytes(0)), None, "not used");
        assert_eq!(Gift::decode(&bytes(6)[..20]), None);
    }

    #[test]
    fn an_ejection_is_told_with_its_message() {
        let chars = |text: &str| text.bytes().map(u8::cast_signed).chain([0, 55]).collect::<Vec<c_char>>();
        assert_eq!(text(&chars("runnable task stall"), &chars("qemu[7]")), "runnable task stall: qemu[7]");
        assert_eq!(text(&chars("unregistered"), &chars("")), "unregistered");
    }
}
