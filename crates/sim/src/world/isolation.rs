//! The daemon in a guest that keeps background work apart while a person waits (vAMP §3.3). What it uses of
//! the CPU is not modelled.

use super::World;
use super::devices::GuestDaemon;
use crate::machine::Machine;
use crate::queue::{NEVER, Nanos};
use frontdesk_engine::EpisodeCause;

/// From an input until the daemon acts on it.
const REACTS: Nanos = 1_000_000;
/// How often it looks whether what it left to the person is enough (§4.3: 1 s).
const INTERVAL: Nanos = 1_000_000_000;
/// vCPUs that idled less than this, in permille of the time, are fully used.
const SATURATED: u64 = 100;

impl World {
    /// A person did something, or something is to be heard: the daemon of the guest, if there is one, acts on
    /// that.
    pub(super) fn call_daemon(&mut self, machine: &mut Machine, vm: usize) {
        if let Some(daemon) = &mut self.vms[vm].daemon {
            daemon.fast = 0;
            machine.arm(daemon.timer, machine.now().saturating_add(REACTS));
        }
    }

    /// Sound is to be heard: the daemon acts on that unless it already has.
    pub(super) fn sound_begins(&mut self, machine: &mut Machine, vm: usize) {
        if self.vms[vm].daemon.as_ref().is_some_and(|daemon| daemon.fast == 0) {
            self.call_daemon(machine, vm);
        }
    }

    /// The daemon divides the vCPUs by what the host says is background work.
    pub(super) fn daemon_looks(&mut self, machine: &mut Machine, vm: usize) {
        let now = machine.now();
        let told = self.feed.background(vm);
        let state = &mut self.vms[vm];
        let Some(daemon) = &mut state.daemon else { return };
        let Some((cause, until, background)) = told.filter(|(_, until, _)| *until > now) else {
            daemon.fast = 0;
            state.routes.pinned = None;
            return state.guest.release();
        };
        let vcpus = state.slept.len();
        let slept = |vcpu: usize| {
            let (slept, since) = state.slept[vcpu];
            // One that was woken has not slept since, although its guest has not gone on yet.
            let sleeps = state.guest.is_idle(vcpu) && state.waiting[vcpu] == NEVER;
            slept + if sleeps { now - since } else { 0 }
        };
        let GuestDaemon { fast, slept: before, looked, .. } = daemon;
        if *fast == 0 {
            // A server and its client are to be on vCPUs of their own, so that one is seen to wake the other.
            *fast = if cause == EpisodeCause::Sound { 2 } else { 1 };
        } else if now - *looked >= INTERVAL / 2 {
            let most = (now - *looked) * SATURATED / 1000;
            let saturated = (vcpus - *fast..vcpus).all(|vcpu| slept(vcpu) - before[vcpu] < most);
            *fast = (*fast + usize::from(saturated)).min(vcpus - 1);
        }
        *before = (0..vcpus).map(slept).collect();
        *looked = now;
        state.routes.pinned = daemon.extension.pin_interrupts.then_some(vcpus - 1);
        state.guest.isolate(background, daemon.fast);
        machine.arm(daemon.timer, until.min(now.saturating_add(INTERVAL)));
        self.apply(machine, vm);
    }
}
