//! Memory in which back ends of disks look up which tasks a VM's vCPUs run.

use super::abi::{ASKER, MAX_ASKERS};
use crate::BpfError;
use crate::libbpf::setup;
use frontdesk_ring::TaskWords;
use libbpf_rs::{MapHandle, MapType, libbpf_sys};
use std::os::fd::{AsFd, BorrowedFd};

/// Memory that the BPF programs write the tasks of a VM's vCPUs into, all zero at first, as a map of its own:
/// whoever is handed its descriptor can map it for reading, and knows of no other VM by it.
///
/// It is frozen. So no process can write to it or map it for writing, whatever its rights. (A descriptor that
/// is for reading only would not do: the kernel refuses to map those.) It is as large as it is, and stays
/// while anybody has it mapped.
#[derive(Debug)]
pub struct TaskMemory(MapHandle);

impl TaskMemory {
    /// Makes it.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses such a map, or the process lacks `CAP_BPF`.
    pub fn new() -> Result<TaskMemory, BpfError> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let (name, bytes, vcpus) = (Some("askers"), TaskMemory::BYTES, u32::from(MAX_ASKERS));
        let map = MapHandle::create(MapType::Array, name, 4, bytes, vcpus, &options);
        let map = map.map_err(setup("make memory for the tasks of a VM"))?;
        map.freeze().map_err(setup("keep others from writing to the tasks of a VM"))?;
        Ok(TaskMemory(map))
    }

    /// Bytes for each vCPU.
    const BYTES: u32 = 64;

    /// Where the tasks of the vCPUs are in it.
    #[must_use]
    pub const fn words() -> TaskWords {
        ASKER
    }
}

impl AsFd for TaskMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
