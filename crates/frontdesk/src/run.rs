//! `frontdesk run`.

use crate::companion::own_program;
use crate::recording::new_file;
use crate::words;
use anyhow::{Context, ensure};
use frontdesk_host::config::{DEFAULT_PATH, Settings};
use frontdesk_host::{Daemon, DaemonConfig, LOCK, Reloader};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Follow QEMU virtual machines and keep them responsive, until told to end.
///
/// VMs are followed as they come and go. Give each a QMP socket for frontdesk (`-qmp
/// unix:PATH,server=on,wait=off`), a CPU control group of its own, and load frontdesk's plugin (`-plugin
/// libfrontdesk_tcg_plugin.so`), which tells its guest tasks apart. libvirt's VMs need no socket. At the end,
/// however it comes, every VM is put back as it was.
#[derive(Clone, clap::Args)]
#[command(after_help = "Example:
  frontdesk run --qmp '/run/vms/*.qmp'

SIGHUP makes it read its configuration again. What is wrong with that is told, and the former one stays.")]
pub(crate) struct Args {
    /// QMP sockets of VMs to follow, by path or pattern, beside those that the configuration names.
    #[arg(long, value_name = "SOCKET")]
    qmp: Vec<PathBuf>,
    /// Configuration, as TOML; the defaults are the papers' [default: /etc/frontdesk/frontdesk.toml, if it is
    /// there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say what is wrong with the configuration, or print all that holds, and end.
    #[arg(long)]
    check: bool,
    /// Watch and infer only; change nothing on the host.
    #[arg(long)]
    observe: bool,
    /// Record every event and action for a later look.
    #[arg(long, value_name = "FILE", value_parser = new_file)]
    record: Option<PathBuf>,
    /// Run the daemon on this CPU only; once for each if several. Without it, on those that the configuration
    /// names.
    #[arg(long, value_name = "CPU")]
    cpu: Vec<u16>,
    /// Answer `frontdesk status` and `frontdesk top` at this Unix socket instead of the configured one.
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let settings = settings(args)?;
    if args.check {
        print!("{}", toml::to_string(&settings).context("cannot print the configuration")?);
        return Ok(ExitCode::SUCCESS);
    }
    let config = DaemonConfig {
        settings,
        act: !args.observe,
        record: args.record.clone(),
        guardian: (own_program()?, frontdesk_guardian::GUARDIAN_ARGUMENT.to_owned()),
        lock: LOCK.into(),
    };
    let stop = frontdesk_host::stop_signal().context("cannot handle signals")?;
    let reload = Signals::new([SIGHUP]).context("cannot handle signals")?;
    let mut daemon = Daemon::start(&config)?;
    reload_on(reload, args.clone(), daemon.reloader())?;
    let names: Vec<&str> = daemon.vm_names().collect();
    match names.len() {
        0 => println!("following no VM yet: waiting for one"),
        count => println!("following {count} VMs: {}", names.join(", ")),
    }
    std::io::stdout().flush()?;
    daemon.run(stop)?;
    daemon.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration file with what the command line adds.
fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut settings = match &args.config {
        Some(path) => Settings::load(path)?,
        None if Path::new(DEFAULT_PATH).exists() => Settings::load(Path::new(DEFAULT_PATH))?,
        None => Settings::default(),
    };
    for socket in &args.qmp {
        let socket = std::path::absolute(socket).with_context(|| format!("--qmp {}", socket.display()))?;
        settings.vms.qmp.push(socket.to_str().context("--qmp: the path is not UTF-8")?.to_owned());
    }
    if let Some(socket) = &args.socket {
        settings.control.socket =
            std::path::absolute(socket).with_context(|| format!("--socket {}", socket.display()))?;
    }
    if !args.cpu.is_empty() {
        settings.daemon.cpus.clone_from(&args.cpu);
    }
    if let Some(socket) = &args.socket {
        settings.control.socket.clone_from(socket);
    }
    let problems = settings.problems();
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(settings)
}

/// Reads the configuration again whenever the process is told to. The thread ends with the process.
fn reload_on(mut signals: Signals, args: Args, reloader: Reloader) -> anyhow::Result<()> {
    let body = move || {
        for _ in signals.forever() {
            match settings(&args) {
                Ok(settings) => reloader.reload(settings),
                Err(error) => reloader.refuse(frontdesk_scenario::sentence(&*error)),
            }
        }
    };
    std::thread::Builder::new().name("reload".into()).spawn(body).context(words::NO_THREAD)?;
    Ok(())
}
