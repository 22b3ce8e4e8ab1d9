//! The boost actuator on processes that stand for a VM's threads.

use crate::support::{Idler, start_guardian, trial};
use anyhow::{Result, ensure};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use frontdesk_host::{
    boost::{BoostError, Booster, EMULATOR_PRIORITY, MULTIMEDIA, VCPU_PRIORITY},
    sched::{self, Attributes, Policy},
};
use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("boost_does_what_it_is_told", does_what_it_is_told),
        trial("boost_leaves_real_time_and_vanished_threads", leaves_real_time_and_vanished_threads),
        trial("boost_is_undone_by_the_guardian", is_undone_by_the_guardian),
    ]
}

const VM: VmId = VmId(4);
const NICE: Attributes =
    Attributes { policy: Policy::Other { nice: 5, slice_ns: 3_000_000 }, reset_on_fork: false };

fn does_what_it_is_told() -> Result<()> {
    let (a, b, emulator) = (Idler::start()?, Idler::start()?, Idler::start()?);
    sched::set(a.pid(), NICE)?;
    let original = [&a, &b, &emulator].map(|p| sched::get(p.pid()));
    let guardian = start_guardian()?;
    let mut booster = Booster::new();
    booster.adopt(VM, &[(0, a.thread()?), (3, b.thread()?)], &[emulator.thread()?], &guardian)?;
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
    check([None, None, None])?;
    let (all, first, second) = (BoostTarget::Emulators, BoostTarget::Vcpu(0), BoostTarget::Vcpu(3));
    for (target, level, expected) in [
        (all, Boost::Io, [None, None, e]),
        (first, Boost::Io, [v, None, e]),
        (first, Boost::Io, [v, None, e]),
        (second, Boost::Multimedia, [v, Some(VCPU_PRIORITY + MULTIMEDIA), e]),
        (all, Boost::Multimedia, [v, Some(VCPU_PRIORITY + MULTIMEDIA), Some(EMULATOR_PRIORITY + MULTIMEDIA)]),
        (second, Boost::Io, [v, v, Some(EMULATOR_PRIORITY + MULTIMEDIA)]),
        (all, Boost::Io, [v, v, e]),
        (first, Boost::None, [None, v, e]),
        (first, Boost::None, [None, v, e]),
        (BoostTarget::Vcpu(9), Boost::Io, [None, v, e]),
        (second, Boost::None, [None, None, e]),
        (all, Boost::None, [None, None, None]),
        (all, Boost::Io, [None, None, e]),
        (second, Boost::Io, [None, v, e]),
    ] {
        booster.apply(VM, target, level)?;
        check(expected)?;
    }
    ensure!(booster.is_boosted(VM));
    booster.release(VM, &guardian)?;
    check([None, None, None])?;
    booster.apply(VM, BoostTarget::Vcpu(0), Boost::Io)?;
    check([None, None, None])?;
    let report = guardian.finish()?;
    ensure!((report.undone, report.failed.len()) == (0, 0), "released threads are forgotten: {report:?}");
    Ok(())
}

fn leaves_real_time_and_vanished_threads() -> Result<()> {
    let (real_time, vanishing, vcpu) = (Idler::start()?, Idler::start()?, Idler::start()?);
    sched::set(real_time.pid(), Attributes::fifo(10))?;
    let guardian = start_guardian()?;
    let mut booster = Booster::new();
    let emulators = [real_time.thread()?, vanishing.thread()?];
    booster.adopt(VM, &[(0, vcpu.thread()?)], &emulators, &guardian)?;
    drop(vanishing);
    booster.apply(VM, BoostTarget::Emulators, Boost::Io)?;
    booster.apply(VM, BoostTarget::Vcpu(0), Boost::Io)?;
    ensure!(sched::get(real_time.pid())? == Attributes::fifo(10), "it was ahead already");
    ensure!(sched::get(vcpu.pid())? == Attributes::fifo(VCPU_PRIORITY));
    drop(vcpu);
    booster.apply(VM, BoostTarget::Vcpu(0), Boost::None)?;
    booster.release(VM, &guardian)?;
    booster.adopt(VM, &[], &emulators, &guardian)?;
    booster.release(VM, &guardian)?;
    Ok(())
}

fn is_undone_by_the_guardian() -> Result<()> {
    let vcpu = Idler::start()?;
    let before = sched::get(vcpu.pid())?;
    let guardian = start_guardian()?;
    let mut booster = Booster::new();
    booster.adopt(VM, &[(0, vcpu.thread()?)], &[], &guardian)?;
    booster.apply(VM, BoostTarget::Vcpu(0), Boost::Io)?;
    ensure!(sched::get(vcpu.pid())? != before);
    let report = guardian.finish()?;
    ensure!(report.undone == 1 && sched::get(vcpu.pid())? == before, "{report:?}");
    let error = booster.adopt(VM, &[(0, vcpu.thread()?)], &[], &start_guardian()?);
    ensure!(!matches!(error, Err(BoostError::Guardian(_))), "a new guardian serves");
    Ok(())
}
