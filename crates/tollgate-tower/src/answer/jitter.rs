//! Waits that differ a little, so that refused clients do not all come back at once.

use std::{fmt, time::Duration};

/// By how much a wait is lengthened at random: up to a share of the policy's window.
///
/// A wait is never shortened. Where a policy has no window, the share is of the wait itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    percent: u8,
}

/// The error for an invalid jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitterError {
    percent: u8,
}

impl JitterError {
    /// Returns the code, which never changes: `TG-A03`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "TG-A03"
    }

    /// Returns where the documentation explains it: a page and an anchor.
    #[must_use]
    pub const fn docs(&self) -> &'static str {
        docs!("http.md#tg-a03")
    }
}

impl fmt::Display for JitterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { percent } = self;
        write!(f, "a jitter of {percent} % is longer than the window; give 0 to 100, such as 10")?;
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for JitterError {}

impl Jitter {
    /// No jitter, the default.
    pub const NONE: Self = Self { percent: 0 };

    /// Returns a jitter of up to this percentage of the window.
    ///
    /// # Errors
    ///
    /// If `percent` is above 100.
    pub const fn percent_of_window(percent: u8) -> Result<Self, JitterError> {
        if percent > 100 { Err(JitterError { percent }) } else { Ok(Self { percent }) }
    }

    /// Returns the time by which a wait is lengthened.
    pub(super) fn of(self, window: Duration, random: impl FnOnce() -> u64) -> Duration {
        if self.percent == 0 {
            return Duration::ZERO;
        }
        // OVERFLOW: nanoseconds of a `Duration` are below 2^94, a percentage is below 2^7; the
        // quotient is below 2^64, as is the random number.
        let most = window.as_nanos() * u128::from(self.percent) / 100;
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let share = (u128::from(most) * u128::from(random())) >> 64;
        Duration::from_nanos(share as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_in_proportion_to_window_and_chance() {
        let minute = Duration::from_secs(60);
        for (percent, window, random, expected_ns) in [
            (0, minute, u64::MAX, 0),
            (10, minute, 0, 0),
            (10, minute, 1 << 63, 3_000_000_000),
            (10, minute, u64::MAX, 5_999_999_999),
            (100, minute, u64::MAX, 59_999_999_999),
            (100, Duration::ZERO, u64::MAX, 0),
            (100, Duration::MAX, u64::MAX, u64::MAX - 1),
        ] {
            let jitter = Jitter::percent_of_window(percent).unwrap();
            let extra = jitter.of(window, || random);
            assert_eq!(extra, Duration::from_nanos(expected_ns), "{percent} % of {window:?}");
        }
    }

    #[test]
    fn refuses_more_than_a_window() {
        let error = Jitter::percent_of_window(101).unwrap_err();
        let text = "a jitter of 101 % is longer than the window; give 0 to 100, such as 10";
        assert_eq!(error.to_string(), format!("{text} (TG-A03, see {})", error.docs()));
    }
}
