//! A process's worth of daemon: answers about reservations over a Unix socket as the real one does, and keeps
//! CPUs only on paper.

use frontdesk_control_protocol::{
    Answer, CpuRoom, Delivered, Fit, MOST_RECENT, Query, Refusal, RefusalKind, Reservation, Reservations,
    Reserve, SCHEMA, Status, Target, TargetStatus, Targets,
};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

const MS: u64 = 1_000_000;
/// Of each of its two CPUs.
const RESERVE: f64 = 0.1;
/// What its clock shows at first.
const BEGIN: u64 = 100_000 * MS;

/// The daemon; ended with the value.
pub struct FakeDaemon {
    folder: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    since: Instant,
    reservations: Vec<Reservation>,
    /// Requests for changes, as they came.
    asked: Vec<Query>,
    /// What it tells of VMs, if anything.
    status: Option<Status>,
}

impl FakeDaemon {
    /// Starts one with a socket of its own.
    ///
    /// # Panics
    /// It cannot.
    #[must_use]
    pub fn start() -> FakeDaemon {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        // Whoever the server runs as.
        for path in [folder.path(), &socket] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        }
        let state =
            State { since: Instant::now(), reservations: Vec::new(), asked: Vec::new(), status: None };
        let state = Arc::new(Mutex::new(state));
        let of_thread = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if !serve(stream.unwrap(), &of_thread) {
                    return;
                }
            }
        });
        FakeDaemon { folder, state, thread: Some(thread) }
    }

    /// Where it answers.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// The reservation of a target, if it has one.
    ///
    /// # Panics
    /// It has panicked.
    #[must_use]
    pub fn reservation(&self, target: &Target) -> Option<Reservation> {
        let state = self.state.lock().unwrap();
        state.reservations.iter().find(|one| one.target == *target).cloned()
    }

    /// Has it tell this of its VMs.
    ///
    /// # Panics
    /// It has panicked.
    pub fn tell(&self, status: Status) {
        self.state.lock().unwrap().status = Some(status);
    }

    /// Requests for changes so far.
    ///
    /// # Panics
    /// It has panicked.
    #[must_use]
    pub fn asked(&self) -> Vec<Query> {
        self.state.lock().unwrap().asked.clone()
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        // An empty request ends it.
        if stop(&self.socket()).is_ok() {
            self.thread.take().unwrap().join().unwrap();
        }
    }
}

fn stop(socket: &Path) -> std::io::Result<()> {
    UnixStream::connect(socket)?.write_all(b"\n")
}

/// False if it is to end.
fn serve(mut stream: UnixStream, state: &Mutex<State>) -> bool {
    let mut line = String::new();
    if BufReader::new(&stream).read_line(&mut line).is_err() || line == "\n" {
        return line != "\n";
    }
    let answer =
        Query::parse(line.trim_end().as_bytes()).and_then(|query| state.lock().unwrap().answer(query));
    let mut line = serde_json::to_vec(&answer.unwrap_or_else(Answer::Refused)).unwrap();
    line.push(b'\n');
    // A client that has gone needs no answer.
    let _ = stream.write_all(&line);
    true
}

fn no_real_one() -> Refusal {
    Refusal::new(RefusalKind::Unavailable, "this daemon is not a real one")
}

impl State {
    fn now(&self) -> u64 {
        BEGIN + u64::try_from(self.since.elapsed().as_nanos()).unwrap()
    }

    fn answer(&mut self, query: Query) -> Result<Answer, Refusal> {
        if query.changes() {
            self.asked.push(query.clone());
        }
        let now = self.now();
        match query {
            Query::Reserve(asked) => self.reserve(asked),
            Query::Release { target } => {
                let index = self.find(&target)?;
                Ok(told(self.reservations.remove(index)))
            }
            Query::Pause { target } => self.change(&target, |one| one.paused = true),
            Query::Resume { target } => self.change(&target, |one| one.paused = false),
            Query::Reservations {} => {
                for one in &mut self.reservations {
                    deliver(one, now);
                }
                Ok(Answer::Reservations(Box::new(Reservations {
                    schema: SCHEMA,
                    at_ns: now,
                    acting: true,
                    mechanism: "user".to_owned(),
                    reserve_ratio: RESERVE,
                    min_period_ns: MS / 5,
                    max_period_ns: 86_400_000 * MS,
                    min_slice_ns: MS / 100,
                    deciding_ns: 0,
                    cpus: self.rooms(None).to_vec(),
                    reservations: self.reservations.clone(),
                })))
            }
            Query::Targets {} => Ok(Answer::Targets(Box::new(self.targets()))),
            Query::Status { vm } => self.status(vm.as_deref()),
            Query::Record {} => Err(no_real_one()),
        }
    }

    fn status(&self, name: Option<&str>) -> Result<Answer, Refusal> {
        let mut status = self.status.clone().ok_or_else(no_real_one)?;
        status.vms.retain(|vm| name.is_none_or(|name| vm.name == name));
        match name {
            Some(name) if status.vms.is_empty() => {
                Err(Refusal::new(RefusalKind::UnknownVm, format!("no VM is called {name}")))
            }
            _ => Ok(Answer::Status(Box::new(status))),
        }
    }

    fn find(&self, target: &Target) -> Result<usize, Refusal> {
        let found = self.reservations.iter().position(|one| one.target == *target);
        found.ok_or_else(|| Refusal::new(RefusalKind::NotReserved, format!("{target} has no reservation")))
    }

    fn change(&mut self, target: &Target, change: impl Fn(&mut Reservation)) -> Result<Answer, Refusal> {
        let index = self.find(target)?;
        change(&mut self.reservations[index]);
        Ok(told(self.reservations[index].clone()))
    }

    /// What is free, without what a target has.
    fn rooms(&self, without: Option<&Target>) -> [CpuRoom; 2] {
        [0u16, 1].map(|cpu| {
            let others = self.reservations.iter().filter(|one| Some(&one.target) != without);
            let reserved_ratio: f64 = others
                .filter(|one| one.cpus.contains(&cpu))
                .map(|one| ratio(one.slice_ns, one.period_ns))
                .sum();
            CpuRoom { cpu, reserved_ratio, free_ratio: (1.0 - RESERVE - reserved_ratio).max(0.0) }
        })
    }

    fn reserve(&mut self, asked: Reserve) -> Result<Answer, Refusal> {
        let Reserve { target, period_ns, slice_ns, hard, phase_ns } = asked;
        if slice_ns == 0 || slice_ns > period_ns || period_ns < MS / 5 {
            return Err(Refusal::new(RefusalKind::Invalid, "the slice is at most the period, and above 0"));
        }
        if target == Target::Process(99) {
            return Err(Refusal::new(RefusalKind::UnknownTarget, "there is no process 99"));
        }
        // The VM "desk" has two vCPUs.
        let parts = if target == Target::Vm("desk".to_owned()) { 2 } else { 1 };
        let mut free = self.rooms(Some(&target));
        let all = free.to_vec();
        free.sort_by(|one, other| other.free_ratio.total_cmp(&one.free_ratio));
        let most = free[parts - 1].free_ratio;
        let mut cpus: Vec<u16> = free[..parts].iter().map(|room| room.cpu).collect();
        cpus.sort_unstable();
        if ratio(slice_ns, period_ns) > most + 1e-9 {
            // Positive and far below the largest number.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let slice_ns = (most * period_ns as f64) as u64;
            let message =
                format!("that much is not free; {slice_ns} ns every {period_ns} ns fits on cpu{}", cpus[0]);
            let fit = Some(Fit { slice_ns, cpus, free: all });
            return Err(Refusal { fit, ..Refusal::new(RefusalKind::Infeasible, message) });
        }
        let name = target.to_string();
        let name = match &target {
            Target::Process(pid) => format!("process-{pid}"),
            _ => name.split_once(':').unwrap().1.to_owned(),
        };
        let host_ratio = ratio(slice_ns, period_ns) * parts as f64 / 2.0;
        let asked = Reserve { target, period_ns, slice_ns, hard, phase_ns };
        let reservation = asked.begin(name, cpus, "user", host_ratio);
        match self.find(&reservation.target) {
            Ok(index) => self.reservations[index] = reservation.clone(),
            Err(_) => self.reservations.push(reservation.clone()),
        }
        Ok(told(reservation))
    }

    fn targets(&self) -> Targets {
        let named = |target: Target, name: &str, pid, cpu_ratio, unit: Option<&str>| TargetStatus {
            reserved: self.find(&target).is_ok(),
            target,
            name: name.to_owned(),
            pid,
            uid: 1000,
            unit: unit.map(str::to_owned),
            cpu_ratio,
            threads: 4,
        };
        Targets {
            schema: SCHEMA,
            targets: vec![
                named(Target::Vm("alice".into()), "alice", 11, 0.31, Some("machine-qemu-1-alice.scope")),
                named(Target::Vm("desk".into()), "desk", 12, 1.2, Some("machine-qemu-2-desk.scope")),
                named(Target::Process(4711), "render", 4711, 0.97, Some("render.service")),
                named(Target::Process(99), "<i>gone</i>", 99, 0.01, None),
            ],
            left_off: 0,
        }
    }
}

fn ratio(slice_ns: u64, period_ns: u64) -> f64 {
    slice_ns as f64 / period_ns as f64
}

fn told(reservation: Reservation) -> Answer {
    Answer::Reservation(Box::new(reservation))
}

/// The last seconds, as a target may have used them: all of each slice but for a little, and one missed now
/// and then.
fn deliver(one: &mut Reservation, now: u64) {
    let periods = u32::try_from((50 * MS / one.period_ns).max(1)).unwrap();
    let span = u64::from(periods) * one.period_ns;
    let newest = now / span;
    let entries = (0..MOST_RECENT as u64).rev().filter_map(|age| newest.checked_sub(age));
    one.recent = entries
        .map(|entry| {
            let reserved_ns = u64::from(periods) * one.slice_ns;
            let missed = entry % 41 == 0;
            let used = if missed { 70 } else { 92 + entry * 7919 % 9 };
            Delivered {
                end_ns: entry * span,
                periods,
                reserved_ns,
                used_ns: reserved_ns / 100 * used,
                misses: u32::from(missed),
            }
        })
        .collect();
    let sum = |of: fn(&Delivered) -> u64| one.recent.iter().map(of).sum::<u64>();
    let (used, reserved) = (sum(|entry| entry.used_ns), sum(|entry| entry.reserved_ns));
    one.efficiency_ratio = Some(ratio(used, reserved));
    one.misses = sum(|entry| u64::from(entry.misses));
    one.worst_miss_ns = one.slice_ns * 3 / 10;
    (one.periods, one.used_ns, one.reserved_ns) = (sum(|entry| u64::from(entry.periods)), used, reserved);
}
