//! Many threads on one limiter: G1 holds in every interval, and no permit is lost.

use crate::support::*;
use std::{
    sync::{
        Barrier, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use tollgate::{Algorithm, Clock, Inherit, KeyedLimiter, Limiter, Limits, Quota, Tick};

const THREADS: usize = 8;

/// G1 on a log of (tick, cost): in every interval, at most burst + rate x w.
///
/// With the admissions in order, "the cost from i to j is at most burst + rate x (tj - ti)" for all
/// i and j means "the cost up to j, less rate x tj, is at most burst above its lowest value so
/// far": one pass.
fn assert_within_bound(quota: &Quota, mut log: Vec<(Tick, u64)>) {
    log.sort_unstable();
    let (count, period) = (i128::from(quota.count()), quota.period().as_nanos() as i128);
    // In units of a permit's period-th part, so that everything is whole. The slack of two
    // positions is below one such unit for the quotas used here.
    let burst = i128::from(quota.capacity()) * period + 1;
    let (mut sum, mut lowest) = (0_i128, i128::MAX);
    for (tick, cost) in log {
        let refill = i128::from(tick.as_nanos()) * count;
        lowest = lowest.min(sum - refill);
        sum += i128::from(cost) * period;
        assert!(sum - refill <= lowest + burst, "over the bound at {tick}");
    }
}

/// Runs `work` on all threads at once and collects what they log.
fn hammer(work: impl Fn(usize) -> Vec<(Tick, u64)> + Sync) -> Vec<(Tick, u64)> {
    let barrier = Barrier::new(THREADS);
    let log = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (barrier, log, work) = (&barrier, &log, &work);
            scope.spawn(move || {
                barrier.wait();
                let mine = work(index);
                log.lock().unwrap().extend(mine);
            });
        }
    });
    log.into_inner().unwrap()
}

#[test]
fn gcra_never_exceeds_burst_plus_rate_in_any_interval() {
    let quota: Quota = "100000/s burst 50".parse().unwrap();
    let limiter = Limiter::new(quota).unwrap();
    // Time moves by 100 ns per call of any thread; each thread passes the time it saw.
    let time = AtomicU64::new(0);
    let log = hammer(|index| {
        let mut mine = Vec::new();
        for call in 0..20_000_u64 {
            let now = Tick::from_nanos(time.fetch_add(100, SeqCst));
            let cost = 1 + (call + index as u64) % 3;
            if limiter.try_acquire_at(now, cost).is_allowed() {
                mine.push((now, cost));
            }
        }
        mine
    });
    let passed: u64 = log.iter().map(|(_, cost)| cost).sum();
    assert!(passed > 1_500, "only {passed} passed in 16 ms at 100 a millisecond");
    assert_within_bound(&quota, log);
}

#[test]
fn windows_never_exceed_their_limit_under_threads() {
    for algorithm in Algorithm::ALL.into_iter().skip(1) {
        let (limiter, _) = manual(algorithm, "100/ms");
        let mut passed = Vec::new();
        for window in 0..50 {
            // All threads at one time, half a millisecond into the window.
            let now = Tick::from_micros(window * 1000 + 500);
            let log = hammer(|_| {
                let calls = (0..50).filter(|_| limiter.try_acquire_at(now, 1).is_allowed());
                calls.map(|_| (now, 1)).collect()
            });
            passed.push(log.len());
        }
        let expected = |count: &usize| match algorithm {
            // Half of the last window counts: 100, 50, 75, 63, 69 .. tends to two thirds.
            Algorithm::SlidingCounter => (50..=100).contains(count),
            _ => *count == 100,
        };
        assert!(passed.iter().all(expected), "{algorithm}: {passed:?}");
    }
}

#[test]
fn a_budget_is_spent_to_the_last_permit_and_no_further() {
    for algorithm in Algorithm::ALL {
        for _ in 0..20 {
            let (limiter, _) = manual(algorithm, "1000/s");
            let log = hammer(|_| {
                let calls = (0..1000).map(|_| limiter.try_acquire());
                calls.filter(|decision| decision.is_allowed()).map(|d| (d.at(), 1)).collect()
            });
            assert_eq!(log.len(), 1000, "{algorithm}");
        }
    }
}

#[test]
fn on_the_real_clock_no_interval_holds_more_than_the_bound() {
    let quota: Quota = "50000/s burst 20".parse().unwrap();
    let limiter = Limiter::new(quota).unwrap();
    // An admission happened between the two readings around it. For every start, count what
    // certainly lies between a `before` and an `after`.
    let spans = Mutex::new(Vec::new());
    hammer(|_| {
        let mut mine = Vec::new();
        for _ in 0..20_000 {
            let before = limiter.now();
            if limiter.try_acquire().is_allowed() {
                mine.push((before.as_nanos(), limiter.now().as_nanos()));
            }
        }
        spans.lock().unwrap().extend(mine);
        Vec::new()
    });
    let mut spans = spans.into_inner().unwrap();
    spans.sort_unstable_by_key(|(_, after)| *after);
    for (from, _) in spans.iter().step_by(7) {
        let mut count = 0_u64;
        for (before, after) in &spans {
            if before >= from {
                count += 1;
                // A microsecond for the counter's own drift from the kernel's clock.
                let bound = 20_000_000_000 + (after - from + 1_000) * 50_000;
                assert!(count * 1_000_000_000 <= bound, "{count} in {} ns", after - from);
            }
        }
    }
}

#[test]
fn reservations_and_cancels_from_many_threads_conserve_permits() {
    let (limiter, _) = manual(Algorithm::Gcra, "0/s burst 100");
    hammer(|index| {
        for round in 0..2_000 {
            if let Ok(reservation) = limiter.reserve_within(1 + (round % 5), Duration::ZERO) {
                let cost = reservation.cost();
                match (round as usize + index) % 2 {
                    0 => assert_eq!(reservation.cancel(), cost),
                    _ => assert!(reservation.settle(0).is_allowed()),
                }
            }
        }
        Vec::new()
    });
    assert_eq!(limiter.available(), 100);
    assert_eq!(limiter.snapshot().open_reservations, 0);
}

#[test]
fn leases_never_exceed_the_limit_and_give_back_what_they_hold() {
    let (limiter, _) = manual(Algorithm::Gcra, "0/s burst 10000");
    let log = hammer(|_| {
        let mut lease = limiter.lease(32, Duration::from_secs(1));
        let calls = (0..1_000).map(|_| lease.try_acquire());
        calls.filter(|decision| decision.is_allowed()).map(|d| (d.at(), 1)).collect()
    });
    assert_eq!(log.len(), 8_000);
    assert_eq!(limiter.available(), 2_000, "unused permits came back");
}

#[test]
fn a_lease_expires_and_gives_back() {
    let (limiter, hand) = manual(Algorithm::Gcra, "1/s burst 100");
    let mut lease = limiter.lease(10, Duration::from_millis(500));
    assert!(lease.try_acquire().is_allowed());
    assert_eq!((lease.held(), limiter.available()), (9, 90));
    hand.advance(Duration::from_millis(500));
    // The old batch goes back (it is 0.5 s old, so half a permit of it has refilled already).
    assert!(lease.try_acquire().is_allowed());
    assert_eq!((lease.held(), limiter.available()), (9, 89));
    drop(lease);
    assert_eq!(limiter.available(), 98);
}

#[test]
fn quotas_change_under_load_without_a_wrong_word() {
    // Two quotas of very different scale. A reader that paired one's word with the other's
    // parameters would book years ahead, and everything after it would be denied.
    let (slow, fast): (Quota, Quota) =
        ("1/s burst 100000000".parse().unwrap(), "1000000000/s burst 100000000".parse().unwrap());
    let limiter = Limiter::builder(slow).build().unwrap();
    let now = Tick::from_secs(1000);
    hammer(|index| {
        for round in 0..20_000 {
            if index == 0 {
                let quota = if round % 2 == 0 { fast } else { slow };
                limiter.set_quota_at(now, quota, Inherit::AsIs).unwrap();
            } else {
                assert!(limiter.try_acquire_at(now, 1).is_allowed());
            }
        }
        Vec::new()
    });
    assert_eq!(limiter.available_at(now), 100_000_000 - 7 * 20_000);
}

#[test]
fn a_refusal_describes_the_take_that_failed() {
    // A refusal computed after the fact would sometimes say "allowed", because the other thread has
    // given its permit back by then.
    let (limiter, _) = manual(Algorithm::Gcra, "1/s burst 1");
    hammer(|_| {
        for _ in 0..5_000 {
            match limiter.reserve_within(1, Duration::ZERO) {
                Ok(reservation) => assert_eq!(reservation.cancel(), 1),
                Err(refused) => assert!(refused.decision().retry_at().is_some(), "{refused:?}"),
            }
        }
        Vec::new()
    });
}

#[test]
fn quotas_change_under_load_without_a_panic_on_any_scale() {
    // Quotas whose numbers are far apart, late in the clock's life: torn parameters would overflow.
    let years = |years: u64| Tick::from_secs(years * 365 * 86_400);
    for (algorithm, quotas, now) in [
        (Algorithm::Gcra, ["0/s burst 1", "1000000000/s burst 63"], years(8)),
        (Algorithm::FixedWindow, ["5 per 30day", "5 per 1ms"], years(1)),
        (Algorithm::AnchoredWindow, ["5 per 30day", "5 per 1ms"], years(1)),
        (Algorithm::SlidingCounter, ["5 per 30day", "5 per 1ms"], years(1)),
    ] {
        let quotas = quotas.map(|text| text.parse::<Quota>().unwrap());
        let (clock, _hand) = tollgate::Clock::manual();
        let builder = Limiter::builder(quotas[0]).algorithm(algorithm).clock(clock);
        let limiter = builder.build().unwrap();
        hammer(|index| {
            for round in 0..20_000 {
                if index == 0 {
                    limiter.set_quota_at(now, quotas[round % 2], Inherit::AsIs).unwrap();
                } else {
                    let decision = limiter.try_acquire_at(now, 1);
                    assert!(quotas.iter().any(|quota| quota.capacity() == decision.limit()));
                }
            }
            Vec::new()
        });
    }
}

#[test]
fn a_lease_ends_with_the_quota_and_knows_of_a_bypass() {
    let (limiter, _) = manual(Algorithm::Gcra, "100/h");
    let mut lease = limiter.lease(10, Duration::from_secs(9));
    assert!(lease.try_acquire().is_allowed());
    limiter.bypass(tollgate::Bypass::On);
    assert!(lease.try_acquire().is_bypassed());
    limiter.bypass(tollgate::Bypass::Off);
    assert!(lease.try_acquire().is_allowed());
    limiter.set_quota(Quota::once(0), Inherit::Reset).unwrap();
    assert!(lease.try_acquire().is_denied());
}

/// Threads ask for keys while their table grows from a thousand keys to a million (fewer without optimisation). Time
/// stands still, so each key admits its burst exactly: never more, and not less either.
#[test]
fn keys_admit_their_burst_exactly_while_their_table_grows() {
    const KEYS: u64 = if cfg!(debug_assertions) { 40_000 } else { 1_000_000 };
    const BURST: u64 = 3;
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_hour(1).burst(BURST));
    let limiter = limiter.clock(Clock::manual().0).build().unwrap();
    let admitted: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let take = |key: u64| {
        let passed = limiter.try_acquire(&key).is_allowed();
        admitted[key as usize].fetch_add(u64::from(passed), SeqCst);
    };
    let take_two = |one: u64, other: u64| {
        let charges = [limiter.charge(&one, 1), limiter.charge(&other, 1)];
        let passed = Limits::new(&charges).unwrap().try_acquire().is_allowed();
        for key in [one, other] {
            admitted[key as usize].fetch_add(u64::from(passed), SeqCst);
        }
    };
    (0..1000).for_each(take);
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for index in 0..THREADS as u64 {
            let (barrier, take, take_two, limiter, admitted) =
                (&barrier, &take, &take_two, &limiter, &admitted);
            scope.spawn(move || {
                let mut random = Random(index + 1);
                barrier.wait();
                // New keys come in order, from all threads; all others are drawn from those before.
                for key in 1000..KEYS {
                    match random.below(16) {
                        0 => take_two(key, random.below(key)),
                        1 if limiter.refund(&key, 1) == 1 => {
                            admitted[key as usize].fetch_sub(1, SeqCst);
                        }
                        2..=8 => take(random.below(key)),
                        _ => take(key),
                    }
                }
            });
        }
    });
    for key in 0..KEYS {
        (0..BURST).for_each(|_| take(key));
        assert_eq!(admitted[key as usize].load(SeqCst), BURST, "key {key}");
    }
    assert_eq!((limiter.len() as u64, limiter.table_counts().evicted), (KEYS, 0));
}
