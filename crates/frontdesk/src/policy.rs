//! The engine's parameters from a configuration file.

use frontdesk_engine::Config;
use frontdesk_host::config::{Settings, SettingsError};
use std::path::Path;

/// Reads and checks a file of the daemon's, and takes what is the engine's.
pub(crate) fn load(path: &Path) -> Result<Config, SettingsError> {
    Ok(Settings::load(path)?.engine())
}
