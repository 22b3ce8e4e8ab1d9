//! Errors as exceptions of Python, and results as JSON.

use frontdesk_scenario::sentence;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(frontdesk, Error, PyException, "What the command would say, and exit with status 2.");

/// An error as an exception, in the words of the command.
pub(crate) fn raised(error: &(dyn std::error::Error + 'static)) -> PyErr {
    Error::new_err(sentence(error))
}

/// What a result is as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| raised(&error))
}
