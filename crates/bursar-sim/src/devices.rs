//! The description of simulated devices that people write in the environment and on command lines.

use crate::machine::ADDRESSES;
use crate::{Sim, SimBuilder};
use bursar_core::{Bytes, ParseBytesError};
use std::fmt;
use std::str::FromStr;

/// The environment variable that describes the simulated devices if the program does not: `2x80GiB` or `2x80GiB@name`.
pub const SIM_DEVICES_VARIABLE: &str = "BURSAR_SIM_DEVICES";

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
    /// Returns a builder of a simulator with these devices.
    pub fn builder(&self) -> SimBuilder {
        let builder = Sim::builder().devices(self.count as usize, self.bytes);
        match &self.name {
            Some(name) => builder.named(name),
            None => builder,
        }
    }

    /// Returns the devices that `BURSAR_SIM_DEVICES` describes, or two of 80 GiB if it is not set. The variable chooses no
    /// driver.
    pub fn from_environment() -> Result<Self, SimDevicesError> {
        let text = std::env::var_os(SIM_DEVICES_VARIABLE).unwrap_or_default();
        match text.to_str().map(str::trim) {
            Some("") => Ok(Self::default()),
            Some(text) => text.parse(),
            None => Err(SimDevicesError::Malformed { text: text.to_string_lossy().into_owned() }),
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
        let bytes = bytes.parse()?;
        let is_memory = Bytes::ZERO < bytes && bytes <= Bytes(ADDRESSES);
        if is_memory { Ok(Self { count, bytes, name }) } else { Err(malformed()) }
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
    #[error("{text:?} describes no devices: write 2x80GiB, 1 to 64 of them with at most 32 TiB each, or 2x80GiB@name")]
    Malformed {
        /// The text.
        text: String,
    },
    /// The size could not be parsed.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_simulated_devices_are_read_or_refused() {
        for (text, count, bytes, name) in [
            ("1x1GiB", 1, Bytes::gib(1), None),
            ("2x32TiB", 2, Bytes(ADDRESSES), None),
            ("64x512MiB@a b", 64, Bytes::mib(512), Some("a b")),
        ] {
            let expected = SimDevices { count, bytes, name: name.map(str::to_owned) };
            assert_eq!(text.parse(), Ok(expected.clone()));
            assert_eq!(expected.to_string(), text);
        }
        for text in ["", "2", "x", "0x1GiB", "65x1GiB", "-1x1GiB", "1x0GiB", "1x33TiB", "2x1GiB@", "2xlots", "2y1GiB"] {
            assert!(text.parse::<SimDevices>().is_err(), "{text}");
        }
    }
}
