//! What an epoll event is about.

use frontdesk_engine::VmId;
use rustix::event::epoll::EventData;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The daemon is to end.
    Stop,
    /// The BPF programs have something that cannot wait.
    Bpf,
    /// There are notifications of VMs, or another configuration.
    Notification,
    /// Somebody looks in.
    Control,
    /// A boosted vCPU switched to another task.
    Identities,
    /// The guardian has ended.
    Guardian,
    /// The VM has ended.
    Death(VmId),
}

impl Token {
    pub(super) fn encode(self) -> EventData {
        let (kind, vm) = match self {
            Token::Stop => (0, 0),
            Token::Bpf => (1, 0),
            Token::Identities => (2, 0),
            Token::Death(vm) => (3, vm.0),
            Token::Notification => (4, 0),
            Token::Control => (5, 0),
            Token::Guardian => (6, 0),
        };
        EventData::new_u64(kind << 32 | u64::from(vm))
    }

    /// `None` for what [`encode`](Self::encode) does not make.
    pub(super) fn decode(data: EventData) -> Option<Token> {
        let vm = VmId(u32::try_from(data.u64() & u64::from(u32::MAX)).ok()?);
        Some(match data.u64() >> 32 {
            0 => Token::Stop,
            1 => Token::Bpf,
            2 => Token::Identities,
            3 => Token::Death(vm),
            4 => Token::Notification,
            5 => Token::Control,
            6 => Token::Guardian,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_comes_back() {
        let vm = VmId(u32::MAX);
        let plain = [
            Token::Stop,
            Token::Bpf,
            Token::Notification,
            Token::Control,
            Token::Identities,
            Token::Guardian,
        ];
        for token in plain.into_iter().chain([Token::Death(vm)]) {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
        assert_eq!(Token::decode(EventData::new_u64(99 << 32)), None);
    }
}
