//! An adaptive rate over limiters, keys and stores, on a manual clock.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{
    Algorithm, CallOutcome, Clock, Concurrency, Driver, KeyedLimiter, Limiter, ManualClock, Quota,
    adaptive::{
        LimitReason,
        law::LawError,
        rate::{
            AdaptiveRate, AimdRate, CpuLoad, CpuRate, CurrentPolicy, Health, LittleRate, Measures,
            Period, RateLaw, RateReport, StepRate, SuccessRate,
        },
    },
    store::{Demand, MemoryStore, Policy},
};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn keyed(quota: Quota) -> (KeyedLimiter<str>, ManualClock) {
    let (clock, hand) = Clock::manual();
    (KeyedLimiter::builder(quota).clock(clock).build().unwrap(), hand)
}

/// Longer than a period with its jitter.
fn next_period(hand: &ManualClock) {
    hand.advance(ms(1101));
}

fn aimd() -> AimdRate {
    let law = AimdRate::builder(10.0..=200.0).initial(100.0).step(5.0).factor(0.5);
    law.min_calls(1).build().unwrap()
}

#[test]
fn one_decision_per_period_moves_the_rate_of_every_key() {
    let (limiter, hand) = keyed(Quota::per_second(100).burst(200));
    let rate = AdaptiveRate::of_keys(&limiter, aimd()).build().unwrap();
    for (row, (is_good, expected, quota)) in [
        (true, 105.0, "105/s burst 210"),
        (true, 110.0, "110/s burst 220"),
        (false, 55.0, "55/s burst 110"),
        (false, 27.5, "55 per 2s burst 55"),
        (false, 13.75, "55 per 4s burst 27"),
        (false, 10.0, "10/s burst 20"),
        (false, 10.0, "10/s burst 20"),
    ]
    .into_iter()
    .enumerate()
    {
        // Within the period the rate does not move, whatever is reported.
        let before = rate.report().rate;
        for _ in 0..100 {
            if is_good {
                rate.success()
            } else {
                rate.failure()
            }
            assert_eq!(rate.report().rate, before, "row {row}");
        }
        next_period(&hand);
        rate.observe(CallOutcome::Ignore, SECOND);
        assert_eq!(rate.report().rate, expected, "row {row}");
        let quota: Quota = quota.parse().unwrap();
        assert_eq!((limiter.quota(), rate.quota()), (quota, quota), "row {row}");
    }
    let report = rate.report();
    assert_eq!((report.min, report.max, report.reason), (10.0, 200.0, LimitReason::AtMin));
    assert_eq!(report.last.map(|last| (last.failures, last.error_rate)), Some((100, Some(1.0))));
    assert_eq!(rate.law(), "aimd");
}

#[test]
fn latency_equal_to_the_threshold_counts_as_success() {
    for (latency, expected) in [(ms(50), 105.0), (ms(50) + Duration::from_nanos(1), 50.0)] {
        let (limiter, hand) = keyed(Quota::per_second(100));
        let law = AimdRate::builder(10.0..=200.0).initial(100.0).step(5.0).factor(0.5);
        let law = law.slow_above(ms(50)).build().unwrap();
        let rate = AdaptiveRate::of_keys(&limiter, law).build().unwrap();
        (0..10).for_each(|_| rate.observe(CallOutcome::Success, latency));
        next_period(&hand);
        rate.tick();
        assert_eq!(rate.report().rate, expected, "{latency:?}");
    }
    // And so does a p99 equal to its threshold, though the histogram rounds.
    for (latency, expected) in
        [(ms(500), 40.0), (ms(520), 20.0), (ms(2000), 20.0), (ms(2100), 10.0)]
    {
        let (limiter, hand) = keyed(Quota::per_second(40));
        let law = StepRate::builder(1.0..=40.0).build().unwrap();
        let rate = AdaptiveRate::of_keys(&limiter, law).build().unwrap();
        (0..200).for_each(|_| rate.observe(CallOutcome::Success, latency));
        next_period(&hand);
        rate.tick();
        assert_eq!(rate.report().rate, expected, "{latency:?}");
    }
}

/// Latencies get three times as long: more than a tenth exceed what 99 % did not exceed before.
#[test]
fn a_moving_threshold_notices_a_slower_service() {
    let (limiter, hand) = keyed(Quota::per_second(100));
    let law = AimdRate::builder(10.0..=100.0).factor(0.5).slow_above_recent(99.0).build().unwrap();
    let rate = AdaptiveRate::of_keys(&limiter, law).build().unwrap();
    let period = |factor: u64| {
        (1..=100).for_each(|it| rate.observe(CallOutcome::Success, ms(factor * it)));
        next_period(&hand);
        rate.tick();
        (rate.report().rate, rate.report().reason)
    };
    for _ in 0..20 {
        assert_eq!(period(1), (100.0, LimitReason::AtMax));
    }
    assert_eq!(period(3), (50.0, LimitReason::Queueing));
    // A lasting change becomes the new normal.
    let rates: Vec<f64> = (0..600).map(|_| period(3).0).collect();
    assert_eq!((rates[5], rates[599]), (10.0, 100.0));
}

#[test]
fn a_period_waits_for_its_calls_and_its_time() {
    let (limiter, hand) = keyed(Quota::per_second(100));
    let law = SuccessRate::builder(10.0..=100.0).target(0.9).build().unwrap();
    let rate = AdaptiveRate::of_keys(&limiter, law).build().unwrap();
    for _ in 0..9 {
        next_period(&hand);
        rate.failure();
        assert_eq!(rate.report().rate, 100.0, "fewer than ten calls");
    }
    rate.failure();
    assert_eq!(rate.report().rate, 90.0);
    // The next period has begun: 0.9 to 1.1 s.
    hand.advance(ms(899));
    (0..100).for_each(|_| rate.failure());
    assert_eq!(rate.report().rate, 90.0);
    hand.advance(ms(202));
    rate.failure();
    assert_eq!(rate.report().rate, 81.0);
    assert_eq!(rate.report().last.map(|it| it.failures), Some(101));
}

#[test]
fn nothing_happens_without_calls_or_a_driver() {
    let (limiter, hand) = keyed(Quota::per_second(100));
    let rate = AdaptiveRate::of_keys(&limiter, aimd()).build().unwrap();
    hand.advance(Duration::from_secs(3600));
    rate.tick();
    assert_eq!(rate.report().last, None);
    assert_eq!(hand.next_timer(), None);
}

#[test]
fn a_limiter_grows_only_while_it_is_used() {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder(Quota::per_second(100)).clock(clock).build().unwrap();
    let in_flight = Concurrency::new(20).unwrap();
    let rate = AdaptiveRate::of_limiter(&limiter, &in_flight, aimd()).build().unwrap();
    // (calls in 1.101 s, rate, reason): half of 100/s are 55 calls.
    for (calls, expected, reason) in [
        (54, 100.0, LimitReason::ApplicationLimited),
        (56, 105.0, LimitReason::Growing),
        (56, 105.0, LimitReason::ApplicationLimited),
        (120, 110.0, LimitReason::Growing),
    ] {
        (1..calls).for_each(|_| rate.success());
        next_period(&hand);
        rate.success();
        assert_eq!((rate.report().rate, rate.report().reason), (expected, reason), "{calls} calls");
    }
    assert_eq!(limiter.quota(), "110/s burst 110".parse().unwrap());
}

#[test]
fn the_cap_in_flight_and_the_latency_give_the_rate() {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder(Quota::per_second(5000)).clock(clock).build().unwrap();
    let in_flight = Concurrency::new(20).unwrap();
    let law = LittleRate::builder(10.0..=5000.0).smoothing(1.0).build().unwrap();
    let rate = AdaptiveRate::of_limiter(&limiter, &in_flight, law).build().unwrap();
    let period = || {
        (0..2000).for_each(|it| rate.observe(CallOutcome::Success, ms(20 + it % 7)));
        next_period(&hand);
        rate.tick();
        rate.report().rate
    };
    assert_eq!(period(), 1000.0);
    in_flight.set_limit(10).unwrap();
    assert_eq!(period(), 500.0);
}

#[test]
fn a_driver_decides_without_calls() {
    let (limiter, hand) = keyed(Quota::per_second(100).burst(500));
    let (cpu, dial) = CpuLoad::manual();
    let law = CpuRate::builder(10.0..=100.0).target(0.6).build().unwrap();
    let rate = AdaptiveRate::of_keys(&limiter, law).health(cpu).period(ms(250));
    let rate = rate.driver(Driver::manual(&hand)).build().unwrap();
    let run = |load, seconds: u64| {
        dial.set(load);
        (0..seconds * 10).for_each(|_| hand.advance(ms(100)));
        (rate.report().rate, rate.report().reason)
    };
    assert_eq!(run(0.62, 10), (100.0, LimitReason::Holding));
    let (falling, reason) = run(0.9, 2);
    assert!(falling > 30.0 && falling < 60.0 && reason == LimitReason::Overload, "{falling}");
    assert_eq!(run(0.95, 30), (10.0, LimitReason::AtMin));
    assert_eq!(limiter.quota(), Quota::per_second(10).burst(50));
    assert_eq!(run(0.3, 60), (100.0, LimitReason::AtMax), "all is well: the full limit");
    assert_eq!(rate.report().last.and_then(|last| last.cpu), Some(0.3));
    // The last clone ends the timer.
    drop(rate.clone());
    assert!(hand.next_timer().is_some());
    drop(rate);
    assert_eq!(hand.next_timer(), None);
}

/// A metrics system as a source of health.
#[derive(Debug)]
struct Metrics(Arc<OnceLock<AdaptiveRate>>, Arc<AtomicBool>);

impl Health for Metrics {
    fn error_rate(&mut self) -> Option<f64> {
        // A source may call back and report itself.
        if let Some(rate) = self.0.get() {
            rate.success();
            assert!(rate.report().rate > 0.0);
        }
        Some(if self.1.load(Relaxed) { 0.06 } else { 0.001 })
    }

    fn p99(&mut self) -> Option<Duration> {
        Some(ms(120))
    }
}

#[test]
fn steps_follow_a_metrics_source() {
    let (clock, hand) = Clock::manual();
    let users = CurrentPolicy::new(Policy::new("users", Quota::per_second(40)).unwrap());
    let (handle, is_bad) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(true)));
    let metrics = Metrics(Arc::clone(&handle), Arc::clone(&is_bad));
    let law = StepRate::builder(4.0..=40.0).build().unwrap();
    let rate = AdaptiveRate::of_policy(&users, law).health(metrics).clock(clock).build().unwrap();
    handle.set(rate.clone()).unwrap();
    let period = || {
        next_period(&hand);
        rate.tick();
        users.get().quota()
    };
    assert_eq!(period(), Quota::per_second(10).burst(10));
    is_bad.store(false, Relaxed);
    assert_eq!([period(), period()], [Quota::per_second(10).burst(10); 2]);
    assert_eq!(period(), Quota::per_second(11).burst(11));
    for _ in 0..20 {
        let _ = period();
    }
    assert_eq!(users.get().quota(), Quota::per_second(40).burst(40));
}

/// With every algorithm of a store, no state is lost when the rate moves.
#[test]
fn a_policy_of_a_store_moves_with_each_call() {
    for algorithm in Algorithm::ALL {
        let (clock, hand) = Clock::manual();
        hand.advance(Duration::from_secs(86_400));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let policy = Policy::with_algorithm("users", Quota::per_minute(600), algorithm).unwrap();
        let users = CurrentPolicy::new(policy);
        let law = AimdRate::builder(1.0..=10.0).factor(0.5).min_calls(1).build().unwrap();
        let rate = AdaptiveRate::of_policy(&users, law).clock(clock).build().unwrap();
        let take = |cost| store.acquire_one_now(&users.get(), b"alice", cost).unwrap();
        assert!(take(600).is_allowed(), "{algorithm}: all of a minute");
        for _ in 0..2 {
            next_period(&hand);
            rate.failure();
            // An exhausted key stays exhausted: a cut frees nothing.
            assert!(take(30).is_denied(), "{algorithm}");
        }
        assert_eq!((rate.report().rate, users.get().quota().capacity()), (2.5, 150), "{algorithm}");
        assert_eq!(store.len(), 1, "{algorithm}");
    }
}

#[test]
fn a_policy_whose_quota_comes_with_calls_has_no_rate() {
    let law = || AimdRate::builder(1.0..=10.0).build().unwrap();
    let current = CurrentPolicy::new(Policy::ad_hoc("throttle"));
    assert!(matches!(AdaptiveRate::of_policy(&current, law()).build(), Err(LawError::Quota(_))));
    assert!(current.set_quota(Quota::per_second(1)).is_err());
    let current = CurrentPolicy::new(Policy::new("once", Quota::once(5)).unwrap());
    assert!(matches!(AdaptiveRate::of_policy(&current, law()).build(), Err(LawError::Quota(_))));
    // 3/s divided by four would be a limit of 0.
    let current = CurrentPolicy::new(Policy::new("three", Quota::per_second(3)).unwrap());
    let law = StepRate::builder(0.75..=3.0).build().unwrap();
    let error = AdaptiveRate::of_policy(&current, law).build().unwrap_err();
    assert!(error.to_string().starts_with("min 0.75 brings less than one permit"), "{error}");
    assert_eq!(current.get().quota(), Quota::per_second(3), "and it stays as it was");
    let period = AdaptiveRate::of_policy(&current, aimd()).period(Duration::ZERO).build();
    assert!(matches!(period, Err(LawError::OutOfRange { setting: "period", .. })));
}

/// A law that returns a list of rates, one after the other.
#[derive(Debug)]
pub(crate) struct Script {
    report: RateReport,
    rates: Vec<f64>,
    next: usize,
}

impl Script {
    pub(crate) fn new(bounds: std::ops::RangeInclusive<f64>, rates: Vec<f64>) -> Self {
        let initial = rates[0].clamp(*bounds.start(), *bounds.end());
        Self { report: RateReport::starting(bounds, initial).unwrap(), rates, next: 0 }
    }
}

impl RateLaw for Script {
    fn decide(&mut self, _period: &Period) -> f64 {
        self.next += 1;
        self.rates[self.next % self.rates.len()]
    }

    fn report(&self) -> RateReport {
        self.report
    }

    fn name(&self) -> &'static str {
        "script"
    }

    fn measures(&self) -> Measures {
        Measures { min_calls: 0, ..Measures::default() }
    }
}

/// A driver decides once per period, whether or not calls are reported.
#[test]
fn a_driver_keeps_the_period() {
    for reports in [0, 1] {
        let (limiter, hand) = keyed(Quota::per_second(100));
        let law = Script::new(1.0..=100.0, (1..=100).map(f64::from).collect());
        let rate = AdaptiveRate::of_keys(&limiter, law).driver(Driver::manual(&hand));
        let (rate, mut decisions) = (rate.build().unwrap(), 0);
        for _ in 0..100 * 1000 / 10 {
            let before = rate.report().rate;
            hand.advance(ms(10));
            (0..reports).for_each(|_| rate.success());
            decisions += u32::from(rate.report().rate != before);
        }
        assert!((90..=111).contains(&decisions), "{decisions} decisions in 100 s");
    }
}

/// A law that users write cannot leave its bounds.
#[test]
fn a_foreign_law_is_held_to_its_bounds() {
    let (limiter, hand) = keyed(Quota::per_second(10));
    let law = Script::new(2.0..=10.0, vec![5.0, f64::NAN, 1.0, 1e300, f64::INFINITY, -1.0]);
    let rate = AdaptiveRate::of_keys(&limiter, law).build().unwrap();
    for expected in [5.0, 2.0, 10.0, 10.0, 2.0, 5.0] {
        next_period(&hand);
        rate.tick();
        assert_eq!(rate.report().rate, expected);
        assert_eq!(limiter.quota().count() as f64, expected);
    }
}

#[test]
fn reports_of_many_threads_all_count() {
    let (limiter, hand) = keyed(Quota::per_second(100));
    let rate = AdaptiveRate::of_keys(&limiter, aimd()).build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let rate = rate.clone();
            scope.spawn(move || (0..1000).for_each(|_| rate.success()));
        }
    });
    next_period(&hand);
    rate.tick();
    assert_eq!(rate.report().last.map(|last| last.calls()), Some(8000));
}

/// A store decides by the current policy together with others.
#[test]
fn a_current_policy_joins_other_demands() {
    let store = MemoryStore::new();
    let global = Policy::new("global", Quota::per_minute(1000)).unwrap();
    let users = CurrentPolicy::new(Policy::new("users", Quota::per_minute(60)).unwrap());
    let now = users.get();
    let mut demands = [Demand::new(&global, b"", 1), Demand::new(&now, b"alice", 1)];
    assert!(store.acquire_now(&mut demands).unwrap().is_allowed());
}

/// A waker that reports a call and triggers a decision.
#[cfg(feature = "tokio")]
struct Reporting(AdaptiveRate, AtomicBool);

#[cfg(feature = "tokio")]
impl std::task::Wake for Reporting {
    fn wake(self: Arc<Self>) {
        self.0.success();
        self.0.tick();
        assert!(self.0.report().rate > 0.0);
        self.1.store(true, Relaxed);
    }
}

/// A higher rate wakes waiting calls in the middle of the decision.
#[cfg(feature = "tokio")]
#[test]
fn a_waiter_that_is_woken_may_report() {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder(Quota::per_second(10)).clock(clock).build().unwrap();
    let in_flight = Concurrency::new(20).unwrap();
    let law = Script::new(1.0..=10.0, vec![1.0, 10.0]);
    let rate = AdaptiveRate::of_limiter(&limiter, &in_flight, law).period(ms(100));
    let rate = rate.build().unwrap();
    assert!(limiter.try_acquire().is_allowed());
    let woken = Arc::new(Reporting(rate.clone(), AtomicBool::new(false)));
    let waker = std::task::Waker::from(Arc::clone(&woken));
    let mut wait = Box::pin(limiter.acquire());
    let mut context = std::task::Context::from_waker(&waker);
    assert!(wait.as_mut().poll(&mut context).is_pending());
    hand.advance(ms(500));
    rate.tick();
    assert_eq!(rate.report().rate, 10.0);
    assert!(woken.1.load(Relaxed), "half a permit of 1/s is five of 10/s");
    assert!(wait.as_mut().poll(&mut context).is_ready());
}
