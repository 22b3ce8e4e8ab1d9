//! The Debian system that programs of the guests come from.

mod mirrors;

use crate::cache::{self, CacheError, Image, io_error};
use crate::command::{self, CommandError};
use crate::desktop::system as desktop;
use mirrors::{Mirror, mirrors, proxies};
use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Part of the name under which a system is kept: raise it when what this file makes changes.
const FORMAT: u32 = 1;

/// A release of Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Debian 12.
    Bookworm,
    /// Debian 13, from the mirrors that this machine uses for Debian 12.
    Trixie,
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Release::Bookworm => "bookworm",
            Release::Trixie => "trixie",
        }
    }
}

/// Room that a guest has for its changes.
const FREE_BYTES: u64 = 300 << 20;

/// Inodes that a guest has for new files.
const FREE_INODES: u64 = 20_000;

/// Room for the packages while they are installed, before it is known how much they need.
const ROOM_BYTES: u64 = 2 << 30;

/// What `dpkg` is told to leave out: nobody reads manuals in a guest, and its messages may be English.
const LEFT_OUT: [&str; 4] =
    ["/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*"];

/// The SSH server's settings: started in a guest without DNS and without much CPU time.
const SSHD_CONFIG: &str = "\
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
PermitRootLogin prohibit-password
PasswordAuthentication no
X11Forwarding no
# A busy guest may need long, and its clients are few and known.
LoginGraceTime 0
MaxStartups 100
";

/// Found before the real one: init's /run is empty.
const SSHD: &str = "\
#!/bin/sh
mkdir -p /run/sshd && exec /usr/sbin/sshd \"$@\"
";

/// There is no Debian system.
#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    /// Not a package's name.
    #[error(
        "Debian system: {0:?} is no name of a package: it must begin with a letter or digit, and have only lower-case \
         letters, digits, `+`, `-` and `.`, at least 2"
    )]
    Name(String),
    /// This machine does not know where packages come from.
    #[error(
        "Debian system: the APT sources of this machine have no component main of {}: add it, as in \
         /etc/apt/sources.list, with the mirror of your choice",
        Release::Bookworm.name()
    )]
    NoMirror,
    /// The mirror has no such package.
    #[error("Debian system: Debian's {release} has no {kind} called {name} in its component main")]
    NoPackage {
        /// Name of the release.
        release: &'static str,
        /// Package or source package.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A program that makes the system failed.
    #[error("Debian system: {0}")]
    Command(#[from] CommandError),
    /// It cannot be kept.
    #[error("Debian system: {0}")]
    Cache(#[from] CacheError),
}

/// A Debian system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debian {
    /// An ext4 image of its root file system. Its clients share it: it must not be changed.
    pub image: PathBuf,
    /// Private key with which `ssh` logs in as root, if the package openssh-server is installed.
    pub ssh_key: PathBuf,
}

/// A Debian (amd64) system of this release with these packages and, in /usr/src/NAME, the sources of these
/// source packages. It is made the first time, with the mirror that this machine uses, and kept in the user's
/// cache folder from then on. That takes a minute or two; `progress` is told what is being done.
///
/// # Errors
/// [`DebianError`] if it is not there and cannot be made.
pub fn debian(
    release: Release,
    packages: &[String],
    sources: &[String],
    progress: &dyn Fn(String),
) -> Result<Debian, DebianError> {
    Contents { release, ..Contents::new(packages, sources)? }.system(progress)
}

/// Like [`debian`] for Debian 12, and what makes it a desktop: a display server without GL, a window manager,
/// sound, a player and office programs, with documents and films to use them on. Takes some minutes the first
/// time.
///
/// # Errors
/// As [`debian`].
pub fn desktop(
    packages: &[String],
    sources: &[String],
    progress: &dyn Fn(String),
) -> Result<Debian, DebianError> {
    let mut contents = Contents::new(packages, sources)?;
    contents.packages.extend(desktop::PACKAGES);
    contents.packages.sort_unstable();
    contents.packages.dedup();
    Contents { desktop: true, ..contents }.system(progress)
}

/// What is to be in a system.
#[derive(Debug)]
struct Contents<'a> {
    release: Release,
    packages: Vec<&'a str>,
    sources: Vec<&'a str>,
    /// Whether it is a desktop.
    desktop: bool,
}

impl<'a> Contents<'a> {
    fn new(packages: &'a [String], sources: &'a [String]) -> Result<Contents<'a>, DebianError> {
        let sorted = |names: &'a [String]| {
            let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
            names.sort_unstable();
            names.dedup();
            match names.iter().find(|name| !is_package_name(name)) {
                Some(bad) => Err(DebianError::Name((*bad).to_owned())),
                None => Ok(names),
            }
        };
        let (packages, sources) = (sorted(packages)?, sorted(sources)?);
        Ok(Contents { release: Release::Bookworm, packages, sources, desktop: false })
    }

    /// The system, made if it is not there.
    fn system(&self, progress: &dyn Fn(String)) -> Result<Debian, DebianError> {
        let folder = cache::folder("debian")?;
        let say = |what: &str| progress(format!("making the Debian system: {what}"));
        let on_wait = || say("waiting for another run, which makes one");
        let system = cache::kept(&folder, &self.key(), on_wait, |work| self.make(&folder, work, &say))?;
        Ok(Debian { image: system.join("root.img"), ssh_key: system.join("ssh_key") })
    }

    /// The name under which it is kept: a hash (FNV-1a) of all that makes a difference.
    fn key(&self) -> String {
        let names = self.packages.iter().chain(&["", "sources"]).chain(&self.sources);
        let text = names.fold(FORMAT.to_string(), |text, name| text + "\n" + name);
        let desktop = self.desktop.then(desktop::recipe).into_iter().flatten();
        let text = desktop.fold(text, |text, part| text + "\n" + part);
        // Debian 12 was the only one once.
        let other = (self.release != Release::Bookworm).then_some(self.release.name());
        let text = other.into_iter().fold(text, |text, name| text + "\nrelease\n" + name);
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }

    /// Makes the system in the folder `work`.
    fn make(&self, folder: &Path, work: &Path, say: &dyn Fn(&str)) -> Result<PathBuf, DebianError> {
        cache::check_room(folder, if self.desktop { desktop::ROOM_BYTES } else { ROOM_BYTES })?;
        let mirrors = mirrors(Release::Bookworm.name(), self.release.name())?;
        if !mirrors.iter().any(|mirror| mirror.suite == self.release.name()) {
            return Err(DebianError::NoMirror);
        }
        let (root, system) = (work.join("root"), work.join("system"));
        std::fs::create_dir(&system).map_err(io_error(&system))?;
        say("installing packages");
        self.install(&root, &mirrors, say)?;
        if !self.sources.is_empty() {
            say("fetching sources");
            self.unpack_sources(work, &root, &mirrors)?;
        }
        say("setting it up");
        set_up(&root, &system.join("ssh_key"))?;
        if self.desktop {
            desktop::set_up(&root, say)?;
        }
        say("writing its image");
        let (bytes, inodes) = size(&root).map_err(io_error(&root))?;
        // The tables for that many inodes, and some for where blocks are.
        let inodes = inodes + FREE_INODES;
        let bytes = bytes + inodes * 256 + bytes / 32 + FREE_BYTES;
        cache::check_room(folder, bytes)?;
        cache::make_image(&Image { tree: &root, to: &system.join("root.img"), bytes, inodes })?;
        Ok(system)
    }

    fn install(&self, root: &Path, mirrors: &[Mirror], say: &dyn Fn(&str)) -> Result<(), DebianError> {
        // Namespaces of its own: what it mounts and starts is gone with it, even if it is killed.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "mmdebstrap"]);
        command.args(["--mode=root", "--variant=minbase", "--architectures=amd64", "--format=directory"]);
        command.args(LEFT_OUT.map(|path| format!("--dpkgopt=path-exclude={path}")));
        command.args(proxies()?.iter().map(|proxy| format!("--aptopt={proxy}")));
        command.args(self.packages.iter().map(|package| format!("--include={package}")));
        command.arg(self.release.name()).arg(root).args(mirrors.iter().map(|mirror| mirror.line("deb")));
        let mut unknown = None;
        let result = command::run(&mut command, |line| {
            match line.strip_prefix("I: ").and_then(|line| line.strip_suffix("...")) {
                Some(step) if !step.contains("received signal") => say(step),
                _ => {}
            }
            if let Some(name) = line.strip_prefix("E: Unable to locate package ") {
                unknown = Some(name.to_owned());
            }
        });
        result.map_err(|error| self.no_package("package", unknown, error))
    }

    fn unpack_sources(&self, work: &Path, root: &Path, mirrors: &[Mirror]) -> Result<(), DebianError> {
        let folder = |path: PathBuf| {
            std::fs::create_dir_all(&path).map_err(io_error(&path))?;
            Ok::<_, CacheError>(path)
        };
        let list = work.join("sources.list");
        let lines: Vec<String> = mirrors.iter().map(|mirror| mirror.line("deb-src")).collect();
        std::fs::write(&list, lines.join("\n") + "\n").map_err(io_error(&list))?;
        // This machine's way to the mirror, but none of its package lists.
        let apt = work.join("apt");
        let (lists, archives) =
            (folder(apt.join("lists/partial"))?, folder(apt.join("cache/archives/partial"))?);
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", lists.with_file_name("").display()),
            format!("Dir::Cache={}", apt.join("cache").display()),
            format!("Dir::Cache::Archives={}", archives.with_file_name("").display()),
            "APT::Sandbox::User=root".to_owned(),
        ];
        let apt_get = || {
            let mut command = Command::new("apt-get");
            command.args(options.iter().flat_map(|option| ["-o", option]));
            command
        };
        command::run(apt_get().arg("update"), |_| ())?;
        let sources = folder(root.join("usr/src"))?;
        for name in &self.sources {
            let download = folder(work.join("sources").join(name))?;
            let mut unknown = None;
            let mut command = apt_get();
            command.args(["source", "--download-only", "--only-source", name]).current_dir(&download);
            command::run(&mut command, |line| {
                if let Some(name) = line.strip_prefix("E: Unable to find a source package for ") {
                    unknown = Some(name.to_owned());
                }
            })
            .map_err(|error| self.no_package("source package", unknown, error))?;
            let mut command = Command::new("dpkg-source");
            command.arg("-x").arg(only_dsc(&download)?).arg(sources.join(name));
            command::run(&mut command, |_| ())?;
        }
        Ok(())
    }

    fn no_package(&self, kind: &'static str, unknown: Option<String>, error: CommandError) -> DebianError {
        match unknown {
            Some(name) => DebianError::NoPackage { release: self.release.name(), kind, name },
            None => error.into(),
        }
    }
}

/// As Debian's policy has it. APT takes a `-` at the end as the wish to remove a package.
fn is_package_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() >= 2
        && name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && name.bytes().all(|byte| plain(byte) || b"+-.".contains(&byte))
        && !name.ends_with('-')
}

/// The description of the one source package in a folder.
fn only_dsc(folder: &Path) -> Result<PathBuf, CacheError> {
    for entry in std::fs::read_dir(folder).map_err(io_error(folder))? {
        let path = entry.map_err(io_error(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "dsc") {
            return Ok(path);
        }
    }
    let missing = std::io::Error::new(std::io::ErrorKind::NotFound, "apt-get source left no .dsc file");
    Err(io_error(folder)(missing))
}

/// Makes the packages in `root` a system that runs in a guest, which lets the owner of a new key, `key`, log
/// in.
fn set_up(root: &Path, key: &Path) -> Result<(), DebianError> {
    let write = |path: &str, text: &str, mode| {
        let path = root.join(path);
        // It may be a link out of the system.
        let result = match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::fs::write(&path, text),
        };
        let result = result.and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(mode)));
        result.map_err(io_error(&path))
    };
    // Not what mmdebstrap copied from this machine: no name server is to be waited for.
    write("etc/hosts", "127.0.0.1 localhost guest\n", 0o644)?;
    write("etc/hostname", "guest\n", 0o644)?;
    write("etc/resolv.conf", "", 0o644)?;

    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "frontdesk lab", "-f"]).arg(key);
    command::run(&mut keygen, |_| ())?;
    if root.join("usr/sbin/sshd").exists() {
        // Those that the package's installation did not make.
        command::run(Command::new("ssh-keygen").arg("-A").arg("-f").arg(root), |_| ())?;
        let public = key.with_extension("pub");
        let public = std::fs::read_to_string(&public).map_err(io_error(&public))?;
        let folder = root.join("root/.ssh");
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder).map_err(io_error(&folder))?;
        write("root/.ssh/authorized_keys", &public, 0o600)?;
        write("etc/ssh/sshd_config.d/frontdesk.conf", SSHD_CONFIG, 0o644)?;
        write("usr/local/sbin/sshd", SSHD, 0o755)?;
    }
    Ok(())
}

/// Bytes of whole blocks that the content of a folder needs, and inodes.
pub(crate) fn size(folder: &Path) -> std::io::Result<(u64, u64)> {
    let (mut bytes, mut inodes) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            inodes += 1;
            if metadata.is_dir() {
                folders.push(entry.path());
            }
            bytes += metadata.size().next_multiple_of(4096);
        }
    }
    Ok((bytes, inodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_key_is_of_what_is_in_it_whatever_the_order() {
        let key = |packages: &[&str], sources: &[&str]| {
            Contents::new(&names(packages), &names(sources)).unwrap().key()
        };
        assert_eq!(key(&["gcc", "nano"], &["zlib"]), key(&["nano", "gcc", "nano"], &["zlib"]));
        let different = [
            key(&[], &[]),
            key(&["gcc"], &[]),
            key(&[], &["gcc"]),
            key(&["gcc"], &["nano"]),
            key(&["gcc", "nano"], &[]),
            key(&["gcc-nano"], &[]),
        ];
        for (index, one) in different.iter().enumerate() {
            assert_eq!(one.len(), 16);
            assert!(!different[..index].contains(one), "{different:?}");
        }
    }

    #[test]
    fn a_desktop_is_another_system_than_one_with_its_packages() {
        let packages = names(&desktop::PACKAGES);
        let plain = Contents::new(&packages, &[]).unwrap();
        let key = plain.key();
        assert_ne!(Contents { desktop: true, ..plain }.key(), key);
    }

    #[test]
    fn another_release_is_another_system() {
        let packages = names(&["podman"]);
        let twelve = Contents::new(&packages, &[]).unwrap();
        let key = twelve.key();
        assert_ne!(Contents { release: Release::Trixie, ..twelve }.key(), key);
    }

    #[test]
    fn only_names_of_packages_go_to_apt() {
        for good in ["gcc", "g++", "libc6-dev", "0ad", "python3.11"] {
            assert!(Contents::new(&names(&[good]), &names(&[good])).is_ok(), "{good}");
        }
        for bad in [
            "", "a", "--help", "nano-", "a b", "nano/sid", "nano=1", "~i", "?all", "./x.deb", "gcc,nano",
            "Nano",
        ] {
            for (packages, sources) in [(names(&[bad]), names(&[])), (names(&[]), names(&[bad]))] {
                match Contents::new(&packages, &sources) {
                    Err(DebianError::Name(name)) => assert_eq!(name, bad),
                    other => panic!("{bad:?}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_system_is_set_up_for_a_guest_without_dns() {
        let work = tempfile::tempdir().unwrap();
        let (root, key) = (work.path().join("root"), work.path().join("ssh_key"));
        for folder in ["etc/ssh/sshd_config.d", "root", "usr/sbin", "usr/local/sbin"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::write(root.join("usr/sbin/sshd"), "").unwrap();
        let outside = work.path().join("outside");
        std::fs::write(&outside, "untouched").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("etc/resolv.conf")).unwrap();
        set_up(&root, &key).unwrap();

        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched");
        assert_eq!(std::fs::read_to_string(root.join("etc/resolv.conf")).unwrap(), "");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&key), 0o600);
        assert_eq!(mode(&root.join("root/.ssh")), 0o700);
        assert_eq!(mode(&root.join("usr/local/sbin/sshd")), 0o755);
        let allowed = std::fs::read_to_string(root.join("root/.ssh/authorized_keys")).unwrap();
        assert_eq!(allowed, std::fs::read_to_string(key.with_extension("pub")).unwrap());
        assert!(root.join("etc/ssh/ssh_host_ed25519_key").exists());

        let (bytes, inodes) = size(&root).unwrap();
        assert!(inodes > 12 && bytes > inodes * 1024, "{bytes} bytes, {inodes} inodes");
    }
}
