//! How large a lease may be.
//!
//! With rate R, burst B, N processes and the sync period S:
//!
//! ```text
//! largest lease  L = min(B / (2 N), R S)     what a process may hold for a key
//! pace           P = min(S, B / (2 R))       how long it asks no more when the store had too little
//! ```
//!
//! N L <= B / 2 bounds what all hold together. P is S unless the store would be full again before
//! that, and lose what refills meanwhile. A lease that cannot bring two permits saves nothing: if
//! R S / N < 2 or L < 2, every call goes straight to the store.

use super::LeaseSettings;
use tollgate::Quota;

/// The lease terms of one policy, given the number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) lease_max: u64,
    pub(super) sync_ns: u64,
    pub(super) pace_ns: u64,
}

impl Terms {
    /// Returns the terms; `None` if leases do not pay.
    pub(super) fn of(quota: &Quota, settings: &LeaseSettings, processes: u32) -> Option<Self> {
        if quota.is_unlimited() || quota.count() == 0 {
            return None;
        }
        let (count, burst) = (u128::from(quota.count()), u128::from(quota.capacity()));
        let (sync, period) = (settings.sync_period().as_nanos(), quota.period().as_nanos());
        let processes = u128::from(processes.max(1));
        // OVERFLOW: counts are below 2^55, bursts below 2^50, times below 2^55, processes 2^32.
        let per_sync = count * sync / period;
        if count * sync < 2 * processes * period {
            return None;
        }
        let most = settings.most_permits().map_or(u128::MAX, u128::from);
        let lease_max = (burst / (2 * processes)).min(per_sync).min(most);
        let pace = sync.min(burst * period / (2 * count));
        (lease_max >= 2).then(|| Self {
            lease_max: to_u64(lease_max),
            sync_ns: to_u64(sync),
            pace_ns: to_u64(pace),
        })
    }
}

/// OVERFLOW: never; the largest values are times and permits that came from 64 bits.
fn to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_largest_lease_follows_from_rate_burst_and_processes() {
        let ms = Duration::from_millis;
        // quota, sync, processes, lease and pace
        for (row, (quota, sync, processes, expected)) in [
            ("1000/s", ms(100), 8, Some((62, ms(100)))),
            ("1000/s", ms(500), 8, Some((62, ms(500)))),
            ("1000/s", ms(20), 8, Some((20, ms(20)))),
            ("1000/s", ms(100), 1, Some((100, ms(100)))),
            ("1000/s burst 100", ms(100), 8, Some((6, ms(50)))),
            ("1000/s burst 10", ms(100), 8, None), // a lease would be less than two
            ("20/s", ms(100), 8, None),            // R S / N = 0.25
            ("160/s", ms(100), 8, Some((10, ms(100)))),
            ("159/s", ms(100), 8, None),
            ("6000/min", ms(100), 1, Some((10, ms(100)))),
        ]
        .into_iter()
        .enumerate()
        {
            let quota: Quota = quota.parse().expect("a quota");
            let terms = Terms::of(&quota, &LeaseSettings::new().sync(sync), processes);
            let seen = terms.map(|it| (it.lease_max, Duration::from_nanos(it.pace_ns)));
            assert_eq!(seen, expected, "row {row}: {quota}, {sync:?}, {processes}");
        }
        let few = LeaseSettings::new().most(5);
        let terms = Terms::of(&Quota::per_second(1000), &few, 8).expect("terms");
        assert_eq!(terms.lease_max, 5);
        for quota in [Quota::unlimited(), Quota::once(1000)] {
            assert_eq!(Terms::of(&quota, &LeaseSettings::new(), 1), None);
        }
    }
}
