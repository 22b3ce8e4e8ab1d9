//! Files of /proc.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_linux::fuzzing::stat(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        frontdesk_linux::fuzzing::mountinfo(text);
    }
});
