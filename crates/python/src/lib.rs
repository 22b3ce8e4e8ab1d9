//! The compiled half of the Python package `frontdesk`: what its other half, in `python/frontdesk`, needs of
//! the simulator, of recordings and of sweeps. Tables go over as Parquet files in memory, and everything else
//! as JSON, so that neither side knows how the other keeps its data.

#![forbid(unsafe_code)]

mod error;
mod recording;
mod runs;
mod scenario;
mod tables;

use pyo3::prelude::*;

/// The compiled half of the package frontdesk.
#[pymodule]
fn _frontdesk(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Error", module.py().get_type::<error::Error>())?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("BUILT", frontdesk_sweep::BUILT)?;
    module.add_class::<scenario::Scenario>()?;
    module.add_class::<scenario::Simulated>()?;
    module.add_class::<recording::Recording>()?;
    module.add_class::<runs::SweepRuns>()
}
