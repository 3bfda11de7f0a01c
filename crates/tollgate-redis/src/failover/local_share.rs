//! The part of a quota that one process has while it decides alone.
//!
//! With share s (one over the number of processes, or a fraction that was configured):
//!
//! | quota | in one process | over all processes |
//! |---|---|---|
//! | rate R of GCRA | R x s, to one part in 10^9 | R x s x N |
//! | burst B of GCRA | floor(B x s), at least 1 | at most max(B x s x N, N) |
//! | limit L of a window | floor(L x s), at least 1 | at most max(L x s x N, N) |
//!
//! So one permit an hour becomes, with eight processes, one every eight hours with a burst of one;
//! but one permit in a window of an hour stays one, and the eight can admit eight. A rate below one
//! in 366 days is raised to that: [`Quota::PERIOD_MAX`].

use crate::FleetSize;
use std::time::Duration;
use tollgate::{Algorithm, Initial, Quota};

/// The unit of a configured fraction.
pub(super) const WHOLE: u64 = 1_000_000_000;

/// Where the share comes from.
#[derive(Clone, Debug)]
pub(super) enum Share {
    /// One over the number of processes.
    Fleet(FleetSize),
    /// So many parts of [`WHOLE`], with a number of processes for [`Bound`](super::Bound).
    Fraction(u64, FleetSize),
}

/// A share as it is at a time: `parts / of`, at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    parts: u64,
    of: u64,
}

impl Share {
    pub(super) fn ratio(&self) -> Ratio {
        match self {
            Self::Fleet(size) => Ratio { parts: 1, of: size.get().into() },
            Self::Fraction(parts, _) => Ratio { parts: *parts, of: WHOLE },
        }
    }

    pub(super) fn processes(&self) -> u64 {
        match self {
            Self::Fleet(size) | Self::Fraction(_, size) => size.get().into(),
        }
    }
}

impl Ratio {
    /// Returns the share of a number that has to stay at least one.
    pub(super) fn of(self, whole: u64) -> u64 {
        self.floor(whole).max(whole.min(1))
    }

    fn floor(self, whole: u64) -> u64 {
        // OVERFLOW: two factors below 2^64; the quotient is at most `whole`.
        let part = u128::from(whole) * u128::from(self.parts) / u128::from(self.of);
        u64::try_from(part).unwrap_or(whole)
    }

    /// Returns the share of a quota.
    pub(super) fn of_quota(self, quota: Quota, algorithm: Algorithm) -> Quota {
        if quota.is_unlimited() || self.parts == self.of {
            return quota;
        }
        let initial = |most: u64| match quota.initial_fill() {
            Initial::Permits(permits) => Initial::Permits(self.floor(permits).min(most)),
            other => other,
        };
        if algorithm != Algorithm::Gcra {
            let limit = self.of(quota.count());
            return Quota::per(limit, quota.period()).initial(initial(limit));
        }
        let (count, period_ns) = self.of_rate(quota.count(), quota.period());
        let burst = self.of(quota.capacity());
        Quota::per(count, Duration::from_nanos(period_ns)).burst(burst).initial(initial(burst))
    }

    /// Returns a count and a period in nanoseconds whose quotient is the share of the rate.
    fn of_rate(self, count: u64, period: Duration) -> (u64, u64) {
        const SECOND: u128 = 1_000_000_000;
        let longest = Quota::PERIOD_MAX.as_nanos();
        let period = period.as_nanos().max(1);
        if count == 0 {
            return (0, u64::try_from(period.min(longest)).unwrap_or(u64::MAX));
        }
        // Over a second or more, half a nanosecond is at most one part in 10^9.
        let times = SECOND.div_ceil(period).max(1);
        // OVERFLOW: a checked quota has count <= period <= 2^55 ns, so both are below 2^56 here; `of`
        // is at most 2^32, so `stretched` is below 2^88.
        let (count, of) = (u128::from(count) * times, u128::from(self.of));
        let parts = u128::from(self.parts);
        let stretched = (period * times * of + parts / 2) / parts;
        let (count, period) = if stretched <= longest {
            (count, stretched)
        } else {
            // The most permits whose time still is a period: count <= longest x rate. OVERFLOW: 2^55 x
            // 2^56, and then `fitting` x `stretched` is at most `longest` x `count`.
            match longest * count / stretched {
                0 => (1, longest),
                fitting => (fitting, (fitting * stretched + count / 2) / count),
            }
        };
        let word = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        (word(count), word(period))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tollgate::store::Policy;

    const HOUR: Duration = Duration::from_secs(3600);

    fn nth(of: u64) -> Ratio {
        Ratio { parts: 1, of }
    }

    #[test]
    fn scales_rate_and_burst() {
        let every = |hours: u32| Quota::one_every(HOUR * hours).burst(1);
        for (row, (quota, of, expected)) in [
            (Quota::per_hour(1), 8, every(8)),
            (Quota::per_second(100).burst(50), 4, Quota::per(100, 4 * HOUR / 3600).burst(12)),
            (
                Quota::per_second(1_000_000_000),
                2,
                Quota::per(1_000_000_000, 2 * HOUR / 3600).burst(500_000_000),
            ),
            (Quota::per_second(5).burst(0), 3, Quota::per(5, 3 * HOUR / 3600).burst(0)),
            (Quota::once(16), 8, Quota::once(2)),
            (Quota::once(3), 8, Quota::once(1)),
            (Quota::per_year(1), 8, Quota::per(1, Quota::PERIOD_MAX).burst(1)),
            (Quota::per_second(7), 1, Quota::per_second(7)),
            (Quota::unlimited(), 9, Quota::unlimited()),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(nth(of).of_quota(quota, Algorithm::Gcra), expected, "row {row}: {quota}");
        }
    }

    #[test]
    fn scales_the_limit_of_a_window_and_not_its_length() {
        for (limit, of, expected) in [(100, 8, 12), (100, 100, 1), (3, 8, 1), (0, 8, 0), (8, 8, 1)]
        {
            for algorithm in &Algorithm::ALL[1..] {
                let scaled = nth(of).of_quota(Quota::per(limit, HOUR), *algorithm);
                assert_eq!(scaled, Quota::per(expected, HOUR), "{limit} over {of}, {algorithm}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_rate_is_right_to_one_in_a_million_and_the_quota_makes_sense(
            period_ns in prop_oneof![1_u64..2_000, 1_u64..2_000_000_000, 1..=366_u64 * 86_400 * 1_000_000_000],
            fill in 0.0_f64..=1.0,
            burst in prop_oneof![1_u64..100, 1..=Quota::BURST_MAX],
            parts in 1..=WHOLE,
            of in prop_oneof![Just(None), (1_u64..=u64::from(u32::MAX)).prop_map(Some)],
        ) {
            let count = ((period_ns as f64 * fill.powi(8)) as u64).clamp(1, period_ns);
            let ratio = of.map_or(Ratio { parts, of: WHOLE }, nth);
            // Bursts refill within 4.5 years; at that border rounding decides.
            let most = (1_u128 << 57) * u128::from(count) / u128::from(period_ns);
            let burst = u128::from(burst).min(most - most / 1000).max(1) as u64;
            let quota = Quota::per(count, Duration::from_nanos(period_ns)).burst(burst);
            let scaled = ratio.of_quota(quota, Algorithm::Gcra);
            prop_assert_eq!(Policy::new("scaled", scaled).err(), Policy::new("whole", quota).err());
            let rate = |quota: &Quota| quota.count() as f64 / quota.period().as_nanos() as f64;
            let expected = rate(&quota) * ratio.parts as f64 / ratio.of as f64;
            let least = 1.0 / Quota::PERIOD_MAX.as_nanos() as f64;
            let expected = expected.max(least);
            let error = (rate(&scaled) / expected - 1.0).abs();
            prop_assert!(error < 1e-6, "{} of {}: {}, off by {}", quota, expected, scaled, error);
        }
    }
}
