//! What an engine did for each VM in the course of a recording.

use crate::Rerun;
use crate::span::seconds;
use frontdesk_engine::{ActionKind, Event, EventKind, Time, VmExplain, VmId};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a VM got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Boosts.
    pub boosts: u64,
    /// Boosts in which an I/O-bound task ran.
    pub hits: u64,
    /// Boosts that ended only by time.
    pub expired: u64,
    /// Seconds that its vCPUs ran boosted.
    pub boosted_s: f64,
    /// Seconds that its vCPUs ran.
    pub ran_s: f64,
    /// The mean of its share in the course of time, as a fraction of its weight.
    pub share: f64,
}

impl Totals {
    /// Hits per boost that ended (TAVS §5.2: PBHR); `None` without a boost.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn pbhr(&self) -> Option<f64> {
        (self.boosts > 0).then(|| self.hits as f64 / self.boosts as f64)
    }
}

/// The counts of an engine: boosts, hits, expired, and nanoseconds boosted and run.
type BoostCounts = [u64; 5];

fn counts(explain: &VmExplain) -> BoostCounts {
    explain.vcpus.iter().fold([0; 5], |sum, vcpu| {
        let counts = [vcpu.boosts, vcpu.hits, vcpu.expired, vcpu.boosted_ns, vcpu.ran_ns];
        std::array::from_fn(|i| sum[i].saturating_add(counts[i]))
    })
}

#[derive(Debug)]
struct BoostAccount {
    /// What the engine had counted when the recording began.
    base: BoostCounts,
    /// What it counted and forgot again, with a VM or a vCPU.
    banked: BoostCounts,
    permille: u32,
    since: Time,
    /// Permille times nanoseconds.
    weighted: u128,
    nanos: u64,
}

/// Keeps the accounts of all VMs of one engine.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    vms: BTreeMap<VmId, BoostAccount>,
    begun: Option<Time>,
}

impl Accounts {
    /// Opens the accounts of the VMs that an engine knows at the beginning.
    pub(crate) fn begin(&mut self, rerun: &Rerun) {
        let Some(engine) = rerun.engine() else { return };
        for (vm, explain) in engine.vms().filter_map(|vm| Some((vm, engine.explain(vm)?))) {
            let account = self.account(vm, Time::default());
            account.base = counts(&explain);
            account.permille = explain.share_permille;
        }
    }

    /// Tells the engine an event.
    pub(crate) fn tell(&mut self, rerun: &mut Rerun, event: &Event) -> Result<(), crate::ReplayError> {
        let begun = *self.begun.get_or_insert(event.at);
        let forgetful = match event.kind {
            EventKind::VmAdded { vm, .. }
            | EventKind::VmRemoved { vm }
            | EventKind::VcpuAdded { vm, .. }
            | EventKind::VcpuRemoved { vm, .. } => Some(vm),
            _ => None,
        };
        let now = |rerun: &Rerun, vm| rerun.engine()?.explain(vm).map(|explain| counts(&explain));
        let before = forgetful.and_then(|vm| now(rerun, vm)).unwrap_or_default();
        rerun.tell_event(event)?;
        if let Some(vm) = forgetful {
            let after = now(rerun, vm).unwrap_or_default();
            let account = self.account(vm, begun);
            account.banked =
                std::array::from_fn(|i| account.banked[i].saturating_add(before[i].saturating_sub(after[i])));
        }
        Ok(())
    }

    pub(crate) fn action(&mut self, at: Time, kind: ActionKind) {
        if let ActionKind::Share { vm, permille } = kind {
            let begun = self.begun.unwrap_or(at);
            let account = self.account(vm, begun);
            account.pass(at, begun);
            account.permille = permille;
        }
    }

    fn account(&mut self, vm: VmId, now: Time) -> &mut BoostAccount {
        let (base, banked) = (BoostCounts::default(), BoostCounts::default());
        let fresh = BoostAccount { base, banked, permille: 1000, since: now, weighted: 0, nanos: 0 };
        self.vms.entry(vm).or_insert(fresh)
    }

    /// The totals of a VM at the end of the recording.
    pub(crate) fn totals(&mut self, rerun: &Rerun, vm: VmId, end: Time) -> Totals {
        let begun = self.begun.unwrap_or(end);
        let now = rerun.engine().and_then(|engine| engine.explain(vm)).map(|explain| counts(&explain));
        let now = now.unwrap_or_default();
        let account = self.account(vm, begun);
        account.pass(end, begun);
        let total = |i: usize| account.banked[i].saturating_add(now[i]).saturating_sub(account.base[i]);
        let share = if account.nanos == 0 {
            f64::from(account.permille) / 1000.0
        } else {
            #[allow(clippy::cast_precision_loss)] // A mean for people.
            let mean = account.weighted as f64 / account.nanos as f64;
            mean / 1000.0
        };
        Totals {
            boosts: total(0),
            hits: total(1),
            expired: total(2),
            boosted_s: seconds(total(3)),
            ran_s: seconds(total(4)),
            share,
        }
    }
}

impl BoostAccount {
    fn pass(&mut self, now: Time, begun: Time) {
        let passed = now.since(self.since.max(begun));
        self.weighted += u128::from(passed) * u128::from(self.permille);
        self.nanos = self.nanos.saturating_add(passed);
        self.since = now;
    }
}
