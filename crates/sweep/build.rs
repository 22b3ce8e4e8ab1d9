//! Tells the crate of which commit and sources it is, so that each row can say so, and nodes can be compared.

#[path = "build/sources.rs"]
mod sources;

use std::error::Error;
use std::path::Path;
use std::process::Command;

/// What git says, if this is a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    println!("cargo::rustc-env=FRONTDESK_COMMIT={commit}");
    let own = std::env::var("CARGO_MANIFEST_DIR")?;
    let own = Path::new(&own);
    let (crates, lock) = (sources::crates(own)?, own.join("../../Cargo.lock"));
    println!("cargo::rustc-env=FRONTDESK_SOURCES={:016x}", sources::hash(&crates, &lock)?);
    // Where one of these changes this crate is compiled anew in any case.
    for folder in crates {
        println!("cargo::rerun-if-changed={}", folder.join("src").display());
        println!("cargo::rerun-if-changed={}", folder.join("Cargo.toml").display());
    }
    for file in [lock, own.join("build.rs"), own.join("build")] {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    // The log of HEAD changes with each commit, and when another branch is checked out.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    Ok(())
}
