//! Every part that refuses reports it through the whole stack: its name, the reason, and when to
//! retry.

use super::*;
use tollgate::Priority;
use tollgate_tower::{AdaptiveLayer, Deadline};

/// Part, reason, wait.
type Row = (&'static str, &'static str, Option<Duration>);

#[tokio::test(start_paused = true)]
async fn the_breaker() {
    let breaker = breaker();
    let inner = Strict::new([status(500, 0)]);
    let stack = full!(&breaker, slots(3, 0).1, pace(ms(0)).1).build().unwrap();
    let service = stack.layer(inner);
    for _ in 0..2 {
        assert_eq!(once(&service).await, Ok(500));
    }
    // The retry waits for a second, as required: the trial fails, and the breaker opens for two.
    assert_eq!(once(&service).await, Ok(500));
    breaker.hold_open();
    assert_eq!(refusal(&service).await.why(), "an operator opened it");
    breaker.automatic();
    breaker.trip_for(ms(9_000));
    let refused = refusal(&service).await;
    assert_eq!((refused.part(), refused.retry_after()), ("breaker", Some(ms(9_000))));
    assert_eq!(stack.handle().report().calls.refused, [("breaker", 2)]);
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_limit() {
    let inner = Strict::new([HANGS]);
    let stack = full!(&breaker(), slots(1, 0).1, pace(ms(0)).1).build().unwrap();
    let service = stack.layer(inner);
    let mut running = Box::pin(once(&service));
    assert!(poll_once(&mut running).is_pending());
    let refused = refusal(&service).await;
    let row: Row = (refused.part(), refused.why(), refused.retry_after());
    assert_eq!(row, ("concurrency", "all slots are taken", None));
    assert_eq!(stack.handle().report().calls.refused, [("concurrency", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit() {
    let limit = tollgate::adaptive::AdaptiveConcurrency::over(
        Concurrency::builder(0).clock(Clock::tokio()).build().unwrap(),
        tollgate::adaptive::law::Aimd::builder().min(1).initial(1).build().unwrap(),
    );
    let layer = AdaptiveLayer::builder(limit).build().unwrap();
    let stack = ClientStack::builder("payments").adaptive(layer).build().unwrap();
    let service = stack.layer(Strict::new([HANGS]));
    let mut running = Box::pin(once(&service));
    assert!(poll_once(&mut running).is_pending());
    assert_eq!(refusal(&service).await.part(), "concurrency");
    let [report] = stack.handle().report().limits[..] else { panic!("one limit") };
    assert_eq!((report.part, report.limit, report.in_flight), ("concurrency", 1, 1));
    assert!(report.reason.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_pace() {
    let inner = Strict::new([status(200, 0)]);
    let (quota, pace) = pace(ms(0));
    let stack = ClientStack::builder("payments").pace(pace).build().unwrap();
    let service = stack.layer(inner);
    let _spent = quota.try_acquire_n(2);
    let refused = refusal(&service).await;
    assert_eq!((refused.part(), refused.retry_after()), ("pace", Some(ms(100))));
    // With a retry layer outside, the call is sent at exactly that time.
    let (quota, pace) = super::pace(ms(0));
    let _spent = quota.try_acquire_n(2);
    let inner = Strict::new([status(200, 0)]);
    let seen = inner.shared();
    let stack = full!(&breaker(), slots(3, 0).1, pace).build().unwrap();
    assert_eq!(once(&stack.layer(inner)).await, Ok(200));
    assert_eq!(seen.starts(), [200], "at its time, and the pause of the retry on top");
}

#[tokio::test(start_paused = true)]
async fn the_self_throttle() {
    let throttle = SelfThrottle::builder().min_calls(1).max_refusal_percent(99).seed(1);
    let throttle = throttle.clock(Clock::tokio()).build().unwrap();
    let Ok(layer) = SelfThrottleLayer::builder(throttle.clone()).build();
    let stack = ClientStack::builder("payments").throttle(layer).build().unwrap();
    let service = stack.layer(Strict::new([status(503, 0)]));
    let mut refused = 0;
    for _ in 0..200 {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        if let Some(by) = response.extensions().get::<RefusedBy>() {
            assert_eq!((by.part(), by.retry_after()), ("self-throttle", None));
            refused += 1;
        }
    }
    let report = stack.handle().report();
    assert_eq!(report.calls.refused, [("self-throttle", refused)]);
    assert_eq!(report.throttle, Some(throttle.refusal_probability(Priority::NORMAL)));
    assert!(refused > 100 && report.throttle.unwrap() > 0.9, "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_passed() {
    let stack = full!(&breaker(), slots(1, 0).1, pace(ms(0)).1).build().unwrap();
    let inner = Strict::new([status(200, 0)]);
    let seen = inner.shared();
    let service = stack.layer(inner);
    let mut request = get("/");
    request.extensions_mut().insert(Deadline::after(&Clock::tokio(), Duration::ZERO));
    let response = service.oneshot(request).await.unwrap();
    let refused: &RefusedBy = response.extensions().get().unwrap();
    assert_eq!((refused.part(), refused.why()), ("timeout", "the deadline had passed"));
    assert_released(&stack.handle(), &seen, "a late call");
    assert_eq!(seen.starts(), Vec::<u64>::new());
    assert_eq!(stack.handle().report().calls.refused, [("timeout", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_others() {
    let other = tower::service_fn(|_: Request<String>| async {
        let mut response = Response::new(String::new());
        response.extensions_mut().insert(RefusedBy::new("cache", "it is cold", None));
        Ok::<_, &'static str>(response)
    });
    let stack = full!(&breaker(), slots(1, 0).1, pace(ms(0)).1).build().unwrap();
    assert_eq!(refusal(&stack.layer(other)).await.part(), "cache");
    let report = stack.handle().report();
    assert_eq!(report.calls.refused, [("other", 1)]);
    assert_eq!(report.breaker.unwrap().1.ended, 0, "a refusal is no outcome");
}
