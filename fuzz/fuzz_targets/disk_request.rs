//! A request of a guest's block driver: its head, its header and descriptors.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((fixed, rest)) = bytes.split_first_chunk::<14>() else { return };
    let half = |from: &[u8], at: usize| u16::from_le_bytes([from[at], from[at + 1]]);
    let word = |from: &[u8], at: usize| u32::from(half(from, at)) | u32::from(half(from, at + 2)) << 16;
    let long = |from: &[u8], at: usize| u64::from(word(from, at)) | u64::from(word(from, at + 4)) << 32;
    let descriptor = |from: &[u8]| (long(from, 0), word(from, 8), half(from, 12), half(from, 14));
    // As many as fit below the header.
    let descriptors: Vec<_> = rest.chunks_exact(16).take(250).map(descriptor).collect();
    frontdesk_disk::fuzzing::request(&descriptors, (word(fixed, 2), long(fixed, 6)), half(fixed, 0));
});
