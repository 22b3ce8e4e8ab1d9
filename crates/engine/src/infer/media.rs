//! What follows when a guest shows or plays something.

use super::asking::Drawing;
use super::frames::Shown;
use super::guest::Guest;
use super::input::SHOWS;
use crate::event::{MediaDevice, Region, TaskId, Time};
use std::collections::BTreeMap;

/// The vCPU of a guest that has one.
const ONLY_VCPU: u16 = 0;

impl Guest {
    /// The display was updated. Returns whose frame that is, if a new one begins and that is known.
    pub(crate) fn display_update(&mut self, region: Option<Region>, now: Time) -> Option<Shown> {
        let by = self.draws_now().or(self.frames.drawing).or_else(|| {
            // Where accesses to the display are not told, the request was made where the last doorbell rang.
            let rang = self.kick.and_then(|kick| kick.asker).map(|asker| asker.vcpu);
            self.drawing(rang.or((self.vcpus.len() == 1).then_some(ONLY_VCPU))?)
        })?;
        let alone = self.sound.accesses(by.drawer, now);
        self.frames.update(region, by, alone, now)
    }

    /// A vCPU accessed a display or a sound card; `None` if it is not there.
    pub(crate) fn device_access(
        &mut self,
        vcpu: u16,
        device: MediaDevice,
        in_interrupt: bool,
        now: Time,
    ) -> Option<()> {
        self.vcpu(vcpu)?;
        let by = self.drawing(vcpu).filter(|_| !in_interrupt);
        match (by, device) {
            (Some(by), MediaDevice::Display) => self.frames.drawing = Some(by),
            (Some(by), MediaDevice::Sound) => self.sound.accessed(by, now),
            (None, _) => {}
        }
        Some(())
    }

    /// The graphics processor completed something. Returns the task that it shows, if its frames are counted
    /// by that.
    pub(crate) fn gpu_done(&mut self, now: Time) -> Option<TaskId> {
        self.frames.gpu_done(now);
        self.sound.latest(now).filter(|_| self.frames.only_gpu(now))
    }

    /// Whose frame it was that could not be told when it was drawn.
    pub(crate) fn take_shown(&mut self) -> Option<Shown> {
        self.shown.take()
    }

    /// What the task at work draws that accessed the display last, if it is at work: its access is mostly
    /// told only when the emulator has done what it asks for, and then the latest that is known is that of
    /// the frame before, for another task perhaps.
    fn draws_now(&self) -> Option<Drawing> {
        let drawer = self.frames.drawing?.drawer;
        let at_work = self.vcpus.iter().position(|vcpu| vcpu.seen.current() == Some(drawer))?;
        self.drawing(u16::try_from(at_work).ok()?)
    }

    /// The task at work on a vCPU.
    fn drawing(&self, vcpu: u16) -> Option<Drawing> {
        let known = self.vcpus.get(usize::from(vcpu))?;
        Some(known.asking.drawing(vcpu, known.seen.current()?))
    }

    /// When a task was last on a vCPU.
    pub(crate) fn last_ran(&self, task: TaskId, now: Time) -> Option<Time> {
        if self.vcpus.iter().any(|vcpu| vcpu.seen.current() == Some(task)) {
            return Some(now);
        }
        self.tasks.last_seen(task)
    }

    /// The task that wants most of a CPU of those that play sound, in permille at least so much, if it has
    /// shown no frame of late. What anybody wants is known from the first sound on.
    pub(crate) fn unseen_player(&self, least: u64, now: Time) -> Option<TaskId> {
        let mut wanted: BTreeMap<TaskId, u64> = BTreeMap::new();
        for (task, load) in self.vcpus.iter().flat_map(|vcpu| vcpu.usage.loads(now)) {
            let of = wanted.entry(task).or_default();
            *of = of.saturating_add(load);
        }
        let plays = wanted.into_iter().filter(|(task, load)| *load >= least && self.sound.plays(*task, now));
        let (task, _) = plays.max_by_key(|(task, load)| (*load, *task))?;
        let shows = self.frames.last(task, false).is_some_and(|last| now.since(last) <= SHOWS);
        (!shows).then_some(task)
    }
}
