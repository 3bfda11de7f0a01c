//! The order of a client stack, and its consequences.

use super::*;
use bytes::Bytes;
use http_body_util::BodyExt;
use tollgate_tower::{Degraded, FallbackLayer, stack::StackError};

#[tokio::test(start_paused = true)]
async fn explain_lists_the_parts_from_the_outside_in() {
    let stack = full!(&breaker(), slots(3, 4).1, pace(ms(500)).1);
    let value = FallbackLayer::value(Response::new(Bytes::new())).build().unwrap();
    let stack = stack.fallback(value).build().unwrap();
    let expected = "\
client stack `payments`, from the outside in:
 1. fallback: answers calls that fail; outermost, so that it answers for refusals and timeouts of all others
 2. total timeout: total 5s; outside of the retries, so that it bounds all attempts and pauses together
 3. retry: up to 2 attempts within 30s, pauses of up to 100ms to 100ms, budget: 20 % of the successes and 10/s, kept for 10s, at most 100; outside of the breaker, so that each attempt counts and an open breaker ends the retrying
 4. hedge: up to 1 hedge, after 10s; inside of the retries and with their budget, so that both together stay within it
 5. self-throttle: lets 2 calls through for each that the server accepts, judged from 10 calls in the last 120s; refuses at most 90 %; before the rate, so that a call that is not sent uses none of it
 6. pace: by 10/s burst 2 of the client's, with waits of up to 500ms; inside of the retries, because the server counts attempts, and outside of the slots, because it waits
 7. breaker: opens at 2 failures in a row, judged from 20 calls in the last 10s; open for 1s, growing to 60s; 1 trials, of which 1 must succeed; checked before anything waits or is counted, and passed after the last long wait, so that an open one uses no rate, and outside of the slots, so that a refused call takes none
 8. concurrency: 3 in flight, a queue of 4 with waits of up to 1s; inside of the breaker, so that a refused call takes no slot, and outside of the attempt's timeout, which frees it
 9. attempt timeout: attempt 2s; innermost, so that an attempt that hangs frees its slot and counts for the breaker
";
    assert_eq!(stack.handle().explain(), expected);
    assert_eq!(stack.handle().name(), "payments");
}

#[tokio::test(start_paused = true)]
async fn a_setter_that_is_called_twice_replaces_the_part() {
    let stack = ClientStack::builder("payments")
        .total_timeout(total(ms(1_000)))
        .concurrency(slots(3, 0).1)
        .total_timeout(total(ms(2_000)))
        .build()
        .unwrap();
    let text = stack.handle().explain();
    assert!(text.contains(" 1. total timeout: total 2s; "), "{text}");
    assert!(text.contains(" 2. concurrency: 3 in flight, no queue; "), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[tokio::test(start_paused = true)]
async fn every_attempt_counts_for_the_breaker() {
    let breaker = breaker();
    let inner = Strict::new([status(429, 0), status(200, 0)]);
    let seen = inner.shared();
    let stack = full!(&breaker, slots(3, 0).1, pace(ms(500)).1).build().unwrap();
    let service = stack.layer(inner);
    assert_eq!(once(&service).await, Ok(200));
    assert_eq!(seen.starts(), [0, 100], "a repeat after the pause");
    assert_eq!((breaker.counts().ended, breaker.counts().failed), (2, 1));
    assert_eq!(stack.handle().report().retry.unwrap().retries, 1);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_ends_the_retrying_unless_its_time_fits_the_deadline() {
    let breaker = breaker();
    let inner = Strict::new([status(200, 0)]);
    let seen = inner.shared();
    let stack = full!(&breaker, slots(3, 0).1, pace(ms(500)).1).build().unwrap();
    let service = stack.layer(inner);
    // The breaker's time is beyond the deadline: refused at once.
    breaker.trip_for(ms(6_000));
    let refused = refusal(&service).await;
    assert_eq!((refused.part(), refused.retry_after()), ("breaker", Some(ms(6_000))));
    assert_eq!((seen.now_ms(), seen.starts()), (0, vec![]));
    // Within it: the retry is the trial.
    breaker.automatic();
    breaker.trip_for(ms(2_000));
    assert_eq!(once(&service).await, Ok(200));
    assert_eq!(seen.starts(), [2_100], "at its time, and the pause on top");
    assert!(breaker.state().is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_uses_no_rate_no_slot_and_no_time() {
    let breaker = breaker();
    let inner = Strict::new([status(200, 0)]);
    let seen = inner.shared();
    let (quota, pace) = pace(ms(500));
    let stack = full!(&breaker, slots(3, 0).1, pace).build().unwrap();
    let service = stack.layer(inner);
    breaker.hold_open();
    let _spent = quota.try_acquire_n(2);
    let level = quota.peek();
    for _ in 0..50 {
        let refused = refusal(&service).await;
        assert_eq!((refused.part(), refused.retry_after()), ("breaker", None));
        assert_eq!(refused.why(), "an operator opened it");
    }
    assert_eq!((quota.peek(), seen.now_ms()), (level, 0), "nobody waited for the rate");
    assert_eq!(breaker.counts().refused, 50);
    breaker.automatic();
    assert_eq!(once(&service).await, Ok(200));
}

#[tokio::test(start_paused = true)]
async fn a_call_refused_further_in_gives_its_rate_back_and_teaches_the_pace_nothing() {
    let inner = Strict::new([status(200, 1_000)]);
    let (quota, pace) = pace(ms(500));
    let stack = ClientStack::builder("payments").pace(pace).concurrency(slots(1, 0).1);
    let stack = stack.build().unwrap();
    let service = stack.layer(inner);
    let mut running = Box::pin(once(&service));
    assert!(poll_once(&mut running).is_pending());
    assert_eq!(quota.available(), 1);
    for _ in 0..5 {
        assert_eq!(refusal(&service).await.part(), "concurrency");
        assert_eq!(quota.available(), 1);
    }
    assert_eq!(stack.handle().report().pace.unwrap().stops, 0, "503 was not the server's");
    assert_eq!(running.await, Ok(200));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_hangs_frees_its_slot_and_counts_for_the_breaker() {
    let breaker = breaker();
    let inner = Strict::new([HANGS, HANGS, status(200, 0)]);
    let seen = inner.shared();
    let stack = full!(&breaker, slots(1, 0).1, pace(ms(500)).1).build().unwrap();
    let (service, handle) = (stack.layer(inner), stack.handle());
    for _ in 0..2 {
        assert_eq!(once(&service).await, Ok(504));
        assert_released(&handle, &seen, "after a timeout");
    }
    assert_eq!((seen.now_ms(), breaker.counts().failed), (4_000, 2));
    // Now it is open, and after its pause a trial closes it.
    assert_eq!(once(&service).await, Ok(200));
    assert_eq!(seen.now_ms(), 5_100);
    let report = handle.report();
    assert_eq!((report.calls.timed_out, report.calls.answered), (2, 1));
    assert_eq!(report.attempt_timeout.unwrap().attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn the_total_timeout_bounds_retries_and_waits() {
    let inner = Strict::new([status(429, 1_500)]);
    let seen = inner.shared();
    let budget = RetryBudget::unlimited();
    let many = RetryLayer::builder().max_attempts(9).backoff(Backoff::fixed(ms(100)));
    let many = many.budget(budget).clock(Clock::tokio()).build().unwrap();
    let stack = ClientStack::builder("payments").retry(many).total_timeout(total(ms(2_000)));
    let stack = stack.build().unwrap();
    assert_eq!(once(&stack.layer(inner)).await, Ok(504));
    assert_eq!((seen.now_ms(), seen.starts()), (2_000, vec![0, 1_600]));
    assert_released(&stack.handle(), &seen, "after the deadline");
}

#[tokio::test(start_paused = true)]
async fn the_fallback_answers_for_refusals_timeouts_and_errors() {
    let breaker = breaker();
    let inner = Strict::new([error("broken", 0), HANGS, status(200, 0)]);
    let value = Response::new(Bytes::from_static(b"[]"));
    let stack = ClientStack::builder("payments")
        .fallback(FallbackLayer::value(value).build().unwrap())
        .breaker(breaker_layer(&breaker))
        .attempt_timeout(attempt(ms(100)))
        .build()
        .unwrap();
    let (service, handle) = (stack.layer(inner), stack.handle());
    for (what, is_degraded) in
        [("an error", true), ("a timeout", true), ("an open breaker", true), ("all is well", false)]
    {
        if what == "all is well" {
            breaker.automatic();
        }
        let response = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(response.status(), 200, "{what}");
        assert_eq!(response.extensions().get::<Degraded>().is_some(), is_degraded, "{what}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, if is_degraded { "[]" } else { "200" }, "{what}");
    }
    let calls = handle.report().calls;
    assert_eq!((calls.failed, calls.timed_out, calls.answered, calls.degraded), (1, 1, 1, 3));
    assert_eq!(calls.refused, [("breaker", 1)]);
}

#[tokio::test(start_paused = true)]
async fn parts_that_contradict_each_other_are_refused() {
    let one = RetryBudget::builder().build().unwrap();
    let other = HedgePolicy::after(ms(10)).build().unwrap();
    let Ok(hedge) = HedgeLayer::builder(other).build();
    let named = || ClientStack::builder("payments");
    let rows: [(&str, StackError, &str); 7] = [
        ("no name", ClientStack::builder("").retry(retry(&one)).build().unwrap_err(), "TG-S01"),
        ("no part", named().build().unwrap_err(), "TG-S02"),
        (
            "total without a total",
            named().total_timeout(attempt(ms(1))).build().unwrap_err(),
            "TG-S03",
        ),
        (
            "attempt without one",
            named().attempt_timeout(total(ms(1))).build().unwrap_err(),
            "TG-S03",
        ),
        (
            "inverted",
            named()
                .total_timeout(total(ms(5)))
                .attempt_timeout(attempt(ms(6)))
                .build()
                .unwrap_err(),
            "TG-S04",
        ),
        (
            "two budgets",
            named().retry(retry(&one)).hedge(hedge.clone()).build().unwrap_err(),
            "TG-S05",
        ),
        (
            "a server without a handler's time",
            tollgate_tower::ServerStack::builder("shop")
                .handler_timeout(total(ms(1)))
                .build()
                .unwrap_err(),
            "TG-S03",
        ),
    ];
    for (row, error, code) in rows {
        assert_eq!(error.code(), code, "{row}: {error}");
        let (text, docs) = (error.to_string(), error.docs());
        assert!(text.contains(code) && text.contains(docs), "{row}: {text}");
        assert_eq!(docs, format!("{}/resilience.md#{}", crate::DOCS, code.to_lowercase()));
    }
    let shared = HedgePolicy::after(ms(10)).shared_budget(one.clone()).build().unwrap();
    let Ok(hedge) = HedgeLayer::builder(shared).build();
    assert!(named().retry(retry(&one)).hedge(hedge).build().is_ok());
    let same = named().total_timeout(total(ms(5))).attempt_timeout(attempt(ms(5)));
    assert!(same.build().is_ok());
}
