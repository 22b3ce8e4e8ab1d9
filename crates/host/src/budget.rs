//! Real-time budgets of groups: version 1 hierarchies of kernels with RT_GROUP_SCHED let a group's threads be
//! real-time only if the group has run time to spend on it.

use frontdesk_guardian::{GroupError, Guardian, Undo, UndoId};
use frontdesk_linux::cgroup::{CgroupError, Group, Hierarchy, RealTimeRule, file_error, read_number, write};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// A group that has spent its budget is stalled, its real-time threads do not run at all, until the period
/// ends. Boosts come in bursts: over the kernel's default period, the longest, they fit in best, and the
/// engine is told to stay below the budget.
const PERIOD_US: i64 = 1_000_000;
/// How much of the root's budget frontdesk hands out, in permille. The rest keeps the root's own real-time
/// threads, frontdesk and its guardian among them, running when all VMs spend theirs.
const HANDED_OUT_PERMILLE: i64 = 800;
/// Less than a millisecond per period and CPU is over before a boosted vCPU has handled one request.
const LEAST_EACH: i64 = 10_000;
/// Ratios count in millionths of a CPU.
const MILLION: i64 = 1_000_000;

const REFUSED: &str = "; a group's real-time budget must fit into its parent's beside those of its siblings \
                       (cpu.rt_runtime_us per cpu.rt_period_us), and may be 0 only when it has no real-time threads";

/// What each group got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Real-time run time per period and CPU, in microseconds.
    pub runtime_us: u64,
    /// The period in microseconds.
    pub period_us: u64,
}

impl Budget {
    /// The budget in CPUs.
    #[must_use]
    pub fn cpus(self) -> f64 {
        Duration::from_micros(self.runtime_us).as_secs_f64()
            / Duration::from_micros(self.period_us.max(1)).as_secs_f64()
    }
}

/// `cpu.rt_runtime_us` and `cpu.rt_period_us` of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    runtime: i64,
    period: i64,
}

impl Limit {
    fn read(dir: &Path) -> Result<Limit, CgroupError> {
        Ok(Limit {
            runtime: read_number(&dir.join("cpu.rt_runtime_us"))?,
            period: read_number(&dir.join("cpu.rt_period_us"))?.max(1),
        })
    }

    /// In millionths of a CPU; -1, for no limit, is all of it.
    fn ratio(self) -> i64 {
        if self.runtime < 0 { MILLION } else { self.runtime.saturating_mul(MILLION) / self.period }
    }
}

/// The real-time budgets frontdesk has handed out. The guardian takes them back at the end.
#[derive(Debug)]
pub struct RealTimeBudgets {
    hierarchy: Hierarchy,
    /// What each changed group had, by path.
    original: BTreeMap<PathBuf, Limit>,
    /// What puts that back: period and run time.
    undo: BTreeMap<PathBuf, [UndoId; 2]>,
    /// Kept free for reservations, in millionths of a CPU.
    held_back: i64,
}

impl RealTimeBudgets {
    /// Nothing handed out yet.
    #[must_use]
    pub fn new(hierarchy: Hierarchy) -> RealTimeBudgets {
        RealTimeBudgets { hierarchy, original: BTreeMap::new(), undo: BTreeMap::new(), held_back: 0 }
    }

    /// The hierarchy.
    pub(crate) fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// From the next [`grant`](Self::grant) on, leaves this part of each CPU (0 to 1) to the group of what
    /// has reservations.
    pub(crate) fn hold_back(&mut self, part: f64) {
        let micros = Duration::from_secs(1).mul_f64(part).as_micros();
        self.held_back = i64::try_from(micros).unwrap_or(MILLION);
    }

    /// What the kernel thinks of real-time threads in groups.
    #[must_use]
    pub fn rule(&self) -> RealTimeRule {
        self.hierarchy.real_time()
    }

    /// Splits 80 % of the root's budget evenly among exactly these groups (all of those to have one from now
    /// on), and gives their parents what that needs. A group that already had more keeps it. Groups granted
    /// before and not listed any more get what they had at first.
    ///
    /// `None` if the kernel asks for no budgets. To be called before threads in the groups are made
    /// real-time, and with fewer groups only after those of the dropped ones no longer are.
    ///
    /// # Errors
    /// If too little is left, a group is the root or refuses, or the kernel has no real time for groups at
    /// all. Some groups may then have their new budget already.
    pub fn grant(&mut self, groups: &[Group], guardian: &Guardian) -> Result<Option<Budget>, GroupError> {
        match self.hierarchy.real_time() {
            RealTimeRule::Free => return Ok(None),
            RealTimeRule::Refused => return Err(CgroupError::RealTimeRefused.into()),
            RealTimeRule::Budget => {}
        }
        if groups.iter().any(Group::is_root) {
            return Err(CgroupError::Root { what: "real-time budget" }.into());
        }
        let wanted: BTreeSet<PathBuf> = groups.iter().map(|g| g.path().to_owned()).collect();
        // Sorted by path, so that parents come before their children.
        let managed: BTreeSet<PathBuf> = wanted
            .iter()
            .flat_map(|path| path.ancestors())
            .filter(|path| !path.as_os_str().is_empty())
            .map(Path::to_owned)
            .collect();
        let each = self.each(&wanted, &managed)?;
        for path in &managed {
            if !self.original.contains_key(path) {
                self.journal(path, guardian)?;
            }
        }
        self.forget_removed(guardian)?;
        let targets = self.targets(&wanted, &managed, each)?;
        // Children give before their parents do, and get after them.
        for (path, &target) in targets.iter().rev() {
            if target < Limit::read(&self.dir(path))?.ratio() {
                self.set(path, target)?;
            }
        }
        for (path, &target) in &targets {
            if target > Limit::read(&self.dir(path))?.ratio() {
                self.set(path, target)?;
            }
        }
        let runtime_us = u64::try_from(each * PERIOD_US / MILLION).unwrap_or(0);
        Ok(Some(Budget { runtime_us, period_us: PERIOD_US.unsigned_abs() }))
    }

    /// Groups that were removed meanwhile need nothing.
    fn forget_removed(&mut self, guardian: &Guardian) -> Result<(), GroupError> {
        let mount = self.hierarchy.mount();
        self.original.retain(|path, _| mount.join(path).is_dir());
        let removed = self.undo.extract_if(.., |path, _| !self.original.contains_key(path));
        for (_, undo) in removed {
            undo.into_iter().try_for_each(|undo| guardian.forget(undo))?;
        }
        Ok(())
    }

    fn dir(&self, path: &Path) -> PathBuf {
        self.hierarchy.mount().join(path)
    }

    /// What each wanted group is to get, in millionths of a CPU.
    fn each(&self, wanted: &BTreeSet<PathBuf>, managed: &BTreeSet<PathBuf>) -> Result<i64, CgroupError> {
        let root = Limit::read(self.hierarchy.mount())?.ratio() - self.held_back;
        // The group of reservations is among them once it is there.
        let mut taken = (self.others_below(Path::new(""), managed)? - self.held_back).max(0);
        for path in managed {
            taken += self.others_below(path, managed)?;
        }
        taken += self
            .original
            .iter()
            .filter(|(path, _)| !managed.contains(*path))
            .map(|(_, o)| o.ratio())
            .sum::<i64>();
        let count = i64::try_from(wanted.len()).unwrap_or(i64::MAX).max(1);
        let each = (root * HANDED_OUT_PERMILLE / 1000).min(root - taken) / count;
        if each < LEAST_EACH && !wanted.is_empty() {
            let permille = |ratio: i64| u64::try_from(ratio / 1000).unwrap_or(0);
            return Err(CgroupError::NoBudget {
                groups: wanted.len(),
                each_permille: permille(each),
                taken_permille: permille(taken),
                root_permille: permille(root),
            });
        }
        Ok(each)
    }

    /// The budgets of those children of a group that frontdesk neither manages nor has managed.
    fn others_below(&self, path: &Path, managed: &BTreeSet<PathBuf>) -> Result<i64, CgroupError> {
        let dir = self.dir(path);
        let mut sum = 0;
        for entry in fs::read_dir(&dir).map_err(file_error("list", &dir, ""))?.flatten() {
            let child = path.join(entry.file_name());
            let ours = managed.contains(&child) || self.original.contains_key(&child);
            if !ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // One that vanishes meanwhile has nothing.
                sum += Limit::read(&entry.path()).map_or(0, Limit::ratio);
            }
        }
        Ok(sum)
    }

    /// What every group that was or is to be changed is to have, in millionths of a CPU, parents first.
    fn targets(
        &self,
        wanted: &BTreeSet<PathBuf>,
        managed: &BTreeSet<PathBuf>,
        each: i64,
    ) -> Result<BTreeMap<PathBuf, i64>, CgroupError> {
        let mut targets: BTreeMap<PathBuf, i64> = BTreeMap::new();
        for (path, original) in self.original.iter().rev() {
            let own = if wanted.contains(path) { each } else { 0 };
            let below: i64 = targets
                .iter()
                .filter(|(child, _)| child.parent() == Some(path))
                .map(|(_, &target)| target)
                .sum();
            let others = if managed.contains(path) { self.others_below(path, managed)? } else { 0 };
            targets.insert(path.clone(), original.ratio().max(own + below + others));
        }
        Ok(targets)
    }

    /// Remembers and journals what a group has. The latest record is undone first: the run time goes before
    /// the period.
    fn journal(&mut self, path: &Path, guardian: &Guardian) -> Result<(), GroupError> {
        let dir = self.dir(path);
        let original = Limit::read(&dir)?;
        let record = |file: &str, value: i64| {
            guardian.record(Undo::File { path: dir.join(file), content: value.to_string() })
        };
        let undo =
            [record("cpu.rt_period_us", original.period)?, record("cpu.rt_runtime_us", original.runtime)?];
        self.undo.insert(path.to_owned(), undo);
        self.original.insert(path.to_owned(), original);
        Ok(())
    }

    /// Sets a group's budget. Only a group that has none gets frontdesk's period: shortening a period in use
    /// would raise the budget for a moment.
    fn set(&self, path: &Path, ratio: i64) -> Result<(), CgroupError> {
        let dir = self.dir(path);
        let mut period = Limit::read(&dir)?.period;
        if Limit::read(&dir)?.runtime == 0 && period != PERIOD_US {
            period = PERIOD_US;
            write(&dir.join("cpu.rt_period_us"), period.to_string(), REFUSED)?;
        }
        write(&dir.join("cpu.rt_runtime_us"), (ratio * period / MILLION).to_string(), REFUSED)
    }
}
