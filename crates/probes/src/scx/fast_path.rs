//! Boosts that the kernel gives by itself, as long as user space permits, and takes over or back later.
//!
//! A mandate is for one boost: a flood of packets gains nothing before user space has handled the first.

use super::{Scx, ScxError, abi};
use crate::packet::tap_key;
use frontdesk_engine::{Boost, Protocol, Time, VmId};
use frontdesk_linux::Tap;
use libbpf_rs::{MapCore as _, MapFlags, ProgramInput};
use std::collections::HashSet;

/// Ports of a VM that are known to the kernel; packets to others are only user space's business.
const MAX_PORTS: usize = 256;

/// What the kernel may do by itself when a packet comes to a [port](Scx::learn_port) of a VM: once, boost
/// these vCPUs and the emulator threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mandate {
    /// Thread ids, of which the first 8 count.
    pub vcpus: Vec<i32>,
    /// The preference.
    pub level: Boost,
    /// How long, in nanoseconds, if user space says nothing before.
    pub lasts_ns: u64,
}

/// What the kernel was told for a VM.
#[derive(Debug, Default)]
pub(super) struct FastPath {
    taps: Vec<[u8; 20]>,
    ports: HashSet<[u8; 8]>,
    mandated: Option<Mandate>,
}

impl Scx {
    /// Whether the kernel may be mandated to boost by itself.
    #[must_use]
    pub fn has_fast_path(&self) -> bool {
        self.has_fast_path
    }

    /// Says on which taps the packets of a VM come. A VM without account is no error.
    ///
    /// # Errors
    /// An interface cannot have that name, or there are more than 1024.
    pub fn set_taps(&mut self, vm: VmId, taps: &[Tap]) -> Result<(), ScxError> {
        let Some(account) = self.vms.get_mut(&vm) else { return Ok(()) };
        let map = &self.skel.maps.taps;
        // Deleting fails only for what is not there.
        account.fast_path.taps.drain(..).for_each(|key| drop(map.delete(&key)));
        for tap in taps {
            let failed = |cause| ScxError::Vm { vm, step: "follow the taps", cause };
            let key = tap_key(tap.netns, &tap.ifname)
                .ok_or_else(|| failed(format!("no interface is named {:?}", tap.ifname)))?;
            map.update(&key, &abi::receiver(vm, account.number), MapFlags::ANY)
                .map_err(|e| failed(format!("{e:#}")))?;
            account.fast_path.taps.push(key);
        }
        Ok(())
    }

    /// Says whether packets to a port are those that a [mandate](Scx::mandate) is for. Repeating it costs
    /// nothing. Returns whether it was said before that they are.
    pub fn learn_port(&mut self, vm: VmId, protocol: Protocol, port: u16, awaited: bool) -> bool {
        let Some(account) = self.vms.get_mut(&vm) else { return false };
        let (map, ports) = (&self.skel.maps.ports, &mut account.fast_path.ports);
        let key = abi::port(vm, protocol, port);
        let known = ports.contains(&key);
        if known && !awaited {
            ports.remove(&key);
            let _ = map.delete(&key);
        } else if !known && awaited && ports.len() < MAX_PORTS {
            // Where the map is full, its packets take the way through user space.
            if map.update(&key, &[1], MapFlags::ANY).is_ok() {
                ports.insert(key);
            }
        }
        known
    }

    /// Says what the kernel may do by itself for a VM from now on. `handled` says up to when user space has
    /// handled the packets that may have used the former mandate, if any may: what the kernel gave for
    /// them is taken back, and what user space has [ordered](Scx::boost) holds. If the kernel has given
    /// something for a later packet, nothing is mandated before that is handled, too.
    ///
    /// One system call if there is anything to say.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn mandate(
        &mut self,
        vm: VmId,
        handled: Option<Time>,
        mandate: Option<Mandate>,
    ) -> Result<(), ScxError> {
        let Some(account) = self.vms.get_mut(&vm) else { return Ok(()) };
        let fast_path = &mut account.fast_path;
        if handled.is_none() && fast_path.mandated == mandate {
            return Ok(());
        }
        let mut context = abi::mandate(account.number, handled.unwrap_or(Time(0)), mandate.as_ref());
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        let failed = |cause| ScxError::Vm { vm, step: "mandate boosts", cause };
        let output = self.skel.progs.mandate.test_run(input).map_err(|e| failed(format!("{e:#}")))?;
        fast_path.mandated = mandate.filter(|_| output.return_value == 0);
        Ok(())
    }

    /// Forgets what the kernel was told for a VM.
    pub(super) fn leave_fast_path(&mut self, vm: VmId) {
        // Whatever it gave ends with the threads, which have left.
        let _ = self.mandate(vm, Some(Time(u64::MAX)), None);
        let Some(account) = self.vms.get_mut(&vm) else { return };
        let FastPath { taps, ports, .. } = std::mem::take(&mut account.fast_path);
        taps.into_iter().for_each(|key| drop(self.skel.maps.taps.delete(&key)));
        ports.into_iter().for_each(|key| drop(self.skel.maps.ports.delete(&key)));
    }
}
