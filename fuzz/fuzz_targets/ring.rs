//! What a producer leaves in a ring: words of its lanes, or after a zero those of its header.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let word = |at: usize| {
        let mut word = [0; 8];
        let from = bytes.get(at * 8..).unwrap_or_default();
        let length = from.len().min(8);
        word[..length].copy_from_slice(&from[..length]);
        u64::from_le_bytes(word)
    };
    match bytes.first() {
        None => {}
        Some(0) => {
            frontdesk_ring::fuzzing::header(std::array::from_fn(|at| word(at + 2)), word(1) % (1 << 20))
        }
        Some(_) => {
            frontdesk_ring::fuzzing::lanes(&(0..bytes.len().div_ceil(8)).map(word).collect::<Vec<_>>())
        }
    }
});
