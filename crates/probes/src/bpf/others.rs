//! What a VM's QEMU runs in threads that are not followed one by one: the kernel keeps an account for all of
//! them together, however many there are and whenever they were started.

use super::abi;
use crate::BpfError;
use crate::error::{chain, refusal};
use frontdesk_engine::{EventKind, VmId};
use frontdesk_linux::monotonic_ns;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, num_possible_cpus};
use std::collections::BTreeMap;

/// The accounts of all VMs.
pub(super) struct Others {
    map: MapHandle,
    known: BTreeMap<VmId, Known>,
}

/// What is known of one VM's.
struct Known {
    /// Its process, as the map's key.
    key: [u8; 4],
    /// What was told by CPU: nanoseconds that they ran, and that they waited.
    told: Vec<(u64, u64)>,
}

impl Others {
    pub(super) fn new(map: MapHandle) -> Others {
        Others { map, known: BTreeMap::new() }
    }

    /// Opens the account of a VM's process. One that is open stays so.
    pub(super) fn open(&mut self, vm: VmId, pid: i32) -> Result<(), BpfError> {
        if self.known.contains_key(&vm) {
            return Ok(());
        }
        let fail = |cause: String| BpfError::Follow { vm, what: format!("process {pid}"), cause };
        let cpus = num_possible_cpus().map_err(|e| fail(chain(&e)))?;
        let (key, none) = (pid.to_ne_bytes(), vec![abi::NO_OTHERS.to_vec(); cpus]);
        let opened = self.map.update_percpu(&key, &none, MapFlags::NO_EXIST);
        opened.map_err(|e| fail(refusal(&e, "1024 VMs")))?;
        self.known.insert(vm, Known { key, told: vec![(0, 0); cpus] });
        Ok(())
    }

    /// Closes it. One that is not open is no error.
    pub(super) fn close(&mut self, vm: VmId) {
        if let Some(known) = self.known.remove(&vm) {
            // Deleting fails only for what is not there.
            let _ = self.map.delete(&known.key);
        }
    }

    /// Appends what ran and waited since the last call, as [`EventKind::OthersRan`]: for each VM as many as
    /// there are CPUs, at most.
    pub(super) fn take(&mut self, out: &mut Vec<EventKind>) -> Result<(), BpfError> {
        for (&vm, known) in &mut self.known {
            // Who runs on is told of up to now. First the time: one that stops before it is looked at has not
            // run longer than it did.
            let now = monotonic_ns();
            let accounts = self.map.lookup_percpu(&known.key, MapFlags::ANY);
            let accounts = accounts
                .map_err(|e| BpfError::Read { what: "the run time of other threads", cause: chain(&e) })?;
            let accounts = accounts.into_iter().flatten();
            for ((pcpu, told), account) in (0..).zip(&mut known.told).zip(accounts) {
                let (ran, waited) = abi::others(&account, now).unwrap_or_default();
                let (ran_ns, waited_ns) = (ran.saturating_sub(told.0), waited.saturating_sub(told.1));
                if ran_ns > 0 || waited_ns > 0 {
                    out.push(EventKind::OthersRan { vm, pcpu, ran_ns, waited_ns });
                    *told = (told.0 + ran_ns, told.1 + waited_ns);
                }
            }
        }
        Ok(())
    }
}
