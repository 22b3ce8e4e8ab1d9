//! What a study gives for reading and drawing: numbers in rows, and figures.

use serde::{Deserialize, Serialize};

/// Numbers in rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberTable {
    /// What they are.
    pub title: String,
    /// What names a row, such as "arm" and "case".
    pub names: Vec<String>,
    /// What the numbers of a row are, with their units.
    pub columns: Vec<String>,
    /// The names of each row, and its numbers; absent where nothing was measured.
    pub rows: Vec<(Vec<String>, Vec<Option<f64>>)>,
}

/// A plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Series of points over two axes.
    Chart {
        /// What it shows.
        title: String,
        /// The x axis, with its unit.
        x: String,
        /// Whether it is logarithmic.
        log_x: bool,
        /// The y axis, with its unit; it begins at 0.
        y: String,
        /// How points are drawn.
        mark: Mark,
        /// The points.
        series: Vec<Series>,
    },
    /// A number for each of some columns and rows: a contour map in steps.
    Map {
        /// What it shows.
        title: String,
        /// What the columns are.
        x: String,
        /// What the rows are.
        y: String,
        /// The columns, from left to right.
        columns: Vec<String>,
        /// The rows, from the bottom.
        rows: Vec<String>,
        /// Of each row its numbers, in percent; absent where nothing was measured.
        cells: Vec<Vec<Option<f64>>>,
    },
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Joined by a line.
    Line,
    /// Each by itself.
    Dot,
    /// As the height of a bar.
    Bar,
}

/// Points of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What they are of.
    pub name: String,
    /// The points.
    pub points: Vec<(f64, f64)>,
}
