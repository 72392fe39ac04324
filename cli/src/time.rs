//! Dates, in UTC, and the time that passes.

use std::time::{Duration, Instant, SystemTime};

use client::Time;

/// The real clock, for measurements.
#[allow(clippy::disallowed_methods, reason = "a program that measures reads the real clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// The time since 1970 by the clock of this host.
pub fn since_1970() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "tokens and certificates have a real expiry")]
    let now = SystemTime::now();
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// That many days.
pub fn days(days: u32) -> Duration {
    Duration::from_hours(24 * u64::from(days))
}

/// The date of a time since 1970, as [`date`] writes it.
pub fn date_of(since_1970: Duration) -> String {
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    date(Time { seconds, nanos: 0 })
}

/// `2026-01-31 23:59:58`, in UTC.
pub fn date(time: Time) -> String {
    let (days, seconds) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a day counted from 1970, in the Gregorian calendar.
///
/// Years are counted from March here, so that the leap day is a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    const DAYS_FROM_0000_03_01: i64 = 719_468;
    let days = i128::from(days) + i128::from(DAYS_FROM_0000_03_01);
    let cycle = days.div_euclid(DAYS_OF_400_YEARS.into()) as i64;
    let day = days.rem_euclid(DAYS_OF_400_YEARS.into()) as i64;
    // Leap days before: one in 4 years, none in 100.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, again and again: 153 days in five months.
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (cycle * 400 + year + next_year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let of = |seconds| date(Time { seconds, nanos: 0 });
        assert_eq!(of(0), "1970-01-01 00:00:00");
        assert_eq!(of(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(of(951_868_799), "2000-02-29 23:59:59");
        assert_eq!(of(1_798_761_599), "2026-12-31 23:59:59");
        assert_eq!(of(-1), "1969-12-31 23:59:59");
        assert_eq!(of(-2_203_891_200), "1900-03-01 00:00:00");
        assert_eq!(of(4_107_542_400), "2100-03-01 00:00:00");
        of(i64::MAX);
        of(i64::MIN);
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = civil(-200_000);
        for day in -199_999..200_000 {
            let (year, month, day_of_month) = civil(day);
            let (last_year, last_month, last_day) = last;
            let same_month = (year, month, day_of_month) == (last_year, last_month, last_day + 1);
            let next_month = day_of_month == 1
                && ((year, month) == (last_year, last_month + 1)
                    || (year, month, last_month) == (last_year + 1, 1, 12));
            assert!(same_month || next_month, "{last:?} {:?}", (year, month, day_of_month));
            last = (year, month, day_of_month);
        }
    }
}
