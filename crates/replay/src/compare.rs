//! What two sets of parameters make of the same events.

use crate::span::Span;
use crate::totals::{Accounts, Totals};
use crate::{ReplayError, Rerun};
use frontdesk_engine::{
    Action, ActionKind, Boost, BoostTarget, Config, Event, EventKind, Reason, Time, VmId,
};
use frontdesk_record::{Record, Recording};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;

/// One of the two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The one with the recorded parameters.
    A,
    /// The one with the others.
    B,
}

/// A boost that only one engine gave.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Seconds since the first event.
    pub at_s: f64,
    /// The VM.
    pub vm: String,
    /// The engine that gave it.
    pub only: Side,
    /// Why the other one did not.
    pub reason: Reason,
}

/// What two engines did for a VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmComparison {
    /// Its name.
    pub vm: String,
    /// What the engine with the recorded parameters did.
    pub a: Totals,
    /// What the one with the others did.
    pub b: Totals,
    /// Boosts that both gave for the same event,
    pub both: u64,
    /// that only the first gave,
    pub only_a: u64,
    /// and that only the second gave.
    pub only_b: u64,
}

/// What two engines did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// Events told.
    pub events: u64,
    /// From the first event to the last.
    pub seconds: f64,
    /// The VMs, in the order in which they were met.
    pub vms: Vec<VmComparison>,
}

/// Goes through a recording with its own parameters and with others. Both engines are told the time exactly
/// when they want to be, so that equal parameters give equal decisions; a daemon is a little late. `each`
/// gets the differences, in order.
///
/// # Errors
/// The recording cannot be read to its end, or not be gone through.
pub fn compare<R: Read>(
    recording: &mut Recording<R>,
    other: &Config,
    mut each: impl FnMut(&Difference),
) -> Result<Comparison, ReplayError> {
    let mut names = Names::default();
    let mut a = ComparedArm::new(Rerun::new());
    let mut b = ComparedArm::new(Rerun::with(other.clone()));
    let mut counts: BTreeMap<VmId, [u64; 3]> = BTreeMap::new();
    let (mut events, mut span) = (0, Span::default());
    for record in recording {
        let record = record?;
        names.hear(&record);
        let Record::Event(event) = &record else {
            a.tell(&record)?;
            b.tell(&record)?;
            continue;
        };
        events += 1;
        span.add(event.at);
        a.event(event)?;
        b.event(event)?;
        // What began a boost is decided about, too: an event that stayed unanswered is taken up when its task
        // is seen.
        let Some(vm) = subject(event).or_else(|| a.boosts()).or_else(|| b.boosts()) else { continue };
        let begun = (a.begun(vm), b.begun(vm));
        let count = counts.entry(vm).or_default();
        let (only, other) = match begun {
            (false, false) => continue,
            (true, true) => {
                count[0] += 1;
                continue;
            }
            (true, false) => (Side::A, &b),
            (false, true) => (Side::B, &a),
        };
        count[if only == Side::A { 1 } else { 2 }] += 1;
        let reason = other.verdict(vm).unwrap_or(Reason::NoIoBoundTask);
        each(&Difference { at_s: span.seconds(), vm: names.of(vm), only, reason });
    }
    let end = Time(span.end());
    let vms = names.vms().map(|vm| {
        let [both, only_a, only_b] = counts.get(&vm).copied().unwrap_or_default();
        let (a, b) = (a.totals(vm, end), b.totals(vm, end));
        VmComparison { vm: names.of(vm), a, b, both, only_a, only_b }
    });
    let vms = vms.collect();
    Ok(Comparison { events, seconds: span.seconds(), vms })
}

/// The VM about which an event makes the engine decide.
pub(crate) fn subject(event: &Event) -> Option<VmId> {
    match event.kind {
        EventKind::Packet { vm, .. } | EventKind::BlockPending { vm } | EventKind::BlockDone { vm, .. } => {
            Some(vm)
        }
        _ => None,
    }
}

/// An engine, what it did, and what it decided last.
pub(crate) struct ComparedArm {
    rerun: Rerun,
    accounts: Accounts,
    /// What it decided at the latest event.
    pub(crate) actions: Vec<Action>,
}

impl ComparedArm {
    pub(crate) fn new(rerun: Rerun) -> ComparedArm {
        ComparedArm { rerun, accounts: Accounts::default(), actions: Vec::new() }
    }

    /// Takes a record that is no event.
    pub(crate) fn tell(&mut self, record: &Record) -> Result<(), ReplayError> {
        match record {
            // The engine is told the time by its own wish.
            Record::Deadline(at) => self.rerun.pass(*at),
            _ => self.rerun.tell(record)?,
        }
        if matches!(record, Record::State(_)) {
            self.accounts.begin(&self.rerun);
        }
        self.take();
        Ok(())
    }

    pub(crate) fn event(&mut self, event: &Event) -> Result<(), ReplayError> {
        self.rerun.pass(event.at);
        self.accounts.tell(&mut self.rerun, event)?;
        self.take();
        Ok(())
    }

    fn take(&mut self) {
        self.actions.clear();
        while let Some(action) = self.rerun.poll_action() {
            self.accounts.action(action.at, action.kind);
            self.actions.push(action);
        }
    }

    /// Whether the latest event began a boost of the VM.
    pub(crate) fn begun(&self, of: VmId) -> bool {
        self.boosts() == Some(of)
    }

    /// The VM of which the latest event began a boost: an event is about one VM.
    fn boosts(&self) -> Option<VmId> {
        self.actions.iter().find_map(|action| match action.kind {
            ActionKind::Boost { vm, target: BoostTarget::Vcpu(_), level } if level > Boost::None => Some(vm),
            _ => None,
        })
    }

    /// What it decided last about the VM.
    pub(crate) fn verdict(&self, vm: VmId) -> Option<Reason> {
        Some(self.rerun.engine()?.decision(vm)?.verdict)
    }

    pub(crate) fn pb_ratio(&self) -> f64 {
        self.rerun.engine().map_or(0.0, |engine| engine.config().tavs.pb_ratio)
    }

    pub(crate) fn totals(&mut self, vm: VmId, end: Time) -> Totals {
        self.accounts.totals(&self.rerun, vm, end)
    }
}

/// The names of VMs.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<VmId, String>);

impl Names {
    pub(crate) fn hear(&mut self, record: &Record) {
        if let Record::Vm { vm, name } = record {
            self.0.insert(*vm, name.clone());
        }
    }

    pub(crate) fn of(&self, vm: VmId) -> String {
        self.0.get(&vm).cloned().unwrap_or_else(|| format!("#{}", vm.0))
    }

    pub(crate) fn vms(&self) -> impl Iterator<Item = VmId> {
        self.0.keys().copied()
    }
}
