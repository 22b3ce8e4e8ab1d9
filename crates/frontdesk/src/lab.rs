//! `frontdesk lab`.

use crate::companion::{GUEST, PLUGIN, REPORTER, own_program};
use crate::outputs::Outputs;
use crate::recording::new_file;
use crate::{FAILED, IMPOSSIBLE};
use frontdesk_lab::{LabConfig, LabError, Progress};
use frontdesk_scenario::{Agent, Daemon, Experiment, Machine, Outcome, Overrides, Scenario, Study, Timeline};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Exit status after Ctrl-C, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Run an experiment on real virtual machines or processes, and compare its arms.
///
/// Boots the VMs that the scenario names on this host, puts the load on them, and runs the arms (the kernel's
/// own scheduler, frontdesk, and bounds) interleaved and repeated. Prints a table of the result and of every
/// bar that the scenario sets. Needs root, QEMU and the packages that `frontdesk doctor` checks. Everything
/// it starts is gone when it ends. A scenario with a table `study` is about reservations on processes, and
/// needs no VMs.
///
/// A result whose FILE is - goes to standard output, and what is printed otherwise to standard error.
///
/// Exit status: 0 if all checks pass, 1 if one fails, 2 if the run could not be made, 130 after Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  frontdesk lab scenarios/echo-mixed.toml --html report.html
  frontdesk lab scenarios/echo-mixed.toml --set vm.cpu.count=2 --set guest.kernel=6.12-cloud
  frontdesk lab scenarios/echo-mixed.toml --arms stock,frontdesk --repeats 1 --duration 10s
  frontdesk lab scenarios/echo-mixed.toml --arms frontdesk --repeats 1 --record echo-mixed.fdsk")]
pub(crate) struct Args {
    /// The scenario file.
    scenario: PathBuf,
    /// Override any key of the scenario: a dotted path, with array entries by number or name
    /// (vm.cpu.count=2).
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The host: this machine, or an emulated one whose guests run under KVM.
    #[arg(long, value_name = "HOST", value_parser = ["this", "kvm"])]
    on: Option<String>,
    /// Repeats of each arm.
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// Measured time of one repeat, such as 20s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Run only these arms, in this order; checks that need others are left out.
    #[arg(long, value_name = "ARM,...", value_delimiter = ',')]
    arms: Vec<String>,
    /// Keep the daemon's recording of the arm in which it acts, for `frontdesk replay`. If there are several
    /// such arms or repeats, each has its name and number before the extension: FILE-ARM-REPEAT. The daemon's
    /// log is kept beside it, as FILE.log.
    #[arg(long, value_name = "FILE", value_parser = new_file)]
    record: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let on = args.on.iter().map(|machine| format!("host.machine={machine}"));
    let overrides = Overrides {
        set: on.chain(args.set.iter().cloned()).collect(),
        repeats: args.repeats,
        duration: args.duration,
        arms: args.arms.clone(),
    };
    let experiment = Experiment::load(&args.scenario, &overrides)?;
    let recordings = match &args.record {
        Some(file) => recordings(file, &experiment)?,
        None => Recordings::new(),
    };
    let messages = args.outputs.check(recordings.values())?;
    let measured = match &experiment {
        Experiment::Vms(scenario) => measure(&args.scenario, scenario, recordings)?,
        Experiment::Processes(study) => measure_study(&args.scenario, study)?,
    };
    let (outcome, timelines) = match measured {
        Ok(result) => result,
        Err(status) => return Ok(status),
    };
    args.outputs.write(&outcome, &timelines)?;
    messages.line(frontdesk_report::table(&outcome, 80, messages.in_colour()));
    let passed = outcome.checks.iter().all(|check| check.pass);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The files of recordings, by arm and number of the repeat.
pub(crate) type Recordings = BTreeMap<(String, u32), PathBuf>;

/// Which recordings are made, and where.
fn recordings(file: &Path, experiment: &Experiment) -> anyhow::Result<Recordings> {
    let Experiment::Vms(scenario) = experiment else {
        anyhow::bail!("--record: a study of reservations on processes is not recorded, only arms on VMs are");
    };
    let acting = scenario.arms.iter().filter(|(_, arm)| arm.daemon == Daemon::Act);
    let runs: Vec<_> =
        acting.flat_map(|(arm, _)| (1..=scenario.repeats).map(|repeat| (arm.clone(), repeat))).collect();
    if let [only] = runs.as_slice() {
        return Ok(Recordings::from([(only.clone(), file.to_owned())]));
    }
    anyhow::ensure!(
        !runs.is_empty(),
        "--record: there is no arm in which the daemon acts, so nothing to record"
    );
    let named = runs.into_iter().map(|(arm, repeat)| {
        let file = numbered(file, &arm, repeat);
        ((arm, repeat), file)
    });
    Ok(named.collect())
}

/// The file's name with that of an arm and the number of a repeat before its extension.
fn numbered(file: &Path, arm: &str, repeat: u32) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{arm}-{repeat}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

/// What came out; or an exit status, if what is to be said about it has been said.
type Measured = Result<(Outcome, Vec<Timeline>), ExitCode>;

/// Runs a scenario on real VMs.
pub(crate) fn measure(path: &Path, scenario: &Scenario, recordings: Recordings) -> anyhow::Result<Measured> {
    let missing = crate::doctor::missing();
    if !missing.is_empty() {
        eprint!("frontdesk: this host cannot run the lab:\n{}", crate::doctor::list(&missing));
        return Ok(Err(ExitCode::from(IMPOSSIBLE)));
    }
    let (guest, frontdesk) = (GUEST.find()?, own_program()?);
    let plugin = (scenario.host.machine == Machine::This).then(|| PLUGIN.find()).transpose()?;
    let reports = scenario.arms.values().any(|arm| arm.agent.is_some_and(Agent::is_ours));
    let reporter = reports.then(|| REPORTER.find()).transpose()?;
    interruptibly(path, |stop, progress| {
        let config = LabConfig { guest, reporter, plugin, frontdesk, recordings, stop, dilation: 1.0 };
        frontdesk_lab::run(scenario, &config, progress)
    })
}

/// Runs a study of reservations on processes.
fn measure_study(path: &Path, study: &Study) -> anyhow::Result<Measured> {
    let frontdesk = own_program()?;
    interruptibly(path, |stop, progress| {
        frontdesk_lab::study(study, &frontdesk, &stop, progress).map(|outcome| (outcome, Vec::new()))
    })
}

/// Runs what can be stopped by a signal, and shows how far it is.
fn interruptibly(
    path: &Path,
    run: impl FnOnce(Arc<AtomicBool>, &dyn Fn(&Progress)) -> Result<(Outcome, Vec<Timeline>), LabError>,
) -> anyhow::Result<Measured> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let bar = progress_bar();
    let result = run(stop, &|progress| show(&bar, progress));
    bar.finish_and_clear();
    match result {
        Ok(result) => Ok(Ok(result)),
        Err(LabError::Interrupted) => {
            eprintln!("frontdesk: interrupted; everything that the run started has been removed");
            Ok(Err(ExitCode::from(INTERRUPTED)))
        }
        Err(LabError::Scenario(violation)) => anyhow::bail!("{}: {violation}", path.display()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar
}

/// Shows a step. Without a terminal each step is a line, so that a log says what a long run is doing.
fn show(bar: &ProgressBar, progress: &Progress) {
    let Progress { done, total, doing, .. } = progress;
    bar.set_length(u64::from(*total));
    bar.set_position(u64::from(*done));
    bar.set_message(doing.clone());
    if bar.is_hidden() {
        eprintln!("{done}/{total} done; {doing}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recordings_of(file: &str, arms: &[&str], repeats: u32) -> Vec<String> {
        let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/echo-mixed.toml");
        let arms = arms.iter().map(|arm| (*arm).to_owned()).collect();
        let overrides = Overrides { arms, repeats: Some(repeats), ..Overrides::default() };
        let experiment = Experiment::load(&scenario, &overrides).unwrap();
        let files = recordings(Path::new(file), &experiment).unwrap();
        files.values().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn one_recording_has_the_name_that_was_given_and_several_have_names_of_their_own() {
        assert_eq!(recordings_of("a.b/c.fdsk", &["stock", "observe", "frontdesk"], 1), ["a.b/c.fdsk"]);
        assert_eq!(
            recordings_of("a.b/c.fdsk", &["frontdesk", "io-only-acting"], 1),
            ["a.b/c-frontdesk-1.fdsk", "a.b/c-io-only-acting-1.fdsk"]
        );
        assert_eq!(recordings_of("a.b/c", &["frontdesk"], 2), ["a.b/c-frontdesk-1", "a.b/c-frontdesk-2"]);
    }
}
