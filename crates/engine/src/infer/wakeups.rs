//! For whom a task runs that was woken from another vCPU (vAMP §3.1.3): remote wake-up tracking.
//!
//! A task that is scheduled at once after another vCPU's interrupt was woken by what ran there; and what that
//! itself was woken for is what the whole chain is for. Which of the guest's vectors wakes tasks is not
//! asked: since Linux 5.8 it may be that of calls, too, and others schedule nobody.

use crate::event::TaskId;
use serde::{Deserialize, Serialize};

/// An interrupt of another vCPU.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Poke {
    /// For whom it was sent; `None` from the handler of a device's interrupt, which is for nobody.
    source: Option<TaskId>,
    /// The task that sent it; `None` from such a handler.
    #[serde(default)]
    by: Option<TaskId>,
    /// What the vCPU had run when it was sent, or taken.
    ran: u64,
}

/// For whom what runs on a vCPU was woken.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Wakeups {
    /// For whom it works, and would wake others: the task that runs here, or who began the chain (the paper's
    /// S).
    source: Option<TaskId>,
    /// Who woke the task that runs, from another vCPU (the paper's RW).
    waker: Option<TaskId>,
    poke: Option<Poke>,
}

impl Wakeups {
    /// For whom what runs here works.
    pub(super) fn source(&self) -> Option<TaskId> {
        self.source
    }

    /// Who woke the task that runs here, from another vCPU.
    pub(super) fn waker(&self) -> Option<TaskId> {
        self.waker
    }

    /// Another vCPU, on which the task `by` works for `source`, interrupted this one, which has run so long.
    pub(super) fn poked(&mut self, source: Option<TaskId>, by: Option<TaskId>, ran: u64) {
        self.poke = Some(Poke { source, by, ran });
    }

    /// This vCPU, which has run so long, took the interrupt: it is scheduled from now on whom that woke.
    pub(super) fn taken(&mut self, ran: u64) {
        if let Some(poke) = &mut self.poke {
            poke.ran = ran;
        }
    }

    /// A device interrupted it: whom the handler wakes is not for the task that runs.
    pub(super) fn interrupted(&mut self) {
        self.source = None;
    }

    /// A task is scheduled on this vCPU, which has run so long. `only_loaded`: it may be only what was loaded
    /// when the vCPU was idle, and the one that was woken may come yet.
    pub(super) fn scheduled(&mut self, task: TaskId, only_loaded: bool, ran: u64, latency: u64) {
        let woken = self.poke.filter(|poke| ran.saturating_sub(poke.ran) <= latency);
        self.poke = woken.filter(|_| only_loaded);
        // Of two that wake each other in turns, as a player and a sound server whose card asks for more, each
        // works for the other: the chain would be for nobody, or for the server itself (not in the paper).
        self.waker = woken.and_then(|poke| poke.source.filter(|source| *source != task).or(poke.by));
        self.source = match woken {
            Some(_) => self.waker,
            None => Some(task),
        };
    }

    /// The vCPU idles.
    pub(super) fn halted(&mut self) {
        (self.source, self.waker) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: u64 = 20_000;
    const CLIENT: TaskId = TaskId(1);
    const SERVER: TaskId = TaskId(2);
    const HELPER: TaskId = TaskId(3);

    fn running(task: TaskId) -> Wakeups {
        let mut vcpu = Wakeups::default();
        vcpu.scheduled(task, false, 0, LATENCY);
        vcpu
    }

    /// Figure 3: T_A on V_1 wakes T_B on V_2.
    #[test]
    fn who_is_scheduled_at_once_was_woken_by_the_other_vcpu() {
        let one = running(CLIENT);
        for (delay, waker) in [(LATENCY, Some(CLIENT)), (LATENCY + 1, None)] {
            let mut two = running(HELPER);
            two.poked(one.source(), Some(CLIENT), 5000);
            // How long it waited for the CPU says nothing.
            two.taken(90_000);
            two.scheduled(SERVER, false, 90_000 + delay, LATENCY);
            assert_eq!((two.waker(), two.source()), (waker, waker.or(Some(SERVER))));
            two.scheduled(HELPER, false, 91_000 + delay, LATENCY);
            assert_eq!(two.waker(), None, "it is over with the time slice");
        }
    }

    #[test]
    fn a_chain_is_for_who_began_it() {
        let (one, mut two, mut three) = (running(CLIENT), running(HELPER), running(HELPER));
        two.poked(one.source(), Some(CLIENT), 0);
        two.scheduled(SERVER, false, 10, LATENCY);
        three.poked(two.source(), Some(SERVER), 0);
        three.scheduled(SERVER, false, 10, LATENCY);
        assert_eq!((three.waker(), three.source()), (Some(CLIENT), Some(CLIENT)));
    }

    /// "S is updated as None when an external interrupt is injected"
    #[test]
    fn whom_a_devices_interrupt_wakes_is_nobodys() {
        let (mut one, mut two) = (running(CLIENT), running(HELPER));
        one.interrupted();
        two.poked(one.source(), None, 0);
        two.scheduled(SERVER, false, 10, LATENCY);
        assert_eq!((two.waker(), two.source()), (None, None));
        one.scheduled(CLIENT, false, 10, LATENCY);
        assert_eq!(one.source(), Some(CLIENT), "until the next task");
    }

    /// A card asks for more, so that its server wakes the player, which wakes the server.
    #[test]
    fn of_two_that_wake_each_other_each_works_for_the_other() {
        let (mut one, mut two) = (running(HELPER), running(HELPER));
        two.interrupted();
        two.scheduled(SERVER, false, 0, LATENCY);
        for round in 1..5 {
            let at = 100 * round;
            one.poked(two.source(), Some(SERVER), at);
            one.scheduled(CLIENT, false, at, LATENCY);
            two.poked(one.source(), Some(CLIENT), at);
            two.scheduled(SERVER, false, at, LATENCY);
            assert_eq!(two.waker(), Some(CLIENT), "round {round}");
            if round == 2 {
                // The server is woken by the card again, on another vCPU's handler.
                two.poked(None, None, at);
                two.scheduled(SERVER, false, at, LATENCY);
                assert_eq!(two.waker(), None);
            }
        }
    }

    /// A guest that idles keeps the last address space: the woken server may be that one, or come after it.
    #[test]
    fn an_idle_vcpu_that_goes_on_may_run_whom_it_has_loaded_or_another() {
        for task in [SERVER, HELPER] {
            let mut two = running(SERVER);
            two.halted();
            two.poked(Some(CLIENT), Some(CLIENT), 100);
            two.scheduled(SERVER, true, 100, LATENCY);
            assert_eq!(two.waker(), Some(CLIENT));
            two.taken(300);
            if task != SERVER {
                two.scheduled(task, false, 400, LATENCY);
                assert_eq!(two.waker(), Some(CLIENT));
            }
        }
    }
}
