//! GCRA with a quota for each call, against an independent slow model in exact fractions.

use crate::support::*;
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    Quota, Tick,
    algorithm::{Gcra, Step},
};

/// Counts of the quotas below; all of them divide [`PARTS`].
const COUNTS: [u64; 10] = [1, 3, 7, 9, 11, 60, 100, 700, 1_000_000, 900_000_000];
/// The model counts time in these parts of a quarter of a nanosecond, so that a permit of every
/// quota takes a whole number of them.
const PARTS: i128 = 69_300_000_000;

/// The time up to which the limiter is booked, exactly, and the largest error of the word.
#[derive(Default)]
struct Model {
    tat: i128,
    /// In quarters: three since the limiter was last idle, three more for each change of quota.
    slack: i128,
    last: Option<Quota>,
}

fn parts(now: Tick) -> i128 {
    4 * i128::from(now.as_nanos()) * PARTS
}

/// The time of one permit.
fn interval(quota: &Quota) -> i128 {
    4 * quota.period().as_nanos() as i128 * PARTS / i128::from(quota.count())
}

impl Model {
    fn prepare(&mut self, quota: &Quota, now: Tick) {
        if self.tat <= parts(now) + self.slack * PARTS {
            self.slack = 3;
        } else if self.last.is_some_and(|last| last != *quota) {
            self.slack += 3;
        }
        self.last = Some(*quota);
    }

    fn next(&self, quota: &Quota, now: Tick, cost: u64) -> i128 {
        self.tat.max(parts(now)) + i128::from(cost) * interval(quota)
    }

    /// The rest of the burst after the call, as time; negative if the call may not pass.
    fn margin(&self, quota: &Quota, now: Tick, cost: u64) -> i128 {
        let full = i128::from(quota.capacity()) * interval(quota);
        parts(now) + full - self.next(quota, now, cost)
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    gap_ns: u64,
    quota: Quota,
    cost: u64,
    forced: bool,
}

fn quotas() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![Just(1_000_000_000), 900_000_000..100_000_000_000_u64];
    (prop::sample::select(&COUNTS[..]), period, 0..40_u64).prop_map(|(count, period, burst)| {
        Quota::per(count, Duration::from_nanos(period)).burst(burst)
    })
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    // One to four quotas in turn.
    let few = prop::collection::vec(quotas(), 1..5);
    let call = (0..5_u8, any::<u64>(), any::<usize>(), 0..44_u64, 0..12_u8);
    (few, prop::collection::vec(call, 1..100)).prop_map(|(quotas, calls)| {
        let call = |(kind, gap, index, cost, forced): (u8, u64, usize, u64, u8)| {
            let quota = quotas[index % quotas.len()];
            let permit = quota.period().as_nanos() as u64 / quota.count();
            let gap_ns = match kind {
                0 | 1 => 0,
                2 => gap % 5,
                3 => gap % (2 * permit + 1),
                _ => gap % (30 * permit + 1),
            };
            // Mostly small, sometimes around the burst.
            let cost = if cost > 30 { cost - 1 } else { cost % 4 };
            Call { gap_ns, quota, cost, forced: forced == 0 }
        };
        calls.into_iter().map(call).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn decides_as_the_exact_model_does(calls in calls(), start in 0..1_000_000_000_000_000_u64) {
        let (mut model, mut tat, mut at) = (Model::default(), 0_u64, start);
        for call in calls {
            at += call.gap_ns;
            let (now, Call { quota, cost, .. }) = (ns(at), call);
            let gcra = Gcra::new(&quota).unwrap();
            model.prepare(&quota, now);
            let slack = model.slack * PARTS;
            if call.forced {
                prop_assert!(gcra.charge(&mut tat, now, cost));
                if cost > 0 {
                    model.tat = model.next(&quota, now, cost);
                }
                continue;
            }
            let before = tat;
            let decision = gcra.decide(&mut tat, now, cost);
            let margin = model.margin(&quota, now, cost);
            if cost > quota.capacity() {
                prop_assert!(decision.is_never());
            } else if margin.abs() > slack {
                prop_assert_eq!(decision.is_allowed(), margin > 0, "{:?}: {}", decision, margin);
            }
            if decision.is_allowed() && cost > 0 {
                model.tat = model.next(&quota, now, cost);
            }
            if decision.is_denied() {
                prop_assert_eq!(before, tat, "a refusal leaves the word");
            }
            // The remaining permits, at most the capacity.
            let spare = model.margin(&quota, now, 0);
            let whole = |spare: i128| spare.max(0) / interval(&quota);
            let remaining = i128::from(decision.remaining());
            prop_assert!((whole(spare - slack)..=whole(spare + slack)).contains(&remaining));
            prop_assert!(decision.remaining() <= decision.limit());
            prop_assert_eq!(decision.limit(), quota.capacity());
            prop_assert_eq!(decision.remaining(), gcra.available(&tat, now));
            // The wait, to the tick.
            if let Some(retry) = decision.retry_at() {
                prop_assert!(gcra.peek(&tat, retry, cost).is_allowed());
                prop_assert!(gcra.peek(&tat, ns(retry.as_nanos() - 1), cost).is_denied());
                prop_assert!((parts(retry) - parts(now) + margin).abs() <= slack + 4 * PARTS);
            }
            let full = decision.full_at().unwrap();
            prop_assert_eq!(gcra.available(&tat, full), quota.capacity());
            prop_assert!(full == now || (parts(full) - model.tat).abs() <= slack + 4 * PARTS);
        }
    }

    #[test]
    fn a_burst_passes_at_once_in_whatever_pieces(
        quota in quotas(), costs in prop::collection::vec(1..9_u64, 1..60),
        start in 0..1_000_000_000_000_000_u64,
    ) {
        let (gcra, now) = (Gcra::new(&quota).unwrap(), ns(start));
        let (mut tat, mut left) = (0, quota.capacity());
        for cost in costs {
            let decision = gcra.decide(&mut tat, now, cost);
            prop_assert_eq!(decision.is_allowed(), cost <= left);
            left -= if cost <= left { cost } else { 0 };
            prop_assert_eq!(decision.remaining(), left);
            let given = gcra.refund(&mut tat, now, 1);
            prop_assert_eq!(gcra.whole_permits(given), u64::from(left < quota.capacity()));
            let _ = gcra.charge(&mut tat, now, gcra.whole_permits(given));
            prop_assert_eq!(gcra.available(&tat, now), left);
        }
    }
}

/// A caller that always retries at the reported time gets the rate exactly: no error accumulates.
#[test]
fn the_long_run_rate_is_exact() {
    for (count, period_ns) in
        [(3, 1_000_000_000_u64), (7, 60_000_000_000), (700_000_001, 1_000_000_000), (999, 1_000)]
    {
        let quota = Quota::per(count, Duration::from_nanos(period_ns)).burst(5);
        let gcra = Gcra::new(&quota).unwrap();
        let (mut tat, mut now) = (0, ns(987_654_321));
        let start = now;
        for number in 1..=20_000_u64 {
            let decision = gcra.decide(&mut tat, now, 1);
            if let Some(retry) = decision.retry_at() {
                now = retry;
                assert!(gcra.decide(&mut tat, now, 1).is_allowed());
            }
            let due = number.saturating_sub(5) as u128 * u128::from(period_ns);
            let due = due.div_ceil(count.into()) as u64;
            let late = now.since(start).as_nanos() as u64;
            assert!(late.abs_diff(due) <= 1, "{quota}: permit {number} at {late}, due {due}");
        }
    }
}

#[test]
fn corners_of_time_and_cost() {
    let gcra = Gcra::new(&Quota::per_second(10).burst(5)).unwrap();
    let mut tat = 0;
    for (row, (at_ms, cost, expected)) in [
        (10_000, 5, allowed(0)),
        (9_000, 1, denied_for_ms(1_100)), // time backwards: as at 10 000
        (10_000, u64::MAX, never()),
        (10_100, 1, allowed(0)),
        (u64::MAX / 1_000_000, 5, allowed(0)),
        (u64::MAX / 1_000_000, 1, never()), // beyond the clock's horizon
    ]
    .into_iter()
    .enumerate()
    {
        let decision = gcra.decide(&mut tat, ms(at_ms), cost);
        assert_eq!(seen(&decision), expected, "row {row}, at {at_ms} ms");
    }
    let nothing = Gcra::new(&Quota::per_second(10).burst(0)).unwrap();
    let mut tat = 0;
    assert!(nothing.decide(&mut tat, Tick::ZERO, 1).is_never());
    assert!(nothing.decide(&mut tat, Tick::ZERO, 0).is_allowed());
    assert_eq!(tat, 0);
    assert!(!nothing.charge(&mut tat, Tick::ZERO, u64::MAX) && tat == 0, "no such debt");
}
