//! Sizes, given as a number of bytes or as text.

use crate::failure::Failure;
use bursar::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

/// A size as callers give it: `int`, or text such as `"20GiB"` and `"512 MiB"`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) Bytes);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = given.cast::<PyString>() {
            let text = text.to_str()?;
            return Ok(Self(text.parse().map_err(|error| Failure::Size { error })?));
        }
        let not_a_size = || {
            let kind = given.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!("a size is an int or text such as \"20GiB\", not {kind}"))
        };
        if given.is_instance_of::<PyBool>() {
            return Err(not_a_size());
        }
        if !given.hasattr("__index__")? {
            return Err(not_a_size());
        }
        let number = given.call_method0("__index__")?;
        match number.extract::<u64>() {
            Ok(bytes) => Ok(Self(Bytes(bytes))),
            Err(_) => Err(Failure::SizeOutOfRange { text: number.to_string() }.into()),
        }
    }
}

/// Returns the bytes of a size.
#[pyfunction]
pub(crate) fn parse_size(size: Size) -> u64 {
    size.0.get()
}
