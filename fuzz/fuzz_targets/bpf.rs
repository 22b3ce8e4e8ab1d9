//! A record of a BPF program's ring.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_probes::fuzzing::record(bytes);
});
