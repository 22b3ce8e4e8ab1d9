//! Reservations by real-time priority: who is to run gets a priority of its own, who has used up its slice
//! none (VSched §3.2).

use super::enforce::{AHEAD, Enforce};
use super::members::{MemberRole, MemberThread, MemberThreads};
use crate::threads::HIGHEST_PRIORITY;
use frontdesk_engine::reservation::{Dispatch, DispatchKind, LEVELS, Member, Reservation, TargetId};
use frontdesk_linux::sched::{Attributes, Policy, SchedError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Below the daemon (50), its guardian (60) and the host's interrupt threads (50); above boosts.
const LOWEST_PRIORITY: u32 = HIGHEST_PRIORITY + 1;
const _: () = assert!(LOWEST_PRIORITY + 2 * LEVELS as u32 <= 49);

#[derive(Debug)]
struct RealTimeMember {
    threads: MemberThreads,
    kind: Option<DispatchKind>,
    halt: Arc<Mutex<Halt>>,
}

/// Who of a target is to stop, for a process is stopped as a whole: only when all of its members are to. They
/// may have different dispatchers.
#[derive(Debug, Default)]
pub(super) struct Halt {
    /// The threads of each member by its index, and whether it is to stop.
    members: BTreeMap<u16, (MemberThreads, bool)>,
    stopped: bool,
}

impl Halt {
    fn follow(&mut self) -> Result<(), SchedError> {
        let stop = self.members.values().all(|(_, stop)| *stop);
        if self.stopped != stop {
            stop_or_go_on(self.members.values().map(|(threads, _)| threads), stop)?;
            self.stopped = stop;
        }
        Ok(())
    }
}

/// Carries out what a dispatcher says.
#[derive(Debug, Default)]
pub(super) struct User {
    members: BTreeMap<Member, RealTimeMember>,
    halts: Halts,
}

/// The targets of all dispatchers. Locked when members come and go only: dispatchers whose periods begin
/// together would wait for each other.
pub(super) type Halts = Arc<Mutex<BTreeMap<TargetId, Arc<Mutex<Halt>>>>>;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl User {
    /// One for another dispatcher.
    pub(super) fn new(halts: &Halts) -> User {
        User { members: BTreeMap::new(), halts: Arc::clone(halts) }
    }
}

impl Enforce for User {
    fn dispatcher(&self) -> [Attributes; 2] {
        // It must come when a slice ends, whatever runs: twenty decisions in a millisecond. With more for
        // each CPU, the kernel would not let one of two be taken away. Who has used up its run time waits for
        // the next period: in ten milliseconds that is only one that has gone wild, in one it was anyone that
        // the machine had held up. It is refused in a CPU set of its own.
        let policy = Policy::Deadline {
            runtime_ns: 4_000_000,
            deadline_ns: 10_000_000,
            period_ns: 10_000_000,
            flags: 0,
        };
        [Attributes { policy, reset_on_fork: true }, AHEAD]
    }

    /// New threads are scheduled at the next [`apply`](Self::apply), or at once if the member has been
    /// dispatched already.
    fn hold(
        &mut self,
        member: Member,
        _: Option<Reservation>,
        threads: MemberThreads,
    ) -> Result<(), SchedError> {
        let held = self.members.entry(member).or_insert_with(|| {
            let halt = Arc::clone(lock(&self.halts).entry(member.target).or_default());
            RealTimeMember { threads: MemberThreads::default(), kind: None, halt }
        });
        lock(&held.halt).members.entry(member.index).or_default().0 = threads.clone();
        let known = std::mem::replace(&mut held.threads, threads);
        let Some(kind) = held.kind else { return Ok(()) };
        let mut new = held.threads.all.iter().filter(|member| !known.has(member.thread.id()));
        new.try_for_each(|thread| schedule(thread, held.threads.all.len(), kind))
    }

    fn forget(&mut self, member: Member) {
        let Some(held) = self.members.remove(&member) else { return };
        let mut halts = lock(&self.halts);
        let mut halt = lock(&held.halt);
        halt.members.remove(&member.index);
        if std::mem::take(&mut halt.stopped) {
            // Who puts the process back makes sure of it, and tells if it fails.
            let _ = stop_or_go_on([&held.threads], false);
        }
        if halt.members.is_empty() {
            halts.remove(&member.target);
        }
    }

    fn apply(&mut self, dispatch: Dispatch) -> Result<(), SchedError> {
        let Dispatch { member, kind, .. } = dispatch;
        let Some(held) = self.members.get_mut(&member) else { return Ok(()) };
        // Until all is done it is not known how it is scheduled.
        let before = held.kind.take();
        // One that is to stop is scheduled last before it is signalled: it gives way at once, and a signal
        // takes longer.
        if before != Some(kind) {
            let count = held.threads.all.len();
            held.threads.all.iter().try_for_each(|thread| schedule(thread, count, kind))?;
        }
        let stop = kind == DispatchKind::Stop;
        if stop || before.is_none_or(|before| before == DispatchKind::Stop) {
            let mut halt = lock(&held.halt);
            if let Some((_, stops)) = halt.members.get_mut(&member.index) {
                *stops = stop;
            }
            halt.follow()?;
        }
        held.kind = Some(kind);
        Ok(())
    }
}

/// Stops the processes of all these threads, or lets them go on. If not all of them can be stopped, none is.
pub(super) fn stop_or_go_on<'a>(
    members: impl IntoIterator<Item = &'a MemberThreads> + Clone,
    stop: bool,
) -> Result<(), SchedError> {
    let result = signal(members.clone(), if stop { libc::SIGSTOP } else { libc::SIGCONT });
    if stop && result.is_err() {
        // What could not be stopped is told; it needs not go on.
        let _ = signal(members, libc::SIGCONT);
    }
    result
}

/// Sends a signal to all workers, and tells of the first that could not get it. The process stops as soon as
/// one of them sees it: only who has the CPU does that at once, and which one that is cannot be known. The
/// others may be waiting for this CPU.
fn signal<'a>(members: impl IntoIterator<Item = &'a MemberThreads>, signal: i32) -> Result<(), SchedError> {
    let mut result = Ok(());
    let threads = members.into_iter().flat_map(|threads| &threads.all);
    for MemberThread { thread, .. } in threads.filter(|member| member.role == MemberRole::Worker) {
        match thread.signal(signal) {
            // Of one that has ended nothing is left to stop.
            Ok(()) | Err(SchedError::Vanished { .. }) => {}
            Err(error) => result = result.and(Err(error)),
        }
    }
    result
}

fn schedule(
    MemberThread { thread, role }: &MemberThread,
    threads: usize,
    kind: DispatchKind,
) -> Result<(), SchedError> {
    let attributes = match kind {
        DispatchKind::Run { level } => {
            let vcpu = LOWEST_PRIORITY + 2 * u32::from(level.saturating_sub(1));
            let priority = if *role == MemberRole::Emulator { vcpu + 1 } else { vcpu };
            // Threads of the same priority take turns.
            let policy = match threads {
                1 => Policy::Fifo { priority },
                _ => Policy::RoundRobin { priority },
            };
            Attributes { policy, reset_on_fork: true }
        }
        DispatchKind::Leftover | DispatchKind::Stop => LEFTOVER,
    };
    match thread.set(attributes) {
        Err(SchedError::Vanished { .. }) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Only when nothing else runs.
const LEFTOVER: Attributes =
    Attributes { policy: Policy::Idle { nice: 0, slice_ns: 0 }, reset_on_fork: true };

#[cfg(test)]
mod tests {
    use super::super::members::tests::Stranger;
    use super::*;

    #[test]
    fn who_has_a_members_number_by_now_is_left_alone() {
        let stranger = Stranger::start();
        let before = stranger.now();
        let member = Member { target: TargetId(0), index: 0 };
        let mut user = User::default();
        user.hold(member, None, stranger.member()).unwrap();
        for kind in [DispatchKind::Run { level: 1 }, DispatchKind::Leftover, DispatchKind::Stop] {
            user.apply(Dispatch { member, cpu: 0, kind }).unwrap();
            assert_eq!(stranger.now(), before, "{kind:?}");
        }
        user.forget(member);
        assert_eq!(stranger.now(), before);
    }
}
