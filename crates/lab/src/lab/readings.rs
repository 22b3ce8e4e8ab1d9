//! What the workloads of an arm say about themselves.

use super::arm::SentRequests;
use super::{Lab, LabError};
use crate::clock::HostClock;
use crate::replay::{Shift, Truth};
use frontdesk_engine::Time;
use frontdesk_lab_guest as guest;
use frontdesk_scenario::{Rate, RequestTimes, Unit};
use indexmap::IndexMap;
use std::time::{Duration, Instant};

/// By VM and workload.
pub(super) type Readings = IndexMap<(String, String), Reading>;

/// What a workload had done at a point in time.
pub(super) struct Reading {
    at: Instant,
    report: guest::WorkloadReport,
}

impl Lab<'_> {
    /// What every running workload has done, by VM and name.
    pub(super) fn readings(&mut self) -> Result<Readings, LabError> {
        let mut readings = Readings::new();
        for (name, vm) in &mut self.vms {
            for workload in vm.running.clone() {
                let report = vm.vm.report(&workload)?;
                readings.insert((name.clone(), workload), Reading { at: Instant::now(), report });
            }
        }
        Ok(readings)
    }

    /// Throughput between two readings.
    pub(super) fn rates(&self, first: &Readings, last: &Readings) -> IndexMap<String, Rate> {
        let mut rates = IndexMap::new();
        for ((vm, workload), end) in last {
            let Some(begin) = first.get(&(vm.clone(), workload.clone())) else { continue };
            let seconds = (end.at - begin.at).as_secs_f64();
            let (unit, count) = match end.report.bytes {
                0 => (Unit::Operations, end.report.operations.saturating_sub(begin.report.operations)),
                bytes => (Unit::Bytes, bytes.saturating_sub(begin.report.bytes)),
            };
            if end.report.operations > 0 && seconds > 0.0 {
                #[allow(clippy::cast_precision_loss)]
                let per_s = count as f64 / seconds;
                rates.insert(format!("{vm}/{workload}"), Rate { per_s, unit });
            }
        }
        rates
    }

    /// Stamps of a workload of a VM, on the host's clock.
    fn stamps(
        &self,
        clock: &HostClock,
        readings: [&Readings; 2],
        vm: &str,
        workload: &str,
    ) -> Vec<(Time, guest::StampKind)> {
        let Some(guest_clock) = self.vms.get(vm).map(|vm| vm.vm.clock()) else { return Vec::new() };
        let key = (vm.to_owned(), workload.to_owned());
        let stamps = readings.into_iter().filter_map(|of| of.get(&key)).flat_map(|of| &of.report.stamps);
        stamps.filter_map(|stamp| Some((clock.time(guest_clock.to_host(stamp.tsc)?), stamp.kind))).collect()
    }

    /// How long the operations took that ended in the measured time.
    pub(super) fn times_ms(
        &self,
        clock: &HostClock,
        readings: [&Readings; 2],
        from: Time,
        to: Time,
    ) -> IndexMap<String, Vec<f64>> {
        let mut times = IndexMap::new();
        for (vm, workload) in readings[1].keys() {
            let mut begun = None;
            let mut took = Vec::new();
            for (at, kind) in self.stamps(clock, readings, vm, workload) {
                match kind {
                    guest::StampKind::Begin => begun = Some(at),
                    guest::StampKind::End => {
                        let begin = begun.take().filter(|_| at >= from && at <= to);
                        took.extend(
                            begin.map(|begin| Duration::from_nanos(at.since(begin)).as_secs_f64() * 1e3),
                        );
                    }
                    _ => {}
                }
            }
            if !took.is_empty() {
                times.insert(format!("{vm}/{workload}"), took);
            }
        }
        times
    }

    /// What the workloads know about their own I/O, by VM: of those VMs that run nothing else.
    pub(super) fn truth(
        &self,
        arm: &str,
        clock: &HostClock,
        readings: [&Readings; 2],
        asked: &SentRequests,
    ) -> IndexMap<String, Truth> {
        let arm = &self.scenario.arms[arm];
        let mut truths = IndexMap::new();
        for entry in &self.scenario.vms {
            let run: Vec<_> = entry.workloads.iter().filter(|workload| !arm.stops(entry, workload)).collect();
            let io_bound: Vec<&str> =
                run.iter().filter(|of| of.kind.is_io_bound()).map(|of| of.name.as_str()).collect();
            if io_bound.is_empty() || !run.iter().all(|workload| workload.kind.knows_its_wakes()) {
                continue;
            }
            for vm in entry.names() {
                let mut truth = Truth::default();
                for workload in &io_bound {
                    let mut shift = Shift::default();
                    let mut replies = Vec::new();
                    for (at, kind) in self.stamps(clock, readings, &vm, workload) {
                        match kind {
                            guest::StampKind::Wake => shift.wakes.push(at),
                            guest::StampKind::Reply => replies.push(at),
                            guest::StampKind::IoBound => shift.changes.push((at, true)),
                            guest::StampKind::CpuBound => shift.changes.push((at, false)),
                            guest::StampKind::Begin | guest::StampKind::End => {}
                        }
                    }
                    let asked = asked.get(&(vm.clone(), (*workload).to_owned()));
                    truth.requests.extend(requests(asked.into_iter().flatten(), &shift.wakes, &replies));
                    truth.wakes.extend(&shift.wakes);
                    if !shift.changes.is_empty() {
                        truth.shifts.push(shift);
                    }
                }
                truth.wakes.sort_unstable();
                truths.insert(vm, truth);
            }
        }
        truths
    }
}

/// What became of each request in its VM. `asked`: when it was sent, and its answer received.
fn requests<'a>(
    asked: impl Iterator<Item = &'a (Time, Time)>,
    wakes: &[Time],
    replies: &[Time],
) -> Vec<RequestTimes> {
    let after = |times: &[Time], at: Time| times.get(times.partition_point(|time| *time < at)).copied();
    let found = asked.filter_map(|(sent, received)| {
        let woke = after(wakes, *sent)?;
        let replied = after(replies, woke)?;
        // The guest forgets old stamps of a workload that makes very many.
        (woke <= *received).then_some(RequestTimes {
            sent: sent.0,
            woke: woke.0,
            replied: replied.0.min(received.0),
            received: received.0,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_stamps_between_its_sending_and_its_answer() {
        let at = |times: &[u64]| times.iter().copied().map(Time).collect::<Vec<_>>();
        let asked = [(Time(10), Time(20)), (Time(30), Time(40)), (Time(50), Time(60))];
        let found = requests(asked.iter(), &at(&[5, 13, 55]), &at(&[6, 16, 61]));
        let expected = [
            RequestTimes { sent: 10, woke: 13, replied: 16, received: 20 },
            // The clocks of guest and host are not quite the same.
            RequestTimes { sent: 50, woke: 55, replied: 60, received: 60 },
        ];
        assert_eq!(found, expected);
        assert!(requests(asked.iter(), &at(&[13]), &[]).is_empty());
    }
}
