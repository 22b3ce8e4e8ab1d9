//! What a VM is made of.

use crate::Kernel;
use frontdesk_lab_guest::{DATA_PARAMETER, DEBIAN_PARAMETER, HANDOVER_PARAMETER};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a VM is made of.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Name: letters, digits and `-`. Unique in its run folder.
    pub name: String,
    /// vCPUs, at least 1. With more than one, the guest's interrupts between them go by x2APIC, where the
    /// plugin sees them.
    pub vcpus: u16,
    /// Memory in MiB, at least 96.
    pub memory_mib: u32,
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initramfs.
    pub initrd: PathBuf,
    /// Its network, if any.
    pub tap: Option<TapConfig>,
    /// Its disks, at most 26. The initramfs must be one for disks.
    pub disks: Vec<DiskConfig>,
    /// Whether it has a screen, a keyboard, a pointer and sound, with a VNC server at the socket
    /// [`RunningVm::vnc`].
    pub desktop: bool,
    /// Whether its keyboard can be used from outside, over a second QMP socket.
    pub keyboard: bool,
    /// Whether it has a port for frontdesk's reporter, at the socket [`RunningVm::reporter`].
    pub reporter: bool,
    /// Whether its CPUs are the host's, by KVM, not emulated.
    pub kvm: bool,
    /// The TCG plugin to load, if any. Not with `kvm`.
    pub plugin: Option<PathBuf>,
    /// Shortest time slice of the guest's scheduler, if not the kernel's.
    pub time_slice: Option<Duration>,
    /// Whether its time is counted: 4 ns for each instruction that it executes, so that what it does in a
    /// millisecond is the same on every machine. Its vCPUs then take turns on one thread.
    pub counted_time: bool,
    /// Whether its vCPUs take turns on one thread: slower, but where several run guests of their own by KVM,
    /// each on a thread of its own, the emulation now and then corrupts the memory of one.
    pub one_thread: bool,
    /// What the kernel is told besides, as in `tsc=reliable`.
    pub parameters: Vec<String>,
    /// What QEMU is told besides. An option that is there already is given another value by it.
    pub arguments: Vec<String>,
    /// Physical CPUs that all its threads are pinned to; empty for no pinning.
    pub cpus: Vec<u16>,
    /// Folder for its sockets and logs; must exist. Its path must be short, or the sockets' addresses are too
    /// long.
    pub run_dir: PathBuf,
    /// Files called `cgroup.procs` or `tasks` of the control groups that QEMU joins before it starts.
    pub cgroup_procs: Vec<PathBuf>,
}

impl VmConfig {
    /// A VM with one vCPU and 128 MiB of memory, pinned nowhere, and nothing else.
    #[must_use]
    pub fn new(name: &str, kernel: &Kernel, initrd: &Path, run_dir: &Path) -> VmConfig {
        VmConfig {
            name: name.to_owned(),
            vcpus: 1,
            memory_mib: 128,
            kernel: kernel.image.clone(),
            initrd: initrd.to_owned(),
            tap: None,
            disks: Vec::new(),
            desktop: false,
            keyboard: false,
            reporter: false,
            kvm: false,
            plugin: None,
            time_slice: None,
            counted_time: false,
            one_thread: false,
            parameters: Vec::new(),
            arguments: Vec::new(),
            cpus: Vec::new(),
            run_dir: run_dir.to_owned(),
            cgroup_procs: Vec::new(),
        }
    }
}

/// A virtio disk. Other VMs may have the same image at the same time.
///
/// The host's page cache is passed by, as on a host where many VMs share a fast disk, unless the image is on
/// a file system that has no direct I/O, like many a tmpfs. That is logged: reading is then as fast as memory
/// from the second time on.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// File with its content, which stays as it is, unless the guest is handed over to it.
    pub image: PathBuf,
    /// What is on it.
    pub kind: DiskKind,
}

/// What is on a disk, which is how the guest uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Files to read. The guest cannot write to it.
    Data,
    /// Files to read and write. Those of no other VM.
    Own,
    /// A Debian system. What the guest writes goes to a temporary file, and is gone with the VM.
    Debian,
    /// The same, but what the guest writes stays on it. Those of no other VM.
    OwnDebian,
    /// What the VM is handed over to once its Debian system is there: the program `init` on it becomes its
    /// process 1. What the guest writes is in the image afterwards.
    Handover,
}

impl DiskKind {
    /// The kernel parameter that tells the guest which disk it is.
    pub(crate) fn parameter(self) -> &'static str {
        match self {
            DiskKind::Data | DiskKind::Own => DATA_PARAMETER,
            DiskKind::Debian | DiskKind::OwnDebian => DEBIAN_PARAMETER,
            DiskKind::Handover => HANDOVER_PARAMETER,
        }
    }
}

/// A virtio network card on a tap interface of the host.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Name of the tap interface; must exist and be up.
    pub ifname: String,
    /// The guest's MAC address.
    pub mac: String,
    /// The guest's IPv4 address.
    pub guest_ip: Ipv4Addr,
    /// Length of its prefix in bits.
    pub prefix: u8,
    /// Whether the host's kernel carries its packets (vhost-net), not QEMU.
    pub vhost: bool,
}
