//! Which VM's request the disk does next.
//!
//! The disk is given at most `depth` pieces of work at a time, so that what waits, waits here, where it can
//! be ordered. Of the VMs that have something waiting, that comes first which had least of the disk. A VM
//! that had nothing to do does not save up for later.

use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What each piece costs the disk beside its bytes, in bytes.
const BASE_COST: u64 = 16 << 10;

/// The scheduler of one physical disk. Shared by the threads of its VMs.
#[derive(Debug)]
pub(crate) struct Scheduler {
    depth: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    vms: Vec<Vm>,
    in_flight: u32,
    /// What the VM that was served last had been served before.
    virtual_time: u64,
}

#[derive(Debug)]
struct Vm {
    waiting: VecDeque<Piece>,
    granted: Vec<u32>,
    /// Cost of what it was given, beyond what others had when it began.
    served: u64,
    wake: Arc<OwnedFd>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    number: u32,
    cost: u64,
}

/// A VM's part in it.
#[derive(Debug)]
pub(crate) struct Share {
    scheduler: Arc<Scheduler>,
    vm: usize,
    wake: Arc<OwnedFd>,
}

impl Scheduler {
    /// A scheduler for a disk that works at this many pieces at a time, at least 1.
    pub(crate) fn new(depth: u32) -> Arc<Scheduler> {
        Arc::new(Scheduler { depth: depth.max(1), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more VM.
    ///
    /// # Errors
    /// If the kernel refuses a descriptor.
    pub(crate) fn join(self: &Arc<Scheduler>) -> io::Result<Share> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut state = self.state();
        state.vms.push(Vm {
            waiting: VecDeque::new(),
            granted: Vec::new(),
            served: 0,
            wake: Arc::clone(&wake),
        });
        Ok(Share { scheduler: Arc::clone(self), vm: state.vms.len() - 1, wake })
    }
}

impl State {
    /// Gives the disk what it can take. Returns the VMs that were given something.
    fn grant(&mut self, depth: u32) -> Vec<usize> {
        let mut woken = Vec::new();
        while self.in_flight < depth {
            let waiting = self.vms.iter().enumerate().filter(|(_, vm)| !vm.waiting.is_empty());
            let Some((next, _)) = waiting.min_by_key(|(_, vm)| vm.served) else {
                break;
            };
            let vm = &mut self.vms[next];
            if let Some(piece) = vm.waiting.pop_front() {
                self.virtual_time = self.virtual_time.max(vm.served);
                vm.served = vm.served.saturating_add(piece.cost.saturating_add(BASE_COST));
                vm.granted.push(piece.number);
                self.in_flight += 1;
                woken.push(next);
            }
        }
        woken
    }

    fn wake(&self, mut woken: Vec<usize>, but: usize) {
        woken.sort_unstable();
        woken.dedup();
        for vm in woken.into_iter().filter(|vm| *vm != but) {
            // Full is as good as written.
            let _ = rustix::io::write(&*self.vms[vm].wake, &1_u64.to_ne_bytes());
        }
    }
}

impl Share {
    /// Asks for a piece of work of this many bytes; `number` is the VM's own name for it.
    pub(crate) fn ask(&self, number: u32, bytes: u64) {
        let mut state = self.scheduler.state();
        let virtual_time = state.virtual_time;
        let vm = &mut state.vms[self.vm];
        if vm.waiting.is_empty() {
            vm.served = vm.served.max(virtual_time);
        }
        vm.waiting.push_back(Piece { number, cost: bytes });
        let woken = state.grant(self.scheduler.depth);
        state.wake(woken, self.vm);
    }

    /// The pieces that may begin now.
    pub(crate) fn granted(&self) -> Vec<u32> {
        std::mem::take(&mut self.scheduler.state().vms[self.vm].granted)
    }

    /// A piece that was granted has ended.
    pub(crate) fn done(&self) {
        let mut state = self.scheduler.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        let woken = state.grant(self.scheduler.depth);
        state.wake(woken, self.vm);
    }

    /// Readable when another VM's thread made room for a piece of this one.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_has_no_more_to_do_than_its_depth() {
        let scheduler = Scheduler::new(2);
        let vm = scheduler.join().unwrap();
        (0..5).for_each(|number| vm.ask(number, 4096));
        assert_eq!(vm.granted(), [0, 1]);
        vm.done();
        assert_eq!(vm.granted(), [2]);
        assert!(vm.granted().is_empty());
    }

    #[test]
    fn vms_share_the_disk_by_what_they_are_given_and_not_by_requests() {
        let scheduler = Scheduler::new(1);
        let [small, large, holder] = [(); 3].map(|()| scheduler.join().unwrap());
        holder.ask(0, 0);
        for number in 0..1000 {
            small.ask(number, 112 << 10);
            large.ask(number, 1008 << 10);
        }
        holder.done();
        let mut given = [0, 0];
        for _ in 0..90 {
            given[0] += small.granted().len();
            given[1] += large.granted().len();
            small.done();
        }
        assert_eq!(given, [80, 10], "1 MiB each costs as much as 8 times 128 KiB");
    }

    #[test]
    fn who_was_idle_has_saved_up_nothing() {
        let scheduler = Scheduler::new(1);
        let [busy, idle] = [(); 2].map(|()| scheduler.join().unwrap());
        for number in 0..100 {
            busy.ask(number, 4096);
            assert_eq!(busy.granted(), [number]);
            busy.done();
        }
        busy.ask(0, 4096);
        (0..10).for_each(|number| idle.ask(number, 4096));
        (1..10).for_each(|number| busy.ask(number, 4096));
        let mut order = String::new();
        for _ in 0..10 {
            order.extend(busy.granted().iter().map(|_| 'b'));
            order.extend(idle.granted().iter().map(|_| 'i'));
            busy.done();
        }
        assert!(order.contains("bi") && order.contains("ib") && !order.contains("iii"), "{order}");
    }
}
