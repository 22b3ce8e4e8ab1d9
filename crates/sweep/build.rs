//! Tells the crate of which commit it is, so that each row can say so.

use std::process::Command;

/// What git says, if this is a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    println!("cargo::rustc-env=FRONTDESK_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    // The log of HEAD changes with each commit, and when another branch is checked out.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}
