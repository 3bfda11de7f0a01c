//! Times as they are written in configuration files and flags: `500ms`, `30s`, `5m`, `1h30m`, `7d`.

use std::{fmt, time::Duration};

/// Unit names; `m` is a minute.
const UNITS: [(u64, &[&str]); 8] = [
    (604_800_000_000_000, &["w", "week", "weeks"]),
    (86_400_000_000_000, &["d", "day", "days"]),
    (3_600_000_000_000, &["h", "hour", "hours"]),
    (60_000_000_000, &["m", "min", "minute", "minutes"]),
    (1_000_000_000, &["s", "sec", "second", "seconds"]),
    (1_000_000, &["ms"]),
    (1_000, &["us", "µs"]),
    (1, &["ns"]),
];

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDuration {
    text: String,
    unit_missing: bool,
}

impl fmt::Display for NoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, unit_missing } = self;
        match unit_missing {
            true => write!(f, "'{text}' has no unit; write {text}s, {text}m or {text}ms"),
            false => {
                write!(f, "'{text}' is not a duration; write for example 500ms, 30s, 5m, 2h, 7d")
            }
        }
    }
}

impl std::error::Error for NoDuration {}

/// Reads a duration: numbers with units, such as `30s` or `1h30m`. The unit `m` is a minute. Zero
/// needs no unit.
///
/// # Errors
///
/// When the text is none, or is longer than 584 years.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_server::config::parse_duration;
///
/// assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
/// assert!(parse_duration("5").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, NoDuration> {
    let text = text.trim();
    let wrong = |unit_missing| NoDuration { text: super::tree::shown(text), unit_missing };
    if text.is_empty() {
        return Err(wrong(false));
    }
    if text.chars().all(|c| c.is_ascii_digit()) {
        return if text.chars().all(|c| c == '0') { Ok(Duration::ZERO) } else { Err(wrong(true)) };
    }
    let (mut rest, mut sum) = (text, 0_u64);
    while !rest.is_empty() {
        let (part, after) = part(rest).ok_or_else(|| wrong(false))?;
        sum = sum.checked_add(part).ok_or_else(|| wrong(false))?;
        rest = after.trim_start();
    }
    Ok(Duration::from_nanos(sum))
}

/// Takes one number and its unit off the front. Returns nanoseconds, and what follows.
fn part(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..end].parse().ok()?;
    let rest = text[end..].trim_start();
    let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    let (unit, _) = UNITS.iter().find(|(_, names)| names.contains(&&rest[..end]))?;
    Some((number.checked_mul(*unit)?, &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations_and_says_what_is_missing() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        for (text, duration) in [
            ("500ms", ms(500)),
            ("30s", s(30)),
            ("5m", s(300)),
            ("5min", s(300)),
            ("2 hours", s(7200)),
            ("1h30m", s(5400)),
            ("7d", s(7 * 86_400)),
            ("1w 1d", s(8 * 86_400)),
            ("250us", Duration::from_micros(250)),
            ("0", Duration::ZERO),
            ("0s", Duration::ZERO),
        ] {
            assert_eq!(parse_duration(text), Ok(duration), "{text}");
        }
        for (text, error) in [
            ("30", "'30' has no unit; write 30s, 30m or 30ms"),
            ("", "'' is not a duration; write for example 500ms, 30s, 5m, 2h, 7d"),
            ("soon", "'soon' is not a duration; write for example 500ms, 30s, 5m, 2h, 7d"),
            ("1.5s", "'1.5s' is not a duration; write for example 500ms, 30s, 5m, 2h, 7d"),
            ("-1s", "'-1s' is not a duration; write for example 500ms, 30s, 5m, 2h, 7d"),
            ("5M", "'5M' is not a duration; write for example 500ms, 30s, 5m, 2h, 7d"),
            ("9999999w", "'9999999w' is not a duration; write for example 500ms, 30s, 5m, 2h, 7d"),
        ] {
            assert_eq!(parse_duration(text).unwrap_err().to_string(), error);
        }
    }
}
