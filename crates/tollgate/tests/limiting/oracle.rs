//! Every algorithm against an independent slow model in wide integers.
//!
//! A model remembers every event there ever was and works each answer out from scratch. It shares
//! no code with the algorithms. Random quotas, costs and gaps; proptest prints the seed.

use crate::support::*;
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Algorithm, Clock, Decision, Limiter, Quota, Tick};

/// One event of a random trace: a gap to the last one, a verb and a cost.
#[derive(Clone, Copy, Debug)]
struct Event {
    gap_ns: u64,
    verb: Verb,
    cost: u64,
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Try,
    UpTo,
    Force,
    /// Reserves one, and settles it with the cost times two to this.
    Settle(u32),
}

/// Gaps of no time at all, of a few ticks, and of about the time that a permit or a window takes.
fn events(scale_ns: u64, most: u64) -> impl Strategy<Value = Vec<Event>> {
    let gap = prop_oneof![
        3 => Just(0),
        2 => 1..5_u64,
        4 => 0..=scale_ns,
        1 => 0..=scale_ns.saturating_mul(20),
    ];
    let verb = prop_oneof![
        24 => Just(Verb::Try),
        6 => Just(Verb::UpTo),
        3 => Just(Verb::Force),
        6 => Just(Verb::Settle(0)),
        1 => (0..64_u32).prop_map(Verb::Settle),
    ];
    let event = (gap, verb, 0..=most.saturating_mul(5) / 4 + 1);
    let event = event.prop_map(|(gap_ns, verb, cost)| {
        let cost = match verb {
            // Not nothing: a cancelled take has opened an anchored window all the same.
            Verb::Settle(shift) => cost.max(1).saturating_mul(1 << shift),
            _ => cost,
        };
        Event { gap_ns, verb, cost }
    });
    prop::collection::vec(event, 1..120)
}

/// `None` if the algorithm cannot count this quota, as an anchored window cannot if it is short.
fn limiter(algorithm: Algorithm, quota: Quota, epoch_ns: u64) -> Option<Limiter> {
    let (clock, _) = Clock::manual();
    clock.set_wall_offset(Duration::from_nanos(epoch_ns));
    Limiter::builder(quota).algorithm(algorithm).clock(clock).build().ok()
}

fn apply(limiter: &Limiter, event: Event, now: Tick) -> Decision {
    match event.verb {
        Verb::Try => limiter.try_acquire_at(now, event.cost),
        Verb::UpTo => limiter.up_to_at(now, event.cost),
        Verb::Force => limiter.force_at(now, event.cost),
        Verb::Settle(_) => match limiter.reserve_at(now, 1, Duration::ZERO) {
            Ok(reservation) => reservation.settle_at(now, event.cost),
            Err(refused) => refused.decision(),
        },
    }
}

/// What the event is about: of a settlement, what it says it has charged, which is all that was used or
/// as much as fits.
fn cost_of(limiter: &Limiter, event: Event, free: u64, decision: &Decision) -> Option<u64> {
    match event.verb {
        Verb::UpTo => Some(event.cost.min(free).max(event.cost.min(1))),
        Verb::Try | Verb::Force => Some(event.cost),
        Verb::Settle(_) if decision.is_denied() => Some(1),
        Verb::Settle(_) => {
            let (charged, now) = (decision.cost(), decision.at());
            let fits_more = || limiter.force_at(now, 1).is_allowed();
            let is_true = charged == event.cost || (charged < event.cost && !fits_more());
            is_true.then_some(charged)
        }
    }
}

/// G4: one tick before `retry_at` the same call is denied, at that tick it passes.
fn check_retry(limiter: &Limiter, decision: &Decision) -> Result<(), TestCaseError> {
    let Some(retry_at) = decision.retry_at() else { return Ok(()) };
    let before = ns(retry_at.as_nanos() - 1);
    prop_assert!(limiter.peek_at(retry_at, decision.cost()).is_allowed(), "{decision:?}");
    prop_assert!(limiter.peek_at(before, decision.cost()).is_denied(), "{decision:?}");
    Ok(())
}

/// `full_at` is the first tick at which everything is free.
fn check_full(limiter: &Limiter, decision: &Decision) -> Result<(), TestCaseError> {
    let Some(full_at) = decision.full_at() else { return Ok(()) };
    prop_assert_eq!(limiter.available_at(full_at), decision.limit(), "{:?}", decision);
    if full_at > decision.at() && decision.limit() > 0 {
        let before = ns(full_at.as_nanos() - 1);
        let reset = limiter.peek_at(before, 0).full_at();
        prop_assert_eq!(reset, Some(full_at), "not full one tick earlier: {:?}", decision);
    }
    Ok(())
}

// ---- GCRA ---------------------------------------------------------------------------------------

/// A token bucket in exact fractions: the level in permits x period nanoseconds.
struct Bucket {
    count: i128,
    period: i128,
    burst: i128,
    level: i128,
    at: i128,
}

impl Bucket {
    fn new(quota: &Quota) -> Self {
        let period = quota.period().as_nanos() as i128;
        let burst = i128::from(quota.capacity()) * period;
        Self { count: quota.count().into(), period, burst, level: burst, at: 0 }
    }

    fn advance(&mut self, now: Tick) {
        let now = i128::from(now.as_nanos());
        self.level = (self.level + (now - self.at) * self.count).min(self.burst);
        self.at = now;
    }

    fn misses(&self, cost: u64) -> i128 {
        i128::from(cost) * self.period - self.level
    }

    fn take(&mut self, cost: u64) {
        self.level -= i128::from(cost) * self.period;
    }
}

/// The documented number of fraction bits.
fn fraction(quota: &Quota) -> u32 {
    let by_burst = (1_u128 << 58) / u128::from(quota.capacity().max(1));
    let by_rate = 4 * quota.period().as_nanos() / u128::from(quota.count());
    by_burst.min(by_rate).ilog2()
}

/// Two positions, the documented rounding of GCRA, in the bucket's unit (rounded up).
fn slack(quota: &Quota) -> i128 {
    (2 * quota.period().as_nanos()).div_ceil(1 << fraction(quota)) as i128
}

/// The documented largest debt, 2^59 positions, in the bucket's unit.
fn largest_debt(quota: &Quota) -> i128 {
    ((1_i128 << 59) >> fraction(quota)) * quota.period().as_nanos() as i128
}

fn gcra_quotas() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![
        Just(1_000_000_000_u64),
        Just(60_000_000_000),
        Just(2_592_000_000_000_000),
        1..10_000_000_000_u64,
    ];
    (period, any::<u64>(), prop_oneof![1..4_u64, 1..1000_u64, 1..1_000_000_000_000_u64]).prop_map(
        |(period, count, burst)| {
            // Rates of every size: as often small as large.
            let bits = 1 + count % 40;
            let count = ((count >> 8) % (1 << bits)).clamp(1, period);
            Quota::per(count, Duration::from_nanos(period)).burst(burst)
        },
    )
}

fn gcra_case() -> impl Strategy<Value = (Quota, Vec<Event>)> {
    gcra_quotas().prop_flat_map(|quota| {
        let permit_ns = (quota.period().as_nanos() as u64 / quota.count()).max(1);
        let scale = permit_ns.saturating_mul(quota.capacity().min(20)).min(1 << 50);
        (Just(quota), events(scale, quota.capacity()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn gcra_decides_like_an_exact_bucket((quota, events) in gcra_case(), start in 0..1_u64 << 57) {
        let limiter = limiter(Algorithm::Gcra, quota, 0).unwrap();
        let (mut bucket, slack) = (Bucket::new(&quota), slack(&quota));
        let mut now = ns(start);
        for event in events {
            now = ns((now.as_nanos() + event.gap_ns).min(Tick::HORIZON.as_nanos() - (1 << 56)));
            bucket.advance(now);
            let free = limiter.available_at(now);
            let decision = apply(&limiter, event, now);
            let cost = cost_of(&limiter, event, free, &decision);
            prop_assert_eq!(Some(decision.cost()), cost, "{:?}: {:?}", event, decision);
            let cost = decision.cost();
            let misses = bucket.misses(cost);
            match event.verb {
                Verb::Force if decision.is_never() => {
                    let debt = bucket.burst + misses;
                    prop_assert!(debt + slack >= largest_debt(&quota), "refused a debt of {debt}");
                }
                Verb::Force => prop_assert!(decision.is_allowed()),
                Verb::Settle(_) if free > 0 => {
                    prop_assert!(decision.is_allowed());
                    let debt = bucket.burst + misses + bucket.period + slack;
                    let is_all = cost == event.cost || debt >= largest_debt(&quota);
                    prop_assert!(is_all, "charged {cost} of {}", event.cost);
                }
                _ if cost > quota.capacity() => prop_assert!(decision.is_never()),
                // Never late: what the exact bucket admits, passes.
                _ if misses <= 0 => prop_assert!(decision.is_allowed(), "misses {misses}"),
                // Early by the documented rounding at most.
                _ => prop_assert!(decision.is_denied() || misses <= slack, "misses {misses}"),
            }
            if decision.is_allowed() {
                bucket.take(cost);
            } else if misses > 0 && cost <= quota.capacity() {
                let exact = (misses + bucket.count - 1) / bucket.count;
                let early = (slack + bucket.count - 1) / bucket.count;
                if let Some(wait) = decision.retry_after(now) {
                    let wait = wait.as_nanos() as i128;
                    prop_assert!(wait <= exact && wait >= exact - early, "{wait} for {exact}");
                }
            }
            let left = bucket.level.max(0) / bucket.period;
            let most = (bucket.level + slack).max(0) / bucket.period;
            let remaining = i128::from(decision.remaining());
            prop_assert!(remaining >= left && remaining <= most, "{remaining}: {left}..{most}");
            check_retry(&limiter, &decision)?;
            check_full(&limiter, &decision)?;
        }
    }
}

// ---- windows ------------------------------------------------------------------------------------

/// Everything that ever passed, and how the window algorithms judge it.
struct Diary {
    algorithm: Algorithm,
    limit: u128,
    window: u128,
    epoch: u128,
    passed: Vec<(u128, u128)>,
}

impl Diary {
    fn sum(&self, from: u128, to: u128) -> u128 {
        let inside = self.passed.iter().filter(|(at, _)| (from..to).contains(at));
        inside.map(|(_, cost)| cost).sum()
    }

    /// What the anchored window in force at `now` holds: windows begin with the first event after
    /// the last one ended.
    fn anchored(&self, now: u128) -> u128 {
        let (mut end, mut held) = (0, 0);
        for (at, cost) in &self.passed {
            if *at >= end {
                end = at + self.window;
                held = 0;
            }
            held += cost;
        }
        if now < end { held } else { 0 }
    }

    fn used(&self, now: u128) -> u128 {
        let wall = now + self.epoch;
        let start = wall - wall % self.window;
        // Times in the diary are on the wall's scale for aligned windows.
        match self.algorithm {
            Algorithm::FixedWindow => self.sum(start, wall + 1),
            Algorithm::AnchoredWindow => self.anchored(now),
            Algorithm::SlidingLog => self.sum((wall + 1).saturating_sub(self.window), wall + 1),
            _ => {
                let previous = self.sum(start.saturating_sub(self.window), start);
                let current = self.sum(start, wall + 1);
                (previous * (self.window - (wall - start)) + current * self.window) / self.window
            }
        }
    }
}

fn window_case() -> impl Strategy<Value = (Quota, u64, Vec<Event>)> {
    let window = prop_oneof![Just(64_000_u64), Just(1_000_000_000), 1..100_000_000_u64];
    (window, 0..120_u64, any::<u32>()).prop_flat_map(|(window, limit, epoch)| {
        let quota = Quota::per(limit.min(window), Duration::from_nanos(window));
        (Just(quota), Just(u64::from(epoch)), events(window, limit))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn windows_decide_like_a_diary(
        (quota, epoch, events) in window_case(), which in 1..5_usize, start in 0..1_u64 << 40,
    ) {
        let algorithm = Algorithm::ALL[which];
        // An anchored window starts at a multiple of its grain, 20 us for these limits.
        let anchored = algorithm == Algorithm::AnchoredWindow;
        let grain = if anchored { 20_000 } else { 1 };
        let limiter = limiter(algorithm, quota, epoch);
        prop_assert!(limiter.is_some() || anchored);
        prop_assume!(!anchored || quota.period() > Duration::from_millis(21));
        let Some(limiter) = limiter else { return Ok(()) };
        let mut diary = Diary {
            algorithm,
            limit: quota.count().into(),
            window: quota.period().as_nanos(),
            epoch: if anchored { 0 } else { epoch.into() },
            passed: Vec::new(),
        };
        let mut now = start / grain * grain;
        for event in events {
            now += event.gap_ns / grain * grain;
            let at = u128::from(now);
            let used = diary.used(at);
            let free = diary.limit.saturating_sub(used);
            prop_assert_eq!(u128::from(limiter.available_at(ns(now))), free);
            let decision = apply(&limiter, event, ns(now));
            let cost = cost_of(&limiter, event, free as u64, &decision);
            prop_assert_eq!(Some(decision.cost()), cost, "{:?}: {:?}", event, decision);
            let cost = u128::from(decision.cost());
            let is_used = matches!(event.verb, Verb::Force)
                || (matches!(event.verb, Verb::Settle(_)) && free > 0);
            let mut passes = is_used || used + cost <= diary.limit;
            if passes && decision.is_never() {
                // A word can hold at least twice the limit; more may be refused.
                prop_assert!(used + cost > 2 * diary.limit, "refused to force {cost} on {used}");
                passes = false;
            }
            prop_assert_eq!(decision.is_allowed(), passes, "{} used {} at {}", algorithm, used, now);
            prop_assert!(passes || decision.is_never() || cost <= diary.limit);
            if passes && cost > 0 {
                diary.passed.push((at + diary.epoch, cost));
            }
            let left = diary.limit.saturating_sub(diary.used(at));
            prop_assert_eq!(u128::from(decision.remaining()), left);
            check_retry(&limiter, &decision)?;
            check_full(&limiter, &decision)?;
            // A log folds what is forced beyond its limit; the diary does not.
            if algorithm == Algorithm::SlidingLog && diary.used(at) > diary.limit {
                return Ok(());
            }
        }
    }
}

proptest! {
    /// G3: a denied call leaves the limiter as it was, to the last permit and tick.
    #[test]
    fn a_denial_changes_nothing(
        which in 0..5_usize, cost in 1..30_u64, used in 0..20_u64, at in 0..3_000_000_000_u64,
    ) {
        let (limiter, _) = manual(Algorithm::ALL[which], "10/s");
        let _ = limiter.up_to_at(ns(at / 2), used);
        let _ = limiter.force_at(ns(at), used / 2);
        let picture = |limiter: &Limiter| {
            let peeks = (0..=11).map(|cost| limiter.peek_at(ns(at), cost)).collect::<Vec<_>>();
            (peeks, format!("{:?}", limiter.snapshot_at(ns(at))))
        };
        let before = picture(&limiter);
        let decision = limiter.try_acquire_at(ns(at), cost);
        prop_assume!(decision.is_denied());
        prop_assert_eq!(picture(&limiter), before.clone());
        prop_assert!(limiter.reserve_at(ns(at), 11, Duration::ZERO).is_err());
        prop_assert_eq!(picture(&limiter), before);
    }
}
