//! The engine's parameters from a configuration file.

use anyhow::Context;
use frontdesk_engine::Config;
use std::path::Path;

/// Reads and checks a file.
pub(crate) fn load(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let config: Config = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    config.validate().with_context(|| format!("in {}", path.display()))?;
    Ok(config)
}
