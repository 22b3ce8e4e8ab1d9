//! `frontdesk serve`.

use crate::connect::read_password;
use anyhow::{Context, ensure};
use clap::Args;
use frontdesk_control_protocol::DEFAULT_SOCKET;
use frontdesk_remote::setup::{DEFAULT_FOLDER, DEFAULT_USER, Folder};
use frontdesk_remote::{DEFAULT_PORT, Server, ServerConfig};
use std::io::{IsTerminal, Write};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

/// Let reservations be seen and changed from elsewhere: a page for browsers, and `--host` of other commands.
///
/// Over TLS and with a password only; it does not start before --setup has been run, and never as root. It
/// asks the daemon over the daemon's control socket, and so has to run as a member of the group
/// `control.operators` of frontdesk's configuration. The package runs it as frontdesk-serve.service, as the
/// user frontdesk.
#[derive(Args)]
#[command(after_help = "Examples:
  sudo frontdesk serve --setup        # once; then systemctl enable --now frontdesk-serve
  frontdesk serve --listen 192.0.2.1:9742

docs/remote.md has the security model.")]
pub(crate) struct ServeArgs {
    /// Set the password, make a certificate if there is none, print its fingerprint, and end.
    #[arg(long)]
    setup: bool,
    /// With --setup: the file with the password, which only its owner can read. Without it, it is asked for.
    #[arg(long, value_name = "FILE", requires = "setup")]
    password_file: Option<PathBuf>,
    /// With --setup: a name or address of this host for the certificate; once for each if several [default:
    /// the host's name].
    #[arg(long, value_name = "NAME", requires = "setup")]
    name: Vec<String>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT)))]
    listen: SocketAddr,
    /// Folder with the password's hash, key and certificate, and clients.pem if whoever has a certificate
    /// from those in it needs no password.
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    folder: PathBuf,
    /// Turn away whoever has no certificate from those in clients.pem.
    #[arg(long, conflicts_with = "setup")]
    require_client_certificate: bool,
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

pub(crate) fn main(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let folder = Folder::new(&args.folder);
    if args.setup {
        return set_up(args, &folder);
    }
    ensure!(
        !rustix::process::geteuid().is_root(),
        "the server does not run as root: `systemctl start frontdesk-serve`, or `sudo -u {DEFAULT_USER} frontdesk serve`"
    );
    let stop = frontdesk_host::stop_signal().context("cannot handle signals")?;
    let stop = UnixStream::from(stop.as_fd().try_clone_to_owned().context("cannot handle signals")?);
    let server = Server::start(&ServerConfig {
        listen: args.listen,
        folder,
        socket: args.socket.clone(),
        require_client_certificate: args.require_client_certificate,
    })?;
    let address = server.address().context("cannot tell the address")?;
    println!("serving at https://{address}, certificate {}", server.fingerprint());
    std::io::stdout().flush()?;
    server.run(stop)?;
    Ok(ExitCode::SUCCESS)
}

fn set_up(args: &ServeArgs, folder: &Folder) -> anyhow::Result<ExitCode> {
    let password = match &args.password_file {
        Some(file) => read_password(file)?,
        None => {
            ensure!(
                std::io::stdin().is_terminal(),
                "there is no terminal to ask for the password; use --password-file"
            );
            let ask = |prompt| rpassword::prompt_password(prompt).context("cannot ask for the password");
            let password = ask("New password: ")?;
            ensure!(
                ask("The same again: ")? == password,
                "the passwords are not the same; nothing is changed"
            );
            password
        }
    };
    let names = if args.name.is_empty() { vec![host_name()?] } else { args.name.clone() };
    let done = folder.set_up(&password, &names)?;
    let certificate = if done.new_certificate { "made for this host" } else { "as it was" };
    println!(
        "The password is set. The certificate is {certificate}; its fingerprint is\n  {}",
        done.fingerprint
    );
    println!("Clients show it when they connect for the first time. To begin, or to begin anew:");
    println!("  systemctl enable frontdesk-serve && systemctl restart frontdesk-serve");
    Ok(ExitCode::SUCCESS)
}

fn host_name() -> anyhow::Result<String> {
    let name = rustix::system::uname().nodename().to_str().map(str::to_owned);
    name.context("the host's name is not UTF-8; use --name")
}
