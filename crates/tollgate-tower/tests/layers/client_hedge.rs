//! Hedged calls: which are sent twice, whose answer is returned, and what is released.

use super::strict::{HANGS, Step, Strict, error, get, status};
use http::{HeaderValue, Request, Response, header};
use std::time::Duration;
use tokio::time::timeout;
use tollgate::{
    Breaker, CallOutcome, Clock, Concurrency, RetryBudget,
    hedge::{HedgePolicy, HedgePolicyBuilder},
};
use tollgate_tower::{
    ConcurrencyLayer, Deadline,
    client::{HedgeLayer, RetryLayer},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

const MS: Duration = Duration::from_millis(1);

fn after_50_ms() -> HedgePolicyBuilder {
    HedgePolicy::after(50 * MS).clock(Clock::tokio())
}

fn layer(policy: HedgePolicyBuilder) -> HedgeLayer {
    let Ok(layer) = HedgeLayer::builder(policy.build().unwrap()).build();
    layer
}

/// Status or error, the time of the answer and those of the attempts, in milliseconds.
type Run = (Result<u16, &'static str>, u64, Vec<u64>);

async fn run(layer: &HedgeLayer, request: Request<String>, steps: &[Step]) -> Run {
    let strict = Strict::new(steps.iter().copied());
    let shared = strict.shared();
    let mut service = layer.layer(strict);
    // The future outlives its answer, so it has to drop the losers itself.
    let mut call = std::pin::pin!(service.ready().await.unwrap().call(request));
    let answer = call.as_mut().await;
    assert_eq!(shared.running(), 0, "losers are dropped before the answer is returned");
    assert_eq!(shared.reserved(), 0, "nothing that is ready is left over");
    (answer.map(|response| response.status().as_u16()), shared.now_ms(), shared.starts())
}

#[tokio::test(start_paused = true)]
async fn the_first_success_is_returned() {
    for (row, (steps, answer, at_ms, starts)) in [
        (vec![status(200, 10)], Ok(200), 10, vec![0]),
        (vec![HANGS, status(200, 10)], Ok(200), 60, vec![0, 50]),
        (vec![status(404, 70), status(200, 10)], Ok(200), 60, vec![0, 50]),
        (vec![status(200, 70), status(503, 10)], Ok(200), 70, vec![0, 50]),
        (vec![status(404, 55), HANGS], Ok(404), 55, vec![0, 50]), // an answer, not a failure
        (vec![status(503, 55), status(500, 10)], Ok(503), 60, vec![0, 50]),
        (vec![error("broken", 10)], Err("broken"), 10, vec![0]),
        (vec![error("broken", 55), status(200, 10)], Ok(200), 60, vec![0, 50]),
        (vec![error("broken", 90), status(503, 10)], Err("broken"), 90, vec![0, 50]),
    ]
    .into_iter()
    .enumerate()
    {
        let found = run(&layer(after_50_ms()), get("/"), &steps).await;
        assert_eq!(found, (answer, at_ms, starts), "row {row}: {steps:?}");
    }
    let any = layer(after_50_ms().first_answer_wins());
    let found = run(&any, get("/"), &[HANGS, error("broken", 10)]).await;
    assert_eq!(found, (Err("broken"), 60, vec![0, 50]));
    assert_eq!((any.counts().calls, any.counts().hedges, any.counts().wins), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn only_calls_that_may_be_made_twice_are_hedged() {
    let slow = [status(200, 100), status(200, 0)];
    let request = |method: &str| {
        Request::builder().method(method).uri("/orders").body(String::new()).unwrap()
    };
    for (method, is_hedged) in [
        ("GET", true),
        ("HEAD", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
    ] {
        let (_, _, starts) = run(&layer(after_50_ms()), request(method), &slow).await;
        assert_eq!(starts.len() == 2, is_hedged, "{method}");
    }
    let mut with_key = request("POST");
    with_key.headers_mut().insert("idempotency-key", HeaderValue::from_static("1"));
    assert_eq!(run(&layer(after_50_ms()), with_key, &slow).await.2, [0, 50]);

    let policy = after_50_ms().build().unwrap();
    let Ok(orders) =
        HedgeLayer::builder(policy.clone()).hedge_if(|info| info.uri().path() == "/orders").build();
    assert_eq!(run(&orders, request("POST"), &slow).await.2, [0, 50]);
    assert_eq!(run(&orders, get("/"), &slow).await.2, [0]);
    assert_eq!(policy.counts().calls, 1, "a call that cannot be hedged is not counted");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_cloned_is_sent_once_unless_a_closure_clones_it() {
    /// A body without `Clone`.
    struct Upload(&'static str);
    let service = tower::service_fn(async |request: Request<Upload>| {
        let _over = timeout(100 * MS, std::future::pending::<()>()).await;
        Ok::<_, &'static str>(Response::new(request.into_body().0))
    });
    let clone = |request: &Request<Upload>| {
        let text = request.body().0;
        (text == "short").then(|| Request::put("/").body(Upload(text)).unwrap())
    };
    let policy = after_50_ms().build().unwrap();
    let Ok(layer) = HedgeLayer::builder(policy.clone()).clone_with(clone).build();
    for (body, hedges) in [("short", 1), ("long", 1)] {
        let request = Request::put("/").body(Upload(body)).unwrap();
        let response = layer.clone().layer(service).oneshot(request).await.unwrap();
        assert_eq!((*response.body(), policy.counts().hedges), (body, hedges));
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_a_service_of_its_own_that_was_ready() {
    // `Strict` panics if it is called without being ready.
    let strict = Strict::new([HANGS, HANGS, status(200, 5)]);
    let shared = strict.shared();
    let mut service = layer(after_50_ms().max_hedges(2)).layer(strict);
    service.ready().await.unwrap();
    shared.ready_takes(30);
    assert_eq!(service.call(get("/")).await.unwrap().status(), 200);
    assert_eq!(
        shared.starts(),
        [0, 80, 130],
        "hedges are due at 50 and 100, and ready 30 ms later"
    );
    assert_eq!(shared.now_ms(), 135);
    assert_eq!((shared.running(), shared.reserved()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_drops_all_attempts() {
    for cancelled_after in [0, 20, 50, 60, 80, 130] {
        let strict = Strict::new([HANGS]);
        let shared = strict.shared();
        let mut service = layer(after_50_ms()).layer(strict);
        service.ready().await.unwrap();
        shared.ready_takes(30);
        let call = service.call(get("/"));
        assert!(timeout(MS * cancelled_after, call).await.is_err());
        let found = (shared.running(), shared.reserved());
        assert_eq!(found, (0, 0), "after {cancelled_after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn hedges_take_slots_of_their_own_and_give_them_back() {
    // tower's limit takes a slot in `poll_ready`.
    let strict = Strict::new([HANGS, status(200, 10)]);
    let shared = strict.shared();
    let limited = tower::limit::ConcurrencyLimit::new(strict, 2);
    let mut service = layer(after_50_ms()).layer(limited);
    for call in 1..=3 {
        let answer = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(answer.status(), 200, "call {call}");
    }
    assert_eq!(shared.running(), 0);

    // A single slot: the hedge never becomes ready, and the first attempt goes on.
    let limited = tower::limit::ConcurrencyLimit::new(Strict::new([status(200, 100)]), 1);
    let answer = layer(after_50_ms()).layer(limited).oneshot(get("/")).await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_budget_and_a_retry_layer_may_own_it() {
    let budget = RetryBudget::builder().percent(100).min_per_second(0).clock(Clock::tokio());
    let budget = budget.build().unwrap();
    let retry = RetryLayer::builder().budget(budget.clone()).build().unwrap();
    let hedge = layer(after_50_ms().shared_budget(retry.budget().clone()));
    let strict = Strict::new([status(200, 0), HANGS, status(200, 10), HANGS]);
    let shared = strict.shared();
    let service = ServiceBuilder::new().layer(retry).layer(hedge.clone()).service(strict);
    assert_eq!(service.clone().oneshot(get("/")).await.unwrap().status(), 200);
    assert_eq!(budget.balance(), 1, "one success counts once");
    assert_eq!(service.clone().oneshot(get("/")).await.unwrap().status(), 200);
    assert_eq!((budget.balance(), hedge.counts().hedges), (1, 1), "one spent, one earned");
    assert!(!budget.try_withdraw() || !budget.try_withdraw());
    let hangs = timeout(200 * MS, service.clone().oneshot(get("/"))).await;
    assert!(hangs.is_err());
    assert_eq!((hedge.counts().hedges, hedge.counts().out_of_budget), (1, 1));
    assert_eq!(shared.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn overload_stops_hedges() {
    let slow = [status(200, 100)];
    let breaker = Breaker::builder().clock(Clock::tokio()).build().unwrap();
    let limit = Concurrency::new(1).unwrap();
    let layer = layer(after_50_ms().breaker(&breaker).concurrency(&limit));
    assert_eq!(run(&layer, get("/"), &slow).await.2, [0, 50]);
    breaker.hold_open();
    assert_eq!(run(&layer, get("/"), &slow).await.2, [0]);
    breaker.hold_closed();
    let permit = limit.try_acquire().unwrap();
    assert_eq!(run(&layer, get("/"), &slow).await.2, [0]);
    drop(permit);
    assert_eq!(run(&layer, get("/"), &slow).await.2, [0, 50]);
}

#[tokio::test(start_paused = true)]
async fn no_hedge_starts_after_the_deadline_of_the_request() {
    let slow = [status(200, 100), status(200, 0)];
    for (left, starts) in [(50, vec![0]), (51, vec![0, 50])] {
        let mut request = get("/");
        request.extensions_mut().insert(Deadline::after(&Clock::tokio(), MS * left));
        assert_eq!(run(&layer(after_50_ms()), request, &slow).await.2, starts, "{left} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_layer_further_in_does_not_beat_a_running_attempt() {
    // The first attempt has the only slot.
    let limit = ConcurrencyLayer::builder(Concurrency::new(1).unwrap()).build().unwrap();
    let strict = Strict::new([status(200, 100)]);
    let shared = strict.shared();
    let hedge = layer(after_50_ms());
    let stack = ServiceBuilder::new().layer(hedge.clone()).layer(limit).service(strict);
    assert_eq!(stack.oneshot(get("/")).await.unwrap().status(), 200);
    assert_eq!((hedge.counts().hedges, hedge.counts().wins, shared.starts()), (1, 0, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn hedges_of_grpc_say_which_attempt_they_are() {
    let policy = after_50_ms().max_hedges(2).build().unwrap();
    let Ok(layer) = HedgeLayer::builder(policy).hedge_if(|info| info.is_grpc()).build();
    // The first of two attempts of a retry, and the second.
    for before in [None, Some("1")] {
        let strict = Strict::new([HANGS, HANGS, status(200, 5)]);
        let shared = strict.shared();
        let mut request = Request::post("/shop.Catalogue/Get").body(String::new()).unwrap();
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let name = "grpc-previous-rpc-attempts";
        before.map(|count| headers.insert(name, HeaderValue::from_static(count)));
        layer.layer(strict).oneshot(request).await.unwrap();
        let seen = shared.headers();
        let found = [0, 1, 2].map(|attempt: usize| {
            seen[attempt].get(name).map_or("none", |count| count.to_str().unwrap())
        });
        let expected = if before.is_none() { ["none", "1", "2"] } else { ["1", "2", "3"] };
        assert_eq!(found, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_classifier_may_wait_for_other_answers() {
    let policy = after_50_ms().build().unwrap();
    let Ok(layer) = HedgeLayer::builder(policy)
        .classify(|head| match head.status.as_u16() {
            404 => CallOutcome::Failure, // a replica that lags
            _ => CallOutcome::Success,
        })
        .build();
    let found = run(&layer, get("/"), &[status(404, 55), status(200, 20)]).await;
    assert_eq!(found, (Ok(200), 70, vec![0, 50]));
}
