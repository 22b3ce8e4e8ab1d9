//! The frontdesk command: experiments on real VMs, the daemon, its reservations and recordings, and what the
//! host can do.

#![forbid(unsafe_code)]

mod capacity;
mod companion;
mod compare;
mod connect;
mod disk;
mod doctor;
mod export;
mod lab;
mod list;
mod manual;
mod outputs;
mod policy;
mod record;
mod recording;
mod replay;
mod reproduce;
mod reserve;
mod run;
mod serve;
mod sim;
mod status;
mod sweep;
mod top;
mod words;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Exit status: something was measured or examined, and is not as it should be.
const FAILED: u8 = 1;
/// Exit status: what was asked for could not be done.
const IMPOSSIBLE: u8 = 2;

/// Keeps consolidated desktops responsive.
///
/// frontdesk infers from outside which work in a virtual machine someone waits for, and gives that work the
/// CPU first, inside each VM's fair share. Nothing is changed in the guests.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Lab(lab::Args),
    Sim(sim::Args),
    Sweep(sweep::Args),
    Capacity(capacity::Args),
    Compare(compare::Args),
    Reproduce(reproduce::Args),
    Doctor(doctor::Args),
    Run(run::Args),
    Status(status::Args),
    Top(top::Args),
    Reserve(reserve::ReserveArgs),
    Release(reserve::ReleaseArgs),
    Pause(reserve::PauseArgs),
    Resume(reserve::ResumeArgs),
    List(list::ListArgs),
    Ps(list::PsArgs),
    Serve(serve::ServeArgs),
    Disk(disk::DiskArgs),
    Login(connect::LoginArgs),
    Logout(connect::LogoutArgs),
    Record(record::Args),
    Replay(replay::Args),
    Export(export::Args),
    Completions(manual::CompletionsArgs),
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    /// Restores what frontdesk changed when its starter ends; started by frontdesk itself.
    #[command(hide = true, name = frontdesk_guardian::GUARDIAN_ARGUMENT)]
    Guardian,
    /// A process that the lab schedules; started by the lab itself.
    #[command(hide = true, name = frontdesk_lab::WORKER_ARGUMENT)]
    Worker {
        arguments: Vec<String>,
    },
    /// A disk that is slow; started by the lab itself.
    #[command(hide = true, name = frontdesk_lab::SLOW_DISK_ARGUMENT)]
    SlowDisk {
        setup: String,
    },
    /// The lab in an emulated host; started by the lab itself.
    #[command(hide = true, name = frontdesk_lab::INSIDE_ARGUMENT)]
    Inside,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if matches!(cli.command, Command::Guardian) {
        // Before anything else is opened: it keeps nothing but its connection.
        return frontdesk_guardian::run();
    }
    if let Command::Worker { arguments } = &cli.command {
        return frontdesk_lab::work(arguments);
    }
    if let Command::SlowDisk { setup } = &cli.command {
        return frontdesk_lab::serve_slow_disk(setup);
    }
    let filter = tracing_subscriber::EnvFilter::try_from_env("FRONTDESK_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| "info,libbpf=off".into()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .with_target(false)
        .init();
    let result = match cli.command {
        Command::Lab(args) => lab::main(&args),
        Command::Sim(args) => sim::main(&args),
        Command::Sweep(args) => sweep::main(&args),
        Command::Capacity(args) => capacity::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Reproduce(args) => reproduce::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Status(args) => status::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Reserve(args) => reserve::reserve(&args),
        Command::Release(args) => reserve::release(&args),
        Command::Pause(args) => reserve::pause(&args),
        Command::Resume(args) => reserve::resume(&args),
        Command::List(args) => list::list(&args),
        Command::Ps(args) => list::ps(&args),
        Command::Serve(args) => serve::main(&args),
        Command::Disk(args) => disk::main(&args),
        Command::Login(args) => connect::login(&args),
        Command::Logout(args) => connect::logout(&args),
        Command::Record(args) => record::main(&args),
        Command::Replay(args) => replay::main(&args),
        Command::Export(args) => export::main(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Manual(args) => manual::manual(&args),
        Command::Inside => Ok(frontdesk_lab::inside()),
        Command::Guardian | Command::Worker { .. } | Command::SlowDisk { .. } => Ok(ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("frontdesk: {}", frontdesk_scenario::sentence(&*error));
        ExitCode::from(IMPOSSIBLE)
    })
}
