//! Charging and handing out credits, in Xen's integer arithmetic.

use super::{Credit, Priority};
use crate::queue::Nanos;
use crate::scheduler::{Entity, Group, Host, Pcpu};

/// What a tick costs.
const PER_TICK: i64 = 100;
/// What one physical CPU earns in an accounting period, what a vCPU has at most, and what it owes at most if
/// ticks are charged.
const PER_PERIOD: i64 = 300;
/// What a vCPU owes at most if its run time is measured. An unlucky tick is forgiven by a floor, but what is
/// measured was really used: who is boosted may use it while OVER, or in one turn, for a stream arms a whole
/// slice with each decision. If it were forgiven, TAVS' "CPU fairness among guest domains is guaranteed for
/// all cases" (§5.2) would not hold without a PBratio.
const MEASURED_FLOOR: i64 = 10 * PER_PERIOD;

impl Credit {
    pub(super) fn accounting_period(&self) -> Nanos {
        self.tick.saturating_mul(u64::from(self.config.accounting_ticks))
    }

    /// A physical CPU's tick: charge, then hand out credits on the first one, then sort.
    pub(super) fn tick(&mut self, host: &mut Host, pcpu: Pcpu) {
        if let Some(current) = host.current(pcpu) {
            if self.config.fine_accounting {
                self.charge_measured(host, current);
            } else {
                self.vcpu(current).credit -= PER_TICK;
            }
            self.activate(current);
            let vcpu = self.vcpu(current);
            if vcpu.stored == Priority::Boost {
                vcpu.stored = Priority::Under;
            }
        }
        if pcpu.0 == 0 && !self.config.accounting_timer {
            self.ticks += 1;
            if self.ticks.is_multiple_of(u64::from(self.config.accounting_ticks)) {
                self.account(host);
            }
        }
        let state = &mut self.pcpus[pcpu.index()];
        if state.sorted != self.epoch {
            state.sorted = self.epoch;
            state.queue.sort();
        }
    }

    /// Charges what a vCPU has run since it was last charged, with fine accounting (TAVS §4.2: 10 credits for
    /// 1 ms).
    pub(super) fn charge_measured(&mut self, host: &Host, entity: Entity) {
        if !self.config.fine_accounting {
            return;
        }
        let unit = self.tick / PER_TICK.unsigned_abs();
        let vcpu = &mut self.vcpus[entity.index()];
        let credits = (host.ran(entity) - vcpu.charged) / unit.max(1);
        vcpu.charged += credits * unit;
        vcpu.credit = vcpu.credit.saturating_sub_unsigned(credits);
    }

    /// A vCPU that runs at a tick earns credits from now on. Measured charging changes what is paid, and not
    /// this: TAVS §4.2 says so of no more, and Xen, when it came to measure itself, left it to the ticks too.
    fn activate(&mut self, entity: Entity) {
        let vcpu = &mut self.vcpus[entity.index()];
        if std::mem::replace(&mut vcpu.active, true) {
            return;
        }
        let group = vcpu.group;
        let domain = &mut self.domains[group.index()];
        domain.active.insert(0, entity);
        if domain.active.len() == 1 {
            self.active.insert(0, group);
        }
    }

    /// Hands out the credits of a period: by weight among the domains with active vCPUs; what one does not
    /// need goes to those after it.
    pub(super) fn account(&mut self, host: &mut Host) {
        self.epoch += 1;
        let weights: i64 = self.active.iter().map(|group| self.domains[group.index()].weight).sum();
        let pcpus = i64::try_from(self.pcpus.len()).unwrap_or(i64::MAX);
        let mut total = PER_PERIOD.saturating_mul(pcpus) - self.balance.min(0);
        if weights == 0 {
            self.balance = 0;
            return;
        }
        let (mut left, mut balance, mut some_want_more) = (weights, 0, false);
        let mut place = 0;
        while let Some(group) = self.active.get(place).copied() {
            let domain = &self.domains[group.index()];
            let (weight, cap) =
                (domain.weight, domain.spec.cap.map(|cap| div_ceil(i64::from(cap) * PER_PERIOD, 100)));
            let vcpus = i64::try_from(domain.active.len()).unwrap_or(i64::MAX);
            left -= weight;
            let mut peak = vcpus * PER_PERIOD;
            if self.balance < 0 {
                peak += div_ceil(-self.balance * weight, weights);
            }
            peak = peak.min(cap.unwrap_or(i64::MAX));
            let mut fair = div_ceil(total * weight, weights);
            if fair < peak {
                some_want_more = true;
            } else {
                if left > 0 {
                    total += div_ceil((fair - peak) * weights, left);
                }
                if some_want_more {
                    // It has its chance at what others leave next time.
                    self.active[..=place].rotate_right(1);
                }
                fair = peak;
            }
            let each = div_ceil(fair, vcpus);
            let cap = cap.map(|cap| div_ceil(cap, vcpus));
            balance += self.pay(host, group, each, cap);
            place += 1;
            if self.domains[group.index()].active.is_empty() {
                self.active.retain(|other| *other != group);
                place -= 1;
            }
        }
        self.balance = balance;
    }

    /// Pays the vCPUs of a domain, and gives them the priorities that follow. Returns the sum of their
    /// credits.
    fn pay(&mut self, host: &mut Host, group: Group, each: i64, cap: Option<i64>) -> i64 {
        let mut balance = 0;
        let mut place = 0;
        let floor = if self.config.fine_accounting { MEASURED_FLOOR } else { PER_PERIOD };
        while let Some(entity) = self.domains[group.index()].active.get(place).copied() {
            place += 1;
            let vcpu = self.vcpu(entity);
            vcpu.credit += each;
            if vcpu.credit < 0 {
                vcpu.stored = Priority::Over;
                if cap.is_some_and(|cap| vcpu.credit < -cap) && !vcpu.parked {
                    self.park(host, entity);
                }
                let vcpu = self.vcpu(entity);
                vcpu.credit = vcpu.credit.max(-floor);
            } else {
                vcpu.stored = Priority::Under;
                if vcpu.parked {
                    self.unpark(host, entity);
                }
                let vcpu = self.vcpu(entity);
                if vcpu.credit > PER_PERIOD {
                    vcpu.credit = 0;
                    vcpu.active = false;
                    place -= 1;
                    self.domains[group.index()].active.remove(place);
                }
            }
            balance += self.vcpus[entity.index()].credit;
            let vcpu = &self.vcpus[entity.index()];
            if vcpu.queued {
                let (pcpu, priority) = (vcpu.pcpu, self.priority(entity));
                self.pcpus[pcpu.index()].queue.reprioritise(entity, priority);
            }
        }
        balance
    }

    /// A vCPU has used more than its domain's cap allows: it does not run until it has earned enough.
    fn park(&mut self, host: &mut Host, entity: Entity) {
        self.vcpu(entity).parked = true;
        if self.vcpus[entity.index()].queued {
            self.dequeue(entity);
        } else if let Some(pcpu) = host.running_on(entity) {
            host.reschedule(pcpu);
        }
    }

    /// It may run again, and is not boosted for it.
    fn unpark(&mut self, host: &mut Host, entity: Entity) {
        self.vcpu(entity).parked = false;
        if host.is_runnable(entity) && host.running_on(entity).is_none() {
            self.enqueue(entity, false);
            self.tickle(host, entity);
        }
    }
}

/// Division rounded up, of numbers that are not negative.
fn div_ceil(dividend: i64, divisor: i64) -> i64 {
    dividend.saturating_add(divisor - 1) / divisor
}
