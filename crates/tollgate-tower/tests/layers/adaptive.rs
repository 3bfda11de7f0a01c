//! The layer whose limit adapts: its measurements, the order in which it serves requests, and its
//! refusals.

mod measure;
pub(crate) mod shed;
mod wait;

use crate::concurrency::{Head, Inner, Sender, ask, limited, request};
use http::{Request, Response};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::mpsc;
use tollgate::{
    CallOutcome, Clock, Concurrency, ConcurrencyBuilder, ManualClock, Quota,
    adaptive::{AdaptiveConcurrency, Law, LimitReason, Partitions, Sample},
};
use tollgate_tower::{
    AdaptiveLayer, AdaptiveLayerBuilder, ConcurrencyLimit, NotRun, Policy, RateLimitLayer,
    Shedding, key::Trust,
};
use tower::{Layer, Service, ServiceExt};

const MS: Duration = Duration::from_millis(1);

type Service1 = ConcurrencyLimit<Inner>;
type Senders = mpsc::UnboundedReceiver<Sender>;

/// A law that keeps its limit fixed, and records all samples.
#[derive(Clone, Debug, Default)]
struct Recorder {
    limit: u64,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl Law for Recorder {
    fn observe(&mut self, sample: &Sample) -> u64 {
        self.samples.lock().unwrap().push(*sample);
        self.limit
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn reason(&self) -> LimitReason {
        LimitReason::Holding
    }

    fn name(&self) -> &'static str {
        "recorder"
    }
}

impl Recorder {
    fn of(limit: u64) -> Self {
        Self { limit, samples: Arc::default() }
    }

    fn over(&self, enforced: ConcurrencyBuilder) -> AdaptiveConcurrency {
        AdaptiveConcurrency::over(enforced.build().unwrap(), self.clone())
    }

    /// Returns latency and outcome of the samples since the last call.
    fn seen(&self) -> Vec<(Duration, CallOutcome)> {
        let samples = std::mem::take(&mut *self.samples.lock().unwrap());
        samples.iter().map(|sample| (sample.rtt(), sample.outcome)).collect()
    }
}

/// A service behind a limit that never changes, on a manual clock.
struct Scene {
    hand: ManualClock,
    law: Recorder,
    limit: AdaptiveConcurrency,
    service: Service1,
    senders: Senders,
}

fn scene(limit: u64, change: impl FnOnce(AdaptiveLayerBuilder) -> AdaptiveLayerBuilder) -> Scene {
    let ((clock, hand), law) = (Clock::manual(), Recorder::of(limit));
    let limit = law.over(Concurrency::builder(0).name("adaptive").clock(clock));
    let layer = change(AdaptiveLayer::builder(limit.clone())).build().unwrap();
    let (service, senders) = limited(&layer);
    Scene { hand, law, limit, service, senders }
}

fn with_head(head: Response<()>) -> Request<String> {
    let mut request = request("/");
    request.extensions_mut().insert(Head(head));
    request
}

fn head(status: u16, fields: &[(&'static str, &str)]) -> Response<()> {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap()
}

#[tokio::test]
async fn a_refusal_is_503_with_a_time_and_costs_nothing_further_out() {
    let Scene { limit, law, service, .. } = scene(1, |builder| builder);
    let rate = RateLimitLayer::builder().policy(Policy::new("p", Quota::per_hour(2)));
    let outer = rate.build().unwrap().layer(service.clone());
    let held = outer.clone().oneshot(request("/")).await.unwrap();
    for _ in 0..10 {
        let refused = outer.clone().oneshot(request("/")).await.unwrap();
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers()["retry-after"], "1");
    }
    let refused = ask(&service, request("/")).await;
    assert!(refused.extensions().get::<NotRun>().is_some());
    let policy = &refused.headers()["ratelimit-policy"];
    assert_eq!(policy, r#""adaptive";q=1;qu="concurrent-requests""#);
    assert_eq!(law.seen().len(), 1, "only the call that ran is a sample");
    drop(held);
    assert_eq!(limit.report().in_flight, 0);
    assert_eq!(outer.clone().oneshot(request("/")).await.unwrap().status(), 200);
    assert_eq!(outer.oneshot(request("/")).await.unwrap().status(), 429, "two have run");
}

#[tokio::test]
async fn the_law_moves_the_limit_of_all_clones() {
    let law = tollgate::adaptive::law::Aimd::builder().initial(2).min(1).max(10).build().unwrap();
    let limit = AdaptiveConcurrency::over(Concurrency::new(0).unwrap(), law);
    let layer = AdaptiveLayer::builder(limit.clone()).build().unwrap();
    let (one, _senders) = limited(&layer);
    let (other, _others) = limited(&layer.clone());
    let mut held = vec![ask(&one, request("/")).await, ask(&other, request("/")).await];
    let grown = limit.report().limit;
    assert!(grown > 2, "calls at the limit that succeed raise it: {grown}");
    while limit.report().in_flight < limit.report().limit {
        held.push(ask(&other.clone(), request("/")).await);
    }
    assert_eq!(held.len(), 10, "the maximum");
    assert_eq!(ask(&one, request("/")).await.status(), 503, "one limit for all");
    drop(held);
    for _ in 0..20 {
        drop(ask(&one, with_head(head(503, &[]))).await);
    }
    assert_eq!(limit.report().limit, 1, "overload lowers it");
}

#[tokio::test]
async fn partitions_have_shares_and_exempt_requests_no_limit() {
    let limit = Recorder::of(4).over(Concurrency::builder(0));
    let shares = Partitions::builder(&limit).share("web", 75).share("jobs", 25).build().unwrap();
    let partition = |info: &tollgate_tower::Info<'_>| info.uri().path()[1..].to_owned();
    let layer = AdaptiveLayer::partitioned(shares.clone(), partition);
    let layer = layer.bypass(|info| info.uri().path() == "/health").build().unwrap();
    let (service, _senders) = limited(&layer);
    let mut held = Vec::new();
    for (row, (path, status)) in [
        ("/jobs", 200),
        ("/jobs", 200),
        ("/jobs", 200),
        ("/jobs", 200),
        ("/jobs", 503), // it has borrowed all
        ("/web", 200),  // its share is guaranteed
        ("/other", 503),
        ("/health", 200),
    ]
    .into_iter()
    .enumerate()
    {
        let response = ask(&service, request(path)).await;
        assert_eq!(response.status(), status, "row {row}, {path}");
        held.push(response);
    }
    assert_eq!((shares.in_flight("jobs"), limit.report().in_flight), (4, 5));
    drop(held);
    assert_eq!((shares.in_flight("jobs"), limit.report().in_flight), (0, 0));
}

#[tokio::test]
async fn a_client_measures_the_server_that_it_calls() {
    use CallOutcome::{Overload, Success};
    let app = axum::Router::new()
        .route("/", axum::routing::get(|| async { "hello" }))
        .route("/busy", axum::routing::get(|| async { http::StatusCode::SERVICE_UNAVAILABLE }));
    let bind = || tokio::net::TcpListener::bind("127.0.0.1:0");
    let (listener, gone) = (bind().await.unwrap(), bind().await.unwrap());
    let (here, nowhere) = (listener.local_addr().unwrap(), gone.local_addr().unwrap());
    drop(gone);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let law = Recorder::of(1);
    let layer = AdaptiveLayer::builder(law.over(Concurrency::builder(0))).build().unwrap();
    let client: Client<_, String> = Client::builder(TokioExecutor::new()).build_http();
    let client = layer.layer(client);
    let get = |uri: String| client.clone().oneshot(request(&uri));
    assert_eq!(get(format!("http://{here}/")).await.unwrap().status(), 200);
    assert_eq!(get(format!("http://{here}/busy")).await.unwrap().status(), 503);
    assert!(get(format!("http://{nowhere}/")).await.unwrap_err().is_connect(), "its own error");
    let seen: Vec<_> = law.seen().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(seen, [Success, Overload, Overload]);
}

#[test]
fn contradictory_settings_are_refused_with_a_code() {
    let adaptive = |waiting| {
        let limit = Recorder::of(1).over(Concurrency::builder(0).max_waiting(waiting));
        AdaptiveLayer::builder(limit)
    };
    let limit = Recorder::of(1).over(Concurrency::builder(0).max_waiting(1));
    let shares = Partitions::builder(&limit).share("a", 50).build().unwrap();
    let load = |above| Shedding::load(|| 0.0, above);
    let delay = Shedding::queue_delay;
    for (row, (builder, code)) in [
        (adaptive(0).max_wait(MS), "TG-R01"),
        (adaptive(1).max_wait(Duration::ZERO), "TG-R02"),
        (adaptive(0).refusal(tollgate_tower::answer::Refusal::Forbidden), "TG-R03"),
        (adaptive(0).name(""), "TG-R04"),
        (adaptive(0).shed(load(0.0)), "TG-R05"),
        (adaptive(0).shed(load(f64::NAN)), "TG-R05"),
        (adaptive(0).shed(load(0.9).recover_at(1.0)), "TG-R05"),
        (adaptive(0).shed(load(0.9).recover_at(0.0)), "TG-R05"),
        (adaptive(0).shed(load(0.9).every(Duration::ZERO)), "TG-R05"),
        (adaptive(1).max_wait(MS).shed(delay(Duration::ZERO)), "TG-R05"),
        (adaptive(1).shed(delay(MS)), "TG-R06"),
        (AdaptiveLayer::partitioned(shares, |_| "a").max_wait(MS), "TG-R07"),
        (adaptive(0).trust_priority(Trust::networks(["0.0.0.0/0"])), "TG-K01"),
        (adaptive(0).trust_priority(Trust::hops(0)), "TG-K02"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = builder.build().unwrap_err();
        assert_eq!(error.code(), code, "row {row}: {error}");
        let place = format!("({code}, see {})", error.docs());
        assert!(error.to_string().ends_with(&place), "row {row}: {error}");
    }
}

/// Polls a call once.
fn poll_once<F: Future + Unpin>(call: &mut F) -> std::task::Poll<F::Output> {
    std::pin::Pin::new(call).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

/// Calls without waiting for the response.
async fn call(
    service: &mut Service1,
    request: Request<String>,
) -> std::pin::Pin<Box<<Service1 as Service<Request<String>>>::Future>> {
    Box::pin(service.ready().await.unwrap().call(request))
}
