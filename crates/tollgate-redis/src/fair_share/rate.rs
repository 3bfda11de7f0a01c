//! Rates in millionths of a permit per second.

use std::{fmt, iter::Sum};

/// A rate: millionths of a permit per second, an integer.
///
/// Shares are fractions, and the script and this crate must agree on them to the last digit, so
/// both count in millionths.
///
/// # Examples
///
/// ```
/// use tollgate_redis::Rate;
///
/// assert_eq!(Rate::per_second(120).as_micros(), 120_000_000);
/// assert_eq!(Rate::from_micros(500_000).to_string(), "0.5/s");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

const MICROS: u64 = 1_000_000;

impl Rate {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// The highest rate that can be shared: 10^9 permits per second, as in a
    /// [`Quota`](tollgate::Quota).
    pub const MAX: Self = Self(1_000_000_000 * MICROS);

    /// Returns a rate of whole permits per second. A rate above [`Rate::MAX`] is rejected where it
    /// is used.
    #[must_use]
    pub const fn per_second(permits: u64) -> Self {
        Self(permits.saturating_mul(MICROS))
    }

    /// Returns a rate in millionths of a permit per second.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the millionths of a permit per second.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the permits per second.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / MICROS as f64
    }

    /// Returns this rate divided by `by`, rounded down; a divisor of zero counts as one.
    pub(super) fn split(self, by: u32) -> Self {
        Self(self.0 / u64::from(by.max(1)))
    }
}

impl Sum for Rate {
    /// Adds rates, saturating at the largest number.
    fn sum<I: Iterator<Item = Self>>(rates: I) -> Self {
        Self(rates.fold(0, |sum, rate| sum.saturating_add(rate.0)))
    }
}

impl fmt::Display for Rate {
    /// Writes permits per second with as many decimals as they need, for example `0.5/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / MICROS, self.0 % MICROS);
        if rest == 0 {
            return write!(f, "{whole}/s");
        }
        let digits = format!("{rest:06}");
        write!(f, "{whole}.{}/s", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_is() {
        for (micros, text) in [(0, "0/s"), (1, "0.000001/s"), (69_693_877, "69.693877/s")] {
            assert_eq!(Rate::from_micros(micros).to_string(), text);
        }
        assert_eq!(Rate::per_second(u64::MAX).as_micros(), u64::MAX);
    }
}
