//! The guest kernel's scheduler: a queue for each vCPU, fair by virtual run time. Who wakes after a sleep
//! preempts, but since Linux 6.6 nobody who is in the middle of his slice: he goes on until a clock tick.

use super::{Effect, GuestKernel};
use crate::program::{GuestTask, SchedClass, TaskState};
use crate::queue::{NEVER, Nanos};
use crate::scheduler::nice_weight;
use std::cmp::{Ordering, Reverse};

/// Weight of a task that is not nice, by which virtual time is measured.
const NORMAL: u64 = 1024;

impl GuestTask {
    /// By how much its virtual run time grows while it runs for so long.
    fn virtual_time(&self, time: Nanos) -> Nanos {
        match self.class {
            SchedClass::Fair { nice } if nice != 0 => {
                let weight = u128::from(nice_weight(nice).max(1));
                u64::try_from(u128::from(time) * u128::from(NORMAL) * u128::from(NORMAL) / weight)
                    .unwrap_or(NEVER)
            }
            _ => time,
        }
    }
}

impl GuestKernel {
    /// The current task of a vCPU used so much.
    pub(super) fn charge(&mut self, vcpu: usize, time: Nanos) {
        let cpu = &mut self.cpus[vcpu];
        let Some(current) = cpu.current else { return };
        cpu.slice = cpu.slice.saturating_sub(time);
        let task = &mut self.tasks[current];
        task.vruntime = task.vruntime.saturating_add(task.virtual_time(time));
        let least = cpu.ready.iter().map(|ready| self.tasks[*ready].vruntime).min();
        let current = self.tasks[current].vruntime;
        cpu.floor = cpu.floor.max(least.map_or(current, |least| least.min(current)));
    }

    /// A task is runnable again. `here`: the vCPU on which that is found out.
    pub(super) fn wake(&mut self, here: usize, task: usize, io: bool) {
        let affinity = self.allowed(task);
        let idle = |vcpu: &usize| {
            let cpu = &self.cpus[*vcpu];
            affinity.contains(*vcpu) && cpu.current.is_none() && cpu.ready.is_empty()
        };
        let last = self.tasks[task].vcpu;
        let last = if affinity.contains(last) { last } else { self.roomiest(task, last) };
        // Where it was, if that is idle; else where nothing runs; else where it was.
        let target = if idle(&last) { last } else { (0..self.cpus.len()).find(idle).unwrap_or(last) };
        self.tasks[task].woken |= io;
        self.enqueue(task, target);
        let in_the_middle = self.goes_by_ticks(target) && !self.renew(target);
        let granularity = if self.costs.request.is_some() { 0 } else { self.costs.granularity };
        let cpu = &mut self.cpus[target];
        let preempts = cpu.current.is_none_or(|current| {
            let (current, woken) = (&self.tasks[current], &self.tasks[task]);
            match woken.class.rank().cmp(&current.class.rank()) {
                Ordering::Equal if woken.class.rank() > 0 || in_the_middle => false,
                Ordering::Equal => current.vruntime > woken.vruntime.saturating_add(granularity),
                other => other == Ordering::Greater,
            }
        });
        if target == here {
            cpu.reschedule |= preempts;
        } else if preempts {
            self.effects.push(Effect::Ipi { from: here, to: target });
        }
    }

    /// Whether the current task of a vCPU goes on, whoever waits, until a clock tick finds that it has used
    /// up its slice.
    pub(super) fn goes_by_ticks(&self, vcpu: usize) -> bool {
        let fair = |current: usize| self.tasks[current].class.rank() == 0;
        self.costs.request.is_some() && self.cpus[vcpu].current.is_some_and(fair)
    }

    /// Gives the current task of a vCPU that goes by ticks another slice if it has used its own up, and says
    /// whether it had. The kernel does so at ticks, and when another task wakes.
    pub(super) fn renew(&mut self, vcpu: usize) -> bool {
        let Some(request) = self.costs.request.filter(|_| self.goes_by_ticks(vcpu)) else { return false };
        let cpu = &mut self.cpus[vcpu];
        let used_up = cpu.slice == 0;
        if used_up {
            cpu.slice = request;
        }
        used_up
    }

    /// The turn of the current task of a vCPU is over.
    pub(super) fn end_turn(&mut self, vcpu: usize) {
        self.cpus[vcpu].reschedule = true;
        self.push_surplus(vcpu);
    }

    fn enqueue(&mut self, task: usize, vcpu: usize) {
        let cpu = &mut self.cpus[vcpu];
        let state = &mut self.tasks[task];
        state.state = TaskState::Ready;
        state.vcpu = vcpu;
        // A sleeper gains at most half a slice over those that did not sleep.
        state.vruntime = state.vruntime.max(cpu.floor.saturating_sub(self.costs.slice / 2));
        cpu.ready.push(task);
    }

    /// Decides what a vCPU runs; false if there is nothing.
    pub(super) fn schedule(&mut self, vcpu: usize) -> bool {
        let cpu = &mut self.cpus[vcpu];
        cpu.reschedule = false;
        let before = cpu.current.take();
        if let Some(current) = before {
            self.tasks[current].state = TaskState::Ready;
            if self.allowed(current).contains(vcpu) {
                self.cpus[vcpu].ready.push(current);
            } else {
                self.send_away(current, vcpu, vcpu);
            }
        }
        let cpu = &self.cpus[vcpu];
        if cpu.ready.is_empty() && !self.pull(vcpu) {
            return false;
        }
        let cpu = &self.cpus[vcpu];
        let order = |place: &usize| {
            let number = cpu.ready[*place];
            let task = &self.tasks[number];
            match task.class {
                // Of equals the one that has waited longest.
                SchedClass::Fair { .. } => (Reverse(0), task.vruntime, *place),
                // Who was preempted goes on.
                SchedClass::Fifo { priority } if before == Some(number) => (Reverse(priority), 0, 0),
                SchedClass::Fifo { priority } | SchedClass::RoundRobin { priority } => {
                    (Reverse(priority), 0, *place)
                }
            }
        };
        let Some(place) = (0..cpu.ready.len()).min_by_key(order) else { return false };
        let cpu = &mut self.cpus[vcpu];
        let next = cpu.ready.remove(place);
        cpu.current = Some(next);
        let sharing = u64::try_from(cpu.ready.len()).unwrap_or(u64::MAX).saturating_add(1);
        // Everybody is to have a turn within three slices, but not for less than a quarter of one.
        cpu.slice = (self.costs.slice.saturating_mul(3) / sharing)
            .clamp(self.costs.slice / 4, self.costs.slice)
            .max(1);
        match (self.tasks[next].class, self.costs.request) {
            (SchedClass::Fifo { .. }, _) => cpu.slice = NEVER,
            (SchedClass::Fair { .. }, Some(request)) => cpu.slice = request,
            _ => {}
        }
        let resumes = std::mem::take(&mut cpu.halted);
        let task = &mut self.tasks[next];
        task.state = TaskState::Running;
        task.vcpu = vcpu;
        if cpu.loaded != Some(task.space) {
            cpu.loaded = Some(task.space);
            cpu.kernel = self.costs.switch;
            self.effects.push(Effect::Switch { vcpu, space: task.space });
        } else if resumes {
            self.effects.push(Effect::Resume { vcpu });
        }
        if std::mem::take(&mut task.woken) && task.io_bound {
            self.effects.push(Effect::Woke);
        }
        true
    }

    /// An idle vCPU takes a task from the one with the longest queue.
    fn pull(&mut self, vcpu: usize) -> bool {
        let movable = |other: &usize| {
            *other != vcpu
                && (self.isolation.is_none()
                    || self.cpus[*other].ready.iter().any(|task| self.allowed(*task).contains(vcpu)))
        };
        let longest = (0..self.cpus.len()).filter(movable).max_by_key(|other| {
            let cpu = &self.cpus[*other];
            (if cpu.current.is_some() { cpu.ready.len() } else { 0 }, usize::MAX - other)
        });
        let Some(longest) = longest else { return false };
        let cpu = &self.cpus[longest];
        if cpu.current.is_none() || cpu.ready.is_empty() {
            return false;
        }
        let movable = cpu.ready.iter().position(|task| self.allowed(*task).contains(vcpu));
        let Some(place) = movable else { return false };
        let task = self.cpus[longest].ready.remove(place);
        self.migrate(task, longest, vcpu);
        true
    }

    /// A vCPU with at least two tasks more than another gives one away.
    fn push_surplus(&mut self, vcpu: usize) {
        let load = |cpu: &super::Cpu| cpu.ready.len() + usize::from(cpu.current.is_some());
        let may = |ready: &usize, to: usize| self.allowed(*ready).contains(to);
        let ready = &self.cpus[vcpu].ready;
        // Without isolation only a few tasks of rt-app may not run everywhere.
        let target = |to: &usize| self.isolation.is_none() || ready.iter().any(|task| may(task, *to));
        let targets = (0..self.cpus.len()).filter(target);
        let Some(least) = targets.min_by_key(|other| load(&self.cpus[*other])) else { return };
        if load(&self.cpus[vcpu]) >= load(&self.cpus[least]) + 2 {
            let Some(place) = ready.iter().position(|task| may(task, least)) else { return };
            let task = self.cpus[vcpu].ready.remove(place);
            let was_idle = self.cpus[least].current.is_none();
            self.migrate(task, vcpu, least);
            if was_idle {
                self.effects.push(Effect::Ipi { from: vcpu, to: least });
            }
        }
    }

    /// Its virtual run time is taken along relative to those around it.
    pub(super) fn migrate(&mut self, task: usize, from: usize, to: usize) {
        let ahead = self.tasks[task].vruntime.saturating_sub(self.cpus[from].floor);
        self.tasks[task].vruntime = self.cpus[to].floor.saturating_add(ahead);
        self.enqueue(task, to);
    }
}
