//! What whoever listens at a QMP socket may say: bodies of fuzzing with coverage (`fuzz/`), which property
//! tests share.

/// Somebody says this and hangs up.
pub fn conversation(said: &[u8]) {
    let _ = crate::qmp::converse(said);
}

/// An answer, if it is JSON.
pub fn answer(said: &[u8]) {
    if let Ok(answer) = serde_json::from_slice(said) {
        crate::vm::take(&answer);
    }
}
