//! What a server needs before it starts: a password, a key and a certificate, in a folder that only its user
//! can read. There are no defaults.

use crate::client::{Hosts, HostsError};
use crate::fingerprint::Fingerprint;
use crate::password::{Hashed, MAX_PASSWORD_BYTES, Passwords};
use crate::secret::write_secret;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::PathBuf;

/// Where the credentials are unless told otherwise.
pub const DEFAULT_FOLDER: &str = "/etc/frontdesk/serve";
/// The user that the packaged server runs as.
pub const DEFAULT_USER: &str = "frontdesk";
/// The shortest password, in characters.
pub const LEAST_PASSWORD: usize = 10;

const PASSWORD: &str = "password";
const LOOK_PASSWORD: &str = "look-password";
const KEY: &str = "key.pem";
const CERTIFICATE: &str = "certificate.pem";
const CLIENTS: &str = "clients.pem";
const OTHER_HOSTS: &str = "hosts.json";
/// No file of these is larger.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The server cannot be set up, or is not.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file is missing.
    #[error(
        "the server is not set up: there is no {}. `frontdesk serve --setup` asks for a password and makes a certificate", .0.display()
    )]
    Missing(PathBuf),
    /// A secret is readable by others.
    #[error("others than its user can read {path}: `chmod 600 {path}`, and choose another password or key", path = .0.display())]
    Open(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} is no {what}; remove it and run `frontdesk serve --setup`", path.display())]
    Nonsense {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The password is not good enough.
    #[error("the password is too {0}: it has {LEAST_PASSWORD} to 1024 characters")]
    Password(&'static str),
    /// One password would let its holder do two things.
    #[error(
        "those who may only look in have another password than those who may change something; choose another one"
    )]
    SamePassword,
    /// A name cannot be in a certificate.
    #[error("cannot make a certificate for {}: {reason}", names.join(", "))]
    Certificate {
        /// The names.
        names: Vec<String>,
        /// What failed.
        reason: String,
    },
    /// The system gives no randomness.
    #[error("the system has no random numbers")]
    Random,
}

/// The folder with the credentials of a server.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// What a set-up did.
#[derive(Clone, Copy, Debug)]
pub struct SetUp {
    /// Of the certificate that clients will see.
    pub fingerprint: Fingerprint,
    /// Whether it was made now; one that is there stays.
    pub new_certificate: bool,
    /// Whether the password is another one than before.
    pub new_password: bool,
}

/// What is in the folder of a server that is set up.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) passwords: Passwords,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// Whoever has a certificate from one of these needs no password.
    pub(crate) clients: Vec<CertificateDer<'static>>,
}

impl Folder {
    /// A folder, which need not be there yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Folder {
        Folder(path.into())
    }

    /// Sets the password, and makes a key and a certificate that holds for `names` if there is none. A
    /// missing folder is made; what root makes belongs to the owner of the folder, which is the user
    /// [`DEFAULT_USER`] if root makes it.
    ///
    /// # Errors
    /// The password is too short or too long, or a file cannot be written.
    pub fn set_up(&self, password: &str, names: &[String]) -> Result<SetUp, SetupError> {
        check(password)?;
        let look = self.has(LOOK_PASSWORD)?.then(|| self.hashed(LOOK_PASSWORD)).transpose()?;
        if look.is_some_and(|look| look.is_of(password)) {
            return Err(SetupError::SamePassword);
        }
        self.make()?;
        let hashed = Hashed::new(password).ok_or(SetupError::Random)?;
        let new_certificate = !(self.has(CERTIFICATE)? && self.has(KEY)?);
        if new_certificate {
            let (certificate, key) = self_signed(names)?;
            self.write(KEY, &key)?;
            self.write(CERTIFICATE, &certificate)?;
        }
        let new_password = !self.hashed(PASSWORD).is_ok_and(|hashed| hashed.is_of(password));
        // Last: a server starts only with all of it.
        if new_password {
            self.write(PASSWORD, &format!("{}\n", hashed.as_str()))?;
        }
        let credentials = self.load()?;
        let fingerprint = Fingerprint::of(&credentials.certificates[0]);
        Ok(SetUp { fingerprint, new_certificate, new_password })
    }

    /// Sets the password of those who may only look in, of a server that is set up. Says whether it is
    /// another one than before.
    ///
    /// # Errors
    /// It is too short or too long or the other one, the server is not set up, or a file cannot be written.
    pub fn set_look_password(&self, password: &str) -> Result<bool, SetupError> {
        check(password)?;
        if self.hashed(PASSWORD)?.is_of(password) {
            return Err(SetupError::SamePassword);
        }
        if self.hashed(LOOK_PASSWORD).is_ok_and(|hashed| hashed.is_of(password)) {
            return Ok(false);
        }
        let hashed = Hashed::new(password).ok_or(SetupError::Random)?;
        self.write(LOOK_PASSWORD, &format!("{}\n", hashed.as_str()))?;
        Ok(true)
    }

    /// Whether the server is set up.
    ///
    /// # Errors
    /// What is missing, or of no use.
    pub fn check(&self) -> Result<(), SetupError> {
        self.load().map(drop)
    }

    /// The other hosts that the page shows, with the password that looks in there.
    ///
    /// # Errors
    /// The file cannot be read, is something else, or others can read it.
    pub fn other_hosts(&self) -> Result<Hosts, HostsError> {
        Hosts::load(self.0.join(OTHER_HOSTS))
    }

    /// Reads what [`Folder::set_up`] made, or an administrator put there instead.
    pub(crate) fn load(&self) -> Result<Credentials, SetupError> {
        let change = self.hashed(PASSWORD)?;
        let look = self.has(LOOK_PASSWORD)?.then(|| self.hashed(LOOK_PASSWORD)).transpose()?;
        let key = self.read(KEY, true)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|_| SetupError::Nonsense { path: self.0.join(KEY), what: "private key" })?;
        let certificates = self.certificates(CERTIFICATE)?;
        let clients = if self.has(CLIENTS)? { self.certificates(CLIENTS)? } else { Vec::new() };
        Ok(Credentials { passwords: Passwords { change, look }, key, certificates, clients })
    }

    fn hashed(&self, name: &str) -> Result<Hashed, SetupError> {
        let nonsense = || SetupError::Nonsense { path: self.0.join(name), what: "password hash" };
        Hashed::parse(&self.read(name, true)?).ok_or_else(nonsense)
    }

    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, SetupError> {
        let text = self.read(name, false)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        found
            .ok()
            .filter(|found| !found.is_empty())
            .ok_or_else(|| SetupError::Nonsense { path: self.0.join(name), what: "certificate" })
    }

    /// Makes the folder.
    fn make(&self) -> Result<(), SetupError> {
        let path = &self.0;
        let failed = |what| move |source| SetupError::File { what, path: path.clone(), source };
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed("make the folder around"))?;
        }
        DirBuilder::new().mode(0o700).create(path).map_err(failed("make the folder"))?;
        if nix::unistd::geteuid().is_root()
            && let Ok(Some(user)) = nix::unistd::User::from_name(DEFAULT_USER)
        {
            chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).map_err(failed("give away"))?;
        }
        Ok(())
    }

    fn has(&self, name: &str) -> Result<bool, SetupError> {
        let path = self.0.join(name);
        path.try_exists().map_err(|source| SetupError::File { what: "look at", path, source })
    }

    fn read(&self, name: &str, secret: bool) -> Result<String, SetupError> {
        let path = self.0.join(name);
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::NotFound => SetupError::Missing(path.clone()),
            _ => SetupError::File { what: "read", path: path.clone(), source },
        };
        let data = fs::metadata(&path).map_err(failed)?;
        if secret && data.mode() & 0o077 != 0 {
            return Err(SetupError::Open(path));
        }
        if data.len() > MAX_FILE_BYTES {
            return Err(SetupError::Nonsense { path, what: "file of a server" });
        }
        fs::read_to_string(&path).map_err(failed)
    }

    /// Replaces a file in one step.
    fn write(&self, name: &str, text: &str) -> Result<(), SetupError> {
        let path = self.0.join(name);
        write_secret(&path, text.as_bytes()).map_err(|source| SetupError::File {
            what: "write",
            path,
            source,
        })
    }
}

/// Whether a password is good enough.
fn check(password: &str) -> Result<(), SetupError> {
    if password.chars().count() < LEAST_PASSWORD {
        return Err(SetupError::Password("short"));
    }
    if password.len() > MAX_PASSWORD_BYTES {
        return Err(SetupError::Password("long"));
    }
    Ok(())
}

/// A key, and a certificate for it that nobody else vouches for, as PEM.
fn self_signed(names: &[String]) -> Result<(String, String), SetupError> {
    let failed =
        |error: rcgen::Error| SetupError::Certificate { names: names.to_vec(), reason: error.to_string() };
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
    let name = names.first().map_or("frontdesk", String::as_str);
    params.distinguished_name.push(DnType::CommonName, name);
    // Clients know it by its fingerprint, so it does not age.
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2099, 12, 31);
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GOOD: &str = "correct horse";

    #[test]
    fn a_set_up_server_has_secrets_that_only_its_user_reads() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("serve");
        let folder = Folder::new(&path);
        let missing = folder.load().unwrap_err().to_string();
        assert!(missing.contains("not set up") && missing.contains("--setup"), "{missing}");
        let first = folder.set_up(GOOD, &["host.example".to_owned(), "192.0.2.1".to_owned()]).unwrap();
        assert!(first.new_certificate && first.new_password);
        let written = fs::read_to_string(path.join(PASSWORD)).unwrap();
        assert!(!folder.set_up(GOOD, &[]).unwrap().new_password);
        assert_eq!(fs::read_to_string(path.join(PASSWORD)).unwrap(), written);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        for name in [PASSWORD, KEY] {
            assert_eq!(fs::metadata(path.join(name)).unwrap().mode() & 0o777, 0o600);
        }
        assert!(!fs::read_to_string(path.join(PASSWORD)).unwrap().contains(GOOD));
        let again = folder.set_up("another password", &[]).unwrap();
        assert!(!again.new_certificate && again.new_password && again.fingerprint == first.fingerprint);
        assert!(folder.load().unwrap().passwords.change.is_of("another password"));
        fs::set_permissions(path.join(KEY), PermissionsExt::from_mode(0o640)).unwrap();
        assert!(matches!(folder.load(), Err(SetupError::Open(_))));
    }

    #[test]
    fn what_is_no_password_or_certificate_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("serve");
        let folder = Folder::new(&path);
        assert!(matches!(folder.set_up("short", &[]), Err(SetupError::Password("short"))));
        assert!(matches!(folder.set_up(&"x".repeat(1025), &[]), Err(SetupError::Password("long"))));
        assert!(!path.exists(), "nothing is left of that");
        folder.set_up(GOOD, &[]).unwrap();
        folder.set_look_password("battery staple").unwrap();
        for (name, what) in [
            (PASSWORD, "password hash"),
            (LOOK_PASSWORD, "password hash"),
            (CERTIFICATE, "certificate"),
            (KEY, "private key"),
        ] {
            let before = fs::read(path.join(name)).unwrap();
            fs::write(path.join(name), "nonsense").unwrap();
            let error = folder.load().unwrap_err().to_string();
            assert!(error.contains(&format!("is no {what}")), "{error}");
            fs::write(path.join(name), before).unwrap();
        }
        folder.load().unwrap();
    }

    #[test]
    fn who_looks_in_has_another_password() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::new(parent.path());
        assert!(matches!(folder.set_look_password(GOOD), Err(SetupError::Missing(_))), "not set up");
        folder.set_up(GOOD, &[]).unwrap();
        assert!(matches!(folder.set_look_password(GOOD), Err(SetupError::SamePassword)));
        assert!(matches!(folder.set_look_password("short"), Err(SetupError::Password("short"))));
        assert!(folder.load().unwrap().passwords.look.is_none());
        assert!(folder.set_look_password("battery staple").unwrap());
        assert!(!folder.set_look_password("battery staple").unwrap());
        assert_eq!(fs::metadata(parent.path().join(LOOK_PASSWORD)).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(folder.set_up("battery staple", &[]), Err(SetupError::SamePassword)));
        assert!(folder.load().unwrap().passwords.look.unwrap().is_of("battery staple"));
    }
}
