//! Runs of a sweep, for the driver on Ray.

use crate::error::raised;
use frontdesk_sweep::Elsewhere;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A sweep whose runs are made here.
#[pyclass(frozen, module = "frontdesk._frontdesk")]
pub(crate) struct SweepRuns(Elsewhere);

#[pymethods]
impl SweepRuns {
    /// From what the command sent, and of which build that is.
    #[new]
    fn new(built: &str, sweep: &[u8]) -> PyResult<SweepRuns> {
        Elsewhere::unpack(built, sweep).map(SweepRuns).map_err(|error| raised(&error))
    }

    /// Makes runs and gives their rows, as a Parquet file. Other threads of Python run meanwhile.
    fn rows<'py>(&self, py: Python<'py>, numbers: Vec<usize>) -> PyResult<Bound<'py, PyBytes>> {
        let rows = py.detach(|| self.0.rows(&numbers));
        rows.map(|rows| PyBytes::new(py, &rows)).map_err(|error| raised(&error))
    }
}
