//! What is written to a block, so that another block, another time, or half of it is seen.

use anyhow::{Result, ensure};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// What a block has, in each of its 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Which block it is.
    pub(crate) block: u64,
    /// The how manieth time it was written.
    pub(crate) generation: u64,
}

impl Pattern {
    pub(crate) fn write(self, data: &mut [u8]) {
        for part in data.chunks_exact_mut(16) {
            part[..8].copy_from_slice(&self.block.to_le_bytes());
            part[8..].copy_from_slice(&self.generation.to_le_bytes());
        }
    }

    /// What the data begins with, if all of it is the same.
    pub(crate) fn read(data: &[u8]) -> Result<Pattern> {
        let number = |at: usize| -> Result<u64> { Ok(u64::from_le_bytes(data[at..at + 8].try_into()?)) };
        let pattern = Pattern { block: number(0)?, generation: number(8)? };
        ensure!(data.chunks_exact(16).all(|part| part == &data[..16]), "torn, {pattern:?} at its beginning");
        Ok(pattern)
    }
}
