//! Arrivals that suit a quota, for those who gave none.
//!
//! They are texts of the same language, so that the report can show them and a user can start
//! from them.

use super::UNITS;
use std::fmt;
use tollgate::Quota;

/// Arrivals and the cost of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suggestion {
    pub(crate) arrivals: String,
    pub(crate) cost: u64,
}

/// Rows of a table that empty the quota once. More scroll off the screen and teach nothing.
const TABLE_ROWS_MAX: u64 = 100;

/// Events that stand for one period in a comparison: six times as many are replayed.
const COMPARE_EVENTS_MAX: u64 = 2_000;

/// One more than fits at once, then half a permit's time, one permit's time and one period later.
pub(crate) fn for_table(quota: &Quota, cost: Option<u64>) -> Suggestion {
    let capacity = quota.capacity();
    let cost = cost.unwrap_or_else(|| capacity.div_ceil(TABLE_ROWS_MAX).max(1));
    let rows = (capacity / cost.max(1)).min(TABLE_ROWS_MAX) + 1;
    let arrivals = match permit_ns(quota, cost) {
        Some(permit_ns) => format!(
            "0s x{rows}, {}, {}, {} x2",
            Time(permit_ns / 2),
            Time(permit_ns),
            Time(period_ns(quota))
        ),
        None => format!("0s x{rows}, 1h"),
    };
    Suggestion { arrivals, cost }
}

/// A full period's worth on either side of a window's border, then twice the rate for two periods.
pub(crate) fn for_compare(quota: &Quota, cost: Option<u64>) -> Suggestion {
    let cost = cost.unwrap_or_else(|| quota.count().div_ceil(COMPARE_EVENTS_MAX).max(1));
    let Some(permit_ns) = permit_ns(quota, cost) else {
        return for_table(quota, Some(cost));
    };
    let period_ns = period_ns(quota);
    // Not more events than the run can hold, if the cost was given.
    let per_period = (quota.count() / cost.max(1)).clamp(1, COMPARE_EVENTS_MAX);
    let tenth_ns = (period_ns / 10).max(1);
    let arrivals = format!(
        "{} every {} for {}, {} every {} for {}",
        Time(period_ns - tenth_ns),
        Time(round_up(tenth_ns.div_ceil(per_period))),
        Time(2 * tenth_ns),
        Time(2 * period_ns),
        Time((permit_ns / 2).max(period_ns / (2 * per_period)).max(1)),
        Time(2 * period_ns)
    );
    Suggestion { arrivals, cost }
}

/// The period; at most [`Quota::PERIOD_MAX`], so a few of them fit.
fn period_ns(quota: &Quota) -> u64 {
    u64::try_from(quota.period().as_nanos()).unwrap_or(u64::MAX / 8)
}

/// How long `cost` permits take to come back, rounded up; none if they never do, or at once.
fn permit_ns(quota: &Quota, cost: u64) -> Option<u64> {
    if quota.is_unlimited() || quota.count() == 0 {
        return None;
    }
    let nanos = quota.period().as_nanos() * u128::from(cost.max(1));
    let nanos = nanos.div_ceil(u128::from(quota.count()));
    // Beyond a period, the wait says nothing that the period does not say.
    let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
    Some(round_up(nanos.min(period_ns(quota))))
}

/// Rounds up to three significant digits, so that the text stays readable.
fn round_up(nanos: u64) -> u64 {
    let unit = 10_u64.pow(nanos.max(1).ilog10().saturating_sub(2));
    nanos.div_ceil(unit).saturating_mul(unit)
}

/// Prints nanoseconds in the largest unit that divides them.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(nanos) = self;
        let fitting = UNITS.iter().find(|(_, unit)| nanos.is_multiple_of(*unit));
        match fitting {
            Some((name, unit)) if *nanos > 0 => write!(f, "{}{name}", nanos / unit),
            _ => f.write_str("0s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::parse;
    use proptest::prelude::*;

    #[test]
    fn suits_the_quota() {
        for (quota, table, compare) in [
            (
                "5/s burst 3",
                "0s x4, 100ms, 200ms, 1s x2",
                "900ms every 20ms for 200ms, 2s every 100ms for 2s",
            ),
            (
                "3/s",
                "0s x4, 167ms, 334ms, 1s x2",
                "900ms every 33400us for 200ms, 2s every 167ms for 2s",
            ),
            ("0/s burst 2", "0s x3, 1h", "0s x3, 1h"),
            ("unlimited", "0s x1, 1h", "0s x1, 1h"),
        ] {
            let quota: Quota = quota.parse().unwrap();
            assert_eq!(for_table(&quota, None).arrivals, table);
            assert_eq!(for_compare(&quota, None).arrivals, compare);
        }
    }

    #[test]
    fn raises_the_cost_instead_of_the_number_of_rows() {
        let quota: Quota = "1M/s".parse().unwrap();
        assert_eq!(for_table(&quota, None).cost, 10_000);
        assert_eq!(for_compare(&quota, None).cost, 500);
    }

    proptest! {
        #[test]
        fn every_suggestion_can_be_replayed(
            (count, period_ns) in prop_oneof![1..50_u64, 1..31_622_400_000_000_001_u64]
                .prop_flat_map(|period_ns| (0..=period_ns.min(Quota::BURST_MAX), Just(period_ns))),
            burst in prop_oneof![Just(None), (0..=Quota::BURST_MAX).prop_map(Some)],
            cost in prop_oneof![Just(None), (0..9_u64).prop_map(Some), any::<u64>().prop_map(Some)],
        ) {
            let mut quota = Quota::per(count, std::time::Duration::from_nanos(period_ns));
            if let Some(burst) = burst {
                quota = quota.burst(burst);
            }
            prop_assert_eq!(quota.check(), Ok(()));
            for suggestion in [for_table(&quota, cost), for_compare(&quota, cost)] {
                let arrivals = suggestion.arrivals;
                prop_assert!(parse(&arrivals).is_ok(), "{} gives {}", quota, arrivals);
            }
        }
    }
}
