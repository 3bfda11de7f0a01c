//! Durations for people to read.

use std::{fmt, time::Duration};

/// Prints a duration exactly, in days, hours and minutes where it is long: `1h30min`, `1.5s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

const LONG_UNITS: [(u64, &str); 3] = [(86_400, "day"), (3_600, "h"), (60, "min")];

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(duration) = self;
        if duration.is_zero() {
            return f.write_str("0s");
        }
        if duration.as_secs() < 60 {
            return write!(f, "{duration:?}");
        }
        let mut secs = duration.as_secs();
        for (unit, name) in LONG_UNITS {
            if secs >= unit {
                write!(f, "{}{name}", secs / unit)?;
                secs %= unit;
            }
        }
        match Duration::new(secs, duration.subsec_nanos()) {
            Duration::ZERO => Ok(()),
            rest => write!(f, "{rest:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_durations_are_not_counted_in_seconds() {
        for (duration, text) in [
            (Duration::ZERO, "0s"),
            (Duration::from_millis(1500), "1.5s"),
            (Duration::from_secs(59), "59s"),
            (Duration::from_secs(60), "1min"),
            (Duration::from_millis(90_500), "1min30.5s"),
            (Duration::from_secs(5400), "1h30min"),
            (Duration::from_secs(30 * 86_400), "30day"),
        ] {
            assert_eq!(Span(duration).to_string(), text);
        }
    }
}
