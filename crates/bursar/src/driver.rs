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
    RawContext, RawEvent, RawPages, RawStream, SimulatedBytes, SimulatedKernel, SimulatedMemory, Status,
};

use bursar_core::{Bytes, Error, ParseBytesError};
use bursar_cuda::Cuda;
use bursar_sim::Sim;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The environment variable that chooses the driver if the program does not: `auto`, `cuda` or `sim`.
pub const VARIABLE: &str = "BURSAR_DRIVER";

/// The environment variable that describes the simulated devices if the program does not: `2x80GiB` or `2x80GiB@name`.
pub const SIM_DEVICES_VARIABLE: &str = "BURSAR_SIM_DEVICES";

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
        std::env::var(VARIABLE).unwrap_or_default().parse()
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

/// A description of simulated devices: their number, their size, and the name under which processes share them.
///
/// ```
/// use bursar::driver::SimDevices;
///
/// let pair: SimDevices = "2x80GiB@pair".parse().unwrap();
/// assert_eq!((pair.count, pair.name.as_deref()), (2, Some("pair")));
/// assert_eq!(pair.to_string(), "2x80GiB@pair");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimDevices {
    /// The number of devices.
    pub count: u32,
    /// The memory of each.
    pub bytes: Bytes,
    /// The name; devices of one name are the same in every process.
    pub name: Option<String>,
}

impl SimDevices {
    /// Returns the devices that `BURSAR_SIM_DEVICES` describes, or two of 80 GiB if it is not set. The variable chooses no
    /// driver.
    pub fn from_environment() -> Result<Self, SimDevicesError> {
        match std::env::var(SIM_DEVICES_VARIABLE) {
            Ok(text) if !text.trim().is_empty() => text.trim().parse(),
            _ => Ok(Self::default()),
        }
    }
}

/// The default is two devices of 80 GiB without a name.
impl Default for SimDevices {
    fn default() -> Self {
        Self { count: 2, bytes: Bytes::gib(80), name: None }
    }
}

impl FromStr for SimDevices {
    type Err = SimDevicesError;

    fn from_str(text: &str) -> Result<Self, SimDevicesError> {
        let malformed = || SimDevicesError::Malformed { text: text.to_owned() };
        let (shape, name) = match text.split_once('@') {
            Some((shape, name)) if !name.is_empty() => (shape, Some(name.to_owned())),
            Some(_) => return Err(malformed()),
            None => (text, None),
        };
        let (count, bytes) = shape.split_once('x').ok_or_else(malformed)?;
        let count = count.trim().parse().ok().filter(|count| (1..=64).contains(count)).ok_or_else(malformed)?;
        Ok(Self { count, bytes: bytes.parse()?, name })
    }
}

impl fmt::Display for SimDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.to_string().replace(' ', "");
        write!(f, "{}x{bytes}", self.count)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, "@{name}"))
    }
}

/// The error of parsing a description of simulated devices.
///
/// ```
/// let error = "many".parse::<bursar::driver::SimDevices>().unwrap_err();
/// assert!(error.to_string().contains("2x80GiB"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimDevicesError {
    /// The text is not a count, an `x`, a size and an optional name.
    #[error("{text:?} describes no devices: write 2x80GiB, 1 to 64 of them, or 2x80GiB@name")]
    Malformed {
        /// The text.
        text: String,
    },
    /// The size could not be parsed.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
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
    let simulate = |instead_of_cuda| OpenedDriver { driver: simulated(devices), is_simulated: true, instead_of_cuda };
    if choice == Choice::Sim {
        return Ok(simulate(None));
    }
    match (load_cuda(), choice) {
        (Ok(driver), _) => Ok(OpenedDriver { driver, is_simulated: false, instead_of_cuda: None }),
        (Err(DriverChoiceError::NoCuda { why }), Choice::Auto) => Ok(simulate(Some(why))),
        (Err(error), _) => Err(error),
    }
}

fn load_cuda() -> Result<Arc<dyn Driver>, DriverChoiceError> {
    match Cuda::load() {
        Ok(cuda) => Ok(cuda),
        Err(error) => Err(DriverChoiceError::NoCuda { why: error.to_string() }),
    }
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
    Ok(load_cuda()?)
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
    let builder = Sim::builder().immediate().devices(devices.count as usize, devices.bytes);
    match &devices.name {
        Some(name) => builder.named(name).build(),
        None => builder.build(),
    }
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
    fn descriptions_of_simulated_devices_are_read_or_refused() {
        for (text, count, bytes, name) in
            [("1x1GiB", 1, Bytes::gib(1), None), ("64x512MiB@a b", 64, Bytes::mib(512), Some("a b"))]
        {
            let expected = SimDevices { count, bytes, name: name.map(str::to_owned) };
            assert_eq!(text.parse(), Ok(expected.clone()));
            assert_eq!(expected.to_string(), text);
        }
        for text in ["", "2", "x", "0x1GiB", "65x1GiB", "-1x1GiB", "2x1GiB@", "2xlots", "2y1GiB"] {
            assert!(text.parse::<SimDevices>().is_err(), "{text}");
        }
    }

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
