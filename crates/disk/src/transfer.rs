//! What the disk does for a request, piece by piece.
//!
//! Data goes directly between disk and guest memory, if both are aligned as direct I/O asks. Else it goes
//! through a buffer, which holds whole blocks of the disk: a write of a part of a block is a read of all of
//! it first, and nothing else may be under way meanwhile.

use crate::chain::Segment;
use crate::image::Image;
use crate::memory::Memory;
use crate::request::{Op, Request};
use crate::scheduler::Work;
use frontdesk_engine::disk::DiskOperation;
use io_uring::{opcode, squeue, types};
use libc::iovec;
use rustix::io::Errno;
use std::sync::Arc;
use virtio_bindings::bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

/// Bytes of a piece, at most: what keeps a disk busy and no other VM waiting for long.
const PIECE: u64 = 1 << 20;

/// Bytes of a piece that goes through a buffer.
const BUFFERED_PIECE: u64 = 128 << 10;

/// The buffers are aligned to this, which suffices for all disks.
const BUFFER_ALIGN: usize = 4096;

/// A request under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    request: Request,
    /// Held, so that the memory stays mapped while the kernel works at it.
    memory: Arc<Memory>,
    /// Bytes of data that are done.
    done: u64,
    piece: Piece,
}

/// The piece that the kernel works at.
#[derive(Debug, Default)]
struct Piece {
    /// Bytes of data.
    len: u64,
    /// Where in memory the kernel reads or writes: must stay in place until it has ended.
    vectors: Vec<iovec>,
    buffer: Option<Buffer>,
}

/// Whole blocks of the disk.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    /// Where in it the blocks begin, which is aligned.
    start: usize,
    /// Bytes of the blocks.
    len: usize,
    /// Where in the blocks the data begins.
    lead: usize,
    /// Whether the blocks are being read, so that data can be put into them.
    filling: bool,
}

impl Buffer {
    fn blocks(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    fn data(&mut self, len: u64) -> &mut [u8] {
        let lead = self.lead;
        // A piece is no longer than its buffer.
        let len = usize::try_from(len).unwrap_or_default();
        &mut self.blocks()[lead..lead + len]
    }
}

/// What a piece's end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next piece is to be asked for.
    Next,
    /// The same piece goes on.
    Again,
    /// The request is done, with this status, and this many bytes were written to the guest's memory.
    Done {
        /// `VIRTIO_BLK_S_*`.
        status: u32,
        /// Without the status itself.
        written: u64,
    },
}

impl Transfer {
    /// A request that is to be carried out.
    pub(crate) fn new(request: Request, memory: Arc<Memory>) -> Transfer {
        Transfer { request, memory, done: 0, piece: Piece::default() }
    }

    /// Where the status goes.
    pub(crate) fn status(&self) -> GuestAddress {
        self.request.status
    }

    /// The guest's memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What the next piece asks of the disk. What a discard or a writing of zeroes costs has little to do
    /// with its length: that counts as nothing.
    pub(crate) fn work(&self) -> Work {
        let rest = (self.request.len() - self.done).min(PIECE);
        let (operation, offset, bytes) = match self.request.op {
            Op::Read(offset) => (DiskOperation::Read, offset + self.done, rest),
            Op::Write(offset) => (DiskOperation::Write, offset + self.done, rest),
            Op::Discard { offset, .. } => (DiskOperation::Discard, offset, 0),
            Op::WriteZeroes { offset, .. } => (DiskOperation::Write, offset, 0),
            Op::Flush | Op::GetId | Op::Refuse(_) => (DiskOperation::Flush, 0, 0),
        };
        Work { operation, offset, bytes }
    }

    /// Whether nothing else may be under way while the next piece is: it changes a part of a block.
    pub(crate) fn is_exclusive(&self, image: &Image) -> bool {
        let align = image.offset_align();
        let whole = |offset: u64| offset.is_multiple_of(align);
        matches!(self.request.op, Op::Write(offset) if !(whole(offset) && whole(self.request.len())))
    }

    /// Prepares the next piece. The kernel is to do [`entry`](Self::entry) then.
    ///
    /// # Errors
    /// If the guest's memory is not where it was.
    pub(crate) fn prepare(&mut self, image: &Image) -> Result<(), Errno> {
        match self.request.op {
            Op::Read(offset) | Op::Write(offset) => self.prepare_data(image, offset + self.done),
            _ => Ok(()),
        }
    }

    /// What the kernel is to do. What it points to stays in place until [`end`](Self::end) is called.
    pub(crate) fn entry(&self, image: &Image) -> squeue::Entry {
        let file = types::Fd(image.fd());
        match self.request.op {
            Op::Read(offset) => self.data_entry(image, offset, true),
            Op::Write(offset) => {
                let filling = self.piece.buffer.as_ref().is_some_and(|buffer| buffer.filling);
                self.data_entry(image, offset, filling)
            }
            Op::Discard { offset, len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(file, len).offset(offset).mode(mode).build()
            }
            Op::WriteZeroes { offset, len, unmap } => {
                let how = if unmap { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                let mode = how | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(file, len).offset(offset).mode(mode).build()
            }
            Op::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            // These need no disk, and do not come here.
            Op::GetId | Op::Refuse(_) => opcode::Nop::new().build(),
        }
    }

    /// Reading or writing of the piece that is prepared, of a request that begins at `offset`.
    fn data_entry(&self, image: &Image, offset: u64, reading: bool) -> squeue::Entry {
        let lead = self.piece.buffer.as_ref().map_or(0, |buffer| buffer.lead as u64);
        let at = offset + self.done - lead;
        let file = types::Fd(image.fd());
        let vectors = self.piece.vectors.as_ptr();
        let count = u32::try_from(self.piece.vectors.len()).unwrap_or(u32::MAX);
        if reading {
            opcode::Readv::new(file, vectors, count).offset(at).build()
        } else {
            opcode::Writev::new(file, vectors, count).offset(at).build()
        }
    }

    /// The segments of the next bytes.
    fn segments(&self, from: u64, len: u64) -> Vec<Segment> {
        let (mut skip, mut left) = (from, len);
        let mut segments = Vec::new();
        for segment in &self.request.data {
            let all = u64::from(segment.len);
            if skip >= all {
                skip -= all;
                continue;
            }
            let part = (all - skip).min(left);
            if part == 0 {
                break;
            }
            segments.push(Segment {
                address: GuestAddress(segment.address.0 + skip),
                // A part of what has 32 bits.
                len: u32::try_from(part).unwrap_or(u32::MAX),
                writable: segment.writable,
            });
            (skip, left) = (0, left - part);
        }
        segments
    }

    fn prepare_data(&mut self, image: &Image, offset: u64) -> Result<(), Errno> {
        let writing = matches!(self.request.op, Op::Write(_));
        let len = (self.request.len() - self.done).min(PIECE);
        let mut vectors = Vec::new();
        for segment in self.segments(self.done, len) {
            let access = if writing { Permissions::Read } else { Permissions::Write };
            let slices = self.memory.map().get_slices(segment.address, segment.len as usize, access);
            for slice in slices.map_err(|_| Errno::FAULT)? {
                let slice = slice.map_err(|_| Errno::FAULT)?;
                vectors.push(iovec { iov_base: slice.ptr_guard_mut().as_ptr().cast(), iov_len: slice.len() });
            }
        }
        let (block, memory_align) = (image.offset_align(), image.memory_align());
        let aligned = |vector: &iovec| {
            (vector.iov_base as u64).is_multiple_of(memory_align)
                && (vector.iov_len as u64).is_multiple_of(block)
        };
        // Data segments are no more than a queue's entries, which is no more than the kernel takes at once.
        if offset.is_multiple_of(block) && vectors.iter().all(aligned) {
            self.piece = Piece { len, vectors, buffer: None };
            return Ok(());
        }
        let len = len.min(BUFFERED_PIECE);
        let first = offset / block * block;
        let end = (offset + len).next_multiple_of(block);
        let span = usize::try_from(end - first).map_err(|_| Errno::INVAL)?;
        let bytes = vec![0; span + BUFFER_ALIGN];
        let start = bytes.as_ptr().align_offset(BUFFER_ALIGN);
        let lead = usize::try_from(offset - first).map_err(|_| Errno::INVAL)?;
        let filling = writing && (first != offset || end != offset + len);
        let mut buffer = Buffer { bytes, start, len: span, lead, filling };
        if writing && !filling {
            self.copy_in(&mut buffer, len)?;
        }
        let blocks = buffer.blocks();
        let vectors = vec![iovec { iov_base: blocks.as_mut_ptr().cast(), iov_len: blocks.len() }];
        self.piece = Piece { len, vectors, buffer: Some(buffer) };
        Ok(())
    }

    fn copy_in(&self, buffer: &mut Buffer, len: u64) -> Result<(), Errno> {
        let mut data = buffer.data(len);
        for segment in self.segments(self.done, len) {
            let (part, rest) = data.split_at_mut(segment.len as usize);
            self.memory.map().read_slice(part, segment.address).map_err(|_| Errno::FAULT)?;
            data = rest;
        }
        Ok(())
    }

    fn copy_out(&self, buffer: &mut Buffer, len: u64) -> Result<(), Errno> {
        let mut data = &*buffer.data(len);
        for segment in self.segments(self.done, len) {
            let (part, rest) = data.split_at(segment.len as usize);
            self.memory.map().write_slice(part, segment.address).map_err(|_| Errno::FAULT)?;
            data = rest;
        }
        Ok(())
    }

    /// The kernel is done with the piece, with this result.
    pub(crate) fn end(&mut self, image: &Image, result: i32) -> Step {
        match self.ended(image, result) {
            Ok(step) => step,
            Err(errno) => {
                tracing::warn!("image {}: {:?}: {errno}", image.path().display(), self.request.op);
                Step::Done { status: VIRTIO_BLK_S_IOERR, written: 0 }
            }
        }
    }

    fn ended(&mut self, image: &Image, result: i32) -> Result<Step, Errno> {
        let ok = Step::Done { status: VIRTIO_BLK_S_OK, written: 0 };
        let Ok(count) = u64::try_from(result) else {
            let errno = Errno::from_raw_os_error(-result);
            return match self.request.op {
                // Nobody relies on a discard.
                Op::Discard { .. } if errno == Errno::OPNOTSUPP => Ok(ok),
                Op::WriteZeroes { .. } if errno == Errno::OPNOTSUPP => {
                    Ok(Step::Done { status: VIRTIO_BLK_S_UNSUPP, written: 0 })
                }
                _ => Err(errno),
            };
        };
        let writing = match self.request.op {
            Op::Write(_) => true,
            Op::Read(_) => false,
            _ => return Ok(ok),
        };
        let mut piece = std::mem::take(&mut self.piece);
        let progress = match &mut piece.buffer {
            // What the kernel has left over is the next piece. Nothing at all is the end of the image.
            None => count / image.offset_align() * image.offset_align(),
            // A last block that ends before its file does: what is behind it is not written.
            Some(buffer) if count < (buffer.len as u64) => return Err(Errno::IO),
            Some(buffer) if buffer.filling => {
                self.copy_in(buffer, piece.len)?;
                buffer.filling = false;
                self.piece = piece;
                return Ok(Step::Again);
            }
            Some(buffer) => {
                if !writing {
                    self.copy_out(buffer, piece.len)?;
                }
                piece.len
            }
        };
        if progress == 0 {
            return Err(Errno::IO);
        }
        self.done += progress;
        if self.done < self.request.len() {
            return Ok(Step::Next);
        }
        let written = if writing { 0 } else { self.done };
        Ok(Step::Done { status: VIRTIO_BLK_S_OK, written })
    }
}
