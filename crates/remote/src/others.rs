//! Other hosts that the page shows beside its own. Their servers are asked with passwords that only look in
//! there, so that whoever gets hold of this server changes nothing elsewhere; and nobody but this server
//! learns these passwords.

use crate::client::{Address, Hosts, HostsError, Remote, RemoteError, Trust};
use frontdesk_control_protocol::{Answer, Query, Refusal, RefusalKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Asked at once, all together: what does not answer holds a thread for some seconds, and this host's daemon
/// must not wait for it.
const ASKING: usize = 4;
/// One that cannot be reached is left alone for so long.
const PAUSE: Duration = Duration::from_secs(5);
/// One that does not let us in counts our tries.
const SHUT_OUT: Duration = Duration::from_secs(60);

/// The other hosts.
pub(crate) struct OtherHosts {
    by_name: BTreeMap<String, Arc<Mutex<OtherHost>>>,
    asking: Semaphore,
}

/// The server of another host.
struct OtherHost {
    remote: Remote,
    password: String,
    /// Why it did not answer, and until when it is not asked again.
    trouble: Option<(String, Instant)>,
}

impl OtherHosts {
    /// Those in a file, which are not connected to yet. What has no password there is left out.
    pub(crate) fn new(known: &Hosts) -> Result<OtherHosts, HostsError> {
        let mut by_name = BTreeMap::new();
        for (name, host) in known.iter() {
            let Some(password) = host.password() else { continue };
            let address: Address = name.parse().map_err(|error| known.nonsense(&error))?;
            let trust = Trust::Certificate(Some(host.fingerprint()));
            let remote = Remote::new(address, trust, None).map_err(|error| known.nonsense(&error))?;
            let other = OtherHost { remote, password: password.to_owned(), trouble: None };
            by_name.insert(name.to_owned(), Arc::new(Mutex::new(other)));
        }
        Ok(OtherHosts { by_name, asking: Semaphore::new(ASKING) })
    }

    /// Their addresses, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    /// What the daemon of another host answers.
    pub(crate) async fn ask(&self, name: &str, query: Query) -> Result<Answer, Refusal> {
        let unavailable = |message: String| Refusal::new(RefusalKind::Unavailable, message);
        let Some(other) = self.by_name.get(name).map(Arc::clone) else {
            let message = "no such host is shown here; `frontdesk serve --add HOST` adds one";
            return Err(Refusal::new(RefusalKind::UnknownTarget, message));
        };
        if !matches!(query, Query::Status { .. }) {
            return Err(Refusal::new(RefusalKind::Forbidden, "other hosts are only looked at from here"));
        }
        let _permit =
            self.asking.acquire().await.map_err(|_| unavailable("the server is ending".to_owned()))?;
        let asked = tokio::task::spawn_blocking(move || {
            other.lock().unwrap_or_else(PoisonError::into_inner).ask(&query, Instant::now())
        });
        asked.await.map_err(|_| unavailable("the server failed".to_owned()))?
    }
}

impl OtherHost {
    fn ask(&mut self, query: &Query, now: Instant) -> Result<Answer, Refusal> {
        if let Some((reason, until)) = &self.trouble
            && now < *until
        {
            return Err(Refusal::new(RefusalKind::Unavailable, reason.clone()));
        }
        let mut answer = self.remote.ask(query);
        if let Err(RemoteError::NotLoggedIn { .. }) = answer {
            answer = self.remote.log_in(&self.password).and_then(|_| self.remote.ask(query));
        }
        self.trouble = None;
        answer.map_err(|error| {
            if let RemoteError::Refused { refusal, .. } = error {
                return refusal;
            }
            let pause = if matches!(error, RemoteError::NotLoggedIn { .. }) { SHUT_OUT } else { PAUSE };
            self.trouble = Some((error.to_string(), Instant::now() + pause));
            Refusal::new(RefusalKind::Unavailable, error.to_string())
        })
    }
}
