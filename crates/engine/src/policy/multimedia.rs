//! Multimedia: a VM that plays gets the CPU first when its next frame, sample or timer is due, and as much of
//! it as its frames need (MM §5.2, §5.3).
//!
//! A *player* is a task that shows frames and plays sound. While a VM has one, what it may wait for boosts
//! the vCPU where it ran last, above all that waits for other I/O; but only as long as the VM does not owe
//! CPU time. That changes when the VM runs, not how much.
//!
//! If frames are missing all the same, and others took CPU time from the VM, there are two more means. Beyond
//! the paper, the vCPU of the player gets the larger part of what the VM has, where others of its vCPUs want
//! CPUs, too. If that does not do within a period, and the operator allows it (`max_share`), the VM's share
//! is raised at the cost of the others.

mod feedback;
mod unseen;

use super::budget::Allowance;
use super::claim::{Ask, Claim, Knob, Owner, value};
use super::view::{Fact, Policy, View};
use crate::action::{Boost, BoostTarget};
use crate::config::Multimedia as Config;
use crate::event::{TaskId, Time};
use crate::explain::{Cause, MultimediaExplain, PlayerExplain, Reason};
use crate::infer::{FrameRate, Shown};
use crate::nanos::{nanos, signed};
use crate::state::{StateError, check};
use feedback::{Feedback, ORIGINAL};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use unseen::Unseen;

/// Players that are told apart in a VM; further ones are not adapted to.
const MOST_PLAYERS: usize = 8;
/// vCPUs boosted at once for the players of a VM.
const MOST_BOOSTED: usize = MOST_PLAYERS;
/// So far apart are the boosts of a VM in the long run at least: 250 a second, when a film needs some 100.
/// In nanoseconds.
const PACE: u64 = 4_000_000;
/// Others took CPU time from a VM if its threads waited for at least this part of the time.
const WAITED_PART: u64 = 50;
/// Emulator threads stay boosted for so long after the last vCPU, as they may have its frame in their hands.
const EMULATOR_GRACE: u64 = 2_000_000;
/// The weight of a vCPU that is fast, in permille of an ordinary one's: it gets nine tenths of what two have.
const FAST: u32 = 9000;
/// Longest boost, and longest time between two adaptations, that can be configured.
const LONGEST: Duration = Duration::from_secs(10);

/// A task that shows frames and plays sound.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Player {
    task: TaskId,
    /// Whether its frames are counted by what a graphics processor completes.
    gpu: bool,
    since: Time,
    /// When its share is adapted next.
    next: Time,
    /// When that was done last, and what the VM's threads had waited then.
    adapted: Time,
    waited: u64,
    fps: FrameRate,
    feedback: Feedback,
    /// Where it ran last.
    vcpu: Option<u16>,
    /// Whether the vCPUs where it runs are fast among those of the VM.
    #[serde(default)]
    fast: bool,
}

/// A vCPU that is boosted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Boosted {
    vcpu: u16,
    until: Time,
    /// Whether a task that shows or plays something has run.
    hit: bool,
}

/// The policy's state for a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Multimedia {
    players: Vec<Player>,
    boosted: Vec<Boosted>,
    allowance: Allowance,
    /// What the number of boosts is limited by: each counts for as long as [`PACE`].
    #[serde(default)]
    pace: Allowance,
    /// Nanoseconds that threads of the VM ran boosted for this alone.
    ran: u64,
    boosts: u64,
    in_debt: u64,
    limited: u64,
    /// Whether it ever had a player.
    played: bool,
    #[serde(default)]
    unseen: Unseen,
}

impl Multimedia {
    /// Checks a state that was loaded.
    pub(crate) fn check(&self, now: Time, vcpus: usize) -> Result<(), StateError> {
        let few = self.players.len() <= MOST_PLAYERS && self.boosted.len() <= MOST_BOOSTED;
        check(few, "more players than are told apart")?;
        let soon = now.plus(nanos(LONGEST));
        for player in &self.players {
            check(player.next <= soon, "a film that is never adapted to")?;
            player.fps.check()?;
            player.feedback.check()?;
        }
        let bounded = |boosted: &Boosted| boosted.until <= soon && usize::from(boosted.vcpu) < vcpus;
        check(self.boosted.iter().all(bounded), "a boost longer than any")?;
        self.unseen.check(now)?;
        self.allowance.check()?;
        self.pace.check()
    }

    /// A thread of the VM ran boosted for this alone.
    pub(crate) fn ran(&mut self, ran: u64) {
        self.ran = self.ran.saturating_add(ran);
    }

    /// Nanoseconds that threads of the VM ran boosted for this alone.
    pub(crate) fn boosted_ran(&self) -> u64 {
        self.ran
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.players.capacity() * size_of::<Player>() + self.boosted.capacity() * size_of::<Boosted>()
    }

    /// What the VM plays, if it ever did.
    pub(crate) fn explain(&self, share_permille: u32) -> Option<MultimediaExplain> {
        let players = self.players.iter().map(|player| PlayerExplain {
            task: player.task,
            gpu: player.gpu,
            since: player.since,
            frame_rate: player.fps.current,
            desired_rate: player.feedback.desired,
            share_permille: player.feedback.share,
        });
        self.played.then(|| MultimediaExplain {
            players: players.collect(),
            share_permille,
            boosts: self.boosts,
            in_debt: self.in_debt,
            limited: self.limited,
            boosted_ns: self.ran,
        })
    }

    /// A task showed a frame. If it plays sound, too, it is a player.
    fn shown(&mut self, shown: Shown, gpu: bool, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Shown { task, missed } = shown;
        if let Some(player) = self.players.iter_mut().find(|player| player.task == task) {
            self.unseen.shown();
            if player.gpu != gpu {
                player.gpu = gpu;
                player.fps.recount(view.guest.frames.count(task, gpu), view.now);
            }
            if missed && view.config.multimedia.early && player.miss(view) {
                self.claim(view, asks);
            }
        } else if self.players.len() < MOST_PLAYERS && plays_film(task, gpu, view) {
            self.played = true;
            self.players.push(Player::new(task, gpu, view));
            self.claim(view, asks);
        }
    }

    /// The guest plays sound. If it shows nothing to it, it may have a film that is starved.
    fn played(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        if let Some(task) = self.unseen.find(view) {
            self.played = true;
            self.players.push(Player::new(task, false, view));
            self.claim(view, asks);
        }
    }

    /// Claims the largest share of any player until the first is to be adapted to, and what makes their vCPUs
    /// fast until after that.
    fn claim(&self, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(until) = self.next() else { return };
        let share = self.players.iter().map(|player| player.feedback.share).max();
        let value = share.filter(|_| view.may_act()).unwrap_or(ORIGINAL);
        asks.push(Ask::Claim(Claim { owner: Owner::Multimedia, knob: Knob::Share, value, until }));
        self.players.iter().for_each(|player| player.claim_weight(view, asks));
    }

    fn next(&self) -> Option<Time> {
        self.players.iter().map(|player| player.next).min()
    }

    /// Adapts to the players whose time has come. Returns when the next one's does.
    fn adapt(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        self.players.retain_mut(|player| player.next > view.now || player.adapt(view));
        let next = self.next().filter(|next| *next > view.now);
        match next {
            Some(_) => self.claim(view, asks),
            None => self.players.clear(),
        }
        next
    }

    /// Something came that players may wait for (§5.3): boosts the vCPUs where they ran last.
    fn come(&mut self, vcpu: Option<u16>, view: &View<'_>, asks: &mut Vec<Ask>) {
        let config = &view.config.multimedia;
        if !config.boost || !view.may_act() || vcpu.is_some_and(|vcpu| self.is_for_others(vcpu, view)) {
            return;
        }
        let mut limited = None;
        for place in 0..self.players.len() {
            let Some(target) = self.players.get(place).and_then(|player| player.vcpu) else { continue };
            let other = vcpu.is_some_and(|vcpu| vcpu != target);
            let missing = usize::from(target) >= view.guest.vcpus.len();
            if other || missing || self.boosted.iter().any(|boosted| boosted.vcpu == target) {
                continue;
            }
            // UNDER: a VM that owes CPU time has none to be given first.
            if !is_under(view) {
                self.in_debt = self.in_debt.saturating_add(1);
                return;
            }
            let allowed = *limited.get_or_insert_with(|| {
                let limit = view.world.boost_limit(view.config.tavs.boost_limit);
                let used = self.boosts.saturating_mul(PACE);
                self.pace.allows(view.now, 1.0, used) && self.allowance.allows(view.now, limit, view.boosted)
            });
            if !allowed {
                self.limited = self.limited.saturating_add(1);
                return;
            }
            self.begin(target, view, asks);
        }
    }

    /// Whether a timer of a vCPU is hardly for a player: the vCPU idles, and what ran there last has nothing
    /// to do with films. A guest that polls wakes all the time.
    fn is_for_others(&self, vcpu: u16, view: &View<'_>) -> bool {
        let known = view.guest.vcpus.get(usize::from(vcpu)).filter(|known| known.seen.is_halted());
        known.is_some_and(|known| !known.seen.loaded().is_some_and(|task| self.is_media(task, view)))
    }

    fn begin(&mut self, vcpu: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        self.boosts = self.boosts.saturating_add(1);
        let until = view.now.plus(nanos(view.config.multimedia.max_boost));
        // They deliver what the vCPU waits for: they must never be behind it.
        asks.push(boost(BoostTarget::Emulators, until.plus(EMULATOR_GRACE)));
        asks.push(boost(BoostTarget::Vcpu(vcpu), until));
        let (owner, knob) = (Owner::Multimedia, Knob::Watch(vcpu));
        asks.push(Ask::Claim(Claim { owner, knob, value: 1, until }));
        let hit = view.guest.vcpus.get(usize::from(vcpu)).and_then(|vcpu| vcpu.seen.current());
        let hit = hit.is_some_and(|task| self.is_media(task, view));
        self.boosted.push(Boosted { vcpu, until, hit });
    }

    fn end(&mut self, vcpu: u16, asks: &mut Vec<Ask>) {
        let Some(place) = self.boosted.iter().position(|boosted| boosted.vcpu == vcpu) else { return };
        self.boosted.swap_remove(place);
        asks.push(Ask::End(Owner::Multimedia, Knob::Watch(vcpu)));
        asks.push(Ask::End(Owner::Multimedia, Knob::Boost(BoostTarget::Vcpu(vcpu))));
        if self.boosted.is_empty() {
            asks.push(Ask::End(Owner::Multimedia, Knob::Boost(BoostTarget::Emulators)));
        }
    }

    /// Whether a task is a player, or one that shows or plays for others.
    fn is_media(&self, task: TaskId, view: &View<'_>) -> bool {
        let serves = view.guest.frames.draws(task) || view.guest.sound.accesses(task, view.now);
        serves || self.players.iter().any(|player| player.task == task)
    }

    /// Another task runs on a vCPU, after one for which it was boosted, or before that.
    fn dispatched(&mut self, vcpu: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let known = view.guest.vcpus.get(usize::from(vcpu));
        let Some(task) = known.and_then(|known| known.seen.current()) else { return };
        if let Some(player) = self.players.iter_mut().find(|player| player.task == task) {
            // Those that it left stay fast for a while: it may have threads, which run on several.
            if player.vcpu.replace(vcpu) != Some(vcpu) {
                player.claim_weight(view, asks);
            }
        }
        let media = self.is_media(task, view);
        let Some(boosted) = self.boosted.iter_mut().find(|boosted| boosted.vcpu == vcpu) else { return };
        if boosted.hit && !media {
            self.end(vcpu, asks);
        } else {
            boosted.hit |= media;
        }
    }
}

impl Policy for Multimedia {
    fn is_concerned(&self, fact: &Fact) -> bool {
        let plays = !self.players.is_empty() || !self.boosted.is_empty();
        match fact {
            Fact::Shown { .. } => true,
            Fact::Played => self.players.is_empty(),
            Fact::Media { .. }
            | Fact::Dispatched { .. }
            | Fact::Halted { .. }
            | Fact::Over
            | Fact::VcpuOver { .. } => plays,
            _ => false,
        }
    }

    fn on_fact(&mut self, fact: Fact, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<(Cause, Reason)> {
        match fact {
            Fact::Shown { shown, gpu } => self.shown(shown, gpu, view, asks),
            Fact::Played => self.played(view, asks),
            Fact::Media { vcpu } => self.come(vcpu, view, asks),
            Fact::Dispatched { vcpu, .. } => self.dispatched(vcpu, view, asks),
            Fact::Halted { vcpu } => self.end(vcpu, asks),
            Fact::Over => {
                self.players.clear();
                while let Some(boosted) = self.boosted.last() {
                    self.end(boosted.vcpu, asks);
                }
                asks.push(Ask::End(Owner::Multimedia, Knob::Share));
                let vcpus = (0..).take(view.guest.vcpus.len());
                asks.extend(vcpus.map(|vcpu| Ask::End(Owner::Multimedia, Knob::Weight(vcpu))));
            }
            Fact::VcpuOver { vcpu } => {
                self.end(vcpu, asks);
                asks.push(Ask::End(Owner::Multimedia, Knob::Weight(vcpu)));
                let here = self.players.iter_mut().filter(|player| player.vcpu == Some(vcpu));
                here.for_each(|player| player.vcpu = None);
            }
            _ => {}
        }
        None
    }

    fn on_expiry(&mut self, knob: Knob, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        match knob {
            Knob::Share => self.adapt(view, asks),
            Knob::Boost(BoostTarget::Vcpu(vcpu)) | Knob::Watch(vcpu) => {
                self.end(vcpu, asks);
                None
            }
            _ => None,
        }
    }
}

impl Player {
    fn new(task: TaskId, gpu: bool, view: &View<'_>) -> Player {
        let config = &view.config.multimedia;
        let now = view.now;
        let runs = |vcpu: &u16| {
            view.guest
                .vcpus
                .get(usize::from(*vcpu))
                .is_some_and(|known| known.seen.recent().next() == Some(task))
        };
        let mut player = Player {
            task,
            gpu,
            since: now,
            next: now,
            adapted: now,
            waited: view.waited(),
            fps: FrameRate::new(view.guest.frames.count(task, gpu), now, config.seed_average),
            feedback: Feedback::new(if gpu { config.gpu_frame_rate } else { config.frame_rate }),
            vcpu: (0..).take(view.guest.vcpus.len()).find(runs),
            fast: false,
        };
        player.next = now.plus(nanos(player.period(config, now)));
        player
    }

    /// Whether it has just begun (line 2). A graphics processor's has no fast start.
    fn is_fast(&self, config: &Config, now: Time) -> bool {
        !self.gpu && now.since(self.since) < nanos(config.fast_start)
    }

    fn period(&self, config: &Config, now: Time) -> Duration {
        if self.is_fast(config, now) { config.fast_period } else { config.period }
    }

    /// Adapts to the frames of late. Returns whether it still plays (§5.2: until it was not scheduled for a
    /// second and nothing of video came). One that neither shows nor plays anything has ended, too, and one
    /// that has not shown a frame for long: if it only was starved, its next frame makes it one again.
    fn adapt(&mut self, view: &View<'_>) -> bool {
        let (config, now) = (&view.config.multimedia, view.now);
        let present = |at: Option<Time>| at.is_some_and(|at| now.since(at) <= nanos(config.end_after));
        let shows = present(view.guest.frames.last(self.task, self.gpu));
        let plays = view.guest.sound.plays(self.task, now);
        let begins = now.since(self.since) < unseen::TRIAL;
        let over = !begins && view.guest.frames.is_over(self.task, self.gpu, now);
        if over || !(shows || plays && present(view.guest.last_ran(self.task, now))) {
            return false;
        }
        let weight = if self.gpu { config.gpu_weight } else { config.weight };
        self.fps.sample(view.guest.frames.count(self.task, self.gpu), now, weight);
        let beyond = self.is_deprived(view);
        if beyond && self.feedback.misses(&self.fps) && self.quicken(view) {
            // What that does is to be seen first.
        } else if self.is_fast(config, now) {
            self.feedback.fast_start(&self.fps, beyond, config);
        } else {
            self.feedback.normal(&self.fps, beyond, config);
        }
        (self.adapted, self.waited) = (now, view.waited());
        self.next = now.plus(nanos(self.period(config, now)));
        true
    }

    /// The vCPUs where it runs become fast, if that may be of use. Returns whether they do.
    fn quicken(&mut self, view: &View<'_>) -> bool {
        let may = view.config.multimedia.inside && !view.world.charges_boosts && view.may_act();
        let Some(own) = self.vcpu.filter(|_| may && !self.fast) else { return false };
        let mut vcpus = (0u16..).zip(&view.guest.vcpus);
        self.fast = vcpus.any(|(index, vcpu)| index != own && vcpu.seen.thread.is_awake());
        self.fast
    }

    /// Claims what makes the vCPU fast where it runs, if it is to be, until after the next adaptation.
    fn claim_weight(&self, view: &View<'_>, asks: &mut Vec<Ask>) {
        let vcpu = self.vcpu.filter(|vcpu| self.fast && usize::from(*vcpu) < view.guest.vcpus.len());
        let Some(vcpu) = vcpu.filter(|_| view.may_act()) else { return };
        let until = self.next.plus(nanos(view.config.multimedia.period));
        let (owner, knob) = (Owner::Multimedia, Knob::Weight(vcpu));
        asks.push(Ask::Claim(Claim { owner, knob, value: FAST, until }));
    }

    /// Frames are missing: the share rises at once, unless that has just been done. Returns whether it does.
    fn miss(&mut self, view: &View<'_>) -> bool {
        let config = &view.config.multimedia;
        let just = view.now.since(self.adapted) < nanos(config.fast_period);
        if just || self.is_fast(config, view.now) || !self.is_deprived(view) {
            return false;
        }
        if !self.quicken(view) {
            self.feedback.increase(config);
        }
        // What that does is to be seen before the next.
        self.fps.sample(view.guest.frames.count(self.task, self.gpu), view.now, config.weight);
        (self.adapted, self.waited) = (view.now, view.waited());
        self.next = view.now.plus(nanos(config.period));
        true
    }

    /// Whether others took CPU time from the VM since the last time that this was adapted: only then is a
    /// larger share of use. What the VM has is rearranged first.
    fn is_deprived(&self, view: &View<'_>) -> bool {
        view.waited().saturating_sub(self.waited) > view.now.since(self.adapted) / WAITED_PART
    }
}

/// Whether a task that shows a frame is one that plays. Of a sound server a single frame says nothing: whose
/// it is can be told wrongly, and a film of no frames a second would have ever more of the CPU.
fn plays_film(task: TaskId, gpu: bool, view: &View<'_>) -> bool {
    let (frames, sound) = (&view.guest.frames, &view.guest.sound);
    sound.plays(task, view.now) && (gpu || frames.is_steady(task) || !sound.serves(task, view.now))
}

/// Whether the VM has not used up what it is due (§5.3: UNDER), within half of a settlement of the ledger.
fn is_under(view: &View<'_>) -> bool {
    view.debt.nanos < signed(nanos(view.config.ledger.period)) / 2
}

fn boost(target: BoostTarget, until: Time) -> Ask {
    let (owner, knob) = (Owner::Multimedia, Knob::Boost(target));
    Ask::Claim(Claim { owner, knob, value: value(Boost::Multimedia), until })
}
