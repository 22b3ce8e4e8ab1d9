//! The loop: waits, feeds the engine what has happened, and carries out what it decides.

use super::DaemonError;
use super::flood;
use super::followed::EngageError;
use super::state::{Daemon, TICK, Until};
use super::token::Token;
use crate::clock::monotonic;
use frontdesk_engine::{Action, ActionKind, Boost, BoostTarget, Event, EventKind, Time, VmId};
use frontdesk_record::Record;
use frontdesk_ring::Interest;
use rustix::event::{Timespec, epoll};

/// While next to nothing happens, at least this often.
const IDLE_TICK: u64 = 80_000_000;
/// So many events in a tick are many.
const MANY: usize = 32;
/// And so many even while nobody is boosted, for the rings must not get full.
const FLOOD: usize = 1024;
/// Who was boosted within this is likely to be boosted again; if nobody was, the first one after it may wait
/// for a pile.
const LIVELY: u64 = 10_000_000_000;

/// How often extensions in guests are told of episodes, at most.
const TELL: u64 = 10_000_000;

/// How long the guardian waits for the loop to come back, and how often it does at least, in nanoseconds.
/// Loading programs for KVM into the kernel takes part of it, on a slow host.
const PROMISE: u64 = 3_000_000_000;
const BACK: u64 = 500_000_000;

/// How often the nice values of vCPUs are looked at.
const LOOK: u64 = 1_000_000_000;

/// How often the engine is told what threads run that are not followed one by one, while it settles nothing.
const OTHERS: u64 = 100_000_000;

impl Daemon {
    pub(super) fn follow_until(&mut self, until: Until) -> Result<(), DaemonError> {
        let result = self.turn_until(until);
        self.promised = Time(0);
        if let Some(promise) = &self.promise {
            promise.until(0);
        }
        result
    }

    fn turn_until(&mut self, until: Until) -> Result<(), DaemonError> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut notification = false;
            for event in &events {
                match Token::decode(event.data) {
                    Some(Token::Stop) => return Ok(()),
                    Some(Token::Notification) => notification = true,
                    Some(Token::Control) => self.answer()?,
                    Some(Token::Bpf) | None => {}
                    Some(Token::Identities) => self.identities.clear_wakes()?,
                    Some(Token::Guardian) => {
                        return self.guardian.as_ref().map_or(Ok(()), |guardian| Err(guardian.dead().into()));
                    }
                    Some(Token::Death(vm)) => self.vm_ended(vm)?,
                }
            }
            self.handled = 0;
            // After arming the rings are looked at once more, for switches that came before.
            self.turn()?;
            while self.identities.arm() {
                self.turn()?;
            }
            let lively = self.last_boost.is_some_and(|boost| monotonic().since(boost) < LIVELY);
            let many = if lively { MANY } else { FLOOD };
            // Few in a moment may be many in a tick.
            let waited = monotonic().since(self.emptied) >= self.tick;
            self.emptied = monotonic();
            self.tick = match self.handled >= many {
                true => TICK,
                false if waited => (self.tick * 2).min(IDLE_TICK),
                false => self.tick,
            };
            if notification && self.take_notifications()? && until == Until::Settled {
                return Ok(());
            }
            self.tell_extensions();
            self.check_threads()?;
            self.look_at_weights()?;
            self.grant()?;
            self.supervisor.alive(monotonic());
            self.tell_disks();
            self.promise();
        }
    }

    /// Promises the guardian to be back: if the loop hangs, it gives the threads that are boosted back what
    /// they had.
    fn promise(&mut self) {
        let now = monotonic();
        if let Some(promise) = self.promise.as_ref().filter(|_| self.promised.0 < now.plus(PROMISE - BACK).0)
        {
            self.promised = now.plus(PROMISE);
            promise.until(self.promised.0);
        }
    }

    /// Tells the extensions in guests who is background work in an episode.
    fn tell_extensions(&mut self) {
        let now = monotonic();
        if now.since(self.told_extensions) < TELL {
            return;
        }
        self.told_extensions = now;
        let extensions: Vec<VmId> = self.identities.extensions().collect();
        for vm in extensions {
            let asymmetric = self.engine.asymmetric(vm);
            self.identities.tell_of_episode(vm, asymmetric.as_ref(), now);
        }
    }

    /// Tells the engine of vCPUs that somebody has given other nice values by hand.
    fn look_at_weights(&mut self) -> Result<(), DaemonError> {
        let now = monotonic();
        if now.since(self.looked) < LOOK {
            return Ok(());
        }
        self.looked = now;
        let ids: Vec<VmId> =
            self.vms.iter().filter(|vm| vm.control.is_some() && !vm.reserved).map(|vm| vm.id).collect();
        ids.into_iter().try_for_each(|id| self.tell_vcpu_weights(id))
    }

    /// Time until the engine or the rings want attention.
    fn timeout(&self) -> Timespec {
        let next = [self.engine.next_deadline(), self.identities.next_due()].into_iter().flatten().min();
        let deadline = next.map_or(self.tick, |deadline| deadline.since(monotonic()));
        let nanos = i64::try_from(deadline.min(self.tick)).unwrap_or(0);
        Timespec { tv_sec: 0, tv_nsec: nanos }
    }

    /// Feeds the engine what has happened and applies what it decides.
    fn turn(&mut self) -> Result<(), DaemonError> {
        let began = monotonic();
        self.bpf.drain(&mut self.pending)?;
        self.identities.drain(began, &mut self.pending)?;
        self.pending.sort_by_key(|event| event.at);
        // Sources are drained one after the other: what is later than the first drain may have company that
        // we have not seen yet, and waits for the next turn.
        flood::bound(&mut self.pending, flood::MOST, began);
        self.pending.sort_by_key(|event| event.at);
        let ready = self.pending.partition_point(|event| event.at <= began);
        for index in 0..ready {
            let event = self.pending[index];
            self.recordings.push(|| Record::Event(event));
            self.engine.on_event(&event);
            self.tally.event();
            self.apply()?;
            self.event_handled(&event);
        }
        self.pending.drain(..ready);
        self.handled += ready;
        let time = monotonic();
        // Now, for a packet that is to be answered does not wait for it.
        for (vm, count) in self.bpf.take_lost()?.into_iter().chain(self.identities.take_lost()?) {
            self.pending.push(Event { at: time, kind: EventKind::Lost { vm: Some(vm), count } });
        }
        self.tell_others(began, time)?;
        if self.engine.next_deadline().is_some_and(|deadline| deadline <= time) {
            self.recordings.push(|| Record::Deadline(time));
            self.engine.on_deadline(time);
            self.apply()?;
        }
        self.mandate();
        self.record_decisions();
        self.recordings.tick(time);
        Ok(())
    }

    /// Tells the engine what threads of VMs ran that are not followed one by one: before it settles, and now
    /// and then. What happened since `began` is for the next turn, and must not come late.
    fn tell_others(&mut self, began: Time, now: Time) -> Result<(), DaemonError> {
        let settles = self.engine.next_settlement().is_some_and(|next| next <= now);
        if !settles && now.since(self.told_others) < OTHERS {
            return Ok(());
        }
        self.told_others = now;
        let mut ran = Vec::new();
        self.bpf.take_others(&mut ran)?;
        for kind in ran {
            let event = Event { at: began, kind };
            self.recordings.push(|| Record::Event(event));
            self.engine.on_event(&event);
        }
        self.apply()
    }

    /// How long after its event an action that was just carried out has its effect.
    fn latency(&mut self, action: &Action) -> u64 {
        let now = monotonic().since(action.at);
        let ActionKind::Boost { vm, target: BoostTarget::Vcpu(vcpu), level } = action.kind else {
            return now;
        };
        if level == Boost::None {
            return now;
        }
        // The kernel may have done so before.
        self.threads.take_over(vm, vcpu, action.at).ok().flatten().unwrap_or(now)
    }

    pub(super) fn apply(&mut self) -> Result<(), DaemonError> {
        while let Some(action) = self.engine.poll_action() {
            let vm = action.kind.vm();
            let state = self.vms.iter_mut().find(|state| state.id == vm);
            let (Some(guardian), Some(state)) = (&self.guardian, state) else {
                self.recordings.push(|| Record::Discarded(action));
                continue;
            };
            let result = match action.kind {
                ActionKind::Boost { target, level, .. } => {
                    self.threads.boost(vm, target, level).map_err(EngageError::from)
                }
                ActionKind::Watch { vcpu, on, .. } => {
                    if on {
                        // With several vCPUs, whom an interrupt wakes may run on another one.
                        let interrupts = state.qemu.vcpus.len() > 1;
                        self.identities.watch(vm, vcpu, Interest { tasks: true, interrupts });
                    } else {
                        self.identities.unwatch(vm, vcpu);
                    }
                    Ok(())
                }
                ActionKind::Weight { vcpu, permille, .. } => {
                    self.threads.weigh(vm, vcpu, permille).map_err(EngageError::from)
                }
                ActionKind::Share { permille, .. } => state
                    .control
                    .as_mut()
                    .map_or(Ok(()), |control| control.share.set_permille(permille, guardian))
                    .map_err(EngageError::from),
            };
            match result {
                Ok(()) => {
                    let latency_ns = self.latency(&action);
                    self.tally.applied(&action, latency_ns);
                    if matches!(action.kind, ActionKind::Boost { .. }) {
                        self.last_boost = Some(action.at);
                        self.reconsider_mandate(vm);
                    }
                    self.recordings.push(|| Record::Applied { action, latency_ns });
                }
                Err(EngageError::Vm(reason)) => {
                    self.recordings.push(|| Record::Discarded(action));
                    self.disengage(vm, reason)?;
                }
                Err(EngageError::Daemon(error)) => return Err(error),
            }
        }
        Ok(())
    }
}
