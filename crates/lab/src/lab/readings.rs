//! What the workloads of an arm say about themselves.

use super::arm::SentRequests;
use super::{Lab, LabError};
use crate::clock::HostClock;
use crate::replay::{Shift, Truth};
use frontdesk_engine::Time;
use frontdesk_lab_guest as guest;
use frontdesk_scenario::{Frames, Rate, RequestTimes, Unit, float, mean_and_deviation};
use indexmap::IndexMap;
use std::time::{Duration, Instant};

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// What shows how many frames are usual, before others begin to compute, in nanoseconds.
const BEFORE: u64 = 3 * SECOND;
/// What must follow, to be seen whether they return.
const AFTER: u64 = 5 * SECOND;
/// How exactly it is told when they are back.
const STEP: u64 = SECOND / 20;
/// From this part of them on they are back.
const RECOVERED: f64 = 0.95;

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

    /// The frames of the workloads that show some, between two points in time, and how many were shown in
    /// each second.
    pub(super) fn frames(
        &self,
        clock: &HostClock,
        readings: [&Readings; 2],
        from: Time,
        to: Time,
    ) -> IndexMap<String, (Frames, Vec<f64>)> {
        let mut frames = IndexMap::new();
        for entry in &self.scenario.vms {
            for workload in entry.workloads.iter().filter(|workload| workload.kind.shows_frames()) {
                for vm in entry.names() {
                    let stamps = self.stamps(clock, readings, &vm, &workload.name);
                    let stamps = stamps.into_iter().filter(|(at, _)| *at >= from && *at <= to);
                    let stamps: Vec<_> = stamps.collect();
                    if let Some((mut of, each)) = frames_of(stamps.iter().copied(), from, to) {
                        let shown = stamps.iter().filter(|(_, kind)| *kind == guest::StampKind::Frame);
                        let shown: Vec<Time> = shown.map(|(at, _)| *at).collect();
                        let onsets = self.onsets(clock, readings, &vm);
                        of.recovery_s = recovery_s(&shown, &onsets, from, to);
                        frames.insert(format!("{vm}/{}", workload.name), (of, each));
                    }
                }
            }
        }
        frames
    }

    /// When workloads of other VMs than this one began to compute.
    fn onsets(&self, clock: &HostClock, readings: [&Readings; 2], except: &str) -> Vec<Time> {
        let others = readings[1].keys().filter(|(vm, _)| vm != except);
        let stamps = others.flat_map(|(vm, workload)| self.stamps(clock, readings, vm, workload));
        let mut onsets: Vec<Time> =
            stamps.filter(|(_, kind)| *kind == guest::StampKind::CpuBound).map(|(at, _)| at).collect();
        onsets.sort_unstable();
        onsets.dedup();
        onsets
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
                            guest::StampKind::Begin
                            | guest::StampKind::End
                            | guest::StampKind::Frame
                            | guest::StampKind::LateFrame => {}
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

/// What the stamps of a workload say of its frames; nothing if it had none, as one that does not run.
fn frames_of(
    stamps: impl Iterator<Item = (Time, guest::StampKind)>,
    from: Time,
    to: Time,
) -> Option<(Frames, Vec<f64>)> {
    let (mut shown, mut late) = (Vec::new(), 0);
    for (at, kind) in stamps {
        match kind {
            guest::StampKind::Frame => shown.push(at.since(from)),
            guest::StampKind::LateFrame => late += 1,
            _ => {}
        }
    }
    let all = u64::try_from(shown.len()).unwrap_or(u64::MAX).saturating_add(late);
    if all == 0 {
        return None;
    }
    let seconds = (to.since(from) / SECOND).max(1);
    let in_second = |second| {
        let until = |end: u64| shown.partition_point(|at| *at < end * SECOND);
        until(second + 1) - until(second)
    };
    let each: Vec<f64> =
        (0..seconds).map(|second| float(u64::try_from(in_second(second)).unwrap_or(u64::MAX))).collect();
    let intervals: Vec<f64> =
        shown.windows(2).map(|pair| float(pair[1].saturating_sub(pair[0])) / 1e6).collect();
    let ((per_s, deviation), (_, jitter_ms)) = (mean_and_deviation(&each), mean_and_deviation(&intervals));
    let dropped = float(late) / float(all);
    Some((Frames { per_s, deviation, dropped, jitter_ms, ..Frames::default() }, each))
}

/// The longest time from one of the `onsets` until a second held [`RECOVERED`] of the frames there were
/// before it. Those too near to the begin or the end of the measured time do not count.
fn recovery_s(shown: &[Time], onsets: &[Time], from: Time, to: Time) -> Option<f64> {
    let until = |end: Time| float(u64::try_from(shown.partition_point(|at| *at < end)).unwrap_or(u64::MAX));
    let counted = onsets.iter().filter(|onset| onset.since(from) >= BEFORE && to.since(**onset) >= AFTER);
    let times = counted.map(|onset| {
        let begun = Time(onset.0.saturating_sub(BEFORE));
        let usual = (until(*onset) - until(begun)) / float(BEFORE / SECOND);
        let mut second = *onset;
        while second.plus(SECOND) <= to && until(second.plus(SECOND)) - until(second) < RECOVERED * usual {
            second = second.plus(STEP);
        }
        float(second.since(*onset)) / 1e9
    });
    times.reduce(f64::max)
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
    fn frames_are_counted_second_by_second() {
        let ms = 1_000_000;
        let stamp = |at: u64, kind| (Time(at * ms), kind);
        let shown = (0..50).map(|frame| stamp(1000 + frame * 40, guest::StampKind::Frame));
        let late = [stamp(1500, guest::StampKind::LateFrame), stamp(1500, guest::StampKind::Begin)];
        let (frames, each) = frames_of(shown.chain(late), Time(1000 * ms), Time(3000 * ms)).unwrap();
        assert_eq!(each, [25.0, 25.0]);
        assert_eq!((frames.per_s, frames.deviation, frames.jitter_ms), (25.0, 0.0, 0.0));
        assert!((frames.dropped - 1.0 / 51.0).abs() < 1e-9);
        assert_eq!(frames_of([].into_iter(), Time(0), Time(1)), None);
    }

    #[test]
    fn frames_are_back_when_a_second_holds_nearly_as_many_as_before() {
        let ms = |at: u64| Time(at * 1_000_000);
        // 25 a second, but 5 a second from the tenth second to the twelfth.
        let frame = |at: &u64| !(10_000..12_000).contains(at) || at.is_multiple_of(200);
        let shown: Vec<Time> = (0..20_000).step_by(40).filter(frame).map(ms).collect();
        let recovery = |onsets: &[u64]| {
            let onsets: Vec<Time> = onsets.iter().copied().map(ms).collect();
            recovery_s(&shown, &onsets, ms(0), ms(20_000))
        };
        let longest = recovery(&[5000, 10_000]).unwrap();
        assert!((1.9..=2.0).contains(&longest), "{longest}");
        assert_eq!(recovery(&[5000]), Some(0.0));
        assert_eq!(recovery(&[2000, 17_000]), None, "too near to the begin and to the end");
    }

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
