//! The errors of probes and plans.

use crate::{HeadroomError, Plan};
use bursar_core::{DriverError, Error};
use bursar_ledger::LedgerError;
use bursar_linux::ReadError;

/// An error from finding out how much memory is available.
///
/// ```
/// let error = bursar::fit::Ram::below("no/such/machine").read().unwrap_err();
/// assert!(error.to_string().starts_with("no/such/machine/proc/meminfo cannot be read"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A file of the system cannot be read or lacks what it must say.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A custom probe failed.
    #[error("the probe could not say what is available: {why}")]
    Custom {
        /// The reason it gave.
        why: String,
    },
}

/// An error from planning or reserving the memory of workers.
///
/// ```
/// use bursar::fit::{FitError, MemoryKind, Spec};
///
/// let error = Spec::new("train", MemoryKind::Vram).plan().unwrap_err();
/// assert!(matches!(error, FitError::NoDevice));
/// assert!(error.to_string().contains("probe"), "{error}");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// There is no device to put workers on.
    #[error(
        "there is no device to fit workers into: say what is available with a probe of your own (`Spec::probe`, `--available`)"
    )]
    NoDevice,
    /// The headroom is no fraction that can be used.
    #[error(transparent)]
    Headroom(#[from] HeadroomError),
    /// Not even one worker fits.
    #[error("{}", .0.overflow_message().unwrap_or_default())]
    Overflow(Box<Plan>),
    /// The available memory could not be determined.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Memory could not be reserved, or a device could not be queried.
    #[error(transparent)]
    Memory(#[from] Error),
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl FitError {
    /// Returns whether there is too little memory, so that a retry can succeed once some has been freed.
    pub fn is_capacity(&self) -> bool {
        match self {
            Self::Overflow(_) => true,
            Self::Memory(error) => error.is_capacity(),
            _ => false,
        }
    }
}

impl From<DriverError> for FitError {
    fn from(error: DriverError) -> Self {
        Self::Memory(error.into())
    }
}

impl From<FitError> for Error {
    fn from(error: FitError) -> Self {
        match error {
            FitError::NoDevice => Self::NoDevice,
            FitError::Memory(error) => error,
            FitError::Ledger(error) => error.into(),
            FitError::Overflow(_) | FitError::Probe(_) | FitError::Headroom(_) => {
                Self::Account { why: error.to_string().into() }
            }
        }
    }
}
