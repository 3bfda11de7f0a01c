//! Dates as HTTP writes them: `Sun, 06 Nov 1994 08:49:37 GMT`.

/// A date as HTTP writes it. Keep one: it is written anew only when the second changes.
#[derive(Clone, Copy, Debug)]
pub struct Date {
    second: u64,
    text: [u8; 29],
}

impl Default for Date {
    fn default() -> Self {
        Self { second: 0, text: *b"Thu, 01 Jan 1970 00:00:00 GMT" }
    }
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// The last second that four digits of year can say.
const LAST: u64 = 253_402_300_799;

impl Date {
    /// Returns the date of a Unix time.
    pub fn text(&mut self, second: u64) -> &[u8] {
        if second != self.second {
            self.write(second.min(LAST));
            self.second = second;
        }
        &self.text
    }

    #[cold]
    fn write(&mut self, second: u64) {
        let (days, time) = (second / 86_400, second % 86_400);
        let (year, month, day) = civil(days);
        let name = DAYS[(days % 7) as usize];
        self.text[..3].copy_from_slice(name.as_bytes());
        self.text[8..11].copy_from_slice(MONTHS[month as usize - 1].as_bytes());
        for (at, number) in [
            (5, day),
            (12, year / 100),
            (14, year % 100),
            (17, time / 3600),
            (20, time / 60 % 60),
            (23, time % 60),
        ] {
            // OVERFLOW: each is below 100.
            self.text[at] = b'0' + (number / 10) as u8;
            self.text[at + 1] = b'0' + (number % 10) as u8;
        }
    }
}

/// Returns year, month and day of so many days after 1970 began. Years are counted from March, so
/// that the leap day is the last.
#[must_use]
pub const fn civil(days: u64) -> (u64, u64, u64) {
    // Days since 1 March of year 0.
    let days = days.saturating_add(719_468);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (second, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(Date::default().text(second), expected.as_bytes(), "{second}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (days, expected) in [
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
            assert_eq!(civil(days), expected, "day {days}");
        }
    }
}
