//! `frontdesk replay`.

use crate::recording::{AnyRecording, open, shown, warn_if_incomplete};
use crate::{FAILED, policy};
use frontdesk_engine::Action;
use frontdesk_engine::reservation::{Dispatch, DispatchKind};
use frontdesk_replay::{
    Agreement, Comparison, DecisionDifference, Difference, Mismatch, Redecided, Side, Totals, Verified,
    compare, sample, verify,
};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Differences that are printed for people; --json has all.
const SHOWN: usize = 20;
/// Columns of a VM's name.
const NAME: usize = 16;

/// Run the engine over a recording again.
///
/// Without other options it checks that the same events still give the same actions, and reports the first
/// that differs. If there were reservations, it checks the decisions of their dispatcher, too, and reports
/// the deadlines that were missed.
///
/// With --config it runs two engines, A with the recorded parameters and B with those of the file, and
/// reports what each did and which boosts only one of them gave. With --sampled, B has the recorded
/// parameters, but sees a guest's task only where its vCPU leaves the guest, as a source without exact task
/// switches does (KVM where loads of CR3 do not exit).
///
/// The events are those of the recorded run whatever the engines decide: what a boost that was not given
/// would have changed is not seen.
///
/// Exit status: 0 if the actions are the same, or false boosts keep within `pb_ratio`; 1 if not; 2 if the
/// recording cannot be read.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk replay morning.fdsk
  frontdesk replay morning.fdsk --config careful.toml
  ssh host cat morning.fdsk | frontdesk replay - --sampled --json")]
pub(crate) struct Args {
    /// The recording; - is standard input.
    file: PathBuf,
    /// Compare with these parameters: TOML with the tables [tavs] and [ledger]. What the host could bear of
    /// boosts stays as recorded.
    #[arg(long, value_name = "FILE", conflicts_with = "sampled")]
    config: Option<PathBuf>,
    /// Compare with sampled guest tasks.
    #[arg(long)]
    sampled: bool,
    /// Print only what is about the VM with this name.
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    // Before the recording is opened: it may be a pipe.
    let other = args.config.as_deref().map(policy::load).transpose()?;
    let mut recording = open(&args.file)?;
    let good = match &other {
        Some(other) => {
            differences(args, other, &mut recording)?;
            true
        }
        None if args.sampled => agreement(args, &mut recording)?,
        None => same(args, &mut recording)?,
    };
    warn_if_incomplete(&recording);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn same(args: &Args, recording: &mut AnyRecording) -> anyhow::Result<bool> {
    let verified = verify(recording)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&verified)?);
    } else {
        print!("{}", told(&verified));
    }
    Ok(verified.is_same())
}

fn told(verified: &Verified) -> String {
    let mut text = String::new();
    let Verified { events, actions, seconds, mismatch, reservations } = verified;
    // Writing to a string cannot fail.
    let _ = match mismatch {
        Some(Mismatch { record, at_s, recorded, decided }) => writeln!(
            text,
            "record {record}, {at_s:.6} s after the first event: not the same\n  recorded: {}\n  decided:  {}\n\
             {events} events and {actions} actions before are the same",
            action(recorded.as_ref()),
            action(decided.as_ref()),
        ),
        None => writeln!(text, "{events} events in {seconds:.1} s, {actions} actions, all the same"),
    };
    if let Some(redecided) = reservations {
        text += &of_reservations(redecided);
    }
    text
}

fn of_reservations(redecided: &Redecided) -> String {
    let Redecided { decisions, dispatches, seconds, lost, differences, first, members } = redecided;
    let mut text =
        format!("reservations: {decisions} decisions in {seconds:.1} s, {dispatches} dispatches, ");
    // Writing to a string cannot fail.
    let _ = match first {
        Some(DecisionDifference { record, at_s, recorded, decided }) => writeln!(
            text,
            "{differences} decisions not the same\n  the first is record {record}, {at_s:.6} s after the first decision\n  \
             recorded: {}\n  decided:  {}",
            list(recorded),
            list(decided),
        ),
        None => writeln!(text, "all the same"),
    };
    if *lost > 0 {
        let _ = writeln!(
            text,
            "{lost} decisions came faster than they could be recorded, and were not gone through"
        );
    }
    if !members.is_empty() {
        let (member, periods, missed, stalled) = ("member", "periods", "missed", "in a stall");
        let _ = writeln!(text, "\n{:NAME$} {member:>7} {periods:>10} {missed:>10} {stalled:>11}", "target");
    }
    for member in members {
        let (target, index) = (shown(&member.target, NAME), member.member);
        let (periods, missed, stalled) = (member.periods, member.missed, member.stalled);
        let _ = writeln!(text, "{target:NAME$} {index:>7} {periods:>10} {missed:>10} {stalled:>11}");
    }
    text
}

fn list(dispatches: &[Dispatch]) -> String {
    let one = |dispatch: &Dispatch| {
        let Dispatch { member, cpu, kind } = dispatch;
        let how = match kind {
            DispatchKind::Run { level } => format!("runs at level {level}"),
            DispatchKind::Leftover => "gets what nobody wants".to_owned(),
            DispatchKind::Stop => "stops".to_owned(),
        };
        format!("target {} member {} on cpu{cpu} {how}", member.target.0, member.index)
    };
    if dispatches.is_empty() {
        return "nothing".to_owned();
    }
    dispatches.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn action(action: Option<&Action>) -> String {
    action.map_or_else(|| "nothing".to_owned(), |action| format!("{:?} at {} ns", action.kind, action.at.0))
}

/// Everything that `--json` gives but the differences.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    only_a: u64,
    only_b: u64,
}

fn differences(
    args: &Args,
    other: &frontdesk_engine::Config,
    recording: &mut AnyRecording,
) -> anyhow::Result<()> {
    let wanted = |vm: &str| args.vm.as_deref().is_none_or(|name| name == vm);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut list = String::new();
    let (mut only_a, mut only_b) = (0u64, 0u64);
    let mut failed = Ok(());
    if args.json {
        // Differences may be many: they are written as they come.
        write!(out, "{{\"differences\":[")?;
    }
    let mut comparison = compare(recording, other, |difference| {
        if !wanted(&difference.vm) || failed.is_err() {
            return;
        }
        let before = only_a + only_b;
        *(if difference.only == Side::A { &mut only_a } else { &mut only_b }) += 1;
        if args.json {
            let comma = if before > 0 { ",\n" } else { "\n" };
            failed = out
                .write_all(comma.as_bytes())
                .and_then(|()| Ok(serde_json::to_writer(&mut out, difference)?));
        } else if before < SHOWN as u64 {
            list += &line(difference);
        }
    })?;
    failed?;
    comparison.vms.retain(|vm| wanted(&vm.vm));
    if args.json {
        write!(out, "],\n\"summary\":")?;
        serde_json::to_writer_pretty(&mut out, &Summary { comparison: &comparison, only_a, only_b })?;
        writeln!(out, "}}")?;
    } else {
        write!(out, "{}", table(&comparison))?;
        let both: u64 = comparison.vms.iter().map(|vm| vm.both).sum();
        writeln!(out, "\nBoosts for the same event: {both}; only A: {only_a}; only B: {only_b}")?;
        if !list.is_empty() {
            writeln!(out, "\n{:>12}  only  {:NAME$}  why the other did not", "seconds", "VM")?;
            write!(out, "{list}")?;
            let more = (only_a + only_b).saturating_sub(SHOWN as u64);
            if more > 0 {
                writeln!(out, "and {more} more; --json has all")?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn line(difference: &Difference) -> String {
    let Difference { at_s, vm, only, reason } = difference;
    let only = if *only == Side::A { "A" } else { "B" };
    format!("{at_s:>12.6}  {only:4}  {:NAME$}  {reason}\n", shown(vm, NAME))
}

fn table(comparison: &Comparison) -> String {
    let Comparison { events, seconds, vms } = comparison;
    let mut text =
        format!("{events} events in {seconds:.1} s; A: as recorded, B: with the other parameters\n\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:NAME$} {:>13} {:>11} {:>13} {:>11} {:>11}",
        "VM          A/B", "boosts", "PBHR %", "boosted %", "expired", "share %"
    );
    for vm in vms {
        let pair = |of: &dyn Fn(&Totals) -> String| format!("{}/{}", of(&vm.a), of(&vm.b));
        let hits = |totals: &Totals| {
            totals.pbhr().map_or_else(|| "-".to_owned(), |pbhr| format!("{:.1}", pbhr * 100.0))
        };
        let boosted = |totals: &Totals| {
            format!("{:.2}", 100.0 * totals.boosted_s / totals.ran_s.max(f64::MIN_POSITIVE))
        };
        let _ = writeln!(
            text,
            "{:NAME$} {:>13} {:>11} {:>13} {:>11} {:>11}",
            shown(&vm.vm, NAME),
            pair(&|totals| totals.boosts.to_string()),
            pair(&hits),
            pair(&boosted),
            pair(&|totals| totals.expired.to_string()),
            pair(&|totals| format!("{:.0}", totals.share * 100.0)),
        );
    }
    text
}

fn agreement(args: &Args, recording: &mut AnyRecording) -> anyhow::Result<bool> {
    let mut agreement = sample(recording)?;
    let bounded = agreement.bounded();
    agreement.vms.retain(|vm| args.vm.as_deref().is_none_or(|name| name == vm.vm));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&agreement)?);
        return Ok(bounded);
    }
    let Agreement { events, seconds, pb_ratio, switches, seen, vms } = &agreement;
    let percent = |part: f64, whole: f64| 100.0 * part / whole.max(f64::MIN_POSITIVE);
    #[allow(clippy::cast_precision_loss)] // Percentages for people.
    let of = |part: u64, whole: u64| percent(part as f64, whole as f64);
    println!(
        "{events} events in {seconds:.1} s; a sampler sees {:.1} % of the task switches",
        of(*seen, *switches)
    );
    println!();
    println!(
        "{:NAME$} {:>9} {:>9} {:>9} {:>12} {:>18}",
        "VM", "agreed", "missed", "false", "agreement %", "time in false %"
    );
    for vm in vms {
        let all = vm.agreed + vm.missed + vm.false_boosts;
        let agreed = if all == 0 { "-".to_owned() } else { format!("{:.1}", of(vm.agreed, all)) };
        println!(
            "{:NAME$} {:>9} {:>9} {:>9} {:>12} {:>18.2}",
            shown(&vm.vm, NAME),
            vm.agreed,
            vm.missed,
            vm.false_boosts,
            agreed,
            percent(vm.false_s, vm.ran_s)
        );
    }
    let worst = agreement.vms.iter().map(|vm| vm.worst).fold(0.0, f64::max);
    println!();
    println!("Time in false boosts while a guest computed: at most {:.2} % of a vCPU's", worst * 100.0);
    let verdict = if bounded { "kept" } else { "NOT KEPT" };
    println!("time; pb_ratio allows {:.1} %: {verdict}", pb_ratio * 100.0);
    Ok(bounded)
}
