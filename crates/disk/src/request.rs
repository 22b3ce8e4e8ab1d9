//! A request of a guest, from a chain of descriptors: a function of the guest's memory alone.

use crate::chain::{ChainError, Segment, segments};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

/// Bytes of a sector, whatever blocks the disk has.
pub(crate) const SECTOR: u64 = 512;

/// Bytes of a request's header: type, nothing, sector.
const HEADER: usize = 16;

/// Bytes of what a discard says: sector, number of sectors, flags.
const RANGE: usize = 16;

/// What a guest wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Read into the data, from this byte of the image.
    Read(u64),
    /// Write the data, to this byte of the image.
    Write(u64),
    /// What was written before is to be durable.
    Flush,
    /// Nobody needs this range any more.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// This range is to read as zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether its space may be given back.
        unmap: bool,
    },
    /// Write the disk's name into the data.
    GetId,
    /// Nothing that can be done: the answer is this status (`VIRTIO_BLK_S_*`).
    Refuse(u8),
}

/// A request that can be answered: its status byte is in the guest's memory, and so is all of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// What is wanted. Not yet compared with the size of the image.
    pub(crate) op: Op,
    /// The data, for reads and writes a whole number of sectors.
    pub(crate) data: Vec<Segment>,
    /// Where the status byte goes.
    pub(crate) status: GuestAddress,
}

/// Why a request cannot even be answered: the guest's driver is broken, or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Not a chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// No byte that the device may write its status to.
    #[error("a request has no status byte that can be written")]
    Status,
}

impl Request {
    /// Bytes of data.
    pub(crate) fn len(&self) -> u64 {
        self.data.iter().map(|segment| u64::from(segment.len)).sum()
    }
}

/// The request that begins with descriptor `head` of a queue's table.
///
/// # Errors
/// [`Malformed`] if it cannot be answered. Whatever else is wrong with it makes it an [`Op::Refuse`].
pub(crate) fn parse<M: GuestMemory>(
    memory: &M,
    table: GuestAddress,
    queue_size: u16,
    head: u16,
) -> Result<Request, Malformed> {
    let mut chain = segments(memory, table, queue_size, head)?;
    // The status is the last byte that may be written, however the guest has divided the rest.
    let last = chain.last_mut().filter(|last| last.writable && last.len > 0).ok_or(Malformed::Status)?;
    last.len -= 1;
    let status = last.address.0.checked_add(u64::from(last.len)).map(GuestAddress);
    let status = status.filter(|status| memory.check_range(*status, 1, Permissions::Write));
    let status = status.ok_or(Malformed::Status)?;

    let refuse = |code: u32| Op::Refuse(u8::try_from(code).unwrap_or(u8::MAX));
    let in_order = chain.is_sorted_by_key(|segment| segment.writable);
    let exists = |segment: &Segment| {
        let access = if segment.writable { Permissions::Write } else { Permissions::Read };
        // 32 bits fit into a usize wherever this runs.
        usize::try_from(segment.len).is_ok_and(|len| memory.check_range(segment.address, len, access))
    };
    let Some(header) = take(memory, &mut chain, HEADER).filter(|_| in_order) else {
        return Ok(Request { op: refuse(VIRTIO_BLK_S_IOERR), data: Vec::new(), status });
    };
    chain.retain(|segment| segment.len > 0);
    if !chain.iter().all(exists) {
        return Ok(Request { op: refuse(VIRTIO_BLK_S_IOERR), data: Vec::new(), status });
    }
    let len: u64 = chain.iter().map(|segment| u64::from(segment.len)).sum();
    let offset = u64_at(&header, 8).checked_mul(SECTOR);
    let all = |writable: bool| chain.iter().all(|segment| segment.writable == writable);
    let op = match (u32_at(&header, 0), offset) {
        (VIRTIO_BLK_T_IN, Some(offset)) if all(true) && len.is_multiple_of(SECTOR) => Op::Read(offset),
        (VIRTIO_BLK_T_OUT, Some(offset)) if all(false) && len.is_multiple_of(SECTOR) => Op::Write(offset),
        (VIRTIO_BLK_T_FLUSH, _) => Op::Flush,
        (VIRTIO_BLK_T_GET_ID, _) if all(true) && len > 0 => Op::GetId,
        (kind @ (VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES), _) => {
            // One range, as the configuration says.
            match take(memory, &mut chain, RANGE).filter(|_| len == RANGE as u64) {
                Some(range) => range_op(kind, &range),
                None => refuse(VIRTIO_BLK_S_IOERR),
            }
        }
        (VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_GET_ID, _) => refuse(VIRTIO_BLK_S_IOERR),
        _ => refuse(VIRTIO_BLK_S_UNSUPP),
    };
    Ok(Request { op, data: chain, status })
}

/// A discard, or a writing of zeroes.
fn range_op(kind: u32, range: &[u8]) -> Op {
    let refuse = |code: u32| Op::Refuse(u8::try_from(code).unwrap_or(u8::MAX));
    let (len, flags) = (u64::from(u32_at(range, 8)) * SECTOR, u32_at(range, 12));
    let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
    match u64_at(range, 0).checked_mul(SECTOR) {
        _ if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 => refuse(VIRTIO_BLK_S_UNSUPP),
        Some(offset) if kind == VIRTIO_BLK_T_WRITE_ZEROES => Op::WriteZeroes { offset, len, unmap },
        Some(offset) if !unmap => Op::Discard { offset, len },
        // Discards have no flags.
        Some(_) => refuse(VIRTIO_BLK_S_UNSUPP),
        None => refuse(VIRTIO_BLK_S_IOERR),
    }
}

/// Takes this many bytes that the device may read off the front of a chain, which may be divided in any way.
fn take<M: GuestMemory>(memory: &M, chain: &mut [Segment], count: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut done = 0;
    for segment in chain.iter_mut() {
        let part = (count - done).min(usize::try_from(segment.len).ok()?);
        if part == 0 {
            continue;
        }
        if segment.writable {
            return None;
        }
        memory.read_slice(&mut bytes[done..done + part], segment.address).ok()?;
        let part_len = u32::try_from(part).ok()?;
        segment.address = GuestAddress(segment.address.0.checked_add(u64::from(part_len))?);
        segment.len -= part_len;
        done += part;
        if done == count {
            return Some(bytes);
        }
    }
    None
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or_default()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests;
