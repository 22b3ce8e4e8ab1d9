//! Tables, plots, the HTML report and the Perfetto trace of an experiment, from the result model only.

#![forbid(unsafe_code)]

mod arms;
mod csv;
mod error;
mod figure;
mod html;
mod number;
mod perfetto;
mod plot;
mod reality;
mod table;

pub use self::csv::{Point, csv};
pub use arms::{Quantity, svg_arms};
pub use error::ReportError;
pub use figure::svg_figures;
pub use html::html;
pub use perfetto::perfetto;
pub use plot::svg_cdf;
pub use reality::{Ratio, TOLERANCE, compare, comparison_table, svg_comparison};
pub use table::table;
