//! The share of a worker that `bursar run` started.

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool_share;
use crate::reservation::Reservation;
use bursar::device::DeviceContext;
use bursar::ledger::{self, LedgerError};
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::Arc;

/// Draws on the reservation whose token an environment variable has. That of this process's share is one with what its pools draw on.
/// Opens no device.
#[pyfunction]
pub(crate) fn draw(py: Python<'_>, variable: &str, token: OsString) -> Result<Reservation, Failure> {
    let token = token.into_string().map_err(|token| LedgerError::Token {
        token: token.to_string_lossy().into_owned(),
        why: format!("{variable} is no text in UTF-8").into(),
    })?;
    py.detach(|| {
        let reserved = || Ok(ledger::Reservation::from_token(&token)?);
        match pool_share::token().filter(|own| *own == token) {
            Some(own) => Ok(pool_share::drawn(own, reserved)?.object()),
            None => Ok(Reservation::new(reserved()?, None)),
        }
    })
}

/// Returns the number of the device that is meant where none is named.
#[pyfunction]
pub(crate) fn default_device(py: Python<'_>) -> Result<u32, Failure> {
    let machine = Machine::get(py)?;
    Ok(py.detach(|| machine.default_device()).0)
}

/// Returns the number of the device with this UUID; none if this process does not see it.
#[pyfunction]
pub(crate) fn index_of(py: Python<'_>, uuid: &str) -> Result<Option<u32>, Failure> {
    let machine = Machine::get(py)?;
    py.detach(|| {
        let is_meant = |context: &Arc<DeviceContext>| context.facts().uuid.to_string() == uuid;
        let context = machine.all_observed(None)?.into_iter().find(is_meant);
        Ok(context.map(|context| context.device().0))
    })
}
