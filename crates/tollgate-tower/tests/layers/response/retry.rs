//! A client that retries at the reported time passes.

use super::*;
use tollgate::{Algorithm, Limiter};
use tollgate_tower::answer::OnSuccess;

fn seconds(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name).map(|value| value.parse().unwrap())
}

#[test]
fn a_retry_at_retry_after_passes_for_each_algorithm() {
    for algorithm in Algorithm::ALL {
        for (quota, cost, start_ms) in [
            (Quota::per_second(3), 1, 0),
            (Quota::per(7, Duration::from_secs(10)), 2, 3_456),
            (Quota::per_minute(5), 5, 59_999),
            (Quota::per(2, Duration::from_millis(1_500)), 1, 777),
        ] {
            let (clock, hand) = Clock::manual();
            hand.advance(Duration::from_millis(start_ms));
            let builder = Limiter::builder(quota).algorithm(algorithm).clock(clock.clone());
            let limiter = builder.build().unwrap();
            let label = Label::builder("p", quota).algorithm(algorithm).build().unwrap();
            let refused = loop {
                let decision = limiter.try_acquire_n(cost);
                if decision.is_denied() {
                    break decision;
                }
                hand.advance(Duration::from_millis(1));
            };
            let parts = [Told::new(&label, refused)];
            let headers = written(Headers::new(), &Verdict::new(&clock, limiter.now(), &parts));
            let wait = seconds(&headers, "retry-after").unwrap();
            let exact = refused.retry_after(limiter.now()).unwrap();
            assert!(
                Duration::from_secs(wait)
                    < exact.max(Duration::from_secs(1)) + Duration::from_secs(1)
            );
            hand.advance(Duration::from_secs(wait));
            let again = limiter.try_acquire_n(cost);
            assert!(again.is_allowed(), "{algorithm:?}, {quota}, cost {cost}: after {wait} s");
        }
    }
}

#[test]
fn a_call_at_the_retry_after_of_a_success_passes_for_each_algorithm() {
    let choice = Headers::new().on_success(OnSuccess::LeftAndRetryAfter);
    for algorithm in Algorithm::ALL {
        for quota in [Quota::per_second(3), Quota::per_minute(5), Quota::per_hour(60)] {
            let (clock, hand) = Clock::manual();
            let builder = Limiter::builder(quota).algorithm(algorithm).clock(clock.clone());
            let limiter = builder.build().unwrap();
            let label = Label::builder("p", quota).algorithm(algorithm).build().unwrap();
            let parts = [Told::new(&label, limiter.try_acquire_n(quota.count()))];
            let headers = written(choice, &Verdict::new(&clock, limiter.now(), &parts));
            let wait = seconds(&headers, "retry-after").unwrap();
            if algorithm == Algorithm::Gcra {
                // The whole count at once needs all permits to be back.
                assert_eq!(wait, quota.period().as_secs());
            }
            hand.advance(Duration::from_secs(wait));
            assert!(limiter.try_acquire().is_allowed(), "{algorithm:?}, {quota}: after {wait} s");
        }
    }
}

#[test]
fn a_bucket_that_is_empty_tells_when_the_next_permit_comes() {
    let (clock, hand) = Clock::manual();
    let quota = Quota::per_minute(6).burst(60);
    let limiter = Limiter::builder(quota).clock(clock.clone()).build().unwrap();
    let label = label("p", quota);
    for _ in 0..59 {
        assert!(limiter.try_acquire().is_allowed());
    }
    let parts = [Told::new(&label, limiter.try_acquire())];
    let headers = written(Headers::new(), &Verdict::new(&clock, limiter.now(), &parts));
    assert_eq!(items(&headers, "ratelimit"), [item("p", &[("r", "0"), ("t", "10")])]);
    hand.advance(Duration::from_secs(10));
    assert!(limiter.try_acquire().is_allowed());
}
