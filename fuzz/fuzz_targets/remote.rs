//! A file with the hash of a password, one with known servers, and what a user calls a server.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_remote::fuzzing::known_hosts(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        frontdesk_remote::fuzzing::password_file(text);
        frontdesk_remote::fuzzing::of_a_server(text);
    }
});
