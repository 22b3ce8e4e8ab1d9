//! The actuator of threads on processes that stand for a VM's.

use crate::support::{Idler, give_up_signals, start_guardian, trial, with_the_number_of};
use anyhow::{Context as _, Result, anyhow, ensure};
use frontdesk_engine::{Boost, BoostTarget, VmId, nice_weight};
use frontdesk_host::threads::{EMULATOR_PRIORITY, Threads, VCPU_PRIORITY};
use frontdesk_linux::sched::{self, Attributes, Policy, ThreadId};
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::thread;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("threads_are_boosted_as_told", are_boosted_as_told),
        trial("threads_of_another_user_are_boosted", of_another_user_are_boosted),
        trial("threads_keep_a_weight_under_a_boost", keep_a_weight_under_a_boost),
        trial("threads_keep_a_nice_value_set_by_hand", keep_a_nice_value_set_by_hand),
        trial("threads_that_are_real_time_or_gone_are_left", that_are_real_time_or_gone_are_left),
        trial("threads_are_told_from_those_with_their_numbers", are_told_from_those_with_their_numbers),
        trial("threads_are_undone_by_the_guardian", are_undone_by_the_guardian),
        trial("threads_are_what_was_last_wanted_of_them", are_what_was_last_wanted_of_them),
    ]
}

/// A thread ends, and somebody else gets its number before anybody looks.
fn are_told_from_those_with_their_numbers() -> Result<()> {
    let (vcpu, emulator, guardian) = (Idler::start()?, Idler::start()?, start_guardian()?);
    let mut threads = Threads::by_real_time();
    threads.adopt(VM, 1024, &[(0, vcpu.thread()?)], &[emulator.thread()?], &guardian)?;
    threads.boost(VM, BoostTarget::Emulators, Boost::Io)?;
    let former = [vcpu.thread()?, emulator.thread()?];
    drop((vcpu, emulator));
    let strangers = [with_the_number_of(former[0])?, with_the_number_of(former[1])?];
    let now = || former.map(|thread| sched::get(thread.tid).ok());
    let before = now();
    threads.boost(VM, VCPU, Boost::Io)?;
    ensure!(now() == before, "boosted: {:?}", now());
    threads.weigh(VM, 0, 110)?;
    threads.boost(VM, BoostTarget::Emulators, Boost::None)?;
    ensure!(now() == before, "changed: {:?}", now());
    // By the guardian, too.
    guardian.finish()?;
    ensure!(now() == before, "restored: {:?}", now());
    drop(strangers);
    Ok(())
}

const VM: VmId = VmId(4);
const VCPU: BoostTarget = BoostTarget::Vcpu(0);

const fn other(nice: i32) -> Attributes {
    Attributes { policy: Policy::Other { nice, slice_ns: 3_000_000 }, reset_on_fork: false }
}

fn are_boosted_as_told() -> Result<()> {
    let (a, b, emulator) = (Idler::start()?, Idler::start()?, Idler::start()?);
    sched::set(a.pid(), other(5))?;
    let original = [&a, &b, &emulator].map(|p| sched::get(p.pid()));
    let guardian = start_guardian()?;
    let mut threads = Threads::by_real_time();
    threads.adopt(VM, 1024, &[(0, a.thread()?), (3, b.thread()?)], &[emulator.thread()?], &guardian)?;
    let check = |expected: [Option<u32>; 3]| -> Result<()> {
        for ((process, expected), original) in [&a, &b, &emulator].into_iter().zip(expected).zip(&original) {
            let expected = match expected {
                Some(priority) => Attributes::fifo(priority),
                None => *original.as_ref().map_err(|e| anyhow::anyhow!("{e}"))?,
            };
            let found = sched::get(process.pid())?;
            ensure!(found == expected, "expected {expected:?}, found {found:?}");
        }
        Ok(())
    };
    let (v, e) = (Some(VCPU_PRIORITY), Some(EMULATOR_PRIORITY));
    // Above all I/O boosts.
    let (media_v, media_e) = (Some(3), Some(4));
    let (all, second) = (BoostTarget::Emulators, BoostTarget::Vcpu(3));
    check([None, None, None])?;
    for (target, level, expected) in [
        (all, Boost::Io, [None, None, e]),
        (VCPU, Boost::Io, [v, None, e]),
        (VCPU, Boost::Io, [v, None, e]),
        (second, Boost::Multimedia, [v, media_v, e]),
        (all, Boost::Multimedia, [v, media_v, media_e]),
        (second, Boost::Io, [v, v, media_e]),
        (all, Boost::Io, [v, v, e]),
        (VCPU, Boost::None, [None, v, e]),
        (VCPU, Boost::None, [None, v, e]),
        (BoostTarget::Vcpu(9), Boost::Io, [None, v, e]),
        (second, Boost::None, [None, None, e]),
        (all, Boost::None, [None, None, None]),
        (all, Boost::Io, [None, None, e]),
        (second, Boost::Io, [None, v, e]),
    ] {
        threads.boost(VM, target, level)?;
        check(expected)?;
    }
    ensure!(threads.is_boosted(VM));
    threads.release(VM, &guardian)?;
    check([None, None, None])?;
    threads.boost(VM, VCPU, Boost::Io)?;
    check([None, None, None])?;
    let report = guardian.finish()?;
    ensure!((report.undone, report.failed.len()) == (0, 0), "released threads are forgotten: {report:?}");
    Ok(())
}

/// Whoever may not signal a thread may change its scheduling nevertheless, and must undo it.
fn of_another_user_are_boosted() -> Result<()> {
    let vcpu = Idler::of_another_user()?;
    let (original, thread) = (sched::get(vcpu.pid())?, vcpu.thread()?);
    let guardian = start_guardian()?;
    let boosted = || -> Result<Attributes> {
        give_up_signals()?;
        let mut threads = Threads::by_real_time();
        threads.adopt(VM, 1024, &[(0, thread)], &[], &guardian)?;
        threads.boost(VM, VCPU, Boost::Io)?;
        let boosted = sched::get(thread.tid)?;
        threads.release(VM, &guardian)?;
        Ok(boosted)
    };
    let boosted = thread::scope(|scope| scope.spawn(boosted).join());
    let boosted = boosted.map_err(|_| anyhow!("it panicked"))??;
    ensure!(boosted == Attributes::fifo(VCPU_PRIORITY), "{boosted:?}");
    ensure!(sched::get(vcpu.pid())? == original, "{:?}", sched::get(vcpu.pid())?);
    ensure!(guardian.finish()?.undone == 0);
    Ok(())
}

fn keep_a_weight_under_a_boost() -> Result<()> {
    let vcpu = Idler::start()?;
    sched::set(vcpu.pid(), other(2))?;
    let original = sched::get(vcpu.pid())?;
    let guardian = start_guardian()?;
    let mut threads = Threads::by_real_time();
    threads.adopt(VM, 1024, &[(0, vcpu.thread()?)], &[], &guardian)?;
    let found = || sched::get(vcpu.pid()).map(|found| (found.policy.nice(), found.reset_on_fork));
    threads.weigh(VM, 0, 110)?;
    ensure!(found()? == (Some(12), true), "{:?}", found()?);
    threads.boost(VM, VCPU, Boost::Io)?;
    ensure!(sched::get(vcpu.pid())? == Attributes::fifo(VCPU_PRIORITY));
    // Holds when the boost ends.
    threads.weigh(VM, 0, 335)?;
    ensure!(sched::get(vcpu.pid())? == Attributes::fifo(VCPU_PRIORITY));
    threads.boost(VM, VCPU, Boost::None)?;
    ensure!(found()? == (Some(7), true), "{:?}", found()?);
    threads.weigh(VM, 0, 1000)?;
    ensure!(sched::get(vcpu.pid())? == original);
    threads.weigh(VM, 0, 3000)?;
    threads.weigh(VM, 7, 3000)?;
    ensure!(found()? == (Some(-3), true), "{:?}", found()?);
    threads.release(VM, &guardian)?;
    ensure!(sched::get(vcpu.pid())? == original);
    Ok(())
}

/// What an operator sets while a VM is followed is neither lost with the next boost nor at the end, nor with
/// the daemon.
fn keep_a_nice_value_set_by_hand() -> Result<()> {
    let (vcpu, other_vcpu) = (Idler::start()?, Idler::start()?);
    // The test itself may have another.
    for idler in [&vcpu, &other_vcpu] {
        sched::set(idler.pid(), other(0))?;
    }
    let guardian = start_guardian()?;
    let mut threads = Threads::by_real_time();
    let both = [(0, vcpu.thread()?), (1, other_vcpu.thread()?)];
    threads.adopt(VM, 1024, &both, &[], &guardian)?;
    ensure!(threads.look(VM, &guardian)? == [(0, 1000), (1, 1000)]);
    let renice = |nice| {
        let found = sched::get(vcpu.pid())?;
        let Policy::Other { slice_ns, .. } = found.policy else { anyhow::bail!("{found:?}") };
        Ok(sched::set(vcpu.pid(), Attributes { policy: Policy::Other { nice, slice_ns }, ..found })?)
    };
    let nice = || sched::get(vcpu.pid()).map(|found| found.policy.nice());
    renice(5)?;
    ensure!(threads.look(VM, &guardian)? == [(0, 327), (1, 1000)]);
    threads.boost(VM, VCPU, Boost::Io)?;
    ensure!(threads.look(VM, &guardian)? == [(0, 327), (1, 1000)], "a boost hides it");
    threads.boost(VM, VCPU, Boost::None)?;
    ensure!(nice()? == Some(5));
    // A weight is relative to what was set.
    threads.weigh(VM, 0, 333)?;
    ensure!(nice()? == Some(10));
    renice(0)?;
    ensure!(threads.look(VM, &guardian)? == [(0, 1000), (1, 1000)] && nice()? == Some(5));
    threads.weigh(VM, 0, 1000)?;
    renice(7)?;
    threads.look(VM, &guardian)?;
    // While it is boosted, which shows no nice value; and looked at then, or not.
    for (set, is_looked_at) in [(3, false), (4, true), (7, false)] {
        threads.boost(VM, VCPU, Boost::Io)?;
        rustix::process::setpriority_process(rustix::process::Pid::from_raw(vcpu.pid()), set)?;
        if is_looked_at {
            threads.look(VM, &guardian)?;
        }
        threads.boost(VM, VCPU, Boost::None)?;
        ensure!(nice()? == Some(set), "{set}: {:?}", nice()?);
        threads.look(VM, &guardian)?;
        threads.boost(VM, VCPU, Boost::Io)?;
        threads.boost(VM, VCPU, Boost::None)?;
        ensure!(nice()? == Some(set), "{set}: {:?}", nice()?);
    }
    threads.boost(VM, VCPU, Boost::Io)?;
    // As after a kill -9: the guardian is left to undo.
    drop(threads);
    let report = guardian.finish()?;
    ensure!(report.undone == 2 && nice()? == Some(7), "{report:?}, {:?}", nice()?);
    Ok(())
}

fn that_are_real_time_or_gone_are_left() -> Result<()> {
    let (real_time, vanishing, vcpu) = (Idler::start()?, Idler::start()?, Idler::start()?);
    sched::set(real_time.pid(), Attributes::fifo(10))?;
    let guardian = start_guardian()?;
    let mut threads = Threads::by_real_time();
    let emulators = [real_time.thread()?, vanishing.thread()?];
    threads.adopt(VM, 1024, &[(0, vcpu.thread()?)], &emulators, &guardian)?;
    drop(vanishing);
    threads.boost(VM, BoostTarget::Emulators, Boost::Io)?;
    threads.boost(VM, VCPU, Boost::Io)?;
    ensure!(sched::get(real_time.pid())? == Attributes::fifo(10), "it was ahead already");
    ensure!(sched::get(vcpu.pid())? == Attributes::fifo(VCPU_PRIORITY));
    drop(vcpu);
    threads.boost(VM, VCPU, Boost::None)?;
    threads.release(VM, &guardian)?;
    threads.adopt(VM, 1024, &[], &emulators, &guardian)?;
    threads.release(VM, &guardian)?;
    Ok(())
}

fn are_undone_by_the_guardian() -> Result<()> {
    let (boosted, weighed) = (Idler::start()?, Idler::start()?);
    let now = || -> Result<_> { Ok((sched::get(boosted.pid())?, sched::get(weighed.pid())?)) };
    let before = now()?;
    let guardian = start_guardian()?;
    let mut threads = Threads::by_real_time();
    threads.adopt(VM, 1024, &[(0, boosted.thread()?), (1, weighed.thread()?)], &[], &guardian)?;
    threads.weigh(VM, 0, 56)?;
    threads.boost(VM, VCPU, Boost::Io)?;
    threads.weigh(VM, 1, 56)?;
    let changed = now()?;
    ensure!(changed.0 != before.0 && changed.1 != before.1, "{changed:?}");
    let report = guardian.finish()?;
    ensure!(report.undone == 2 && now()? == before, "one undo for each: {report:?}");
    let again = threads.adopt(VM, 1024, &[(0, boosted.thread()?)], &[], &start_guardian()?);
    ensure!(again.is_ok(), "a new guardian serves: {again:?}");
    Ok(())
}

/// What a thread has and what is wanted of it, as the documentation says it.
#[derive(Clone, Copy)]
struct Model {
    original: Attributes,
    emulator: bool,
    weight: u32,
    boost: Boost,
}

impl Model {
    fn attributes(&self) -> Attributes {
        let nice = match (self.original.policy, self.boost) {
            (Policy::Fifo { .. }, _) => return self.original,
            (_, Boost::Io) => return Attributes::fifo(if self.emulator { 2 } else { 1 }),
            (_, Boost::Multimedia) => return Attributes::fifo(if self.emulator { 4 } else { 3 }),
            (Policy::Idle { .. }, Boost::None) => return self.original,
            (policy, Boost::None) => policy.nice().unwrap_or(0),
        };
        let weight = |nice: i32| f64::from(nice_weight(i8::try_from(nice).unwrap_or(0)));
        let wanted = weight(nice) * f64::from(self.weight) / 1000.0;
        let distance = |nice: &i32| (weight(*nice) / wanted).ln().abs();
        let nearest = (-20..20).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(nice);
        let mut policy = self.original.policy;
        if let Policy::Other { nice, .. } | Policy::Batch { nice, .. } = &mut policy {
            *nice = nearest;
        }
        Attributes { policy, reset_on_fork: self.original.reset_on_fork || nearest != nice }
    }
}

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).unwrap_or(0)
    }

    fn level(&mut self) -> Boost {
        [Boost::None, Boost::Io, Boost::Multimedia][self.below(3) as usize]
    }
}

/// Boosts, weights and threads come and go at random: each thread always has what the model says, and the
/// guardian has each just once.
fn are_what_was_last_wanted_of_them() -> Result<()> {
    const VCPUS: u16 = 4;
    const ALL: u16 = 7;
    let idlers = (0..ALL).map(|_| Idler::start()).collect::<Result<Vec<_>>>()?;
    let batch = Attributes { policy: Policy::Batch { nice: -3, slice_ns: 0 }, reset_on_fork: true };
    let idle = Attributes { policy: Policy::Idle { nice: 0, slice_ns: 0 }, reset_on_fork: false };
    for (idler, attributes) in
        idlers.iter().zip([other(0), other(5), batch, idle, other(-8), other(0), Attributes::fifo(7)])
    {
        sched::set(idler.pid(), attributes)?;
    }
    let originals = idlers.iter().map(|idler| sched::get(idler.pid())).collect::<Result<Vec<_>, _>>()?;
    for seed in 0..10 {
        let mut random = Random(seed);
        let guardian = start_guardian()?;
        let mut threads = Threads::by_real_time();
        let mut adopted: Option<BTreeMap<u16, Model>> = None;
        let mut emulators = Boost::None;
        let mut done = Vec::new();
        for _ in 0..200 {
            let of_vcpu = |model: &mut BTreeMap<u16, Model>, vcpu: u16, change: &dyn Fn(&mut Model)| {
                model.get_mut(&vcpu).into_iter().for_each(change);
            };
            let vcpu = u16::try_from(random.below(u32::from(VCPUS)))?;
            match random.below(12) {
                0..5 => {
                    let level = random.level();
                    done.push(format!("boost {vcpu} {level:?}"));
                    threads.boost(VM, BoostTarget::Vcpu(vcpu), level)?;
                    adopted.iter_mut().for_each(|model| of_vcpu(model, vcpu, &|model| model.boost = level));
                }
                5..7 => {
                    let level = random.level();
                    done.push(format!("boost emulators {level:?}"));
                    threads.boost(VM, BoostTarget::Emulators, level)?;
                    if let Some(model) = &mut adopted {
                        emulators = level;
                        let all = model.values_mut().filter(|model| model.emulator);
                        all.for_each(|model| model.boost = level);
                    }
                }
                7..10 => {
                    let permille = [1, 56, 110, 335, 1000, 2300, 64_000][random.below(7) as usize];
                    done.push(format!("weigh {vcpu} {permille}"));
                    threads.weigh(VM, vcpu, permille)?;
                    adopted
                        .iter_mut()
                        .for_each(|model| of_vcpu(model, vcpu, &|model| model.weight = permille));
                }
                10 => {
                    // Some of the threads; who was there before keeps what it has.
                    let there: Vec<u16> = (0..ALL).filter(|_| random.below(3) > 0).collect();
                    done.push(format!("threads {there:?}, adopted before: {}", adopted.is_some()));
                    let thread = |index: &u16| -> Result<ThreadId> { idlers[usize::from(*index)].thread() };
                    let vcpus = there.iter().filter(|index| **index < VCPUS);
                    let vcpus =
                        vcpus.map(|index| Ok((*index, thread(index)?))).collect::<Result<Vec<_>>>()?;
                    let others = there.iter().filter(|index| **index >= VCPUS);
                    let others = others.map(thread).collect::<Result<Vec<_>>>()?;
                    if adopted.is_some() {
                        threads.renew(VM, &vcpus, &others, &guardian)?;
                    } else {
                        emulators = Boost::None;
                        threads.adopt(VM, 1024, &vcpus, &others, &guardian)?;
                    }
                    let mut model = adopted.take().unwrap_or_default();
                    model.retain(|index, _| there.contains(index));
                    for index in there {
                        let emulator = index >= VCPUS;
                        let boost = if emulator { emulators } else { Boost::None };
                        let original = originals[usize::from(index)];
                        model.entry(index).or_insert(Model { original, emulator, weight: 1000, boost });
                    }
                    adopted = Some(model);
                }
                _ => {
                    done.push("release".to_owned());
                    threads.release(VM, &guardian)?;
                    adopted = None;
                }
            }
            for (index, original) in (0..ALL).zip(&originals) {
                let model = adopted.as_ref().and_then(|model| model.get(&index));
                let expected = model.map_or(*original, Model::attributes);
                let found = sched::get(idlers[usize::from(index)].pid())?;
                ensure!(
                    found == expected,
                    "seed {seed}: thread {index} has {found:?} and not {expected:?} after {done:?}"
                );
            }
        }
        let known = adopted.iter().flat_map(BTreeMap::values);
        // One that somebody made real-time is not touched.
        let known = known.filter(|model| model.original.policy.nice().is_some()).count();
        let report = guardian.finish()?;
        ensure!(report.undone == known && report.failed.is_empty(), "seed {seed}: {report:?}, not {known}");
        for (idler, original) in idlers.iter().zip(&originals) {
            let found = sched::get(idler.pid()).context("read back")?;
            ensure!(found == *original, "seed {seed}: {found:?} and not {original:?}");
        }
    }
    Ok(())
}
