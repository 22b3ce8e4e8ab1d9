//! What a guest's reporter sends.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_guest_protocol::fuzzing::stream(bytes);
});
