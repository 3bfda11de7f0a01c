//! One limit over several stripes, used by many threads.

use crate::support::*;
use proptest::prelude::*;
use std::{
    sync::{
        Barrier, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use tollgate::{Clock, Initial, ManualClock, Quota, Reach, StripedBuilder, StripedLimiter, Tick};

/// A limiter on a manual clock; the quota in text form.
fn striped(quota: &str, stripes: usize) -> (StripedLimiter, ManualClock) {
    let (clock, hand) = Clock::manual();
    (builder(quota, stripes).clock(clock).build().unwrap(), hand)
}

fn builder(quota: &str, stripes: usize) -> StripedBuilder {
    StripedLimiter::builder(quota.parse().unwrap()).stripes(stripes)
}

/// G1 on a log of (tick, cost), as in `tests/limiting/threads.rs`: in every interval at most burst + rate x
/// w, and the refill of one nanosecond for the rounding of all stripes.
fn assert_within_bound(quota: &Quota, mut log: Vec<(Tick, u64)>) {
    log.sort_unstable();
    let (count, period) = (i128::from(quota.count()), quota.period().as_nanos() as i128);
    let burst = i128::from(quota.capacity()) * period + count;
    let (mut sum, mut lowest) = (0_i128, i128::MAX);
    for (tick, cost) in log {
        let refill = i128::from(tick.as_nanos()) * count;
        lowest = lowest.min(sum - refill);
        sum += i128::from(cost) * period;
        assert!(sum - refill <= lowest + burst, "over the bound at {tick}");
    }
}

/// Runs `work` on many threads at once and collects what they return.
fn hammer<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (barrier, results) = (Barrier::new(threads), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for index in 0..threads {
            let (barrier, results, work) = (&barrier, &results, &work);
            scope.spawn(move || {
                barrier.wait();
                let result = work(index);
                results.lock().unwrap().push(result);
            });
        }
    });
    results.into_inner().unwrap()
}

proptest! {
    #[test]
    fn never_exceeds_the_bound_at_odd_times(
        (stripes, extra) in (1..9_usize, 0..30_u64),
        (count, period_ns) in (1..5_000_u64, 100_000..100_000_000_u64),
        steps in proptest::collection::vec((0..200_000_u64, 1..6_u64), 1..200),
    ) {
        let period = Duration::from_nanos(period_ns);
        let quota = Quota::per(count, period).burst(stripes as u64 + extra);
        let limiter = StripedLimiter::builder(quota).stripes(stripes).build().unwrap();
        let (mut now, mut log) = (0, Vec::new());
        for (wait, cost) in steps {
            now += wait;
            if limiter.try_acquire_at(ns(now), cost).is_allowed() {
                log.push((ns(now), cost));
            }
        }
        assert_within_bound(&quota, log);
    }
}

#[test]
fn threads_with_all_kinds_of_calls_stay_within_the_bound() {
    let quota: Quota = "100000/s burst 64".parse().unwrap();
    let (clock, hand) = Clock::manual();
    let build = StripedLimiter::builder(quota).stripes(8).clock(clock).exempt(&0_u64);
    let (limiter, time) = (build.build().unwrap(), AtomicU64::new(0));
    let logs = hammer(8, |index| {
        let (mut random, mut log) = (Random(index as u64), Vec::new());
        for call in 0..10_000_u64 {
            hand.set(ns(time.fetch_add(500, SeqCst) + 500));
            let cost = if call % 8 == 0 { 1 + random.below(30) } else { 1 };
            let decision = match random.below(4) {
                0 => limiter.try_acquire_for_n(&random.below(5), cost),
                _ => limiter.try_acquire_n(cost),
            };
            if decision.is_allowed() {
                log.push((decision.at(), cost));
            }
        }
        log
    });
    let log: Vec<_> = logs.concat();
    // 80 000 calls at 500 ns are 40 ms: 64 + 4000 permits.
    let passed: u64 = log.iter().map(|(_, cost)| cost).sum();
    assert!((4_000..=4_064).contains(&passed), "{passed}");
    assert_within_bound(&quota, log);
}

#[test]
fn sixty_four_threads_on_a_standing_clock_admit_exactly_the_burst() {
    for (stripes, burst) in [(16, 1_000), (3, 101), (64, 64)] {
        let (limiter, _) = striped(&format!("1000/s burst {burst}"), stripes);
        let passed = hammer(64, |_| {
            (0..burst / 16).filter(|_| limiter.try_acquire().is_allowed()).count() as u64
        });
        assert_eq!(passed.iter().sum::<u64>(), burst, "{stripes} stripes");
        assert_eq!(limiter.available(), 0);
    }
}

#[test]
fn costly_calls_that_fail_give_everything_back() {
    for seed in 0..20 {
        let (limiter, _) = striped("1000/s burst 300", 8);
        let passed = hammer(16, |index| {
            let mut random = Random(seed * 1_000 + index as u64);
            let take = |cost| if limiter.try_acquire_n(cost).is_allowed() { cost } else { 0 };
            (0..40).map(|_| take(1 + random.below(60))).sum::<u64>()
        });
        let passed: u64 = passed.iter().sum();
        assert_eq!(passed + limiter.available(), 300, "seed {seed}");
        assert!(limiter.available() == 0 || limiter.peek_n(limiter.available()).is_allowed());
    }
}

/// Under the lock no costly call holds any permits, so the exempt key's refusal is final: no call
/// gives permits back after it.
#[test]
fn an_exempt_key_is_refused_only_when_every_stripe_is_dry() {
    const ROUNDS: usize = 3_000;
    let (clock, _hand) = Clock::manual();
    let limiter = builder("0/s burst 64", 16).clock(clock).exempt("vip").build().unwrap();
    let (gate, left) = (Barrier::new(4), AtomicU64::new(0));
    hammer(4, |index| {
        for _ in 0..ROUNDS {
            gate.wait();
            match index {
                0 => while limiter.try_acquire_for("vip").is_allowed() {},
                1 => while limiter.try_acquire().is_allowed() {},
                _ => while limiter.try_acquire_n(13).is_allowed() {},
            }
            gate.wait();
            if index == 0 {
                // Checked after the rounds: a panic here would leave the other threads at the
                // barrier.
                left.fetch_add(limiter.available(), SeqCst);
                limiter.reset();
            }
        }
    });
    assert_eq!(left.into_inner(), 0, "permits that were free after a refusal");
}

/// G2: at least 99.9 % of the ideal over a long run, and never above it. It starts empty, so that
/// the first burst hides no shortfall.
#[test]
fn greedy_callers_get_the_whole_rate() {
    const STRIPES: usize = 8;
    let quota = Quota::per_second(1_000).burst(64).initial(Initial::Empty);
    let ideal = 40_000; // for 40 s
    for (threads, reach, share) in [
        (STRIPES, Reach::All, 1),
        (1, Reach::All, 1),
        (3, Reach::All, 1),
        (1, Reach::Home, STRIPES as u64),
    ] {
        let (clock, _hand) = Clock::manual();
        let build = StripedLimiter::builder(quota).stripes(STRIPES).reach(reach).clock(clock);
        let (limiter, time) = (build.build().unwrap(), AtomicU64::new(0));
        let passed = hammer(threads, |_| {
            let mut passed = 0;
            loop {
                let now = time.fetch_add(400_000, SeqCst);
                if now >= 40_000_000_000 {
                    return passed;
                }
                passed += u64::from(limiter.try_acquire_at(ns(now), 1).is_allowed());
            }
        });
        let passed: u64 = passed.iter().sum();
        let name = format!("{threads} threads, {reach:?}: {passed}");
        assert!(passed * share * 1_000 >= ideal * 999, "{name}");
        assert!(passed * share <= ideal, "{name}");
    }
}

#[test]
fn threads_get_different_homes() {
    let (clock, _hand) = Clock::manual();
    let limiter = builder("0/s burst 8", 4).reach(Reach::Home).clock(clock).build().unwrap();
    // All threads of the process get numbers in turn, so four new ones in a row have four homes
    // unless another test creates one in between: the test uses many.
    hammer(64, |_| limiter.try_acquire().is_allowed());
    assert_eq!(limiter.available(), 0);
}
