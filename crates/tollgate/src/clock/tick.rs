//! `Tick`, the instant of this crate.

use std::{fmt, time::Duration};

/// An instant: nanoseconds since the origin of a [`Clock`](crate::Clock), an integer.
///
/// Ticks of different clocks have nothing to do with each other. A limiter counts the first
/// 11.4 years after the origin ([`Tick::HORIZON`]); later ticks count as that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

impl Tick {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// The last tick there is, 584 years after the origin.
    pub const MAX: Self = Self(u64::MAX);

    /// The last tick that limiters tell apart: 5 x 2^56 ns, 11.4 years after the origin.
    ///
    /// A state word holds so many nanoseconds at the finest resolution, and no more.
    pub const HORIZON: Self = Self(5 << 56);

    /// Returns the tick that lies `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the tick that lies `micros` microseconds after the origin, at most [`Tick::MAX`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Returns the tick that lies `millis` milliseconds after the origin, at most [`Tick::MAX`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the tick that lies `secs` seconds after the origin, at most [`Tick::MAX`].
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the tick `later` after this one, at most [`Tick::MAX`].
    #[must_use]
    pub const fn saturating_add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(duration_nanos(later)))
    }

    /// Returns the tick `earlier` before this one, at least the origin.
    #[must_use]
    pub const fn saturating_sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(duration_nanos(earlier)))
    }

    /// Returns how long after `earlier` this tick lies; zero if it does not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Tick {
    /// Writes seconds with as many decimals as they need, for example `1.5s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from_nanos(self.0), f)
    }
}

/// Returns a duration in nanoseconds; anything above 584 years counts as `u64::MAX`.
pub(crate) const fn duration_nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_both_ends() {
        let second = Duration::from_secs(1);
        assert_eq!(Tick::ZERO.saturating_sub(second), Tick::ZERO);
        assert_eq!(Tick::MAX.saturating_add(Duration::MAX), Tick::MAX);
        assert_eq!(Tick::from_secs(u64::MAX), Tick::MAX);
        assert_eq!(Tick::from_secs(3).since(Tick::from_secs(1)), 2 * second);
        assert_eq!(Tick::from_secs(1).since(Tick::from_secs(3)), Duration::ZERO);
    }

    #[test]
    fn prints_as_a_duration() {
        assert_eq!(Tick::from_millis(1500).to_string(), "1.5s");
    }
}
