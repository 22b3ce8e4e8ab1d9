//! Which process of the guest a task is that is seen from outside: a reporter tells by name who ran, but
//! late.

use frontdesk_engine::{TaskId, Time};
use frontdesk_qemu::reporter::Told;
use lru::LruCache;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;

/// What is kept of a vCPU until the other side has told what belongs to it: a second of a busy one's
/// switches.
const KEPT: usize = 2048;
/// Tasks whose names are kept: those seen last.
const MAX_TASKS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// A task was that process so many times more than any other.
const SURE: u8 = 3;
/// Further votes add nothing, so that another process soon takes the name over.
const MOST: u8 = 16;

/// The names of a VM's tasks.
#[derive(Debug)]
pub(super) struct Names {
    vcpus: BTreeMap<u16, Sightings>,
    votes: LruCache<TaskId, Vote>,
}

/// What was seen and what was told of one vCPU, each in the order of time, and not compared yet.
#[derive(Debug, Default)]
struct Sightings {
    seen: VecDeque<(Time, TaskId)>,
    /// The task that was switched to last, and when: it ran at least until something else is seen.
    switched: Option<(Time, TaskId)>,
    told: VecDeque<(Time, Option<u32>)>,
}

/// The process that a task was more often than all others together.
#[derive(Clone, Copy, Debug, Default)]
struct Vote {
    process: u32,
    count: u8,
}

impl Default for Names {
    fn default() -> Names {
        Names { vcpus: BTreeMap::new(), votes: LruCache::new(MAX_TASKS) }
    }
}

impl Names {
    /// A task ran on a vCPU just then.
    pub(super) fn seen(&mut self, vcpu: u16, at: Time, task: TaskId) {
        keep(&mut self.vcpus.entry(vcpu).or_default().seen, (at, task));
    }

    /// From then on a vCPU runs another task, or (`None`) none. Just then the other side may be a little
    /// early or late, so the middle of the run that ends is what counts.
    pub(super) fn switched(&mut self, vcpu: u16, at: Time, task: Option<TaskId>) {
        let of = self.vcpus.entry(vcpu).or_default();
        let before = std::mem::replace(&mut of.switched, task.map(|task| (at, task)));
        if let Some((since, task)) = before {
            keep(&mut of.seen, (since.plus(at.since(since) / 2), task));
        }
    }

    /// The reporter told this.
    pub(super) fn told(&mut self, told: Told) {
        let of = self.vcpus.entry(told.vcpu).or_default();
        keep(&mut of.told, (told.at, told.task));
        // Who ran until then is known now.
        while let Some((at, task)) = of.seen.pop_front_if(|(at, _)| *at < told.at) {
            while of.told.get(1).is_some_and(|(next, _)| *next <= at) {
                of.told.pop_front();
            }
            if let Some((since, Some(process))) = of.told.front()
                && *since <= at
            {
                self.votes.get_or_insert_mut(task, Vote::default).cast(*process);
            }
        }
    }

    /// Which process a task is, if that is clear.
    pub(super) fn process(&self, task: TaskId) -> Option<u32> {
        self.votes.peek(&task).filter(|vote| vote.count >= SURE).map(|vote| vote.process)
    }
}

impl Vote {
    fn cast(&mut self, process: u32) {
        match self.count {
            0 => *self = Vote { process, count: 1 },
            count if self.process == process => self.count = count.saturating_add(1).min(MOST),
            count => self.count = count - 1,
        }
    }
}

fn keep<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= KEPT {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOG: TaskId = TaskId(0x1000);
    const ECHO: TaskId = TaskId(0x2000);

    fn told(at: u64, task: Option<u32>) -> Told {
        Told { vcpu: 0, at: Time(at), task }
    }

    #[test]
    fn who_runs_when_a_task_is_seen_is_that_task() {
        let mut names = Names::default();
        for round in 0..4 {
            let at = round * 1000;
            names.seen(0, Time(at + 100), HOG);
            names.seen(0, Time(at + 450), ECHO);
            names.seen(1, Time(at + 450), HOG);
            assert_eq!(names.process(ECHO), (round == 3).then_some(82), "not sooner than it is sure");
            for (after, task) in [(0, Some(83)), (400, Some(82)), (500, None)] {
                names.told(told(at + after, task));
            }
        }
        assert_eq!((names.process(HOG), names.process(ECHO)), (Some(83), Some(82)));
        assert_eq!(names.process(TaskId(0x3000)), None);
    }

    #[test]
    fn of_switches_the_middle_counts() {
        let mut names = Names::default();
        for round in 0..4 {
            let at = 1000 + round * 1000;
            // The guest's clock is a little behind.
            names.switched(0, Time(at), Some(ECHO));
            names.switched(0, Time(at + 100), None);
            names.switched(0, Time(at + 500), Some(HOG));
            for (after, task) in [(10, Some(82)), (110, None), (510, Some(83)), (999, None)] {
                names.told(told(at + after, task));
            }
        }
        assert_eq!((names.process(ECHO), names.process(HOG)), (Some(82), Some(83)));
    }

    #[test]
    fn another_process_takes_a_name_over_and_rubbish_is_bounded() {
        let mut names = Names::default();
        let mut at = 0;
        let mut run = |names: &mut Names, process, times| {
            for _ in 0..times {
                names.told(told(at, Some(process)));
                names.seen(0, Time(at + 5), ECHO);
                at += 10;
                names.told(told(at, None));
            }
        };
        run(&mut names, 1, 100);
        assert_eq!(names.process(ECHO), Some(1));
        run(&mut names, 2, 2 * u32::from(MOST));
        assert_eq!(names.process(ECHO), Some(2));
        for n in 0..100_000 {
            names.told(told(u64::MAX - n, Some(1)));
            names.seen(0, Time(n), TaskId(n));
            names.switched(0, Time(u64::MAX - n), Some(TaskId(n)));
        }
        assert!(names.votes.len() <= MAX_TASKS.get());
        let of = &names.vcpus[&0];
        assert!(of.seen.len() <= KEPT && of.told.len() <= KEPT);
    }
}
