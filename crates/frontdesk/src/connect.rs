//! Which daemon a command is for: this host's, over its socket, or another's, through `frontdesk serve`
//! there.

use crate::{FAILED, words};
use anyhow::{Context, bail, ensure};
use clap::Args;
use frontdesk_control_protocol::{
    self as control, Answer, ClientError, DEFAULT_SOCKET, Query, Refusal, RefusalKind,
};
use frontdesk_remote::Fingerprint;
use frontdesk_remote::client::{Address, ClientCertificate, Hosts, Remote, RemoteError, Trust};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Once;

/// A file with a password is no longer than this.
const MAX_PASSWORD_BYTES: u64 = 1025;

/// The daemon that a command asks.
#[derive(Clone, Args)]
#[command(next_help_heading = "Which daemon")]
pub(crate) struct Where {
    /// This host's, at this control socket.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// That of another host, on which `frontdesk serve` runs [port: 9742].
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "socket")]
    host: Option<Address>,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// How to get on with the server of another host.
#[derive(Clone, Args)]
#[command(next_help_heading = "With --host")]
pub(crate) struct RemoteArgs {
    /// File with the password, which only its owner can read. Without it: what `frontdesk login` keeps, or a
    /// question.
    #[arg(long, value_name = "FILE", requires = "host")]
    password_file: Option<PathBuf>,
    /// Fingerprint of the server's certificate, as `frontdesk serve --setup` prints it. Without it: the one
    /// that was accepted first.
    #[arg(long, value_name = "AB:CD:...", requires = "host", conflicts_with = "ca")]
    fingerprint: Option<Fingerprint>,
    /// Trust certificates for HOST from the issuers in this file (PEM).
    #[arg(long, value_name = "FILE", requires = "host")]
    ca: Option<PathBuf>,
    /// A certificate of your own in place of a password (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The private key to it (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "host"])]
    key: Option<PathBuf>,
}

impl RemoteArgs {
    /// Refuses what can be said of one server only.
    pub(crate) fn check_for_several(&self) -> anyhow::Result<()> {
        ensure!(
            self.fingerprint.is_none(),
            "--fingerprint is that of one server's certificate, and there are several hosts: log in to each first \
             (frontdesk login --host HOST --fingerprint ...)"
        );
        Ok(())
    }
}

/// A daemon that can be asked.
pub(crate) enum Daemon {
    Local(PathBuf),
    Remote(Box<RemoteServer>),
}

/// The server of another host.
pub(crate) struct RemoteServer {
    remote: Remote,
    args: RemoteArgs,
    address: Address,
    hosts: Hosts,
    /// Whether the user is asked about unknown certificates and passwords.
    may_ask: bool,
}

impl Where {
    pub(crate) fn connect(&self) -> anyhow::Result<Daemon> {
        Ok(match &self.host {
            Some(address) => Daemon::of_host(address, &self.remote, true)?,
            None => Daemon::Local(self.socket.clone()),
        })
    }

    /// The other host.
    pub(crate) fn host(&self) -> Option<String> {
        self.host.as_ref().map(ToString::to_string)
    }
}

impl Daemon {
    /// That of another host. `may_ask`: whether the user is asked about its certificate and for the password.
    pub(crate) fn of_host(address: &Address, args: &RemoteArgs, may_ask: bool) -> anyhow::Result<Daemon> {
        let mut server = RemoteServer::new(address, args)?;
        server.may_ask &= may_ask;
        Ok(Daemon::Remote(Box::new(server)))
    }

    /// From now on the user is asked for nothing more.
    pub(crate) fn ask_nobody(&mut self) {
        if let Daemon::Remote(server) = self {
            server.may_ask = false;
        }
    }

    /// The daemon's answer, or why it refuses.
    pub(crate) fn ask(&mut self, query: &Query) -> anyhow::Result<Result<Answer, Refusal>> {
        match self {
            Daemon::Local(socket) => match control::ask(socket, query) {
                Ok(answer) => Ok(Ok(answer)),
                Err(ClientError::Refused(refusal)) => Ok(Err(refusal)),
                Err(error) => Err(error.into()),
            },
            Daemon::Remote(server) => match server.with(|remote| remote.ask(query)) {
                Ok(answer) => Ok(Ok(answer)),
                Err(RemoteError::Refused { refusal, .. }) => Ok(Err(refusal)),
                Err(error) => Err(error.into()),
            },
        }
    }
}

impl RemoteServer {
    fn new(address: &Address, args: &RemoteArgs) -> anyhow::Result<RemoteServer> {
        let hosts = Hosts::load(hosts_file()?)?;
        let known = hosts.get(address);
        let expected = args.fingerprint.or(known.map(|known| known.fingerprint()));
        let mut remote = remote(address, args, expected)?;
        if let Some(token) = known.and_then(|known| known.token()) {
            remote.set_token(token.to_owned());
        }
        let may_ask = std::io::stdin().is_terminal();
        Ok(RemoteServer { remote, args: args.clone(), address: address.clone(), hosts, may_ask })
    }

    /// Does something with the server; asks the user about an unknown certificate, and for the password, if
    /// it comes to that.
    fn with<T>(&mut self, what: impl Fn(&mut Remote) -> Result<T, RemoteError>) -> Result<T, RemoteError> {
        let refused = |address: &Address, error: anyhow::Error| RemoteError::NotLoggedIn {
            address: address.clone(),
            reason: frontdesk_scenario::sentence(&*error),
        };
        let mut result = what(&mut self.remote);
        if let Err(RemoteError::Unknown { fingerprint, .. }) = result {
            if !accepts(&self.address, fingerprint, self.may_ask) {
                return result;
            }
            self.trust(fingerprint).map_err(|error| refused(&self.address, error))?;
            result = what(&mut self.remote);
        }
        if let Err(RemoteError::NotLoggedIn { .. }) = result {
            let password = match self.password() {
                Ok(Some(password)) => password,
                Ok(None) => return result,
                Err(error) => return Err(refused(&self.address, error)),
            };
            self.remote.log_in(&password)?;
            result = what(&mut self.remote);
        }
        result
    }

    /// Remembers a certificate that the user has accepted.
    fn trust(&mut self, fingerprint: Fingerprint) -> anyhow::Result<()> {
        self.hosts.remember(&self.address, fingerprint, None)?;
        self.remote = remote(&self.address, &self.args, Some(fingerprint))?;
        Ok(())
    }

    /// The password from the file or the user; none if there is nobody to ask.
    fn password(&self) -> anyhow::Result<Option<String>> {
        if let Some(file) = &self.args.password_file {
            return read_password(file).map(Some);
        }
        if !self.may_ask {
            return Ok(None);
        }
        let prompt = format!("Password of {}: ", self.address);
        rpassword::prompt_password(prompt).map(Some).context("cannot ask for the password")
    }
}

fn remote(address: &Address, args: &RemoteArgs, expected: Option<Fingerprint>) -> anyhow::Result<Remote> {
    let trust = match &args.ca {
        Some(file) => Trust::issuers(file).context("--ca")?,
        None => Trust::Certificate(expected),
    };
    let identity = match (&args.certificate, &args.key) {
        (Some(certificate), Some(key)) => Some(ClientCertificate::load(certificate, key)?),
        _ => None,
    };
    Ok(Remote::new(address.clone(), trust, identity)?)
}

/// Whether the user accepts a certificate that is not known yet, if they may be asked.
pub(crate) fn accepts(address: &Address, fingerprint: Fingerprint, may_ask: bool) -> bool {
    if !may_ask {
        // Once, however many hosts there are.
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            eprintln!(
                "frontdesk: compare the fingerprint with the one that `frontdesk serve --setup` printed there; \
                 --fingerprint accepts it"
            );
        });
        return false;
    }
    eprint!(
        "{address} is not known yet. The fingerprint of its certificate is\n  {fingerprint}\nCompare it with the one that \
         `frontdesk serve --setup` printed there. Is it the same (yes/no)? "
    );
    let mut answer = String::new();
    let read = std::io::stderr().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    read.is_ok() && answer.trim() == "yes"
}

/// A password from a file, without the end of its line.
pub(crate) fn read_password(file: &Path) -> anyhow::Result<String> {
    let failed = || format!("cannot read the password in {}", file.display());
    let data = std::fs::metadata(file).with_context(failed)?;
    // A pipe is nobody else's.
    if data.is_file() {
        ensure!(
            data.mode() & 0o077 == 0,
            "others can read the password in {0}: `chmod 600 {0}`",
            file.display()
        );
    }
    let mut text = String::new();
    let opened = std::fs::File::open(file).with_context(failed)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(opened, MAX_PASSWORD_BYTES), &mut text)
        .with_context(failed)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Where the servers are kept that the user knows.
fn hosts_file() -> anyhow::Result<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    Ok(state.context("neither XDG_STATE_HOME nor HOME is set")?.join("frontdesk/hosts.json"))
}

/// Keep a password's token, so that the password need not be given again.
///
/// Asks for the password, or takes it from a file, and keeps what the server gives for it in
/// ~/.local/state/frontdesk/hosts.json. It is good for 30 days, until the server is restarted, or until
/// `frontdesk logout`.
#[derive(Args)]
#[command(after_help = "Example:
  frontdesk login --host host.example")]
pub(crate) struct LoginArgs {
    /// The host, on which `frontdesk serve` runs [port: 9742].
    #[arg(long, value_name = "HOST[:PORT]")]
    host: Address,
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn login(args: &LoginArgs) -> anyhow::Result<ExitCode> {
    let mut server = RemoteServer::new(&args.host, &args.remote)?;
    // Finds out about the certificate, before a password is asked for.
    let found = server.remote.ask(&Query::Reservations {});
    if let Err(RemoteError::Unknown { fingerprint, .. }) = found {
        if !accepts(&args.host, fingerprint, server.may_ask) {
            return found.map(|_| ExitCode::SUCCESS).map_err(Into::into);
        }
        server.trust(fingerprint)?;
    } else if let Err(
        error @ (RemoteError::Connect { .. } | RemoteError::Changed { .. } | RemoteError::Tls { .. }),
    ) = found
    {
        return Err(error.into());
    }
    let Some(password) = server.password()? else {
        bail!("there is no terminal to ask for the password; use --password-file");
    };
    let token = server.remote.log_in(&password)?;
    let fingerprint =
        args.remote.fingerprint.or(server.hosts.get(&args.host).map(|known| known.fingerprint()));
    let Some(fingerprint) = fingerprint else {
        bail!(
            "tokens are kept for servers that are known by their certificate; without --ca, it is asked for"
        )
    };
    server.hosts.remember(&args.host, fingerprint, Some(token))?;
    println!("logged in at {}", args.host);
    Ok(ExitCode::SUCCESS)
}

/// Forget a server: its certificate, and the token for it.
#[derive(Args)]
pub(crate) struct LogoutArgs {
    /// The host.
    #[arg(long, value_name = "HOST[:PORT]")]
    host: Address,
}

pub(crate) fn logout(args: &LogoutArgs) -> anyhow::Result<ExitCode> {
    let mut hosts = Hosts::load(hosts_file()?)?;
    let Some(known) = hosts.get(&args.host).cloned() else {
        eprintln!("frontdesk: {} is not known", args.host);
        return Ok(ExitCode::from(FAILED));
    };
    if let Some(token) = known.token() {
        let trust = Trust::Certificate(Some(known.fingerprint()));
        let mut remote = Remote::new(args.host.clone(), trust, None)?;
        remote.set_token(token.to_owned());
        // A server that cannot be reached, or was set up anew, need not hear of it.
        if let Err(error) = remote.log_out() {
            eprintln!("frontdesk: {error}; the token stays good until the server is restarted");
        }
    }
    hosts.forget(&args.host)?;
    Ok(ExitCode::SUCCESS)
}

/// Says why the daemon refuses. What was asked for is impossible, or the command is.
pub(crate) fn refused(refusal: Refusal, json: bool) -> anyhow::Result<ExitCode> {
    let could_be_asked = matches!(
        refusal.kind,
        RefusalKind::Invalid
            | RefusalKind::Infeasible
            | RefusalKind::UnknownTarget
            | RefusalKind::NotReserved
            | RefusalKind::Overlapping
            | RefusalKind::Unsuitable
    );
    if json {
        println!("{}", serde_json::to_string_pretty(&Answer::Refused(refusal.clone()))?);
    }
    if !could_be_asked {
        bail!("the daemon refuses: {}", words::printable(&refusal.message));
    }
    eprintln!("frontdesk: {}", words::printable(&refusal.message));
    Ok(ExitCode::from(FAILED))
}
