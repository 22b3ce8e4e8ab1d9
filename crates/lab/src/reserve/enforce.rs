//! Reservations in the ways that are compared.

use crate::LabError;
use crate::daemon::{DaemonProcess, SOCKET};
use frontdesk_control_protocol::{Answer, ClientError, Query, Reservation, Reserve, Target, ask};
use frontdesk_engine::{Config, nanos};
use frontdesk_guardian::{Guardian, Undo};
use frontdesk_linux::cgroup::{Group, Hierarchy};
use frontdesk_linux::monotonic_ns;
use frontdesk_linux::sched::{self, Attributes, Policy, process_start_time};
use frontdesk_scenario::{Enforcer, PeriodSlice, StudyArm, float};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The part of each CPU that stays without reservation, so that nearly all of it can be tried.
const SPARE: f64 = 0.01;
/// Of `cpu.shares`, what stands for a whole CPU.
const WHOLE_SHARE: f64 = 10_000.0;

/// Who keeps the reservations of an arm.
pub(super) enum Enforcement {
    Frontdesk {
        daemon: DaemonProcess,
        socket: PathBuf,
        hard: bool,
    },
    Deadline,
    /// A control group for each process.
    Weights {
        parent: Group,
        groups: Vec<(i32, Group)>,
    },
}

impl Enforcement {
    pub(super) fn start(
        arm: StudyArm,
        cpus: &[u16],
        frontdesk: &Path,
        run_dir: &Path,
        guardian: &Guardian,
    ) -> Result<Enforcement, LabError> {
        Ok(match arm.by {
            Enforcer::Frontdesk => {
                let reserve = format!("[reserve]\nspare = {SPARE}\ncpus = {cpus:?}\n");
                let daemon =
                    DaemonProcess::start_for_processes(frontdesk, run_dir, &Config::default(), &reserve)?;
                // If the lab dies, its daemon must not stay.
                if let Some(started) = process_start_time(daemon.pid()) {
                    guardian.record(Undo::Process { pid: daemon.pid(), started })?;
                }
                Enforcement::Frontdesk { daemon, socket: run_dir.join(SOCKET), hard: arm.hard }
            }
            Enforcer::SchedDeadline => Enforcement::Deadline,
            Enforcer::Weights => {
                let name = format!("frontdesk-lab-{}", std::process::id());
                let parent = guardian.create_group(&Hierarchy::detect()?.root_group(), &name)?;
                Enforcement::Weights { parent, groups: Vec::new() }
            }
        })
    }

    /// The daemon, if there is one.
    pub(super) fn daemon_pid(&self) -> Option<i32> {
        match self {
            Enforcement::Frontdesk { daemon, .. } => Some(daemon.pid()),
            Enforcement::Deadline | Enforcement::Weights { .. } => None,
        }
    }

    /// Reserves for a process from now on, and tells a beginning of a period, and on which CPU it is if that
    /// is known. With weights a process cannot be given another reservation.
    pub(super) fn reserve(
        &mut self,
        pid: i32,
        of: PeriodSlice,
        guardian: &Guardian,
    ) -> Result<(u64, Option<u16>), LabError> {
        let (period_ns, slice_ns) = (nanos(of.period), nanos(of.slice));
        match self {
            Enforcement::Frontdesk { socket, hard, .. } => {
                // Aligned, so that we know when periods begin.
                let target = Target::Process(pid);
                let reserve = Reserve { target, period_ns, slice_ns, hard: *hard, phase_ns: Some(0) };
                let told = reserve_for(socket, reserve)?;
                Ok((boundary(period_ns), told.cpus.first().copied()))
            }
            Enforcement::Deadline => {
                let begin = monotonic_ns();
                let policy =
                    Policy::Deadline { runtime_ns: slice_ns, deadline_ns: period_ns, period_ns, flags: 0 };
                sched::set(pid, Attributes { policy, reset_on_fork: true })?;
                Ok((begin, None))
            }
            Enforcement::Weights { parent, groups } => {
                let group = guardian.create_group(parent, &pid.to_string())?;
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let weight = (WHOLE_SHARE * float(slice_ns) / float(period_ns)) as u32;
                group.set_weight(weight.max(2))?;
                group.add(pid.unsigned_abs())?;
                groups.push((pid, group));
                Ok((monotonic_ns(), None))
            }
        }
    }

    /// The processes without reservations have this part of a CPU in all. Only weights have to be told.
    pub(super) fn leave(&mut self, pid: i32, part: f64, guardian: &Guardian) -> Result<(), LabError> {
        if matches!(self, Enforcement::Weights { .. }) {
            let period = Duration::from_secs(1);
            self.reserve(pid, PeriodSlice { period, slice: period.mul_f64(part.max(0.001)) }, guardian)?;
        }
        Ok(())
    }

    /// Asks for another reservation, of which periods begin at once.
    pub(super) fn change(&self, pid: i32, of: PeriodSlice) -> Result<(), LabError> {
        let (period_ns, slice_ns) = (nanos(of.period), nanos(of.slice));
        match self {
            Enforcement::Frontdesk { socket, hard, .. } => {
                let target = Target::Process(pid);
                let reserve = Reserve { target, period_ns, slice_ns, hard: *hard, phase_ns: None };
                reserve_for(socket, reserve).map(drop)
            }
            Enforcement::Deadline => {
                let policy =
                    Policy::Deadline { runtime_ns: slice_ns, deadline_ns: period_ns, period_ns, flags: 0 };
                Ok(sched::set(pid, Attributes { policy, reset_on_fork: true })?)
            }
            Enforcement::Weights { .. } => Ok(()),
        }
    }

    /// Ordinary scheduling for a process again.
    pub(super) fn release(&mut self, pid: i32) -> Result<(), LabError> {
        match self {
            Enforcement::Frontdesk { socket, .. } => {
                reservation(socket, &Query::Release { target: Target::Process(pid) }).map(drop)
            }
            Enforcement::Deadline => {
                let policy = Policy::Other { nice: 0, slice_ns: 0 };
                Ok(sched::set(pid, Attributes { policy, reset_on_fork: false })?)
            }
            // Its group goes when it has ended.
            Enforcement::Weights { .. } => Ok(()),
        }
    }

    /// The processes that there were have ended.
    pub(super) fn clear(&mut self) -> Result<(), LabError> {
        if let Enforcement::Weights { groups, .. } = self {
            groups.drain(..).try_for_each(|(_, group)| group.remove())?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(), LabError> {
        match self {
            Enforcement::Frontdesk { daemon, .. } => Ok(daemon.stop().map(drop)?),
            Enforcement::Deadline => Ok(()),
            Enforcement::Weights { parent, .. } => Ok(parent.remove()?),
        }
    }
}

/// Asks the daemon for a reservation, which it is to keep.
pub(crate) fn reserve_for(socket: &Path, reserve: Reserve) -> Result<Reservation, LabError> {
    let of = reserve.target.to_string();
    let told = reservation(socket, &Query::Reserve(reserve))?;
    match told.trouble {
        Some(trouble) => Err(LabError::Reservation { of, trouble }),
        None => Ok(told),
    }
}

fn reservation(socket: &Path, query: &Query) -> Result<Reservation, LabError> {
    match ask(socket, query)? {
        Answer::Reservation(reservation) => Ok(*reservation),
        _ => {
            Err(ClientError::Nonsense { socket: socket.to_owned(), reason: "another answer".to_owned() }
                .into())
        }
    }
}

/// The next beginning of a period that is aligned to the wall clock, on the monotonic one.
fn boundary(period: u64) -> u64 {
    let wall = nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    monotonic_ns() + period - wall % period
}
