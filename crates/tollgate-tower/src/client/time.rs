//! Times as headers write them: the three dates of HTTP, RFC 3339, durations such as `6m0s`, and
//! plain numbers that mean one of several things.

use crate::calendar::{MONTHS, WEEKDAYS, days};
use std::time::Duration;

/// The longest text of a time.
const MOST_BYTES: usize = 64;
/// A larger number is not a distance but a Unix time: 31 years.
const EPOCH_FROM: u64 = 1_000_000_000;
/// A larger number is a Unix time in milliseconds.
const EPOCH_MS_FROM: u64 = 1_000_000_000_000;

/// Returns how long after `wall` a time lies, in any of the forms that servers write: zero if it
/// lies before.
///
/// A number is a Unix time in milliseconds above 10^12 and in seconds above 10^9; below, it is the
/// distance in seconds.
pub(super) fn distance(text: &str, wall: Duration) -> Option<Duration> {
    let text = text.trim();
    if text.len() > MOST_BYTES {
        return None;
    }
    if let Some(number) = decimal(text) {
        return Some(match number.as_secs() {
            EPOCH_MS_FROM.. => (number / 1000).saturating_sub(wall),
            EPOCH_FROM.. => number.saturating_sub(wall),
            _ => number,
        });
    }
    if let Some(length) = length(text) {
        return Some(length);
    }
    rfc3339(text).or_else(|| date(text, wall)).map(|at| at.saturating_sub(wall))
}

/// Returns how long after `wall` a `Retry-After` points: its two forms, and seconds with a fraction,
/// which some servers send.
pub(super) fn retry_after(text: &str, wall: Duration) -> Option<Duration> {
    let text = text.trim();
    decimal(text).or_else(|| date(text, wall).map(|at| at.saturating_sub(wall)))
}

/// Reads seconds, with or without a fraction. Negative ones count as zero.
pub(super) fn decimal(text: &str) -> Option<Duration> {
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').map_or((text, "0"), |(whole, rest)| (whole, rest));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || whole.len() > 18 {
        return None;
    }
    let mut nanos = 0;
    for place in 0..9 {
        let digit = fraction.as_bytes().get(place).map_or(0, |byte| u32::from(byte - b'0'));
        nanos = nanos * 10 + digit;
    }
    let number = Duration::new(whole.parse().ok()?, nanos);
    Some(if is_negative { Duration::ZERO } else { number })
}

/// Reads a duration such as `1h2m3.5s` or `20ms`.
fn length(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let end = rest.find(|it: char| !it.is_ascii_digit() && it != '.')?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|it: char| it.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let number = decimal(number)?;
        total = total.checked_add(match unit {
            "d" => number.checked_mul(86_400)?,
            "h" => number.checked_mul(3_600)?,
            "m" | "min" => number.checked_mul(60)?,
            "s" => number,
            "ms" => number / 1_000,
            "us" | "µs" => number / 1_000_000,
            "ns" => number / 1_000_000_000,
            _ => return None,
        })?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

/// Reads an HTTP date in any of its three forms, as time since the Unix epoch. Times before that
/// count as the epoch.
///
/// The zone `UTC` is read as `GMT`, because some servers write it. `wall` decides the century of a
/// two-digit year: if the date would be more than 50 years ahead, it is in the century before.
pub(super) fn date(text: &str, wall: Duration) -> Option<Duration> {
    let text = text.trim();
    if !text.is_ascii() || text.len() > MOST_BYTES {
        return None;
    }
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).take(7).collect();
    let (day, month, year, time) = match words[..] {
        // Sun, 06 Nov 1994 08:49:37 GMT
        [weekday, day, month, year, time, "GMT" | "UTC"] => {
            is_weekday(weekday.strip_suffix(',')?, 3).then_some(())?;
            (digits(day, 2)?, month_of(month)?, digits(year, 4)?, time)
        }
        // Sunday, 06-Nov-94 08:49:37 GMT
        [weekday, date, time, "GMT" | "UTC"] => {
            is_weekday(weekday.strip_suffix(',')?, usize::MAX).then_some(())?;
            let mut parts = date.split('-');
            let day = digits(parts.next()?, 2)?;
            let month = month_of(parts.next()?)?;
            let year = century(digits(parts.next()?, 2)?, wall);
            parts.next().is_none().then_some((day, month, year, time))?
        }
        // Sun Nov  6 08:49:37 1994
        [weekday, month, day, time, year] => {
            is_weekday(weekday, 3).then_some(())?;
            let day = digits(day, day.len().clamp(1, 2))?;
            (day, month_of(month)?, digits(year, 4)?, time)
        }
        _ => return None,
    };
    Some(Duration::from_secs(seconds((year, month, day), clock(time)?)?))
}

/// Reads an RFC 3339 time, as time since the Unix epoch. The seconds may be missing, as Atlassian
/// writes it: `2027-01-15T08:01Z` is the full minute.
fn rfc3339(text: &str) -> Option<Duration> {
    if !text.is_ascii() || text.len() > MOST_BYTES {
        return None;
    }
    let (date, rest) = text.split_at_checked(10)?;
    let mut parts = date.split('-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2)?;
    let day = digits(parts.next()?, 2)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    // Without seconds the sixth character belongs to the zone.
    let has_seconds = rest.as_bytes().get(5) == Some(&b':');
    let (time, rest) = rest.split_at_checked(if has_seconds { 8 } else { 5 })?;
    let time = if has_seconds { clock(time)? } else { clock(&format!("{time}:00"))? };
    let seconds = seconds((year, month, day), time)?;
    let (fraction, zone) = match rest.strip_prefix('.').filter(|_| has_seconds) {
        Some(rest) => rest.split_at(rest.find(|it: char| !it.is_ascii_digit())?),
        None => ("0", rest),
    };
    let fraction = decimal(&format!("0.{fraction}"))?;
    let at = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => seconds,
        (sign @ ("+" | "-"), offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours * 3_600 + minutes * 60;
            if sign == "+" { seconds.saturating_sub(offset) } else { seconds + offset }
        }
        _ => return None,
    };
    Some(Duration::from_secs(at) + fraction)
}

/// Reads `08:49:37` as seconds of the day. A leap second is allowed.
fn clock(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let mut next = |most| parts.next().and_then(|part| digits(part, 2)).filter(|it| *it <= most);
    let seconds = next(23)? * 3_600 + next(59)? * 60 + next(60)?;
    parts.next().is_none().then_some(seconds)
}

/// Reads exactly this many digits.
fn digits(text: &str, count: usize) -> Option<u64> {
    let fits = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}

fn is_weekday(text: &str, letters: usize) -> bool {
    WEEKDAYS.iter().any(|name| &name[..letters.min(name.len())] == text)
}

fn month_of(text: &str) -> Option<u64> {
    let index = MONTHS.iter().position(|name| *name == text)?;
    Some(index as u64 + 1)
}

/// Returns the full year of a two-digit year.
fn century(year: u64, wall: Duration) -> u64 {
    // A year of 365.2425 days is exact enough to find the century.
    let this = 1970 + wall.as_secs() / 31_556_952;
    let year = this - this % 100 + year;
    if year > this + 50 { year - 100 } else { year }
}

/// Returns the Unix time of a date and the seconds of that day; zero before 1970.
fn seconds(date: (u64, u64, u64), of_day: u64) -> Option<u64> {
    let days = days(date)?;
    // OVERFLOW: a year has four digits.
    Some(if date.0 < 1970 { 0 } else { days * 86_400 + of_day })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 6 November 1994, 08:49:37.
    const THEN: u64 = 784_111_777;

    #[test]
    fn dates_of_http_have_three_forms() {
        let wall = Duration::from_secs(1_800_000_000);
        for (text, expected) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(THEN)),
            ("Sun, 06 Nov 1994 08:49:37 UTC", Some(THEN)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(THEN)),
            ("Sun Nov  6 08:49:37 1994", Some(THEN)),
            ("Sun Nov 16 08:49:37 1994", Some(THEN + 864_000)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Wed, 01 Jan 1868 00:00:00 GMT", Some(0)),
            ("Wed, 31 Dec 1969 23:59:59 GMT", Some(0)),
            ("Tue, 29 Feb 2000 00:00:00 GMT", Some(951_782_400)),
            ("Sat, 31 Dec 2016 23:59:60 GMT", Some(1_483_228_800)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(253_402_300_799)),
            // 2027: 76 is 2076, 49 years ahead; 78 is 1978.
            ("Wednesday, 01-Jan-76 00:00:00 GMT", Some(3_345_062_400)),
            ("Sunday, 01-Jan-78 00:00:00 GMT", Some(252_460_800)),
            ("Wed, 29 Feb 2023 00:00:00 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 6 Nov 1994 08:49:37 GMT", None),
            ("Son, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 nov 1994 08:49:37 GMT", None),
            ("Sun, 00 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 24:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 GMT x", None),
            ("Sun, 01 Jan 0000 00:00:00 GMT", None),
            ("", None),
            ("ä", None),
        ] {
            assert_eq!(date(text, wall), expected.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn a_reset_is_guessed_from_its_look() {
        let wall = Duration::from_secs(THEN);
        let epoch = Duration::from_secs(1_700_000_000);
        for (text, now, expected_ms) in [
            ("30", wall, Some(30_000)),
            ("0", wall, Some(0)),
            ("-5", wall, Some(0)),
            ("1.5", wall, Some(1_500)),
            ("999999999", wall, Some(999_999_999_000)),
            ("1700000060", epoch, Some(60_000)),
            ("1700000060.250", epoch, Some(60_250)),
            ("1699999990", epoch, Some(0)),
            ("1700000060000", epoch, Some(60_000)),
            ("2023-11-14T22:14:20Z", epoch, Some(60_000)),
            ("2023-11-14T22:14:20.5Z", epoch, Some(60_500)),
            ("2023-11-15T00:14:20+02:00", epoch, Some(60_000)),
            ("2023-11-14T17:14:20-05:00", epoch, Some(60_000)),
            ("2023-11-14 22:14:20Z", epoch, Some(60_000)),
            ("2023-11-14T22:14Z", epoch, Some(40_000)),
            ("2023-11-15T00:14+02:00", epoch, Some(40_000)),
            ("6m0s", wall, Some(360_000)),
            ("1h2m3.5s", wall, Some(3_723_500)),
            ("20ms", wall, Some(20)),
            ("1d", wall, Some(86_400_000)),
            ("8.64s", wall, Some(8_640)),
            ("Sun, 06 Nov 1994 08:50:37 UTC", wall, Some(60_000)),
            ("2023-11-14T22:14:20", epoch, None),
            ("2023-11-14T22:14:20.Z", epoch, None),
            ("2023-11-14T22:14", epoch, None),
            ("2023-11-14T22:14.5Z", epoch, None),
            ("2023-11-14T22:14:Z", epoch, None),
            ("2023-11-14T22:14:2Z", epoch, None),
            ("2023-11-14T22Z", epoch, None),
            ("2023-11-14T22:60Z", epoch, None),
            ("2023-11-14", epoch, None),
            ("2023-11-14T", epoch, None),
            ("2023-11-14T22:14:20+2:00", epoch, None),
            ("2023-11-14T22:14:20+24:00", epoch, None),
            ("2023-13-14T22:14:20Z", epoch, None),
            ("6x", wall, None),
            ("m", wall, None),
            ("6m0", wall, None),
            ("1e3", wall, None),
            ("0x10", wall, None),
            ("1,5", wall, None),
            ("1234567890123456789", wall, None),
            ("999999999999999999d", wall, None),
            ("soon", wall, None),
            ("", wall, None),
        ] {
            assert_eq!(distance(text, now), expected_ms.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn retry_after_has_two_forms() {
        let wall = Duration::from_secs(THEN);
        for (text, expected_ms) in [
            ("120", Some(120_000)),
            (" 120 ", Some(120_000)),
            ("0", Some(0)),
            ("-1", Some(0)),
            ("2.0", Some(2_000)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60_000)),
            ("Sun Nov  6 08:50:37 1994", Some(60_000)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60_000)),
            ("Sun, 06 Nov 1994 08:48:37 GMT", Some(0)),
            ("6m0s", None),
            ("", None),
            ("+5", None),
        ] {
            assert_eq!(retry_after(text, wall), expected_ms.map(Duration::from_millis), "{text}");
        }
    }
}
