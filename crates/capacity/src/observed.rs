//! What a recording tells of each VM: how much CPU time it used and wanted, who asked it for what and how
//! soon again, what an answer took, and whether it showed a film.

use crate::account::{Account, MOST_OF_A_REQUEST, ObservedVm, State, Vcpu, seconds, to_f64};
use crate::error::CapacityError;
use frontdesk_engine::{Config, EventKind, Time, VmId};
use frontdesk_record::{Record, Recording};
use frontdesk_replay::{ReplayError, Rerun};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// A recording may be forged: no table grows beyond this.
const MOST_VMS: usize = 1000;
/// The engine is asked for films so often.
const LOOK_NS: u64 = 250_000_000;

/// What a recording tells.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// How long it is.
    pub seconds: f64,
    /// Physical CPUs on which VMs ran.
    pub pcpus: usize,
    /// From an event to its effect, in the mean; absent if nothing was done.
    pub decision_latency_ns: Option<f64>,
    /// Events that were lost.
    pub lost: u64,
    /// The engine's parameters.
    pub config: Config,
    /// The VMs, in the order in which they were met.
    pub vms: Vec<ObservedVm>,
}

/// Goes through a recording.
///
/// # Errors
/// It cannot be read or gone through, or no VM was there while it was made.
pub fn observe<R: Read>(recording: &mut Recording<R>) -> Result<Observed, CapacityError> {
    let mut observer = Observer::default();
    for record in recording.by_ref() {
        observer.add(&record.map_err(ReplayError::from)?)?;
    }
    observer.finish(recording.name())
}

#[derive(Default)]
struct Observer {
    rerun: Rerun,
    accounts: BTreeMap<VmId, Account>,
    names: BTreeMap<VmId, String>,
    pcpus: BTreeSet<u16>,
    /// How many actions were applied, and how late all together.
    applied: (u64, f64),
    lost: u64,
    first: Option<Time>,
    last: Time,
    looked: Time,
}

impl Observer {
    fn add(&mut self, record: &Record) -> Result<(), ReplayError> {
        self.rerun.tell(record)?;
        while self.rerun.poll_action().is_some() {}
        match record {
            Record::Vm { vm, name } if self.names.len() < MOST_VMS => {
                self.names.insert(*vm, name.clone());
            }
            Record::Applied { latency_ns, .. } => {
                self.applied.0 += 1;
                self.applied.1 += to_f64(*latency_ns);
            }
            Record::Event(event) => {
                // Events may come late, and time does not go back.
                let at = event.at.max(self.last);
                if self.first.is_none() {
                    self.begin(at);
                }
                self.last = at;
                self.event(at, event.kind);
                if at.since(self.looked) >= LOOK_NS {
                    self.looked = at;
                    self.look();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The VMs that were there before the recording.
    fn begin(&mut self, at: Time) {
        (self.first, self.looked) = (Some(at), at);
        let Some(engine) = self.rerun.engine() else { return };
        for vm in engine.vms().take(MOST_VMS) {
            let Some(explain) = engine.explain_most(vm, 0) else { continue };
            let indices = explain.vcpus.iter().map(|vcpu| (vcpu.index, vcpu.current));
            let account = self.accounts.entry(vm).or_insert_with(|| Account::new(at, explain.weight));
            account.vcpus.extend(indices.map(|(index, current)| (index, Vcpu::new(at, current))));
        }
        self.look();
    }

    /// Who plays a film now, as the engine knows.
    fn look(&mut self) {
        let Some(engine) = self.rerun.engine() else { return };
        for (vm, account) in &mut self.accounts {
            if account.gone {
                continue;
            }
            account.looks += 1;
            let media = engine.explain_most(*vm, 0).and_then(|explain| explain.multimedia);
            // Of several the first: a desktop shows one film.
            let player = media.and_then(|media| media.players.into_iter().next());
            if let Some(player) = player {
                let rate = if player.desired_rate > 0.0 { player.desired_rate } else { player.frame_rate };
                if account.players.len() < MOST_OF_A_REQUEST || account.players.contains_key(&player.task) {
                    let sums = account.players.entry(player.task).or_default();
                    sums.add(rate);
                }
            }
        }
    }

    fn event(&mut self, at: Time, kind: EventKind) {
        match kind {
            EventKind::VmAdded { vm, vcpus, weight }
                if self.accounts.len() < MOST_VMS || self.accounts.contains_key(&vm) =>
            {
                let account = self.accounts.entry(vm).or_insert_with(|| Account::new(at, weight));
                account.come(at);
                for index in 0..vcpus {
                    account.vcpus.entry(index).or_insert_with(|| Vcpu::new(at, None)).current = None;
                }
            }
            EventKind::VmRemoved { vm } => self.with(vm, |account| account.go(at)),
            EventKind::VcpuAdded { vm, vcpu } => {
                self.with(vm, |account| {
                    account.vcpus.entry(vcpu).or_insert_with(|| Vcpu::new(at, None));
                });
            }
            EventKind::Weight { vm, weight } => self.with(vm, |account| account.weight = weight),
            EventKind::Run { vm, thread, pcpu } => {
                self.pcpus.insert(pcpu);
                self.with(vm, |account| account.thread(at, thread, Some(State::Runs)));
            }
            EventKind::Stop { vm, thread, runnable } => {
                let state = if runnable { State::Waits } else { State::Sleeps };
                self.with(vm, |account| account.thread(at, thread, Some(state)));
            }
            EventKind::Wake { vm, thread, .. } => {
                self.with(vm, |account| {
                    if account.state(thread) != Some(State::Runs) {
                        account.thread(at, thread, Some(State::Waits));
                    }
                });
            }
            EventKind::TaskSwitch { vm, vcpu, task } => {
                self.with(vm, |account| account.switch(at, vcpu, Some(task)));
            }
            EventKind::Halt { vm, vcpu } => self.with(vm, |account| account.switch(at, vcpu, None)),
            EventKind::OthersRan { vm, ran_ns, .. } => {
                self.with(vm, |account| account.emulator_ran += to_f64(ran_ns));
            }
            EventKind::Packet { vm, protocol, port } => {
                self.with(vm, |account| account.packet(at, protocol, port));
            }
            EventKind::Reply { vm, protocol, port } => {
                self.with(vm, |account| account.reply(at, protocol, port));
            }
            EventKind::Lost { count, .. } => self.lost = self.lost.saturating_add(count),
            _ => {}
        }
    }

    fn with(&mut self, vm: VmId, then: impl FnOnce(&mut Account)) {
        if let Some(account) = self.accounts.get_mut(&vm) {
            then(account);
        }
    }

    fn finish(mut self, recording: &str) -> Result<Observed, CapacityError> {
        let Some(begun) = self.first.filter(|_| !self.accounts.is_empty()) else {
            return Err(CapacityError::NoVms { recording: recording.to_owned() });
        };
        let last = self.last;
        let names = std::mem::take(&mut self.names);
        let mut vms = Vec::new();
        for (vm, mut account) in std::mem::take(&mut self.accounts) {
            account.go(last);
            let name = names.get(&vm).cloned().unwrap_or_else(|| format!("vm{}", vm.0));
            vms.extend(account.observed(name));
        }
        if vms.is_empty() {
            return Err(CapacityError::NoVms { recording: recording.to_owned() });
        }
        Ok(Observed {
            seconds: seconds(last.since(begun)),
            pcpus: self.pcpus.len(),
            decision_latency_ns: (self.applied.0 > 0).then(|| self.applied.1 / to_f64(self.applied.0)),
            lost: self.lost,
            config: self.rerun.engine().map(|engine| engine.config().clone()).unwrap_or_default(),
            vms,
        })
    }
}
