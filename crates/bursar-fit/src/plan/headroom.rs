//! The fraction of the available memory that may be used.

use bursar_core::Bytes;
use std::fmt;
use std::str::FromStr;

const ONE: u32 = 1_000_000;
/// The digits behind the point that a number of millionths has.
const DIGITS: usize = 6;

/// The fraction of the available memory that may be used, in millionths: above 0 and at most 1.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::Headroom;
///
/// let headroom: Headroom = "0.7".parse()?;
/// assert_eq!(headroom, Headroom::default());
/// assert_eq!(headroom.of(Bytes(10)), Bytes(7));
/// assert_eq!(headroom.to_string(), "0.7");
/// assert!("1.5".parse::<Headroom>().is_err());
/// # Ok::<(), bursar::fit::HeadroomError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Headroom(u32);

impl Headroom {
    /// Everything that is available may be used.
    pub const ALL: Self = Self(ONE);

    /// Creates a fraction of `millionths`, from 1 to 1,000,000.
    pub const fn millionths(millionths: u32) -> Result<Self, HeadroomError> {
        match millionths {
            1..=ONE => Ok(Self(millionths)),
            _ => Err(HeadroomError::Outside { millionths }),
        }
    }

    /// Returns the number of millionths.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the number of millionths that stay free.
    pub const fn rest(self) -> u32 {
        ONE - self.0
    }

    /// Returns the part of `available` that may be used, rounded down.
    pub const fn of(self, available: Bytes) -> Bytes {
        // The fraction is at most one, so the result fits again.
        Bytes((available.0 as u128 * self.0 as u128 / ONE as u128) as u64)
    }

    /// Returns the part of `available` that may be used where others have `charged` of the same memory: this fraction of both
    /// together, less what the others have. So what one user leaves free is not offered to the next.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::fit::Headroom;
    ///
    /// let headroom = Headroom::default();
    /// assert_eq!(headroom.of_rest(Bytes(100), Bytes(0)), Bytes(70));
    /// assert_eq!(headroom.of_rest(Bytes(60), Bytes(40)), Bytes(30));
    /// assert_eq!(headroom.of_rest(Bytes(30), Bytes(70)), Bytes(0));
    /// ```
    pub const fn of_rest(self, available: Bytes, charged: Bytes) -> Bytes {
        let whole = available.0 as u128 + charged.0 as u128;
        // At most `whole` less `charged`, which is `available`.
        Bytes((whole * self.0 as u128 / ONE as u128).saturating_sub(charged.0 as u128) as u64)
    }

    /// Returns the least available memory of which `wanted` bytes may be used, or none if that exceeds `u64`.
    pub(super) fn least_available(self, wanted: u128) -> Option<Bytes> {
        let least = wanted.checked_mul(u128::from(ONE))?.div_ceil(u128::from(self.0));
        u64::try_from(least).ok().map(Bytes)
    }

    /// Returns the least fraction that lets `wanted` bytes of `available` be used, if there is one.
    pub(super) fn least_for(wanted: u128, available: Bytes) -> Option<Self> {
        let millionths = wanted.checked_mul(u128::from(ONE))?.checked_sub(1)?.checked_div(available.0.into())? + 1;
        u32::try_from(millionths).ok().and_then(|millionths| Self::millionths(millionths).ok())
    }
}

/// Takes a fraction above 0 and at most 1, rounded down to millionths, so that nobody gets more than was asked for; what is less than a
/// millionth is one. The digits are those of its text: 0.7 is seven tenths.
///
/// ```
/// use bursar::fit::Headroom;
///
/// assert_eq!(Headroom::try_from(0.7)?, Headroom::default());
/// for (fraction, millionths) in [(1.0 / 3.0, 333_333), (0.1 + 0.2, 300_000), (0.999_999_9, 999_999), (1e-7, 1), (1.0, 1_000_000)] {
///     assert_eq!(Headroom::try_from(fraction)?.get(), millionths);
/// }
/// for wrong in [1.000_000_1, 0.0, -0.5, f64::NAN, f64::INFINITY] {
///     let error = Headroom::try_from(wrong).unwrap_err();
///     assert!(error.to_string().starts_with(&format!("{:?} is no headroom", wrong.to_string())), "{error}");
/// }
/// # Ok::<(), bursar::fit::HeadroomError>(())
/// ```
impl TryFrom<f64> for Headroom {
    type Error = HeadroomError;

    fn try_from(fraction: f64) -> Result<Self, HeadroomError> {
        // The shortest digits that mean this number, never with an exponent.
        let text = fraction.to_string();
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(HeadroomError::Malformed { text });
        }
        let digits = text.find('.').map_or(text.len(), |point| text.len().min(point + 1 + DIGITS));
        Ok(text[..digits].parse().unwrap_or(Self(1)))
    }
}

/// The default is seven tenths.
impl Default for Headroom {
    fn default() -> Self {
        Self(700_000)
    }
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ONE => f.pad("1"),
            part => f.pad(format!("0.{part:06}").trim_end_matches('0')),
        }
    }
}

/// The error of a fraction that is not above 0 and at most 1.
///
/// ```
/// use bursar::fit::Headroom;
///
/// let error = Headroom::millionths(0).unwrap_err();
/// assert!(error.to_string().contains("above 0 and at most 1"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeadroomError {
    /// The number is outside the range.
    #[error(
        "a headroom of {millionths} millionths: it is the fraction that may be used, above 0 and at most 1, such as 0.7"
    )]
    Outside {
        /// The number given.
        millionths: u32,
    },
    /// The text is no number in the range, or has more than six digits.
    #[error(
        "{text:?} is no headroom: it is the fraction that may be used, above 0 and at most 1 with up to six digits, such as 0.7"
    )]
    Malformed {
        /// The text given.
        text: String,
    },
}

/// A headroom that is one already needs no conversion.
impl From<std::convert::Infallible> for HeadroomError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Parses `0.7`, `.75`, `1` or `1.0`, exactly.
impl FromStr for Headroom {
    type Err = HeadroomError;

    fn from_str(text: &str) -> Result<Self, HeadroomError> {
        let malformed = || HeadroomError::Malformed { text: text.to_owned() };
        let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
        let digits = fraction.trim_end_matches('0');
        let is_number = (whole.len() + fraction.len() > 0)
            && [whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_number || digits.len() > DIGITS {
            return Err(malformed());
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| malformed())? };
        let part: u64 = format!("{digits:0<6}").parse().map_err(|_| malformed())?;
        let millionths = whole.checked_mul(u64::from(ONE)).and_then(|whole| u32::try_from(whole + part).ok());
        millionths.and_then(|millionths| Self::millionths(millionths).ok()).ok_or_else(malformed)
    }
}
