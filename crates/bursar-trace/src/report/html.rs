//! Text for a page: escaped, and numbers with their units.

use std::fmt::{self, Display, Write};

/// Text that is escaped, so that it is never taken for markup.
pub(super) struct Escaped<T>(pub(super) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escaper<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Escaper<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|letter| match letter {
                    '&' => self.0.write_str("&amp;"),
                    '<' => self.0.write_str("&lt;"),
                    '>' => self.0.write_str("&gt;"),
                    '"' => self.0.write_str("&quot;"),
                    '\'' => self.0.write_str("&#39;"),
                    letter => self.0.write_char(letter),
                })
            }
        }
        write!(Escaper(f), "{}", self.0)
    }
}

/// A count with separators between the thousands.
pub(super) struct Count(pub(super) u64);

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// A duration given in nanoseconds, in the unit that suits it.
pub(super) struct Nanoseconds(pub(super) f64);

impl Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 1e3 => write!(f, "{ns:.1} ns"),
            ns if ns < 1e6 => write!(f, "{:.2} µs", ns / 1e3),
            ns => write!(f, "{:.2} ms", ns / 1e6),
        }
    }
}

/// Escapes JSON so that it cannot end the script element that contains it.
pub(super) fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_counts_are_grouped() {
        assert_eq!(Escaped("<b a='1'>\"&").to_string(), "&lt;b a=&#39;1&#39;&gt;&quot;&amp;");
        let counts = [0, 999, 1000, 665_078, 1_000_000].map(|count| Count(count).to_string());
        assert_eq!(counts, ["0", "999", "1,000", "665,078", "1,000,000"]);
        assert_eq!([9.96, 1234.0, 2.5e6].map(|ns| Nanoseconds(ns).to_string()), ["10.0 ns", "1.23 µs", "2.50 ms"]);
        assert_eq!(script_safe("\"</script>\u{2028}\""), "\"\\u003c/script>\\u2028\"");
    }
}
