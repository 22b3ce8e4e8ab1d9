//! Clients outside: closed loops that ask and think, and streams.

use crate::queue::{NEVER, Nanos, Timer};
use crate::rng::Rng;
use frontdesk_engine::Protocol;

/// Payload of a packet of a stream.
pub(crate) const SEGMENT: u32 = 1_448;
/// What a packet of a stream takes on the wire.
const FRAME_BITS: f64 = 1_538.0 * 8.0;

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientKind {
    /// Sends a request, waits for the answer, thinks.
    Ask { bytes: u32, think: [Nanos; 2] },
    /// Sends without pause, as far as the window goes.
    Bulk { window: u32, frame: Nanos },
    /// Sends to one port after the other, whether anybody listens or not.
    Scan { pause: Nanos },
}

#[derive(Debug)]
enum ClientState {
    Thinking,
    /// The request is on the wire.
    Sent,
    Waiting,
    /// The answer is on the wire.
    Answered,
    /// The answer has come, and is acknowledged alone before the next request is sent, at a time.
    Acknowledging {
        next: Nanos,
    },
}

/// A client.
#[derive(Debug)]
pub(crate) struct SimClient {
    pub(crate) vm: usize,
    /// `None`: it presses keys.
    pub(crate) protocol: Option<Protocol>,
    pub(crate) port: u16,
    pub(crate) kind: ClientKind,
    pub(crate) timer: Timer,
    latency: Nanos,
    /// How long an acknowledgement waits for a request to go along with, before it goes alone.
    delayed_ack: Option<Nanos>,
    rng: Rng,
    state: ClientState,
    sent: Nanos,
    /// Packets of a stream that are not acknowledged.
    outstanding: u32,
    armed: bool,
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientNeeds {
    /// A packet with so many bytes arrives at the host now.
    pub(crate) arrives: Option<u32>,
    /// When its timer is to fire.
    pub(crate) timer: Nanos,
    /// A response that took so long, to a request sent at.
    pub(crate) response: Option<(Nanos, Nanos)>,
}

const NOTHING: ClientNeeds = ClientNeeds { arrives: None, timer: NEVER, response: None };

impl SimClient {
    pub(crate) fn new(
        vm: usize,
        (protocol, port): (Option<Protocol>, u16),
        kind: ClientKind,
        (latency, delayed_ack): (Nanos, Option<Nanos>),
        timer: Timer,
        rng: Rng,
    ) -> SimClient {
        SimClient {
            vm,
            protocol,
            port,
            kind,
            timer,
            latency,
            delayed_ack: delayed_ack.filter(|_| protocol == Some(Protocol::Tcp)),
            rng,
            state: ClientState::Thinking,
            sent: 0,
            outstanding: 0,
            armed: false,
        }
    }

    /// Nanoseconds that a packet of a stream takes at so many Mbit/s.
    pub(crate) fn frame(mbit_per_s: f64) -> Nanos {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Its range is checked.
        let frame = (FRAME_BITS * 1_000.0 / mbit_per_s) as u64;
        frame.max(1)
    }

    /// What handling its next packet costs, in thousandths of the average: its logarithm is normally
    /// distributed.
    pub(crate) fn effort(&mut self, spread: f64) -> u32 {
        if spread == 0.0 {
            return 1_000;
        }
        // The mean of what is distributed like this is 1.
        let logarithm = spread * self.rng.normal() - spread * spread / 2.0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between e^-14 and e^10.
        let effort = (1_000.0 * logarithm.exp()) as u32;
        effort.max(1)
    }

    /// Whether it waits for answers.
    pub(crate) fn asks(&self) -> bool {
        matches!(self.kind, ClientKind::Ask { .. })
    }

    /// How long it has waited for the answer to its last request, if that has not come.
    pub(crate) fn waits(&self, now: Nanos) -> Option<Nanos> {
        let open = matches!(self.state, ClientState::Sent | ClientState::Waiting | ClientState::Answered);
        (self.asks() && open).then(|| now.saturating_sub(self.sent))
    }

    /// When it begins.
    pub(crate) fn start(&mut self, now: Nanos) -> Nanos {
        match self.kind {
            ClientKind::Ask { think: [shortest, longest], .. } => {
                now.saturating_add(self.rng.uniform(shortest, longest))
            }
            ClientKind::Bulk { frame, .. } => {
                self.armed = true;
                now.saturating_add(frame)
            }
            ClientKind::Scan { pause } => now.saturating_add(pause),
        }
    }

    /// Its timer fired.
    pub(crate) fn timer(&mut self, now: Nanos) -> ClientNeeds {
        match (self.kind, &self.state) {
            (ClientKind::Ask { .. }, ClientState::Thinking) => {
                self.sent = now;
                self.state = ClientState::Sent;
                ClientNeeds { timer: now.saturating_add(self.latency), ..NOTHING }
            }
            (ClientKind::Ask { bytes, .. }, ClientState::Sent) => {
                self.state = ClientState::Waiting;
                ClientNeeds { arrives: Some(bytes), ..NOTHING }
            }
            (ClientKind::Ask { think: [shortest, longest], .. }, ClientState::Answered) => {
                let think = self.rng.uniform(shortest, longest);
                let next = now.saturating_add(think);
                let (state, timer) = match self.delayed_ack.filter(|delay| *delay < think) {
                    Some(delay) => {
                        let arrives = now.saturating_add(delay).saturating_add(self.latency);
                        (ClientState::Acknowledging { next }, arrives)
                    }
                    None => (ClientState::Thinking, next),
                };
                self.state = state;
                ClientNeeds { timer, response: Some((now - self.sent, self.sent)), ..NOTHING }
            }
            (ClientKind::Ask { .. }, ClientState::Acknowledging { next }) => {
                let timer = now.max(*next);
                self.state = ClientState::Thinking;
                ClientNeeds { arrives: Some(0), timer, ..NOTHING }
            }
            (ClientKind::Ask { .. }, ClientState::Waiting) => NOTHING,
            (ClientKind::Bulk { window, frame }, _) => {
                self.outstanding += 1;
                self.armed = self.outstanding < window;
                let timer = if self.armed { now.saturating_add(frame) } else { NEVER };
                ClientNeeds { arrives: Some(SEGMENT), timer, ..NOTHING }
            }
            (ClientKind::Scan { pause }, _) => {
                self.port = self.port.wrapping_add(1);
                ClientNeeds { arrives: Some(SEGMENT), timer: now.saturating_add(pause), ..NOTHING }
            }
        }
    }

    /// The VM sent an answer or an acknowledgement: when the timer is to fire, if that changes.
    pub(crate) fn answered(&mut self, now: Nanos) -> Option<Nanos> {
        match self.kind {
            ClientKind::Ask { .. } => {
                self.state = ClientState::Answered;
                Some(now.saturating_add(self.latency))
            }
            ClientKind::Bulk { frame, .. } => {
                self.outstanding = self.outstanding.saturating_sub(1);
                let idle = !std::mem::replace(&mut self.armed, true);
                idle.then(|| now.saturating_add(self.latency.max(frame)))
            }
            ClientKind::Scan { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queue;

    /// What a client does when an answer has come at 300, and then.
    fn answered(protocol: Protocol, think: Nanos) -> [ClientNeeds; 2] {
        let (kind, timer) = (ClientKind::Ask { bytes: 40, think: [think, think] }, Queue::default().add(0));
        let mut client = SimClient::new(0, (Some(protocol), 7), kind, (100, Some(40)), timer, Rng::new(1, 1));
        assert_eq!(client.timer(0), ClientNeeds { timer: 100, ..NOTHING });
        assert_eq!(client.timer(100), ClientNeeds { arrives: Some(40), ..NOTHING });
        assert_eq!(client.answered(200), Some(300));
        let first = client.timer(300);
        [first, client.timer(first.timer)]
    }

    #[test]
    fn an_answer_is_acknowledged_alone_unless_the_next_request_comes_first() {
        let response = Some((300, 0));
        let request = |at: Nanos| ClientNeeds { timer: at + 100, ..NOTHING };
        let acknowledges = ClientNeeds { arrives: Some(0), timer: 800, ..NOTHING };
        assert_eq!(
            answered(Protocol::Tcp, 500),
            [ClientNeeds { timer: 440, response, ..NOTHING }, acknowledges]
        );
        assert_eq!(
            answered(Protocol::Tcp, 40),
            [ClientNeeds { timer: 340, response, ..NOTHING }, request(340)]
        );
        assert_eq!(
            answered(Protocol::Udp, 500),
            [ClientNeeds { timer: 800, response, ..NOTHING }, request(800)]
        );
    }
}
