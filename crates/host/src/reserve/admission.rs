//! The thread that admits reservations and takes hold of their targets.

use super::ReserveMechanism;
use super::fair::{FairServerError, FairServers};
use super::reserved::ReservedTarget;
use super::reserved_group::ReservedGroup;
use super::running::{Running, StartError};
use super::target::{Found, VmThreads};
use super::threads::{ReservedProcess, TakeError};
use super::trace::TraceSource;
use super::{AdmissionRequest, ReserveSettings, deadline, stats};
use crate::clock::monotonic;
use crate::notification::{Mailbox, Notification};
use crate::wake::Wake;
use frontdesk_control_protocol::{self as control, Answer, Query, Refusal, RefusalKind, Reserve, Target};
use frontdesk_engine::Time;
use frontdesk_engine::reservation::{Admission, Member, Reservation, TargetId, WHOLE_CPU};
use frontdesk_guardian::Guardian;
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_linux::{online_cpus, realtime};
use frontdesk_probes::meter::SLOTS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// Above the targets, that a request is answered while they run, and above the daemon's loop, that waits for
/// nothing.
const PRIORITY: u32 = 51;
/// What the dispatcher takes of a CPU in each period of a member, in nanoseconds: one decision when it
/// begins, and one when its slice ends, each as long as on a slow virtual machine. Where the kernel decides,
/// the dispatcher comes after the members.
pub(super) fn deciding_ns(mechanism: ReserveMechanism) -> u64 {
    if mechanism == ReserveMechanism::Deadline { 0 } else { 60_000 }
}

/// How often targets are looked at for threads that came and went unheard.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The admission thread.
pub(super) struct AdmissionThread {
    pub(super) mechanism: ReserveMechanism,
    /// What the group of all that has reservations may use of each CPU in real time.
    pub(super) real_time: f64,
    /// Where the daemon's loop hears which VMs have reservations.
    pub(super) mailbox: Mailbox,
    /// How its recordings hear of decisions.
    pub(super) trace: TraceSource,
    pub(super) hierarchy: Hierarchy,
    pub(super) guardian: Arc<Guardian>,
    /// The daemon and its guardian.
    pub(super) own: Vec<i32>,
    pub(super) own_cpus: Vec<u16>,
    /// What may be reserved of each CPU.
    pub(super) capacity: u64,
    pub(super) cpus: Vec<u16>,
    pub(super) admission: Admission,
    pub(super) next: u32,
    pub(super) targets: Vec<ReservedTarget>,
    /// Targets that ended by themselves, and when.
    pub(super) ended: VecDeque<(u64, control::Reservation)>,
    pub(super) running: Option<Running>,
    /// The group of all that has reservations, once it was made; it stays until the daemon ends.
    pub(super) reserved_group: Option<Option<ReservedGroup>>,
    /// Whether it has its real time.
    pub(super) group_open: bool,
    /// Those of the kernel that are changed meanwhile.
    pub(super) fair_servers: FairServers,
    /// When the last reservation went, in nanoseconds.
    pub(super) emptied: u64,
    /// When threads that were not heard of were last looked for.
    pub(super) looked: Time,
    /// Requests for reservations so far.
    pub(super) asked: u64,
}

impl AdmissionThread {
    pub(super) fn new(
        settings: &ReserveSettings,
        own_cpus: &[u16],
        hierarchy: Hierarchy,
        guardian: Arc<Guardian>,
        mailbox: Mailbox,
        trace: TraceSource,
    ) -> std::io::Result<AdmissionThread> {
        let online = online_cpus()?;
        let wanted = |cpu: &u16| settings.cpus.is_empty() || settings.cpus.contains(cpu);
        let cpus: Vec<u16> = online.into_iter().filter(wanted).collect();
        let spare = Duration::from_nanos(WHOLE_CPU).mul_f64(settings.spare);
        let spare = u64::try_from(spare.as_nanos()).unwrap_or(WHOLE_CPU);
        let mechanism = settings.mechanism.on(&hierarchy);
        let own = [std::process::id(), guardian.pid()].map(|pid| i32::try_from(pid).unwrap_or(0));
        Ok(AdmissionThread {
            mechanism,
            real_time: settings.real_time(),
            mailbox,
            trace,
            hierarchy,
            guardian,
            own: own.into(),
            own_cpus: own_cpus.into(),
            capacity: WHOLE_CPU.saturating_sub(spare),
            admission: Admission::new(&cpus, spare, deciding_ns(mechanism)),
            cpus,
            next: 0,
            targets: Vec::new(),
            ended: VecDeque::new(),
            running: None,
            reserved_group: None,
            group_open: false,
            fair_servers: FairServers::default(),
            emptied: 0,
            looked: Time(0),
            asked: 0,
        })
    }

    /// Serves until its owner has gone.
    pub(super) fn run(mut self, orders: &Receiver<AdmissionRequest>, wake: &Wake) {
        if let Err(error) = realtime::enter(PRIORITY, &[]) {
            tracing::warn!("requests for reservations may wait: {error}");
        }
        loop {
            self.wait(wake);
            wake.take();
            self.follow_births();
            self.look();
            self.close_reserved_group();
            loop {
                match orders.try_recv() {
                    Ok(AdmissionRequest::Consider(request, vms)) => {
                        let Query::Reserve(reserve) = &request.query else { continue };
                        match self.consider(reserve, &vms) {
                            Ok(()) => self.mailbox.post(Notification::Admissible(request)),
                            Err(refusal) => request.answer(Err(refusal)),
                        }
                    }
                    Ok(AdmissionRequest::Ask(request, vms)) => {
                        let answer = self.answer(&request.query, &vms);
                        self.asked += u64::from(matches!(request.query, Query::Reserve(_)));
                        if let Query::Reserve(_) | Query::Release { .. } = &request.query {
                            self.tell_reserved();
                        }
                        request.answer(answer);
                    }
                    Ok(AdmissionRequest::Vms(vms)) => self.renew(&vms),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        // While the kernel lets us; otherwise the guardian does.
                        let _ = self.fair_servers.restore(&self.guardian);
                        return;
                    }
                }
            }
        }
    }

    fn wait(&self, wake: &Wake) {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        if let Some(running) = &self.running {
            fds.push(PollFd::from_borrowed_fd(running.births.fd(), PollFlags::IN));
        }
        let processes = self.targets.iter().flat_map(|held| &held.processes);
        fds.extend(processes.map(|process| PollFd::new(process.pidfd(), PollFlags::IN)));
        // A signal may end it early, too: the caller looks at everything anyway.
        let _ = poll(&mut fds, (self.group_open || !self.targets.is_empty()).then_some(&LOOK));
    }

    fn answer(&mut self, query: &Query, vms: &[VmThreads]) -> Result<Answer, Refusal> {
        let one = |reservation| Ok(Answer::Reservation(Box::new(reservation)));
        match query {
            Query::Reserve(reserve) => one(self.reserve(reserve, vms)?),
            Query::Release { target } => {
                let index = self.index_of(target)?;
                let told = self.tell(&self.targets[index], &self.reports());
                self.release(index);
                one(told)
            }
            Query::Pause { target } => one(self.pause(target, true)?),
            Query::Resume { target } => one(self.pause(target, false)?),
            Query::Reservations {} => Ok(Answer::Reservations(Box::new(self.list()))),
            Query::Status { .. } | Query::Record {} | Query::Targets {} => {
                Err(Refusal::new(RefusalKind::Malformed, "this is not about a reservation"))
            }
        }
    }

    fn index_of(&self, target: &Target) -> Result<usize, Refusal> {
        self.targets.iter().position(|held| held.target == *target).ok_or_else(|| {
            let message = format!("{target} has no reservation; `frontdesk list` tells which have");
            Refusal::new(RefusalKind::NotReserved, message)
        })
    }

    fn reserve(&mut self, reserve: &Reserve, vms: &[VmThreads]) -> Result<control::Reservation, Refusal> {
        let &Reserve { ref target, period_ns, slice_ns, hard, phase_ns } = reserve;
        let reservation = Reservation { period_ns, slice_ns, hard, phase_ns };
        let index = match self.index_of(target) {
            Ok(index) => self.change(index, reservation)?,
            Err(_) => self.begin(target, reservation, vms)?,
        };
        let reports = self.reports();
        // The controller has answered: the members are scheduled, and it is itself.
        if let Err(error) = self.lower_fair_servers() {
            tracing::warn!("above what the kernel's fair server leaves, whole periods will be lost: {error}");
        }
        Ok(self.tell(&self.targets[index], &reports))
    }

    fn lower_fair_servers(&mut self) -> Result<(), FairServerError> {
        self.fair_servers.lower(&self.cpus, 1.0 - self.real_time, &self.guardian)
    }

    /// Gives another reservation to a target that has one.
    fn change(&mut self, index: usize, reservation: Reservation) -> Result<usize, Refusal> {
        let held = &mut self.targets[index];
        let admitted = self.admission.admit(held.id, reservation, held.slots.len());
        let cpus = admitted.map_err(|error| stats::refusal(&error, self.capacity))?;
        let changed = held.reservation != reservation;
        held.reservation = reservation;
        if reservation.hard {
            held.may_stop(&self.guardian).map_err(|error| failed(&error))?;
        }
        let moved = cpus != held.cpus;
        held.cpus = cpus;
        if moved && self.mechanism != ReserveMechanism::Deadline {
            held.pin();
            self.see_all_switch(index);
        }
        if changed {
            self.targets[index].since = monotonic();
        }
        if let Err(refusal) = self.tell_controllers(index) {
            self.release(index);
            return Err(refusal);
        }
        Ok(index)
    }

    /// Whether a request would be refused, as things are. Nothing is changed.
    fn consider(&self, reserve: &Reserve, vms: &[VmThreads]) -> Result<(), Refusal> {
        let &Reserve { ref target, period_ns, slice_ns, hard, phase_ns } = reserve;
        let reservation = Reservation { period_ns, slice_ns, hard, phase_ns };
        let (id, members) = match self.index_of(target) {
            Ok(index) => (self.targets[index].id, self.targets[index].slots.len()),
            Err(_) => (TargetId(self.next), self.examine(target, reservation, vms)?.members()),
        };
        let admitted = self.admission.clone().admit(id, reservation, members);
        admitted.map(drop).map_err(|error| stats::refusal(&error, self.capacity))
    }

    /// Finds a new target, and whether it can have such a reservation.
    fn examine(
        &self,
        target: &Target,
        reservation: Reservation,
        vms: &[VmThreads],
    ) -> Result<Found, Refusal> {
        reservation.validate().map_err(|error| stats::refusal(&error.into(), self.capacity))?;
        let found = Found::find(target, vms, &self.own, &self.hierarchy)?;
        // Too many threads are refused here, before anything is changed for them.
        found.threads()?;
        for other in &self.targets {
            if let Some(both) = other.processes.iter().find(|process| found.processes.contains(&process.pid))
            {
                let message = format!("process {} has a reservation already, as {}", both.pid, other.target);
                return Err(Refusal::new(RefusalKind::Overlapping, message));
            }
        }
        if self.mechanism == ReserveMechanism::Deadline {
            deadline::suits(&found, reservation)?;
        }
        Ok(found)
    }

    /// Takes hold of a target.
    pub(super) fn begin(
        &mut self,
        target: &Target,
        reservation: Reservation,
        vms: &[VmThreads],
    ) -> Result<usize, Refusal> {
        let found = self.examine(target, reservation, vms)?;
        let id = TargetId(self.next);
        self.next = self.next.wrapping_add(1);
        let admitted = self.admission.admit(id, reservation, found.members());
        let cpus = admitted.map_err(|error| stats::refusal(&error, self.capacity))?;
        let slots = self.free_slots(found.members());
        let (target, name) = (target.clone(), found.name.clone());
        let mut held = ReservedTarget {
            id,
            target,
            found,
            reservation,
            since: Time(0),
            cpus,
            slots,
            processes: Vec::new(),
            threads: Vec::new(),
            pins: self.mechanism != ReserveMechanism::Deadline,
            pinned: false,
            paused: false,
            trouble: None,
        };
        let taken = self.take(&mut held);
        self.targets.push(held);
        let index = self.targets.len() - 1;
        if let Err(refusal) = taken {
            self.release(index);
            return Err(refusal);
        }
        self.see_all_switch(index);
        self.targets[index].since = monotonic();
        if let Err(refusal) = self.tell_controllers(index) {
            self.release(index);
            return Err(refusal);
        }
        tracing::info!(target = %self.targets[index].target, name, %reservation, cpus = ?self.targets[index].cpus, "reserved");
        Ok(index)
    }

    fn free_slots(&self, count: usize) -> Vec<usize> {
        let taken: Vec<usize> = self.targets.iter().flat_map(|held| held.slots.iter().copied()).collect();
        // There are more slots than all CPUs can have members.
        (0..SLOTS).filter(|slot| !taken.contains(slot)).take(count).collect()
    }

    /// Records what the target's threads have, and takes them in.
    fn take(&mut self, held: &mut ReservedTarget) -> Result<(), Refusal> {
        self.start()?;
        let Some(running) = &self.running else { return Ok(()) };
        let reserved_group = self.reserved_group.as_ref().and_then(Option::as_ref);
        for (member, slot) in held.slots.iter().enumerate() {
            let parts = held.found.threads()?;
            let ready = parts.iter().any(|part| part.member == member && part.thread.is_runnable());
            running.meter.slots.open(*slot, ready, held.found.family);
        }
        for pid in held.found.processes.clone() {
            let Some(process) = ReservedProcess::take(pid) else { continue };
            held.processes.push(process);
        }
        held.take_threads(&running.meter, &self.guardian).map_err(|error| failed(&error))?;
        for process in &mut held.processes {
            if let Some(reserved_group) = reserved_group {
                process
                    .move_to(reserved_group.group(), &self.hierarchy, &self.guardian)
                    .map_err(|error| failed(&error))?;
            }
        }
        if held.reservation.hard {
            held.may_stop(&self.guardian).map_err(|error| failed(&error))?;
        }
        // The kernel refuses `SCHED_DEADLINE` to a thread that cannot run everywhere.
        if self.mechanism != ReserveMechanism::Deadline {
            held.pin();
        }
        Ok(())
    }

    /// Starts what runs while there are reservations.
    fn start(&mut self) -> Result<(), Refusal> {
        if self.reserved_group.is_none() {
            let reserved_group = match self.mechanism {
                ReserveMechanism::Deadline => None,
                _ => ReservedGroup::make(&self.hierarchy, self.real_time, &self.guardian)
                    .map_err(|error| failed(&error))?,
            };
            self.reserved_group = Some(reserved_group);
        }
        if !self.group_open {
            self.reserved_group
                .iter()
                .flatten()
                .try_for_each(ReservedGroup::open)
                .map_err(|error| failed(&error))?;
            self.group_open = true;
            // If that is refused, it is tried again.
            let _ = self.lower_fair_servers();
        }
        if self.running.is_none() {
            // Those that can be reserved may come back later.
            let mut cpus = online_cpus().unwrap_or_default();
            cpus.extend(&self.cpus);
            cpus.sort_unstable();
            cpus.dedup();
            let running = Running::start(self.mechanism, cpus, &self.guardian, &self.trace);
            self.running = Some(running.map_err(|error| cannot_keep(&error))?);
        }
        Ok(())
    }

    /// Makes the members be counted: one that runs already is seen when it is switched to the next time, so
    /// it is switched from now, by running in its place.
    fn see_all_switch(&self, index: usize) {
        // Those under `SCHED_DEADLINE` may be anywhere.
        let cpus = match self.mechanism {
            ReserveMechanism::Deadline => &self.cpus,
            _ => &self.targets[index].cpus,
        };
        for cpu in cpus {
            if let Err(error) = realtime::pin(&[*cpu]) {
                tracing::debug!("a member is counted from its next switch on: {error}");
            }
        }
        let _ = realtime::pin(&self.own_cpus);
    }

    fn tell_controllers(&mut self, index: usize) -> Result<(), Refusal> {
        let (Some(running), held) = (&mut self.running, &self.targets[index]) else { return Ok(()) };
        for (index, (&cpu, &slot)) in (0..).zip(held.cpus.iter().zip(&held.slots)) {
            let member = Member { target: held.id, index };
            let threads = held.threads_of(usize::from(index));
            let reservation = held.reservation.in_turns();
            running
                .set(member, cpu, slot, reservation, held.since, threads)
                .map_err(|error| cannot_keep(&error))?;
            if held.paused {
                // On another CPU it is not known yet. If it fails, its report says so.
                let _ = running.pause(member, true);
            }
        }
        Ok(())
    }

    fn pause(&mut self, target: &Target, paused: bool) -> Result<control::Reservation, Refusal> {
        let index = self.index_of(target)?;
        let held = &mut self.targets[index];
        held.may_stop(&self.guardian).map_err(|error| failed(&error))?;
        if let Some(running) = &self.running {
            let pause = |paused| held.members().filter_map(|member| running.pause(member, paused)).collect();
            let failures: Vec<String> = pause(paused);
            if let Some(failure) = failures.into_iter().next() {
                // It stays as it was, whatever part of it has changed.
                let _: Vec<String> = pause(held.paused);
                return Err(Refusal::new(RefusalKind::Unavailable, failure));
            }
        }
        held.paused = paused;
        Ok(self.tell(&self.targets[index], &self.reports()))
    }

    /// Puts a target back as it was.
    pub(super) fn release(&mut self, index: usize) {
        if self.targets.len() == 1 {
            // If that is refused, it is tried again.
            let _ = self.fair_servers.restore(&self.guardian);
        }
        let mut held = self.targets.remove(index);
        self.admission.release(held.id);
        if let Some(running) = &mut self.running {
            held.members().for_each(|member| running.remove(member));
            // What came into being meanwhile, and inherited something.
            if let Err(error) = held.take_threads(&running.meter, &self.guardian) {
                tracing::warn!(target = %held.target, "{error}");
            }
        }
        let mut results = Vec::new();
        for thread in held.threads.drain(..) {
            if let Some(running) = &self.running {
                running.meter.remove(thread.id().tid);
            }
            results.push(thread.restore(&self.guardian));
        }
        results.extend(held.processes.drain(..).map(|process| process.restore(&self.guardian)));
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(
                target = %held.target,
                "it could not be put back as it was, which is tried again at the end: {error}"
            );
        }
        if self.targets.is_empty() {
            self.running = None;
            self.emptied = monotonic().0;
        }
    }
}

fn cannot_keep(error: &StartError) -> Refusal {
    Refusal::new(RefusalKind::Unavailable, format!("reservations cannot be kept: {error}"))
}

fn failed(error: &TakeError) -> Refusal {
    Refusal::new(RefusalKind::Unavailable, error.to_string())
}
