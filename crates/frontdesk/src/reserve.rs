//! `frontdesk reserve`, `release`, `pause` and `resume`.

use crate::connect::{Where, refused};
use crate::words;
use anyhow::bail;
use clap::Args;
use frontdesk_control_protocol::{Answer, Query, Reservation, Reserve, Target};
use std::process::ExitCode;
use std::time::Duration;

/// Reserve CPU time for a VM or process: a slice of every period.
///
/// From the answer on, TARGET runs for the slice in each period, whatever else the host does; the reservation
/// it had is replaced. A VM gets one for each vCPU, on CPUs of their own and in lock step. What is asked for
/// is refused if it does not fit; the daemon then says what would.
///
/// TARGET is the name of a VM, a process id, a systemd unit, or the path of a control group. `vm:`, `pid:`,
/// `unit:` and `cgroup:` before it say which, where that is not plain.
///
/// Exit status: 0 if it is reserved, 1 if the daemon refuses, 2 if it could not be asked.
#[derive(Args)]
#[command(after_help = "Examples:
  frontdesk reserve alice --period 5ms --slice 1ms
  frontdesk reserve 4711 --period 10min --slice 1min --hard
  frontdesk reserve render.service --period 100ms --slice 30ms --host host.example")]
pub(crate) struct ReserveArgs {
    /// For whom.
    target: Target,
    /// How often, for example 10ms; from 200us to days.
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    period: u64,
    /// CPU time of each period, for example 2ms.
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    slice: u64,
    /// Nothing beyond the slice, even if the CPU is idle.
    #[arg(long)]
    hard: bool,
    /// Begin the periods so long after the wall clock's multiples of the period, in lock step with other
    /// hosts that do so.
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    phase: Option<u64>,
    /// Print the reservation as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Where,
}

pub(crate) fn reserve(args: &ReserveArgs) -> anyhow::Result<ExitCode> {
    let query = Query::Reserve(Reserve {
        target: args.target.clone(),
        period_ns: args.period,
        slice_ns: args.slice,
        hard: args.hard,
        phase_ns: args.phase,
    });
    ask(&args.daemon, &query, args.json, |reservation| {
        format!("{}: {}", reservation.target, terms(reservation))
    })
}

/// Return a target to ordinary scheduling.
///
/// Exit status: 0 if it is released, 1 if it had no reservation, 2 if the daemon could not be asked.
#[derive(Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    of: OfTarget,
}

/// Stop a target until it is resumed; its reservation stays.
///
/// Exit status: 0 if it is stopped, 1 if it has no reservation, 2 if the daemon could not be asked.
#[derive(Args)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    of: OfTarget,
}

/// Let a paused target run again, as it is reserved.
///
/// Exit status: 0 if it runs, 1 if it has no reservation, 2 if the daemon could not be asked.
#[derive(Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    of: OfTarget,
}

#[derive(Args)]
struct OfTarget {
    /// Which, as it was named when it was reserved.
    target: Target,
    /// Print the reservation as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Where,
}

impl OfTarget {
    fn ask(&self, query: impl Fn(Target) -> Query, done: &str) -> anyhow::Result<ExitCode> {
        let words =
            |reservation: &Reservation| format!("{}: {done}, {}", reservation.target, account(reservation));
        ask(&self.daemon, &query(self.target.clone()), self.json, words)
    }
}

pub(crate) fn release(args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    args.of.ask(|target| Query::Release { target }, "released")
}

pub(crate) fn pause(args: &PauseArgs) -> anyhow::Result<ExitCode> {
    args.of.ask(|target| Query::Pause { target }, "paused")
}

pub(crate) fn resume(args: &ResumeArgs) -> anyhow::Result<ExitCode> {
    args.of.ask(|target| Query::Resume { target }, "resumed")
}

fn ask(
    daemon: &Where,
    query: &Query,
    json: bool,
    words: impl Fn(&Reservation) -> String,
) -> anyhow::Result<ExitCode> {
    match daemon.connect()?.ask(query)? {
        Ok(Answer::Reservation(reservation)) if json => {
            println!("{}", serde_json::to_string_pretty(&reservation)?);
        }
        Ok(Answer::Reservation(reservation)) => println!("{}", words::printable(&words(&reservation))),
        Ok(_) => bail!("the daemon answers something else"),
        Err(refusal) => return refused(refusal, json),
    }
    Ok(ExitCode::SUCCESS)
}

/// What is reserved, where, and what that is of the host.
fn terms(reservation: &Reservation) -> String {
    let Reservation { slice_ns, period_ns, .. } = reservation;
    let cpus: Vec<String> = reservation.cpus.iter().map(|cpu| format!("cpu{cpu}")).collect();
    let most = if reservation.hard { " and no more" } else { "" };
    format!(
        "{} every {}{most} on {}, {} of the host",
        words::time(*slice_ns),
        words::time(*period_ns),
        cpus.join(", "),
        words::percent(reservation.host_ratio)
    )
}

/// What came of it so far.
fn account(reservation: &Reservation) -> String {
    format!(
        "{} of {}",
        words::count(reservation.misses, "miss", "misses"),
        words::count(reservation.periods, "period", "periods")
    )
}

/// A time as people write it, in nanoseconds.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let time: Duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(time.as_nanos()).map_err(|_| "it is longer than 584 years".to_owned())
}
