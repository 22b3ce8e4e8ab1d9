//! What a guest is told about its disk: features, and the configuration of a virtio block device.

use crate::request::SECTOR;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Queues that a disk may have, at most: one for each vCPU of a large VM.
pub(crate) const MAX_QUEUES: u16 = 64;

/// Data segments of a request, at most: with header and status they fit into QEMU's queues of 128.
const MAX_SEGMENTS: u32 = 126;

/// Sectors of a discard, at most: 2 GiB.
const MAX_RANGE: u32 = 1 << 22;

/// Bytes of the configuration: with what is for zoned disks, which is zero.
const BYTES: usize = 96;

/// The bit of a virtio feature.
pub(crate) fn bit(feature: u32) -> u64 {
    1 << feature
}

/// Features of a disk.
pub(crate) fn features(read_only: bool) -> u64 {
    let changes = if read_only {
        bit(VIRTIO_BLK_F_RO)
    } else {
        bit(VIRTIO_BLK_F_DISCARD) | bit(VIRTIO_BLK_F_WRITE_ZEROES)
    };
    let common = [
        VIRTIO_F_VERSION_1,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_MQ,
    ];
    let common = common.into_iter().fold(0, |all, feature| all | bit(feature));
    common | changes | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
}

/// Features of the protocol.
pub(crate) fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
}

/// The configuration (`struct virtio_blk_config`) of a disk of this size in bytes, whose direct I/O is in
/// blocks of `block` bytes. The guest is told sectors of 512 bytes all the same, as QEMU's own disks do: its
/// file systems and partition tables may be made for them. The blocks are a hint.
pub(crate) fn config(size: u64, block: u64) -> [u8; BYTES] {
    let mut config = [0; BYTES];
    let mut put = |at: usize, value: &[u8]| config[at..at + value.len()].copy_from_slice(value);
    let sectors_per_block = (block / SECTOR).max(1);
    put(0, &(size / SECTOR).to_le_bytes()); // capacity
    put(12, &MAX_SEGMENTS.to_le_bytes()); // seg_max
    put(20, &512_u32.to_le_bytes()); // blk_size
    // Exponent of the physical block, its alignment, and the shortest good length.
    put(24, &[u8::try_from(sectors_per_block.ilog2()).unwrap_or_default(), 0]);
    put(26, &u16::try_from(sectors_per_block).unwrap_or(1).to_le_bytes());
    put(32, &[1]); // writeback: what is written is durable after a flush
    put(34, &MAX_QUEUES.to_le_bytes());
    put(36, &MAX_RANGE.to_le_bytes()); // max_discard_sectors
    put(40, &1_u32.to_le_bytes()); // max_discard_seg
    put(44, &u32::try_from(sectors_per_block).unwrap_or(1).to_le_bytes()); // discard_sector_alignment
    put(48, &MAX_RANGE.to_le_bytes()); // max_write_zeroes_sectors
    put(52, &1_u32.to_le_bytes()); // max_write_zeroes_seg
    put(56, &[1]); // write_zeroes_may_unmap
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_told_size_and_blocks() {
        let config = config(1 << 30, 4096);
        assert_eq!(config[..8], (1_u64 << 21).to_le_bytes());
        assert_eq!((config[20], config[21], config[24], config[26]), (0, 2, 3, 8));
        assert_eq!(super::config(512, 1)[24..28], [0, 0, 1, 0]);
    }

    #[test]
    fn what_cannot_be_written_cannot_be_discarded() {
        let has = |read_only, feature| features(read_only) & bit(feature) != 0;
        assert!(has(true, VIRTIO_BLK_F_RO) && !has(false, VIRTIO_BLK_F_RO));
        assert!(!has(true, VIRTIO_BLK_F_DISCARD) && has(false, VIRTIO_BLK_F_DISCARD));
    }
}
