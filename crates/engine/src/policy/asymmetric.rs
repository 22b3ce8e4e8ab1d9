//! Asymmetric vCPUs: while a person waits for what they have just started, the vCPUs of their VM that run its
//! own background work are slow (vAMP §3.2).
//!
//! Only the weights of a VM's vCPUs among each other change, in an episode, and only while other VMs want the
//! same physical CPUs. What the VM gets in all is the ledger's business, and stays.
//!
//! Beyond the paper, a slow vCPU that is interrupted for something else than background work is fast until it
//! goes on with that: what a person waits for may be woken there, or need the vCPU's answer. Without it,
//! higher ratios make a person wait longer (§4.3).
//!
//! A guest may keep background work on vCPUs of its own (§3.3). Then these are slow and the others fast,
//! whatever runs on them.

use super::claim::{Ask, Claim, Knob, Owner};
use super::view::{Fact, Policy, View};
use crate::capabilities::Standing;
use crate::event::Time;
use crate::explain::{AsymmetricExplain, BackgroundExplain, Cause, EpisodeExplain, Reason};
use crate::infer::{Guest, bit};
use crate::nanos::nanos;
use crate::state::{StateError, check};
use serde::{Deserialize, Serialize};

/// vCPUs that may be slow, the first ones of a VM; the set of those that an interrupt goes to has no more.
const MOST_VCPUS: usize = 64;
/// How often it is looked whether others want the CPUs, in nanoseconds.
const LOOK: u64 = 100_000_000;
/// When it is asked again whether a vCPU that waits for a CPU has run for long enough, in nanoseconds.
const AGAIN: u64 = 10_000_000;
/// The weight of an ordinary vCPU, in permille.
const ORDINARY: u32 = 1000;

/// A vCPU of the VM.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Pace {
    slow: bool,
    /// Whether there is a claim on its weight: while it is slow, and until it may be.
    claimed: bool,
    /// What its thread had run when it was to be fast for a while.
    fast_since: Option<u64>,
}

/// The policy's state for a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Asymmetric {
    paces: Vec<Pace>,
    /// Whether an episode is looked after.
    looks: bool,
    /// Whether its vCPUs are slow when they run background work.
    acts: bool,
    slowed: u64,
    restored: u64,
}

impl Asymmetric {
    /// Checks a state that was loaded.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        check(self.paces.len() <= MOST_VCPUS, "more slow vCPUs than there may be")
    }

    /// Bytes held beyond its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.paces.capacity() * size_of::<Pace>()
    }

    /// What a person does with the VM, if anybody ever did anything.
    pub(crate) fn explain(&self, guest: &Guest, now: Time) -> Option<AsymmetricExplain> {
        let interaction = &guest.interaction;
        interaction.background.inspected()?;
        let episode = guest.episode(now).map(|episode| EpisodeExplain {
            cause: episode.cause,
            since: episode.since,
            until: episode.until,
            acts: self.acts,
            slow: (0u16..).zip(&self.paces).filter(|(_, pace)| pace.slow).map(|(vcpu, _)| vcpu).collect(),
        });
        let background = interaction.background.tags().iter().map(|tag| BackgroundExplain {
            task: tag.task,
            since: tag.since,
            load_permille: tag.load,
        });
        Some(AsymmetricExplain {
            episode,
            background: background.collect(),
            sound_client: interaction.clients.dominant(),
            slowed: self.slowed,
            restored: self.restored,
        })
    }

    /// Looks whether there is an episode, and whether its vCPUs are to be slow and fast. Returns when to look
    /// next.
    fn look(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        let now = view.now;
        let vcpus = view.guest.vcpus.len().min(MOST_VCPUS);
        let episode = view.guest.episode(now).filter(|_| may_act(view) && vcpus > 1);
        self.looks = episode.is_some();
        let Some(episode) = episode else {
            self.end(asks);
            return None;
        };
        self.acts = view.contended;
        if self.acts {
            self.paces.resize(vcpus, Pace::default());
            for vcpu in (0..).take(vcpus) {
                let (owner, knob) = (Owner::Asymmetric, Knob::Watch(vcpu));
                asks.push(Ask::Claim(Claim { owner, knob, value: 1, until: now.plus(2 * LOOK) }));
                self.judge(vcpu, view, asks);
                self.renew(vcpu, view, asks);
            }
        } else {
            self.end_all(asks);
        }
        Some(now.plus(LOOK).min(episode.until))
    }

    /// The same when something has happened: the time of the next look is claimed.
    fn look_now(&mut self, view: &View<'_>, asks: &mut Vec<Ask>) {
        if let Some(until) = self.look(view, asks) {
            // It raises nothing: it is there for its end.
            let (owner, knob) = (Owner::Asymmetric, Knob::Share);
            asks.push(Ask::Claim(Claim { owner, knob, value: ORDINARY, until }));
        }
    }

    /// Makes a vCPU slow or fast for what it runs now.
    fn judge(&mut self, vcpu: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let Some(known) = view.guest.vcpus.get(usize::from(vcpu)) else { return };
        let Some(pace) = self.paces.get_mut(usize::from(vcpu)).filter(|_| self.acts) else { return };
        let ran = known.seen.thread.ran;
        if let Some(slow) = view.guest.isolated(view.now) {
            let slow = slow & bit(vcpu) != 0;
            if slow && !pace.slow {
                self.slow_down(vcpu, view, asks);
            } else if !slow && pace.slow {
                pace.quicken(vcpu, ran, asks);
            }
        } else if !view.guest.runs_background(vcpu, view.now) {
            // One that is halted runs nothing, and stays as it is until it is known what it goes on with.
            if pace.slow && known.seen.current().is_some() {
                pace.quicken(vcpu, ran, asks);
            }
        } else if !pace.slow {
            match pace.left(ran, view) {
                0 => self.slow_down(vcpu, view, asks),
                left if !pace.claimed => pace.wait(vcpu, left, view, asks),
                _ => {}
            }
        }
    }

    fn slow_down(&mut self, vcpu: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        if let Some(pace) = self.paces.get_mut(usize::from(vcpu)) {
            (pace.slow, pace.fast_since) = (true, None);
            self.slowed = self.slowed.saturating_add(1);
            self.renew(vcpu, view, asks);
        }
    }

    /// A vCPU that is slow stays so until after the next look.
    fn renew(&mut self, vcpu: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let value = view.config.asymmetric.ratio.slow_permille();
        let pace = self.paces.get_mut(usize::from(vcpu)).filter(|pace| pace.slow);
        if let (Some(pace), Some(value)) = (pace, value) {
            pace.claimed = true;
            let until = view.now.plus(2 * LOOK);
            asks.push(Ask::Claim(Claim { owner: Owner::Asymmetric, knob: Knob::Weight(vcpu), value, until }));
        }
    }

    /// A vCPU is interrupted for something else than background work.
    fn restore(&mut self, vcpu: u16, view: &View<'_>, asks: &mut Vec<Ask>) {
        let known = view.guest.vcpus.get(usize::from(vcpu));
        // What a person waits for is not woken on one that the guest keeps for background work.
        let restores = view.config.asymmetric.restore && view.guest.isolated(view.now).is_none();
        let pace = self.paces.get_mut(usize::from(vcpu)).filter(|_| restores);
        let (Some(known), Some(pace)) = (known, pace) else { return };
        let ran = known.seen.thread.ran;
        if pace.slow {
            self.restored = self.restored.saturating_add(1);
            pace.quicken(vcpu, ran, asks);
            let left = pace.left(ran, view);
            pace.wait(vcpu, left, view, asks);
        }
        pace.fast_since = Some(ran);
    }

    /// The same for those of a set.
    fn restore_all(&mut self, set: u64, view: &View<'_>, asks: &mut Vec<Ask>) {
        for vcpu in (0..).take(self.paces.len()).filter(|vcpu| set & bit(*vcpu) != 0) {
            self.restore(vcpu, view, asks);
        }
    }

    fn forget(&mut self, vcpu: u16, asks: &mut Vec<Ask>) {
        asks.push(Ask::End(Owner::Asymmetric, Knob::Watch(vcpu)));
        if let Some(pace) = self.paces.get_mut(usize::from(vcpu)) {
            if pace.claimed {
                asks.push(Ask::End(Owner::Asymmetric, Knob::Weight(vcpu)));
            }
            *pace = Pace::default();
        }
    }

    fn end_all(&mut self, asks: &mut Vec<Ask>) {
        (0..).take(self.paces.len()).for_each(|vcpu| self.forget(vcpu, asks));
        self.paces.clear();
        self.acts = false;
    }

    fn end(&mut self, asks: &mut Vec<Ask>) {
        self.end_all(asks);
        self.looks = false;
        asks.push(Ask::End(Owner::Asymmetric, Knob::Share));
    }
}

impl Pace {
    /// It is fast from now on.
    fn quicken(&mut self, vcpu: u16, ran: u64, asks: &mut Vec<Ask>) {
        *self = Pace { slow: false, claimed: false, fast_since: Some(ran) };
        asks.push(Ask::End(Owner::Asymmetric, Knob::Weight(vcpu)));
    }

    /// How long it is to run until it may be slow.
    fn left(self, ran: u64, view: &View<'_>) -> u64 {
        let least = nanos(view.config.asymmetric.min_fast);
        self.fast_since.map_or(0, |since| least.saturating_sub(ran.saturating_sub(since)))
    }

    /// It is judged again when it has run for so long.
    fn wait(&mut self, vcpu: u16, left: u64, view: &View<'_>, asks: &mut Vec<Ask>) {
        self.claimed = true;
        let (owner, knob, until) = (Owner::Asymmetric, Knob::Weight(vcpu), view.now.plus(left.max(1)));
        asks.push(Ask::Claim(Claim { owner, knob, value: ORDINARY, until }));
    }
}

impl Policy for Asymmetric {
    fn is_concerned(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Episode => true,
            Fact::Dispatched { .. }
            | Fact::Interrupted { .. }
            | Fact::Media { vcpu: Some(_) }
            | Fact::Event { .. } => self.acts,
            Fact::Over | Fact::VcpuOver { .. } => self.looks,
            _ => false,
        }
    }

    fn on_fact(&mut self, fact: Fact, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<(Cause, Reason)> {
        match fact {
            Fact::Episode => self.look_now(view, asks),
            Fact::Dispatched { vcpu, .. } => self.judge(vcpu, view, asks),
            Fact::Interrupted { to } => self.restore_all(to, view, asks),
            // Whoever takes the interrupt is to do so soon.
            Fact::Event { device, .. } => {
                self.restore_all(view.guest.takers(device).unwrap_or(0), view, asks);
            }
            // What waited for a timer is to run.
            Fact::Media { vcpu: Some(vcpu) } => {
                let known = view.guest.vcpus.get(usize::from(vcpu));
                if known.is_some_and(|known| known.seen.is_halted()) {
                    self.restore(vcpu, view, asks);
                }
            }
            Fact::Over => self.end(asks),
            Fact::VcpuOver { vcpu } => self.forget(vcpu, asks),
            _ => {}
        }
        None
    }

    fn on_expiry(&mut self, knob: Knob, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time> {
        match knob {
            Knob::Share => self.look(view, asks),
            Knob::Weight(vcpu) => {
                let ran = view.guest.vcpus.get(usize::from(vcpu)).map(|known| &known.seen.thread);
                let (runs, ran) = ran.map_or((false, 0), |thread| (thread.is_running(), thread.ran));
                let pace = self.paces.get_mut(usize::from(vcpu))?;
                let left = pace.left(ran, view);
                let waits =
                    view.guest.isolated(view.now).is_none() && view.guest.runs_background(vcpu, view.now);
                if !pace.slow && left > 0 && waits {
                    return Some(view.now.plus(if runs { left } else { left.max(AGAIN) }));
                }
                (pace.claimed, pace.slow) = (false, false);
                self.judge(vcpu, view, asks);
                None
            }
            _ => None,
        }
    }
}

/// Whether anything may be done about the VM.
fn may_act(view: &View<'_>) -> bool {
    let wanted = view.config.asymmetric.ratio.slow_permille().is_some();
    wanted && view.world.acts && view.standing == Standing::Acting && !view.own.off && !view.paused
}
