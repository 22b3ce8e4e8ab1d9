//! A chain of descriptors in a guest's memory. Everything in it is the guest's word.
//!
//! Stricter than `virtio_queue::DescriptorChain`, which takes a broken chain for a short one, and can begin
//! at any head: requests that were in flight when the back end was killed are no longer in the ring.

use virtio_bindings::bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemory};

/// Bytes of a descriptor.
const DESCRIPTOR: u32 = 16;

/// A contiguous piece of guest memory that a request names. Not yet looked at: it may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where it begins.
    pub(crate) address: GuestAddress,
    /// Bytes.
    pub(crate) len: u32,
    /// Whether the device may write to it, and not read.
    pub(crate) writable: bool,
}

/// Why a chain is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainError {
    /// A descriptor's number is beyond its table.
    #[error("descriptor {0} is beyond its table")]
    BeyondTable(u16),
    /// A descriptor is not in the guest's memory.
    #[error("descriptor {0} is not in the guest's memory")]
    Unmapped(u16),
    /// More segments than a queue has entries: a loop.
    #[error("a chain of more than {0} descriptors")]
    TooLong(u16),
    /// A table is named in a table, or goes on behind one.
    #[error("a table of descriptors where none may be")]
    Nested,
    /// The length of a table is no whole number of descriptors.
    #[error("a table of descriptors of {0} bytes")]
    TableLength(u32),
}

/// The segments of the chain that begins with descriptor `head` of a queue's table.
///
/// # Errors
/// [`ChainError`] if it is no chain of at most `queue_size` descriptors.
pub(crate) fn segments<M: GuestMemory>(
    memory: &M,
    table: GuestAddress,
    queue_size: u16,
    head: u16,
) -> Result<Vec<Segment>, ChainError> {
    let mut segments = Vec::new();
    let (mut table, mut entries, mut number, mut indirect) = (table, u32::from(queue_size), head, false);
    loop {
        if u32::from(number) >= entries {
            return Err(ChainError::BeyondTable(number));
        }
        let at = table.0.checked_add(u64::from(number) * u64::from(DESCRIPTOR));
        let descriptor = at.and_then(|at| memory.read_obj::<Descriptor>(GuestAddress(at)).ok());
        let descriptor = descriptor.ok_or(ChainError::Unmapped(number))?;
        let has = |flag: u32| u32::from(descriptor.flags()) & flag != 0;
        if has(VRING_DESC_F_INDIRECT) {
            if indirect || has(VRING_DESC_F_NEXT) {
                return Err(ChainError::Nested);
            }
            if descriptor.len() == 0 || !descriptor.len().is_multiple_of(DESCRIPTOR) {
                return Err(ChainError::TableLength(descriptor.len()));
            }
            (table, entries, number, indirect) = (descriptor.addr(), descriptor.len() / DESCRIPTOR, 0, true);
            continue;
        }
        if segments.len() >= usize::from(queue_size) {
            return Err(ChainError::TooLong(queue_size));
        }
        let (address, len) = (descriptor.addr(), descriptor.len());
        segments.push(Segment { address, len, writable: has(VRING_DESC_F_WRITE) });
        if !has(VRING_DESC_F_NEXT) {
            return Ok(segments);
        }
        number = descriptor.next();
    }
}
