//! What the reporter in a guest tells the host: which task runs on which vCPU since when.
//!
//! # The conversation
//! Both sides speak over the virtio-serial port [`PORT_NAME`]. When the host is connected, the guest says
//! [`GuestMessage::Hello`], then what each vCPU runs as far as it knows that, and from then on each change.
//! The host may ask it to begin anew with [`HostMessage::Start`], and does so when it has connected. Whatever
//! the guest sends at once is a *report*, which ends with [`GuestMessage::Sent`]. If it has nothing to tell,
//! it sends an empty report each [`HEARTBEAT`].
//!
//! With a report a guest also says what it does about [`Isolation`] (vAMP §3.3), when that changes. When a
//! person waits for something, the host tells the guest's background work, one [`HostMessage::Background`]
//! for each task, and then [`HostMessage::Episode`]; a guest that was started to do so keeps these tasks and
//! all others on disjoint vCPUs, until [`HostMessage::EpisodeOver`], until the port is closed, or until
//! [`EPISODE_GRACE`] after the time that it was given.
//!
//! # Bytes
//! A message is a [postcard](https://postcard.jamesmunns.com/wire-format) value, made free of zeros by COBS
//! and ended by a zero, so that a reader that got half a message finds the next one. None is longer than
//! [`MAX_ENCODED`].
//!
//! Neither side trusts the other: whatever the bytes, [`Decoder`] neither panics nor allocates.

use arrayvec::ArrayString;
use postcard::accumulator::{CobsAccumulator, FeedResult};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "org.frontdesk.tasks.0";

/// First field of a [`GuestMessage::Hello`] and a [`HostMessage::Start`].
pub const MAGIC: u32 = u32::from_le_bytes(*b"fdTk");

/// Version of the protocol. It counts up with each change of the messages; those that carry it stay as they
/// are.
pub const VERSION: u16 = 3;

/// Longest time between two reports. A guest that was silent for three times as long is gone.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// A host hangs up when a guest sends more.
pub const MAX_MESSAGES_PER_SECOND: u32 = 100_000;

/// Background tasks in an episode, at most.
pub const MAX_BACKGROUND: usize = 64;

/// A guest undoes what it did for an episode so long after the time that it was given, if the host says
/// nothing.
pub const EPISODE_GRACE: Duration = Duration::from_secs(2);

/// Bytes of the longest message, its end included.
pub const MAX_ENCODED: usize = 40;

/// Bytes of the longest [`Name`]: Linux keeps no more.
pub const NAME_MAX: usize = 15;

/// From the guest to the host.
///
/// Times are on the guest's `CLOCK_MONOTONIC_RAW`, in nanoseconds. A task is a process, named by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestMessage {
    /// The guest begins, or begins anew: what was told before is void.
    Hello {
        /// [`MAGIC`].
        magic: u32,
        /// Version that the guest speaks.
        version: u16,
        /// Number of vCPUs that the guest has.
        vcpus: u16,
    },
    /// The name of a task, told before the task runs for the first time, and when it changes.
    Name {
        /// The task.
        task: u32,
        /// Its name.
        name: Name,
    },
    /// A task runs on a vCPU. It may have run there before the vCPU was idle.
    Run {
        /// Index of the vCPU.
        vcpu: u16,
        /// Since when.
        at_ns: u64,
        /// The task.
        task: u32,
    },
    /// A vCPU has nothing to run.
    Idle {
        /// Index of the vCPU.
        vcpu: u16,
        /// Since when.
        at_ns: u64,
    },
    /// Changes that were not told, because there were too many.
    Lost {
        /// How many.
        count: u32,
    },
    /// The end of a report.
    Sent {
        /// When it was sent.
        at_ns: u64,
    },
    /// What the guest does about background work from now on. [`Isolation::Off`] until said.
    Isolation(Isolation),
}

/// What a guest does about its background work in an episode (vAMP §3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolation {
    /// It was not started to do anything, and takes no orders.
    #[default]
    Off,
    /// Nothing now: no episode goes on, or none of its background tasks is there any more.
    Ready,
    /// Background tasks have vCPUs of their own.
    Divided {
        /// These vCPUs: a bit for each index. The others are for all other tasks.
        slow: u64,
        /// Threads that were given the vCPUs of background work,
        background: u16,
        /// and the others'.
        others: u16,
    },
    /// It cannot.
    Refused(Refusal),
}

/// Why a guest cannot isolate its background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It has one vCPU, or more than 64.
    Vcpus,
    /// It has more threads than it keeps account of.
    Threads,
    /// The process that undoes everything, should the extension die, cannot be started.
    Guardian,
    /// The kernel refuses to tell what there is, or to move anything.
    Kernel,
}

/// From the host to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostMessage {
    /// Says who listens, and asks the guest to begin anew.
    Start {
        /// [`MAGIC`].
        magic: u32,
        /// Version that the host speaks.
        version: u16,
    },
    /// Reports need come no more often than that: the host only wants names.
    Pace {
        /// Between two reports, in milliseconds.
        interval_ms: u16,
    },
    /// A background task of the next [`Episode`](HostMessage::Episode).
    Background {
        /// The task.
        task: u32,
    },
    /// A person waits for something that is none of the background tasks told since the last message of this
    /// kind. It takes the place of an episode that goes on.
    Episode {
        /// When it ends at the latest, in milliseconds from now.
        left_ms: u16,
        /// How many tasks were told; if fewer came, the message is ignored.
        tasks: u8,
        /// Whether it began with sound, which takes two vCPUs rather than one (§3.3).
        sound: bool,
    },
    /// Nobody waits any more.
    EpisodeOver,
}

impl HostMessage {
    /// A [`HostMessage::Start`] of this version.
    #[must_use]
    pub const fn start() -> HostMessage {
        HostMessage::Start { magic: MAGIC, version: VERSION }
    }
}

/// The name of a task, for people to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name(ArrayString<NAME_MAX>);

impl Name {
    /// The name in `comm`, which ends at its first zero; what cannot be printed becomes a question mark.
    #[must_use]
    pub fn from_comm(comm: &[u8]) -> Name {
        let mut name = ArrayString::new();
        for &byte in comm.iter().take_while(|byte| **byte != 0).take(NAME_MAX) {
            name.push(if byte == b' ' || byte.is_ascii_graphic() { byte.into() } else { '?' });
        }
        Name(name)
    }

    /// The name as it came, which may hold anything.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Appends a message to `out`; `false`, and nothing appended, if it would have more bytes than `limit` then.
pub fn encode<T: Serialize>(message: &T, limit: usize, out: &mut Vec<u8>) -> bool {
    let mut buffer = [0; MAX_ENCODED];
    match postcard::to_slice_cobs(message, &mut buffer) {
        Ok(bytes) if out.len() + bytes.len() <= limit => {
            out.extend_from_slice(bytes);
            true
        }
        _ => false,
    }
}

/// Finds messages in a stream of bytes.
pub struct Decoder(CobsAccumulator<MAX_ENCODED>);

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder(CobsAccumulator::new())
    }
}

impl Decoder {
    /// Takes the next bytes of the stream and calls `take` with each message that is complete, or with `None`
    /// where there is none in what came.
    pub fn feed<T: DeserializeOwned>(&mut self, mut bytes: &[u8], mut take: impl FnMut(Option<T>)) {
        while !bytes.is_empty() {
            bytes = match self.0.feed(bytes) {
                FeedResult::Consumed => return,
                FeedResult::OverFull(rest) | FeedResult::DeserError(rest) => {
                    take(None);
                    rest
                }
                FeedResult::Success { data, remaining } => {
                    take(Some(data));
                    remaining
                }
            };
        }
    }
}

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

/// The example in the crate's README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = GuestMessage> {
        let name = prop::collection::vec(any::<u8>(), 0..20).prop_map(|comm| Name::from_comm(&comm));
        prop_oneof![
            (any::<u32>(), any::<u16>(), any::<u16>())
                .prop_map(|(magic, version, vcpus)| GuestMessage::Hello { magic, version, vcpus }),
            (any::<u32>(), name).prop_map(|(task, name)| GuestMessage::Name { task, name }),
            (any::<u16>(), any::<u64>(), any::<u32>()).prop_map(|(vcpu, at_ns, task)| GuestMessage::Run {
                vcpu,
                at_ns,
                task
            }),
            (any::<u16>(), any::<u64>()).prop_map(|(vcpu, at_ns)| GuestMessage::Idle { vcpu, at_ns }),
            any::<u32>().prop_map(|count| GuestMessage::Lost { count }),
            any::<u64>().prop_map(|at_ns| GuestMessage::Sent { at_ns }),
            (any::<u64>(), any::<u16>(), any::<u16>()).prop_map(|(slow, background, others)| {
                GuestMessage::Isolation(Isolation::Divided { slow, background, others })
            }),
        ]
    }

    /// What comes out when `bytes` come in pieces of the given lengths.
    fn decode(bytes: &[u8], mut pieces: impl Iterator<Item = usize>) -> Vec<Option<GuestMessage>> {
        let (mut decoder, mut found, mut rest) = (Decoder::default(), Vec::new(), bytes);
        while !rest.is_empty() {
            let (piece, next) = rest.split_at(pieces.next().unwrap_or(rest.len()).min(rest.len()));
            decoder.feed(piece, |message| found.push(message));
            rest = next;
        }
        found
    }

    proptest! {
        #[test]
        fn every_message_arrives_however_the_stream_is_cut(
            sent in prop::collection::vec(messages(), 0..20),
            pieces in prop::collection::vec(1usize..50, 0..50),
        ) {
            let mut bytes = Vec::new();
            for message in &sent {
                prop_assert!(encode(message, usize::MAX, &mut bytes), "{message:?} is too long");
            }
            let found = decode(&bytes, pieces.into_iter());
            prop_assert_eq!(found, sent.into_iter().map(Some).collect::<Vec<_>>());
        }

        #[test]
        fn after_garbage_the_next_message_but_one_arrives(
            garbage in prop::collection::vec(any::<u8>(), 0..500),
            message in messages(),
        ) {
            let mut bytes = garbage;
            // The first may become the end of what the garbage began.
            prop_assert!(encode(&message, usize::MAX, &mut bytes));
            prop_assert!(encode(&message, usize::MAX, &mut bytes));
            let found = decode(&bytes, std::iter::empty());
            prop_assert_eq!(found.last(), Some(&Some(message)));
        }
    }

    proptest! {
        #[test]
        fn fuzz_streams(bytes in prop::collection::vec(prop_oneof![4 => 0..8u8, 1 => any::<u8>()], 0..300)) {
            fuzzing::stream(&bytes);
        }
    }

    #[test]
    fn a_report_does_not_outgrow_its_limit() {
        let mut report = Vec::new();
        while encode(&GuestMessage::Run { vcpu: 1, at_ns: 1 << 60, task: 77 }, 100, &mut report) {}
        assert!((80..=100).contains(&report.len()), "{}", report.len());
        let before = report.clone();
        assert!(!encode(&GuestMessage::Lost { count: u32::MAX }, 100, &mut report) || report.len() <= 100);
        assert!(report.starts_with(&before));
    }

    #[test]
    fn names_can_be_printed() {
        assert_eq!(Name::from_comm(b"Web Content\0junk").as_str(), "Web Content");
        assert_eq!(Name::from_comm(b"a\x1b[31m\xff").as_str(), "a?[31m?");
        assert_eq!(Name::from_comm(&[b'x'; 40]).as_str(), "x".repeat(NAME_MAX));
    }

    /// A change here breaks guests in the field: count `VERSION` up.
    #[test]
    fn the_bytes_stay_as_they_are() {
        let mut bytes = Vec::new();
        encode(&GuestMessage::Hello { magic: MAGIC, version: 1, vcpus: 4 }, 100, &mut bytes);
        encode(&GuestMessage::Run { vcpu: 2, at_ns: 300, task: 7 }, 100, &mut bytes);
        encode(&HostMessage::start(), 100, &mut bytes);
        encode(&HostMessage::Pace { interval_ms: 100 }, 100, &mut bytes);
        encode(&HostMessage::Background { task: 7 }, 100, &mut bytes);
        encode(&HostMessage::Episode { left_ms: 300, tasks: 1, sound: true }, 100, &mut bytes);
        encode(&HostMessage::EpisodeOver, 100, &mut bytes);
        encode(&GuestMessage::Isolation(Isolation::Refused(Refusal::Threads)), 100, &mut bytes);
        assert_eq!(
            bytes,
            *b"\x01\x08\xe6\xc8\xd1\xda\x06\x01\x04\x00\x06\x02\x02\xac\x02\x07\x00\
               \x01\x07\xe6\xc8\xd1\xda\x06\x03\x00\x03\x01\x64\x00\
               \x03\x02\x07\x00\x06\x03\xac\x02\x01\x01\x00\x02\x04\x00\x04\x06\x03\x01\x00"
        );
    }
}
