//! The driver: which one is used, and the port that every driver implements.
//!
//! [`cuda`], [`simulated`], and [`cuda_or_simulated`] where either will do, open one. Programs that decide by what a device
//! has, such as how many workers to start, use [`cuda`]: figures of simulated devices mean nothing for a machine without a
//! GPU. [`Driver`] is the port; the raw handles and the statuses are those of CUDA, whichever driver it is.

#[doc(hidden)]
pub use bursar_core::driver_methods;
#[doc(inline)]
pub use bursar_core::{
    CountingDriver, Driver, DriverError, DriverResult, Gate, HostFlags, HostFunction, Note, Pattern, PeerPtr, Progress,
    RawContext, RawEvent, RawGraph, RawGraphExec, RawPages, RawStream, SimulatedBytes, SimulatedKernel,
    SimulatedMemory, Status,
};
#[doc(inline)]
pub use bursar_sim::{SIM_DEVICES_VARIABLE, SimDevices, SimDevicesError};

use bursar_core::Error;
use bursar_cuda::{Cuda, LoadError};
use std::str::FromStr;
use std::sync::Arc;

/// The environment variable that chooses the driver if the program does not: `auto`, `cuda` or `sim`.
pub const VARIABLE: &str = "BURSAR_DRIVER";

/// The driver that is wanted.
///
/// ```
/// use bursar::driver::Choice;
///
/// assert_eq!("cuda".parse(), Ok(Choice::Cuda));
/// assert_eq!(Choice::default(), Choice::Auto);
/// assert!("opencl".parse::<Choice>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// CUDA where it works, simulated devices otherwise.
    #[default]
    Auto,
    /// CUDA or nothing.
    Cuda,
    /// Simulated devices.
    Sim,
}

impl Choice {
    /// Returns what `BURSAR_DRIVER` chooses; [`Auto`](Self::Auto) if it is not set.
    pub fn from_environment() -> Result<Self, DriverChoiceError> {
        let text = std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().into_owned();
        text.parse().map_err(|_| DriverChoiceError::Variable { text })
    }
}

impl FromStr for Choice {
    type Err = DriverChoiceError;

    fn from_str(text: &str) -> Result<Self, DriverChoiceError> {
        match text.trim() {
            "" | "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda),
            "sim" => Ok(Self::Sim),
            _ => Err(DriverChoiceError::Unknown { text: text.to_owned() }),
        }
    }
}

/// The error of choosing or loading a driver.
///
/// ```
/// use bursar::driver::{Choice, DriverChoiceError};
///
/// let error = "opencl".parse::<Choice>().unwrap_err();
/// assert!(matches!(error, DriverChoiceError::Unknown { .. }));
/// ```
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverChoiceError {
    /// No driver has that name.
    #[error("{text:?} is no driver: choose auto, cuda or sim")]
    Unknown {
        /// The text.
        text: String,
    },
    /// The environment variable chooses none.
    #[error("{VARIABLE} is {text:?}, which is no driver: choose auto, cuda or sim")]
    Variable {
        /// The text, with U+FFFD for what is not UTF-8.
        text: String,
    },
    /// CUDA cannot be used.
    #[error("there is no GPU to use: {why}")]
    NoCuda {
        /// The reason.
        why: String,
    },
    /// The description of the simulated devices cannot be parsed.
    #[error(transparent)]
    SimDevices(#[from] SimDevicesError),
}

impl From<DriverChoiceError> for Error {
    fn from(error: DriverChoiceError) -> Self {
        Self::NoDriver { why: error.to_string().into() }
    }
}

/// A driver, and the reason that it is not CUDA if CUDA would have been preferred.
///
/// ```
/// use bursar::driver::{Choice, SimDevices, open};
///
/// let opened = open(Choice::Sim, &SimDevices::default())?;
/// assert_eq!(opened.driver.device_count(), 2);
/// assert!(opened.is_simulated);
/// assert_eq!(opened.instead_of_cuda, None);
/// # Ok::<(), bursar::driver::DriverChoiceError>(())
/// ```
#[derive(Debug)]
pub struct OpenedDriver {
    /// The driver.
    pub driver: Arc<dyn Driver>,
    /// True if its devices are simulated.
    pub is_simulated: bool,
    /// The reason that the devices are simulated, if nobody asked for that.
    pub instead_of_cuda: Option<String>,
}

/// Opens the driver of choice. `devices` are made if it is the simulated one.
pub fn open(choice: Choice, devices: &SimDevices) -> Result<OpenedDriver, DriverChoiceError> {
    open_by(Cuda::load, choice, devices)
}

/// Opens the driver of choice for a program that looks at devices and takes none of their memory: see [`Cuda::observe`].
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{Choice, SimDevices, observe};
///
/// let opened = observe(Choice::Sim, &SimDevices::default())?;
/// println!("{} free", opened.driver.memory(DeviceId(0))?.free);
/// # Ok::<(), bursar::Error>(())
/// ```
pub fn observe(choice: Choice, devices: &SimDevices) -> Result<OpenedDriver, DriverChoiceError> {
    open_by(Cuda::observe, choice, devices)
}

fn open_by(
    load: impl FnOnce() -> Result<Arc<Cuda>, LoadError>,
    choice: Choice,
    devices: &SimDevices,
) -> Result<OpenedDriver, DriverChoiceError> {
    let simulate = |instead_of_cuda| OpenedDriver { driver: simulated(devices), is_simulated: true, instead_of_cuda };
    if choice == Choice::Sim {
        return Ok(simulate(None));
    }
    match (load().map_err(no_cuda), choice) {
        (Ok(driver), _) => Ok(OpenedDriver { driver, is_simulated: false, instead_of_cuda: None }),
        (Err(DriverChoiceError::NoCuda { why }), Choice::Auto) => Ok(simulate(Some(why))),
        (Err(error), _) => Err(error),
    }
}

fn no_cuda(error: LoadError) -> DriverChoiceError {
    DriverChoiceError::NoCuda { why: error.to_string() }
}

/// Opens CUDA. The error says why it cannot be used; no variable changes that.
///
/// ```
/// match bursar::driver::cuda() {
///     Ok(driver) => println!("{} GPUs", driver.device_count()),
///     Err(error) => assert!(error.to_string().contains("there is no GPU to use"), "{error}"),
/// }
/// ```
pub fn cuda() -> bursar_core::Result<Arc<dyn Driver>> {
    Ok(Cuda::load().map_err(no_cuda)?)
}

/// Makes simulated devices.
///
/// ```
/// use bursar::driver::{SimDevices, simulated};
///
/// let driver = simulated(&"4x24GiB".parse()?);
/// assert_eq!(driver.device_count(), 4);
/// assert_eq!(simulated(&SimDevices::default()).device_count(), 2);
/// # Ok::<(), bursar::driver::SimDevicesError>(())
/// ```
pub fn simulated(devices: &SimDevices) -> Arc<dyn Driver> {
    devices.builder().immediate().build()
}

/// Opens CUDA where it works, and otherwise makes the simulated devices that `BURSAR_SIM_DEVICES` describes, or two, with one
/// line on standard error that says so and why. `BURSAR_DRIVER` insists on either: `cuda` or `sim`.
///
/// ```
/// let driver = bursar::driver::cuda_or_simulated()?;
/// assert!(driver.device_count() > 0);
/// # Ok::<(), bursar::Error>(())
/// ```
pub fn cuda_or_simulated() -> bursar_core::Result<Arc<dyn Driver>> {
    let devices = SimDevices::from_environment().map_err(DriverChoiceError::from)?;
    let opened = open(Choice::from_environment()?, &devices)?;
    if let Some(why) = &opened.instead_of_cuda {
        announce(why);
    }
    Ok(opened.driver)
}

#[allow(clippy::print_stderr, reason = "a program that runs without its GPU must not do so silently")]
fn announce(why: &str) {
    eprintln!("bursar: using simulated devices ({why})");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_devices_are_the_same_in_every_process_and_unnamed_ones_are_not() {
        let uuids = |text: &str| {
            let driver = simulated(&text.parse().expect("devices"));
            [0, 1].map(|n| driver.facts(bursar_core::DeviceId(n)).expect("a device").uuid)
        };
        assert_eq!(uuids("2x1GiB@same"), uuids("2x2GiB@same"));
        assert_ne!(uuids("2x1GiB@same"), uuids("2x1GiB@other"));
        assert_ne!(uuids("2x1GiB"), uuids("2x1GiB"));
    }
}
