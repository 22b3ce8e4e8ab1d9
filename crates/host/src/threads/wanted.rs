//! What a thread is given: a function of what it had, of its weight and of its boost.

use frontdesk_engine::{Boost, nice_for};
use frontdesk_linux::sched::{Attributes, Policy};

/// Real-time priority of a boosted vCPU: the lowest there is. Any real-time priority comes before all
/// ordinary threads, and the host's own real-time threads (interrupt threads at 50, the daemon) must come
/// before a guest.
pub const VCPU_PRIORITY: u32 = 1;

/// Real-time priority of boosted emulator threads. They deliver the input the vCPU waits for, while the vCPU
/// may be spinning: they must come before it. At the same priority, or left ordinary, a boosted vCPU would
/// starve them, which is worse than no boost at all.
pub const EMULATOR_PRIORITY: u32 = 2;

/// What a multimedia boost adds to a priority: it comes before all I/O boosts, those of emulator threads too
/// (MM §5.3).
pub const MULTIMEDIA: u32 = 2;

/// The highest real-time priority of a boost.
pub(crate) const HIGHEST_PRIORITY: u32 = EMULATOR_PRIORITY + MULTIMEDIA;

/// What a thread does for its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadRole {
    Vcpu(u16),
    Emulator,
}

/// What is wanted of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// In permille of an ordinary thread's.
    pub(super) weight: u32,
    pub(super) boost: Boost,
}

pub(super) const ORDINARY: Wish = Wish { weight: 1000, boost: Boost::None };

/// By the kernel's own scheduler. The weight is for the fair class: while a thread is boosted, it has none.
pub(super) fn by_real_time(original: Attributes, role: ThreadRole, wish: Wish) -> Attributes {
    let priority = match role {
        ThreadRole::Vcpu(_) => VCPU_PRIORITY,
        ThreadRole::Emulator => EMULATOR_PRIORITY,
    };
    match wish.boost {
        Boost::None => weighed(original, wish.weight),
        Boost::Io => Attributes::fifo(priority),
        Boost::Multimedia => Attributes::fifo(priority + MULTIMEDIA),
    }
}

/// The nice value whose weight is nearest to this many permille of what the thread had.
fn weighed(original: Attributes, permille: u32) -> Attributes {
    let mut policy = original.policy;
    // The kernel has one weight for all that are idle.
    if matches!(policy, Policy::Idle { .. }) {
        return original;
    }
    let Some((nice, _)) = policy.fair_mut() else { return original };
    let had = i8::try_from(*nice).unwrap_or(0);
    let wanted = nice_for(had, permille);
    if wanted == had {
        return original;
    }
    *nice = wanted.into();
    Attributes { policy, reset_on_fork: true }
}

/// By frontdesk's own scheduler, which is told the weight and the boost apart.
pub(super) fn by_sched_ext(original: Attributes) -> Attributes {
    let nice = original.policy.nice().unwrap_or(0);
    Attributes { policy: Policy::Ext { nice, slice_ns: 0 }, reset_on_fork: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn other(nice: i32, reset_on_fork: bool) -> Attributes {
        Attributes { policy: Policy::Other { nice, slice_ns: 3_000_000 }, reset_on_fork }
    }

    #[test]
    fn a_weight_is_relative_to_what_the_thread_had() {
        let wish = |weight| Wish { weight, boost: Boost::None };
        let vcpu = |original, weight| by_real_time(original, ThreadRole::Vcpu(0), wish(weight));
        assert_eq!(vcpu(other(0, false), 110), other(10, true));
        assert_eq!(vcpu(other(-5, false), 335), other(0, true));
        assert_eq!(vcpu(other(7, false), 1000), other(7, false), "as it was");
        assert_eq!(vcpu(other(7, false), 1001), other(7, false), "as it was");
        let idle = Attributes { policy: Policy::Idle { nice: 0, slice_ns: 0 }, reset_on_fork: false };
        assert_eq!(vcpu(idle, 110), idle);
    }

    #[test]
    fn a_boost_hides_the_weight() {
        for weight in [56, 1000] {
            let given = |role, boost| by_real_time(other(0, false), role, Wish { weight, boost });
            let of =
                |boost| [ThreadRole::Vcpu(0), ThreadRole::Emulator].map(|role| given(role, boost).policy);
            assert_eq!(of(Boost::Io), [1, 2].map(|priority| Policy::Fifo { priority }));
            assert_eq!(of(Boost::Multimedia), [3, 4].map(|priority| Policy::Fifo { priority }));
        }
    }

    #[test]
    fn sched_ext_keeps_the_nice_value() {
        let ext = Attributes { policy: Policy::Ext { nice: 3, slice_ns: 0 }, reset_on_fork: true };
        assert_eq!(by_sched_ext(other(3, false)), ext);
    }
}
