//! The workloads. Each runs as a process of its own, so that it has an address space of its own; so does
//! each of its tasks.

mod disk;
mod messages;
mod play;
pub(crate) mod process;
mod program;
mod reporter;
mod servers;
mod spikes;
mod storm;
mod team;

use crate::report::ReportRecorder;
use frontdesk_lab_guest::{Job, Measurement, Work};
use frontdesk_workload::{Protocol, Storm, WorkloadKind};
use process::{BOUNCE, BRIEF, NOTHING, WorkloadError, address, failed, ready, spin, task};
use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};

/// First argument of a job. Its description as JSON follows, then the file that it records to and the file to
/// which it writes to join its control group, if there are such files.
pub(crate) const JOB: &str = "job";

/// First argument of a piece of work. The same follow as for a job.
pub(crate) const WORK: &str = "work";

/// Is what the arguments say.
pub(crate) fn run(arguments: &[&str]) -> Result<(), WorkloadError> {
    match *arguments {
        [role @ (JOB | WORK), json, ref files @ ..] => {
            let (records, group) = (files.first().map(Path::new), files.get(1));
            if let Some(group) = group {
                // 0 is the process that writes.
                std::fs::write(group, "0").map_err(|error| format!("joining {group}: {error}"))?;
            }
            if role == WORK {
                return measure(serde_json::from_str(json)?);
            }
            serve(serde_json::from_str(json)?, ReportRecorder::new(records)?).map(|never| match never {})
        }
        [NOTHING] => Ok(()),
        [BRIEF] => {
            spin(1 << 14);
            Ok(())
        }
        [BOUNCE] => storm::bounce(),
        _ => Err("usage: frontdesk-lab-guest job JSON | work JSON\n\
                  It is the init of a lab VM; the JSON is a Job or a Work of the control protocol."
            .into()),
    }
}

/// Does a job; returns only if it fails.
fn serve(job: Job, recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    let (kind, steps_per_s) = match job {
        Job::Workload { kind, steps_per_s } => (kind, steps_per_s),
        Job::Reporter { program, isolate } => return reporter::run(&program, isolate),
        Job::SpikeProtection => return spikes::run(),
    };
    let steps = |cost: Duration| {
        let steps = cost.as_nanos() * u128::from(steps_per_s) / 1_000_000_000;
        u64::try_from(steps).unwrap_or(u64::MAX)
    };
    match kind {
        WorkloadKind::Hog => hog(recorder),
        WorkloadKind::Echo { protocol: Protocol::Tcp, port, cost } => {
            servers::echo_tcp(port, steps(cost), recorder)
        }
        WorkloadKind::Echo { protocol: Protocol::Udp, port, cost } => {
            servers::echo_udp(port, steps(cost), recorder)
        }
        WorkloadKind::Shift { port, period } => servers::shift(port, period, recorder),
        WorkloadKind::Sink { port } => servers::sink(port, recorder),
        WorkloadKind::ReadFiles => disk::read_files(recorder),
        WorkloadKind::ReadBurn { cost } => disk::read_burn(steps(cost), recorder),
        WorkloadKind::ReadBurst { port, reads, read_kib, save_kib } => {
            disk::read_burst(port, reads, [read_kib, save_kib].map(|kib| u64::from(kib) << 10), recorder)
        }
        WorkloadKind::WriteSync { write_kib } => disk::write_sync(u64::from(write_kib) << 10, recorder),
        WorkloadKind::Messages { tasks, rounds } => messages::run(tasks, rounds, recorder),
        WorkloadKind::Team { threads, barrier } => team::run(threads, barrier.map(steps), recorder),
        WorkloadKind::Churn => churn(recorder),
        WorkloadKind::Program { command, repeat: true, cold } => {
            program::repeat(&with_host(command)?, cold, recorder)
        }
        WorkloadKind::Program { command, repeat: false, cold } => program::keep(&with_host(command)?, cold),
        WorkloadKind::Play { film, at } => play::run(film, at, recorder),
        WorkloadKind::RtApp { .. }
        | WorkloadKind::Video { .. }
        | WorkloadKind::Scroll { .. }
        | WorkloadKind::App { .. }
        | WorkloadKind::Boot => Err("this only the simulator runs".into()),
        WorkloadKind::Storm { of: Storm::Packets } => storm::packets(recorder),
        WorkloadKind::Storm { of: Storm::Tasks } => storm::tasks(recorder),
        WorkloadKind::Storm { of: Storm::Switches } => storm::switches(recorder),
    }
}

/// The command of a program with the address of the host in place of `{host}`.
fn with_host(command: Vec<String>) -> Result<Vec<String>, WorkloadError> {
    const HOST: &str = "{host}";
    if !command.iter().any(|word| word.contains(HOST)) {
        return Ok(command);
    }
    let host = address()?.host().to_string();
    Ok(command.iter().map(|word| word.replace(HOST, &host)).collect())
}

/// Does a piece of work and prints its [`Measurement`].
fn measure(work: Work) -> Result<(), WorkloadError> {
    ready();
    let begin = Instant::now();
    match work {
        Work::Spin { steps } => spin(steps),
        Work::Fork { rounds } => {
            for _ in 0..rounds {
                task(NOTHING).status()?;
            }
        }
    }
    println!("{}", serde_json::to_string(&Measurement { elapsed: begin.elapsed() })?);
    Ok(())
}

fn hog(mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    ready();
    loop {
        spin(1 << 20);
        recorder.count(1, 0)?;
    }
}

fn churn(mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    ready();
    loop {
        let status = task(BRIEF).status().map_err(failed("starting a task"))?;
        if !status.success() {
            return Err(format!("a task failed: {status}").into());
        }
        recorder.count(1, 0)?;
    }
}
