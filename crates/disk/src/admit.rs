//! What of a request can be decided without the disk.

use crate::image::Image;
use crate::memory::Memory;
use crate::request::{Op, Request};
use virtio_bindings::bindings::virtio_blk::VIRTIO_BLK_ID_BYTES;
use vm_memory::Bytes;

/// What is to be done, if this image has that range and may be changed.
pub(crate) fn admit(request: &Request, image: &Image) -> Option<Op> {
    let inside = |offset: u64, len: u64| {
        offset.checked_add(len).is_some_and(|end| end <= image.size()).then_some(request.op)
    };
    let change = !image.read_only();
    match request.op {
        Op::Read(_) | Op::Write(_) if request.len() == 0 => None,
        Op::Read(offset) => inside(offset, request.len()),
        Op::Write(offset) if change => inside(offset, request.len()),
        Op::Discard { offset, len } | Op::WriteZeroes { offset, len, .. } if change && len > 0 => {
            inside(offset, len)
        }
        Op::Write(_) | Op::Discard { .. } | Op::WriteZeroes { .. } => None,
        Op::Flush | Op::GetId | Op::Refuse(_) => Some(request.op),
    }
}

/// Writes a disk's name where a request wants it, cut or filled with zeroes. Returns the bytes that were
/// written, or nothing if the memory is not there.
pub(crate) fn write_name(disk: &str, request: &Request, memory: &Memory) -> Option<u64> {
    let mut name = [0; VIRTIO_BLK_ID_BYTES as usize];
    let len = disk.len().min(name.len());
    name[..len].copy_from_slice(&disk.as_bytes()[..len]);
    let mut rest = &name[..];
    for segment in &request.data {
        let (part, behind) = rest.split_at(rest.len().min(segment.len as usize));
        memory.map().write_slice(part, segment.address).ok()?;
        rest = behind;
    }
    Some((name.len() - rest.len()) as u64)
}
