//! Other hosts that the page shows beside its own. Their servers are asked with passwords that only look in
//! there, so that whoever gets hold of this server changes nothing elsewhere; and nobody but this server
//! learns these passwords.

use crate::client::{Address, Hosts, HostsError, Remote, RemoteError, Trust};
use frontdesk_control_protocol::{Answer, Query, Refusal, RefusalKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Asked at once, all together: what does not answer holds a thread for some seconds, and this host's daemon
/// must not wait for it.
const ASKING: usize = 4;
/// One that cannot be reached is left alone for so long: each try may hold a thread for a third of that.
const PAUSE: Duration = Duration::from_secs(30);
/// One that does not let us in counts our tries, and forgives them after an hour without any.
const SHUT_OUT: Duration = Duration::from_secs(61 * 60);
/// Nobody waits longer for an answer. Whoever asks after it has come gets a newer one.
const PATIENCE: Duration = Duration::from_secs(3);

/// The other hosts.
pub(crate) struct OtherHosts {
    by_name: BTreeMap<String, Arc<Mutex<OtherHost>>>,
    asking: Arc<Semaphore>,
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
        Ok(OtherHosts { by_name, asking: Arc::new(Semaphore::new(ASKING)) })
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
        let busy = || unavailable("it has not answered yet".to_owned());
        if let Some(reason) = free(&other).ok_or_else(busy)?.trouble_now(Instant::now()) {
            return Err(unavailable(reason));
        }
        let answer = async {
            let permit = Arc::clone(&self.asking).acquire_owned().await;
            let permit = permit.map_err(|_| unavailable("the server is ending".to_owned()))?;
            let asked = tokio::task::spawn_blocking(move || {
                let answer = free(&other).map(|mut other| other.ask(&query));
                // Not before: whoever asked may have hung up.
                drop(permit);
                answer
            });
            asked.await.map_err(|_| unavailable("the server failed".to_owned()))?.ok_or_else(busy)?
        };
        tokio::time::timeout(PATIENCE, answer).await.map_err(|_| busy())?
    }
}

/// A host that nobody else asks just now.
fn free(other: &Mutex<OtherHost>) -> Option<MutexGuard<'_, OtherHost>> {
    match other.try_lock() {
        Ok(other) => Some(other),
        Err(TryLockError::Poisoned(other)) => Some(other.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl OtherHost {
    /// Why it is not asked again yet.
    fn trouble_now(&self, now: Instant) -> Option<String> {
        self.trouble.as_ref().filter(|(_, until)| now < *until).map(|(reason, _)| reason.clone())
    }

    fn ask(&mut self, query: &Query) -> Result<Answer, Refusal> {
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
            let reason = match &error {
                RemoteError::Changed { .. } | RemoteError::NotLoggedIn { .. } => {
                    format!(
                        "{error}; `frontdesk serve --add` on the host of this page, and a restart, begin anew"
                    )
                }
                error => error.to_string(),
            };
            self.trouble = Some((reason.clone(), Instant::now() + pause));
            Refusal::new(RefusalKind::Unavailable, reason)
        })
    }
}
