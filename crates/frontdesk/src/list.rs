//! `frontdesk list` and `frontdesk ps`.

use crate::connect::{Daemon, Where, refused};
use crate::words;
use anyhow::bail;
use clap::Args;
use frontdesk_control_protocol::{
    Answer, Query, Refusal, Reservation, Reservations, Target, TargetStatus, Targets,
};
use std::process::ExitCode;

/// List the reservations, what came of them, and what can still be reserved.
///
/// Exit status: 0 if all is well, 1 if something is wrong with a target, 2 if no daemon answers.
#[derive(Args)]
#[command(after_help = "Examples:
  frontdesk list
  frontdesk list --json | jq '.reservations[] | {target, misses}'")]
pub(crate) struct ListArgs {
    /// Print all of it as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Where,
}

/// Asks for the reservations.
pub(crate) fn reservations(daemon: &mut Daemon) -> anyhow::Result<Result<Reservations, Refusal>> {
    match daemon.ask(&Query::Reservations {})? {
        Ok(Answer::Reservations(all)) => Ok(Ok(*all)),
        Ok(_) => bail!("the daemon answers something else"),
        Err(refusal) => Ok(Err(refusal)),
    }
}

pub(crate) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let all = match reservations(&mut args.daemon.connect()?)? {
        Ok(all) => all,
        Err(refusal) => return refused(refusal, args.json),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print!("{}", words::printable(&text(&all)));
    }
    let well = all.reservations.iter().all(|reservation| reservation.trouble.is_none());
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(crate::FAILED) })
}

fn text(all: &Reservations) -> String {
    let free: Vec<String> = all
        .cpus
        .iter()
        .map(|room| format!("{} of cpu{}", words::percent(room.free_ratio), room.cpu))
        .collect();
    let mut parts = vec![format!("free: {} (by {})", free.join(", "), all.mechanism)];
    if all.reservations.is_empty() {
        parts.insert(0, "Nothing is reserved.".to_owned());
    } else {
        let header =
            ["target", "name", "slice", "period", "CPUs", "cost", "used", "periods", "misses", "worst"];
        parts.insert(0, words::table(&header, 2, None, all.reservations.iter().map(row)));
    }
    let troubles = all.reservations.iter().filter_map(|one| Some((one, one.trouble.as_ref()?)));
    parts.extend(troubles.map(|(one, trouble)| format!("{}: {trouble}.", one.target)));
    parts.join("\n\n") + "\n"
}

/// The cells of a reservation.
pub(crate) fn row(one: &Reservation) -> [String; 10] {
    let mark = if one.paused {
        " (paused)"
    } else if one.hard {
        " (hard)"
    } else {
        ""
    };
    let cpus: Vec<String> = one.cpus.iter().map(ToString::to_string).collect();
    [
        words::name(&one.target.to_string()),
        words::name(&one.name),
        words::time(one.slice_ns) + mark,
        words::time(one.period_ns),
        cpus.join(","),
        words::percent(one.host_ratio),
        one.efficiency_ratio.map_or_else(|| "-".to_owned(), words::percent),
        one.periods.to_string(),
        one.misses.to_string(),
        words::duration(one.worst_miss_ns),
    ]
}

/// Find what CPU time can be reserved for: VMs by name, then processes by their use of CPUs.
///
/// Exit status: 0 if something is found, 1 if not, 2 if no daemon answers.
#[derive(Args)]
#[command(after_help = "Examples:
  frontdesk ps
  frontdesk ps firefox --host host.example")]
pub(crate) struct PsArgs {
    /// Only those whose name or unit contains this.
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Print all of it as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Where,
}

/// Asks for what can be reserved for.
pub(crate) fn targets(daemon: &mut Daemon) -> anyhow::Result<Result<Targets, Refusal>> {
    match daemon.ask(&Query::Targets {})? {
        Ok(Answer::Targets(targets)) => Ok(Ok(*targets)),
        Ok(_) => bail!("the daemon answers something else"),
        Err(refusal) => Ok(Err(refusal)),
    }
}

pub(crate) fn ps(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let mut found = match targets(&mut args.daemon.connect()?)? {
        Ok(found) => found,
        Err(refusal) => return refused(refusal, args.json),
    };
    if let Some(text) = &args.text {
        let has = |name: &str| name.to_lowercase().contains(&text.to_lowercase());
        found.targets.retain(|target| has(&target.name) || target.unit.as_deref().is_some_and(has));
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else if !found.targets.is_empty() {
        let header = ["target", "name", "unit", "CPU", "threads", "pid", "uid", "reserved"];
        println!("{}", words::printable(&words::table(&header, 3, None, found.targets.iter().map(process))));
        if found.left_off > 0 {
            println!("and {} that use less CPU", words::count(found.left_off as u64, "process", "processes"));
        }
    }
    Ok(if found.targets.is_empty() { ExitCode::from(crate::FAILED) } else { ExitCode::SUCCESS })
}

fn process(found: &TargetStatus) -> [String; 8] {
    let target = match &found.target {
        // As it is typed.
        Target::Process(pid) => pid.to_string(),
        target => target.to_string(),
    };
    [
        words::name(&target),
        words::name(&found.name),
        found.unit.as_deref().map_or_else(|| "-".to_owned(), words::name),
        words::percent(found.cpu_ratio),
        found.threads.to_string(),
        found.pid.to_string(),
        found.uid.to_string(),
        if found.reserved { "yes" } else { "-" }.to_owned(),
    ]
}
