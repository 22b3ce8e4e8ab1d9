//! What runs while there are reservations: the meter and the thread that dispatches.

use super::ReserveMechanism;
use super::bell::Bell;
use super::controller::{Controller, ControllerCommand, MemberReport};
use super::deadline::Deadline;
use super::enforce::Enforce;
use super::members::MemberThreads;
use super::promises::Promises;
use super::trace::TraceSource;
use super::user::{Halts, User};
use crate::wake::Wake;
use frontdesk_engine::Time;
use frontdesk_engine::reservation::{Member, MemberAccount, Reservation};
use frontdesk_guardian::{Guardian, Promiser};
use frontdesk_probes::meter::{Birth, MemberMeter, MeterEvents, Ring};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A dispatcher answers within microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// What runs while there are reservations.
pub(super) struct Running {
    pub(super) meter: MemberMeter,
    pub(super) births: Ring,
    pub(super) born: Receiver<Birth>,
    /// Of CPUs that have had no dispatcher yet.
    kicks: BTreeMap<u16, Ring>,
    mechanism: ReserveMechanism,
    halts: Halts,
    cpus: Vec<u16>,
    promises: Promises,
    trace: TraceSource,
    /// The dispatchers, by the CPU of their members.
    lanes: BTreeMap<u16, DispatcherThread>,
    places: BTreeMap<Member, u16>,
    /// What members got where they were before.
    earlier: BTreeMap<Member, MemberAccount>,
}

/// A dispatcher.
struct DispatcherThread {
    commands: Sender<ControllerCommand>,
    wake: Wake,
    controller: Option<JoinHandle<()>>,
}

impl DispatcherThread {
    fn send(&self, command: ControllerCommand) {
        // It fails only when the controller has ended, which it does after us.
        let _ = self.commands.send(command);
        self.wake.ring();
    }
}

impl Drop for DispatcherThread {
    fn drop(&mut self) {
        // The last sender but one goes with `self`.
        self.commands = channel().0;
        self.wake.ring();
        if let Some(controller) = self.controller.take() {
            let _ = controller.join();
        }
    }
}

impl Running {
    pub(super) fn start(
        mechanism: ReserveMechanism,
        cpus: Vec<u16>,
        guardian: &Guardian,
        trace: &TraceSource,
    ) -> Result<Running, StartError> {
        let promises = Promises::new(guardian.promise(Promiser::Dispatchers)?);
        let (meter, MeterEvents { kicks, births, born }) = MemberMeter::open(&cpus)?;
        Ok(Running {
            meter,
            births,
            born,
            kicks,
            mechanism,
            halts: Halts::default(),
            cpus,
            promises,
            trace: trace.clone(),
            lanes: BTreeMap::new(),
            places: BTreeMap::new(),
            earlier: BTreeMap::new(),
        })
    }

    /// Starts the dispatcher of a CPU, if there is none.
    fn open(&mut self, cpu: u16) -> Result<(), StartError> {
        if self.lanes.contains_key(&cpu) {
            return Ok(());
        }
        let enforcer: Box<dyn Enforce> = match self.mechanism {
            ReserveMechanism::Deadline => Box::new(Deadline::default()),
            _ => Box::new(User::new(&self.halts)),
        };
        let kicks = self.kicks.remove(&cpu).ok_or(StartError::Offline { cpu })?;
        let (commands, receiver) = channel();
        let wake = Wake::new()?;
        let bell = Bell::new(&wake, kicks.fd())?;
        let controller = Controller {
            slots: self.meter.slots.clone(),
            kicks,
            commands: receiver,
            wake: wake.clone(),
            bell,
            cpu,
            pinned: self.mechanism != ReserveMechanism::Deadline,
            cpus: self.cpus.clone(),
            enforcer,
            promises: self.promises.clone(),
            trace: self.trace.writer(cpu),
        };
        let name = format!("dispatch/{cpu}");
        let thread = std::thread::Builder::new().name(name).spawn(move || controller.run())?;
        self.lanes.insert(cpu, DispatcherThread { commands, wake, controller: Some(thread) });
        Ok(())
    }

    /// Gives a member a reservation; the dispatcher of its CPU keeps it.
    pub(super) fn set(
        &mut self,
        member: Member,
        cpu: u16,
        slot: usize,
        reservation: Reservation,
        since: Time,
        threads: MemberThreads,
    ) -> Result<(), StartError> {
        // The kernel has those anywhere.
        let cpu = match self.mechanism {
            ReserveMechanism::Deadline => self.cpus.first().copied().unwrap_or(cpu),
            _ => cpu,
        };
        self.open(cpu)?;
        if let Some(before) = self.places.insert(member, cpu).filter(|before| *before != cpu)
            && let Some(mut account) = self.remove_from(before, member)
        {
            let earlier = self.earlier.entry(member).or_default();
            account.go_on_from(earlier);
            *earlier = account;
        }
        self.lanes[&cpu].send(ControllerCommand::Set { member, cpu, slot, reservation, since, threads });
        Ok(())
    }

    /// Tells the dispatcher of a member.
    pub(super) fn send(&self, member: Member, command: ControllerCommand) {
        if let Some(lane) = self.places.get(&member).and_then(|cpu| self.lanes.get(cpu)) {
            lane.send(command);
        }
    }

    /// Stops a member, or lets it go on, and waits until it is done; tells why that failed, if it did.
    pub(super) fn pause(&self, member: Member, paused: bool) -> Option<String> {
        let (done, when_done) = sync_channel(1);
        self.send(member, ControllerCommand::Pause { member, paused, done });
        when_done.recv_timeout(PATIENCE).ok()?
    }

    /// Has a member forgotten, and waits until it is.
    pub(super) fn remove(&mut self, member: Member) {
        self.earlier.remove(&member);
        if let Some(cpu) = self.places.remove(&member) {
            self.remove_from(cpu, member);
        }
    }

    fn remove_from(&self, cpu: u16, member: Member) -> Option<MemberAccount> {
        let (done, when_done) = sync_channel(1);
        self.lanes.get(&cpu)?.send(ControllerCommand::Remove { member, done });
        when_done.recv_timeout(PATIENCE).ok()
    }

    /// What is known of all members.
    pub(super) fn reports(&self) -> Vec<MemberReport> {
        let ask = |lane: &DispatcherThread| {
            let (reply, reports) = sync_channel(1);
            lane.send(ControllerCommand::Report(reply));
            reports.recv_timeout(PATIENCE).unwrap_or_default()
        };
        let mut reports: Vec<MemberReport> = self.lanes.values().flat_map(ask).collect();
        for report in &mut reports {
            if let Some(earlier) = self.earlier.get(&report.member) {
                report.account.go_on_from(earlier);
            }
        }
        reports
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Meter(#[from] frontdesk_probes::BpfError),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error("CPU {cpu} was offline before")]
    Offline { cpu: u16 },
    #[error("cannot make an eventfd or wait for one: {0}")]
    Eventfd(#[from] rustix::io::Errno),
}
