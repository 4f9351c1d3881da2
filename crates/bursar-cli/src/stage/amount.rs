//! Sizes, given in bytes or as the size of a file.

use bursar::Bytes;
use bursar::memory::ParseBytesError;
use std::fs;
use std::str::FromStr;

/// A size, given in bytes or as the size of a file times a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount(pub(crate) Bytes);

/// Parses `10GiB`, `@FILE` or `@FILE*1.2`. A size times a factor is rounded up.
impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(named) = text.strip_prefix('@') else { return parse_size(text).map(Self) };
        // The name of a file may itself contain a star.
        let (path, factor) = match named.rsplit_once('*') {
            Some((path, factor)) if fs::metadata(named).is_err() => (path, Some(factor)),
            _ => (named, None),
        };
        let size = size_of_file(path).map_err(|error| match factor {
            // No file has either name: the whole may have been meant.
            Some(_) => format!("{error}, nor one called {named:?}"),
            None => error,
        })?;
        let Some(factor) = factor else { return Ok(Self(size)) };
        let product = Factor::parse(factor)?.of(size);
        product.map(Self).ok_or_else(|| format!("{size} times {factor} is more than there can be"))
    }
}

/// Parses a size in bytes.
pub(crate) fn parse_size(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error: ParseBytesError| error.to_string())
}

fn size_of_file(path: &str) -> Result<Bytes, String> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(format!("{path:?} is no plain file, so it has no size")),
        Ok(found) if found.len() == 0 => Err(format!("the file {path:?} is empty: write 0 if nothing is needed")),
        Ok(found) => Ok(Bytes(found.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("there is no file {path:?}: write 10GiB, @FILE or @FILE*1.2"))
        }
        Err(error) => Err(format!("the file {path:?} cannot be looked at: {error}")),
    }
}

/// A decimal number, exact.
#[derive(Clone, Copy, Debug)]
struct Factor {
    numerator: u64,
    denominator: u64,
}

impl Factor {
    /// The most digits before and behind the point, so that the numerator fits into 64 bits.
    const DIGITS_MAX: usize = 9;

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || (number.contains('.') && !is_digits(fraction)) {
            return Err(format!("the factor {text:?} is no number of the form 2 or 1.25"));
        }
        let most = Self::DIGITS_MAX;
        if whole.len() > most || fraction.len() > most {
            return Err(format!("the factor {text:?} has more than {most} digits before or behind the point"));
        }
        let unreadable = |_| format!("the factor {text:?} is too large");
        let numerator = format!("{whole}{fraction}").parse().map_err(unreadable)?;
        Ok(Self { numerator, denominator: 10u64.pow(fraction.len() as u32) })
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
        fs::create_dir_all(&folder).expect("a temporary folder");
        let (plain, starred) = (folder.join("weights"), folder.join("weights*3"));
        fs::write(&plain, [0; 1001]).expect("room");
        let empty = folder.join("empty");
        fs::write(&empty, []).expect("room");
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
        fs::write(&starred, [0; 7]).expect("room");
        assert_eq!(read(&format!("@{plain}*3")), Ok(7), "a file of that name comes first");
        for (text, said) in [
            (format!("@{plain}*x"), "the factor \"x\" is no number"),
            (format!("@{plain}*-1"), "the factor \"-1\" is no number"),
            (format!("@{plain}*1e3"), "the factor \"1e3\" is no number"),
            (format!("@{plain}*"), "the factor \"\" is no number"),
            (format!("@{plain}*1."), "the factor \"1.\" is no number"),
            (format!("@{plain}*.5"), "the factor \".5\" is no number"),
            (format!("@{plain}*1,5"), "the factor \"1,5\" is no number"),
            (format!("@{plain}*1.0000000001"), "more than 9 digits"),
            (format!("@{plain}*9999999999"), "more than 9 digits"),
            ("@".to_owned(), "there is no file \"\""),
            ("@no/file*2".to_owned(), "there is no file \"no/file\""),
            ("@no/file*x".to_owned(), "nor one called \"no/file*x\""),
            (format!("@{}", folder.display()), "is no plain file"),
            (format!("@{}", empty.display()), "is empty"),
            (format!("@{}*2", empty.display()), "is empty"),
            ("0.5".to_owned(), "a fraction of a byte"),
            ("0.0001KiB".to_owned(), "less than a byte"),
            ("ten".to_owned(), "1.5GiB"),
            ("-1".to_owned(), "1.5GiB"),
        ] {
            let error = read(&text).expect_err(&text);
            assert!(error.contains(said), "{text}: {error}");
        }
        for zero in ["0", "0GiB", "0.0"] {
            assert_eq!(read(zero), Ok(0), "nothing is a size");
        }
        let large = fs::OpenOptions::new().write(true).create(true).truncate(true).open(folder.join("large"));
        large.and_then(|file| file.set_len(1 << 40)).expect("a file with a hole");
        let large = format!("@{}*999999999", folder.join("large").display());
        assert!(read(&large).expect_err("large").contains("more than there can be"));
        fs::remove_dir_all(folder).expect("it was made");
    }
}
