//! Sizes that may be those of files.

use bursar::{Bytes, fit::file_size};
use std::str::FromStr;

/// A size: given, or that of a file times a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount(pub(crate) Bytes);

/// Reads `10GiB`, `@FILE` or `@FILE*1.2`. What a factor makes of a size is rounded up.
impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(named) = text.strip_prefix('@') else {
            return text.parse().map(Self).map_err(|error: bursar::ParseBytesError| error.to_string());
        };
        // The name of a file may hold a star itself.
        let starred = named.rsplit_once('*').and_then(|(path, factor)| Some((path, Factor::parse(factor)?)));
        let (path, factor) = match starred {
            Some(starred) if file_size(named).is_none() => starred,
            _ => (named, Factor::ONE),
        };
        let size =
            file_size(path).ok_or_else(|| format!("there is no file {path:?}: write 10GiB, @FILE or @FILE*1.2"))?;
        factor.of(size).map(Self).ok_or_else(|| format!("{size} times {named:?} is more than there can be"))
    }
}

/// A decimal number, exactly.
#[derive(Clone, Copy, Debug)]
struct Factor {
    numerator: u64,
    denominator: u64,
}

impl Factor {
    const ONE: Self = Self { numerator: 1, denominator: 1 };
    /// More digits would not make a size of memory any clearer.
    const DIGITS_MAX: usize = 9;

    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
        let digits = format!("{whole}{fraction}");
        let is_number = !whole.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let is_short = digits.len() <= 2 * Self::DIGITS_MAX && fraction.len() <= Self::DIGITS_MAX;
        let numerator = digits.parse().ok().filter(|_| is_number && is_short)?;
        Some(Self { numerator, denominator: 10u64.pow(fraction.len() as u32) })
    }

    fn of(self, bytes: Bytes) -> Option<Bytes> {
        let product = u128::from(bytes.get()) * u128::from(self.numerator);
        u64::try_from(product.div_ceil(u128::from(self.denominator))).ok().map(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f6_a_file_s_size_is_taken_times_a_factor() {
        let folder = std::env::temp_dir().join(format!("bursar-amount-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let (plain, starred) = (folder.join("weights"), folder.join("weights*3"));
        std::fs::write(&plain, [0; 1001]).expect("room");
        let read = |text: &str| text.parse::<Amount>().map(|amount| amount.0.get());
        let plain = plain.to_str().expect("a plain name");
        for (text, expected) in [
            ("4KiB".to_owned(), 4096),
            (format!("@{plain}"), 1001),
            (format!("@{plain}*2"), 2002),
            (format!("@{plain}*1.5"), 1502),
            (format!("@{plain}*3"), 3003),
            (format!("@{plain}*0"), 0),
        ] {
            assert_eq!(read(&text), Ok(expected), "{text}");
        }
        std::fs::write(&starred, [0; 7]).expect("room");
        assert_eq!(read(&format!("@{plain}*3")), Ok(7), "a file of that name comes first");
        for text in [
            format!("@{plain}*x"),
            format!("@{plain}*-1"),
            format!("@{plain}*1e3"),
            "@".to_owned(),
            "@no/file*2".to_owned(),
        ] {
            assert!(read(&text).expect_err(&text).contains("there is no file"), "{text}");
        }
        assert!(read(&format!("@{plain}*999999999999999999")).expect_err("large").contains("more than there can be"));
        assert!(read("ten").expect_err("no size").contains("1.5GiB"));
        std::fs::remove_dir_all(folder).expect("it was made");
    }
}
