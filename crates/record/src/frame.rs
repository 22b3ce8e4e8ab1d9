//! The bytes of a recording: its header and its frames.

use std::io::{self, ErrorKind, Read};
use zstd::bulk::{Compressor, Decompressor};

/// Begins every recording. The line end and the zero show a transfer that took it for text.
pub(super) const MAGIC: [u8; 8] = *b"fdsk\r\n\0\n";
/// Recordings of this version are read by every later release that has the same: what is in them means what
/// it meant. Another cannot be read.
pub(super) const MAJOR: u16 = 5;
/// Counts up when fields or kinds of records are added, which older releases leave out.
pub(super) const MINOR: u16 = 11;
/// Bytes of a block before compression, at most: room for the state of an engine with thousands of vCPUs.
pub(super) const MAX_BLOCK: usize = 64 << 20;
/// Bytes of a block after compression, at most; what cannot be compressed grows a little.
const MAX_COMPRESSED: u32 = 65 << 20;
/// Fast: it runs beside the VMs.
const LEVEL: i32 = 1;

pub(super) fn header() -> [u8; 12] {
    let mut header = [0; 12];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&MAJOR.to_le_bytes());
    header[10..].copy_from_slice(&MINOR.to_le_bytes());
    header
}

fn checksum(length: [u8; 4], compressed: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length), compressed)
}

/// Makes frames of blocks.
pub(super) struct Encoder(Compressor<'static>);

impl Encoder {
    pub(super) fn new() -> io::Result<Encoder> {
        Ok(Encoder(Compressor::new(LEVEL)?))
    }

    pub(super) fn frame(&mut self, block: &[u8]) -> io::Result<Vec<u8>> {
        let compressed = self.0.compress(block)?;
        let length = u32::try_from(compressed.len()).map_err(io::Error::other)?.to_le_bytes();
        let sum = checksum(length, &compressed).to_le_bytes();
        Ok([&length[..], &sum, &compressed].concat())
    }
}

/// What is next in a recording.
pub(super) enum Frame {
    /// A whole frame of so many bytes; its block is in the buffer.
    Block(u64),
    /// Nothing.
    End,
    /// A frame that is not whole, the last: so many bytes are of no use.
    Torn(u64),
    /// A frame that cannot be, and more after it.
    Damaged(String),
}

/// Takes frames apart.
pub(super) struct Decoder {
    decompressor: Decompressor<'static>,
    compressed: Vec<u8>,
}

impl Decoder {
    pub(super) fn new() -> io::Result<Decoder> {
        Ok(Decoder { decompressor: Decompressor::new()?, compressed: Vec::new() })
    }

    /// Reads a frame and puts its block into `block`. Memory is taken only for what is there, and no more
    /// than the limits.
    pub(super) fn next(&mut self, source: &mut impl Read, block: &mut Vec<u8>) -> io::Result<Frame> {
        let mut head = [0; 8];
        match read_up_to(source, &mut head)? {
            0 => return Ok(Frame::End),
            8 => {}
            some => return Ok(Frame::Torn(some as u64)),
        }
        let [a, b, c, d, sum @ ..] = head;
        let length = [a, b, c, d];
        let (bytes, sum) = (u32::from_le_bytes(length), u32::from_le_bytes(sum));
        if bytes == 0 || bytes > MAX_COMPRESSED {
            return Ok(Frame::Damaged(format!("a frame of {bytes} bytes")));
        }
        self.compressed.clear();
        let read = source.by_ref().take(bytes.into()).read_to_end(&mut self.compressed)?;
        let all = head.len() as u64 + read as u64;
        if read < bytes as usize {
            return Ok(Frame::Torn(all));
        }
        if checksum(length, &self.compressed) != sum {
            // A crash may leave the last frame at its full length, but not all that it holds.
            let last = read_up_to(source, &mut [0])? == 0;
            return Ok(if last {
                Frame::Torn(all)
            } else {
                Frame::Damaged("the checksum of a frame is wrong".to_owned())
            });
        }
        block.clear();
        block.reserve(MAX_BLOCK);
        Ok(match self.decompressor.decompress_to_buffer(&self.compressed, block) {
            Ok(length) if length <= MAX_BLOCK => Frame::Block(all),
            Ok(length) => Frame::Damaged(format!("a block of {length} bytes")),
            Err(error) => Frame::Damaged(format!("a block cannot be decompressed: {error}")),
        })
    }
}

/// Fills `buffer` as far as the source goes; returns how far.
pub(super) fn read_up_to(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
