//! Whether the dispatchers of reservations decide again what they decided.

use crate::span::Span;
use frontdesk_engine::reservation::{
    Dispatch, Dispatcher, Member, MemberAccount, ReservationEvent, ReservationEventKind, TargetId,
};
use frontdesk_record::Record;
use serde::Serialize;
use std::collections::BTreeMap;

/// What going through the decisions about reservations again gave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Redecided {
    /// Decisions that were made again.
    pub decisions: u64,
    /// Dispatches that came of them, as recorded.
    pub dispatches: u64,
    /// From the first decision to the last.
    pub seconds: f64,
    /// Decisions that are not in the recording, for they came too fast. After each loss the replay went on
    /// from the recorded state.
    pub lost: u64,
    /// Decisions of which other dispatches came than recorded.
    pub differences: u64,
    /// The first of them.
    pub first: Option<DecisionDifference>,
    /// What the members got meanwhile, in the order of their targets' numbers.
    pub members: Vec<MemberPeriods>,
}

/// A decision that is not as recorded.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionDifference {
    /// Number of the record, from 1.
    pub record: u64,
    /// Seconds since the first decision.
    pub at_s: f64,
    /// What was decided when the recording was made.
    pub recorded: Vec<Dispatch>,
    /// What is decided now.
    pub decided: Vec<Dispatch>,
}

/// What a member of a target got in the course of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberPeriods {
    /// Name of the target.
    pub target: String,
    /// Which of its members.
    pub member: u16,
    /// Periods that ended.
    pub periods: u64,
    /// Of these, those with a deadline miss.
    pub missed: u64,
    /// Of the missed, those in which the dispatcher itself came late: the machine stood still.
    pub stalled: u64,
}

/// Periods, missed and stalled.
type PeriodCounts = [u64; 3];

fn counts(account: &MemberAccount) -> PeriodCounts {
    [account.periods, account.missed, account.stalled]
}

/// Dispatchers that are told again what a recording says.
#[derive(Debug, Default)]
pub(crate) struct Redispatch {
    /// Each by its CPU, from when the recording has its state.
    dispatchers: BTreeMap<u16, Dispatcher>,
    names: BTreeMap<TargetId, String>,
    /// What members had in their accounts when the state of their dispatcher was recorded.
    base: BTreeMap<(u16, Member), PeriodCounts>,
    /// What they got since, as far as no dispatcher has it any more.
    banked: BTreeMap<Member, PeriodCounts>,
    span: Span,
    redecided: Redecided,
    /// Whether there was anything about reservations.
    any: bool,
}

impl Redispatch {
    /// Takes a record that is [about reservations](Record::is_about_reservations); it has this number.
    pub(crate) fn take(&mut self, record: &Record, number: u64) {
        self.any = true;
        match record {
            Record::Dispatcher { cpu, state } => self.begin(*cpu, state),
            Record::Decision { cpu, event, dispatches } => self.decide(*cpu, event, dispatches, number),
            Record::DecisionsLost { decisions } => {
                self.redecided.lost = self.redecided.lost.saturating_add(*decisions);
            }
            Record::Target { target, name } => drop(self.names.insert(*target, name.clone())),
            _ => {}
        }
    }

    fn begin(&mut self, cpu: u16, state: &Dispatcher) {
        self.bank(cpu, |_| true);
        self.base.retain(|(of, _), _| *of != cpu);
        let of = |member| Some(((cpu, member), counts(state.account(member)?)));
        self.base.extend(state.members().filter_map(of));
        self.dispatchers.insert(cpu, state.clone());
    }

    fn decide(&mut self, cpu: u16, event: &ReservationEvent, recorded: &[Dispatch], number: u64) {
        // Without a state there is nothing to compare with: it comes.
        if !self.dispatchers.contains_key(&cpu) {
            return;
        }
        if let ReservationEventKind::Remove { member } = event.kind {
            self.bank(cpu, |other| other == member);
            self.base.remove(&(cpu, member));
        }
        let Some(dispatcher) = self.dispatchers.get_mut(&cpu) else { return };
        dispatcher.on_event(event);
        let decided: Vec<Dispatch> = std::iter::from_fn(|| dispatcher.poll_action()).collect();
        self.span.add(event.at);
        let redecided = &mut self.redecided;
        redecided.decisions += 1;
        if decided == recorded {
            redecided.dispatches += decided.len() as u64;
            return;
        }
        redecided.differences += 1;
        if redecided.first.is_none() {
            let (record, at_s, recorded) = (number, self.span.seconds(), recorded.to_vec());
            redecided.first = Some(DecisionDifference { record, at_s, recorded, decided });
        }
    }

    /// Keeps what these members of a CPU got since the state of its dispatcher was recorded.
    fn bank(&mut self, cpu: u16, which: impl Fn(Member) -> bool) {
        let Some(dispatcher) = self.dispatchers.get(&cpu) else { return };
        for member in dispatcher.members().filter(|member| which(*member)) {
            let Some(now) = dispatcher.account(member).map(counts) else { continue };
            let base = self.base.get(&(cpu, member)).copied().unwrap_or_default();
            let banked = self.banked.entry(member).or_default();
            *banked = std::array::from_fn(|i| banked[i].saturating_add(now[i].saturating_sub(base[i])));
        }
    }

    /// What came of it; `None` if the recording says nothing of reservations.
    pub(crate) fn finish(mut self) -> Option<Redecided> {
        let cpus: Vec<u16> = self.dispatchers.keys().copied().collect();
        cpus.into_iter().for_each(|cpu| self.bank(cpu, |_| true));
        self.redecided.seconds = self.span.seconds();
        let name = |target: TargetId| {
            self.names.get(&target).cloned().unwrap_or_else(|| format!("target {}", target.0))
        };
        let member = |(member, [periods, missed, stalled]): (&Member, &PeriodCounts)| MemberPeriods {
            target: name(member.target),
            member: member.index,
            periods: *periods,
            missed: *missed,
            stalled: *stalled,
        };
        self.redecided.members = self.banked.iter().map(member).collect();
        self.any.then_some(self.redecided)
    }
}
