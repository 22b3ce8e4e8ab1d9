//! A journal of what is to be undone, or after a zero what owner and guardian say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match bytes {
        [0, frame @ ..] => frontdesk_guardian::fuzzing::frame(frame),
        journal => frontdesk_guardian::fuzzing::journal(journal),
    }
});
