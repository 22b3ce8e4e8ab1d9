//! Which control group hierarchies are mounted, and where a process is in them.
//!
//! Mounts are read by hand: the procfs crate leaves the kernel's escapes in, and gives up at the first line
//! that it does not understand.

use super::Version;
use procfs::ProcessCGroups;
use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// A mounted control group hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) version: Version,
    pub(crate) point: PathBuf,
    /// Which part of the hierarchy is mounted there.
    pub(crate) subtree: PathBuf,
    /// Version 1: its controllers (among other mount options).
    pub(crate) controllers: Vec<String>,
}

/// The control group hierarchies in a mountinfo file.
pub(crate) fn parse(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mount> {
    let (common, special) = line.split_once(" - ")?;
    let mut common = common.split(' ').skip(3);
    let (subtree, point) = (unescape(common.next()?), unescape(common.next()?));
    let mut special = special.split(' ');
    let version = match special.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let controllers = special.nth(1)?.split(',').map(str::to_owned).collect();
    Some(Mount { version, point, subtree, controllers })
}

/// Undoes the kernel's octal escapes of blanks and backslashes.
pub(crate) fn unescape(text: &str) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(decoded) = octal {
            out.push(decoded);
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The path in the cpu controller's hierarchy.
pub(crate) fn group_path(groups: &ProcessCGroups, version: Version) -> Option<&Path> {
    let ours = groups.into_iter().find(|group| match version {
        Version::V1 => group.controllers.iter().any(|controller| controller == "cpu"),
        Version::V2 => group.hierarchy == 0 && group.controllers.is_empty(),
    });
    Some(Path::new(&ours?.pathname))
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromRead as _;

    const MOUNTINFO: &str = "\
25 1 0:22 / /proc rw - proc proc rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /docker/a\\040b /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
broken line
";

    #[test]
    fn reads_mounts_of_both_versions() {
        let mounts = parse(MOUNTINFO);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].version, Version::V1);
        assert_eq!(mounts[0].point, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert!(mounts[0].controllers.iter().any(|c| c == "cpu"));
        assert_eq!(mounts[1].version, Version::V2);
        assert_eq!(mounts[1].subtree, Path::new("/docker/a b"));
    }

    #[test]
    fn finds_the_group_of_either_version() {
        let groups = |text: &str| ProcessCGroups::from_read(text.as_bytes()).unwrap();
        let both = groups("5:cpuset:/s\n4:cpu,cpuacct:/machine/vm:1\n0::/unified/vm\n");
        assert_eq!(group_path(&both, Version::V1), Some(Path::new("/machine/vm:1")));
        assert_eq!(group_path(&both, Version::V2), Some(Path::new("/unified/vm")));
        assert_eq!(group_path(&groups("5:cpuset:/s\n"), Version::V1), None);
    }

    proptest::proptest! {
        /// What other processes may have a say in: names of mount points.
        #[test]
        fn fuzz_mountinfo(lines in proptest::collection::vec("(([0-9:]{1,4}|/|\\\\[0-9]{0,3}|-|cgroup2?|cpu,?|\\PC) ?){0,16}", 0..8)) {
            crate::fuzzing::mountinfo(&lines.join("\n"));
        }

        #[test]
        fn fuzz_escapes(text in "(\\\\[0-9]{0,4}|\\PC){0,20}") {
            crate::fuzzing::mountinfo(&text);
        }
    }
}
