//! What the scheduler and user space tell each other, as `bpf/scx.bpf.c` lays it out.

use frontdesk_engine::Boost;
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
}

/// The greatest weight that the engine gives a vCPU among the threads of its VM, in permille.
pub(super) const MAX_PERMILLE: u32 = 64_000;

const ACCOUNT_SIZE: usize = 64;

impl Usage {
    /// A whole account that has used this, but nothing else on record.
    pub(super) fn encode(&self) -> [u8; ACCOUNT_SIZE] {
        let mut bytes = [0; ACCOUNT_SIZE];
        let fields = [self.consumed_ns, self.boosted_ns, self.runs, self.boosted_runs];
        for (to, field) in bytes.chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn decode(account: &[u8]) -> Option<Usage> {
        let account: &[u8; ACCOUNT_SIZE] = account.try_into().ok()?;
        let field = |index: usize| {
            let bytes = account[index * 8..][..8].try_into();
            bytes.map_or(0, u64::from_ne_bytes)
        };
        Some(Usage { consumed_ns: field(0), boosted_ns: field(1), runs: field(2), boosted_runs: field(3) })
    }
}

/// A `struct thread` that is not boosted and has an ordinary weight.
pub(super) fn thread(account: u32, vcpu: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
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
        let level = |level| match level {
            Boost::None => 0,
            Boost::Io => 1,
            Boost::Multimedia => 2,
        };
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
        let usage = Usage { consumed_ns: 4, boosted_ns: 3, runs: 2, boosted_runs: 1 };
        let bytes = usage.encode();
        assert_eq!(bytes[24..32], 1_u64.to_ne_bytes());
        assert_eq!(Usage::decode(&bytes), Some(usage));
        assert_eq!(Usage::decode(&bytes[1..]), None);
    }

    #[test]
    fn an_ejection_is_told_with_its_message() {
        let chars = |text: &str| text.bytes().map(u8::cast_signed).chain([0, 55]).collect::<Vec<c_char>>();
        assert_eq!(text(&chars("runnable task stall"), &chars("qemu[7]")), "runnable task stall: qemu[7]");
        assert_eq!(text(&chars("unregistered"), &chars("")), "unregistered");
    }
}
