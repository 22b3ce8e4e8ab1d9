//! What the scheduler keeps of a VM.

use frontdesk_disk_protocol::{ApplicationReport, AskersMemory, DiskReport, FromDisk, MAX_APPLICATIONS};
use frontdesk_engine::disk::{ApplicationExplain, Asker, DiskClass};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Which vCPU asks is told by the queue; what it ran when it notified us, or what it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The queue.
    pub(crate) queue: u16,
    /// Whether its guest has just notified us.
    pub(crate) notified: bool,
}

/// A VM that shares the disk.
#[derive(Debug)]
pub(crate) struct Vm {
    /// Pieces that may begin.
    pub(crate) granted: Vec<u32>,
    /// Wakes its thread.
    pub(crate) wake: Arc<OwnedFd>,
    /// The disk's name.
    pub(crate) name: String,
    /// A duplicate of QEMU's connection, and the thread that serves it.
    pub(crate) connection: Option<(OwnedFd, i32)>,
    /// Where to look up who asks.
    pub(crate) askers: Option<AskersMemory>,
    /// Notifications of each vCPU that were heard of.
    heard: Vec<u64>,
    /// Queues that are served.
    queues: u16,
    /// The eventfds by which the guest notifies us, and whether the daemon was told.
    notifiers: (Vec<u32>, bool),
    /// Reads under way of which the daemon was told.
    pub(crate) told: HashSet<u32>,
    /// Pieces that were granted in each class.
    served: [u64; 3],
    /// Pieces whose asker was known.
    pub(crate) known: u64,
    /// Whether there is something to report.
    changed: bool,
}

impl Vm {
    pub(crate) fn new(wake: Arc<OwnedFd>, connection: Option<(OwnedFd, i32)>, name: &str) -> Vm {
        Vm {
            granted: Vec::new(),
            wake,
            name: name.to_owned(),
            connection,
            askers: None,
            heard: Vec::new(),
            queues: 0,
            notifiers: (Vec::new(), true),
            told: HashSet::new(),
            served: [0; 3],
            known: 0,
            changed: true,
        }
    }

    /// Whether a front end is connected.
    pub(crate) fn is_attached(&self) -> bool {
        self.connection.is_some()
    }

    /// Says which front end is connected, if one is.
    pub(crate) fn introduce(&self, disk: u16, say: impl FnOnce(FromDisk, BorrowedFd<'_>)) {
        if let Some((connection, thread)) = &self.connection {
            say(FromDisk::Attached { disk, name: self.name.clone(), thread: *thread }, connection.as_fd());
        }
    }

    /// So many queues are served from now on, of which the guest notifies us by these eventfds.
    pub(crate) fn set_queues(&mut self, queues: u16, notifiers: Vec<u32>) {
        self.queues = queues;
        self.notifiers = (notifiers, false);
    }

    /// There is a daemon that was told nothing yet.
    pub(crate) fn daemon_came(&mut self) {
        self.notifiers.1 = false;
    }

    /// The eventfds by which the guest notifies us, if they are to be told.
    pub(crate) fn untold_notifiers(&mut self) -> Option<Vec<u32>> {
        let told = std::mem::replace(&mut self.notifiers.1, true);
        (self.is_attached() && !told).then(|| self.notifiers.0.clone())
    }

    /// Who asks for what is taken from a queue now. Which vCPU that is, is known if each has a queue.
    pub(crate) fn asker(&mut self, source: Source) -> Option<Asker> {
        let askers = self.askers.as_ref()?;
        let vcpu = match askers.vcpus() {
            1 => 0,
            vcpus if vcpus == self.queues => source.queue,
            _ => return None,
        };
        let notifications = askers.notifications(vcpu);
        self.heard.resize(usize::from(askers.vcpus()), 0);
        let heard = self.heard.get_mut(usize::from(vcpu))?;
        let counted = std::mem::replace(heard, notifications) != notifications;
        let task = if source.notified && counted { askers.notified(vcpu) } else { askers.current(vcpu) };
        Some(Asker { vcpu, task })
    }

    /// A piece may begin.
    pub(crate) fn grant(&mut self, number: u32, class: DiskClass) {
        self.granted.push(number);
        let served = &mut self.served[class as usize];
        *served = served.saturating_add(1);
        self.changed = true;
    }

    /// What was served, if that has changed since the last report of a VM that is connected.
    pub(crate) fn report(
        &mut self,
        applications: impl FnOnce() -> Vec<ApplicationExplain>,
    ) -> Option<DiskReport> {
        if !self.is_attached() || !std::mem::take(&mut self.changed) {
            return None;
        }
        let application = |application: ApplicationExplain| ApplicationReport {
            interactive: application.verdict.interactive(),
            task: application.task,
            name: application.name,
            post: application.post,
            pre: application.pre,
            served: application.served,
        };
        let applications = applications().into_iter().take(MAX_APPLICATIONS).map(application).collect();
        Some(DiskReport { queues: self.queues, served: self.served, known: self.known, applications })
    }
}
