//! Linux group scheduling: groups share each physical CPU by weight, entities share what their group gets,
//! and real-time entities run before all.
//!
//! What has a reservation is of the real-time class in its slices, above what is boosted, and out of them an
//! idle-class group: as the daemon does it.
//!
//! What differs between versions of the kernel - the order in a run queue - is a [`Discipline`]. Real-time
//! throttling is not modelled: what frontdesk boosts is bounded by its own ledger. Neither are bandwidth
//! limits, NUMA and caches.

mod balance;
mod cfs;
mod discipline;
mod eevdf;
mod group_fair;
mod hierarchy;
mod load;
mod queue;
mod realtime;
mod waiting;

pub use cfs::cfs;
pub(crate) use cfs::cfs_on;
pub use eevdf::eevdf;
pub(crate) use eevdf::eevdf_on;
pub(crate) use load::nice_weight;
