//! Records as CBOR (RFC 8949), with the names of kinds and fields in it.

use super::Record;
use cbor4ii::core::dec::{Decode, IgnoredAny, Read};
use cbor4ii::core::utils::SliceReader;
use cbor4ii::serde::{Deserializer, to_writer};
use serde::{Deserialize, Serialize};

/// Adds a record to a block.
pub(super) fn encode(record: &impl Serialize, block: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = to_writer(block, record);
}

/// The record that the bytes begin with, and how many of them it takes.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn decode(bytes: &[u8]) -> Result<(Record, usize), String> {
    let mut deserializer = Deserializer::new(SliceReader::new(bytes));
    let record = Record::deserialize(&mut deserializer).map_err(|error| error.to_string())?;
    Ok((record, bytes.len() - left(deserializer.into_inner())))
}

/// How many bytes the item takes that they begin with, whatever it is; `None` if it is no CBOR.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let mut reader = SliceReader::new(bytes);
    IgnoredAny::decode(&mut reader).ok()?;
    Some(bytes.len() - left(reader))
}

fn left(mut reader: SliceReader<'_>) -> usize {
    reader.fill(usize::MAX).map_or(0, |rest| rest.as_ref().len())
}
