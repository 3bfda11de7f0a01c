//! The figures that clients get, compared with the true state.

use super::{ask, get, manual, status};
use http::{HeaderName, Request, Response};
use std::{convert::Infallible, time::Duration};
use tollgate::{
    Algorithm, Clock, Quota,
    store::{self, MemoryStore, Store},
};
use tollgate_tower::{
    ConcurrencyLayer, Info, Key, NotRun, Policy, RateLimitLayer, Settle,
    answer::{Headers, Legacy, OnSuccess},
    key::KeyBytes,
};
use tower::{Layer, ServiceExt};

const USED: HeaderName = HeaderName::from_static("x-used");

/// A service that reports the used permits, by the path.
async fn used(request: Request<String>) -> Result<Response<String>, Infallible> {
    let used = request.uri().path().trim_start_matches('/').to_owned();
    Ok(Response::builder().header(USED, used).body(String::new()).unwrap())
}

fn number(response: &Response<impl Sized>, name: &str) -> u64 {
    response.headers()[name].to_str().unwrap().parse().unwrap()
}

/// Sends a request for `actual` with an estimate of `cost`, and then another for 1, which shows the
/// state of the store. Returns (remaining, reset) as reported after settling, and as they are.
async fn told_and_true(
    algorithm: Algorithm,
    before: u64,
    cost: u64,
    actual: u64,
) -> [(u64, u64); 2] {
    let (builder, _, hand) = manual();
    hand.advance(Duration::from_secs(10));
    let policy = Policy::new("p", Quota::per_minute(20))
        .algorithm(algorithm)
        .cost_by(move |info| if info.uri().query().is_some() { 1 } else { cost })
        .settle(Settle::header(USED));
    let headers = Headers::new().legacy(Legacy::Delta);
    let limits = builder.policy(policy).headers(headers).build().unwrap();
    let send = async |path: &str| {
        let service = limits.layer(tower::service_fn(used));
        let response = service.oneshot(get(path)).await.unwrap();
        let remaining = response.headers().get("x-ratelimit-remaining");
        remaining.map(|_| {
            (number(&response, "x-ratelimit-remaining"), number(&response, "x-ratelimit-reset"))
        })
    };
    if before > 0 {
        for _ in 0..before {
            send("/1?").await;
        }
    }
    let told = send(&format!("/{actual}")).await.unwrap();
    // A request that costs 1: its response reports the state after it.
    let after = send("/1?").await.unwrap();
    [told, after]
}

/// Was a fault, medium: `corrected` moves the reset by the refill time of the difference at the
/// rate of the quota. That is right for GCRA, but a window ends at its fixed time. Users see
/// `X-RateLimit-Reset` and `t` that are too early (36 s instead of 60 s) or too late (84 s instead
/// of 60 s). Right: the figures that the store gives to the next request.
#[tokio::test]
async fn what_is_told_after_settling_is_what_is_so() {
    let mut wrong = Vec::new();
    for algorithm in Algorithm::ALL {
        // used by others before, estimate, actual
        for (before, cost, actual) in [(4, 10, 2), (4, 10, 10), (4, 2, 10), (0, 10, 0), (8, 10, 1)]
        {
            let [told, after] = told_and_true(algorithm, before, cost, actual).await;
            let row = format!("{algorithm} {before}+{cost}->{actual}");
            if told.0.checked_sub(1) != Some(after.0) {
                wrong.push(format!("{row}: {} left, then {}", told.0, after.0));
            }
            // One more permit of GCRA is back 3 s later; windows end at fixed times. The rest of a
            // sliding counter fades gradually, so its value is close but not equal.
            let is_right = match algorithm {
                Algorithm::Gcra => told.1 + 3 == after.1,
                _ if before + actual == 0 => true,
                Algorithm::SlidingCounter => (after.1 - 3..=after.1 + 6).contains(&told.1),
                _ => told.1 == after.1,
            };
            if !is_right {
                wrong.push(format!("{row}: reset {} s, is {} s", told.1, after.1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Was a fault, medium: The consequence: a client that retries at the reset finds half of its
/// quota, by every algorithm but GCRA.
#[tokio::test]
async fn a_client_that_waits_for_the_reset_it_was_told_has_its_whole_quota() {
    let mut wrong = Vec::new();
    for algorithm in Algorithm::ALL {
        let (builder, _, hand) = manual();
        hand.advance(Duration::from_secs(10));
        let policy = Policy::new("p", Quota::per_minute(20))
            .algorithm(algorithm)
            .cost_by(|info| if info.uri().query().is_some() { 1 } else { 10 })
            .settle(Settle::header(USED));
        let headers = Headers::new().legacy(Legacy::Delta);
        let limits = builder.policy(policy).headers(headers).build().unwrap();
        let send = async |path: &str| {
            limits.layer(tower::service_fn(used)).oneshot(get(path)).await.unwrap()
        };
        for _ in 0..10 {
            send("/1?").await;
        }
        let told = send("/0").await;
        let reset = number(&told, "x-ratelimit-reset");
        hand.advance(Duration::from_secs(reset));
        let mut passed = 0;
        while passed < 20 && send("/1?").await.status() == 200 {
            passed += 1;
        }
        if passed < 20 {
            wrong.push(format!("{algorithm}: {passed} of 20 after {reset} s"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Was a fault, medium: With `Legacy::Epoch` the layer writes `Date` from the time of the decision,
/// and the server then adds none. A response that took five minutes says it is five minutes old:
/// caches count that as its age. With a clock that has drifted (a suspended machine,
/// `Clock::to_wall` is measured at the start) every response has a wrong `Date`, where hyper would
/// have sent a right one. Right: the time when the response is made.
#[tokio::test]
async fn the_date_is_that_of_the_response() {
    let (clock, hand) = Clock::manual();
    clock.set_wall_offset(Duration::from_secs(784_111_777));
    let memory = MemoryStore::builder().clock(clock).build().unwrap();
    let limits = RateLimitLayer::builder()
        .memory(memory)
        .policy(Policy::new("p", Quota::per_hour(5)))
        .headers(Headers::new().legacy(Legacy::Epoch))
        .build()
        .unwrap();
    let slow = tower::service_fn(move |_: Request<String>| {
        let hand = hand.clone();
        async move {
            hand.advance(Duration::from_secs(300));
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let response = limits.layer(slow).oneshot(get("/")).await.unwrap();
    // The work takes five minutes from 08:49:37 on. A cache computes the age of a response from
    // `Date`.
    assert_eq!(response.headers()["date"], "Sun, 06 Nov 1994 08:54:37 GMT");
}

/// Was a fault, low: A response with `NotRun` reports one permit too few. Right: the permits after
/// giving back.
#[tokio::test]
async fn what_did_not_run_is_told_as_given_back() {
    let limits =
        RateLimitLayer::builder().policy(Policy::new("p", Quota::once(5))).build().unwrap();
    let sheds = tower::service_fn(|_: Request<String>| async {
        let mut response = Response::new(String::new());
        response.extensions_mut().insert(NotRun);
        Ok::<_, Infallible>(response)
    });
    let response = limits.layer(sheds).oneshot(get("/")).await.unwrap();
    assert_eq!(response.headers()["ratelimit"], "\"p\";r=5");
}

/// Was a fault, low: "If no wait can help, the response has no time" (src/answer.rs), but it has a
/// `t`, and a client that waits for it is refused again. Right: one of them.
#[tokio::test]
async fn a_refusal_that_no_wait_helps_tells_no_time() {
    let (builder, _, _hand) = manual();
    let policy = Policy::new("p", Quota::per_minute(5))
        .cost_by(|info| if info.uri().path() == "/big" { 9 } else { 1 });
    let limits = builder.policy(policy).build().unwrap();
    assert_eq!(status(&limits).await, 200);
    let refused = ask(&limits, "/big").await;
    assert!(!refused.headers().contains_key("retry-after"));
    assert_eq!(refused.headers()["ratelimit"], "\"p\";r=4");
}

/// Was a fault, low: 64 policies make `x-tollgate-policies` of 26 KB, which clients of HTTP/2
/// refuse (16 KB by default in hyper), so that the whole response is lost. All other headers have a
/// bound. Right: `LIST_MAX`.
#[tokio::test]
async fn debug_headers_stay_within_what_clients_take() {
    let builder = (0..64).fold(RateLimitLayer::builder(), |builder, number| {
        builder.policy(Policy::new(format!("{number:02}{}", "\\".repeat(120)), Quota::once(5)))
    });
    let limits = builder.debug_headers().build().unwrap();
    let response = ask(&limits, "/").await;
    let length: usize =
        response.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    assert!(length <= 8192, "{length} bytes of headers");
}

/// Was a fault, low: If a client has no token, `ConcurrencyLayer::keyed` answers that it "may not
/// pass", as if it were on a deny list, and `RateLimitLayer` answers that the request does not
/// identify its sender. Right: the latter.
#[tokio::test]
async fn nobody_known_is_told_the_same_by_both_layers() {
    use http_body_util::BodyExt;
    let policy = Policy::new("p", Quota::once(5)).key(Key::bearer());
    let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
    let rate = ask(&limits, "/").await.into_body().collect().await.unwrap().to_bytes();
    let each = tollgate::KeyedConcurrency::new(4).unwrap();
    let layer = ConcurrencyLayer::keyed(each, Key::bearer()).build().unwrap();
    let refused = layer.layer(tower::service_fn(super::hello)).oneshot(get("/")).await.unwrap();
    let refused = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(refused, rate);
}

/// Was a fault, medium: After settling upwards, `t` and `Retry-After` on success are for a call
/// that costs as much as this one *actually* did, although the next one costs the estimate: 60 s
/// instead of 3 s, by GCRA too. Clients of an LLM budget with low estimates wait twenty times too
/// long. Right: the time at which the same request passes again.
#[tokio::test]
async fn who_was_settled_into_debt_and_waits_as_told_is_let_in() {
    let mut wrong = Vec::new();
    for algorithm in Algorithm::ALL {
        for (cost, actual) in [(1, 20), (1, 25), (5, 60), (20, 21)] {
            let (builder, _, hand) = manual();
            hand.advance(Duration::from_secs(10));
            let policy = Policy::new("p", Quota::per_minute(20))
                .algorithm(algorithm)
                .cost(cost)
                .settle(Settle::header(USED));
            let headers = Headers::new().on_success(OnSuccess::LeftAndRetryAfter);
            let headers = headers.legacy(Legacy::Delta);
            let limits = builder.policy(policy).headers(headers).build().unwrap();
            let send = async |path: &str| {
                limits.layer(tower::service_fn(used)).oneshot(get(path)).await.unwrap()
            };
            let told = send(&format!("/{actual}")).await;
            let wait = number(&told, "retry-after");
            let next = send("/0").await;
            assert_eq!(next.status(), 429);
            let (really, reset) =
                (number(&next, "retry-after"), number(&next, "x-ratelimit-reset"));
            // Only GCRA knows when the next permit comes; the others report when all are back.
            let latest = if algorithm == Algorithm::Gcra { really } else { reset };
            if !(really..=latest).contains(&wait) {
                wrong.push(format!("{algorithm} {cost}->{actual}: told {wait} s, is {really} s"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// No fault: the remaining permits after settling are exact, with bursts and for quotas that do not
/// refill.
#[tokio::test]
async fn what_is_left_after_settling_is_what_is_so() {
    let quotas = [Quota::per_minute(20).burst(7), Quota::per_second(3).burst(30), Quota::once(12)];
    for quota in quotas {
        for (cost, actual) in [(5, 0), (5, 2), (5, 5), (2, 5), (1, 7), (5, 1)] {
            let (builder, store, hand) = manual();
            hand.advance(Duration::from_millis(12_345));
            let policy = Policy::new("p", quota).cost(cost).settle(Settle::header(USED));
            let limits = builder.policy(policy).build().unwrap();
            let told = limits.layer(tower::service_fn(used)).oneshot(get(&format!("/{actual}")));
            let told = told.await.unwrap();
            let told = told.headers()["ratelimit"].to_str().unwrap();
            let told: u64 = told[6..].split(';').next().unwrap().parse().unwrap();
            // A demand for the whole capacity makes the store report its remaining permits.
            let stored = store::Policy::new("p", quota).unwrap();
            let mut key = KeyBytes::new();
            let _known = Key::global().find(&Info::of(&get("/")), &mut key);
            let mut demands = [store::Demand::new(&stored, key.as_bytes(), quota.capacity() + 1)];
            let left = store.peek(&mut demands).await.unwrap().remaining();
            assert_eq!(told, left, "{quota} {cost}->{actual}");
        }
    }
}

/// Was a fault: a cost that was settled upwards by more than a debt can hold was not charged at
/// all. A client used 1000 of `Quota::once(20)` for 1, again and again; a prepaid budget of a
/// megabyte gave any number of gigabytes (`Settle::body_bytes`). For quotas that refill it took
/// absurd numbers, which a fault further in may send (`x-tokens-used` below zero, as an unsigned
/// number). Right: as much debt as fits (`Reservation::settle`).
#[tokio::test]
async fn a_cost_beyond_all_bounds_is_charged_as_far_as_it_goes() {
    let mut wrong = Vec::new();
    let windows = Algorithm::ALL.into_iter().map(|algorithm| (algorithm, Quota::per_minute(20)));
    let others = [Quota::once(20), Quota::per_day(20), Quota::per_second(1_000_000)];
    let others = others.map(|quota| (Algorithm::Gcra, quota));
    for (algorithm, quota) in windows.chain(others) {
        for actual in [40, 1_000, 1_000_000_000, 1 << 40, 1 << 62, u64::MAX] {
            if actual <= quota.capacity() {
                continue;
            }
            let (builder, _, _hand) = manual();
            let policy = Policy::new("p", quota).algorithm(algorithm);
            let policy = policy.settle(Settle::header(USED));
            let limits = builder.policy(policy).build().unwrap();
            let send = async |path: &str| {
                limits.layer(tower::service_fn(used)).oneshot(get(path)).await.unwrap().status()
            };
            assert_eq!(send(&format!("/{actual}")).await, 200);
            if send("/1").await == 200 {
                wrong.push(format!("{algorithm} {quota}: {actual} used, and it goes on"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
