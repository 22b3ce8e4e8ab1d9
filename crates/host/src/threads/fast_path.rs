//! Boosts that the kernel gives by itself when a packet comes, before the engine hears of it.
//!
//! The engine decides all the same. What it foresees is mandated, for one packet; when it has been told of
//! that and what it wanted has been done, what the kernel gave is taken back: the boost is then the engine's
//! own, or none.

use super::{Mechanism, Threads, ThreadsError};
use crate::threads::wanted::ThreadRole;
use frontdesk_engine::{Foreseen, Protocol, Time, VmId};
use frontdesk_linux::Tap;
use frontdesk_probes::scx::Mandate;

impl Threads {
    /// Whether the kernel may be mandated to boost by itself. Nothing below does anything where it may not.
    #[must_use]
    pub fn has_fast_path(&self) -> bool {
        match &self.mechanism {
            Mechanism::RealTime => false,
            Mechanism::SchedExt(scx) => scx.has_fast_path(),
        }
    }

    /// Says on which taps the packets of an adopted VM come.
    ///
    /// # Errors
    /// The kernel cannot be told of one.
    pub fn set_taps(&mut self, vm: VmId, taps: &[Tap]) -> Result<(), ThreadsError> {
        match &mut self.mechanism {
            Mechanism::SchedExt(scx) if scx.has_fast_path() => Ok(scx.set_taps(vm, taps)?),
            Mechanism::SchedExt(_) | Mechanism::RealTime => Ok(()),
        }
    }

    /// Says whether an I/O-bound task waits for packets to this port, and returns what was said before.
    pub fn learn_port(&mut self, vm: VmId, protocol: Protocol, port: u16, awaited: bool) -> bool {
        match &mut self.mechanism {
            Mechanism::SchedExt(scx) if scx.has_fast_path() => scx.learn_port(vm, protocol, port, awaited),
            Mechanism::SchedExt(_) | Mechanism::RealTime => false,
        }
    }

    /// Mandates what the engine foresees, and nothing else from now on. `handled` is the time of the last
    /// packet to a known port if any was handled since the last call: what the kernel gave for it is taken
    /// back.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn mandate(
        &mut self,
        vm: VmId,
        handled: Option<Time>,
        foreseen: Option<&Foreseen>,
    ) -> Result<(), ThreadsError> {
        let Threads { mechanism: Mechanism::SchedExt(scx), vms } = self else { return Ok(()) };
        let Some(adopted) = vms.get(&vm).filter(|_| scx.has_fast_path()) else { return Ok(()) };
        let mandate = foreseen.map(|foreseen| {
            let is_foreseen =
                |role| matches!(role, ThreadRole::Vcpu(index) if foreseen.vcpus.contains(&index));
            let vcpus = adopted.threads.iter().filter(|thread| is_foreseen(thread.role));
            Mandate {
                vcpus: vcpus.map(|thread| thread.scheduling.thread().tid).collect(),
                level: foreseen.level,
                lasts_ns: foreseen.lasts_ns,
            }
        });
        Ok(scx.mandate(vm, handled, mandate)?)
    }
}
