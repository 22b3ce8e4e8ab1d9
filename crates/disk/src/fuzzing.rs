//! What a guest may have in its memory: the body of a property test, and of fuzzing with coverage (`fuzz/`).

#![allow(clippy::unwrap_used)] // What panics is found.

use crate::request::{Op, SECTOR, parse};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

pub(crate) const TABLE: GuestAddress = GuestAddress(0);
/// Descriptors of the table.
pub(crate) const ENTRIES: u16 = 16;

/// A guest with these descriptors at an address, and this header at 0x1000.
pub(crate) fn guest(table: u64, descriptors: &[(u64, u32, u16, u16)], header: (u32, u64)) -> GuestMemoryMmap {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 16)]).unwrap();
    put(&memory, table, descriptors);
    memory.write_obj(header.0, GuestAddress(0x1000)).unwrap();
    memory.write_obj(header.1, GuestAddress(0x1008)).unwrap();
    memory
}

pub(crate) fn put(memory: &GuestMemoryMmap, table: u64, descriptors: &[(u64, u32, u16, u16)]) {
    for (n, (address, len, flags, next)) in (0_u64..).zip(descriptors) {
        let descriptor = Descriptor::new(*address, *len, *flags, *next);
        memory.write_obj(descriptor, GuestAddress(table + 16 * n)).unwrap();
    }
}

/// Descriptors (address, length, flags, next) and the header (type, sector) at 0x1000: an answer whose parts
/// are in the guest's memory, or a reason why not.
pub fn request(descriptors: &[(u64, u32, u16, u16)], header: (u32, u64), head: u16) {
    let memory = guest(0, descriptors, header);
    if let Ok(request) = parse(&memory, TABLE, ENTRIES, head) {
        assert!(memory.check_range(request.status, 1, Permissions::Write));
        assert!(request.data.len() <= usize::from(ENTRIES));
        for segment in &request.data {
            assert!(memory.check_range(segment.address, segment.len as usize, Permissions::Read));
            let wanted = matches!(request.op, Op::Read(_) | Op::GetId);
            assert!(segment.writable == wanted || !matches!(request.op, Op::Read(_) | Op::Write(_)));
        }
        if let Op::Read(offset) | Op::Write(offset) = request.op {
            assert!(offset.is_multiple_of(SECTOR) && request.len().is_multiple_of(SECTOR));
        }
    }
}
