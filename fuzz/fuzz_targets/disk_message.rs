//! What the daemon and a disk's back end say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_disk_protocol::fuzzing::message(bytes);
});
