//! For whom a guest's sound server plays (vAMP §3.1.3): audio counters of the tasks that wake, from another
//! vCPU, one that accesses the sound card.

use crate::event::TaskId;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// Tasks that are counted for; one that was counted for least makes room.
const MOST_TASKS: usize = 16;
/// Averages are in such parts of an access.
const PARTS: u64 = 16;

/// A task that may be a client of a sound server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Client {
    task: TaskId,
    /// Accesses for it since the last average, and their moving average.
    count: u32,
    average: u32,
}

/// The audio counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Clients {
    counted: Vec<Client>,
}

impl Clients {
    /// Checks what was loaded.
    pub(super) fn check(&self) -> Result<(), StateError> {
        check(self.counted.len() <= MOST_TASKS, "more clients of sound servers than are told apart")
    }

    /// Whoever accessed the sound card was woken by this task.
    pub(super) fn accessed(&mut self, waker: TaskId) {
        let place = self.counted.iter().position(|client| client.task == waker);
        let place = place.unwrap_or_else(|| {
            if self.counted.len() >= MOST_TASKS
                && let Some(least) = (0..MOST_TASKS).min_by_key(|place| self.counted[*place].size())
            {
                self.counted.swap_remove(least);
            }
            self.counted.push(Client { task: waker, count: 0, average: 0 });
            self.counted.len() - 1
        });
        let client = &mut self.counted[place];
        client.count = client.count.saturating_add(1);
    }

    /// Takes the averages, with what was counted since the last time, divided by how sure it is that a task
    /// is background work: what does much may well wake a server by chance.
    pub(super) fn average(&mut self, confidence: impl Fn(TaskId) -> u8) {
        for client in &mut self.counted {
            let count = u64::from(std::mem::take(&mut client.count)) * PARTS;
            let latest = count / u64::from(confidence(client.task).max(1));
            let average = u64::midpoint(u64::from(client.average), latest);
            client.average = u32::try_from(average).unwrap_or(u32::MAX);
        }
        self.counted.retain(|client| client.average > 0);
    }

    /// The task with the highest counter, if any has one.
    pub(crate) fn dominant(&self) -> Option<TaskId> {
        self.counted.iter().max_by_key(|client| (client.average, client.task)).map(|client| client.task)
    }

    /// Bytes held beyond its own size.
    pub(super) fn bytes(&self) -> usize {
        self.counted.capacity() * size_of::<Client>()
    }
}

impl Client {
    fn size(&self) -> u64 {
        u64::from(self.count) * PARTS + u64::from(self.average)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAYER: TaskId = TaskId(1);
    const BUILD: TaskId = TaskId(2);

    /// Figure 9: a player is far above a task that wakes threads all the time, and is background work.
    #[test]
    fn the_player_has_the_highest_counter_in_each_period() {
        let mut clients = Clients::default();
        for period in 0..20u8 {
            (0..40).for_each(|_| clients.accessed(PLAYER));
            // More than the player, by chance.
            (0..60).for_each(|_| clients.accessed(BUILD));
            clients.average(|task| if task == BUILD { (period + 1).min(10) } else { 0 });
            assert!(period < 2 || clients.dominant() == Some(PLAYER), "period {period}: {clients:?}");
        }
    }

    #[test]
    fn who_plays_no_more_is_forgotten() {
        let mut clients = Clients::default();
        (0..100).for_each(|_| clients.accessed(PLAYER));
        clients.average(|_| 0);
        assert_eq!(clients.dominant(), Some(PLAYER));
        (0..12).for_each(|_| clients.average(|_| 0));
        assert_eq!((clients.dominant(), clients.counted.len()), (None, 0));
    }

    #[test]
    fn any_number_of_tasks_leaves_who_is_counted_for_most() {
        let mut clients = Clients::default();
        for n in 0..10_000 {
            clients.accessed(PLAYER);
            clients.accessed(TaskId(100 + n));
        }
        clients.average(|_| 0);
        assert_eq!(clients.dominant(), Some(PLAYER));
        assert!(clients.check().is_ok());
    }
}
