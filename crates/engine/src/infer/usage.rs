//! How much of a vCPU each guest task used of late, and how much of it others had meanwhile (vAMP §3.1.2).
//!
//! Kept by the sub-epoch, in turns. A vCPU remembers few tasks: what the others used is one sum.

use crate::event::{TaskId, Time};
use crate::nanos::nanos;
use crate::observe::Vcpu;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Sub-epochs of the time that is looked at.
pub(super) const SUB_EPOCHS: usize = 8;
const TURNS: u64 = SUB_EPOCHS as u64;
/// Tasks told apart on a vCPU; of more, those that used least are not.
const MOST_TASKS: usize = 32;
/// Longest sub-epoch, so that a part of one fits 32 bits, in nanoseconds.
const LONGEST: u64 = 4_000_000_000;

/// Nanoseconds in each of the last sub-epochs; that of number n is at n modulo [`SUB_EPOCHS`].
type Turns = [u32; SUB_EPOCHS];

/// What a task used.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Used {
    task: TaskId,
    ran: Turns,
}

/// What was used of a vCPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// How long a sub-epoch is, in nanoseconds; 0 until anybody wants to know.
    length: u64,
    began: Time,
    /// The latest sub-epoch.
    number: u64,
    tasks: Vec<Used>,
    /// By tasks that are not told apart.
    others: Turns,
    /// It wanted to run, and others had the physical CPUs.
    stolen: Turns,
    slept: Turns,
}

impl Usage {
    /// Checks what was loaded.
    pub(super) fn check(&self) -> Result<(), StateError> {
        check(self.length <= LONGEST, "a sub-epoch longer than any")?;
        check(self.tasks.len() <= MOST_TASKS, "more tasks on a vCPU than are told apart")
    }

    /// Somebody wants to know from now on.
    pub(super) fn begin(&mut self, pre_io_period: Duration, now: Time) {
        let length = (nanos(pre_io_period) / TURNS).clamp(1, LONGEST);
        if self.length != length {
            *self = Usage { length, began: now, number: now.0 / length, ..Usage::default() };
        }
    }

    /// Adds the time from `from` to `to`, in which the vCPU was as it is.
    pub(super) fn add(&mut self, vcpu: &Vcpu, from: Time, to: Time) {
        if self.length == 0 {
            return;
        }
        let mut at = from.0.max(self.began.0).max(to.0.saturating_sub(self.length.saturating_mul(TURNS)));
        while at < to.0 {
            let number = at / self.length;
            self.advance(number);
            let end = number.saturating_add(1).saturating_mul(self.length).min(to.0);
            // Shorter than a sub-epoch.
            let part = u32::try_from(end - at).unwrap_or(u32::MAX);
            let turn = turn(number);
            if vcpu.thread.is_running() {
                if let Some(task) = vcpu.current() {
                    self.ran(task, turn, part);
                }
            } else if vcpu.thread.is_awake() {
                self.stolen[turn] = self.stolen[turn].saturating_add(part);
            } else if vcpu.thread.is_asleep() {
                self.slept[turn] = self.slept[turn].saturating_add(part);
            }
            if end == at {
                return;
            }
            at = end;
        }
    }

    fn ran(&mut self, task: TaskId, turn: usize, part: u32) {
        let place = self.tasks.iter().position(|used| used.task == task);
        if let Some(used) = place.and_then(|place| self.tasks.get_mut(place)) {
            used.ran[turn] = used.ran[turn].saturating_add(part);
            return;
        }
        let mut ran = Turns::default();
        ran[turn] = part;
        if self.tasks.len() < MOST_TASKS {
            self.tasks.push(Used { task, ran });
            return;
        }
        // Whoever used least is not told apart any more, be it the new one.
        let least = self.tasks.iter_mut().min_by_key(|used| sum(&used.ran));
        let mut dropped = ran;
        if let Some(least) = least.filter(|least| sum(&least.ran) < u64::from(part)) {
            dropped = std::mem::replace(least, Used { task, ran }).ran;
        }
        for (all, of) in self.others.iter_mut().zip(dropped) {
            *all = all.saturating_add(of);
        }
    }

    /// Another sub-epoch begins: the oldest make room.
    fn advance(&mut self, number: u64) {
        if number == self.number {
            return;
        }
        let over = number.saturating_sub(self.number).min(TURNS);
        for turn in (0..over).map(|back| turn(number.saturating_sub(back))) {
            self.tasks.iter_mut().for_each(|used| used.ran[turn] = 0);
            (self.others[turn], self.stolen[turn], self.slept[turn]) = (0, 0, 0);
        }
        self.tasks.retain(|used| sum(&used.ran) > 0);
        self.number = number;
    }

    /// Nanoseconds that are looked back at: the present sub-epoch and those before it.
    fn window(&self, now: Time) -> u64 {
        let first = self.number.saturating_sub(TURNS - 1).saturating_mul(self.length);
        now.0.saturating_sub(first.max(self.began.0))
    }

    /// What each task used of the vCPU, in permille, together with what it would have used of the stolen
    /// time: as much as of the rest. A vCPU that slept got what it wanted, though late, so stolen time counts
    /// only beyond that (the paper's counts all). Times are up to date.
    pub(super) fn loads(&self, now: Time) -> impl Iterator<Item = (TaskId, u64)> {
        let window = self.window(now);
        let ran = self.tasks.iter().fold(sum(&self.others), |all, used| all + sum(&used.ran));
        let stolen = sum(&self.stolen).saturating_sub(sum(&self.slept));
        // Less than a sub-epoch says little.
        let tasks = self.tasks.iter().filter(move |_| self.length > 0 && window >= self.length);
        tasks.map(move |used| {
            let own = u128::from(sum(&used.ran));
            let with_stolen = own + own * u128::from(stolen) / u128::from(ran.max(1));
            (used.task, u64::try_from(with_stolen * 1000 / u128::from(window.max(1))).unwrap_or(u64::MAX))
        })
    }

    /// How much of the time was stolen, in permille.
    pub(super) fn stolen(&self, now: Time) -> u64 {
        sum(&self.stolen) * 1000 / self.window(now).max(1)
    }

    /// Bytes held beyond its own size.
    pub(super) fn bytes(&self) -> usize {
        self.tasks.capacity() * size_of::<Used>()
    }
}

/// Where a sub-epoch is kept.
fn turn(number: u64) -> usize {
    usize::try_from(number % TURNS).unwrap_or(0)
}

fn sum(turns: &Turns) -> u64 {
    turns.iter().map(|part| u64::from(*part)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const SUB_EPOCH: u64 = 128 * MS;
    const HOG: TaskId = TaskId(1);
    const OTHER: TaskId = TaskId(2);

    struct Bench {
        usage: Usage,
        vcpu: Vcpu,
        now: u64,
    }

    impl Bench {
        fn new() -> Bench {
            let mut bench = Bench { usage: Usage::default(), vcpu: Vcpu::default(), now: 0 };
            bench.usage.begin(Duration::from_millis(1024), Time(0));
            bench
        }

        fn pass(&mut self, nanos: u64) {
            let from = Time(self.now);
            self.now += nanos;
            self.usage.add(&self.vcpu, from, Time(self.now));
        }

        fn run(&mut self, task: TaskId, nanos: u64) {
            self.vcpu.switch(task, 0);
            self.vcpu.thread.run(0, false);
            self.pass(nanos);
        }

        fn wait(&mut self, nanos: u64) {
            self.vcpu.thread.stop(true);
            self.pass(nanos);
        }

        fn sleep(&mut self, nanos: u64) {
            self.vcpu.thread.stop(false);
            self.pass(nanos);
        }

        fn load(&self, task: TaskId) -> Option<u64> {
            self.usage.loads(Time(self.now)).find(|(of, _)| *of == task).map(|(_, load)| load)
        }
    }

    /// §3.1.2: "a 100% CPU-bound task shows only 20% CPU load when running on a vCPU that contends with four
    /// CPU-bound vCPUs".
    #[test]
    fn stolen_time_counts_as_load_in_proportion_to_what_each_used() {
        let mut bench = Bench::new();
        for _ in 0..100 {
            bench.run(HOG, 3 * MS);
            bench.wait(12 * MS);
        }
        assert!(bench.load(HOG).is_some_and(|load| (990..=1000).contains(&load)), "{:?}", bench.load(HOG));
        for _ in 0..100 {
            bench.run(HOG, 3 * MS);
            bench.run(OTHER, MS);
            bench.wait(12 * MS);
        }
        let loads = [HOG, OTHER].map(|task| bench.load(task).unwrap());
        assert!((740..=755).contains(&loads[0]) && (240..=255).contains(&loads[1]), "{loads:?}");
        assert!(bench.usage.stolen(Time(bench.now)).abs_diff(750) < 15);
    }

    /// A display server that runs little, and waits at each of its turns, has got all it wanted.
    #[test]
    fn what_a_vcpu_waits_before_it_sleeps_is_no_load() {
        let mut bench = Bench::new();
        for _ in 0..60 {
            bench.wait(15 * MS);
            bench.run(HOG, MS);
            bench.sleep(17 * MS);
        }
        assert!(bench.load(HOG).is_some_and(|load| load < 50), "{:?}", bench.load(HOG));
    }

    #[test]
    fn what_was_longer_ago_is_forgotten_by_the_sub_epoch() {
        let mut bench = Bench::new();
        bench.run(HOG, 8 * SUB_EPOCH);
        assert_eq!(bench.load(HOG), Some(1000));
        bench.run(OTHER, 4 * SUB_EPOCH);
        assert_eq!([HOG, OTHER].map(|task| bench.load(task)), [Some(500), Some(500)]);
        bench.run(OTHER, 5 * SUB_EPOCH);
        assert_eq!([HOG, OTHER].map(|task| bench.load(task)), [None, Some(1000)]);
        bench.sleep(1000 * SUB_EPOCH);
        assert_eq!(bench.load(OTHER), None);
    }

    #[test]
    fn what_begins_now_says_nothing_yet() {
        let mut bench = Bench::new();
        bench.run(HOG, SUB_EPOCH - 1);
        assert_eq!(bench.load(HOG), None);
        bench.run(HOG, 1);
        assert_eq!(bench.load(HOG), Some(1000));
    }

    #[test]
    fn who_uses_most_is_told_apart_among_any_number() {
        let mut bench = Bench::new();
        for n in 0..10_000 {
            bench.run(TaskId(100 + n), 10_000);
            bench.run(HOG, 90_000);
        }
        assert!(bench.load(HOG).is_some_and(|load| load.abs_diff(900) < 10), "{:?}", bench.load(HOG));
        assert!(bench.usage.tasks.len() <= MOST_TASKS);
        let all: u64 = bench.usage.loads(Time(bench.now)).map(|(_, load)| load).sum();
        assert!(all <= 1000);
    }

    proptest! {
        /// Nobody can make a vCPU look busier than it can be, and times of any length do no harm.
        #[test]
        fn loads_of_a_vcpu_are_at_most_all_of_it(steps in prop::collection::vec((0..3u8, 0..40u64, 0..400 * MS), 0..300)) {
            let mut bench = Bench::new();
            for (what, task, nanos) in steps {
                match what {
                    0 => bench.run(TaskId(task), nanos),
                    1 => bench.wait(nanos),
                    _ => bench.sleep(nanos),
                }
                let all: u64 = bench.usage.loads(Time(bench.now)).map(|(_, load)| load).sum();
                prop_assert!(all <= 1000, "{all}");
                prop_assert!(bench.usage.check().is_ok());
            }
        }

        #[test]
        fn extreme_times_do_no_harm(times in prop::collection::vec(any::<u64>(), 2..20)) {
            let mut bench = Bench::new();
            bench.vcpu.thread.run(0, false);
            bench.vcpu.switch(HOG, 0);
            let mut now = 0;
            for time in times {
                let from = now;
                now = now.max(time);
                bench.usage.add(&bench.vcpu, Time(from), Time(now));
                let _ = bench.usage.loads(Time(now)).count();
            }
            bench.usage.add(&bench.vcpu, Time(now), Time(u64::MAX));
        }
    }
}
