//! What follows when a person uses a guest: an episode begins or ends, and who is background work is looked
//! at (vAMP §3.1). A guest that nobody uses costs nothing.

use super::episode::{Episode, EpisodeCause};
use super::guest::{Guest, bit, members};
use super::interaction::Interaction;
use super::usage::SUB_EPOCHS;
use crate::config::{Asymmetric as Config, Ratio, Tavs};
use crate::event::{TaskId, Time, UserInput};
use crate::nanos::nanos;

/// A film shows a frame in this time, in nanoseconds.
pub(super) const SHOWS: u64 = 1_000_000_000;
/// A guest whose vCPUs waited less than this for physical CPUs, in permille of the time, has all it wants.
const WAITS: u64 = 20;

impl Guest {
    /// A person did something. The times of all vCPUs are up to date. Returns whether there is another
    /// episode now, or none any more.
    pub(crate) fn input(&mut self, input: UserInput, now: Time, config: &Config) -> bool {
        match input {
            UserInput::Enter => self.begin_episode(EpisodeCause::Enter, now, config),
            UserInput::Button => self.begin_episode(EpisodeCause::Button, now, config),
            UserInput::Key => {
                self.attend(now, config);
                self.end_episode(now)
            }
        }
    }

    /// An episode begins, unless it is with sound and another one goes on; the rest as for an
    /// [`input`](Self::input).
    pub(crate) fn begin_episode(&mut self, cause: EpisodeCause, now: Time, config: &Config) -> bool {
        self.attend(now, config);
        let went_on = self.episode(now).is_some();
        if config.ratio == Ratio::None || !self.interaction.episodes.begin(cause, now, config) {
            return false;
        }
        if !went_on {
            self.interaction.isolated = 0;
        }
        // What tasks used before has hardly changed since just now.
        let sub_epoch = nanos(config.pre_io_period) / SUB_EPOCHS as u64;
        let inspected = self.interaction.background.inspected();
        let just = inspected.is_some_and(|inspected| now.since(inspected) < sub_epoch);
        if !just {
            self.inspect(now, config);
        }
        !just || !went_on
    }

    /// The guest keeps these vCPUs for background work, as bits; 0: it keeps none any more. Returns whether
    /// that is news in an episode.
    pub(crate) fn isolate(&mut self, slow: u64, now: Time) -> bool {
        let before = std::mem::replace(&mut self.interaction.isolated, slow);
        before != slow && self.episode(now).is_some()
    }

    /// The vCPUs that the guest keeps for background work in the episode that goes on, as bits; `None` if it
    /// keeps none, or all, so that what runs on one tells.
    pub(crate) fn isolated(&self, now: Time) -> Option<u64> {
        let vcpus = (0u16..).zip(&self.vcpus).fold(0, |set, (index, _)| set | bit(index));
        let slow = self.interaction.isolated & vcpus;
        (slow != 0 && slow != vcpus && self.episode(now).is_some()).then_some(slow)
    }

    /// The episode that goes on ends, if one does. Returns whether one did.
    pub(crate) fn end_episode(&mut self, now: Time) -> bool {
        self.interaction.episodes.end(now)
    }

    /// A vCPU accessed the sound card. Returns whether an episode begins with that.
    pub(crate) fn sound(&mut self, vcpu: u16, in_interrupt: bool, now: Time, config: &Config) -> bool {
        if config.ratio == Ratio::None {
            return false;
        }
        let waker = self.vcpus.get(usize::from(vcpu)).and_then(|vcpu| vcpu.wakeups.waker());
        if let Some(waker) = waker.filter(|_| !in_interrupt) {
            self.interaction.clients.accessed(waker);
        }
        self.episode(now).is_none()
    }

    /// Somebody uses the guest: from now on it is known who uses what.
    fn attend(&mut self, now: Time, config: &Config) {
        if config.ratio == Ratio::None {
            return;
        }
        self.interaction.attended = true;
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.usage.begin(config.pre_io_period, now));
    }

    fn inspect(&mut self, now: Time, config: &Config) {
        let Guest { interaction: Interaction { background, clients, .. }, vcpus, sound, frames, .. } = self;
        clients.average(|task| background.confidence(task));
        let client = clients.dominant();
        // Where no vCPU's interrupt tells for whom a sound server plays, what is drawn does.
        let shows = |task| frames.last(task, false).is_some_and(|last| now.since(last) <= SHOWS);
        let film = |task| client.is_none() && shows(task) && sound.plays(task, now);
        let plays = |task| client == Some(task) || sound.accesses(task, now) || film(task);
        let loads = vcpus.iter().flat_map(|vcpu| vcpu.usage.loads(now));
        background.inspect(loads, |task| config.identify_players && plays(task), config, now);
    }

    /// The episode that goes on.
    pub(crate) fn episode(&self, now: Time) -> Option<Episode> {
        self.interaction.episodes.current(now)
    }

    /// Whether a task is background work that a person waits for the end of no more than for anything else.
    pub(crate) fn is_background(&self, task: TaskId, now: Time) -> bool {
        self.interaction.background.is_tagged(task) && self.episode(now).is_some()
    }

    /// Whether the task on a vCPU is background work.
    pub(crate) fn runs_background(&self, vcpu: u16, now: Time) -> bool {
        let task = self.vcpus.get(usize::from(vcpu)).and_then(|vcpu| vcpu.seen.current());
        task.is_some_and(|task| self.is_background(task, now))
    }

    /// Whether its vCPUs had to wait for physical CPUs before.
    pub(crate) fn is_kept_from_running(&self, now: Time) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.usage.stolen(now) > WAITS)
    }

    /// A task was scheduled on a vCPU, whose times are up to date.
    pub(crate) fn scheduled(&mut self, index: u16, config: &Config) {
        let attended = self.interaction.attended;
        let Some(vcpu) = self.vcpu(index).filter(|_| attended) else { return };
        if let Some(task) = vcpu.seen.current() {
            let (ran, latency) = (vcpu.seen.thread.ran, nanos(config.wake_latency));
            vcpu.wakeups.scheduled(task, vcpu.resumed, ran, latency);
        }
    }

    /// A vCPU interrupted others, as bits; times are up to date. Returns whether that is for what a person
    /// waits for, as far as is known: in an episode, and not by background work.
    pub(crate) fn poke(&mut self, from: u16, to: u64, now: Time, config: &Tavs) -> bool {
        let attended = self.interaction.attended;
        let Some(sender) = self.vcpu(from).filter(|_| attended) else { return false };
        let source = sender.wakeups.source();
        let ran = sender.seen.thread.ran;
        let handles =
            sender.handles_since.is_some_and(|since| ran.saturating_sub(since) <= nanos(config.io_threshold));
        let sender = sender.seen.current().filter(|_| !handles);
        let by = source.or(sender);
        for (_, vcpu) in members(to & !bit(from), &mut self.vcpus) {
            vcpu.wakeups.poked(source, sender, vcpu.seen.thread.ran);
        }
        self.episode(now).is_some() && !by.is_some_and(|task| self.is_background(task, now))
    }
}
