//! What the daemon counts about itself, and the copy of its state for those who look in.

use crate::control::StatusRequest;
use frontdesk_control_protocol::{
    DaemonStatus, DecisionLatency, Refusal, RefusalKind, SCHEMA, SourceStatus, Status, VmFacts, VmStatus,
};
use frontdesk_engine::{Action, ActionKind, Boost, BoostTarget, Engine, Time, VmId};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// How long a latency is remembered, at least; twice this at most.
const PERIOD: u64 = 60_000_000_000;
/// Latencies are told apart from 0.1 us to 10 s, to 1 %.
const SHORTEST: u64 = 100;
const LONGEST: u64 = 10_000_000_000;

/// What the daemon counts about itself.
pub(crate) struct Tally {
    since: Time,
    events: u64,
    actions: u64,
    /// Of this period and the one before.
    latencies: [Histogram<u32>; 2],
    period_since: Time,
}

impl Tally {
    pub(crate) fn new(now: Time) -> Tally {
        // The bounds are valid: there is no other reason to fail.
        let empty = || {
            Histogram::new_with_bounds(SHORTEST, LONGEST, 2)
                .unwrap_or_else(|_| unreachable!("constant bounds"))
        };
        Tally { since: now, events: 0, actions: 0, latencies: [empty(), empty()], period_since: now }
    }

    /// An event was handled.
    pub(crate) fn event(&mut self) {
        self.events += 1;
    }

    /// An action was applied, so long after the event that led to it.
    pub(crate) fn applied(&mut self, action: &Action, latency_ns: u64) {
        self.actions += 1;
        let ActionKind::Boost { target: BoostTarget::Vcpu(_), level, .. } = action.kind else { return };
        if level > Boost::None {
            self.roll(action.at);
            self.latencies[0].saturating_record(latency_ns);
        }
    }

    fn roll(&mut self, now: Time) {
        let elapsed = now.since(self.period_since);
        if elapsed < PERIOD {
            return;
        }
        self.latencies.swap(0, 1);
        self.latencies[0].reset();
        if elapsed >= 2 * PERIOD {
            self.latencies[1].reset();
        }
        self.period_since = now;
    }

    fn latency(&mut self, now: Time) -> DecisionLatency {
        self.roll(now);
        let mut all = self.latencies[0].clone();
        // Both have the same bounds, so what one holds fits into the other.
        let _ = all.add(&self.latencies[1]);
        if all.is_empty() {
            return DecisionLatency::default();
        }
        let quantile = |quantile| all.value_at_quantile(quantile).min(all.max());
        DecisionLatency {
            count: all.len(),
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            max_ns: all.max(),
        }
    }
}

/// What the daemon says of itself, besides what it counts.
pub(crate) struct DaemonFacts {
    pub(crate) acting: bool,
    /// How it puts vCPUs first.
    pub(crate) mechanism: String,
    /// That the kernel has ejected its scheduler.
    pub(crate) ejection: Option<String>,
    pub(crate) sources: Vec<SourceStatus>,
}

/// The copy of the state that was asked for. Its size, and so the time it takes, is bounded by the request.
pub(crate) fn status<'a>(
    request: &StatusRequest,
    now: Time,
    engine: &Engine,
    tally: &mut Tally,
    daemon: DaemonFacts,
    vms: impl Iterator<Item = (VmId, VmFacts<'a>)>,
) -> Result<Status, Refusal> {
    let mut names = Vec::new();
    let mut told = Vec::new();
    for (id, facts) in vms {
        names.push(facts.name.to_owned());
        if request.vm.as_ref().is_some_and(|name| name != facts.name) {
            continue;
        }
        let Some(explain) = engine.explain_most(id, request.most) else { continue };
        let recent = engine.recent(id, now).unwrap_or_default();
        told.push(VmStatus::new(facts, explain, recent, engine.memory(id).unwrap_or(0)));
    }
    if let (Some(name), true) = (&request.vm, told.is_empty()) {
        return Err(unknown(name, names));
    }
    told.sort_by(|a, b| a.name.cmp(&b.name));
    let troubles = engine.troubles();
    Ok(Status {
        schema: SCHEMA,
        at_ns: now.0,
        daemon: DaemonStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since_ns: tally.since.0,
            acting: daemon.acting,
            capabilities: engine.capabilities(),
            mechanism: daemon.mechanism,
            ejection: daemon.ejection,
            sources: daemon.sources,
            events: tally.events,
            actions: tally.actions,
            lost_events: troubles.lost,
            late_events: troubles.late,
            unknown_events: troubles.unknown,
            decision_latency: tally.latency(now),
            cpu_seconds: own_cpu_seconds(),
        },
        policy: engine.config().clone(),
        vms: told,
    })
}

/// Names of VMs that a refusal lists.
const LISTED: usize = 20;

fn unknown(name: &str, mut names: Vec<String>) -> Refusal {
    names.sort();
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    let followed = match (names.is_empty(), more) {
        (true, _) => "no VM is".to_owned(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    };
    Refusal::new(RefusalKind::UnknownVm, format!("no VM is named \"{name}\"; followed are: {followed}"))
}

fn own_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn boost(at: u64) -> Action {
        Action {
            at: Time(at),
            kind: ActionKind::Boost { vm: VmId(0), target: BoostTarget::Vcpu(0), level: Boost::Io },
        }
    }

    #[test]
    fn latencies_are_of_boosts_and_forgotten_after_two_minutes() {
        let mut tally = Tally::new(Time(0));
        assert_eq!(tally.latency(Time(1)), DecisionLatency::default());
        for latency in 1..=100 {
            tally.applied(&boost(SECOND), latency * 1000);
        }
        let share = Action { at: Time(SECOND), kind: ActionKind::Share { vm: VmId(0), permille: 500 } };
        tally.applied(&share, 5 * SECOND);
        let latency = tally.latency(Time(2 * SECOND));
        assert_eq!((latency.count, tally.actions), (100, 101));
        for (value, expected) in
            [(latency.p50_ns, 50), (latency.p90_ns, 90), (latency.p99_ns, 99), (latency.max_ns, 100)]
        {
            assert!(value.abs_diff(expected * 1000) <= 1000, "{value} is about {expected} us");
        }
        tally.applied(&boost(70 * SECOND), 1000);
        assert_eq!(tally.latency(Time(71 * SECOND)).count, 101);
        assert_eq!(tally.latency(Time(131 * SECOND)).count, 1);
        assert_eq!(tally.latency(Time(500 * SECOND)).count, 0);
        // Longer than any that is told apart.
        tally.applied(&boost(501 * SECOND), u64::MAX);
        assert_eq!(tally.latency(Time(501 * SECOND)).count, 1);
    }
}
