//! A recording, or after a zero the content of its one block.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let recording = match bytes {
        [0, block @ ..] => frontdesk_record::fuzzing::framed(block),
        whole => whole.to_owned(),
    };
    frontdesk_record::fuzzing::recording(&recording);
    frontdesk_replay::fuzzing::recording(&recording);
});
