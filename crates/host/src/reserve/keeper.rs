//! The thread that admits reservations and takes hold of their targets.

use super::Order;
use super::controller::{Command, Controller, Report};
use super::held::{HeldProcess, HeldThread, HoldError, Original};
use super::meter::{Birth, Meter, Ring, SLOTS, Tidings};
use super::target::{Found, Vm, is_ready, threads_of};
use super::user::Threads;
use super::{ReserveSettings, pen, ring, told};
use crate::cgroup::{Group, Hierarchy};
use crate::control::{self, Answer, Query, Refusal, RefusalKind, Reserve, SCHEMA, Target};
use crate::daemon::monotonic;
use crate::guardian::Guardian;
use crate::realtime;
use crate::sched::{self, SchedError, ThreadId};
use frontdesk_engine::reservation::{
    Admission, MAX_PERIOD_NS, MIN_PERIOD_NS, MIN_SLICE_NS, Member, Reservation, TargetId, WHOLE_CPU,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Above the targets, that a request is answered while they run, and above the daemon's loop, that waits for nothing.
const PRIORITY: u32 = 51;
/// How often targets are looked at for threads that came and went unheard.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The controller answers within microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Reservations whose targets have ended are told this long, in nanoseconds, and so many of them.
const ENDED_FOR: u64 = 60_000_000_000;
const ENDED_MOST: usize = 16;

/// The keeper.
pub(super) struct Keeper {
    hierarchy: Hierarchy,
    guardian: Arc<Guardian>,
    /// The daemon and its guardian.
    own: Vec<i32>,
    own_cpus: Vec<u16>,
    /// What may be reserved of each CPU.
    capacity: u64,
    cpus: Vec<u16>,
    admission: Admission,
    next: u32,
    targets: Vec<Held>,
    /// Targets that ended by themselves, and when.
    ended: VecDeque<(u64, control::Reservation)>,
    running: Option<Running>,
    /// The group of all that has reservations, once it was made; it stays until the daemon ends.
    pen: Option<Option<Group>>,
}

/// A target with a reservation.
struct Held {
    id: TargetId,
    target: Target,
    found: Found,
    reservation: Reservation,
    /// Of each member.
    cpus: Vec<u16>,
    slots: Vec<usize>,
    processes: Vec<HeldProcess>,
    threads: Vec<HeldThread>,
    /// Whether its threads were put on the CPUs of their members.
    pinned: bool,
    paused: bool,
    trouble: Option<String>,
}

/// What runs while there are reservations.
struct Running {
    meter: Meter,
    births: Ring,
    born: Receiver<Birth>,
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    controller: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn new(
        settings: &ReserveSettings,
        own_cpus: &[u16],
        hierarchy: Hierarchy,
        guardian: Arc<Guardian>,
    ) -> std::io::Result<Keeper> {
        let online = online_cpus()?;
        let wanted = |cpu: &u16| settings.cpus.is_empty() || settings.cpus.contains(cpu);
        let cpus: Vec<u16> = online.into_iter().filter(wanted).collect();
        let spare = Duration::from_nanos(WHOLE_CPU).mul_f64(settings.spare);
        let spare = u64::try_from(spare.as_nanos()).unwrap_or(WHOLE_CPU);
        let own = [std::process::id(), guardian.pid()].map(|pid| i32::try_from(pid).unwrap_or(0));
        Ok(Keeper {
            hierarchy,
            guardian,
            own: own.into(),
            own_cpus: own_cpus.into(),
            capacity: WHOLE_CPU.saturating_sub(spare),
            admission: Admission::new(&cpus, spare),
            cpus,
            next: 0,
            targets: Vec::new(),
            ended: VecDeque::new(),
            running: None,
            pen: None,
        })
    }

    /// Serves until its owner has gone.
    pub(super) fn run(mut self, orders: &Receiver<Order>, wake: &OwnedFd) {
        if let Err(error) = realtime::enter(PRIORITY, &[]) {
            tracing::warn!("requests for reservations may wait: {error}");
        }
        loop {
            self.wait(wake);
            let _ = rustix::io::read(wake, &mut [0; 8]);
            self.follow_births();
            self.look();
            loop {
                match orders.try_recv() {
                    Ok(Order::Ask(request, vms)) => {
                        let answer = self.answer(&request.query, &vms);
                        request.answer(answer);
                    }
                    Ok(Order::Vms(vms)) => self.renew(&vms),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    fn wait(&self, wake: &OwnedFd) {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        if let Some(running) = &self.running {
            fds.push(PollFd::from_borrowed_fd(running.births.fd(), PollFlags::IN));
        }
        let processes = self.targets.iter().flat_map(|held| &held.processes);
        fds.extend(processes.map(|process| PollFd::new(process.pidfd(), PollFlags::IN)));
        // An interruption is as good as a reason.
        let _ = poll(&mut fds, (!self.targets.is_empty()).then_some(&LOOK));
    }

    fn answer(&mut self, query: &Query, vms: &[Vm]) -> Result<Answer, Refusal> {
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

    fn reserve(&mut self, reserve: &Reserve, vms: &[Vm]) -> Result<control::Reservation, Refusal> {
        let &Reserve { ref target, period_ns, slice_ns, hard, phase_ns } = reserve;
        let reservation = Reservation { period_ns, slice_ns, hard, phase_ns };
        let index = match self.index_of(target) {
            Ok(index) => self.change(index, reservation)?,
            Err(_) => self.begin(target, reservation, vms)?,
        };
        Ok(self.tell(&self.targets[index], &self.reports()))
    }

    /// Gives another reservation to a target that has one.
    fn change(&mut self, index: usize, reservation: Reservation) -> Result<usize, Refusal> {
        let held = &mut self.targets[index];
        let admitted = self.admission.admit(held.id, reservation, held.slots.len());
        let cpus = admitted.map_err(|error| told::refusal(&error, self.capacity))?;
        held.reservation = reservation;
        if reservation.hard {
            may_stop(held, &self.guardian).map_err(|error| failed(&error))?;
        }
        let moved = cpus != held.cpus;
        held.cpus = cpus;
        if moved {
            held.pin();
            self.see_all_switch(index);
        }
        self.tell_controller(index);
        Ok(index)
    }

    /// Takes hold of a target.
    fn begin(&mut self, target: &Target, reservation: Reservation, vms: &[Vm]) -> Result<usize, Refusal> {
        reservation.validate().map_err(|error| told::refusal(&error.into(), self.capacity))?;
        let found = Found::find(target, vms, &self.own, &self.hierarchy)?;
        for other in &self.targets {
            if let Some(both) = other.processes.iter().find(|process| found.processes.contains(&process.pid))
            {
                let message = format!("process {} has a reservation already, as {}", both.pid, other.target);
                return Err(Refusal::new(RefusalKind::Overlapping, message));
            }
        }
        let id = TargetId(self.next);
        self.next = self.next.wrapping_add(1);
        let admitted = self.admission.admit(id, reservation, found.members());
        let cpus = admitted.map_err(|error| told::refusal(&error, self.capacity))?;
        let slots = self.free_slots(found.members());
        let (target, name) = (target.clone(), found.name.clone());
        let mut held = Held {
            id,
            target,
            found,
            reservation,
            cpus,
            slots,
            processes: Vec::new(),
            threads: Vec::new(),
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
        self.tell_controller(index);
        tracing::info!(target = %self.targets[index].target, name, %reservation, cpus = ?self.targets[index].cpus, "reserved");
        Ok(index)
    }

    fn free_slots(&self, count: usize) -> Vec<usize> {
        let taken: Vec<usize> = self.targets.iter().flat_map(|held| held.slots.iter().copied()).collect();
        // There are more slots than all CPUs can have members.
        (0..SLOTS).filter(|slot| !taken.contains(slot)).take(count).collect()
    }

    /// Records what the target's threads have, and takes them in.
    fn take(&mut self, held: &mut Held) -> Result<(), Refusal> {
        self.start()?;
        let Some(running) = &self.running else { return Ok(()) };
        let pen = self.pen.clone().flatten();
        for (member, slot) in held.slots.iter().enumerate() {
            let parts = held.found.threads()?;
            let ready = parts.iter().any(|part| part.member == member && is_ready(part.thread));
            running.meter.slots.open(*slot, ready, held.found.family);
        }
        for pid in held.found.processes.clone() {
            let Some(process) = HeldProcess::take(pid) else { continue };
            held.processes.push(process);
        }
        held.take_threads(&running.meter, &self.guardian).map_err(|error| failed(&error))?;
        for process in &mut held.processes {
            if let Some(pen) = &pen {
                process.move_to(pen, &self.hierarchy, &self.guardian).map_err(|error| failed(&error))?;
            }
        }
        if held.reservation.hard {
            may_stop(held, &self.guardian).map_err(|error| failed(&error))?;
        }
        held.pin();
        Ok(())
    }

    /// Starts what runs while there are reservations.
    fn start(&mut self) -> Result<(), Refusal> {
        if self.pen.is_none() {
            // Between what can be reserved and the whole CPU, for who runs a little too long is not to be throttled.
            let real_time = (1.0 + told::ratio(self.capacity)) / 2.0;
            let pen =
                pen::make(&self.hierarchy, real_time, &self.guardian).map_err(|error| failed(&error))?;
            self.pen = Some(pen);
        }
        if self.running.is_none() {
            self.running = Some(Running::start().map_err(|error| {
                Refusal::new(RefusalKind::Unavailable, format!("reservations can't be kept: {error}"))
            })?);
        }
        Ok(())
    }

    /// Makes the members be counted: one that runs already is seen when it is switched to the next time, so it is switched from now, by
    /// running in its place.
    fn see_all_switch(&self, index: usize) {
        for cpu in &self.targets[index].cpus {
            if let Err(error) = realtime::pin(&[*cpu]) {
                tracing::debug!("a member is counted from its next switch on: {error}");
            }
        }
        let _ = realtime::pin(&self.own_cpus);
    }

    fn tell_controller(&self, index: usize) {
        let (Some(running), held) = (&self.running, &self.targets[index]) else { return };
        for (index, (&cpu, &slot)) in (0..).zip(held.cpus.iter().zip(&held.slots)) {
            let member = Member { target: held.id, index };
            let threads = held.threads_of(usize::from(index));
            running.send(Command::Set { member, cpu, slot, reservation: held.reservation, threads });
        }
    }

    fn pause(&mut self, target: &Target, paused: bool) -> Result<control::Reservation, Refusal> {
        let index = self.index_of(target)?;
        let held = &mut self.targets[index];
        may_stop(held, &self.guardian).map_err(|error| failed(&error))?;
        held.paused = paused;
        if let Some(running) = &self.running {
            for member in held.members() {
                running.send(Command::Pause { member, paused });
            }
        }
        Ok(self.tell(&self.targets[index], &self.reports()))
    }

    /// Puts a target back as it was.
    fn release(&mut self, index: usize) {
        let mut held = self.targets.remove(index);
        self.admission.release(held.id);
        if let Some(running) = &self.running {
            for member in held.members() {
                let (done, when_done) = sync_channel(1);
                running.send(Command::Remove { member, done });
                let _ = when_done.recv_timeout(PATIENCE);
            }
            // What came into being meanwhile, and inherited something.
            if let Err(error) = held.take_threads(&running.meter, &self.guardian) {
                tracing::warn!(target = %held.target, "{error}");
            }
        }
        let mut results = Vec::new();
        for thread in held.threads.drain(..) {
            if let Some(running) = &self.running {
                running.meter.remove(thread.thread.tid);
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
        }
    }

    /// Follows threads and processes that came into being as members.
    fn follow_births(&mut self) {
        let Some(running) = &self.running else { return };
        running.births.drain();
        let mut changed = Vec::new();
        while let Ok(birth) = running.born.try_recv() {
            let Some(index) = self.targets.iter().position(|held| held.slots.contains(&birth.slot)) else {
                continue;
            };
            let held = &mut self.targets[index];
            if let Err(error) = held.welcome(birth, &running.meter, &self.guardian) {
                held.trouble = Some(error.to_string());
            }
            changed.push(index);
        }
        changed.dedup();
        changed.into_iter().for_each(|index| self.tell_threads(index));
    }

    fn tell_threads(&self, index: usize) {
        let (Some(running), held) = (&self.running, &self.targets[index]) else { return };
        for member in held.members() {
            let threads = held.threads_of(usize::from(member.index));
            running.send(Command::Threads { member, threads });
        }
    }

    /// Looks whether targets have ended, or threads of theirs.
    fn look(&mut self) {
        let mut index = 0;
        while index < self.targets.len() {
            let held = &mut self.targets[index];
            held.processes.retain(|process| !has_ended(process));
            if held.processes.is_empty() {
                let mut told = self.tell(&self.targets[index], &self.reports());
                told.trouble = Some("it has ended, and its reservation with it".into());
                tracing::info!(target = %told.target, "a target has ended, and its reservation with it");
                self.ended.push_back((monotonic().0, told));
                self.release(index);
                continue;
            }
            let before = held.threads.len();
            let (alive, gone) =
                std::mem::take(&mut held.threads).into_iter().partition(|t| t.thread.is_alive());
            held.threads = alive;
            for thread in gone {
                let _ = thread.forget(&self.guardian);
            }
            if held.threads.len() != before {
                self.tell_threads(index);
            }
            index += 1;
        }
        let now = monotonic().0;
        while self.ended.len() > ENDED_MOST || self.ended.front().is_some_and(|(at, _)| now - at > ENDED_FOR)
        {
            self.ended.pop_front();
        }
    }

    /// The VMs have changed. One whose vCPUs have changed gets its reservation anew.
    fn renew(&mut self, vms: &[Vm]) {
        let changed = |held: &Held| match &held.target {
            Target::Vm(name) => vms.iter().any(|vm| vm.name == *name && vm.vcpus != held.found.vcpus),
            _ => false,
        };
        while let Some(index) = self.targets.iter().position(changed) {
            let (target, reservation) = (self.targets[index].target.clone(), self.targets[index].reservation);
            let mut told = self.tell(&self.targets[index], &self.reports());
            self.release(index);
            if let Err(refusal) = self.begin(&target, reservation, vms) {
                tracing::warn!(%target, "the VM's vCPUs have changed, and its reservation has ended: {refusal}");
                told.trouble =
                    Some(format!("its vCPUs have changed, and its reservation has ended: {refusal}"));
                self.ended.push_back((monotonic().0, told));
            }
        }
    }

    fn reports(&self) -> Vec<Report> {
        let Some(running) = &self.running else { return Vec::new() };
        let (reply, reports) = sync_channel(1);
        running.send(Command::Report(reply));
        reports.recv_timeout(PATIENCE).unwrap_or_default()
    }

    fn tell(&self, held: &Held, reports: &[Report]) -> control::Reservation {
        let Reservation { period_ns, slice_ns, hard, phase_ns } = held.reservation;
        let whole = told::ratio(self.capacity) * self.cpus.len().max(1) as f64;
        let mut told = control::Reservation {
            target: held.target.clone(),
            name: held.found.name.clone(),
            period_ns,
            slice_ns,
            hard,
            phase_ns,
            paused: held.paused,
            cpus: held.cpus.clone(),
            mechanism: "user".into(),
            host_ratio: told::ratio(held.reservation.utilisation()) * held.cpus.len() as f64 / whole,
            efficiency_ratio: None,
            periods: 0,
            misses: 0,
            worst_miss_ns: 0,
            used_ns: 0,
            reserved_ns: 0,
            recent: Vec::new(),
            trouble: held.trouble.clone(),
        };
        let own: Vec<&Report> = reports.iter().filter(|report| report.member.target == held.id).collect();
        told::account(&mut told, &own);
        told
    }

    fn list(&self) -> control::Reservations {
        let reports = self.reports();
        let ended = self.ended.iter().map(|(_, told)| told.clone());
        control::Reservations {
            schema: SCHEMA,
            at_ns: monotonic().0,
            acting: true,
            mechanism: "user".into(),
            reserve_ratio: 1.0 - told::ratio(self.capacity),
            min_period_ns: MIN_PERIOD_NS,
            max_period_ns: MAX_PERIOD_NS,
            min_slice_ns: MIN_SLICE_NS,
            cpus: told::rooms(&self.admission.rooms(), self.capacity),
            reservations: self.targets.iter().map(|held| self.tell(held, &reports)).chain(ended).collect(),
        }
    }
}

impl Held {
    fn members(&self) -> impl Iterator<Item = Member> + use<> {
        let target = self.id;
        (0..).take(self.slots.len()).map(move |index| Member { target, index })
    }

    /// The threads of one of its members.
    fn threads_of(&self, member: usize) -> Threads {
        let own = self.threads.iter().filter(|held| held.member == member);
        Threads { all: own.map(|held| (held.thread.pid, held.thread.tid, held.role)).collect() }
    }

    /// Takes the threads of its processes that it has not taken yet.
    fn take_threads(&mut self, meter: &Meter, guardian: &Guardian) -> Result<(), HoldError> {
        let pids: Vec<i32> = self.processes.iter().map(|process| process.pid).collect();
        for thread in pids.into_iter().flat_map(threads_of) {
            self.take_thread(thread, meter, guardian)?;
        }
        Ok(())
    }

    fn take_thread(&mut self, thread: ThreadId, meter: &Meter, guardian: &Guardian) -> Result<(), HoldError> {
        if self.threads.iter().any(|held| held.thread == thread) {
            return Ok(());
        }
        let sibling = self.threads.iter().find(|held| held.thread.pid == thread.pid).or(self.threads.first());
        // One that came later has what its creator had from us, not what it would have without us.
        let original = match sibling.filter(|_| self.pinned) {
            Some(sibling) => Some(sibling.original().clone()),
            None => Original::of(thread)?,
        };
        // It may have ended already.
        let Some(original) = original else { return Ok(()) };
        let part = self.found.part(thread);
        self.threads.push(HeldThread::take(part, original, guardian)?);
        meter.add(thread.tid, self.slots[part.member])?;
        if self.pinned {
            sched::set_affinity(thread.tid, &[self.cpus[part.member]]).or_else(if_alive)?;
        }
        Ok(())
    }

    /// Takes a thread that came into being as a member, with its process if that is new, too.
    fn welcome(&mut self, birth: Birth, meter: &Meter, guardian: &Guardian) -> Result<(), HoldError> {
        if !self.processes.iter().any(|process| process.pid == birth.pid) {
            let Some(mut process) = HeldProcess::take(birth.pid) else { return Ok(()) };
            if let Some(parent) = self.processes.first() {
                process.came_with(parent, guardian)?;
            }
            if self.reservation.hard || self.paused {
                process.may_stop(guardian)?;
            }
            self.processes.push(process);
        }
        match ThreadId::of(birth.pid, birth.tid) {
            Some(thread) => self.take_thread(thread, meter, guardian),
            None => Ok(()),
        }
    }

    /// Has each thread on the CPU of its member.
    fn pin(&mut self) {
        self.pinned = true;
        for held in &self.threads {
            if let Err(error) =
                sched::set_affinity(held.thread.tid, &[self.cpus[held.member]]).or_else(if_alive)
            {
                self.trouble = Some(error.to_string());
            }
        }
    }
}

/// A thread that has ended needs nothing.
fn if_alive(error: SchedError) -> Result<(), SchedError> {
    match error {
        SchedError::Vanished { .. } => Ok(()),
        error => Err(error),
    }
}

impl Running {
    fn start() -> Result<Running, StartError> {
        let (meter, Tidings { kicks, births, born }) = Meter::open()?;
        let (commands, receiver) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let controller =
            Controller { slots: meter.slots.clone(), kicks, commands: receiver, wake: Arc::clone(&wake) };
        let thread = std::thread::Builder::new().name("dispatch".into()).spawn(move || controller.run())?;
        Ok(Running { meter, births, born, commands, wake, controller: Some(thread) })
    }

    fn send(&self, command: Command) {
        // It fails only when the controller has ended, which it does after us.
        let _ = self.commands.send(command);
        ring(&self.wake);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The last sender but one goes with `self`.
        self.commands = channel().0;
        ring(&self.wake);
        if let Some(controller) = self.controller.take() {
            let _ = controller.join();
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Meter(#[from] crate::bpf::BpfError),
    #[error("can't start a thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error("can't make an eventfd: {0}")]
    Eventfd(#[from] rustix::io::Errno),
}

fn failed(error: &HoldError) -> Refusal {
    Refusal::new(RefusalKind::Unavailable, error.to_string())
}

/// Its processes may be stopped from now on.
fn may_stop(held: &mut Held, guardian: &Guardian) -> Result<(), HoldError> {
    held.processes.iter_mut().try_for_each(|process| process.may_stop(guardian))
}

fn has_ended(process: &HeldProcess) -> bool {
    let mut fds = [PollFd::new(process.pidfd(), PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

/// The CPUs of the machine that are in use.
fn online_cpus() -> std::io::Result<Vec<u16>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    Ok(cpu_list(&text))
}

/// A list like `0-3,8`.
fn cpu_list(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_understood() {
        assert_eq!(cpu_list("0-1\n"), [0, 1]);
        assert_eq!(cpu_list("0,2-4,1023"), [0, 2, 3, 4, 1023]);
        assert_eq!(cpu_list(""), [0u16; 0]);
    }
}
