//! Dates as HTTP writes them: `Sun, 06 Nov 1994 08:49:37 GMT`.

use crate::calendar::{MONTHS, WEEKDAYS, civil};

/// A date as HTTP writes it. Keep one and reuse it: the text is written again only when the second
/// changes.
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

/// The last second whose year has four digits.
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
        let name = WEEKDAYS[(days % 7) as usize];
        self.text[..3].copy_from_slice(&name.as_bytes()[..3]);
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
}
