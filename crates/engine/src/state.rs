//! Checks of an engine's state that is loaded: it may come from a damaged or forged file.

use crate::config::ConfigError;

/// Why a state is none that an engine can be in.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the engine's state is not valid: {0}")]
    Config(#[from] ConfigError),
    #[error("the engine's state is not valid: {0}")]
    Impossible(&'static str),
}

pub(crate) fn check(holds: bool, otherwise: &'static str) -> Result<(), StateError> {
    if holds { Ok(()) } else { Err(StateError::Impossible(otherwise)) }
}
