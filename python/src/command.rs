//! The command `bursar`, run by the interpreter.

use bursar_cli::Program;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs the command with these words and returns its exit status. A run starts its processes by `program`, and looks for the
/// library that keeps workers inside their shares in `libraries`.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, words: Vec<OsString>, program: Vec<OsString>, libraries: Vec<PathBuf>) -> u8 {
    py.detach(|| bursar_cli::main(&Program::started_by(program, libraries), words))
}

/// Returns the version of the package.
#[pyfunction]
pub(crate) const fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
