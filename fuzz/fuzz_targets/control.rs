//! A line from a client of the daemon.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_control_protocol::fuzzing::request(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        frontdesk_control_protocol::fuzzing::target(text);
    }
});
