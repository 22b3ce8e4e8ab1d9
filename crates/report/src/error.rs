//! Why something cannot be drawn.

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot {plot:?}")]
pub struct ReportError {
    /// Title of the plot.
    pub plot: &'static str,
    /// What the plotting library said.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}
