//! How a quota is split so that the shares add up to it exactly.
//!
//! | part | share of stripe i of N |
//! |---|---|
//! | rate of GCRA | count per (period x N), reduced: the same for all, no remainder |
//! | burst, limit of a window, initial fill | the N-th part; one more for the first few |
//!
//! Only algorithms whose bound adds up can be split. A fixed window aligned to the clock and the
//! sliding log count in the same windows on every stripe. Anchored windows would begin at another
//! time on each, and a sliding counter rounds its estimate on each.

use crate::{Algorithm, ConfigError, Initial, Quota, QuotaError};
use std::time::Duration;

/// Returns the shares of `stripes` stripes, the largest first.
pub(super) fn split(
    quota: &Quota,
    stripes: usize,
    algorithm: Algorithm,
) -> Result<Vec<Quota>, ConfigError> {
    if quota.is_unlimited() {
        return Err(ConfigError::new(
            "an unlimited quota has nothing to split into stripes; use a limiter, or give a rate",
        ));
    }
    quota.check()?;
    let (burst, parts) = (quota.capacity(), stripes as u64);
    let is_window = match algorithm {
        Algorithm::Gcra => false,
        Algorithm::FixedWindow | Algorithm::SlidingLog => true,
        other => {
            return Err(ConfigError::new(format!(
                "{other} cannot be split, because the bounds of its stripes do not add up to the \
                 whole; use gcra, fixed-window or sliding-log"
            )));
        }
    };
    if is_window && burst != quota.count() {
        return Err(QuotaError::BurstOnWindow { burst, limit: quota.count(), algorithm }.into());
    }
    if burst < parts {
        return Err(ConfigError::new(format!(
            "burst {burst} is below {stripes}, the number of stripes, but each stripe needs a \
             permit; raise the burst, or use fewer stripes"
        )));
    }
    // OVERFLOW: a period is at most 366 days, below 2^55 ns, and there are at most 2^6 stripes.
    let factor = parts / common_divisor(quota.count(), parts);
    let slow = Duration::from_nanos(quota.period_ns() * factor);
    if !is_window && slow > Quota::PERIOD_MAX {
        return Err(ConfigError::new(format!(
            "{} permits over {stripes} stripes would give each a period of {slow:?}, longer than \
             366 days; use fewer stripes, or a limiter",
            quota.count()
        )));
    }
    let share = |index| {
        let initial = match quota.initial_fill() {
            Initial::Permits(permits) => Initial::Permits(part(permits, index, parts)),
            other => other,
        };
        let burst = part(burst, index, parts);
        if is_window {
            Quota::per(burst, quota.period()).initial(initial)
        } else {
            Quota::per(quota.count() * factor / parts, slow).burst(burst).initial(initial)
        }
    };
    Ok((0..parts).map(share).collect())
}

/// Returns one of `parts` nearly equal parts of an amount.
pub(super) const fn part(amount: u64, index: u64, parts: u64) -> u64 {
    amount / parts + if index < amount % parts { 1 } else { 0 }
}

/// Euclid's; `b` is not zero.
const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while a != 0 {
        (a, b) = (b % a, a);
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_divisors_are_right_at_the_edges() {
        for (a, b, divisor) in [(0, 8, 8), (1, 8, 1), (12, 8, 4), (8, 8, 8), (7, 3, 1)] {
            assert_eq!(common_divisor(a, b), divisor, "{a}, {b}");
        }
    }

    proptest! {
        #[test]
        fn shares_add_up_to_the_quota(
            count in 0..1_000_000_u64,
            period_ns in 1_000_000..1_000_000_000_000_u64,
            (stripes, burst, initial) in (1..=64_usize)
                .prop_flat_map(|n| (Just(n), n as u64..1_000_000))
                .prop_flat_map(|(n, burst)| (Just(n), Just(burst), 0..=burst)),
        ) {
            let quota = Quota::per(count, Duration::from_nanos(period_ns))
                .burst(burst)
                .initial(Initial::Permits(initial));
            let shares = split(&quota, stripes, Algorithm::Gcra).unwrap();
            prop_assert_eq!(shares.len(), stripes);
            prop_assert_eq!(shares.iter().map(Quota::capacity).sum::<u64>(), burst);
            prop_assert_eq!(shares.iter().map(Quota::initial_permits).sum::<u64>(), initial);
            // All rates are the same; N of them are the quota's: N x count_i / period_i.
            let (each, long) = (u128::from(shares[0].count()), shares[0].period().as_nanos());
            let (all, period) = (stripes as u128 * each, u128::from(period_ns));
            prop_assert_eq!(all * period, u128::from(count) * long);
            for share in shares {
                prop_assert_eq!(share.check(), Ok(()));
                prop_assert_eq!(u128::from(share.count()), each);
                prop_assert_eq!(share.period().as_nanos(), long);
            }
        }

        #[test]
        fn limits_of_windows_add_up(count in 64..1_000_000_u64, stripes in 1..=64_usize) {
            let quota = Quota::per_second(count);
            let shares = split(&quota, stripes, Algorithm::FixedWindow).unwrap();
            prop_assert_eq!(shares.iter().map(Quota::count).sum::<u64>(), count);
            prop_assert!(shares.iter().all(|share| share.period() == quota.period()));
        }
    }
}
