//! The guest's part in vAMP (§3.3): its daemon keeps background work and everything else on disjoint vCPUs.

use super::kernel::Isolation;
use super::{Effect, GuestKernel};
use crate::program::Affinity;
use frontdesk_engine::TaskId;

impl GuestKernel {
    /// The vCPUs that a task may use now.
    pub(super) fn allowed(&self, task: usize) -> Affinity {
        let task = &self.tasks[task];
        let Some(Isolation { background, fast }) = &self.isolation else { return task.affinity };
        let own = if background.contains(&task.space) { fast.others() } else { *fast };
        // One that has a place of its own keeps it.
        let both = task.affinity.and(own);
        if (0..self.cpus.len()).any(|vcpu| both.contains(vcpu)) { both } else { task.affinity }
    }

    /// From now on background work leaves so many vCPUs, the last ones, to everything else, which uses no
    /// others. At least one is left to each.
    pub(crate) fn isolate(&mut self, background: Vec<TaskId>, fast: usize) {
        let first = self.cpus.len().saturating_sub(fast.max(1)).max(1);
        let isolation = Some(Isolation { background, fast: Affinity::from(first) });
        if self.isolation != isolation {
            self.isolation = isolation;
            self.sort_out();
        }
    }

    /// Everybody may run where it always may.
    pub(crate) fn release(&mut self) {
        self.isolation = None;
    }

    /// Tasks that wait on a vCPU which is not theirs go to one that is; those that run follow when they are
    /// interrupted.
    fn sort_out(&mut self) {
        let by = self.cpus.len() - 1;
        for vcpu in 0..self.cpus.len() {
            let ready = self.cpus[vcpu].ready.iter().copied();
            let strangers = ready.filter(|task| !self.allowed(*task).contains(vcpu));
            for task in strangers.collect::<Vec<_>>() {
                self.cpus[vcpu].ready.retain(|ready| *ready != task);
                self.send_away(task, vcpu, by);
            }
            if self.cpus[vcpu].current.is_some_and(|task| !self.allowed(task).contains(vcpu)) {
                self.effects.push(Effect::Ipi { from: by, to: vcpu });
            }
        }
    }

    /// Moves a task that may not stay on a vCPU to the one of its own with the fewest. `by` does it.
    pub(super) fn send_away(&mut self, task: usize, from: usize, by: usize) {
        let to = self.roomiest(task, from);
        self.migrate(task, from, to);
        if self.cpus[to].current.is_none() {
            self.effects.push(Effect::Ipi { from: by, to });
        }
    }

    /// The vCPU of its own on which the fewest tasks are; `otherwise` if it has none.
    pub(super) fn roomiest(&self, task: usize, otherwise: usize) -> usize {
        let allowed = self.allowed(task);
        let load = |vcpu: &usize| {
            let cpu = &self.cpus[*vcpu];
            cpu.ready.len() + usize::from(cpu.current.is_some())
        };
        let own = (0..self.cpus.len()).filter(|vcpu| allowed.contains(*vcpu));
        own.min_by_key(load).unwrap_or(otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Step;
    use frontdesk_scenario::GuestCosts;

    const WORK: [Step; 1] = [Step::Compute(1_000_000_000)];

    /// Runs each vCPU for so long, as long as it has something to do.
    fn run(guest: &mut GuestKernel, now: u64, time: u64) {
        for vcpu in 0..guest.cpus.len() {
            let mut left = time;
            while guest.wants(vcpu) {
                let step = guest.next(vcpu).min(left);
                guest.ran(vcpu, step);
                left -= step;
                guest.reached(vcpu, now + time - left);
                if left == 0 {
                    break;
                }
            }
            for effect in std::mem::take(&mut guest.effects) {
                if let Effect::Ipi { to, .. } = effect {
                    guest.cpus[to].pending.push_back(super::super::Interrupt::Reschedule);
                }
            }
        }
    }

    #[test]
    fn background_work_and_the_rest_are_on_vcpus_of_their_own_until_released() {
        let mut guest = GuestKernel::new(4, &GuestCosts::default());
        guest.add_threads(0, &[WORK.to_vec(), WORK.to_vec(), WORK.to_vec(), WORK.to_vec()]);
        let others = [guest.add_task(1, &WORK, false), guest.add_task(1, &WORK, false)];
        let background = guest.tasks[0].space;
        run(&mut guest, 0, 10_000_000);
        guest.isolate(vec![background], 1);
        for turn in 1..20 {
            run(&mut guest, turn * 10_000_000, 10_000_000);
        }
        let place = |guest: &GuestKernel, task: usize| guest.tasks[task].vcpu;
        assert!((0..4).all(|task| place(&guest, task) < 3));
        assert!(others.iter().all(|task| place(&guest, *task) == 3));
        guest.release();
        let everywhere = |task: usize| (0..4).all(|vcpu| guest.allowed(task).contains(vcpu));
        assert!((0..guest.tasks.len()).all(everywhere));
    }

    #[test]
    fn at_least_one_vcpu_is_left_to_background_work() {
        let mut guest = GuestKernel::new(2, &GuestCosts::default());
        let task = guest.add_task(0, &WORK, false);
        guest.isolate(vec![guest.tasks[task].space], 7);
        assert!(guest.allowed(task).contains(0) && !guest.allowed(task).contains(1));
    }
}
