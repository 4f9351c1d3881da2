//! Formats moments and durations.

use std::time::SystemTime;

/// Formats a moment by RFC 3339, in UTC and whole seconds.
pub(crate) fn utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the year, month and day so many days after 1 January 1970. Years are counted from March, so that a leap day
/// comes last.
fn date(days: u64) -> (u64, u64, u64) {
    const CYCLE: u64 = 146_097; // the days of 400 years
    let days = days + 719_468; // since 1 March of the year 0
    let (cycle, day) = (days / CYCLE, days % CYCLE);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (400 * cycle + year + u64::from(month <= 2), month, day)
}

/// Formats a duration in its largest unit.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right_around_leap_days_and_centuries() {
        let shown = |seconds| utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(shown(0), "1970-01-01T00:00:00Z");
        assert_eq!(shown(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(shown(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(shown(1_709_210_096), "2024-02-29T12:34:56Z");
        assert_eq!(shown(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(shown(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn ages_are_in_the_unit_that_says_most() {
        assert_eq!([5, 120, 7199, 7200, 200_000].map(age), ["5 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
