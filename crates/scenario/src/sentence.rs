//! Errors as people read them.

use std::error::Error;

/// An error with its causes, without what a message repeats of its cause.
#[must_use]
pub fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let own = cause.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        source = cause.source();
    }
    text
}
