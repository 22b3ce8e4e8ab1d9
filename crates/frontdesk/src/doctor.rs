//! `frontdesk doctor`.

use crate::FAILED;
use frontdesk_host::doctor::{Finding, Status, examine};
use std::fmt::Write;
use std::process::ExitCode;

/// Say what this host can and cannot do for frontdesk, and what would help.
///
/// Changes nothing. Exit status: 0 if nothing that frontdesk needs is missing, 1 if something is.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let findings = examine();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print!("{}", list(&findings));
    }
    let missing = findings.iter().any(|finding| finding.status == Status::Missing);
    Ok(if missing { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// What this host lacks for running VMs under frontdesk.
pub(crate) fn missing() -> Vec<Finding> {
    examine().into_iter().filter(|finding| finding.status == Status::Missing).collect()
}

/// The findings for people: a line each, and below it what would help.
pub(crate) fn list(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.area.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { area, status, found, advice } in findings {
        let mark = match status {
            Status::Ok => "ok     ",
            Status::Limited => "limited",
            Status::Missing => "MISSING",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{mark}  {area:width$}  {found}");
        if let Some(advice) = advice {
            let _ = writeln!(text, "{:9}{:width$}  -> {advice}", "", "");
        }
    }
    text
}
