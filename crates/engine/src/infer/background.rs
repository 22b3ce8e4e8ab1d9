//! Which tasks of a guest are background work (vAMP §3.1.2): those that used much of the CPUs before a person
//! did something. What they are taken for holds until the next time.

use crate::config::Asymmetric as Config;
use crate::event::{TaskId, Time};
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tasks that are taken for background work at once; those that used most.
const MOST_TAGS: usize = 64;
/// Tasks of which it is remembered how sure that is.
const MOST_KNOWN: usize = 2 * MOST_TAGS;
/// Highest background confidence (§3.1.3: 10).
const MOST_CONFIDENCE: u8 = 10;

/// A task that is background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tag {
    pub(crate) task: TaskId,
    /// Since when it has been, each time that was looked at.
    pub(crate) since: Time,
    /// What it used when that was looked at last, in permille of a CPU.
    pub(crate) load: u64,
}

/// The background work of a guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Background {
    tags: Vec<Tag>,
    /// Of late, how much more often a task was background work than not; 1 and more.
    confidence: Vec<(TaskId, u8)>,
    inspected: Option<Time>,
}

impl Background {
    /// Checks what was loaded.
    pub(super) fn check(&self) -> Result<(), StateError> {
        let few = self.tags.len() <= MOST_TAGS && self.confidence.len() <= MOST_KNOWN;
        check(few, "more background work than is told apart")
    }

    /// When it was looked at last.
    pub(crate) fn inspected(&self) -> Option<Time> {
        self.inspected
    }

    /// Tags who is background work: by what tasks used of each vCPU, in permille, but those who are `spared`.
    pub(super) fn inspect(
        &mut self,
        loads: impl Iterator<Item = (TaskId, u64)>,
        spared: impl Fn(TaskId) -> bool,
        config: &Config,
        now: Time,
    ) {
        let mut tasks: BTreeMap<TaskId, u64> = BTreeMap::new();
        for (task, load) in loads {
            let of = tasks.entry(task).or_default();
            *of = if config.per_vcpu { load.max(*of) } else { of.saturating_add(load) };
        }
        // Between 10 and 1000.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let most = (config.background_load * 1000.0) as u64;
        let since = |task| self.tags.iter().find(|tag| tag.task == task).map_or(now, |tag| tag.since);
        let background = tasks.into_iter().filter(|(task, load)| *load > most && !spared(*task));
        let mut tags: Vec<Tag> =
            background.map(|(task, load)| Tag { task, since: since(task), load }).collect();
        tags.sort_by_key(|tag| (std::cmp::Reverse(tag.load), tag.task));
        tags.truncate(MOST_TAGS);
        self.tags = tags;
        self.inspected = Some(now);
        self.learn();
    }

    /// How sure it is who is background work goes up or down by one.
    fn learn(&mut self) {
        let tagged = |task| self.tags.iter().any(|tag| tag.task == task);
        for (task, confidence) in &mut self.confidence {
            *confidence = match tagged(*task) {
                true => confidence.saturating_add(1).min(MOST_CONFIDENCE),
                false => confidence.saturating_sub(1),
            };
        }
        self.confidence.retain(|(_, confidence)| *confidence > 0);
        for tag in &self.tags {
            if !self.confidence.iter().any(|(task, _)| *task == tag.task) {
                self.confidence.push((tag.task, 1));
            }
        }
        self.confidence.sort_by_key(|(task, confidence)| (std::cmp::Reverse(*confidence), *task));
        self.confidence.truncate(MOST_KNOWN);
    }

    /// How sure it is that a task is background work: 0 to 10.
    pub(super) fn confidence(&self, task: TaskId) -> u8 {
        let known = self.confidence.iter().find(|(of, _)| *of == task);
        known.map_or(0, |(_, confidence)| *confidence)
    }

    /// Whether a task is background work, as long as the episode goes on.
    pub(super) fn is_tagged(&self, task: TaskId) -> bool {
        self.tags.iter().any(|tag| tag.task == task)
    }

    /// Who is background work, what used most first.
    pub(crate) fn tags(&self) -> &[Tag] {
        &self.tags
    }

    /// Bytes held beyond its own size.
    pub(super) fn bytes(&self) -> usize {
        self.tags.capacity() * size_of::<Tag>() + self.confidence.capacity() * size_of::<(TaskId, u8)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILD: TaskId = TaskId(1);
    const SERVER: TaskId = TaskId(2);
    const PLAYER: TaskId = TaskId(3);

    fn tagged(background: &Background) -> Vec<TaskId> {
        background.tags().iter().map(|tag| tag.task).collect()
    }

    /// Table 1: more than 50 %. A display server uses less.
    #[test]
    fn who_used_more_than_half_of_a_cpu_is_background() {
        let (mut background, config) = (Background::default(), Config::default());
        background.inspect([(BUILD, 501), (SERVER, 500)].into_iter(), |_| false, &config, Time(1));
        assert_eq!(tagged(&background), [BUILD]);
        background.inspect([(BUILD, 900)].into_iter(), |_| false, &config, Time(2));
        assert_eq!(background.tags(), [Tag { task: BUILD, since: Time(1), load: 900 }]);
        background.inspect([].into_iter(), |_| false, &config, Time(3));
        assert_eq!(background.tags(), []);
    }

    /// A guest moves a task from vCPU to vCPU: on none of them it is above half.
    #[test]
    fn what_a_task_used_is_summed_up_unless_it_is_to_be_on_one_vcpu() {
        for per_vcpu in [false, true] {
            let mut background = Background::default();
            let config = Config { per_vcpu, ..Config::default() };
            let loads = [(BUILD, 300), (SERVER, 100), (BUILD, 400), (SERVER, 200), (PLAYER, 600)];
            background.inspect(loads.into_iter(), |_| false, &config, Time(1));
            let expected = if per_vcpu { vec![PLAYER] } else { vec![BUILD, PLAYER] };
            assert_eq!(tagged(&background), expected);
        }
    }

    #[test]
    fn who_plays_is_not_background_and_loses_what_confidence_there_was() {
        let (mut background, config) = (Background::default(), Config::default());
        let loads = || [(BUILD, 1900), (PLAYER, 700)].into_iter();
        (0..15).for_each(|_| background.inspect(loads(), |_| false, &config, Time(1)));
        assert_eq!([BUILD, PLAYER].map(|task| background.confidence(task)), [10, 10]);
        for left in (0..10).rev() {
            background.inspect(loads(), |task| task == PLAYER, &config, Time(2));
            assert_eq!(tagged(&background), [BUILD]);
            assert_eq!([BUILD, PLAYER].map(|task| background.confidence(task)), [10, left]);
        }
    }

    #[test]
    fn any_number_of_tasks_leaves_those_that_used_most() {
        let (mut background, config) = (Background::default(), Config::default());
        for round in 0..100 {
            let loads = (0..512).map(|task| (TaskId(round * 512 + task), 501 + task));
            background.inspect(loads, |_| false, &config, Time(1));
            assert_eq!(tagged(&background).first(), Some(&TaskId(round * 512 + 511)));
            assert!(background.check().is_ok());
        }
    }
}
