//! Times of the civil calendar, without a calendar library.

use super::text::{decimal, padded};
use std::time::{SystemTime, UNIX_EPOCH};

const MICROS_A_SECOND: u64 = 1_000_000;
const SECONDS_A_DAY: u64 = 86_400;

/// A time, in microseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timestamp(pub(super) u64);

impl Timestamp {
    /// Returns the current time; 1970 where the clock was set before that.
    #[inline]
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// Appends `HH:MM:SS.micros`.
    pub(super) fn push_time_of_day(self, out: &mut Vec<u8>) {
        let second = self.0 / MICROS_A_SECOND % SECONDS_A_DAY;
        padded(out, second / 3600, 2);
        out.push(b':');
        padded(out, second / 60 % 60, 2);
        out.push(b':');
        padded(out, second % 60, 2);
        out.push(b'.');
        padded(out, self.0 % MICROS_A_SECOND, 6);
    }

    /// Appends `YYYY-MM-DDTHH:MM:SS.microsZ`, as RFC 3339 has it.
    pub(super) fn push_rfc3339(self, out: &mut Vec<u8>) {
        let (year, month, day) = civil(self.0 / MICROS_A_SECOND / SECONDS_A_DAY);
        if year > 9999 {
            decimal(out, year);
        } else {
            padded(out, year, 4);
        }
        out.push(b'-');
        padded(out, month, 2);
        out.push(b'-');
        padded(out, day, 2);
        out.push(b'T');
        self.push_time_of_day(out);
        out.push(b'Z');
    }
}

/// Returns the year, month and day that is `days` after the first of January 1970.
///
/// Years are counted from the first of March, so that a leap day is the last of its year, and grouped by four hundred,
/// which all have as many days.
const fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    const FROM_MARCH_OF_YEAR_0: u64 = 719_468;
    let days = days + FROM_MARCH_OF_YEAR_0;
    let (era, day) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(push: fn(Timestamp, &mut Vec<u8>), micros: u64) -> String {
        let mut out = Vec::new();
        push(Timestamp(micros), &mut out);
        String::from_utf8(out).expect("digits")
    }

    #[test]
    fn g1_times_are_those_of_the_calendar() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_794_712_200_000_001, "2026-11-15T03:10:00.000001Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
            (253_402_300_800_000_000, "10000-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(shown(Timestamp::push_rfc3339, micros), expected);
        }
        assert_eq!(shown(Timestamp::push_time_of_day, 1_794_712_200_000_001), "03:10:00.000001");
    }

    #[test]
    fn g1_every_day_follows_the_one_before() {
        let length = |year: u64, month| match month {
            2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(civil(days), (year, month, day));
            day += 1;
            if day > length(year, month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }
}
