//! What somebody says who listens at a QMP socket: a conversation, or after a zero the answer to a question.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match bytes {
        [0, answer @ ..] => frontdesk_qemu::fuzzing::answer(answer),
        said => frontdesk_qemu::fuzzing::conversation(said),
    }
});
