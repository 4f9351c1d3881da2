//! Versions of CUDA.

use std::fmt;

/// A version of CUDA.
///
/// ```
/// use bursar::cuda::Version;
///
/// let version = Version { major: 13, minor: 0 };
/// assert!(version > Version::NEEDED);
/// assert_eq!(version.to_string(), "13.0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

impl Version {
    /// The oldest version that has every function called here.
    pub const NEEDED: Self = Self { major: 12, minor: 2 };

    /// Returns the version of the driver's number, 1000 × major + 10 × minor.
    pub(crate) const fn from_number(number: i32) -> Self {
        let number = if number < 0 { 0 } else { number.cast_unsigned() };
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
