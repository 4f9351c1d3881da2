//! Errors, each as the exception of its kind.
//!
//! The exceptions are classes of `bursar/errors.py`. Numbers of an error are attributes of its exception, given by keyword.

use bursar::driver::{DriverChoiceError, DriverError};
use bursar::error::{Claim, ExternalError, Holding, Shortage};
use bursar::fit::FitError;
use bursar::host::HostError;
use bursar::ledger::LedgerError;
use bursar::memory::ParseBytesError;
use bursar::{Bytes, DeviceId, Error};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::cmp::Reverse;
use std::path::Path;

/// The failure of a native function, before it is an exception.
#[derive(Debug)]
pub(crate) enum Failure {
    Memory(Error),
    Ledger(LedgerError),
    Fit(FitError),
    Choice(DriverChoiceError),
    /// Text that is no size.
    Size {
        error: ParseBytesError,
    },
    /// A number of bytes that is negative, or larger than any size.
    SizeOutOfRange {
        text: String,
    },
    /// An argument that makes no sense, and why.
    Value {
        what: String,
    },
    /// Devices, none of which can be used, and why.
    NoUsableDevice {
        causes: Vec<(DeviceId, String)>,
    },
    /// A call in a child that was forked from the process that opened the devices, or made the object.
    Forked {
        opener: u32,
    },
    /// A refusal for want of memory whose holders are known.
    Refused {
        error: Error,
        holders: Vec<HolderFields>,
    },
    /// A request that was not granted in time: the refusal that it would be, and the seconds that it waited.
    Timeout {
        error: Error,
        waited: f64,
    },
    /// A use of what was given back.
    Released,
    /// A request of a pool that has to grow, and whose reservation was given back.
    PoolReleased,
    /// A request that met the replacement of the pool. It is tried again with the one that is there then.
    Replaced,
    /// A request to replace the pool while blocks of it are outside.
    PoolInUse {
        blocks: u64,
    },
    /// A request of a device that the pool is not for.
    OtherDevice {
        device: DeviceId,
        only: DeviceId,
    },
    /// A symbol that a library should have.
    NoSymbol {
        library: &'static str,
        symbol: &'static str,
    },
    /// An exception of Python itself.
    Raised(PyErr),
}

/// The error of a charge to a reservation that was given back.
#[derive(Debug)]
pub(crate) struct GivenBack;

impl std::fmt::Display for GivenBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reservation was given back")
    }
}

impl std::error::Error for GivenBack {}

/// The fields of `bursar.Holder`: a name, the bytes held, and in how many blocks where that is known.
pub(crate) type HolderFields = (String, u64, Option<u64>);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(file) = self.cleared() {
            let file = file.display();
            return write!(
                f,
                "the ledger {file} was cleared by force, and what this process had there with it: reserve again, or, for the pool, \
                 free what is allocated and call bursar.use_pool()"
            );
        }
        match self {
            Self::Memory(error) | Self::Refused { error, .. } => error.fmt(f),
            Self::Ledger(error) => error.fmt(f),
            Self::Fit(error) => error.fmt(f),
            Self::Choice(error @ DriverChoiceError::NoCuda { .. }) => {
                write!(f, "{error}; bursar.use_driver(\"sim\"), or BURSAR_DRIVER=sim, asks for simulated devices")
            }
            Self::Choice(error) => error.fmt(f),
            Self::Size { error } => error.fmt(f),
            Self::SizeOutOfRange { text } => {
                write!(f, "{text} bytes are no size: a size is between 0 and {}", u64::MAX)
            }
            Self::Value { what } => f.write_str(what),
            Self::NoUsableDevice { causes } if causes.is_empty() => f.write_str("there is no device"),
            Self::NoUsableDevice { causes } => {
                let causes: Vec<_> = causes.iter().map(|(device, cause)| format!("{device}: {cause}")).collect();
                write!(f, "no device can be used: {}", causes.join("; "))
            }
            Self::Forked { opener } => write!(
                f,
                "this process was forked from process {opener}, whose devices and reservations stay its own; start workers with the \
                 start method \"spawn\", or open nothing before the fork"
            ),
            Self::Timeout { error, waited } => write!(f, "not granted within {waited:.3} s: {error}"),
            Self::Released => f.write_str("the reservation was given back"),
            Self::PoolReleased => f.write_str(
                "the pool cannot grow: the reservation that it draws on was given back; free what is allocated and call \
                 use_pool again, with a reservation if that was this worker's share",
            ),
            Self::Replaced => f.write_str("the pool was replaced while memory was taken of it"),
            Self::PoolInUse { blocks } => write!(
                f,
                "the pool of this process is in use ({blocks} block{} of it): call use_pool before anything is allocated",
                if *blocks == 1 { "" } else { "s" }
            ),
            Self::OtherDevice { device, only } => {
                write!(f, "the pool of this process is for {only} alone, not for {device}")
            }
            Self::NoSymbol { library, symbol } => write!(
                f,
                "this version of {library} cannot be given the pool: `{symbol}` is missing from its libraries, and without it a \
                 refusal could not be told from memory"
            ),
            Self::Raised(error) => error.fmt(f),
        }
    }
}

/// Returns how a block is left. In a child that was forked nothing of its parent's ends with the block, so an exception that ends it there
/// goes on as it is.
pub(crate) fn leaving(raised: &Bound<'_, PyTuple>, left: Result<(), Failure>) -> Result<(), Failure> {
    match left {
        Err(Failure::Forked { .. }) if raised.iter().next().is_some_and(|kind| !kind.is_none()) => Ok(()),
        left => left,
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Raised(error) => error,
            failure => Python::attach(|py| failure.raise(py).unwrap_or_else(|error| error)),
        }
    }
}

impl Failure {
    /// Returns the failure of an argument that makes no sense.
    pub(crate) fn value(what: impl ToString) -> Self {
        Self::Value { what: what.to_string() }
    }

    /// Returns whether it is a refusal for want of memory.
    pub(crate) const fn is_capacity(&self) -> bool {
        matches!(self, Self::Memory(error) if error.is_capacity())
    }

    /// Returns the file of a ledger that was cleared while it was used.
    fn cleared(&self) -> Option<&Path> {
        let error = match self {
            Self::Ledger(error) => error,
            Self::Memory(Error::External(error)) => error.downcast_ref()?,
            _ => return None,
        };
        match error {
            LedgerError::Cleared { file } => Some(file),
            _ => None,
        }
    }

    /// Returns everything that is known about it, in lines.
    pub(crate) fn explanation(&self) -> String {
        match self {
            Self::Memory(error) if self.cleared().is_none() => format!("{error:#}"),
            failure => failure.to_string(),
        }
    }

    /// Makes the exception.
    fn raise(&self, py: Python<'_>) -> PyResult<PyErr> {
        let message = self.to_string();
        let fields = PyDict::new(py);
        let class = match self {
            Self::Memory(error) => memory(error, &fields)?,
            Self::Refused { error, holders } => {
                let class = memory(error, &fields)?;
                set_holders(&fields, holders)?;
                class
            }
            Self::Timeout { error, waited } => {
                set_amounts(error, &fields)?;
                fields.set_item("waited", waited)?;
                "Timeout"
            }
            Self::Ledger(error) => ledger(error, &fields)?,
            Self::Fit(error) => fit(error, &fields)?,
            Self::Choice(DriverChoiceError::NoCuda { .. }) | Self::NoUsableDevice { .. } => "NoDevice",
            Self::Choice(_) | Self::Value { .. } => "InvalidValue",
            Self::Size { .. } | Self::SizeOutOfRange { .. } => "InvalidSize",
            Self::Forked { .. } => "Forked",
            Self::Released | Self::PoolReleased => "Released",
            Self::PoolInUse { .. } | Self::OtherDevice { .. } => "InvalidValue",
            Self::NoSymbol { .. } => "Unsupported",
            Self::Raised(_) | Self::Replaced => "BursarError",
        };
        let class = py.import("bursar.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((message,), Some(&fields))?))
    }
}

/// Returns the class of an error of memory, and sets its attributes.
fn memory(error: &Error, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        Error::OutOfBudget { .. } | Error::OutOfTurn { .. } | Error::OutOfMemory { .. } | Error::Withheld { .. } => {
            set_amounts(error, fields)?;
            fields.set_item("explanation", format!("{error:#}"))?;
            set_holders(fields, &error.shortage().map_or_else(Vec::new, holders))?;
            "OutOfMemory"
        }
        Error::InvalidSize { .. } => "InvalidSize",
        Error::InvalidAlignment { .. }
        | Error::InvalidNumber { .. }
        | Error::InvalidValue { .. }
        | Error::LengthMismatch { .. }
        | Error::SizeMismatch { .. }
        | Error::InvalidRange { .. } => "InvalidValue",
        Error::StreamMisuse { .. } => "StreamMisuse",
        Error::UseAfterFree { .. } => "UseAfterFree",
        Error::OutOfBounds { .. } => "OutOfBounds",
        Error::ForeignBlock { .. } => "ForeignBlock",
        Error::Capacity { .. } => "TooManyStreams",
        Error::NoDriver { .. } | Error::NoDevice | Error::NoUsableDevice { .. } | Error::InvalidDevice { .. } => {
            "NoDevice"
        }
        Error::DeviceUnusable { cause, .. } => match cause.is_capacity() {
            true => memory(cause, fields)?,
            false => "NoDevice",
        },
        Error::Unsupported { .. } => "Unsupported",
        Error::Forked => "Forked",
        Error::Asleep { .. } => "Asleep",
        Error::StillInUse { .. } => "StillInUse",
        Error::Driver(error) | Error::CreateFailed(error) => driver(error, fields)?,
        Error::External(external) => return self::external(external, fields),
        _ => "BursarError",
    })
}

/// Returns the class of an error of what stands around the memory of a device, and sets its attributes.
fn external(error: &ExternalError, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    if let Some(error) = error.downcast_ref::<LedgerError>() {
        return ledger(error, fields);
    }
    if let Some(error) = error.downcast_ref::<HostError>() {
        return pinned(error, fields);
    }
    Ok(match error {
        _ if error.is_capacity() => "OutOfMemory",
        _ if error.downcast_ref::<GivenBack>().is_some() => "Released",
        _ => "BursarError",
    })
}

/// Returns the class of an error of pinned memory, and sets its attributes.
fn pinned(error: &HostError, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    let (requested, available, limit) = match error {
        HostError::Account { why, .. } | HostError::Device(why) => return memory(why, fields),
        HostError::ControlGroup { requested, available, limit, .. } => (*requested, *available, *limit),
        HostError::NoMemory { requested, available, total } => (*requested, *available, *total),
        HostError::LockedMemory { requested, locked, limit, .. } => (*requested, limit.saturating_sub(*locked), *limit),
        HostError::Deadline { requested, patience, .. } => {
            fields.set_item("requested", requested.get())?;
            fields.set_item("waited", patience.as_secs_f64())?;
            return Ok("Timeout");
        }
        _ => return Ok(if error.is_capacity() { "OutOfMemory" } else { "BursarError" }),
    };
    fields.set_item("requested", requested.get())?;
    fields.set_item("available", available.get())?;
    fields.set_item("limit", limit.get())?;
    Ok("OutOfMemory")
}

/// Returns the tags and processes that hold the most under the limit that refused, the largest first. Nothing is in two of them: of
/// this process there is what none of its tags has.
fn holders(shortage: &Shortage) -> Vec<HolderFields> {
    let by_tag = |holding: &Holding| (holding.tag.to_string(), holding.bytes.get(), Some(holding.blocks));
    let mut holders: Vec<HolderFields> = shortage.holders.iter().map(by_tag).collect();
    let tagged = shortage.holders.iter().fold(Bytes::ZERO, |sum, holding| sum.saturating_add(holding.bytes));
    let by_process = |claim: &Claim| {
        let listed = if claim.is_own { tagged } else { Bytes::ZERO };
        (claim.who(), claim.bytes().saturating_sub(listed).get(), None)
    };
    holders.extend(shortage.claims.processes.iter().map(by_process).filter(|(_, bytes, _)| *bytes > 0));
    holders.sort_by_key(|(_, bytes, _)| Reverse(*bytes));
    holders
}

/// Sets the numbers of a refusal for want of memory.
fn set_amounts(error: &Error, fields: &Bound<'_, PyDict>) -> PyResult<()> {
    let (requested, available, limit) = match error {
        Error::OutOfBudget { requested, remaining, limit, .. }
        | Error::OutOfTurn { requested, remaining, limit, .. } => (*requested, *remaining, Some(*limit)),
        Error::OutOfMemory { requested, free, total, .. } => (*requested, *free, Some(*total)),
        Error::Withheld { requested, remaining, .. } => (*requested, *remaining, None),
        _ => return Ok(()),
    };
    let requested = error.shortage().map_or(requested, |shortage| shortage.requested);
    fields.set_item("requested", requested.get())?;
    fields.set_item("available", available.get())?;
    fields.set_item("limit", limit.map(Bytes::get))
}

fn set_holders(fields: &Bound<'_, PyDict>, holders: &[HolderFields]) -> PyResult<()> {
    let class = fields.py().import("bursar.errors")?.getattr("Holder")?;
    let holders = holders.iter().map(|holder| class.call1(holder.clone())).collect::<PyResult<Vec<_>>>()?;
    fields.set_item("holders", PyTuple::new(fields.py(), holders)?)
}

fn driver(error: &DriverError, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    fields.set_item("call", error.call)?;
    fields.set_item("device", error.device.0)?;
    fields.set_item("status", format!("{:?}", error.status))?;
    Ok("DriverError")
}

/// Returns the class of an error of a ledger, and sets its attributes.
fn ledger(error: &LedgerError, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    let (class, file) = match error {
        LedgerError::Truncated { file, .. }
        | LedgerError::NotALedger { file }
        | LedgerError::Corrupt { file, .. }
        | LedgerError::OtherDevice { file, .. } => ("LedgerCorrupt", Some(file)),
        LedgerError::Version { file, .. } => ("LedgerVersion", Some(file)),
        LedgerError::Folder { folder: file, .. }
        | LedgerError::Owner { file, .. }
        | LedgerError::Mode { file, .. }
        | LedgerError::ReadOnly { file }
        | LedgerError::Full { file }
        | LedgerError::TooManyFiles { file }
        | LedgerError::Io { file, .. } => ("LedgerInaccessible", Some(file)),
        LedgerError::Deleted { file } | LedgerError::Cleared { file } => ("LedgerGone", Some(file)),
        LedgerError::InUse { file, .. }
        | LedgerError::Stuck { file, .. }
        | LedgerError::Busy { file }
        | LedgerError::Held { file, .. } => ("LedgerBusy", Some(file)),
        LedgerError::TableFull { file, .. } => ("LedgerFull", Some(file)),
        LedgerError::Token { .. } => ("InvalidToken", None),
        LedgerError::TenantName { .. } | LedgerError::Tenant { .. } => return Ok("InvalidValue"),
        LedgerError::Forked => return Ok("Forked"),
        _ => ("LedgerError", None),
    };
    fields.set_item("file", file.map(|file| file.display().to_string()))?;
    Ok(class)
}

/// Returns the class of an error of a plan, and sets its attributes.
fn fit(error: &FitError, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        FitError::NoDevice => "NoDevice",
        FitError::Headroom(_) => "InvalidValue",
        FitError::Overflow(plan) => {
            let needed = plan.need.fixed.saturating_add(plan.need.per_worker);
            fields.set_item("requested", needed.get())?;
            fields.set_item("available", plan.available().get())?;
            fields.set_item("limit", plan.budget().get())?;
            fields.set_item("explanation", plan.explanation())?;
            "OutOfMemory"
        }
        FitError::Memory(error) => memory(error, fields)?,
        FitError::Ledger(error) => ledger(error, fields)?,
        _ => "BursarError",
    })
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::Memory(error.into())
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<FitError> for Failure {
    fn from(error: FitError) -> Self {
        Self::Fit(error)
    }
}

impl From<DriverChoiceError> for Failure {
    fn from(error: DriverChoiceError) -> Self {
        Self::Choice(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}
