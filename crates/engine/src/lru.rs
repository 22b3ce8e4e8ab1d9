//! LRU caches as the engine holds them: serialised as the list of their entries, the least recently used
//! first. Loaded, a cache is unbounded: its owner knows the bound.

use ::lru::LruCache;
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

/// Bytes that an `LruCache` holds: an index with room for `capacity` entries, a power of two of slots of
/// which an eighth stays free, and a list node for each entry.
pub(crate) fn bytes<K, V>(capacity: usize, entries: usize) -> usize {
    const SLOT: usize = 2 * size_of::<usize>() + 1;
    let slots = if capacity == 0 { 0 } else { (capacity * 8).div_ceil(7).next_power_of_two() };
    slots * SLOT + entries * (size_of::<(K, V)>() + 2 * size_of::<usize>())
}
