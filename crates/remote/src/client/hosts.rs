//! The servers that a user knows: their certificates' fingerprints, and tokens, in a file that only the user
//! can read.

use super::Address;
use crate::fingerprint::Fingerprint;
use crate::secret::write_secret;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// No file of known servers is larger.
const MAX_BYTES: u64 = 1 << 20;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// It cannot be read or written.
    #[error("cannot {what} the file of known hosts {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is no file of known hosts: {reason}; move it away", path.display())]
    Nonsense {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Others can read the tokens in it.
    #[error("others can read {path}, which lets them in: `chmod 600 {path}`, and log in anew", path = .0.display())]
    Open(PathBuf),
}

/// The known servers.
#[derive(Clone, Debug)]
pub struct Hosts {
    path: PathBuf,
    known: BTreeMap<String, KnownHost>,
}

/// A known server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownHost {
    #[serde(with = "as_text")]
    fingerprint: Fingerprint,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    password: Option<String>,
}

/// What is in a file of known servers.
pub(crate) fn parse(text: &[u8]) -> serde_json::Result<BTreeMap<String, KnownHost>> {
    serde_json::from_slice(text)
}

impl KnownHost {
    /// Of its certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The token that lets us in, if one was kept.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The password that only looks in there, if it was kept: tokens end, and a server asks for itself.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

impl Hosts {
    /// Reads the file; if there is none, no server is known.
    ///
    /// # Errors
    /// It cannot be read, is something else, or others can read it.
    pub fn load(path: impl Into<PathBuf>) -> Result<Hosts, HostsError> {
        let path = path.into();
        let data = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Hosts { path, known: BTreeMap::new() });
            }
            other => other.map_err(failed("read", &path))?,
        };
        if data.mode() & 0o077 != 0 {
            return Err(HostsError::Open(path));
        }
        if data.len() > MAX_BYTES {
            return Err(HostsError::Nonsense { path, reason: "it is too large".to_owned() });
        }
        let text = fs::read(&path).map_err(failed("read", &path))?;
        let known = parse(&text)
            .map_err(|error| HostsError::Nonsense { path: path.clone(), reason: error.to_string() })?;
        Ok(Hosts { path, known })
    }

    /// What is known of a server.
    #[must_use]
    pub fn get(&self, address: &Address) -> Option<&KnownHost> {
        self.known.get(&address.to_string())
    }

    /// Remembers a server's certificate and, if there is one, a token.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(
        &mut self,
        address: &Address,
        fingerprint: Fingerprint,
        token: Option<String>,
    ) -> Result<(), HostsError> {
        self.known.insert(address.to_string(), KnownHost { fingerprint, token, password: None });
        self.store()
    }

    /// Remembers a server's certificate and a password that only looks in there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember_password(
        &mut self,
        address: &Address,
        fingerprint: Fingerprint,
        password: String,
    ) -> Result<(), HostsError> {
        let known = KnownHost { fingerprint, token: None, password: Some(password) };
        self.known.insert(address.to_string(), known);
        self.store()
    }

    /// All that are known, by their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &KnownHost)> {
        self.known.iter().map(|(address, known)| (address.as_str(), known))
    }

    /// Forgets a server; false if it was not known.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget(&mut self, address: &Address) -> Result<bool, HostsError> {
        let known = self.known.remove(&address.to_string()).is_some();
        if known {
            self.store()?;
        }
        Ok(known)
    }

    /// What is in the file cannot be used.
    pub(crate) fn nonsense(&self, reason: &dyn std::fmt::Display) -> HostsError {
        HostsError::Nonsense { path: self.path.clone(), reason: reason.to_string() }
    }

    fn store(&self) -> Result<(), HostsError> {
        if let Some(folder) = self.path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(failed("make the folder of", &self.path))?;
        }
        // A map of strings is JSON.
        let text = serde_json::to_vec_pretty(&self.known).unwrap_or_default();
        write_secret(&self.path, &text).map_err(failed("write", &self.path))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HostsError {
    move |source| HostsError::File { what, path: path.to_owned(), source }
}

mod as_text {
    use crate::fingerprint::Fingerprint;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Fingerprint, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fingerprint, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn servers_are_remembered_for_the_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/frontdesk/hosts.json");
        let address: Address = "host.example".parse().unwrap();
        let fingerprint = Fingerprint::of(b"certificate");
        let mut hosts = Hosts::load(&path).unwrap();
        assert!(hosts.get(&address).is_none() && !hosts.forget(&address).unwrap());
        hosts.remember(&address, fingerprint, Some("secret".into())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut hosts = Hosts::load(&path).unwrap();
        let known = hosts.get(&address).unwrap();
        assert_eq!((known.fingerprint(), known.token()), (fingerprint, Some("secret")));
        assert!(hosts.forget(&address).unwrap());
        assert!(Hosts::load(&path).unwrap().get(&address).is_none());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(matches!(Hosts::load(&path), Err(HostsError::Open(_))));
    }

    proptest! {
        #[test]
        fn fuzz_files_of_known_hosts(text in "\\PC{0,80}|\\{\"[a-z]{0,5}:[0-9]{0,5}\":\\{\"fingerprint\":\"[0-9A-F:]{0,100}\"\\}\\}") {
            crate::fuzzing::known_hosts(text.as_bytes());
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("hosts.json");
            write_secret(&path, text.as_bytes()).unwrap();
            if let Err(error) = Hosts::load(&path) {
                let is_told = matches!(error, HostsError::Nonsense { .. });
                prop_assert!(is_told, "{}", error);
            }
        }
    }
}
