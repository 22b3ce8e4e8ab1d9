//! Tasks that will never go on.

use super::GuestKernel;
use crate::program::{Step, TaskState, Waits};
use crate::queue::Nanos;

/// A task that waits for what never comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    /// Its number in the guest.
    pub(crate) task: usize,
    /// The channel in which it waits.
    pub(crate) channel: usize,
    /// Since when.
    pub(crate) since: Nanos,
    /// Those who could send it what it waits for, and are stuck, too.
    pub(crate) by: Vec<usize>,
}

impl GuestKernel {
    /// Whether tasks of this guest can wait for each other.
    pub(crate) fn can_deadlock(&self) -> bool {
        !self.channels.is_empty()
    }

    /// The tasks that wait for messages or signals which only such tasks could send, or nobody.
    pub(crate) fn deadlocked(&self) -> Vec<Stuck> {
        let channel = |task: usize| match self.tasks[task].state {
            TaskState::Blocked(Waits::Messages { channel }) => Some(channel),
            _ => None,
        };
        let mut stuck: Vec<bool> = (0..self.tasks.len()).map(|task| channel(task).is_some()).collect();
        loop {
            let fed = |channel| (0..self.tasks.len()).any(|by| !stuck[by] && self.feeds(by, channel));
            let freed = |task: &usize| stuck[*task] && channel(*task).is_none_or(fed);
            let freed: Vec<usize> = (0..self.tasks.len()).filter(freed).collect();
            if freed.is_empty() {
                break;
            }
            freed.into_iter().for_each(|task| stuck[task] = false);
        }
        let found = (0..self.tasks.len()).filter(|task| stuck[*task]).filter_map(|task| {
            let channel = channel(task)?;
            let by = (0..self.tasks.len()).filter(|by| *by != task && self.feeds(*by, channel)).collect();
            Some(Stuck { task, channel, since: self.tasks[task].since, by })
        });
        found.collect()
    }

    /// Whether a task that has not ended sends into a channel.
    fn feeds(&self, task: usize, channel: usize) -> bool {
        let sends = |step: &Step| match step {
            Step::Send { channel: own, .. } | Step::Signal { channel: own, .. } => *own == channel,
            Step::WaitSignal { mutex, .. } => *mutex == Some(channel),
            Step::Draw { .. } => self.display_server == Some(channel),
            Step::Show { .. } | Step::Display { .. } => {
                self.windows.iter().any(|window| window.room == channel)
            }
            _ => false,
        };
        let task = &self.tasks[task];
        task.state != TaskState::Blocked(Waits::Nothing) && task.program.iter().any(sends)
    }
}
