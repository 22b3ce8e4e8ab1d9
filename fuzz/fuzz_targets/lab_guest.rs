//! What the guest of a lab VM says.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_lab_guest::fuzzing::message(bytes);
});
