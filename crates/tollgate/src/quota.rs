//! How much over which time.

mod text;

pub use text::ParseQuotaError;

use crate::{clock::tick::duration_nanos, error::QuotaError};
use std::time::Duration;

/// How much may pass over which time: a rate and a burst, or a limit and a window.
///
/// One type serves every algorithm. `Quota::per_second(100)` means, under
/// [GCRA](crate::Algorithm::Gcra), "refills at 100 permits a second and holds 100"; under a
/// [window](crate::Algorithm::FixedWindow), "100 in each second".
///
/// The constructors are `const` and never fail: nonsense is found when a limiter is built, or by
/// [`Quota::check`], and named.
///
/// | range | from | to |
/// |---|---|---|
/// | rate | one in 366 days, or zero | 10^9 per second |
/// | burst | 0 (denies all) | 10^15 |
///
/// The long-run rate is kept to one part in 2^63, for rates that do not divide a
/// nanosecond too: 700 million per second, 3 per second, 7 per minute (`tests/limiting/rate.rs`).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// const API: Quota = Quota::per_second(100).burst(250);
/// const LOGIN: Quota = Quota::per(5, Duration::from_secs(900));
/// const HEARTBEAT: Quota = Quota::one_every(Duration::from_secs(60));
///
/// assert_eq!(API.to_string(), "100/s burst 250");
/// assert_eq!("5 per 15min".parse(), Ok(LOGIN));
/// assert_eq!("1/min".parse(), Ok(HEARTBEAT));
/// # Ok::<(), tollgate::ParseQuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    count: u64,
    period_ns: u64,
    burst: Option<u64>,
    initial: Initial,
    unlimited: bool,
}

/// What a fresh limiter holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Initial {
    /// The whole burst, the default: a fresh limiter equals one that was idle for long.
    #[default]
    Full,
    /// Nothing: a restarted process does not get its burst again.
    Empty,
    /// So many permits.
    Permits(u64),
}

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

impl Quota {
    /// The highest rate: 10^9 permits per second, one per tick.
    pub const RATE_MAX_PER_SECOND: u64 = 1_000_000_000;

    /// The longest period: 366 days.
    pub const PERIOD_MAX: Duration = Duration::from_secs(366 * 86_400);

    /// The largest burst: 10^15 permits.
    pub const BURST_MAX: u64 = 1_000_000_000_000_000;

    /// Returns `count` permits each second: `per_second(60)` is sixty a second.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self::of(count, SECOND)
    }

    /// Returns `count` permits each minute.
    #[must_use]
    pub const fn per_minute(count: u64) -> Self {
        Self::of(count, 60 * SECOND)
    }

    /// Returns `count` permits each hour.
    #[must_use]
    pub const fn per_hour(count: u64) -> Self {
        Self::of(count, 3_600 * SECOND)
    }

    /// Returns `count` permits each day of 24 hours.
    #[must_use]
    pub const fn per_day(count: u64) -> Self {
        Self::of(count, DAY)
    }

    /// Returns `count` permits each week of 7 days.
    #[must_use]
    pub const fn per_week(count: u64) -> Self {
        Self::of(count, 7 * DAY)
    }

    /// Returns `count` permits each month of 30 days.
    #[must_use]
    pub const fn per_month(count: u64) -> Self {
        Self::of(count, 30 * DAY)
    }

    /// Returns `count` permits each year of 365 days.
    #[must_use]
    pub const fn per_year(count: u64) -> Self {
        Self::of(count, 365 * DAY)
    }

    /// Returns `count` permits each `period`: the limit and the window of window algorithms.
    #[must_use]
    pub const fn per(count: u64, period: Duration) -> Self {
        Self::of(count, duration_nanos(period))
    }

    /// Returns one permit every `period`, with a burst of one.
    ///
    /// `one_every(60 s)` is one a minute; [`per_second(60)`](Self::per_second) is sixty a second.
    #[must_use]
    pub const fn one_every(period: Duration) -> Self {
        Self::of(1, duration_nanos(period))
    }

    /// Returns a budget of `permits` that never refills: a rate of zero with a burst.
    #[must_use]
    pub const fn once(permits: u64) -> Self {
        Self::of(0, SECOND).burst(permits)
    }

    /// Returns a quota that admits everything and counts nothing.
    #[must_use]
    pub const fn unlimited() -> Self {
        let mut quota = Self::of(0, SECOND);
        quota.unlimited = true;
        quota
    }

    const fn of(count: u64, period_ns: u64) -> Self {
        Self { count, period_ns, burst: None, initial: Initial::Full, unlimited: false }
    }

    /// Sets how many permits can be saved up, by default as many as one period brings.
    ///
    /// A burst of zero denies all. Window algorithms have no burst and refuse a quota with one.
    #[must_use]
    pub const fn burst(mut self, permits: u64) -> Self {
        self.burst = Some(permits);
        self
    }

    /// Removes a burst that was set: a window algorithm then takes the quota.
    #[must_use]
    pub const fn without_burst(mut self) -> Self {
        self.burst = None;
        self
    }

    /// Sets what a fresh limiter holds, by default [`Initial::Full`].
    #[must_use]
    pub const fn initial(mut self, initial: Initial) -> Self {
        self.initial = initial;
        self
    }

    /// Returns how many permits one period brings: the limit of window algorithms.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the period: the window of window algorithms.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    pub(crate) const fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Returns how many permits can be had at once: the burst, or else the count of one period.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.count,
        }
    }

    /// Returns the burst that was set, if one was.
    #[must_use]
    pub const fn explicit_burst(&self) -> Option<u64> {
        self.burst
    }

    /// Returns what a fresh limiter holds.
    #[must_use]
    pub const fn initial_fill(&self) -> Initial {
        self.initial
    }

    /// Returns how many permits a fresh limiter holds.
    pub(crate) const fn initial_permits(&self) -> u64 {
        match self.initial {
            Initial::Full => self.capacity(),
            Initial::Empty => 0,
            Initial::Permits(permits) => permits,
        }
    }

    /// Tells whether a fresh limiter equals one at rest.
    pub(crate) const fn starts_full(&self) -> bool {
        self.unlimited || self.initial_permits() == self.capacity()
    }

    /// Tells whether this quota admits everything.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.unlimited
    }

    /// [`check`](Self::check), and that there is something to count: what an algorithm without a
    /// limiter around it needs.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and if the quota is unlimited.
    pub const fn check_countable(&self) -> Result<(), QuotaError> {
        if self.unlimited { Err(QuotaError::NothingToCount) } else { self.check() }
    }

    /// Checks the rules that hold for every algorithm. Building a limiter does this too.
    ///
    /// # Errors
    ///
    /// Names the value, the rule it breaks, and a way out.
    pub const fn check(&self) -> Result<(), QuotaError> {
        if self.unlimited {
            return if self.burst.is_some() || !matches!(self.initial, Initial::Full) {
                Err(QuotaError::UnlimitedWithMore)
            } else {
                Ok(())
            };
        }
        let period = self.period();
        if self.period_ns == 0 {
            return Err(QuotaError::PeriodZero { count: self.count });
        }
        if self.period_ns > duration_nanos(Self::PERIOD_MAX) {
            return Err(QuotaError::PeriodTooLong { period });
        }
        // One permit per nanosecond is 10^9 per second.
        if self.count > self.period_ns {
            return Err(QuotaError::RateTooHigh { count: self.count, period });
        }
        let burst = self.capacity();
        if burst > Self::BURST_MAX {
            return Err(QuotaError::BurstTooLarge { burst });
        }
        if let Initial::Permits(initial) = self.initial
            && initial > burst
        {
            return Err(QuotaError::InitialAboveBurst { initial, burst });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_name_means_what_it_reads_as() {
        assert_eq!(Quota::per_second(60).count(), 60);
        assert_eq!(Quota::per_second(60).period(), Duration::from_secs(1));
        assert_eq!(Quota::one_every(Duration::from_secs(60)), Quota::per_minute(1));
        assert_eq!(Quota::per_minute(7).capacity(), 7);
        assert_eq!(Quota::once(9).capacity(), 9);
    }

    #[test]
    fn refuses_nonsense_and_says_what_to_do() {
        let day = Duration::from_secs(86_400);
        for (quota, text) in [
            (
                Quota::per(5, Duration::ZERO),
                "5 permits per zero time is not a rate; give a period of at least 1 ns, or use \
                 unlimited",
            ),
            (
                Quota::per(1, 400 * day),
                "the period 34560000s is longer than 366 days; use a shorter period, or a rate of \
                 zero with a burst for a budget that never refills",
            ),
            (
                Quota::per_second(2_000_000_000),
                "2000000000 permits per 1s is above 1000000000 per second; lower the count, or \
                 count in larger units",
            ),
            (
                Quota::per_second(1).burst(u64::MAX),
                "burst 18446744073709551615 is above 1000000000000000; lower it, or count in \
                 larger units",
            ),
            (
                Quota::per_second(1).burst(5).initial(Initial::Permits(6)),
                "initial 6 is above 5, the maximum; lower it, or raise the burst or limit",
            ),
            (
                Quota::unlimited().burst(5),
                "an unlimited quota has no burst and no initial fill; remove them, or give a rate",
            ),
        ] {
            assert_eq!(quota.check().unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn accepts_both_ends_of_the_range() {
        for quota in [
            Quota::per_month(1),
            Quota::per_year(1),
            Quota::per_second(1_000_000_000),
            Quota::per_second(0),
            Quota::once(Quota::BURST_MAX),
            Quota::per_second(5).burst(0),
            Quota::unlimited(),
        ] {
            assert_eq!(quota.check(), Ok(()), "{quota}");
        }
    }
}
