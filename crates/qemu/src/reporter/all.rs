//! The reporters of all VMs.

use super::clock::HostTime;
use super::session::Told;
use super::{EpisodeOrder, ReporterSource};
use frontdesk_engine::{Event, Time, VmId};
use frontdesk_guest_protocol::MAX_MESSAGES_PER_SECOND;
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// What all may cost in a second, in messages: as much as one. A message takes some 0.4 us.
const MOST: u32 = MAX_MESSAGES_PER_SECOND;
/// And what each may, whatever the others do: one of ours that is woken each millisecond, and some thousand
/// switches.
const ENOUGH: u32 = 25_000;

/// The reporters of those VMs that have a port for one.
#[derive(Debug)]
pub struct Reporters {
    epoll: OwnedFd,
    sources: BTreeMap<VmId, ReporterSource>,
    io_threshold: Duration,
}

impl Reporters {
    /// None yet. An I/O-bound task runs no longer than `io_threshold`, which matters for what guests tell
    /// late.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new(io_threshold: Duration) -> io::Result<Reporters> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Reporters { epoll, sources: BTreeMap::new(), io_threshold })
    }

    /// Such a task runs no longer than that from now on.
    pub fn set_io_threshold(&mut self, threshold: Duration) {
        self.io_threshold = threshold;
        self.sources.values_mut().for_each(|source| source.set_io_threshold(threshold));
    }

    /// Readable when there is something to [`receive`](Self::receive).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Begins to listen to the reporter of `vm`, which is QEMU process `pid` and has so many vCPUs, if it has
    /// a port for one, which [`find_port`](super::find_port) found; whether it has. It reports no more often
    /// than `pace`; zero is for at once. Of a VM that is listened to already, only the number of vCPUs
    /// changes.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn follow(
        &mut self,
        vm: VmId,
        (pid, port): (i32, Option<&Path>),
        vcpus: u16,
        pace: Duration,
        now: Time,
    ) -> io::Result<bool> {
        if let Some(source) = self.sources.get_mut(&vm) {
            source.set_vcpus(vcpus);
            return Ok(true);
        }
        let Some(port) = port else { return Ok(false) };
        let mut source = ReporterSource::new(port.to_owned(), pid, vcpus, pace, now)?;
        source.set_io_threshold(self.io_threshold);
        let data = epoll::EventData::new_u64(vm.0.into());
        epoll::add(&self.epoll, source.fd(), data, epoll::EventFlags::IN)?;
        self.sources.insert(vm, source);
        Ok(true)
    }

    /// Listens to the reporter of `vm` no more.
    pub fn unfollow(&mut self, vm: VmId) {
        // Closing its descriptor takes it out of the epoll.
        self.sources.remove(&vm);
    }

    /// Takes what has come from any. To be called when [`fd`](Self::fd) is readable.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn receive(&mut self, now: HostTime) -> io::Result<()> {
        let mut ready = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&Timespec::default()))
        {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in ready {
            let vm = u32::try_from(event.data.u64()).ok().map(VmId);
            if let Some(source) = vm.and_then(|vm| self.sources.get_mut(&vm)) {
                source.receive(now);
            }
        }
        self.bound(now.monotonic);
        Ok(())
    }

    /// If all together say too much, those that say the most are not listened to for a while.
    fn bound(&mut self, now: Time) {
        let mut all: u32 = self.sources.values().fold(0, |sum, source| source.cost(now).saturating_add(sum));
        while all > MOST {
            let Some(source) = self.sources.values_mut().max_by_key(|source| source.cost(now)) else {
                return;
            };
            let cost = source.cost(now);
            if cost <= ENOUGH {
                return;
            }
            source.hang_up(now);
            all = all.saturating_sub(cost);
        }
    }

    /// Appends what is due by `now` of the VMs of which reporters are `believed`, and gives all that those of
    /// others have told to `told`. To be called often, for it also looks after the connections.
    pub fn drain(
        &mut self,
        now: Time,
        out: &mut Vec<Event>,
        believed: impl Fn(VmId) -> bool,
        mut told: impl FnMut(VmId, Told),
    ) {
        for (vm, source) in &mut self.sources {
            if believed(*vm) {
                source.drain(*vm, now, out);
            } else {
                source.take_told(now).for_each(|what| told(*vm, what));
            }
            source.drain_isolation(*vm, now, out);
        }
    }

    /// Tells the guest of an episode of `vm`, or that none goes on: [`ReporterSource::order`].
    pub fn order(&mut self, vm: VmId, episode: Option<&EpisodeOrder>, now: Time) {
        if let Some(source) = self.sources.get_mut(&vm) {
            source.order(episode, now);
        }
    }

    /// The VMs that have a port for a reporter.
    pub fn vms(&self) -> impl Iterator<Item = VmId> {
        self.sources.keys().copied()
    }

    /// When the next event is due, for which nobody is woken.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.sources.values().filter_map(ReporterSource::next_due).min()
    }

    /// The reporter of `vm`, if that has a port for one.
    #[must_use]
    pub fn get(&self, vm: VmId) -> Option<&ReporterSource> {
        self.sources.get(&vm)
    }
}
