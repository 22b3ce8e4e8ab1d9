//! Hierarchies and their groups.

use super::file::{file_error, read_weight, write};
use super::mounts::{self, Mount};
use super::{CgroupError, Version};
use crate::process::MAX_THREADS;
use procfs::{ProcessCGroups, process::Process};
use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    path::{Component, Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long a group that is removed is given to empty: the processes in it were killed just before.
const EMPTYING: Duration = Duration::from_secs(2);
const EMPTY_POLL: Duration = Duration::from_millis(5);
/// How deep below a VM's group others may limit its threads: libvirt has `libvirt/vcpu0`.
const SUBGROUP_DEPTH: u32 = 2;

/// On version 2 only the groups of a parent that enables the controller have a weight. systemd does so when
/// asked.
const CONTROLLER_OFF: &str = "; the cpu controller is not enabled for this group: start the VM with `systemd-run --scope \
                              -p CPUWeight=100`, `systemctl set-property` that of its unit, or write `+cpu` to its \
                              parent's cgroup.subtree_control";

/// What the kernel asks of real-time threads in groups other than the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealTimeRule {
    /// Nothing.
    Free,
    /// A budget of their group (`cpu.rt_runtime_us`).
    Budget,
    /// It refuses them.
    Refused,
}

/// A change that is about to be made for a new group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The directory of the group is made.
    Group(PathBuf),
    /// The cpu controller is enabled for the groups below this directory (version 2).
    CpuController(PathBuf),
}

/// The hierarchy that has the cpu controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    version: Version,
    mount: PathBuf,
    /// Which part of the whole hierarchy the mount shows, as in containers.
    subtree: PathBuf,
    real_time: RealTimeRule,
}

impl Hierarchy {
    /// Finds it among the mounted ones.
    ///
    /// # Errors
    /// If no mounted hierarchy has the cpu controller.
    pub fn detect() -> Result<Hierarchy, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(file_error("read", path, ""))?;
        Hierarchy::among(&mounts::parse(&text))
    }

    fn among(mounts: &[Mount]) -> Result<Hierarchy, CgroupError> {
        let v1 = mounts.iter().find(|m| m.version == Version::V1 && m.controllers.iter().any(|c| c == "cpu"));
        let has_cpu = |m: &&Mount| {
            m.version == Version::V2
                && fs::read_to_string(m.point.join("cgroup.controllers"))
                    .is_ok_and(|controllers| controllers.split_ascii_whitespace().any(|c| c == "cpu"))
        };
        let Some(mount) = v1.or_else(|| mounts.iter().find(has_cpu)) else {
            let found: Vec<_> = mounts.iter().map(|m| m.point.display().to_string()).collect();
            let found = if found.is_empty() { "none is mounted".into() } else { found.join(", ") };
            return Err(CgroupError::NoController { found });
        };
        Ok(Hierarchy {
            version: mount.version,
            mount: mount.point.clone(),
            subtree: mount.subtree.clone(),
            real_time: match mount.version {
                Version::V1 if mount.point.join("cpu.rt_runtime_us").exists() => RealTimeRule::Budget,
                Version::V2 if real_time_is_grouped() => RealTimeRule::Refused,
                Version::V1 | Version::V2 => RealTimeRule::Free,
            },
        })
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// What the kernel asks of real-time threads in its groups.
    #[must_use]
    pub fn real_time(&self) -> RealTimeRule {
        self.real_time
    }

    /// Its root group.
    #[must_use]
    pub fn root_group(&self) -> Group {
        Group { hierarchy: self.clone(), path: PathBuf::new() }
    }

    /// The path, below the mount, of the one of these groups that is in the hierarchy; `None` if it is
    /// outside of what the mount shows.
    #[must_use]
    pub fn path_in<'a>(&self, groups: &'a ProcessCGroups) -> Option<&'a Path> {
        mounts::group_path(groups, self.version)?.strip_prefix(&self.subtree).ok()
    }

    /// The deepest group that holds all threads of a process.
    ///
    /// libvirt spreads a VM's threads over children of a group named `libvirt`, the only child of the VM's
    /// own, and has all of them in one of these while the VM starts: then it is the VM's own, the one that
    /// competes with other VMs. Of a process with more than [`MAX_THREADS`] the oldest count.
    ///
    /// # Errors
    /// If the process has ended or is outside of what the mount shows.
    pub fn group_of(&self, pid: i32) -> Result<Group, CgroupError> {
        let fail = |cause: String| CgroupError::Process { pid, cause };
        let mut common: Option<PathBuf> = None;
        let tasks = Process::new(pid).and_then(|process| process.tasks()).map_err(|e| fail(e.to_string()))?;
        for task in tasks.take(MAX_THREADS).flatten() {
            // A thread may end meanwhile.
            let Ok(groups) = task.read("cgroup") else { continue };
            let path = mounts::group_path(&groups, self.version)
                .ok_or_else(|| fail("it is in no group of the cpu controller's hierarchy".into()))?;
            let path = path.strip_prefix(&self.subtree).map_err(|_| {
                fail(format!(
                    "{} is outside of {}, which is all that is mounted",
                    path.display(),
                    self.subtree.display()
                ))
            })?;
            common = Some(match common {
                None => path.to_owned(),
                Some(other) => other
                    .components()
                    .zip(path.components())
                    .map_while(|(a, b)| (a == b).then_some(a))
                    .collect(),
            });
        }
        let path = without_libvirts(&common.ok_or_else(|| fail("it has ended".into()))?).to_owned();
        Ok(Group { hierarchy: self.clone(), path })
    }
}

/// The group of a VM that a group of libvirt's for some of its threads belongs to.
fn without_libvirts(path: &Path) -> &Path {
    let ends_with = |path: &Path, is: &dyn Fn(&str) -> bool| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(is)
    };
    // All threads are in one while the VM starts. On version 2 it has threads, and no processes.
    let mut path = path;
    if ends_with(path, &|name| name == "emulator" || name.starts_with("vcpu") || name.starts_with("iothread"))
    {
        path = path.parent().filter(|above| ends_with(above, &|name| name == "libvirt")).unwrap_or(path);
    }
    if ends_with(path, &|name| name == "libvirt") {
        path = path.parent().unwrap_or(path);
    }
    path
}

/// Whether the kernel was built with RT_GROUP_SCHED and not told to do without. Its only trace on a version 2
/// hierarchy is a function it then has.
fn real_time_is_grouped() -> bool {
    let off = fs::read_to_string("/proc/cmdline")
        .is_ok_and(|line| line.split_ascii_whitespace().any(|word| word == "rt_group_sched=0"));
    !off && File::open("/proc/kallsyms").is_ok_and(|file| {
        BufReader::new(file).lines().map_while(Result::ok).any(|line| line.ends_with(" sched_rt_can_attach"))
    })
}

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    hierarchy: Hierarchy,
    /// Below the mount; empty for the root.
    path: PathBuf,
}

impl Group {
    /// Creates a group below this one; `record` is told of each change before it is made. On version 2 this
    /// lets all groups below this one have weights (`cgroup.subtree_control`); groups other than the root
    /// must then hold no processes themselves.
    ///
    /// # Errors
    /// If the name is none, the group exists or cannot be made, or a change cannot be recorded.
    pub fn create<E: From<CgroupError>>(
        &self,
        name: &str,
        mut record: impl FnMut(Change) -> Result<(), E>,
    ) -> Result<Group, E> {
        let mut parts = Path::new(name).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name) {
            return Err(CgroupError::Name { name: name.into() }.into());
        }
        if self.hierarchy.version == Version::V2 {
            self.delegate_cpu(&mut record)?;
        }
        let group = Group { hierarchy: self.hierarchy.clone(), path: self.path.join(name) };
        let dir = group.dir();
        let advice =
            "; if it exists it may be left from an interrupted run: see that it is empty and rmdir it";
        if dir.exists() {
            return Err(file_error("create control group", &dir, advice)(
                io::ErrorKind::AlreadyExists.into(),
            )
            .into());
        }
        record(Change::Group(dir.clone()))?;
        fs::create_dir(&dir).map_err(file_error("create control group", &dir, "; it needs root"))?;
        Ok(group)
    }

    /// Enables the cpu controller for the groups below this one (version 2).
    fn delegate_cpu<E: From<CgroupError>>(
        &self,
        record: &mut impl FnMut(Change) -> Result<(), E>,
    ) -> Result<(), E> {
        let dir = self.dir();
        // Beside processes the kernel would enable the controller, but make groups that take only threads. It
        // does not mind in the root of the whole hierarchy, the one group that has no type.
        let procs = self.procs_file();
        if dir.join("cgroup.type").exists()
            && !fs::read(&procs).map_err(file_error("read", &procs, ""))?.is_empty()
        {
            let advice = "; on version 2 it must hold no processes itself: move them to a group of their own";
            let busy = io::ErrorKind::ResourceBusy.into();
            return Err(file_error("create a control group in", &dir, advice)(busy).into());
        }
        let file = dir.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&file).map_err(file_error("read", &file, ""))?;
        if enabled.split_ascii_whitespace().any(|c| c == "cpu") {
            return Ok(());
        }
        record(Change::CpuController(dir))?;
        let advice = "; its parents must have the cpu controller enabled";
        Ok(fs::write(&file, "+cpu").map_err(file_error("enable the cpu controller in", &file, advice))?)
    }

    /// Its path below the root of the hierarchy; empty for the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.hierarchy.mount.join(&self.path)
    }

    /// Whether it is the root group.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// The file to write a process id to (or `0` for the writer itself) to move that process in.
    #[must_use]
    pub fn procs_file(&self) -> PathBuf {
        self.dir().join("cgroup.procs")
    }

    /// Moves a process with all its threads in.
    ///
    /// # Errors
    /// If the process has ended, has real-time threads the group has no budget for, or the caller may not.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        let file = self.procs_file();
        let advice = "; a process with real-time threads cannot enter a group without a real-time budget, and on \
                      version 2 a group whose subgroups have weights holds no processes";
        fs::write(&file, pid.to_string()).map_err(|source| CgroupError::File {
            action: format!("move process {pid} to"),
            path: file,
            source,
            advice,
        })
    }

    /// Whether no process is in the group but these.
    ///
    /// # Errors
    /// If the group's processes cannot be read.
    pub fn holds_only(&self, pids: &[i32]) -> Result<bool, CgroupError> {
        let file = self.dir().join("cgroup.procs");
        let text = fs::read_to_string(&file).map_err(file_error("read", &file, ""))?;
        Ok(!self.is_root() && text.lines().all(|line| line.parse().is_ok_and(|pid| pids.contains(&pid))))
    }

    /// Its weight, in the units of `cpu.shares`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn weight(&self) -> Result<u32, CgroupError> {
        let native = read_weight(&self.weight_file("weight")?)?;
        Ok(self.hierarchy.version.from_native(native))
    }

    /// Sets its weight, in the units of `cpu.shares` (2 to 262144, clamped). Version 2 counts in hundredths
    /// of the default weight: the value is rounded to those. For a group of the caller's own: nothing puts it
    /// back.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_weight(&self, weight: u32) -> Result<(), CgroupError> {
        let file = self.weight_file("weight")?;
        let native = self.hierarchy.version.to_native(weight);
        write(&file, native.to_string(), "")
    }

    /// Whether somebody limits what its threads may have of the CPUs (`cpu.max`, `cpu.cfs_quota_us`): by this
    /// group, by one that it is in, or by one in it, such as those that libvirt makes for each vCPU. What
    /// cannot be read limits nothing.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        let (name, free) = match self.hierarchy.version {
            Version::V1 => ("cpu.cfs_quota_us", "-1"),
            Version::V2 => ("cpu.max", "max"),
        };
        let limits = |dir: &Path| {
            let content = fs::read_to_string(dir.join(name));
            content.is_ok_and(|content| !content.starts_with(free))
        };
        let mount = &self.hierarchy.mount;
        self.dir().ancestors().take_while(|dir| dir.starts_with(mount)).any(limits)
            || subgroups(&self.dir(), SUBGROUP_DEPTH).take(MAX_THREADS).any(|dir| limits(&dir))
    }

    /// The version of its hierarchy.
    #[must_use]
    pub fn version(&self) -> Version {
        self.hierarchy.version
    }

    /// The file that holds its weight, in the version's units; `what` is to be set, for errors.
    ///
    /// # Errors
    /// It is the root group, or has no weight.
    pub fn weight_file(&self, what: &'static str) -> Result<PathBuf, CgroupError> {
        if self.is_root() {
            return Err(CgroupError::Root { what });
        }
        let file = self.dir().join(match self.hierarchy.version {
            Version::V1 => "cpu.shares",
            Version::V2 => "cpu.weight",
        });
        if !file.exists() {
            let advice = match self.hierarchy.version {
                Version::V1 => "",
                Version::V2 => CONTROLLER_OFF,
            };
            return Err(file_error("find", &file, advice)(io::ErrorKind::NotFound.into()));
        }
        Ok(file)
    }

    /// Removes the group, waiting up to two seconds for it to empty. One that is gone is no error.
    ///
    /// # Errors
    /// If processes remain in it.
    pub fn remove(self) -> Result<(), CgroupError> {
        let (dir, until) = (self.dir(), Instant::now() + EMPTYING);
        loop {
            match fs::remove_dir(&dir) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                    thread::sleep(EMPTY_POLL);
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    let advice = "; end the processes and remove the groups in it";
                    return Err(file_error("remove control group", &dir, advice)(e));
                }
                _ => return Ok(()),
            }
        }
    }
}

/// The groups in a group, and in those, so deep.
fn subgroups(dir: &Path, depth: u32) -> Box<dyn Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Box::new(groups.map(|entry| entry.path()).flat_map(move |dir| {
        let below = if depth > 1 { subgroups(&dir, depth - 1) } else { Box::new(std::iter::empty()) };
        std::iter::once(dir).chain(below)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_testing::{Need, leave_out};

    fn fake_v2(home: &Path, controllers: &str) -> Result<Hierarchy, CgroupError> {
        fs::write(home.join("cgroup.controllers"), controllers).unwrap();
        let text = format!("30 23 0:26 / {} rw - cgroup2 cgroup2 rw\n", home.display());
        Hierarchy::among(&mounts::parse(&text))
    }

    #[test]
    fn finds_the_hierarchy_with_the_controller() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(fake_v2(home.path(), "cpuset cpu io\n").unwrap().version(), Version::V2);
        let error = fake_v2(home.path(), "cpuset io\n").unwrap_err();
        assert!(error.to_string().contains(&home.path().display().to_string()), "{error}");
        assert!(matches!(Hierarchy::among(&[]), Err(CgroupError::NoController { .. })));
    }

    #[test]
    fn libvirts_groups_for_threads_are_part_of_the_vms() {
        let scope = "machine.slice/machine-qemu\\x2d1\\x2dalice.scope";
        for (path, wanted) in [
            (format!("{scope}/libvirt/emulator"), scope),
            (format!("{scope}/libvirt/vcpu0"), scope),
            (format!("{scope}/libvirt/iothread1"), scope),
            (format!("{scope}/libvirt"), scope),
            (scope.to_owned(), scope),
            ("system.slice/emulator".to_owned(), "system.slice/emulator"),
        ] {
            assert_eq!(without_libvirts(Path::new(&path)), Path::new(wanted), "{path}");
        }
    }

    #[test]
    fn version_2_weights_are_converted() {
        let home = tempfile::tempdir().unwrap();
        let hierarchy = fake_v2(home.path(), "cpu").unwrap();
        let group = Group { hierarchy: hierarchy.clone(), path: "machine.slice/vm".into() };
        fs::create_dir_all(group.dir()).unwrap();
        let file = group.dir().join("cpu.weight");
        for (shares, weight) in [(1024, "100"), (2048, "200"), (2, "1"), (512, "50"), (262_144, "10000")] {
            fs::write(&file, "").unwrap();
            group.set_weight(shares).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), weight, "{shares} shares");
        }
        fs::write(&file, "100\n").unwrap();
        assert_eq!(group.weight().unwrap(), super::super::DEFAULT_WEIGHT);
        fs::write(&file, "idle\n").unwrap();
        assert!(matches!(group.weight(), Err(CgroupError::Content { .. })));
        assert!(matches!(hierarchy.root_group().set_weight(1), Err(CgroupError::Root { .. })));
    }

    #[test]
    fn a_limit_is_seen_on_the_group_above_it_and_in_it() {
        let home = tempfile::tempdir().unwrap();
        let hierarchy = fake_v2(home.path(), "cpu").unwrap();
        let group = Group { hierarchy, path: "machine.slice/vm.scope".into() };
        let inner = group.dir().join("libvirt/vcpu0");
        fs::create_dir_all(&inner).unwrap();
        let slice = home.path().join("machine.slice");
        let neighbour = slice.join("other.scope");
        fs::create_dir_all(&neighbour).unwrap();
        fs::write(neighbour.join("cpu.max"), "1000 100000\n").unwrap();
        assert!(!group.is_limited(), "nothing says so of this one");
        for dir in [&group.dir(), &inner, &slice] {
            fs::write(dir.join("cpu.max"), "50000 100000\n").unwrap();
            assert!(group.is_limited(), "{}", dir.display());
            fs::write(dir.join("cpu.max"), "max 100000\n").unwrap();
            assert!(!group.is_limited(), "{}", dir.display());
        }
    }

    #[test]
    fn the_own_process_is_in_a_group() {
        match Hierarchy::detect() {
            Ok(hierarchy) => {
                let pid = std::process::id().cast_signed();
                assert!(hierarchy.group_of(pid).unwrap().dir().is_dir());
                assert!(matches!(hierarchy.group_of(i32::MAX), Err(CgroupError::Process { .. })));
            }
            Err(e) => leave_out("the_own_process_is_in_a_group", Need::Cgroups, e),
        }
    }
}
