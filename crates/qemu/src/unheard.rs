//! Paths of a VM's I/O that the host's kernel and QEMU do not tell of.

use crate::process::{self, MAX_DESCRIPTORS, command_line};
use crate::qmp::excerpt;
use crate::reporter::find_port;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt, fs, io,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

/// So many paths of a VM are told.
const MAX_UNHEARD: usize = 16;

/// A path of a VM's I/O of which nothing is heard: what comes that way boosts nobody. Its `Display` says so,
/// and what to use instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unheard {
    /// A macvtap or ipvtap: its packets are handed over without being transmitted.
    Macvtap,
    /// A network backend of this type that is no tap: the beginning of what the command line says, which can
    /// be printed.
    Backend(String),
    /// Devices that another process serves.
    VhostUser,
    /// A disk that another process serves. If that is `frontdesk disk`, it tells of reads itself.
    VhostUserDisk,
    /// A network device in hardware that does virtio itself.
    Vdpa,
    /// A device of the host's that the guest has to itself.
    Passthrough,
    /// Disks that the kernel serves.
    VhostScsi,
    /// A port for a guest's reporter that is not connected to, and why: the beginning, which can be printed.
    Reporter(String),
}

impl Unheard {
    /// What to use instead.
    #[must_use]
    pub const fn instead(&self) -> &'static str {
        match self {
            Unheard::Macvtap | Unheard::Backend(_) | Unheard::Vdpa => {
                "use a tap in a bridge (libvirt: interface type 'bridge' or 'network')"
            }
            Unheard::VhostUserDisk => {
                "serve it by frontdesk disk, which tells of reads while the daemon is there"
            }
            Unheard::VhostUser | Unheard::Passthrough => {
                "use a tap in a bridge (libvirt: interface type 'bridge' or 'network'), and virtio-blk or \
                 virtio-scsi of QEMU's own"
            }
            Unheard::Reporter(_) => "have QEMU itself listen at a socket of the user as whom it runs",
            Unheard::VhostScsi => "use virtio-blk or virtio-scsi of QEMU's own",
        }
    }

    /// What is not heard.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Unheard::Macvtap => "packets that come by macvtap are not heard".into(),
            Unheard::Backend(kind) => {
                format!("packets that come by a network backend of type {kind} are not heard")
            }
            Unheard::VhostUser => "packets and reads of vhost-user devices are not heard".into(),
            Unheard::VhostUserDisk => {
                "reads of a vhost-user-blk disk are heard only if frontdesk disk serves it".into()
            }
            Unheard::Vdpa => "packets that come by vDPA are not heard".into(),
            Unheard::Passthrough => {
                "packets and reads of network cards and disks that are passed through (VFIO) \
                                     are not heard"
                    .into()
            }
            Unheard::Reporter(why) => format!("what its guest's reporter tells is not heard ({why})"),
            Unheard::VhostScsi => "reads of disks that vhost-scsi serves are not heard".into(),
        }
    }
}

impl fmt::Display for Unheard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}; {}", self.what(), self.instead())
    }
}

/// Who serves a disk of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskServer {
    /// QEMU itself.
    Qemu,
    /// Another process, by vhost-user-blk.
    Other,
}

/// Who serves disks of all VMs that run on this host, with their names as in [`unheard`].
#[must_use]
pub fn disk_servers() -> BTreeMap<DiskServer, Vec<String>> {
    let mut all = BTreeMap::<DiskServer, Vec<String>>::new();
    for (_, name, command) in running() {
        let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let servers = words.windows(2).filter_map(|pair| disk_server(&pair[0], &pair[1]));
        for server in servers.collect::<BTreeSet<_>>() {
            all.entry(server).or_default().push(name.clone());
        }
    }
    all
}

fn disk_server(option: &str, value: &str) -> Option<DiskServer> {
    match option.trim_start_matches('-') {
        "device" => match kind(value, "driver")?.as_str() {
            driver if driver.starts_with("vhost-user-blk") => Some(DiskServer::Other),
            driver if driver.starts_with("virtio-blk") => Some(DiskServer::Qemu),
            "scsi-hd" | "ide-hd" | "nvme" => Some(DiskServer::Qemu),
            _ => None,
        },
        "hda" => Some(DiskServer::Qemu),
        "drive" if !value.contains("if=none") && !value.contains("media=cdrom") => Some(DiskServer::Qemu),
        _ => None,
    }
}

/// All VMs that run on this host, but for those that this process may not look into: process, name and
/// command line.
fn running() -> impl Iterator<Item = (i32, String, Vec<u8>)> {
    // A process may end meanwhile.
    let processes = procfs::process::all_processes().into_iter().flatten().flatten();
    processes.map(|process| process.pid()).filter(|pid| process::check_is_qemu(*pid).is_ok()).map(|pid| {
        let command = command_line(pid).unwrap_or_default();
        let name = process::guest_name(&command).unwrap_or_else(|| format!("process {pid}"));
        (pid, name, command)
    })
}

/// The paths of which nothing is heard of all VMs that run on this host, whether they are followed or not:
/// with the names of those that have each, or the process of one without a name. VMs that this process may
/// not look into are left out.
#[must_use]
pub fn unheard() -> BTreeMap<Unheard, Vec<String>> {
    let mut all = BTreeMap::<Unheard, Vec<String>>::new();
    for (pid, name, _) in running() {
        for path in of(pid).unwrap_or_default() {
            all.entry(path).or_default().push(name.clone());
        }
    }
    all
}

/// Those of a QEMU process, each once, from what it has open and its command line: no more than
/// [`MAX_UNHEARD`]. Devices that were plugged in later are known by what they have open only.
pub(crate) fn of(pid: i32) -> io::Result<Vec<Unheard>> {
    let command = command_line(pid)?;
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.take(MAX_DESCRIPTORS).flatten();
    // One may be closed meanwhile.
    let files = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    let files = files.filter_map(|file| by_file(file.as_os_str()));
    Ok(first(files.chain(by_command(&command))))
}

/// The same, and the port of the guest's reporter if it has one that can be heard.
pub(crate) fn and_port(pid: i32) -> io::Result<(Vec<Unheard>, Option<PathBuf>)> {
    let mut unheard = of(pid)?;
    match find_port(pid) {
        Ok(port) => Ok((unheard, port)),
        Err(error) => {
            unheard.push(Unheard::Reporter(excerpt(&error.to_string())));
            Ok((unheard, None))
        }
    }
}

/// Each once, and not too many: a process writes its command line as it likes.
fn first(all: impl Iterator<Item = Unheard>) -> Vec<Unheard> {
    all.collect::<BTreeSet<_>>().into_iter().take(MAX_UNHEARD).collect()
}

/// The device files are called so by udev.
fn by_file(file: &OsStr) -> Option<Unheard> {
    let device = file.as_bytes().strip_prefix(b"/dev/")?;
    let numbered = |name: &[u8]| {
        device.strip_prefix(name).is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit))
    };
    match device {
        _ if numbered(b"tap") => Some(Unheard::Macvtap),
        _ if numbered(b"vhost-vdpa-") => Some(Unheard::Vdpa),
        _ if numbered(b"vfio/") || numbered(b"vfio/devices/vfio") => Some(Unheard::Passthrough),
        b"vhost-scsi" => Some(Unheard::VhostScsi),
        _ => None,
    }
}

fn by_command(command: &[u8]) -> impl Iterator<Item = Unheard> {
    let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let found: Vec<Unheard> = words.windows(2).filter_map(|pair| by_option(&pair[0], &pair[1])).collect();
    found.into_iter()
}

fn by_option(option: &str, value: &str) -> Option<Unheard> {
    match option.trim_start_matches('-') {
        "netdev" | "nic" | "net" => match kind(value, "type")?.as_str() {
            // Those of vDPA have a file open.
            "tap" | "bridge" | "hubport" | "nic" | "none" | "vhost-vdpa" => None,
            "vhost-user" => Some(Unheard::VhostUser),
            other => Some(Unheard::Backend(excerpt(other))),
        },
        "device" => match kind(value, "driver")?.strip_prefix("vhost-user-")? {
            disk if disk.starts_with("blk") => Some(Unheard::VhostUserDisk),
            _ => Some(Unheard::VhostUser),
        },
        _ => None,
    }
}

/// The type of what is described, which is JSON, or begins with the type, whose key can be left out.
fn kind(value: &str, key: &str) -> Option<String> {
    if value.starts_with('{') {
        let described: serde_json::Value = serde_json::from_str(value).ok()?;
        return described.get(key)?.as_str().map(str::to_owned);
    }
    let first = value.split(',').next()?;
    let kind = first.strip_prefix(key).and_then(|rest| rest.strip_prefix('=')).unwrap_or(first);
    // A network card without a backend of a type of its own: `-nic model=...`.
    (!kind.is_empty() && !kind.contains('=')).then(|| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_words(words: &str) -> Vec<Unheard> {
        by_command(words.replace(' ', "\0").as_bytes()).collect()
    }

    #[test]
    fn taps_are_heard_and_other_backends_are_told() {
        for heard in [
            "qemu -netdev tap,id=n,ifname=t0 -device virtio-net-pci,netdev=n",
            "qemu -netdev {\"type\":\"tap\",\"fd\":\"33\",\"vhost\":true,\"id\":\"hostnet0\"}",
            "qemu -net nic,model=e1000 -net tap -nic none -nic bridge,br=br0 -nic model=e1000 -netdev",
            "qemu -name user -drive if=virtio",
        ] {
            assert_eq!(by_words(heard), [], "{heard}");
        }
        let backend = |kind: &str| Unheard::Backend(kind.to_owned());
        for (words, unheard) in [
            ("qemu -netdev user,id=n", backend("user")),
            ("qemu --nic type=passt", backend("passt")),
            ("qemu -netdev {\"type\":\"stream\",\"id\":\"n\"}", backend("stream")),
            ("qemu -netdev type=vhost-user,chardev=c", Unheard::VhostUser),
            ("qemu -device {\"driver\":\"vhost-user-blk-pci\",\"chardev\":\"c\"}", Unheard::VhostUserDisk),
            ("qemu -device vhost-user-fs-pci,chardev=c", Unheard::VhostUser),
        ] {
            assert_eq!(by_words(words), [unheard], "{words}");
        }
    }

    /// A local user's QEMU can have any command line.
    #[test]
    fn what_a_command_line_says_is_bounded_and_can_be_printed() {
        let long = "x".repeat(1 << 20);
        let told = by_option("-netdev", &format!("\u{1b}[2J\nfrontdesk: all is well{long}")).unwrap();
        let text = told.to_string();
        assert!(text.len() < 1000 && !text.chars().any(char::is_control), "{text}");
        let many = (0..10_000).map(|number| Unheard::Backend(number.to_string()));
        assert_eq!(first(many).len(), MAX_UNHEARD);
    }

    #[test]
    fn device_files_tell_what_they_serve() {
        for (file, unheard) in [
            ("/dev/tap12", Some(Unheard::Macvtap)),
            ("/dev/net/tun", None),
            ("/dev/tape", None),
            ("/home/tap12", None),
            ("/dev/vhost-net", None),
            ("/dev/vhost-vdpa-0", Some(Unheard::Vdpa)),
            ("/dev/vfio/vfio", None),
            ("/dev/vfio/41", Some(Unheard::Passthrough)),
            ("/dev/vfio/devices/vfio0", Some(Unheard::Passthrough)),
            ("/dev/vhost-scsi", Some(Unheard::VhostScsi)),
        ] {
            assert_eq!(by_file(OsStr::new(file)), unheard, "{file}");
        }
    }

    proptest::proptest! {
        #[test]
        fn fuzz_options(option in "-{0,2}(netdev|nic|net|device)", value in "\\PC{0,40}") {
            let _ = by_option(&option, &value);
        }
    }

    #[test]
    fn who_serves_a_disk_is_told_by_its_device() {
        for (option, value, server) in [
            ("-device", "virtio-blk-pci,drive=a", Some(DiskServer::Qemu)),
            ("-device", "{\"driver\":\"vhost-user-blk-pci\",\"chardev\":\"c\"}", Some(DiskServer::Other)),
            ("-device", "scsi-hd,drive=a", Some(DiskServer::Qemu)),
            ("-device", "virtio-net-pci", None),
            ("-drive", "file=a,if=none", None),
            ("-drive", "file=a,if=virtio", Some(DiskServer::Qemu)),
        ] {
            assert_eq!(disk_server(option, value), server, "{option} {value}");
        }
    }
}
