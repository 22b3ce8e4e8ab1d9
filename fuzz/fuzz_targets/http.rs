//! A request for the metrics.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frontdesk_host::fuzzing::http(bytes);
});
