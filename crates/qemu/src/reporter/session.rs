//! What a guest tells, checked. The guest is not trusted: whatever it says, memory and work are bounded, and
//! only what is said of its own VM can be wrong.

use super::clock::{GuestClock, HostTime};
use frontdesk_engine::{Event, EventKind, TaskId, Time, VmId};
use frontdesk_guest_protocol::{GuestMessage, Isolation, MAGIC, MAX_MESSAGES_PER_SECOND, Name, VERSION};
use lru::LruCache;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Changes in a report. A reporter of ours sends fewer than a hundred.
const MAX_CHANGES: usize = 256;
/// Events that wait to be due. What a flood brings in 4 ms is less.
const MAX_HELD: usize = 1024;
/// Names that are kept: those that ran last.
const MAX_NAMES: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// To be woken costs the daemon as much as so many messages. A reporter of ours does it a thousand times a
/// second at most.
const WAKE_COST: u32 = 20;

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// What no reporter of ours does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offence {
    /// It speaks another version.
    Version(u16),
    /// More messages than allowed.
    Flood,
}

/// A change on a vCPU.
#[derive(Clone, Copy, Debug)]
struct Change {
    vcpu: u16,
    /// On the guest's clock.
    at_ns: u64,
    /// `None`: it has nothing to run.
    task: Option<u32>,
    tells: Tells,
}

/// What a change tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    /// What is so until the next change.
    All,
    /// What is so, but not until when: what came after it was not told.
    Begin,
    /// That what was told before may have ended any time. Only whoever looks for names hears of it.
    Nothing,
}

/// What a guest told of one of its vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Index of the vCPU.
    pub vcpu: u16,
    /// When it happened, on the host's clock.
    pub at: Time,
    /// Process id of what runs from then on; `None`: nothing.
    pub task: Option<u32>,
}

/// Counts since the beginning. They saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReporterStats {
    /// Changes that were taken.
    pub changes: u64,
    /// Changes that the guest could not tell.
    pub lost: u64,
    /// Messages that made no sense or were too many.
    pub refused: u64,
}

/// What one guest told so far.
#[derive(Debug)]
pub(super) struct ReporterSession {
    vcpus: u16,
    /// Whether the guest has said hello, and nothing has made that void.
    live: bool,
    report: Vec<Change>,
    /// Whether there are changes before or after those of the report that were not told.
    cut: bool,
    /// When the last report was sent, on the guest's clock.
    sent_ns: u64,
    clock: GuestClock,
    /// By when they are due, and when they happened, as far as the guest says.
    held: VecDeque<(Time, Time, Change)>,
    names: LruCache<u32, Name>,
    stats: ReporterStats,
    /// What it says that it does about background work.
    isolation: Isolation,
    /// How often it has said hello.
    hellos: u64,
    /// Messages in the second that began then.
    budget: (Time, u32),
}

impl ReporterSession {
    pub(super) fn new(vcpus: u16) -> ReporterSession {
        ReporterSession {
            vcpus,
            live: false,
            report: Vec::new(),
            cut: false,
            sent_ns: 0,
            clock: GuestClock::default(),
            held: VecDeque::new(),
            names: LruCache::new(MAX_NAMES),
            stats: ReporterStats::default(),
            isolation: Isolation::Off,
            hellos: 0,
            budget: (Time::default(), 0),
        }
    }

    pub(super) fn set_vcpus(&mut self, vcpus: u16) {
        self.vcpus = vcpus;
    }

    pub(super) fn set_io_threshold(&mut self, threshold: Duration) {
        self.clock.set_io_threshold(threshold);
    }

    /// Takes a message, or `None` for what is none. Returns whether it ended a report that cannot be used
    /// because there was no hello.
    pub(super) fn take(&mut self, message: Option<GuestMessage>, now: HostTime) -> Result<bool, Offence> {
        self.charge(1, now.monotonic)?;
        match message {
            Some(GuestMessage::Hello { magic: MAGIC, version: VERSION, .. }) => {
                self.live = true;
                self.report.clear();
                self.cut = false;
                self.clock = self.clock.anew();
                self.names.clear();
                self.isolation = Isolation::Off;
                self.hellos = self.hellos.wrapping_add(1);
            }
            Some(GuestMessage::Hello { magic: MAGIC, version, .. }) => return Err(Offence::Version(version)),
            None | Some(GuestMessage::Hello { .. }) => self.refuse(),
            Some(GuestMessage::Sent { .. }) if !self.live => return Ok(true),
            // The rest of a conversation with somebody else.
            Some(_) if !self.live => {}
            Some(GuestMessage::Name { task, name }) => {
                // It came as it is: clean it.
                self.names.put(task, Name::from_comm(name.as_str().as_bytes()));
            }
            Some(GuestMessage::Run { vcpu, at_ns, task }) => {
                self.change(Change { vcpu, at_ns, task: Some(task), tells: Tells::All });
            }
            Some(GuestMessage::Idle { vcpu, at_ns }) => {
                self.change(Change { vcpu, at_ns, task: None, tells: Tells::All });
            }
            Some(GuestMessage::Lost { count }) => {
                self.cut = true;
                self.stats.lost = self.stats.lost.saturating_add(count.into());
            }
            Some(GuestMessage::Isolation(isolation)) => self.isolate(isolation),
            Some(GuestMessage::Sent { at_ns }) => self.finish_report(at_ns, now),
        }
        Ok(false)
    }

    /// The guest woke the daemon, with whatever came.
    pub(super) fn woken(&mut self, now: HostTime) -> Result<(), Offence> {
        self.charge(WAKE_COST, now.monotonic)
    }

    /// What it has cost since its second began.
    pub(super) fn cost(&self, now: Time) -> u32 {
        if now.since(self.budget.0) < SECOND { self.budget.1 } else { 0 }
    }

    fn charge(&mut self, cost: u32, now: Time) -> Result<(), Offence> {
        if now.since(self.budget.0) >= SECOND {
            self.budget = (now, 0);
        }
        self.budget.1 = self.budget.1.saturating_add(cost);
        if self.budget.1 > MAX_MESSAGES_PER_SECOND { Err(Offence::Flood) } else { Ok(()) }
    }

    fn refuse(&mut self) {
        self.stats.refused = self.stats.refused.saturating_add(1);
    }

    fn change(&mut self, change: Change) {
        if change.vcpu < self.vcpus && self.report.len() < MAX_CHANGES {
            self.report.push(change);
        } else {
            self.refuse();
        }
    }

    /// Some of the vCPUs that it has, and not all, can be kept for background work.
    fn isolate(&mut self, isolation: Isolation) {
        let all = 1u64.checked_shl(self.vcpus.into()).map_or(u64::MAX, |bit| bit - 1);
        match isolation {
            Isolation::Divided { slow, .. } if slow == 0 || slow & !all != 0 || slow == all => self.refuse(),
            _ => self.isolation = isolation,
        }
    }

    fn finish_report(&mut self, sent_ns: u64, now: HostTime) {
        let oldest = self.report.iter().map(|change| change.at_ns).min();
        let mapping = self.clock.report(oldest, sent_ns, now);
        let mut report = std::mem::take(&mut self.report);
        if std::mem::take(&mut self.cut) {
            for vcpu in 0..self.vcpus {
                let last = report.iter_mut().rfind(|change| change.vcpu == vcpu);
                last.into_iter().for_each(|change| change.tells = Tells::Begin);
            }
            let nothing = |vcpu| Change { vcpu, at_ns: self.sent_ns, task: None, tells: Tells::Nothing };
            report.splice(..0, (0..self.vcpus).map(nothing));
        }
        self.sent_ns = sent_ns;
        for change in report {
            if self.held.len() >= MAX_HELD {
                self.refuse();
                continue;
            }
            // Never before what was told of this vCPU earlier.
            let before = self.held.iter().rev().find(|(.., held)| held.vcpu == change.vcpu);
            let due = before.map_or(Time(0), |(due, ..)| *due).max(mapping.due(change.at_ns));
            let place = self.held.partition_point(|(time, ..)| *time <= due);
            self.held.insert(place, (due, mapping.happened(change.at_ns), change));
            self.stats.changes = self.stats.changes.saturating_add(u64::from(change.tells != Tells::Nothing));
        }
    }

    /// Appends what is due by `now` as events of `vm`.
    pub(super) fn drain(&mut self, vm: VmId, now: Time, out: &mut Vec<Event>) {
        while let Some((at, _, change)) = self.held.pop_front_if(|(due, ..)| *due <= now) {
            let Change { vcpu, task, tells, .. } = change;
            if tells == Tells::Nothing {
                continue;
            }
            let kind = match task {
                Some(task) => {
                    self.names.promote(&task);
                    EventKind::TaskSwitch { vm, vcpu, task: TaskId(task.into()) }
                }
                None => EventKind::Halt { vm, vcpu },
            };
            out.push(Event { at, kind });
        }
    }

    /// Takes all that has been told, due or not, and when it happened. Where not all was told, what was so
    /// before or after is not known, and nobody is said to have run.
    pub(super) fn take_told(&mut self) -> impl Iterator<Item = Told> {
        let Self { held, names, .. } = self;
        held.drain(..).map(|(_, at, Change { vcpu, task, tells, .. })| {
            if let Some(task) = &task {
                names.promote(task);
            }
            Told { vcpu, at, task: task.filter(|_| tells == Tells::All) }
        })
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.held.front().map(|(due, ..)| *due)
    }

    /// What the guest said is void until it says hello again. Whether it was not before.
    pub(super) fn distrust(&mut self) -> bool {
        self.held.clear();
        self.report.clear();
        self.isolation = Isolation::Off;
        std::mem::take(&mut self.live)
    }

    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    pub(super) fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Changes with each hello.
    pub(super) fn hellos(&self) -> u64 {
        self.hellos
    }

    pub(super) fn name(&self, process: u32) -> Option<&str> {
        self.names.peek(&process).map(Name::as_str)
    }

    pub(super) fn stats(&self) -> ReporterStats {
        self.stats
    }

    pub(super) fn hold_ns(&self) -> u64 {
        self.clock.hold_ns()
    }
}
