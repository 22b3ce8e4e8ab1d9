//! `frontdesk serve`.

use crate::connect::{accepts, read_password};
use crate::status::why;
use anyhow::{Context, bail, ensure};
use clap::{ArgGroup, Args};
use frontdesk_control_protocol::DEFAULT_SOCKET;
use frontdesk_remote::client::{Address, Remote, RemoteError, Trust};
use frontdesk_remote::setup::{DEFAULT_FOLDER, DEFAULT_USER, Folder};
use frontdesk_remote::{DEFAULT_PORT, Fingerprint, Server, ServerConfig};
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
#[command(group(ArgGroup::new("asks").args(["setup", "add"])), after_help = "Examples:
  sudo frontdesk serve --setup        # once; then systemctl enable --now frontdesk-serve
  sudo frontdesk serve --setup --look # another password, for those who may only look in
  sudo frontdesk serve --add desk-2   # the page shows that host, too
  frontdesk serve --listen 192.0.2.1:9742

docs/remote.md has the security model.")]
pub(crate) struct ServeArgs {
    /// Set the password, make a certificate if there is none, print its fingerprint, and end.
    #[arg(long)]
    setup: bool,
    /// With --setup: set the password of those who may only look in, instead, and change nothing else.
    #[arg(long, requires = "setup", conflicts_with = "name")]
    look: bool,
    /// Show another host on the page, on which `frontdesk serve` runs and has a password of those who may
    /// only look in, and end [port: 9742].
    #[arg(long, value_name = "HOST[:PORT]")]
    add: Option<Address>,
    /// Show that other host no more, and end.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "asks")]
    remove: Option<Address>,
    /// With --add: fingerprint of the other host's certificate. Without it, it is asked whether it is right.
    #[arg(long, value_name = "AB:CD:...", requires = "add")]
    fingerprint: Option<Fingerprint>,
    /// With --setup and --add: the file with the password, which only its owner can read. Without it, it is
    /// asked for.
    #[arg(long, value_name = "FILE", requires = "asks")]
    password_file: Option<PathBuf>,
    /// With --setup: a name or address of this host for the certificate; once for each if several [default:
    /// the host's name].
    #[arg(long, value_name = "NAME", requires = "setup")]
    name: Vec<String>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT)))]
    listen: SocketAddr,
    /// Folder with the passwords' hashes, key and certificate, the other hosts, and clients.pem if whoever
    /// has a certificate from those in it needs no password.
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    folder: PathBuf,
    /// Turn away whoever has no certificate from those in clients.pem.
    #[arg(long, conflicts_with_all = ["asks", "remove"])]
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
    if let Some(address) = &args.add {
        return add(address, args, &folder);
    }
    if let Some(address) = &args.remove {
        ensure!(folder.other_hosts()?.forget(address)?, "{address} is not shown");
        println!("{address} is forgotten. To show it no more: systemctl restart frontdesk-serve");
        return Ok(ExitCode::SUCCESS);
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
        explain: why::words,
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
            let password = ask_password("New password: ")?;
            ensure!(
                ask_password("The same again: ")? == password,
                "the passwords are not the same; nothing is changed"
            );
            password
        }
    };
    if args.look {
        if !folder.set_look_password(&password)? {
            println!("The password of those who may only look in is as it was.");
            return Ok(ExitCode::SUCCESS);
        }
        println!("Who has this password may look in, and change nothing. From when it is restarted on:");
        println!("  systemctl restart frontdesk-serve");
        return Ok(ExitCode::SUCCESS);
    }
    let names = if args.name.is_empty() { vec![host_name()?] } else { args.name.clone() };
    let done = folder.set_up(&password, &names)?;
    let certificate = if done.new_certificate { "made for this host" } else { "as it was" };
    let set = if done.new_password { "set" } else { "as it was" };
    println!(
        "The password is {set}. The certificate is {certificate}; its fingerprint is\n  {}",
        done.fingerprint
    );
    println!("Clients show it when they connect for the first time. To begin, or to begin anew:");
    println!("  systemctl enable frontdesk-serve && systemctl restart frontdesk-serve");
    Ok(ExitCode::SUCCESS)
}

fn ask_password(prompt: &str) -> anyhow::Result<String> {
    ensure!(
        std::io::stdin().is_terminal(),
        "there is no terminal to ask for the password; use --password-file"
    );
    rpassword::prompt_password(prompt).context("cannot ask for the password")
}

/// Remembers another host, once it has let us in.
fn add(address: &Address, args: &ServeArgs, folder: &Folder) -> anyhow::Result<ExitCode> {
    // It has its owner by then.
    folder.check()?;
    let mut hosts = folder.other_hosts()?;
    let client = |fingerprint| Remote::new(address.clone(), Trust::Certificate(fingerprint), None);
    // Who is not logged in is told so, if the certificate is right.
    let fingerprint = match (client(args.fingerprint)?.may_change(), args.fingerprint) {
        (Err(RemoteError::Unknown { fingerprint, .. }), None) => {
            ensure!(
                accepts(address, fingerprint, std::io::stdin().is_terminal()),
                "{address} is not known; the fingerprint of its certificate is {fingerprint}"
            );
            fingerprint
        }
        (Err(RemoteError::NotLoggedIn { .. }) | Ok(_), Some(fingerprint)) => fingerprint,
        (Err(error), _) => return Err(error.into()),
        (Ok(_), None) => bail!("{address} shows no certificate"),
    };
    let password = match &args.password_file {
        Some(file) => read_password(file)?,
        None => ask_password(&format!("Password that looks in at {address}: "))?,
    };
    let mut remote = client(Some(fingerprint))?;
    remote.log_in(&password)?;
    let may_change = remote.may_change();
    // It lasts as long as its server otherwise.
    let _ = remote.log_out();
    ensure!(
        !may_change?,
        "with this password one may change something at {address}, and it would be kept here: choose one \
         there that may only look in, with `frontdesk serve --setup --look`"
    );
    hosts.remember_password(address, fingerprint, password)?;
    println!("{address} is remembered. The page shows it from when the server is restarted:");
    println!("  systemctl restart frontdesk-serve");
    Ok(ExitCode::SUCCESS)
}

fn host_name() -> anyhow::Result<String> {
    let name = rustix::system::uname().nodename().to_str().map(str::to_owned);
    name.context("the host's name is not UTF-8; use --name")
}
