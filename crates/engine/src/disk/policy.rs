//! What is submitted when, in which class.

use super::config::{Device, DiskConfig};
use super::device::{Flow, weight};
use super::identify::{Application, ApplicationExplain, Identifier};
use super::limiter::{Limiter, signed};
use super::queue::{Lane, Order, Queues, Turn};
use super::request::{Beyond, DiskClass, DiskOperation, DiskRequest, Finished, Submit, Verdict, Why};
use super::stream::Streams;
use super::whitelist::WhiteList;
use crate::event::{TaskId, Time, UserInput, VmId};
use crate::nanos::nanos;
use std::collections::{BTreeMap, HashMap};

/// The state machine between the requests of all VMs and one device.
///
/// Told what happens, it says with [`next`](Self::next) what to submit. After each call, and at
/// [`deadline`](Self::deadline), that is to be asked until there is nothing. The times of calls are not to go
/// back; if they do, that is as if no time had passed.
///
/// Any sequence of calls is legal. What guests say takes bounded memory; a request takes some until it is
/// completed, and a VM some until it is [forgotten](Self::forget).
#[derive(Debug)]
pub struct DiskPolicy {
    config: DiskConfig,
    device: Device,
    guests: BTreeMap<VmId, Identifier>,
    list: WhiteList,
    limiter: Limiter,
    queues: Queues,
    flow: Flow,
    streams: Streams,
    requests: HashMap<u64, Request>,
    /// `High` requests that are being served.
    high: u32,
    /// The arm stays where it is for somebody.
    stay: Option<Stay>,
    /// Whether VMs' limits decide.
    limited: bool,
    now: Time,
}

#[derive(Debug)]
struct Request {
    vm: VmId,
    vcpu: Option<u16>,
    operation: DiskOperation,
    application: Option<Application>,
    verdict: Verdict,
    lane: Lane,
    /// How it shares the device's time.
    weight: u64,
    /// Since it was submitted.
    service: Option<Service>,
}

#[derive(Clone, Copy, Debug)]
struct Service {
    since: Time,
    /// For the device to tell what it cost.
    passed: u64,
    /// What it was thought to cost.
    estimate: u64,
    order: Order,
    why: Why,
}

#[derive(Clone, Copy, Debug)]
struct Stay {
    vm: VmId,
    lane: Lane,
    class: DiskClass,
    from: Time,
    /// Until when it stays for this one if others of the same class wait,
    short: Time,
    /// and if they do not.
    until: Time,
}

impl DiskPolicy {
    /// A policy for a device of this kind.
    #[must_use]
    pub fn new(config: DiskConfig, device: Device) -> DiskPolicy {
        DiskPolicy {
            config,
            device,
            guests: BTreeMap::new(),
            list: WhiteList::default(),
            limiter: Limiter::default(),
            queues: Queues::default(),
            flow: Flow::default(),
            streams: Streams::default(),
            requests: HashMap::new(),
            high: 0,
            stay: None,
            limited: true,
            now: Time(0),
        }
    }

    fn advance(&mut self, at: Time) {
        self.now = self.now.max(at);
        self.limiter.advance(self.now, &self.config);
    }

    /// A person did something in a VM (§3.1.2).
    pub fn input(&mut self, vm: VmId, input: UserInput, at: Time) {
        self.advance(at);
        self.guests.entry(vm).or_default().input(input, self.now, &self.config, &mut self.list);
    }

    /// A guest says what one of its tasks is called (§3.2.2), of which 64 bytes are kept.
    pub fn named(&mut self, vm: VmId, task: TaskId, name: &str) {
        self.guests.entry(vm).or_default().named(task, name);
    }

    /// From now on a VM has this weight and this cap, in place of the configured ones (§3.2.1).
    pub fn set_limits(&mut self, vm: VmId, weight: u32, cap: u32) {
        self.limiter.set(vm, weight.min(cap), cap, self.now);
    }

    /// Whether VMs' limits decide (§3.2.1), as they do at first. Where nobody tells who asks, nothing comes
    /// first that could be limited: without limits no request is `Low`, and VMs share the device's time
    /// equally, whatever they had before.
    pub fn set_limited(&mut self, limited: bool) {
        self.limited = limited;
    }

    fn beyond(&self, vm: VmId) -> Option<Beyond> {
        self.limiter.beyond(vm).filter(|_| self.limited)
    }

    /// A VM is gone. Its requests that wait will not be submitted; those that were are still to be completed.
    pub fn forget(&mut self, vm: VmId) {
        self.requests.retain(|_, request| request.vm != vm || request.service.is_some());
        self.guests.remove(&vm);
        self.limiter.forget(vm);
        self.queues.forget(vm);
        self.streams.forget(vm);
        self.stay = self.stay.filter(|stay| stay.vm != vm);
    }

    /// A request came. Returns `false`, and does nothing, if one with this id waits or is being served.
    #[must_use = "a request that was not taken is never submitted"]
    pub fn arrive(&mut self, request: &DiskRequest) -> bool {
        if self.requests.contains_key(&request.id) {
            return false;
        }
        self.advance(request.at);
        let &DiskRequest { id, vm, asker, operation, .. } = request;
        let guest = self.guests.entry(vm).or_default();
        let task = asker.and_then(|asker| asker.task);
        let (application, verdict) = task.map_or((None, Verdict::Nobody), |task| {
            guest.request(task, operation, self.now, &self.config, &self.list)
        });
        let lane = match operation {
            _ if verdict.interactive() => Lane::Interactive,
            DiskOperation::Flush => Lane::Flush,
            _ => Lane::Ordinary,
        };
        self.limiter.asked(vm, self.now, &self.config);
        if self.stay.is_some_and(|stay| (stay.vm, stay.lane) == (vm, lane)) {
            self.move_on();
        }
        self.streams.came(vm, lane, self.now, nanos(self.config.idle));
        self.queues.push(vm, lane, id, self.now);
        let vcpu = asker.map(|asker| asker.vcpu);
        let weight = weight(request.bytes);
        let waits = Request { vm, vcpu, operation, application, verdict, lane, weight, service: None };
        self.requests.insert(id, waits);
        true
    }

    /// The next request to submit now, if there is one.
    pub fn next(&mut self, at: Time) -> Option<Submit> {
        self.advance(at);
        if !self.flow.has_room() {
            return None;
        }
        if self.stay.is_some_and(|stay| stay.until <= self.now) {
            self.move_on();
        }
        let turn = self.turn()?;
        if let Some(stay) = self.stay {
            // Another person waits less long for this one.
            let is_equal = turn.class == stay.class && stay.short <= self.now;
            if turn.class >= stay.class && !is_equal && turn.order != Order::Last {
                return None;
            }
            self.move_on();
        }
        // An arm is given requests of one VM at a time: it serves what it has before it can move, and whose
        // time that is would not be known.
        let apart = self.queues.leaves(&turn) && !self.flow.idle();
        if self.device == Device::Arm && apart {
            return None;
        }
        self.submit(&turn)
    }

    fn turn(&self) -> Option<Turn> {
        let limits = |vm| self.beyond(vm);
        let slice = (self.device == Device::Arm).then(|| nanos(self.config.slice));
        let all = self.queues.turn(limits, |_| false, slice)?;
        let keeps = |stay: &Stay| stay.class == DiskClass::High;
        if all.class != DiskClass::High && self.high == 0 && !self.stay.as_ref().is_some_and(keeps) {
            return Some(all);
        }
        let hold = nanos(self.config.hold_flush);
        self.queues.turn(limits, |since| self.now.since(since) < hold, slice)
    }

    fn submit(&mut self, turn: &Turn) -> Option<Submit> {
        let request = self.requests.get_mut(&turn.id)?;
        let beyond = match turn.class {
            DiskClass::High => None,
            DiskClass::Common => request.verdict.interactive().then_some(Beyond::Weight),
            DiskClass::Low => Some(Beyond::Cap),
        };
        let why = Why { verdict: request.verdict, beyond };
        let passed = self.flow.submitted(self.now, request.weight);
        let Turn { id, vm, class, estimate, order, .. } = *turn;
        request.service = Some(Service { since: self.now, passed, estimate, order, why });
        if let (Some(application), Some(guest)) = (&request.application, self.guests.get_mut(&vm)) {
            guest.served(application, class);
        }
        self.high += u32::from(class == DiskClass::High);
        self.queues.submitted(turn);
        self.queues.charge(vm, order, signed(estimate), &self.config);
        self.limiter.submitted(vm, class, estimate, &self.config);
        Some(Submit { id, vm, class, why })
    }

    /// The device has served a request. `None` if it was not submitted.
    pub fn complete(&mut self, id: u64, at: Time) -> Option<Finished> {
        self.requests.get(&id)?.service?;
        self.advance(at);
        let Request { vm, vcpu, operation, lane, weight, service, .. } = self.requests.remove(&id)?;
        let Service { since, passed, estimate, order, why } = service?;
        let class = why.class();
        // A flush takes as long as what was written before, however little the device has to do: it is not
        // late.
        let since = if operation == DiskOperation::Flush { self.now } else { since };
        let cost_ns = self.flow.completed(self.now, (since, passed, weight), self.device, &self.config);
        let more = signed(cost_ns).saturating_sub(signed(estimate));
        self.queues.charge(vm, order, more, &self.config);
        self.queues.completed(vm, cost_ns);
        self.limiter.corrected(vm, class, more, &self.config);
        self.high -= u32::from(class == DiskClass::High);
        if self.guests.contains_key(&vm) && !self.queues.waits(vm, lane) {
            self.streams.emptied(vm, lane, self.now);
            self.perhaps_stay(vm, lane, why.verdict);
        }
        let read = class == DiskClass::High && operation == DiskOperation::Read;
        Some(Finished { vm, class, cost_ns, boost: vcpu.filter(|_| read) })
    }

    /// The arm stays for who was served last, if the next request can be expected soon. Even if that will be
    /// far: whose turn would end with each answer would have one request for each slice of the others.
    fn perhaps_stay(&mut self, vm: VmId, lane: Lane, of: Verdict) {
        let idle = nanos(self.config.idle);
        let beyond = self.beyond(vm);
        let high = lane == Lane::Interactive && beyond.is_none();
        let goes_on = high || self.queues.in_slice(vm, nanos(self.config.slice));
        if self.device == Device::Flash || !self.flow.idle() || !goes_on || !self.streams.soon(vm, lane, idle)
        {
            return;
        }
        let class = match beyond {
            Some(Beyond::Cap) => DiskClass::Low,
            _ if high => DiskClass::High,
            _ => DiskClass::Common,
        };
        // Of a program for which most is soon there some requests come later, and to leave would cost more. A
        // player asks again when its next frames are due, however soon it could.
        let long = high && of != Verdict::Player;
        let long = if long { idle.max(nanos(self.config.idle_high)) } else { idle };
        let (short, until) = (self.now.plus(idle), self.now.plus(long));
        self.stay = Some(Stay { vm, lane, class, from: self.now, short, until });
    }

    /// It does not stay any longer. Whom it stayed for is charged if somebody else could have been served.
    fn move_on(&mut self) {
        let Some(stay) = self.stay.take() else { return };
        if let Some(turn) = self.turn().filter(|turn| turn.vm != stay.vm) {
            let order = if turn.class > stay.class { Order::First } else { Order::Alone };
            let time = signed(self.now.since(stay.from));
            self.queues.charge(stay.vm, order, time, &self.config);
            self.limiter.corrected(stay.vm, stay.class, time, &self.config);
        }
    }

    /// When [`next`](Self::next) may have something to submit although nothing happened.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let hold = nanos(self.config.hold_flush);
        let flushes = self.queues.flushes().map(|since| since.plus(hold));
        let stay = self.stay.into_iter().flat_map(|stay| [stay.short, stay.until]);
        let room = self.flow.has_room();
        flushes.chain(stay).filter(|at| room && *at > self.now).min()
    }

    /// Why a request that waits would now have the class that it has, or why one that is being served has
    /// it; `None` if there is no such request.
    #[must_use]
    pub fn why(&self, id: u64) -> Option<Why> {
        let request = self.requests.get(&id)?;
        let beyond = self.beyond(request.vm);
        let decides = |beyond: &Beyond| *beyond == Beyond::Cap || request.verdict.interactive();
        let waits = Why { verdict: request.verdict, beyond: beyond.filter(decides) };
        Some(request.service.map_or(waits, |service| service.why))
    }

    /// What is known of a VM's applications, who asked last first.
    #[must_use]
    pub fn applications(&self, vm: VmId) -> Vec<ApplicationExplain> {
        self.guests.get(&vm).map_or_else(Vec::new, |guest| guest.explain(&self.config, &self.list))
    }
}
