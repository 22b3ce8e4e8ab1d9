//! Control groups on the host's own hierarchy.

use crate::support::{Idler, start_guardian, trial};
use anyhow::{Context as _, Result, ensure};
use frontdesk_engine::{Boost, BoostTarget, VmId};
use frontdesk_guardian::{GroupError, Guardian, Undo};
use frontdesk_host::budget::RealTimeBudgets;
use frontdesk_host::share::ShareControl;
use frontdesk_host::threads::{Threads, VCPU_PRIORITY};
use frontdesk_linux::cgroup::{CgroupError, DEFAULT_WEIGHT, Group, Hierarchy, RealTimeRule, Version};
use frontdesk_linux::sched::{self, Attributes, SchedError, ThreadId};
use libtest_mimic::Trial;
use rustix::thread::gettid;
use std::{fs, path::Path, sync::mpsc, thread};

pub(crate) fn trials() -> Vec<Trial> {
    let Ok(hierarchy) = Hierarchy::detect() else { return Vec::new() };
    let mut trials = vec![
        trial("cgroup_holds_a_process_and_has_a_weight", holds_a_process_and_has_a_weight),
        trial("cgroup_share_is_given_back", share_is_given_back),
        trial("cgroup_share_gives_way_to_others", share_gives_way_to_others),
        trial("cgroup_names_are_checked", names_are_checked),
    ];
    if hierarchy.version() == Version::V2 {
        trials
            .push(trial("cgroup_v2_controller_is_enabled_and_disabled", controller_is_enabled_and_disabled));
        trials.push(trial("cgroup_v2_controller_in_use_stays_enabled", controller_in_use_stays_enabled));
        trials.push(trial("cgroup_v2_controller_that_is_off_is_told", controller_that_is_off_is_told));
        trials.push(trial("cgroup_v2_idle_group_is_told", idle_group_is_told));
        trials.push(trial("cgroup_v2_threads_in_subgroups_are_boosted", threads_in_subgroups_are_boosted));
    }
    if hierarchy.version() == Version::V1 && hierarchy.real_time() == RealTimeRule::Budget {
        trials.push(trial("cgroup_budget_is_split_and_given_back", budget_is_split_and_given_back));
        trials.push(trial("cgroup_budget_is_given_back_in_any_order", budget_is_given_back_in_any_order));
        trials.push(trial("cgroup_budget_too_small_is_refused", budget_too_small_is_refused));
    }
    trials
}

fn create(guardian: &Guardian, name: &str) -> Result<Group> {
    let root = Hierarchy::detect()?.root_group();
    Ok(guardian.create_group(&root, &format!("frontdesk-test-{name}-{}", std::process::id()))?)
}

fn holds_a_process_and_has_a_weight() -> Result<()> {
    let guardian = start_guardian()?;
    let group = create(&guardian, "holds")?;
    let idler = Idler::start()?;
    group.add(idler.0.id())?;
    ensure!(Hierarchy::detect()?.group_of(idler.pid())? == group);
    group.set_weight(2048)?;
    ensure!(group.weight()? == 2048);
    let worker = Idler::start()?;
    group.add(worker.0.id())?;
    ensure!(!group.holds_only(&[idler.pid()])? && group.holds_only(&[idler.pid(), worker.pid()])?);
    drop(worker);
    ensure!(group.holds_only(&[idler.pid()])?);
    let again =
        guardian.create_group(&Hierarchy::detect()?.root_group(), &group.path().display().to_string());
    ensure!(again.is_err(), "made twice");
    drop(idler);
    let dir = group.dir();
    group.remove()?;
    ensure!(!dir.exists());
    ensure!(guardian.finish()?.gone > 0, "nothing was left to remove");
    Ok(())
}

fn share_is_given_back() -> Result<()> {
    let keeper = start_guardian()?;
    let group = create(&keeper, "share")?;
    group.set_weight(2048)?;
    let guardian = start_guardian()?;
    let mut share = ShareControl::take(&group, &guardian)?;
    ensure!(share.base() == 2048);
    share.set_permille(250, &guardian)?;
    ensure!(group.weight()? == 512);
    share.set_permille(0, &guardian)?;
    ensure!((1..=10).contains(&group.weight()?), "the least there is: {}", group.weight()?);
    share.set_permille(2000, &guardian)?;
    ensure!(group.weight()? == 4096, "more than the whole: {}", group.weight()?);
    share.set_permille(u32::MAX, &guardian)?;
    ensure!([262_144, 102_400].contains(&group.weight()?), "the most there is: {}", group.weight()?);
    share.set_permille(500, &guardian)?;
    let report = guardian.finish()?;
    ensure!(report.failed.is_empty() && group.weight()? == 2048, "{report:?}");
    let dir = group.dir();
    ensure!(keeper.finish()?.failed.is_empty() && !dir.exists());
    share.set_permille(100, &start_guardian()?).context("a group that is gone")?;
    Ok(())
}

/// libvirt, systemd or an operator may write to the same file.
fn share_gives_way_to_others() -> Result<()> {
    let guardian = start_guardian()?;
    let group = create(&guardian, "share-others")?;
    let mut share = ShareControl::take(&group, &guardian)?;
    share.set_permille(500, &guardian)?;
    group.set_weight(4096)?;
    share.set_permille(250, &guardian)?;
    ensure!((share.base(), group.weight()?) == (4096, 1024), "a fraction of what others wrote");
    share.set_base(Some(8192), &guardian)?;
    ensure!((share.base(), group.weight()?) == (8192, 2048));
    group.set_weight(4096)?;
    share.refresh(&guardian)?;
    ensure!(
        (share.base(), group.weight()?) == (8192, 2048),
        "what others had given it before is nothing new"
    );
    group.set_weight(1024)?;
    share.refresh(&guardian)?;
    ensure!((share.base(), group.weight()?) == (1024, 256), "the last to write has it");
    share.release(&guardian)?;
    ensure!(group.weight()? == 1024, "what others wrote last");
    let mut share = ShareControl::take(&group, &guardian)?;
    share.set_base(Some(8192), &guardian)?;
    group.set_weight(2048)?;
    share.release(&guardian)?;
    ensure!(group.weight()? == 2048);
    group.remove()?;
    // To make a group of version 2 it may have enabled the controller.
    let enabled = usize::from(Hierarchy::detect()?.version() == Version::V2);
    ensure!(guardian.finish()?.undone <= enabled, "released is forgotten");
    Ok(())
}

fn names_are_checked() -> Result<()> {
    let guardian = start_guardian()?;
    let root = Hierarchy::detect()?.root_group();
    for name in ["", ".", "..", "a/b", "/a", "a/"] {
        ensure!(
            matches!(guardian.create_group(&root, name), Err(GroupError::Cgroup(CgroupError::Name { .. }))),
            "{name:?}"
        );
    }
    ensure!(matches!(
        ShareControl::take(&root, &guardian),
        Err(GroupError::Cgroup(CgroupError::Root { .. }))
    ));
    Ok(())
}

/// What a group lets the groups below it have.
fn enabled(group: &Group) -> Result<String> {
    Ok(fs::read_to_string(group.dir().join("cgroup.subtree_control"))?)
}

fn controller_is_enabled_and_disabled() -> Result<()> {
    let root = Hierarchy::detect()?.root_group();
    let before = enabled(&root)?;
    let guardian = start_guardian()?;
    let parent = create(&guardian, "parent")?;
    let child = guardian.create_group(&parent, "child")?;
    ensure!(enabled(&root)?.contains("cpu") && enabled(&parent)?.contains("cpu"));
    child.set_weight(512)?;
    ensure!(child.weight()? == 512);

    let idler = Idler::start()?;
    child.add(idler.0.id())?;
    let error = guardian.create_group(&child, "grandchild").err().context("it holds a process itself")?;
    ensure!(error.to_string().contains("must hold no processes"), "{error}");
    let error = parent.add(idler.0.id()).err().context("its groups have weights")?;
    ensure!(error.to_string().contains("holds no processes"), "{error}");
    drop(idler);

    let report = guardian.finish()?;
    ensure!(report.failed.is_empty() && !parent.dir().exists(), "{report:?}");
    ensure!(enabled(&root)? == before, "the root has {}", enabled(&root)?);
    Ok(())
}

fn controller_in_use_stays_enabled() -> Result<()> {
    let root = Hierarchy::detect()?.root_group();
    ensure!(!enabled(&root)?.contains("cpu"), "the trial is to enable it");
    for by in ["weight", "groups"] {
        let (first, second) = (start_guardian()?, start_guardian()?);
        create(&first, "first")?;
        let user = create(&second, "user")?;
        if by == "weight" {
            user.set_weight(2048)?;
        } else {
            second.create_group(&user, "inner")?;
        }
        let before = user.weight()?;
        let report = first.finish()?;
        ensure!(report.failed.is_empty(), "{report:?}");
        ensure!(user.weight()? == before, "{by}");
        ensure!(second.finish()?.failed.is_empty());
        // Nobody is left to whom that falls.
        fs::write(root.dir().join("cgroup.subtree_control"), "-cpu")?;
    }
    Ok(())
}

fn controller_that_is_off_is_told() -> Result<()> {
    let guardian = start_guardian()?;
    let parent = create(&guardian, "off")?;
    let dir = parent.dir().join("vm");
    guardian.record(Undo::ControlGroup { path: dir.clone() })?;
    fs::create_dir(&dir)?;
    let idler = Idler::start()?;
    fs::write(dir.join("cgroup.procs"), idler.pid().to_string())?;
    let vm = Hierarchy::detect()?.group_of(idler.pid())?;
    ensure!(vm.dir() == dir && vm.holds_only(&[idler.pid()])?);
    let share = ShareControl::take(&vm, &guardian).err().map(|error| error.to_string());
    let told = |error: CgroupError| error.to_string();
    let errors = [vm.weight().err().map(told), vm.set_weight(1).err().map(told), share];
    for error in errors {
        let error = error.context("there is no weight")?;
        ensure!(error.contains("CPUWeight=100"), "{error}");
    }
    drop(idler);
    ensure!(guardian.finish()?.failed.is_empty());
    Ok(())
}

fn idle_group_is_told() -> Result<()> {
    let guardian = start_guardian()?;
    let group = create(&guardian, "idle")?;
    fs::write(group.dir().join("cpu.idle"), "1")?;
    let share = ShareControl::take(&group, &guardian).err().map(|error| error.to_string());
    for error in [group.weight().err().map(|error| error.to_string()), share] {
        let error = error.context("an idle group has no weight")?;
        ensure!(error.contains("cpu.idle"), "{error}");
    }
    fs::write(group.dir().join("cpu.idle"), "0")?;
    ensure!(group.weight()? == DEFAULT_WEIGHT);
    ensure!(guardian.finish()?.failed.is_empty());
    Ok(())
}

/// As libvirt lays a VM out.
fn threads_in_subgroups_are_boosted() -> Result<()> {
    let guardian = start_guardian()?;
    let vm = create(&guardian, "vm")?;
    let inner = guardian.create_group(&vm, "libvirt")?.dir();
    for name in ["emulator", "vcpu0"] {
        let path = inner.join(name);
        guardian.record(Undo::ControlGroup { path: path.clone() })?;
        fs::create_dir(&path)?;
        fs::write(path.join("cgroup.type"), "threaded")?;
    }
    fs::write(inner.join("cgroup.subtree_control"), "+cpu")?;

    let own = std::process::id();
    let (tid, received) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let result = thread::scope(|scope| -> Result<()> {
        // Dropped when this closure returns, which ends the thread.
        let _stop = stop;
        scope.spawn(move || {
            let _ = tid.send(gettid().as_raw_nonzero().get());
            let _ = stopped.recv();
        });
        let vcpu = received.recv()?;
        let write =
            |file: &Path, id: &str| fs::write(inner.join(file), id).context(file.display().to_string());
        write(Path::new("cgroup.procs"), &own.to_string())?;
        write(Path::new("emulator/cgroup.threads"), &gettid().as_raw_nonzero().to_string())?;
        write(Path::new("vcpu0/cgroup.threads"), &vcpu.to_string())?;
        let own = own.cast_signed();
        ensure!(Hierarchy::detect()?.group_of(own)? == vm);
        ensure!(vm.holds_only(&[own])?);
        let mut share = ShareControl::take(&vm, &guardian)?;
        share.set_permille(500, &guardian)?;
        ensure!(vm.weight()? == 512);

        let before = sched::get(vcpu)?;
        let mut threads = Threads::by_real_time();
        let vcpu_thread = ThreadId::of(own, vcpu).context("the thread has ended")?;
        RealTimeBudgets::new(Hierarchy::detect()?).grant(std::slice::from_ref(&vm), &guardian)?;
        threads.adopt(VmId(0), 1024, &[(0, vcpu_thread)], &[], &guardian)?;
        threads.boost(VmId(0), BoostTarget::Vcpu(0), Boost::Io)?;
        ensure!(sched::get(vcpu)? == Attributes::fifo(VCPU_PRIORITY));
        threads.boost(VmId(0), BoostTarget::Vcpu(0), Boost::None)?;
        ensure!(sched::get(vcpu)? == before);
        Ok(())
    });
    Hierarchy::detect()?.root_group().add(own)?;
    result?;
    let report = guardian.finish()?;
    ensure!(report.failed.is_empty() && !vm.dir().exists(), "{report:?}");
    Ok(())
}

fn runtime(group: &Group) -> Result<i64> {
    Ok(fs::read_to_string(group.dir().join("cpu.rt_runtime_us"))?.trim().parse()?)
}

fn budget_is_split_and_given_back() -> Result<()> {
    let keeper = start_guardian()?;
    let parent = create(&keeper, "budget")?;
    let (a, b) = (keeper.create_group(&parent, "a")?, keeper.create_group(&parent, "b")?);
    let idler = Idler::start()?;
    a.add(idler.0.id())?;
    let fifo = Attributes::fifo(1);
    ensure!(matches!(sched::set(idler.pid(), fifo), Err(SchedError::Denied { .. })), "no budget yet");

    let guardian = start_guardian()?;
    let mut budgets = RealTimeBudgets::new(Hierarchy::detect()?);
    let each = budgets.grant(&[a.clone(), b.clone()], &guardian)?.context("no budgets")?;
    let share = i64::try_from(each.runtime_us)?;
    ensure!(share > 0 && each.period_us == 1_000_000, "{each:?}");
    ensure!((runtime(&a)?, runtime(&b)?) == (share, share) && runtime(&parent)? >= 2 * share);
    sched::set(idler.pid(), fifo)?;

    let more = budgets.grant(std::slice::from_ref(&a), &guardian)?.context("no budgets")?;
    ensure!(runtime(&a)? > share && runtime(&a)? == i64::try_from(more.runtime_us)? && runtime(&b)? == 0);
    let back = budgets.grant(&[a.clone(), b.clone()], &guardian)?.context("no budgets")?;
    ensure!(back == each && runtime(&b)? == share, "{back:?}");

    let refused = budgets.grant(std::slice::from_ref(&b), &guardian);
    ensure!(refused.is_err(), "a group with real-time threads cannot give up its budget");
    sched::set(
        idler.pid(),
        Attributes { policy: sched::Policy::Other { nice: 0, slice_ns: 0 }, reset_on_fork: false },
    )?;
    budgets.grant(&[], &guardian)?;
    ensure!((runtime(&a)?, runtime(&b)?, runtime(&parent)?) == (0, 0, 0));
    budgets.grant(&[a.clone(), b.clone()], &guardian)?;
    let report = guardian.finish()?;
    ensure!(report.failed.is_empty(), "{report:?}");
    ensure!((runtime(&a)?, runtime(&b)?, runtime(&parent)?) == (0, 0, 0));
    let period = fs::read_to_string(a.dir().join("cpu.rt_period_us"))?;
    ensure!(period.trim() == "1000000", "{period}");
    drop(idler);
    ensure!(keeper.finish()?.failed.is_empty() && !parent.dir().exists());
    Ok(())
}

fn budget_is_given_back_in_any_order() -> Result<()> {
    let keeper = start_guardian()?;
    let group = create(&keeper, "order")?;
    let idler = Idler::start()?;
    group.add(idler.0.id())?;
    let original = sched::get(idler.pid())?;
    let guardian = start_guardian()?;
    // The thread is on record before the budget, which is therefore tried first, and refused.
    guardian.record(Undo::Thread { thread: idler.thread()?, attributes: original })?;
    RealTimeBudgets::new(Hierarchy::detect()?).grant(std::slice::from_ref(&group), &guardian)?;
    sched::set(idler.pid(), Attributes::fifo(1))?;
    let report = guardian.finish()?;
    ensure!(report.failed.is_empty(), "{report:?}");
    ensure!(runtime(&group)? == 0 && sched::get(idler.pid())? == original);
    drop(idler);
    ensure!(keeper.finish()?.failed.is_empty());
    Ok(())
}

fn budget_too_small_is_refused() -> Result<()> {
    let keeper = start_guardian()?;
    let groups = (0..100).map(|i| create(&keeper, &format!("many{i}"))).collect::<Result<Vec<_>>>()?;
    let hierarchy = Hierarchy::detect()?;
    let mut budgets = RealTimeBudgets::new(hierarchy.clone());
    let error = budgets.grant(&groups, &keeper).err().context("not refused")?;
    ensure!(matches!(error, GroupError::Cgroup(CgroupError::NoBudget { groups: 100, .. })), "{error}");
    let error = budgets.grant(&[hierarchy.root_group()], &keeper).err().context("not refused")?;
    ensure!(matches!(error, GroupError::Cgroup(CgroupError::Root { .. })), "{error}");
    let report = keeper.finish()?;
    ensure!(report.failed.is_empty(), "{report:?}");
    Ok(())
}
