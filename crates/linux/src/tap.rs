//! Network interfaces of VMs.

/// A tap device of a VM. Packets the host transmits on it are those the guest receives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tap {
    /// Inode number of the network namespace it is in (of `/proc/PID/ns/net`).
    pub netns: u32,
    /// Name of the interface in there, 1 to 15 bytes.
    pub ifname: String,
}
