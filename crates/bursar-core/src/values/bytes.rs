//! Sizes in bytes: one type, parsed and printed one way everywhere.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};
use std::str::FromStr;

/// A size in bytes.
///
/// ```
/// use bursar::Bytes;
///
/// let size: Bytes = "1.5GiB".parse()?;
/// assert_eq!(size, Bytes::mib(1536));
/// assert_eq!(size.to_string(), "1.50 GiB");
/// # Ok::<(), bursar::memory::ParseBytesError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);
    /// The largest size that can be represented.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns `n` × 2¹⁰ bytes, or the largest size if that does not fit.
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// Returns `n` × 2²⁰ bytes, or the largest size if that does not fit.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// Returns `n` × 2³⁰ bytes, or the largest size if that does not fit.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the sum, or the largest size if it does not fit.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, or zero if `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the sum; `None` if it does not fit.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Returns the difference; `None` if `other` is larger.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// Returns the product, or the largest size if it does not fit.
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

/// Arithmetic as the standard library has it for integers: what does not fit panics in debug builds and wraps in release
/// builds. Where either is possible, there are [`saturating_add`](Bytes::saturating_add),
/// [`checked_sub`](Bytes::checked_sub) and their like.
///
/// ```
/// use bursar::Bytes;
///
/// let layers: Bytes = [Bytes::gib(1), Bytes::mib(512)].into_iter().sum();
/// assert_eq!(layers * 2 + Bytes::gib(1), Bytes::gib(4));
/// assert_eq!(Bytes::gib(4) / 3, Bytes(1_431_655_765), "rounded down");
/// assert_eq!(Bytes::gib(4) / Bytes::gib(1), 4);
/// ```
impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0 * factor)
    }
}

/// Divides into so many equal parts, rounded down. Panics if there are none.
impl Div<u64> for Bytes {
    type Output = Self;
    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

/// Returns how many times a size goes into another, rounded down. Panics if it is zero.
impl Div for Bytes {
    type Output = u64;
    fn div(self, other: Self) -> u64 {
        self.0 / other.0
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Add::add)
    }
}

impl<'a> Sum<&'a Self> for Bytes {
    fn sum<I: Iterator<Item = &'a Self>>(sizes: I) -> Self {
        sizes.copied().sum()
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

const BINARY: [(&str, u64); 5] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match BINARY.iter().find(|(_, unit)| self.0 >= *unit) {
            Some((name, unit)) if self.0.is_multiple_of(*unit) => format!("{} {name}", self.0 / unit),
            Some((name, unit)) => format!("{:.2} {name}", self.0 as f64 / *unit as f64),
            None => format!("{} B", self.0),
        };
        f.pad(&text)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

/// A size that could not be read.
///
/// ```
/// use bursar::Bytes;
///
/// let error = "ten".parse::<Bytes>().unwrap_err();
/// assert!(error.to_string().contains("1.5GiB"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseBytesError {
    /// Not a number followed by an optional unit.
    #[error("{text:?} is not a size: write 512, 4KiB, 10GB or 1.5GiB")]
    Malformed {
        /// The text.
        text: String,
    },
    /// A number of bytes that is not whole, without a unit that would make it so.
    #[error("{text:?} is a fraction of a byte: write a unit, as in 1.5GiB, or whole bytes, as in 512")]
    Fraction {
        /// The text.
        text: String,
    },
    /// A number of bytes that is more than nothing and less than one.
    #[error("{text:?} is less than a byte")]
    LessThanOne {
        /// The text.
        text: String,
    },
    /// A number larger than 2⁶⁴ − 1 bytes.
    #[error("{text:?} is more than {} bytes", u64::MAX)]
    TooLarge {
        /// The text.
        text: String,
    },
}

/// Reads `512`, `4KiB`, `10GB`, `1.5GiB`: a decimal number and an optional unit, in any case, with optional space.
/// Decimal units (`KB`, `MB`, …) are powers of 1000, binary ones (`KiB`, …) powers of 1024. Of
/// `1.1KiB` the fraction of a byte is dropped; `1.5` bytes are refused, since a unit was forgotten, and so is what comes to less than one.
impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let malformed = || ParseBytesError::Malformed { text: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit_size(unit.trim()).ok_or_else(malformed)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.contains('.') {
            return Err(malformed());
        }
        let bytes = scaled(whole, fraction, unit);
        if fraction.contains(|digit| digit != '0') && (unit == 1 || bytes == Some(0)) {
            let text = text.to_owned();
            return Err(if unit == 1 {
                ParseBytesError::Fraction { text }
            } else {
                ParseBytesError::LessThanOne { text }
            });
        }
        bytes.map(Self).ok_or_else(|| ParseBytesError::TooLarge { text: text.to_owned() })
    }
}

fn unit_size(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "tib" | "t" => 1 << 40,
        "pib" | "p" => 1 << 50,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        _ => return None,
    })
}

/// Returns `whole.fraction × unit`, exactly and rounded down; `None` where it does not fit.
fn scaled(whole: &str, fraction: &str, unit: u64) -> Option<u64> {
    let whole: u64 = whole.parse().ok()?;
    // Eighteen digits are finer than any unit needs; more would overflow the exact arithmetic below.
    let fraction = &fraction[..fraction.len().min(18)];
    let numerator: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let part = numerator * u128::from(unit) / 10u128.pow(fraction.len() as u32);
    u64::try_from(u128::from(whole) * u128::from(unit) + part).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_of_units_that_does_not_fit_is_the_largest_size() {
        for (of, bits) in [(Bytes::kib as fn(u64) -> Bytes, 10), (Bytes::mib, 20), (Bytes::gib, 30)] {
            assert_eq!([of(u64::MAX), of(1 << (64 - bits))], [Bytes::MAX; 2]);
            assert_eq!(of((1 << (64 - bits)) - 1), Bytes(!((1 << bits) - 1)));
        }
    }

    #[test]
    fn sizes_are_read_in_every_documented_form() {
        for (text, bytes) in [
            ("512", 512),
            ("512 b", 512),
            ("4KiB", 4096),
            ("4 kib", 4096),
            ("10GB", 10_000_000_000),
            ("1.5GiB", 3 << 29),
            ("0.1KiB", 102),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for text in ["", "GiB", ".5GiB", "5.", "1.2.3", "-1", "1e9", "4 XiB", "٣"] {
            assert_eq!(text.parse::<Bytes>(), Err(ParseBytesError::Malformed { text: text.to_owned() }));
        }
        for text in ["1.5", "0.5", "1.5 B", "7.000001b"] {
            assert_eq!(text.parse::<Bytes>(), Err(ParseBytesError::Fraction { text: text.to_owned() }));
        }
        for text in ["0.0001KiB", "0.0000000000000000001 PB"] {
            assert_eq!(text.parse::<Bytes>(), Err(ParseBytesError::LessThanOne { text: text.to_owned() }));
        }
        for (text, bytes) in [("1.0", 1), ("0.00 B", 0), ("0.0 KiB", 0), ("0.001KiB", 1), ("1.1KiB", 1126)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["18446744073709551616", "99999999999 PiB", "16384PiB"] {
            assert_eq!(text.parse::<Bytes>(), Err(ParseBytesError::TooLarge { text: text.to_owned() }));
        }
    }

    proptest! {
        #[test]
        fn arithmetic_is_that_of_integers_and_the_checked_kind_says_what_does_not_fit(a: u64, b: u64, n in 1u64..9) {
            let (one, other) = (Bytes(a), Bytes(b));
            prop_assert_eq!(one.checked_add(other), a.checked_add(b).map(Bytes));
            prop_assert_eq!(one.checked_sub(other), a.checked_sub(b).map(Bytes));
            let (less, more) = (one.min(other), one.max(other));
            prop_assert_eq!(less + (more - less), more);
            prop_assert_eq!((one / n) * n + Bytes(a % n), one);
            prop_assert_eq!([less / 2, more / 2].iter().sum::<Bytes>(), less / 2 + more / 2);
            prop_assert_eq!(one / Bytes(n), a / n);
        }

        #[test]
        fn reading_never_panics(text in "\\PC*") {
            let printed = text.parse::<Bytes>().map(|bytes| bytes.to_string());
            prop_assert!(printed.map_or(true, |text| !text.is_empty()));
        }

        #[test]
        fn whole_units_survive_a_round_trip(n in 0u64..1024, unit in 0usize..5) {
            let size = Bytes(n * BINARY[unit].1);
            prop_assert_eq!(size.to_string().parse::<Bytes>(), Ok(size));
        }
    }
}
