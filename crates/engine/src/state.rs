//! The engine's state as it is loaded: checked, for it may come from a damaged or forged file.

use crate::action::Action;
use crate::capabilities::Capabilities;
use crate::config::{Config, ConfigError};
use crate::engine::{End, Engine, MAX_VMS, Troubles, Vm};
use crate::event::{Time, VmId};
use crate::knob::Ledger;
use crate::policy::Claim;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Why a state is none that an engine can be in.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the engine's state is not valid: {0}")]
    Config(#[from] ConfigError),
    #[error("the engine's state is not valid: {0}")]
    Impossible(&'static str),
}

/// A state whose parts were read, but not checked; field by field as [`Engine`] is serialised.
#[derive(Deserialize)]
pub(crate) struct Saved {
    config: Config,
    world: Capabilities,
    now: Time,
    vms: BTreeMap<VmId, Vm>,
    ledger: Ledger,
    actions: VecDeque<Action>,
    troubles: Troubles,
}

impl TryFrom<Saved> for Engine {
    type Error = StateError;

    fn try_from(saved: Saved) -> Result<Engine, StateError> {
        let Saved { config, world, now, mut vms, ledger, actions, troubles } = saved;
        config.validate()?;
        check(vms.len() <= MAX_VMS, "more VMs than any host runs")?;
        for vm in vms.values_mut() {
            vm.restore(now, &config.tavs)?;
        }
        ledger.check(now, |vm| vms.contains_key(&vm))?;
        let end = |vm, claim: &Claim| (claim.until, vm, claim.owner, claim.target);
        let ends: BTreeSet<End> =
            vms.iter().flat_map(|(vm, state)| state.claims.iter().map(|claim| end(*vm, claim))).collect();
        let needless = ends.is_empty() || world.charges_boosts;
        check(needless || ledger.next().is_some(), "a boost without a ledger")?;
        Ok(Engine { config, world, now, vms, ends, ledger, actions, troubles })
    }
}

pub(crate) fn check(holds: bool, otherwise: &'static str) -> Result<(), StateError> {
    if holds { Ok(()) } else { Err(StateError::Impossible(otherwise)) }
}

/// An LRU cache, serialised as the list of its entries, the least recently used first. Loaded, it is unbounded: its owner knows the
/// bound.
pub(crate) mod lru {
    use lru::LruCache;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::hash::Hash;

    pub(crate) fn serialize<K, V, S>(cache: &LruCache<K, V>, serializer: S) -> Result<S::Ok, S::Error>
    where
        K: Serialize + Hash + Eq,
        V: Serialize,
        S: Serializer,
    {
        serializer.collect_seq(cache.iter().rev())
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<LruCache<K, V>, D::Error>
    where
        K: Deserialize<'de> + Hash + Eq,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let entries = Vec::<(K, V)>::deserialize(deserializer)?;
        let mut cache = LruCache::unbounded();
        for (key, value) in entries {
            cache.put(key, value);
        }
        Ok(cache)
    }
}
