//! Who may look in, and who may change reservations.

use crate::control::{ControlConfig, ControlError};
use frontdesk_control_protocol::{Query, Refusal, RefusalKind, Reserve};
use frontdesk_linux::{Peer, peer_groups};
use glob::Pattern;
use nix::unistd::Group;
use std::io;
use std::os::unix::net::UnixStream;

/// A user is in no more groups than this (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// The groups that may look in or change reservations, besides root and our own user.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// May look in.
    lookers: Option<Group>,
    /// May do both,
    operators: Option<Group>,
    /// with these targets.
    targets: Vec<Pattern>,
}

impl Access {
    /// # Errors
    /// There is no group with the name of those who may look in. One of operators need not be there.
    pub(crate) fn new(config: &ControlConfig) -> Result<Access, ControlError> {
        let find = |name: &str| Group::from_name(name).ok().flatten();
        let known = |name: &str| find(name).ok_or_else(|| ControlError::NoGroup(name.to_owned()));
        let operators = find(&config.operators);
        if operators.is_none() {
            tracing::debug!("no group of operators: only root may change reservations");
        }
        let lookers = config.group.as_deref().map(known).transpose()?;
        // The configuration was looked through.
        let targets = config.operator_targets.iter().filter_map(|text| Pattern::new(text).ok()).collect();
        Ok(Access { lookers, operators, targets })
    }

    /// The group of the socket and its mode. A socket has one group only; if two may connect, the kernel's
    /// word on who did decides alone.
    pub(crate) fn of_socket(&self) -> (Option<u32>, u32) {
        let gid = |group: &Option<Group>| group.as_ref().map(|group| group.gid.as_raw());
        match (gid(&self.lookers), gid(&self.operators)) {
            (Some(lookers), Some(operators)) if lookers != operators => (None, 0o666),
            (lookers, operators) => (lookers.or(operators), 0o660),
        }
    }

    /// What the process at the other end may do.
    ///
    /// # Errors
    /// Nothing.
    pub(crate) fn of(&self, stream: &UnixStream) -> Result<Rights<'_>, Refusal> {
        let unknown = |error: io::Error| {
            let message = format!("the kernel does not say whose connection this is: {error}");
            Refusal::new(RefusalKind::Forbidden, message)
        };
        // The kernel's word on user and groups as they were when it connected; its number decides nothing.
        let peer = Peer::of(stream).map_err(unknown)?;
        if peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw() {
            return Ok(Rights::All);
        }
        let mut groups = peer_groups(stream, MAX_GROUPS).map_err(unknown)?;
        groups.push(peer.gid);
        let is_in =
            |group: &Option<Group>| group.as_ref().is_some_and(|group| groups.contains(&group.gid.as_raw()));
        if is_in(&self.operators) {
            return Ok(Rights::Change { targets: &self.targets });
        }
        if is_in(&self.lookers) {
            return Ok(Rights::Look { change: forbidden(self.operators.as_ref(), "change reservations") });
        }
        Err(forbidden(self.lookers.as_ref().or(self.operators.as_ref()), "look in"))
    }
}

/// What somebody may do.
pub(crate) enum Rights<'a> {
    /// Look in only.
    Look {
        /// Why nothing else.
        change: Refusal,
    },
    /// Look in and change reservations.
    Change {
        /// Of these.
        targets: &'a [Pattern],
    },
    /// Everything.
    All,
}

impl Rights<'_> {
    /// # Errors
    /// The request is beyond these rights.
    pub(crate) fn check(self, query: &Query) -> Result<(), Refusal> {
        match self {
            Rights::Look { change } if query.changes() => Err(change),
            Rights::Change { targets } => match query {
                Query::Reserve(Reserve { target, .. })
                | Query::Pause { target }
                | Query::Resume { target }
                | Query::Release { target }
                    if !targets.iter().any(|pattern| pattern.matches(&target.to_string())) =>
                {
                    let message = format!(
                        "only root may reserve, pause, resume or release {target}; operator_targets in [control] of \
                         frontdesk's configuration says what operators may"
                    );
                    Err(Refusal::new(RefusalKind::Forbidden, message))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// Why somebody may not do something that members of a group, if there is one, may.
fn forbidden(group: Option<&Group>, what: &str) -> Refusal {
    let message = match group {
        Some(Group { name, .. }) => format!(
            "only root and members of the group {name} may {what}; `usermod -aG {name} USER` makes a user one, from the next login on"
        ),
        None => format!(
            "only root may {what}; run the command with sudo, or name a group in [control] of frontdesk's configuration"
        ),
    };
    Refusal::new(RefusalKind::Forbidden, message)
}
