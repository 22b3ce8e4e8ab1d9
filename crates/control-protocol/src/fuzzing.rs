//! What a client may ask: bodies of property tests, and of fuzzing with coverage (`fuzz/`).

use crate::{Answer, Query, RefusalKind, Target, line};

/// A request is refused as malformed, or is the same when it is sent again. An answer is one, or is not.
pub fn request(asked: &[u8]) {
    match Query::parse(asked) {
        Ok(query) => {
            let again = line(&query);
            assert_eq!(Query::parse(&again[..again.len() - 1]), Ok(query));
        }
        Err(refusal) => assert_eq!(refusal.kind, RefusalKind::Malformed),
    }
    let _ = serde_json::from_slice::<Answer>(asked);
}

/// A target is what it says it is.
pub fn target(text: &str) {
    if let Ok(target) = text.parse::<Target>() {
        assert_eq!(target.to_string().parse(), Ok(target));
    }
}
