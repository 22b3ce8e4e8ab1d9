//! Accounts with the ledger: opened when something is given that is to be repaid, and settled from time to
//! time.

use super::state::Engine;
use super::vm::Vm;
use crate::action::ActionKind;
use crate::capabilities::Standing;
use crate::config;
use crate::event::VmId;
use crate::knob::VmAccount;
use crate::nanos::{nanos, signed};
use crate::policy::Debt;
use std::time::Duration;

/// Rounds of the world's scheduler, each a slice for every VM, in a settlement of the ledger at least.
const ROUNDS: u64 = 4;
/// Longest time between settlements.
const LONGEST: Duration = Duration::from_secs(10);
/// The largest share there is.
const MOST_PERMILLE: u64 = 64_000;

impl Engine {
    /// What the VMs got and wanted of what the ordinary scheduler has to give; what has a reservation gets
    /// nothing of that.
    fn accounts(&mut self) -> Vec<VmAccount> {
        for state in self.vms.values_mut() {
            state.account_all(self.now, &self.config.tavs);
        }
        let vms = self.vms.iter().filter(|(_, state)| state.standing != Standing::Reserved);
        let repays = self.world.acts && !self.world.charges_boosts;
        let so_far = |(vm, state): (&VmId, &Vm)| {
            let account = state.so_far(*vm, self.now);
            VmAccount { acting: account.acting && repays, ..account }
        };
        vms.map(so_far).collect()
    }

    pub(super) fn open_ledger(&mut self) {
        for state in self.vms.values_mut() {
            state.account_all(self.now, &self.config.tavs);
            state.restart_window();
            state.others_told = None;
        }
        let accounts = self.accounts();
        let config = self.ledger_config();
        self.ledger.open(self.now, accounts.into_iter(), &config);
    }

    pub(super) fn settle(&mut self) {
        let accounts = self.accounts();
        let config = self.ledger_config();
        let settled = self.ledger.settle(self.now, &accounts, &config).into_iter().map(|(vm, _)| vm);
        let mut changed: Vec<VmId> = settled.collect();
        for (vm, state) in &mut self.vms {
            if state.compensate(self.world) && !changed.contains(vm) {
                changed.push(*vm);
            }
        }
        for vm in changed {
            let permille = self.permille(vm);
            self.act(ActionKind::Share { vm, permille });
        }
        // A boost that is on may yet give something.
        if !self.ends.is_empty() {
            self.ledger.keep_open(self.now, &config);
        }
        for state in self.vms.values_mut() {
            state.restart_window();
            state.unsure = false;
        }
    }

    /// What a VM owes.
    pub(super) fn debt(&self, vm: VmId) -> Debt {
        let owed = self.ledger.debt(vm);
        // Most owe less, and this is asked at each event.
        let much = owed > signed(nanos(self.config.ledger.period)) && !self.world.charges_boosts;
        if much {
            self.ledger.balance(vm, &self.ledger_config())
        } else {
            Debt { nanos: owed, overdrawn: false }
        }
    }

    /// If somebody waits for an answer of a VM that is not boosted for it, and nobody did before: what was
    /// boosted before is repaid after that. It does not wait for the next settlement to be so.
    pub(super) fn postpone(&mut self, vm: VmId, waited: bool) {
        if waited || !self.vms.get(&vm).is_some_and(|state| state.waits(self.now)) {
            return;
        }
        let config = self.ledger_config();
        if self.ledger.postpone(vm, &config) {
            let permille = self.permille(vm);
            self.act(ActionKind::Share { vm, permille });
        }
    }

    /// A VM's share, in permille of its weight: that of what it is entitled to that the ledger leaves it.
    pub(super) fn permille(&self, vm: VmId) -> u32 {
        let Some(state) = self.vms.get(&vm) else { return self.ledger.permille(vm) };
        let [entitled, compensation] = [state.claims.entitlement(), state.compensation].map(u64::from);
        let permille = u64::from(self.ledger.permille(vm)) * entitled / 1000 * compensation / 1000;
        u32::try_from(permille.clamp(1, MOST_PERMILLE)).unwrap_or(u32::MAX)
    }

    /// The ledger's parameters, its times long enough for the world: in a window each VM must have had some
    /// turns, or what it got by chance is taken for an error.
    fn ledger_config(&self) -> config::Ledger {
        let mut config = self.config.ledger.clone();
        let vms = u64::try_from(self.vms.len()).unwrap_or(u64::MAX);
        let rounds = self.world.slice_ns.saturating_mul(vms).saturating_mul(ROUNDS);
        let least = Duration::from_nanos(rounds).min(LONGEST);
        if config.period < least {
            let horizons = config.horizon.as_secs_f64() / config.period.as_secs_f64();
            config.period = least;
            config.horizon = least.mul_f64(horizons).min(LONGEST * 6);
        }
        config
    }
}
