//! What policies are told, what they decide by, and what they are.

use super::claim::{Ask, Knob};
use crate::action::BoostTarget;
use crate::capabilities::{Capabilities, Standing};
use crate::config::{Config, VmPolicy};
use crate::event::Time;
use crate::explain::{Cause, Reason};
use crate::infer::{Device, Guest, Shown, TaskDispatch};
use crate::nanos::total;

/// What a policy decides by.
pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a Config,
    pub(crate) world: Capabilities,
    pub(crate) guest: &'a Guest,
    pub(crate) standing: Standing,
    /// What the operator set for this VM.
    pub(crate) own: VmPolicy,
    pub(crate) paused: bool,
    pub(crate) debt: Debt,
    /// Nanoseconds that its threads ran boosted, for whatever reason.
    pub(crate) boosted: u64,
    /// Whether other VMs want the physical CPUs for which its vCPUs wait. Only told with an
    /// [episode](Fact::Episode), and when the time of a claim is over.
    pub(crate) contended: bool,
}

impl View<'_> {
    /// Whether anything may be done about the VM.
    pub(crate) fn may_act(&self) -> bool {
        self.world.acts && self.standing == Standing::Acting && !self.own.off && !self.paused
    }

    /// Nanoseconds that the threads of the VM waited for CPUs.
    pub(crate) fn waited(&self) -> u64 {
        total(self.guest.threads().map(|thread| thread.waited))
    }
}

/// What a VM got beyond its share and has not repaid.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debt {
    /// In nanoseconds; negative if it is owed.
    pub(crate) nanos: i64,
    /// Whether boosts give it more than it can repay beside them.
    pub(crate) overdrawn: bool,
}

/// What happened to a VM, as far as policies are concerned. Times are up to date.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact {
    /// An event is on its way to the guest. `correlated`: an I/O-bound task probably waits for it.
    Event { cause: Cause, device: Device, correlated: bool },
    /// The guest was told of events.
    Delivered,
    /// A task was dispatched on a vCPU.
    Dispatched { vcpu: u16, dispatch: TaskDispatch },
    /// A vCPU was halted.
    Halted { vcpu: u16 },
    /// A vCPU sleeps that the guest has not halted: its emulator has it wait.
    Stalled { vcpu: u16 },
    /// A vCPU woke another one that the guest has not halted: it gave up a lock of the emulator's, which that
    /// one has from now on.
    Inherited { vcpu: u16, from: u16 },
    /// The guest rang a doorbell on a vCPU, which answers what it was told of.
    Answered { vcpu: u16 },
    /// The guest has replied to the packet that it was told of last.
    Replied,
    /// A vCPU took an interrupt of a device.
    Taken { vcpu: u16 },
    /// A vCPU handed the event that it handled on to others, given as bits.
    HandedOn { from: u16, to: u64 },
    /// A task showed a frame. `gpu`: it is counted by what a graphics processor completes.
    Shown { shown: Shown, gpu: bool },
    /// Something came that whoever plays may wait for: of video, of sound, or of a timer; the vCPU if it is
    /// for one.
    Media { vcpu: Option<u16> },
    /// The guest accessed its sound card.
    Played,
    /// There is another episode than before, or none any more.
    Episode,
    /// vCPUs, given as bits, are interrupted in an episode, but not by background work.
    Interrupted { to: u64 },
    /// An emulator thread sleeps.
    EmulatorSlept,
    /// A thread, or one of the emulator's, has wanted a physical CPU for longer than turns take, and got none
    /// but by boosts: since when.
    Starves { target: BoostTarget, since: Time },
    /// All is over for now: the VM is paused, reset, let go.
    Over,
    /// The same for one vCPU.
    VcpuOver { vcpu: u16 },
}

/// A policy, for one VM.
pub(crate) trait Policy {
    /// Whether a fact may change anything. Of most that happens it is not told, for speed; of events and ends
    /// always.
    fn is_concerned(&self, fact: &Fact) -> bool {
        matches!(fact, Fact::Event { .. } | Fact::Over | Fact::VcpuOver { .. })
    }

    /// Something happened. What the policy claims or no longer claims is added to `asks`; what it decided
    /// about an event is returned.
    fn on_fact(&mut self, fact: Fact, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<(Cause, Reason)>;

    /// The time of one of its claims is over. Returns until when it goes on, if it does.
    fn on_expiry(&mut self, knob: Knob, view: &View<'_>, asks: &mut Vec<Ask>) -> Option<Time>;
}
