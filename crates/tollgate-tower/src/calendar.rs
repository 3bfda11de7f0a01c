//! The calendar: days since 1970, and their dates.
//!
//! Years are counted from March, so that the leap day is the last of its year. 719 468 days lie
//! between 1 March of year 0 and the epoch.

const EPOCH: u64 = 719_468;

/// The days of the week, the first being that of the epoch.
pub(crate) const WEEKDAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The months, spelled as in HTTP dates.
pub(crate) const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns year, month and day of the date this many days after 1 January 1970.
#[must_use]
pub const fn civil(days: u64) -> (u64, u64, u64) {
    let days = days.saturating_add(EPOCH);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    // OVERFLOW: an era has 146,097 days, and far fewer years.
    if month < 10 {
        (era * 400 + year, month + 3, day)
    } else {
        (era * 400 + year + 1, month - 9, day)
    }
}

/// Returns how many days after 1 January 1970 a date of a year with four digits lies; zero if it
/// lies before, `None` if there is no such date.
pub(crate) fn days((year, month, day): (u64, u64, u64)) -> Option<u64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if day == 0 || day > length || year > 9999 {
        return None;
    }
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    // OVERFLOW: a year has four digits, so the days are below 4 million.
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some(days.saturating_sub(EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (number, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_723, (2024, 1, 1)),
            (20_088, (2024, 12, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(number), date, "day {number}");
            assert_eq!(days(date), Some(number), "{date:?}");
        }
    }

    #[test]
    fn each_day_of_400_years_has_a_date_and_the_other_way_round() {
        for number in 0..146_097 {
            assert_eq!(days(civil(number)), Some(number));
        }
        assert_eq!(days(civil(2_932_896)), Some(2_932_896), "the last day of 9999");
    }

    #[test]
    fn there_are_dates_that_are_none() {
        for date in [(2023, 2, 29), (2100, 2, 29), (2024, 4, 31), (2024, 13, 1), (2024, 0, 1)] {
            assert_eq!(days(date), None, "{date:?}");
        }
        assert_eq!(days((1969, 12, 31)), Some(0), "before the epoch");
        assert_eq!((days((2024, 1, 0)), days((10_000, 1, 1))), (None, None));
    }
}
