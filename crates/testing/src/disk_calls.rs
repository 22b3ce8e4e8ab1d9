//! What holds of the disk policy whatever is called: no request is lost or submitted twice, and the device
//! does not stand still while something could be served.
//!
//! For property tests and for fuzzing with coverage (`fuzz/`).

use frontdesk_engine::disk::{Asker, Device, DiskConfig, DiskOperation, DiskPolicy, DiskRequest};
use frontdesk_engine::{TaskId, Time, UserInput, VmId};

const MS: u64 = 1_000_000;

/// A call.
#[derive(Clone, Debug)]
pub enum Call {
    /// A request comes.
    Ask {
        /// From this VM.
        vm: u32,
        /// By this task.
        task: Option<u64>,
        /// For this.
        operation: DiskOperation,
        /// So much.
        bytes: u64,
        /// From here.
        offset: u64,
    },
    /// One of those that are served is done.
    Complete(usize),
    /// This one is said to be done, and may not have been asked for.
    CompleteUnknown(u64),
    /// A person did something in a VM.
    Input(u32, UserInput),
    /// A VM says what a task is called.
    Named(u32, u64, String),
    /// Weight and cap of a VM.
    Limits(u32, u32, u32),
    /// Nanoseconds pass.
    Wait(u64),
    /// The clock goes back by so many.
    Back(u64),
}

/// Makes calls of a policy for an arm or for flash, with the paper's parameters or ours, with limits or
/// without.
///
/// # Panics
/// A request is lost or submitted twice, or the device stands still.
pub fn served_once(calls: Vec<Call>, arm: bool, paper: bool, limited: bool) {
    let device = if arm { Device::Arm } else { Device::Flash };
    let config = if paper { DiskConfig::paper() } else { DiskConfig::default() };
    let mut policy = DiskPolicy::new(config, device);
    policy.set_limited(limited);
    let (mut now, mut latest) = (Time(0), Time(0));
    let (mut waiting, mut serving) = (Vec::new(), Vec::new());
    for (id, call) in (0_u64..).zip(calls) {
        match call {
            Call::Ask { vm, task, operation, bytes, offset } => {
                let asker = Some(Asker { vcpu: 0, task: task.map(TaskId) });
                let vm = VmId(vm);
                let request = DiskRequest { id, vm, asker, operation, offset, bytes, at: now };
                assert!(policy.arrive(&request));
                waiting.push(id);
            }
            Call::Complete(index) if !serving.is_empty() => {
                let id = serving.swap_remove(index % serving.len());
                assert!(policy.complete(id, now).is_some());
            }
            Call::Complete(_) => {}
            Call::CompleteUnknown(id) => assert!(serving.contains(&id) || policy.complete(id, now).is_none()),
            Call::Input(vm, input) => policy.input(VmId(vm), input, now),
            Call::Named(vm, task, name) => policy.named(VmId(vm), TaskId(task), &name),
            Call::Limits(vm, weight, cap) => policy.set_limits(VmId(vm), weight, cap),
            Call::Wait(time) => now = now.plus(time),
            Call::Back(time) => now = Time(now.0.saturating_sub(time)),
        }
        latest = latest.max(now);
        while let Some(submit) = policy.next(now) {
            let place = waiting.iter().position(|id| *id == submit.id);
            assert!(place.is_some(), "{} was not waiting", submit.id);
            waiting.swap_remove(place.unwrap());
            serving.push(submit.id);
            assert_eq!(policy.why(submit.id), Some(submit.why));
            assert_eq!(submit.why.class(), submit.class);
        }
        if serving.is_empty() && !waiting.is_empty() {
            // An arm is kept for somebody, and not for long.
            let deadline = policy.deadline();
            let soon = deadline.is_some_and(|at| at > latest && at.since(latest) <= 50 * MS);
            assert!(soon, "{deadline:?} at {latest:?}");
            assert!(arm, "flash stands still");
        }
    }
    now = latest;
    for _ in 0..1_000 {
        if waiting.is_empty() && serving.is_empty() {
            return;
        }
        while let Some(submit) = policy.next(now) {
            waiting.retain(|id| *id != submit.id);
            serving.push(submit.id);
        }
        serving.drain(..).for_each(|id| _ = policy.complete(id, now));
        now = now.plus(10 * MS);
    }
    assert_eq!(waiting, Vec::<u64>::new());
}
