//! `frontdesk serve` as a process of its own, as somebody without rights.

use frontdesk_testing::FakeDaemon;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) const PASSWORD: &str = "correct horse";
/// Of those who may only look in.
#[allow(dead_code)] // Not all that use this module look in.
pub(crate) const LOOK_PASSWORD: &str = "battery staple";
const NOBODY: u32 = 65_534;

/// A server with a daemon behind it, a fake one unless told otherwise; ended with the value.
pub(crate) struct Served<D = FakeDaemon> {
    #[allow(dead_code)] // Not all that use this module look at it.
    pub(crate) daemon: D,
    /// Where it listens, as `HOST:PORT`.
    pub(crate) address: String,
    #[allow(dead_code)]
    pub(crate) fingerprint: String,
    process: Child,
    _folder: tempfile::TempDir,
}

#[allow(dead_code)] // Not all that use this module have a daemon that is no real one.
impl Served {
    pub(crate) fn start() -> Served {
        Served::showing(&[])
    }

    /// With other hosts on its page.
    pub(crate) fn showing(others: &[&Served]) -> Served {
        let daemon = FakeDaemon::start();
        let socket = daemon.socket();
        let others: Vec<_> = others.iter().map(|other| (&*other.address, &*other.fingerprint)).collect();
        Served::start_before(daemon, &socket, &others)
    }
}

impl<D> Served<D> {
    /// Before the daemon with this socket, as nobody if we are root, for the server does not run as root;
    /// else as who we are.
    #[allow(dead_code)]
    pub(crate) fn before(daemon: D, socket: &Path) -> Served<D> {
        Served::start_before(daemon, socket, &[])
    }

    /// The same, with other hosts, by address and fingerprint.
    fn start_before(daemon: D, socket: &Path, others: &[(&str, &str)]) -> Served<D> {
        let is_root = rustix::process::geteuid().is_root();
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let (secrets, password) = (folder.path().join("serve"), folder.path().join("password"));
        let look_password = folder.path().join("look-password");
        std::fs::create_dir(&secrets).unwrap();
        for (file, text) in [(&password, PASSWORD), (&look_password, LOOK_PASSWORD)] {
            std::fs::write(file, text).unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        }
        // The build folder may be closed to others. Another process copies: were the copy open for writing
        // here, a process that another thread starts at that moment would hold it open, too, and what is
        // written to cannot be run.
        let copy = folder.path().join("frontdesk");
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_frontdesk")).arg(&copy).status().unwrap();
        assert!(copied.success(), "{copied}");
        // What root makes there belongs to the folder's owner.
        let program = || {
            let mut command = Command::new(&copy);
            command.arg("serve").arg("--folder").arg(&secrets);
            command
        };
        if is_root {
            chown(&secrets, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let done = |what: &[&str], password: &Path| {
            let output = program().args(what).arg("--password-file").arg(password).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        done(&["--setup", "--name", "localhost"], &password);
        done(&["--setup", "--look"], &look_password);
        for (address, fingerprint) in others {
            done(&["--add", address, "--fingerprint", fingerprint], &look_password);
        }
        let mut serve = program();
        serve.args(["--listen", "127.0.0.1:0", "--socket"]).arg(socket).stdout(Stdio::piped());
        if is_root {
            serve.uid(NOBODY).gid(NOBODY);
        }
        let mut process = serve.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // "serving at https://ADDRESS, certificate FINGERPRINT"
        let told = line
            .trim_end()
            .strip_prefix("serving at https://")
            .and_then(|told| told.split_once(", certificate "));
        let Some((address, fingerprint)) = told else {
            process.kill().unwrap();
            process.wait().unwrap();
            panic!("the server does not start: {line:?}");
        };
        let (address, fingerprint) = (address.to_owned(), fingerprint.to_owned());
        Served { daemon, address, fingerprint, process, _folder: folder }
    }
}

impl<D> Drop for Served<D> {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
