//! The quotas of random traces: common and awkward ones.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Initial, Quota};

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const DAY: u64 = 86_400 * SECOND;

/// (count, period in nanoseconds): common ones, and some that divide badly.
fn rates() -> impl Strategy<Value = (u64, u64)> {
    let written = (
        prop::sample::select(&[1_u64, 2, 5, 10, 20, 60, 100, 250, 500, 1000, 5000][..]),
        prop::sample::select(&[SECOND, 60 * SECOND, 3600 * SECOND, DAY][..]),
    );
    let awkward = prop::sample::select(
        &[(7, 60), (3, 1), (1, 31 * 86_400), (11, 3600), (97, 1), (997, 60), (7919, 86_400)][..],
    );
    prop_oneof![3 => written, 2 => awkward.prop_map(|(count, secs)| (count, secs * SECOND))]
}

pub(super) fn gcra_quotas() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![Just(SECOND), Just(60 * SECOND), Just(30 * DAY), 1..10 * SECOND];
    let random = (period, any::<u64>()).prop_map(|(period, count)| {
        // Rates of every size: as often small as large.
        let bits = 1 + count % 40;
        (((count >> 8) % (1 << bits)).clamp(1, period), period)
    });
    let fast = prop::sample::select(&[SECOND, 999_999_937, 700_000_001][..]);
    let rate = prop_oneof![8 => rates(), 3 => random, 1 => fast.prop_map(|count| (count, SECOND))];
    let burst = prop_oneof![
        4 => Just(None),
        6 => prop_oneof![0..4_u64, 1..1000_u64, 1..1_000_000_000_000_u64].prop_map(Some),
    ];
    let refilled = (rate, burst).prop_map(|((count, period), burst)| {
        let quota = Quota::per(count, Duration::from_nanos(period));
        // A burst refills within 4.5 years.
        let most = (1_u128 << 57) * u128::from(count) / u128::from(period);
        burst.map_or(quota, |burst| quota.burst(burst.min(most.min(1 << 50) as u64)))
    });
    let once = prop_oneof![0..30_u64, Just(1 << 40)].prop_map(Quota::once);
    prop_oneof![20 => refilled, 1 => once, 1 => Just(Quota::unlimited())]
}

/// Limits that every window algorithm can count.
pub(super) fn window_quotas() -> impl Strategy<Value = Quota> {
    let random = (0..120_u64, prop_oneof![Just(64_000), 1..SECOND / 10, SECOND / 10..10 * SECOND]);
    let limit = prop_oneof![2 => rates(), 3 => random]
        .prop_map(|(limit, window)| Quota::per(limit.min(window), Duration::from_nanos(window)));
    prop_oneof![30 => limit, 1 => Just(Quota::unlimited())]
}

/// Sets the permits of a fresh limiter: mostly all.
pub(super) fn filled(quota: Quota, choice: u64) -> Quota {
    match choice % 8 {
        _ if quota.is_unlimited() => quota,
        0 => quota.initial(Initial::Empty),
        1 => quota.initial(Initial::Permits(choice % (quota.capacity() + 1))),
        _ => quota,
    }
}
