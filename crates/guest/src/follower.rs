//! From task switches to messages: what of them the host needs to know.

use crate::rings::PerfRecord;
use crate::tasks::{Proc, Tasks, ThreadKind};
use frontdesk_guest_protocol::{GuestMessage, Isolation, MAGIC, VERSION, encode};

/// Bytes of a report. What has no place is lost, which bounds what the reporter costs.
const REPORT: usize = 1024;

/// What is kept free in a report for the messages that end it.
const RESERVE: usize = 64;

/// What a vCPU does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    /// Not seen yet, or not told.
    #[default]
    Unknown,
    Idle,
    Task(u32),
}

/// Follows what each vCPU runs.
///
/// Told is what the host would see of the guest's address spaces: a switch to another task or to none.
/// Threads of one task are one; the kernel's threads have no address space, so that whoever ran before goes
/// on for the host.
pub(crate) struct Follower<P> {
    tasks: Tasks<P>,
    vcpus: Vec<Doing>,
    report: Vec<u8>,
    /// Changes told in the report.
    changes: u32,
    lost: u32,
    /// What is done about background work, and whether the host knows it.
    isolation: (Isolation, bool),
}

impl<P: Proc> Follower<P> {
    /// For a guest with so many vCPUs.
    pub(crate) fn new(proc: P, vcpus: u16) -> Follower<P> {
        let vcpus = vec![Doing::Unknown; vcpus.into()];
        Follower {
            tasks: Tasks::new(proc),
            vcpus,
            report: Vec::with_capacity(REPORT),
            changes: 0,
            lost: 0,
            isolation: (Isolation::Off, true),
        }
    }

    /// The host wants to hear everything anew.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.report.clear();
        (self.changes, self.lost) = (0, 0);
        self.isolation.1 = false;
        self.tasks.tell_all();
        let vcpus = u16::try_from(self.vcpus.len()).unwrap_or(u16::MAX);
        self.push(&GuestMessage::Hello { magic: MAGIC, version: VERSION, vcpus });
        for vcpu in 0..vcpus {
            let doing = std::mem::take(&mut self.vcpus[usize::from(vcpu)]);
            self.change(vcpu, now_ns, doing);
        }
    }

    /// Something happened on a vCPU.
    pub(crate) fn take(&mut self, vcpu: u16, entry: &PerfRecord) {
        match entry {
            PerfRecord::Lost(count) => {
                self.lost = self.lost.saturating_add(*count);
                if let Some(doing) = self.vcpus.get_mut(usize::from(vcpu)) {
                    *doing = Doing::Unknown;
                }
            }
            PerfRecord::Switch { at_ns, switch } => {
                if switch.next == 0 {
                    self.change(vcpu, *at_ns, Doing::Idle);
                } else if let ThreadKind::Of(task) = self.tasks.thread(switch.next, &switch.next_comm) {
                    self.change(vcpu, *at_ns, Doing::Task(task));
                }
                if switch.prev_ended {
                    self.tasks.ended(switch.prev);
                }
            }
        }
    }

    fn change(&mut self, vcpu: u16, at_ns: u64, doing: Doing) {
        let Some(&known) = self.vcpus.get(usize::from(vcpu)) else { return };
        if known == doing {
            return;
        }
        let told = match doing {
            Doing::Unknown => return,
            Doing::Idle => self.push(&GuestMessage::Idle { vcpu, at_ns }),
            Doing::Task(task) => {
                let named = match self.tasks.unreported_name(task) {
                    Some(name) => self.push(&GuestMessage::Name { task, name }),
                    None => true,
                };
                named && self.push(&GuestMessage::Run { vcpu, at_ns, task })
            }
        };
        // What is not told is told as soon as something else happens.
        if told {
            self.vcpus[usize::from(vcpu)] = doing;
            self.changes += 1;
        } else {
            self.vcpus[usize::from(vcpu)] = Doing::Unknown;
            self.lost = self.lost.saturating_add(1);
            self.tasks.tell_all();
        }
    }

    fn push(&mut self, message: &GuestMessage) -> bool {
        encode(message, REPORT - RESERVE, &mut self.report)
    }

    /// Whether there is something to tell.
    pub(crate) fn has_pending(&self) -> bool {
        !self.report.is_empty() || self.lost > 0 || !self.isolation.1
    }

    /// What is done about background work from now on.
    pub(crate) fn set_isolation(&mut self, isolation: Isolation) {
        if self.isolation.0 != isolation {
            self.isolation = (isolation, false);
        }
    }

    /// Completes the report, and returns it.
    pub(crate) fn finish(&mut self, now_ns: u64) -> &[u8] {
        if self.lost > 0 {
            encode(&GuestMessage::Lost { count: self.lost }, REPORT, &mut self.report);
        }
        if !self.isolation.1 {
            encode(&GuestMessage::Isolation(self.isolation.0), REPORT, &mut self.report);
        }
        encode(&GuestMessage::Sent { at_ns: now_ns }, REPORT, &mut self.report);
        &self.report
    }

    /// The report was sent, or could not be.
    pub(crate) fn finished(&mut self, sent: bool) {
        self.report.clear();
        self.isolation.1 |= sent;
        let changes = std::mem::take(&mut self.changes);
        if sent {
            self.lost = 0;
        } else {
            self.lost = self.lost.saturating_add(changes);
            self.vcpus.fill(Doing::Unknown);
            self.tasks.tell_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::tests::{Fake, kernel, user};
    use crate::tracepoint::{COMM, Switch};
    use frontdesk_guest_protocol::{Decoder, MAX_MESSAGES_PER_SECOND, Name};

    fn follower() -> Follower<Fake> {
        let proc = Fake::from([
            (2, kernel("kthreadd", 2)),
            (50, user("echo", 50)),
            (51, user("worker", 50)),
            (60, user("hog", 60)),
        ]);
        Follower::new(proc, 2)
    }

    fn to(at_ns: u64, next: u32, name: &str) -> PerfRecord {
        let mut next_comm = [0; COMM];
        next_comm[..name.len()].copy_from_slice(name.as_bytes());
        PerfRecord::Switch { at_ns, switch: Switch { prev: 1, prev_ended: false, next, next_comm } }
    }

    fn told(follower: &mut Follower<Fake>, now_ns: u64) -> Vec<GuestMessage> {
        let mut messages = Vec::new();
        Decoder::default().feed(follower.finish(now_ns), |message| messages.push(message.unwrap()));
        follower.finished(true);
        messages
    }

    const OFF: GuestMessage = GuestMessage::Isolation(Isolation::Off);

    #[test]
    fn what_is_done_about_background_work_is_told_once() {
        let mut follower = follower();
        assert!(!follower.has_pending(), "that nothing is done is what the host takes for granted");
        let divided = Isolation::Divided { slow: u64::MAX, background: u16::MAX, others: u16::MAX };
        follower.set_isolation(divided);
        // There is room for it in a report, whatever else that holds.
        for round in 0..10_000 {
            follower.take(0, &to(1 << 60 | round, if round % 2 == 0 { 50 } else { 60 }, "x"));
        }
        follower.lost = u32::MAX;
        follower.finish(u64::MAX);
        follower.finished(false);
        assert!(told(&mut follower, u64::MAX).ends_with(&[
            GuestMessage::Lost { count: u32::MAX },
            GuestMessage::Isolation(divided),
            GuestMessage::Sent { at_ns: u64::MAX }
        ]));
        follower.set_isolation(divided);
        assert!(!follower.has_pending());
    }

    #[test]
    fn what_the_host_would_see_is_told() {
        let mut follower = follower();
        follower.begin(1);
        let hello = GuestMessage::Hello { magic: MAGIC, version: VERSION, vcpus: 2 };
        assert_eq!(told(&mut follower, 2), [hello, OFF, GuestMessage::Sent { at_ns: 2 }]);
        assert!(!follower.has_pending());

        for entry in [
            to(10, 60, "hog"),
            to(11, 2, "kthreadd"),
            to(12, 60, "hog"),
            to(13, 50, "echo"),
            to(14, 51, "worker"),
            to(15, 0, "swapper/1"),
            to(16, 2, "kthreadd"),
            to(17, 0, "swapper/1"),
            to(18, 51, "worker"),
        ] {
            follower.take(1, &entry);
        }
        let run = |at_ns, task| GuestMessage::Run { vcpu: 1, at_ns, task };
        let name = |task, name: &str| GuestMessage::Name { task, name: Name::from_comm(name.as_bytes()) };
        let expected = [
            name(60, "hog"),
            run(10, 60),
            name(50, "echo"),
            run(13, 50),
            GuestMessage::Idle { vcpu: 1, at_ns: 15 },
            run(18, 50),
            GuestMessage::Sent { at_ns: 20 },
        ];
        assert_eq!(told(&mut follower, 20), expected);

        // Who listens anew hears what runs.
        follower.begin(30);
        let expected = [hello, name(50, "echo"), run(30, 50), OFF, GuestMessage::Sent { at_ns: 31 }];
        assert_eq!(told(&mut follower, 31), expected);
    }

    #[test]
    fn a_storm_is_cut_and_the_truth_told_afterwards() {
        let mut follower = follower();
        for round in 0..10_000 {
            follower.take(0, &to(round, if round % 2 == 0 { 50 } else { 60 }, "x"));
        }
        let messages = told(&mut follower, 10_000);
        let runs = messages.iter().filter(|message| matches!(message, GuestMessage::Run { .. })).count();
        let lost = messages.iter().find_map(|message| match message {
            GuestMessage::Lost { count } => Some(*count as usize),
            _ => None,
        });
        assert_eq!(lost, Some(10_000 - runs));
        assert!(matches!(messages.last(), Some(GuestMessage::Sent { .. })));
        // 60 ran last, and was not told.
        follower.take(0, &to(10_001, 60, "x"));
        assert!(told(&mut follower, 1).contains(&GuestMessage::Run { vcpu: 0, at_ns: 10_001, task: 60 }));
    }

    #[test]
    fn what_could_not_be_sent_is_told_as_lost() {
        let mut follower = follower();
        follower.take(0, &to(1, 60, "hog"));
        follower.take(1, &PerfRecord::Lost(7));
        follower.finish(2);
        follower.finished(false);
        assert!(follower.has_pending());
        follower.take(0, &to(3, 60, "hog"));
        let run = GuestMessage::Run { vcpu: 0, at_ns: 3, task: 60 };
        let name = GuestMessage::Name { task: 60, name: Name::from_comm(b"hog") };
        assert_eq!(
            told(&mut follower, 4),
            [name, run, GuestMessage::Lost { count: 8 }, GuestMessage::Sent { at_ns: 4 }]
        );
    }

    #[test]
    fn the_host_never_takes_this_for_a_flood() {
        let mut follower = follower();
        let uptime = 1 << 50;
        for round in 0..1000 {
            follower.take(0, &to(uptime + round, if round % 2 == 0 { 0 } else { 60 }, "x"));
        }
        let reports_per_second = u64::from(u32::try_from(1_000_000_000 / crate::pacer::INTERVAL_NS).unwrap());
        assert!(
            told(&mut follower, uptime).len() as u64 * reports_per_second
                < u64::from(MAX_MESSAGES_PER_SECOND)
        );
    }

    #[test]
    fn a_cpu_that_was_not_there_is_not_told() {
        let mut follower = follower();
        follower.take(2, &to(1, 60, "hog"));
        assert!(!follower.has_pending());
    }
}
