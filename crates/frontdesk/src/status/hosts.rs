//! The daemons of several hosts, side by side.

use super::{Answered, Args, acts, ask, fold, notes, table, text};
use crate::{FAILED, IMPOSSIBLE, words};
use anyhow::Context;
use frontdesk_control_protocol::Status;
use frontdesk_remote::client::Address;
use serde::Serialize;
use std::io;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;

/// One of them, as JSON has it.
#[derive(Serialize)]
struct Told<'a> {
    host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Asks all at the same time, and tells of them in their order.
pub(super) fn main(hosts: &[Address], args: &Args) -> anyhow::Result<ExitCode> {
    args.remote.check_for_several()?;
    let answers: Vec<anyhow::Result<Answered>> = std::thread::scope(|scope| {
        let asked: Vec<_> = hosts
            .iter()
            .map(|host| std::thread::Builder::new().spawn_scoped(scope, move || ask(host, args, false)))
            .collect();
        let panicked = |_| Err(anyhow::anyhow!("asking it failed"));
        let answer = |thread: io::Result<ScopedJoinHandle<'_, _>>| {
            thread.context(words::NO_THREAD)?.join().unwrap_or_else(panicked)
        };
        asked.into_iter().map(answer).collect()
    });
    let told: Vec<Told<'_>> = hosts
        .iter()
        .zip(&answers)
        .map(|(host, answer)| {
            let (status, error) = match answer {
                Ok(Answered::Told(status)) => (Some(&**status), None),
                Ok(Answered::UnknownVm(message)) => (None, Some(message.clone())),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            Told { host: host.to_string(), status, error }
        })
        .collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&told)?);
    } else if args.why.is_some() {
        print!("{}", words::printable(&in_turn(&told)));
    } else {
        print!("{}", words::printable(&side_by_side(&told)));
    }
    let has_vm = |answer: &anyhow::Result<Answered>| matches!(answer, Ok(Answered::Told(_)));
    // Of a VM it is enough that one host has it.
    let fine = match args.why {
        Some(_) => answers.iter().all(Result::is_ok) && answers.iter().any(has_vm),
        None => answers.iter().all(has_vm),
    };
    let in_trouble = told.iter().any(|of| of.status.is_some_and(Status::in_trouble));
    Ok(match fine && !in_trouble {
        true => ExitCode::SUCCESS,
        false if answers.iter().all(Result::is_err) => ExitCode::from(IMPOSSIBLE),
        false => ExitCode::from(FAILED),
    })
}

/// All about a VM, of each host that has it.
fn in_turn(told: &[Told<'_>]) -> String {
    let texts = told.iter().map(|of| {
        let text = match (of.status, &of.error) {
            (Some(status), _) => text(status, true),
            (None, error) => fold(&format!("{}.", error.as_deref().unwrap_or_default())) + "\n",
        };
        format!("== {} ==\n{text}", of.host)
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// A line for each host, then one for each VM, and what is worth a sentence.
fn side_by_side(told: &[Told<'_>]) -> String {
    let rows = told.iter().map(|of| match of.status {
        Some(status) => row(&of.host, status),
        None => [of.host.as_str(), "no answer", "-", "-", "-", "-", "-"].map(str::to_owned),
    });
    let header = ["host", "daemon", "VMs", "boosts", "p99", "events", "lost"];
    let mut parts = vec![words::table(&header, 2, None, rows)];
    let answered = || told.iter().filter_map(|of| Some((of.host.as_str(), of.status?)));
    if answered().any(|(_, status)| !status.vms.is_empty()) {
        parts.push(table::vms_of_hosts(answered()));
    }
    let errors = told.iter().filter_map(|of| Some(format!("{}: {}.", of.host, of.error.as_ref()?)));
    let notes =
        answered().flat_map(|(host, status)| notes(status).map(move |note| format!("{host}: {note}")));
    let notes: Vec<String> = errors.chain(notes).map(|note| fold(&note)).collect();
    parts.extend((!notes.is_empty()).then(|| notes.join("\n")));
    parts.join("\n\n") + "\n"
}

/// How a daemon does: its boosts of the last minute, and how long after their events they came.
fn row(host: &str, status: &Status) -> [String; 7] {
    let daemon = &status.daemon;
    let latency = &daemon.decision_latency;
    [
        host.to_owned(),
        acts(status),
        status.vms.len().to_string(),
        latency.count.to_string(),
        if latency.count == 0 { "-".to_owned() } else { words::duration(latency.p99_ns) },
        daemon.events.to_string(),
        daemon.lost_events.to_string(),
    ]
}
