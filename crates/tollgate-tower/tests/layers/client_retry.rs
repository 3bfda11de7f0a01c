//! A client that repeats refused calls, on paused time.

use crate::DOCS;
use crate::stub::{Stub, get, response, seconds};
use http::{Method, Request, Response};
use std::time::Duration;
use tollgate_tower::client::{
    Backoff, PaceLayer, RetryBudget, RetryBuildError, RetryBuilder, RetryLayer,
};
use tower::{Layer, Service, ServiceExt};

/// A layer that pauses no longer than the server requires.
fn prompt() -> RetryBuilder {
    RetryLayer::builder().backoff(Backoff::fixed(Duration::ZERO)).budget(plenty())
}

fn plenty() -> RetryBudget {
    RetryBudget::unlimited()
}

/// Random pauses, the first of up to this many seconds and none above ten.
fn up_to(secs: u64) -> Backoff {
    Backoff::full_jitter(seconds(secs), seconds(10))
}

async fn send(layer: &RetryLayer, stub: &Stub, request: Request<()>) -> Response<()> {
    layer.layer(stub.clone()).oneshot(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_repeated() {
    const INFO: &str = "grpc-status: 8\ngrpc-status-details-bin: CAgSCXNsb3cgZG93bho2Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgoKCAgBEIDKte4B";
    for (method, status, headers, expected_ms) in [
        (Method::GET, 429, "", Some(0)),
        (Method::POST, 429, "", Some(0)),
        (Method::POST, 429, "Retry-After: 5", Some(5000)),
        (Method::POST, 403, "Retry-After: 5", Some(5000)),
        (Method::GET, 403, "", None),
        // An exhausted policy says when it refills, in any of the headers that are understood.
        (Method::POST, 429, "RateLimit: \"a\";r=0;t=5, \"b\";r=0;t=7, \"c\";r=1;t=9", Some(7000)),
        (Method::GET, 429, "RateLimit-Remaining: 0\nRateLimit-Reset: 5", Some(5000)),
        (Method::GET, 429, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1.5", Some(1500)),
        (Method::GET, 429, "X-RateLimit-Remaining-Second: 0", Some(1000)),
        (Method::GET, 429, "X-RateLimit-Remaining-Minute: 0", None),
        (Method::GET, 429, "X-RateLimit-Remaining: 3\nX-RateLimit-Reset: 5", Some(0)),
        (Method::GET, 429, "Retry-After: 2\nRateLimit: \"a\";r=0;t=5", Some(2000)),
        (Method::GET, 429, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 31", None),
        // GitHub's 403. A 403 with the draft's headers comes from another server.
        (Method::POST, 403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 5", Some(5000)),
        (Method::GET, 403, "X-RateLimit-Remaining: 1\nX-RateLimit-Reset: 5", None),
        (Method::GET, 403, "X-RateLimit-Remaining: none\nX-RateLimit-Reset: 5", None),
        (Method::GET, 403, "x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 5s", None),
        (Method::GET, 403, "RateLimit: \"a\";r=0;t=5", None),
        (Method::GET, 403, "RateLimit-Remaining: 0\nRateLimit-Reset: 5", None),
        (Method::GET, 503, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 5", None),
        (Method::GET, 503, "Retry-After: 5", Some(5000)),
        (Method::PUT, 503, "Retry-After: 5", Some(5000)),
        (Method::POST, 503, "Retry-After: 5", None),
        (Method::GET, 503, "", None),
        (Method::GET, 500, "Retry-After: 5", None),
        (Method::GET, 200, "Retry-After: 5", None),
        // Longer than the time allowed for all attempts.
        (Method::GET, 429, "Retry-After: 31", None),
        (Method::GET, 429, "Retry-After: 30", Some(30_000)),
        (Method::POST, 200, INFO, Some(1500)),
        (Method::POST, 200, "grpc-status: 8\ngrpc-retry-pushback-ms: 20", Some(20)),
        (Method::POST, 200, "grpc-status: 8", None),
        (Method::POST, 200, "grpc-status: 8\nRateLimit: \"a\";r=0;t=5", None),
        (Method::POST, 200, "grpc-status: 8\ngrpc-retry-pushback-ms: -1", None),
        (Method::GET, 429, "grpc-retry-pushback-ms: no", None),
        (Method::POST, 200, "grpc-status: 14\ngrpc-retry-pushback-ms: 20", None),
    ] {
        let stub = Stub::new({
            let first = std::sync::atomic::AtomicBool::new(true);
            // ORDERING: Relaxed. One thread.
            move |_| match first.swap(false, std::sync::atomic::Ordering::Relaxed) {
                true => response(status, headers),
                false => response(204, ""),
            }
        });
        let request = Request::builder().method(&method).uri("http://a/").body(()).unwrap();
        let last = send(&prompt().build().unwrap(), &stub, request).await;
        let repeat = stub.starts().get(1).map(Duration::as_millis);
        assert_eq!(repeat, expected_ms, "{method} {status} {headers}");
        let expected_status = if repeat.is_some() { 204 } else { status };
        assert_eq!(last.status(), expected_status, "{method} {status} {headers}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_may_be_done_twice_is_repeated_if_the_client_says_so() {
    let stub = Stub::scripted([(503, "Retry-After: 1"), (200, "")]);
    let mut request = Request::post("http://a/").body(()).unwrap();
    request.headers_mut().insert("idempotency-key", "7".parse().unwrap());
    assert_eq!(send(&prompt().build().unwrap(), &stub, request).await.status(), 200);
    let stub = Stub::scripted([(200, "grpc-status: 14"), (200, "")]);
    let mut request = Request::post("http://a/").body(()).unwrap();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let layer = prompt().unavailable().build().unwrap();
    assert!(send(&layer, &stub, request).await.headers().is_empty());
    let attempts = stub.seen(|(_, request)| {
        request
            .headers()
            .get("grpc-previous-rpc-attempts")
            .map(|it| it.to_str().unwrap().to_owned())
    });
    assert_eq!(attempts, [None, Some("1".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_the_last_refusal_is_returned() {
    let stub = Stub::scripted([(429, "x-call: 1"), (429, "x-call: 2"), (429, "x-call: 3")]);
    let layer = prompt().max_attempts(3).build().unwrap();
    let last = send(&layer, &stub, get("http://a/")).await;
    assert_eq!((stub.starts().len(), &last.headers()["x-call"]), (3, &"3".parse().unwrap()));
    let once = prompt().max_attempts(1).build().unwrap();
    send(&once, &stub, get("http://a/")).await;
    assert_eq!(stub.starts().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn all_time_together_is_bounded() {
    let stub = Stub::scripted([(429, "Retry-After: 4")]);
    let layer = prompt().max_attempts(99).max_elapsed(seconds(10)).build().unwrap();
    send(&layer, &stub, get("http://a/")).await;
    assert_eq!(stub.starts(), [seconds(0), seconds(4), seconds(8)]);
    assert_eq!(stub.now(), seconds(8));
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_shared_and_when_it_is_used_up_the_refusal_is_returned() {
    let stub =
        Stub::new(|request| response(if request.uri().path() == "/ok" { 200 } else { 429 }, ""));
    let budget = RetryBudget::builder().percent(10).min_per_second(0).build().unwrap();
    let layer = prompt().max_attempts(9).budget(budget.clone()).build().unwrap();
    let other = prompt().max_attempts(9).budget(budget).build().unwrap();
    assert_eq!(send(&layer, &stub, get("http://a/")).await.status(), 429);
    assert_eq!(stub.starts().len(), 1);
    for _ in 0..20 {
        send(&other, &stub, get("http://a/ok")).await;
    }
    assert_eq!(layer.budget().balance(), 2);
    // A refusal pays nothing, not even GitHub's 403.
    let github = Stub::scripted([(403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60")]);
    for _ in 0..20 {
        send(&other, &github, get("http://a/")).await;
    }
    assert_eq!(layer.budget().balance(), 2);
    // Twenty successes pay for two repeats.
    send(&layer, &stub, get("http://a/")).await;
    assert_eq!(stub.starts().len(), 1 + 20 + 3);
    assert_eq!(layer.budget().balance(), 0);
}

#[tokio::test(start_paused = true)]
async fn pauses_are_at_random_and_never_before_the_time_the_server_names() {
    let mut pauses = Vec::new();
    for _ in 0..50 {
        let stub = Stub::scripted([(429, "Retry-After: 2"), (200, "")]);
        let layer = RetryLayer::builder().backoff(up_to(4)).budget(plenty()).build().unwrap();
        send(&layer, &stub, get("http://a/")).await;
        pauses.push(stub.starts()[1]);
    }
    assert!(pauses.iter().all(|pause| (seconds(2)..=seconds(6)).contains(pause)), "{pauses:?}");
    // Fifty on one side of the middle happen once in 10^15 runs.
    assert!(pauses.iter().any(|pause| *pause < seconds(4)));
    assert!(pauses.iter().any(|pause| *pause > seconds(4)));
}

#[tokio::test(start_paused = true)]
async fn only_what_is_cloned_is_repeated() {
    let stub = Stub::scripted([(429, "")]);
    let clone = |request: &Request<()>| (request.uri().path() == "/yes").then(|| request.clone());
    let layer = prompt().max_attempts(2).clone_with(clone).build().unwrap();
    layer.layer(stub.clone()).oneshot(get("http://a/no")).await.unwrap();
    layer.layer(stub.clone()).oneshot(get("http://a/yes")).await.unwrap();
    assert_eq!(stub.paths(), ["/no", "/yes", "/yes"]);
}

#[tokio::test(start_paused = true)]
async fn repeats_are_paced_too() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "")]);
    let pace = PaceLayer::builder().build().unwrap();
    let retry = prompt().build().unwrap();
    let client = retry.layer(pace.layer(stub.clone()));
    let calls = (0..3).map(|n| client.clone().oneshot(get(&format!("http://a/{n}"))));
    let mut calls: Vec<_> = calls.map(tokio::spawn).collect();
    for call in &mut calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    // All calls but those in flight wait until then.
    assert!(stub.starts().iter().all(|at| *at == seconds(0) || *at >= seconds(5)));
}

#[tokio::test(start_paused = true)]
async fn a_service_is_ready_before_each_repeat() {
    #[derive(Clone)]
    struct Checked {
        stub: Stub,
        is_ready: bool,
    }
    impl Service<Request<()>> for Checked {
        type Response = Response<()>;
        type Error = std::convert::Infallible;
        type Future = <Stub as Service<Request<()>>>::Future;

        fn poll_ready(
            &mut self,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Self::Error>> {
            self.is_ready = true;
            self.stub.poll_ready(context)
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            assert!(std::mem::take(&mut self.is_ready), "it is called, but was not ready");
            self.stub.call(request)
        }
    }
    let stub = Stub::scripted([(429, ""), (429, ""), (200, "")]);
    let layer = prompt().build().unwrap();
    let mut client = layer.layer(Checked { stub: stub.clone(), is_ready: false });
    client.ready().await.unwrap().call(get("http://a/")).await.unwrap();
    assert_eq!(stub.starts().len(), 3);
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    let attempts = RetryLayer::builder().max_attempts(0).build().unwrap_err();
    assert_eq!(attempts, RetryBuildError::NoAttempt);
    let backoff = RetryLayer::builder().backoff(up_to(20)).build().unwrap_err();
    assert_eq!(backoff, RetryBuildError::Backoff { base: seconds(20), most: seconds(10) });
    assert_eq!(
        backoff.to_string(),
        "the first pause of 20s is longer than the longest pause, 10s; lower the first or raise \
         the second (TG-C22, see \
         https://github.com/tollgate-rs/tollgate/blob/main/docs/clients.md#tg-c22)"
    );
    // There is no known clock with which the default budget cannot be built.
    let budget = RetryBudget::builder().most(0).build().unwrap_err();
    let budget = RetryBuildError::Budget(budget);
    for (error, code) in [(attempts, "TG-C21"), (backoff, "TG-C22"), (budget, "TG-C23")] {
        let docs = format!("{DOCS}/clients.md#{}", code.to_ascii_lowercase());
        assert_eq!((error.code(), error.docs()), (code, &*docs));
        assert!(error.to_string().contains(';'), "{error}: no way out");
        assert!(error.to_string().ends_with(&format!("({code}, see {docs})")), "{error}");
    }
}

/// Was a fault: with four attempts allowed, 13 of 20 parallel calls to a server of 5/s returned the
/// 429, because a cold budget had one retry to give, and nothing said so.
#[tokio::test(start_paused = true)]
async fn a_cold_client_gets_twenty_parallel_calls_through_a_server_of_five_per_second() {
    let limiter = tollgate::Limiter::builder(tollgate::Quota::per_second(5));
    let limiter = limiter.clock(tollgate::Clock::tokio()).build().unwrap();
    let stub = Stub::new(move |_| match limiter.try_acquire().is_allowed() {
        true => response(200, ""),
        false => response(429, "Retry-After: 1"),
    });
    let layer = RetryLayer::builder().max_attempts(4).build().unwrap();
    let client = layer.layer(stub);
    let calls: Vec<_> =
        (0..20).map(|_| tokio::spawn(client.clone().oneshot(get("http://a/")))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(layer.counts().out_of_budget, 0);
    // Five pass at once. How often the others have to retry depends on their jitter.
    assert!(layer.counts().retries >= 15, "{:?}", layer.counts());
}

#[tokio::test(start_paused = true)]
async fn counts_tell_why_a_refusal_was_returned() {
    let stub = Stub::new(|_| response(429, "Retry-After: 1"));
    let empty = || RetryBudget::builder().min_per_second(0).build().unwrap();
    let layer = prompt().budget(empty()).build().unwrap();
    send(&layer, &stub, get("http://a/")).await;
    assert_eq!((layer.counts().out_of_budget, layer.budget().refused()), (1, 1));
    let layer = prompt().max_attempts(2).build().unwrap();
    send(&layer, &stub, get("http://a/")).await;
    assert_eq!((layer.counts().retries, layer.counts().out_of_attempts), (1, 1));
    let pace = PaceLayer::builder().build().unwrap();
    pace.layer(stub.clone()).oneshot(get("http://a/")).await.unwrap();
    assert_eq!((pace.counts().server_refused, pace.counts().refused), (1, 0));
}
