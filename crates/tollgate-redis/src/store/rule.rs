//! A policy in the form for scripts: whole numbers of microseconds, in exact fractions.
//!
//! Lua has doubles only, and they are exact up to 2^53. So nothing is rounded: the time of one
//! permit is a fraction `p/c` of microseconds, and a script counts the booked time as whole
//! microseconds plus `n/c`. All of these are integers that a double holds.
//!
//! A state in Redis holds that time as microseconds and 9000ths of one (ninths of a nanosecond),
//! for any quota. `c` is a multiple of 9000 (or above 10^8 and finer anyway), so quotas whose
//! permits last whole ninths read each other's states exactly. If a permit of the old or the new
//! quota does not, the new quota rounds the state up once, by less than a ninth of a nanosecond.

use tollgate::{Algorithm, Initial, Quota, store::StoreError};

/// The kind of a key's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gcra,
    Fixed,
    Anchored,
    Counter,
    Log,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Gcra, Self::Fixed, Self::Anchored, Self::Counter, Self::Log];

    /// Returns the letter by which scripts and keys name it.
    pub(crate) const fn letter(self) -> u8 {
        match self {
            Self::Gcra => b'g',
            Self::Fixed => b'f',
            Self::Anchored => b'a',
            Self::Counter => b'c',
            Self::Log => b'l',
        }
    }

    /// Returns how many bytes of state a reply has.
    pub(crate) const fn shown(self) -> usize {
        match self {
            Self::Gcra | Self::Fixed | Self::Anchored => 16,
            Self::Counter => 24,
            Self::Log => 32,
        }
    }

    pub(crate) const fn is_gcra(self) -> bool {
        matches!(self, Self::Gcra)
    }

    const fn of(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::Gcra => Some(Self::Gcra),
            Algorithm::FixedWindow => Some(Self::Fixed),
            Algorithm::AnchoredWindow => Some(Self::Anchored),
            Algorithm::SlidingCounter => Some(Self::Counter),
            Algorithm::SlidingLog => Some(Self::Log),
            _ => None,
        }
    }
}

/// One quota by one algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) kind: Kind,
    /// The burst, or the limit of a window.
    pub(crate) limit: u64,
    /// One permit takes p/c microseconds.
    pub(crate) p: u128,
    pub(crate) c: u128,
    /// The length of a window in microseconds.
    pub(crate) length: u64,
    /// Since when it is in force, in microseconds since the Unix epoch. An older state under GCRA that is
    /// booked further ahead than the burst counts as if it had been empty then. Zero: no state is older.
    pub(crate) since: u64,
    /// How long a state matters, in milliseconds, in digits.
    pub(crate) ttl: String,
}

/// The largest burst, in microseconds to refill: a hundred years.
const BURST_MAX: u128 = 100 * 366 * 86_400 * 1_000_000;
/// Ninths of a nanosecond in a microsecond.
const NINTHS: u128 = 9000;
/// The finest fraction of a microsecond: scripts convert it to 9000ths and back by doubles.
const FRACTION_MAX: u128 = 1 << 40;
/// The largest count that scripts add up.
const COUNT_MAX: u64 = 1 << 46;

/// More than any script counts up to.
const CHARGE_MAX: u64 = 1 << 51;

/// The largest limit of a log: one entry of a list for each permit, all of which may be rewritten
/// when one is given back.
const LOG_MAX: u64 = 1 << 15;

/// The numbers that a script gets with a call, as doubles.
pub(crate) type Parameters = Vec<u8>;

fn packed(numbers: &[u128]) -> Parameters {
    // Every number here is below 2^53, or is meant to be rounded.
    numbers.iter().flat_map(|number| (*number as f64).to_le_bytes()).collect()
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Rule {
    /// Returns the rule of a quota that is in force since a time, in microseconds since the Unix epoch;
    /// zero if it came with the call.
    pub(crate) fn new(
        quota: &Quota,
        algorithm: Algorithm,
        since: u64,
        grace_ms: u64,
    ) -> Result<Self, StoreError> {
        let Some(kind) = Kind::of(algorithm) else {
            return Err(StoreError::invalid(format!("{algorithm} cannot be counted in Redis")));
        };
        if quota.is_unlimited() {
            return Err(StoreError::invalid("a policy without a limit needs no store"));
        }
        if !matches!(quota.initial_fill(), Initial::Full) {
            return Err(StoreError::invalid(format!(
                "{quota}: a new key in Redis always starts full; leave out the initial fill"
            )));
        }
        match kind {
            Kind::Gcra => Self::gcra(quota, since, grace_ms),
            _ => Self::window(quota, kind, grace_ms),
        }
    }

    fn gcra(quota: &Quota, since: u64, grace_ms: u64) -> Result<Self, StoreError> {
        let (count, period, burst) = (quota.count(), quota.period().as_nanos(), quota.capacity());
        if count == 0 {
            return Err(StoreError::invalid(format!(
                "{quota} never refills, and every key in Redis must expire; give it a rate, for \
                 example 1/year"
            )));
        }
        let (p, c) = fraction(period, u128::from(count) * 1000);
        let tau = (u128::from(burst) * p).div_ceil(c);
        if tau > BURST_MAX {
            return Err(StoreError::invalid(format!(
                "{quota} takes more than a hundred years to refill, and every key in Redis must \
                 expire; lower the burst or raise the rate"
            )));
        }
        let ttl = (tau / 1000) as u64 + 2 + grace_ms;
        Ok(Self { kind: Kind::Gcra, limit: burst, p, c, length: 0, since, ttl: ttl.to_string() })
    }

    fn window(quota: &Quota, kind: Kind, grace_ms: u64) -> Result<Self, StoreError> {
        let (limit, nanos) = (quota.capacity(), quota.period().as_nanos());
        if !nanos.is_multiple_of(1000) {
            return Err(StoreError::invalid(format!(
                "{quota}: windows in Redis are whole microseconds; use GCRA, or round the period"
            )));
        }
        if limit > COUNT_MAX {
            return Err(StoreError::invalid(format!(
                "{quota}: windows in Redis count up to {COUNT_MAX}; use GCRA, or lower the limit"
            )));
        }
        if kind == Kind::Log && limit > LOG_MAX {
            return Err(StoreError::invalid(format!(
                "{quota}: a sliding log in Redis holds up to {LOG_MAX} entries; use the sliding \
                 counter, or lower the limit"
            )));
        }
        let length = (nanos / 1000) as u64;
        let spans = if kind == Kind::Counter { 2 } else { 1 };
        let ttl = spans * length / 1000 + 2 + grace_ms;
        Ok(Self { kind, limit, p: 0, c: 1, length, since: 0, ttl: ttl.to_string() })
    }

    /// Returns what `cost` permits take, in units of 1/c microseconds.
    pub(crate) fn span(&self, cost: u64) -> u128 {
        // OVERFLOW: a cost that does not fit is more than anything that is booked.
        u128::from(cost).saturating_mul(self.p)
    }

    /// Returns the numbers for taking `cost`; those of a call that never passes if that is more
    /// than the limit.
    pub(crate) fn taking(&self, cost: u64) -> Parameters {
        if cost > self.limit { self.refusing() } else { self.charging(cost) }
    }

    /// Returns the numbers for booking `cost` regardless of the limit.
    pub(crate) fn charging(&self, cost: u64) -> Parameters {
        let is_countable = self.kind.is_gcra() || cost <= COUNT_MAX;
        if !is_countable || self.span(cost) / self.c > BURST_MAX {
            return self.refusing();
        }
        match self.kind.is_gcra() {
            true => self.booking(self.span(cost)),
            false => packed(&[self.length, self.limit, cost].map(u128::from)),
        }
    }

    /// Returns the numbers for booking `cost`, or as much of it as can be booked: a script knows how
    /// much that is.
    pub(crate) fn charging_up_to(&self, cost: u64) -> Parameters {
        if !self.kind.is_gcra() {
            return packed(&[self.length, self.limit, cost.min(CHARGE_MAX)].map(u128::from));
        }
        self.booking(self.span(cost).min(BURST_MAX * self.c))
    }

    /// Returns the numbers of GCRA for a cost in units of 1/c microseconds.
    fn booking(&self, cost: u128) -> Parameters {
        let (burst, since) = (self.span(self.limit), u128::from(self.since));
        packed(&[self.c, cost / self.c, cost % self.c, burst / self.c, burst % self.c, since])
    }

    /// Returns the numbers for giving back up to `cost`, at most what can be booked ahead at all.
    pub(crate) fn giving_back(&self, cost: u64) -> Parameters {
        if !self.kind.is_gcra() {
            return self.charging(cost.min(COUNT_MAX));
        }
        self.booking(self.span(cost).min(BURST_MAX * self.c))
    }

    /// Returns the numbers for taking up to `most`.
    pub(crate) fn granting(&self, most: u64) -> Parameters {
        let most = most.min(self.limit);
        if !self.kind.is_gcra() {
            return packed(&[self.length, self.limit, most].map(u128::from));
        }
        let mut bytes = self.booking(u128::from(most) * self.c);
        bytes.extend(packed(&[self.p / self.c, self.p % self.c]));
        bytes
    }

    fn refusing(&self) -> Parameters {
        let never = (-1.0_f64).to_le_bytes();
        match self.kind.is_gcra() {
            true => {
                let mut bytes = self.booking(0);
                bytes[8..16].copy_from_slice(&never);
                bytes
            }
            false => {
                let mut bytes = packed(&[self.length, self.limit].map(u128::from));
                bytes.extend_from_slice(&never);
                bytes
            }
        }
    }
}

/// Returns `above / below` with a multiple of 9000 below, or whatever is finer, or rounded up to the finest
/// fraction.
fn fraction(above: u128, below: u128) -> (u128, u128) {
    let divisor = gcd(above, below);
    let (p, c) = (above / divisor, below / divisor);
    let factor = NINTHS / gcd(c, NINTHS);
    if c * factor <= FRACTION_MAX {
        (p * factor, c * factor)
    } else if c <= FRACTION_MAX {
        (p, c)
    } else {
        ((above * FRACTION_MAX).div_ceil(below), FRACTION_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str, algorithm: Algorithm) -> Rule {
        Rule::new(&text.parse().unwrap(), algorithm, 0, 0).unwrap()
    }

    #[test]
    fn a_permit_takes_an_exact_fraction_of_time() {
        for (text, p, c) in [
            ("10/s", 900_000_000, 9000),
            ("3/s", 3_000_000_000, 9000),
            ("7/min", 540_000_000_000, 63_000),
            ("1000000000/s burst 1", 9, 9000),
            ("1/year", 283_824_000_000_000_000, 9000),
            ("999983/s", 9_000_000_000, 8_999_847_000),
            ("999999937/s", 1_000_000, 999_999_937),
        ] {
            let rule = rule(text, Algorithm::Gcra);
            assert_eq!((rule.p, rule.c), (p, c), "{text}");
        }
    }

    #[test]
    fn awkward_fractions_are_rounded_up_by_less_than_a_millionth() {
        for (count, period) in
            [(999_999_999_999_999, 31_536_000_000_000_001), (1, 31_536_000_000_000_001)]
        {
            let (p, c) = fraction(period, count * 1000);
            assert!((NINTHS..=FRACTION_MAX).contains(&c), "{count}/{period}: {p}/{c}");
            let (exact, rounded) = (period * c, p * count * 1000);
            assert!(rounded >= exact && (rounded - exact) * 1_000_000 <= exact, "{p}/{c}");
        }
    }

    #[test]
    fn what_redis_cannot_count_is_refused() {
        for (text, algorithm, word) in [
            ("0/s burst 5", Algorithm::Gcra, "never refills"),
            ("1/month burst 1000000000000000", Algorithm::Gcra, "hundred years"),
            ("100000000000000/day", Algorithm::FixedWindow, "count up to"),
            ("40000/day", Algorithm::SlidingLog, "entries"),
        ] {
            let error = Rule::new(&text.parse().unwrap(), algorithm, 0, 0).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(word), "{text}: {error}");
        }
    }
}
