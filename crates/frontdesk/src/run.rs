//! `frontdesk run`.

use crate::companion::own_program;
use crate::policy;
use anyhow::Context;
use frontdesk_host::{Daemon, DaemonConfig};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Follow running QEMU virtual machines and keep them responsive, until told to end.
///
/// Give each VM a QMP socket for frontdesk (`-qmp unix:PATH,server=on,wait=off`), a CPU control group of its own, and load frontdesk's
/// plugin (`-plugin libfrontdesk_tcg_plugin.so`), which tells its guest tasks apart. At the end, however it comes, every VM is put
/// back as it was.
#[derive(clap::Args)]
#[command(after_help = "Example:
  frontdesk run --qmp /run/vm/alice.qmp --qmp /run/vm/bob.qmp")]
pub(crate) struct Args {
    /// QMP socket of a VM to follow; once for each.
    #[arg(long, required = true, value_name = "SOCKET")]
    qmp: Vec<PathBuf>,
    /// Parameters, as TOML; the defaults are the papers'.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Watch and infer only; change nothing on the host.
    #[arg(long)]
    observe: bool,
    /// Record every event and action for a later look.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Run the daemon on this CPU only; once for each if several. Without it, on any.
    #[arg(long, value_name = "CPU")]
    cpu: Vec<u16>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let policy = args.config.as_deref().map(policy::load).transpose()?.unwrap_or_default();
    let config = DaemonConfig {
        qmp: args.qmp.clone(),
        policy,
        act: !args.observe,
        record: args.record.clone(),
        guardian: (own_program()?, frontdesk_host::GUARDIAN_ARGUMENT.to_owned()),
        cpus: args.cpu.clone(),
    };
    let stop = frontdesk_host::stop_signal().context("can't handle signals")?;
    let mut daemon = Daemon::start(&config)?;
    let names: Vec<&str> = daemon.vm_names().collect();
    println!("following {} VMs: {}", names.len(), names.join(", "));
    std::io::stdout().flush()?;
    daemon.run(stop)?;
    daemon.finish()?;
    Ok(ExitCode::SUCCESS)
}
