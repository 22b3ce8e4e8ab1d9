//! `frontdesk status`.

pub(crate) mod disk;
mod hosts;
pub(crate) mod table;
pub(crate) mod why;

use crate::connect::{Daemon, RemoteArgs};
use crate::{FAILED, words};
use frontdesk_control_protocol::{
    Answer, ClientError, DEFAULT_SOCKET, Query, RefusalKind, Status, Usage, ask_status,
};
use frontdesk_remote::client::Address;
use std::path::PathBuf;
use std::process::ExitCode;

/// Columns of the output.
const WIDTH: u16 = 80;

/// Say what the daemon sees and does: its VMs, what they use, and how they are boosted.
///
/// With --host, those of other hosts, on which `frontdesk serve` runs; several are asked at the same time,
/// and told side by side. To these one has to be logged in (`frontdesk login`), or to give a file with the
/// password that they share: nobody is asked for several at once.
///
/// Exit status: 0 if all is well, 1 if a VM is in trouble, no VM has the name, or one of several hosts does
/// not answer, 2 if no daemon answers.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk status
  frontdesk status --why alice
  frontdesk status --json | jq '.vms[] | {name, debt_ns}'
  frontdesk status --host vdi-1,vdi-2,vdi-3")]
pub(crate) struct Args {
    /// Tell everything about one VM, and why it was or was not boosted in the last minute.
    #[arg(long, value_name = "VM")]
    why: Option<String>,
    /// Print all of it as JSON; of several hosts as an array, each with `host`, and `status` or `error`.
    #[arg(long)]
    json: bool,
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The daemons of these hosts, separated by commas [port: 9742].
    #[arg(long, value_name = "HOST[:PORT],...", value_delimiter = ',', conflicts_with = "socket")]
    host: Vec<Address>,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// What a daemon answered.
enum Answered {
    Told(Box<Status>),
    /// It is there, and has no VM of that name.
    UnknownVm(String),
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let answered = match args.host.as_slice() {
        [] => match ask_status(&args.socket, args.why.as_deref()) {
            Ok(status) => Answered::Told(Box::new(status)),
            Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::UnknownVm => {
                Answered::UnknownVm(refusal.message)
            }
            Err(error) => return Err(error.into()),
        },
        [host] => ask(host, args, true)?,
        several => return hosts::main(several, args),
    };
    let status = match answered {
        Answered::Told(status) => status,
        Answered::UnknownVm(message) => {
            eprintln!("frontdesk: {}", words::printable(&message));
            return Ok(ExitCode::from(FAILED));
        }
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", words::printable(&text(&status, args.why.is_some())));
    }
    Ok(if status.in_trouble() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// Asks the daemon of another host.
fn ask(host: &Address, args: &Args, may_ask: bool) -> anyhow::Result<Answered> {
    let mut daemon = Daemon::of_host(host, &args.remote, may_ask)?;
    match daemon.ask(&Query::Status { vm: args.why.clone() })? {
        Ok(Answer::Status(status)) => Ok(Answered::Told(status)),
        Err(refusal) if refusal.kind == RefusalKind::UnknownVm => Ok(Answered::UnknownVm(refusal.message)),
        Err(refusal) => anyhow::bail!("the daemon refuses: {}", words::printable(&refusal.message)),
        Ok(_) => anyhow::bail!("the daemon answered something else"),
    }
}

/// The state for people, at most [`WIDTH`] columns wide where names allow it.
fn text(status: &Status, why: bool) -> String {
    let mut parts = vec![head(status)];
    parts.extend(status.daemon.ejection.as_ref().map(|ejection| fold(&format!("Note: {ejection}."))));
    if status.vms.is_empty() {
        parts.push("No VM is followed.".to_owned());
    } else {
        parts.push(table::vms(status));
    }
    let notes: Vec<String> = notes(status).map(|note| fold(&note)).collect();
    if !notes.is_empty() && !why {
        parts.push(notes.join("\n"));
    }
    if why {
        for vm in &status.vms {
            parts.extend(why::words(status, vm).iter().map(|paragraph| fold(paragraph)));
            parts.push(fold(&format!("Ports: {}.", table::ports(status, vm))));
            parts.push(table::vcpus(vm));
            parts.extend(table::tasks(status, vm));
        }
    }
    parts.join("\n\n") + "\n"
}

/// What is worth a sentence: troubles, what is not heard, films and disks.
fn notes(status: &Status) -> impl Iterator<Item = String> {
    let troubled = status.vms.iter().filter_map(|vm| Some((vm, vm.trouble.as_ref()?)));
    let troubles = troubled.map(|(vm, trouble)| format!("{}: {trouble}.", words::name(&vm.name)));
    let unheard = status.vms.iter().flat_map(|vm| vm.unheard.iter().map(move |unheard| (vm, unheard)));
    let unheard = unheard.map(|(vm, unheard)| format!("{}: {unheard}.", words::name(&vm.name)));
    let plays = status.vms.iter().filter_map(|vm| {
        let rate = table::frame_rate(vm)?;
        Some(format!("{} plays, and shows {rate:.1} frames a second.", words::name(&vm.name)))
    });
    let disks = status.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)));
    let disks = disks.map(|(vm, disk)| format!("{}: {}.", words::name(&vm.name), disk::line(disk)));
    troubles.chain(unheard).chain(plays).chain(disks)
}

/// The lines about the daemon itself.
fn head(status: &Status) -> String {
    let daemon = &status.daemon;
    let up = status.at_ns.saturating_sub(daemon.since_ns);
    let acts = acts(status);
    let latency = &daemon.decision_latency;
    let decisions = if latency.count == 0 {
        "no boost in the last minute".to_owned()
    } else {
        format!(
            "{} lately, {} after their events (p99 {}, max {})",
            words::count(latency.count, "boost", "boosts"),
            words::duration(latency.p50_ns),
            words::duration(latency.p99_ns),
            words::duration(latency.max_ns),
        )
    };
    let hears = textwrap::Options::new(usize::from(WIDTH))
        .initial_indent("hears:     ")
        .subsequent_indent("           ");
    let in_use = daemon.sources.iter().filter(|source| source.in_use);
    let sources: Vec<String> = in_use.map(|source| format!("{} ({})", source.name, source.found)).collect();
    let memory: usize = status.vms.iter().map(|vm| vm.memory_bytes).sum();
    let own_cpu = daemon.cpu_seconds * 1e9 / (up.max(1) as f64);
    let events = match daemon.lost_events {
        0 => "none lost".to_owned(),
        lost => format!("{lost} LOST"),
    };
    let gifts =
        |of: fn(&Usage) -> u64| status.vms.iter().filter_map(|vm| vm.charged.as_ref()).map(of).sum::<u64>();
    let fast_path = match gifts(|used| used.gifts) {
        0 => String::new(),
        given => {
            let taken_over = gifts(|used| used.gifts_taken_over);
            format!(
                "\nfast path: {} by the kernel, {} revoked or ended",
                words::count(given, "boost", "boosts"),
                given.saturating_sub(taken_over)
            )
        }
    };
    [
        format!("frontdesk {}, pid {}, {acts} for {}", daemon.version, daemon.pid, words::duration(up)),
        textwrap::fill(&sources.join(", "), hears),
        format!("events:    {}, {events}", daemon.events),
        format!("decisions: {decisions}{fast_path}"),
        format!(
            "uses:      {} of a CPU, {} for what it knows of VMs",
            words::percent(own_cpu),
            words::bytes(memory)
        ),
    ]
    .join("\n")
}

/// What the daemon does about what it sees.
fn acts(status: &Status) -> String {
    match status.daemon.mechanism.as_str() {
        _ if !status.daemon.acting => "observing only".to_owned(),
        "none" => "watching only".to_owned(),
        mechanism => format!("acting by {mechanism}"),
    }
}

fn fold(text: &str) -> String {
    textwrap::fill(text, usize::from(WIDTH))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use frontdesk_engine::{
        AsymmetricExplain, BackgroundExplain, EpisodeCause, EpisodeExplain, MultimediaExplain, PlayerExplain,
        TaskId, Time,
    };

    /// A state as a daemon told it.
    pub(crate) fn sample() -> Status {
        serde_json::from_str(include_str!("status/sample.json")).unwrap()
    }

    /// A film, as an engine tells of it.
    pub(crate) fn playing() -> MultimediaExplain {
        let player = PlayerExplain {
            task: TaskId(8192),
            gpu: false,
            since: Time(1),
            frame_rate: 23.94,
            desired_rate: 24.0,
            share_permille: 2000,
        };
        MultimediaExplain {
            players: vec![player],
            share_permille: 2000,
            boosts: 120,
            in_debt: 5,
            limited: 2,
            boosted_ns: 300_000_000,
        }
    }

    /// Somebody waits for what they started 1.5 s ago, and one of two vCPUs is slow.
    pub(crate) fn waiting(at_ns: u64) -> AsymmetricExplain {
        let episode = EpisodeExplain {
            cause: EpisodeCause::Enter,
            since: Time(at_ns - 1_500_000_000),
            until: Time(at_ns + 3_500_000_000),
            acts: true,
            slow: vec![0],
        };
        let background =
            |task, load_permille| BackgroundExplain { task: TaskId(task), since: Time(1), load_permille };
        AsymmetricExplain {
            episode: Some(episode),
            background: vec![background(8192, 1900), background(0x77_0000, 510)],
            sound_client: None,
            slowed: 120,
            restored: 45,
        }
    }

    fn width(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap()
    }

    #[test]
    fn the_state_fits_a_terminal() {
        let text = text(&sample(), false);
        insta::assert_snapshot!(text);
        assert!(width(&text) <= 80, "{} columns", width(&text));
    }

    #[test]
    fn one_vm_is_told_in_full() {
        let mut status = sample();
        status.vms.truncate(1);
        let text = text(&status, true);
        insta::assert_snapshot!(text);
        assert!(width(&text) <= 80, "{} columns", width(&text));
    }

    #[test]
    fn what_sched_ext_charged_takes_the_place_of_debts() {
        let mut status = sample();
        status.daemon.mechanism = "sched_ext".to_owned();
        status.vms[0].charged = Some(Usage {
            consumed_ns: 604_000_000,
            boosted_ns: 1_250_000,
            runs: 40,
            boosted_runs: 5,
            gifts: 4,
            gifts_taken_over: 3,
        });
        let unheard = "packets that come by macvtap are not heard; use a tap in a bridge";
        status.vms[0].unheard = vec![unheard.to_owned()];
        let text = text(&status, false);
        insta::assert_snapshot!(text);
        assert!(width(&text) <= 80, "{} columns", width(&text));
    }

    #[test]
    fn who_plays_is_told_below_the_table() {
        let mut status = sample();
        status.vms[0].engine.multimedia = Some(playing());
        let told = text(&status, false);
        assert!(told.contains("\nalice plays, and shows 23.9 frames a second.\n"), "{told}");
        status.vms[0].engine.multimedia.as_mut().unwrap().players.clear();
        assert!(!text(&status, false).contains(" plays"));
    }

    #[test]
    fn a_daemon_that_can_no_longer_boost_says_so() {
        let mut status = sample();
        status.vms.clear();
        status.daemon.mechanism = "none".to_owned();
        status.daemon.ejection = Some("the kernel has ejected frontdesk's scheduler (sysrq-S)".to_owned());
        let text = text(&status, false);
        assert!(text.contains("watching only for"), "{text}");
        assert!(
            text.contains("\n\nNote: the kernel has ejected frontdesk's scheduler (sysrq-S).\n"),
            "{text}"
        );
    }

    #[test]
    fn a_daemon_without_vms_says_so() {
        let mut status = sample();
        status.vms.clear();
        status.daemon.acting = false;
        status.daemon.lost_events = 3;
        insta::assert_snapshot!(text(&status, false));
    }
}
