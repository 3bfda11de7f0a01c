//! Our layer on the server side, and ours on the client side: the client follows exactly what the
//! server reports.

use axum::{Router, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{Algorithm, Clock, Quota, store::MemoryStore};
use tollgate_tower::{
    Policy, RateLimitLayer,
    answer::{Draft, Headers, Legacy, OnSuccess},
    client::{PaceLayer, RetryBudget, RetryBuilder, RetryLayer, Spend},
};
use tower::{Layer, Service, ServiceExt};

/// The headers that the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    Draft,
    ThreeFields,
    Epoch,
    Delta,
    /// `Retry-After`, on refusals and when nothing is left.
    RetryAfter,
    /// `Retry-After` on refusals only.
    Nothing,
}

const ALL: [Tells; 6] = [
    Tells::Draft,
    Tells::ThreeFields,
    Tells::Epoch,
    Tells::Delta,
    Tells::RetryAfter,
    Tells::Nothing,
];

impl Tells {
    /// Tells whether a client knows the remaining calls.
    fn what_is_left(self) -> bool {
        !matches!(self, Self::RetryAfter | Self::Nothing)
    }

    fn headers(self) -> Headers {
        let bare = Headers::bare();
        match self {
            Self::Draft => bare.draft(Draft::R11),
            Self::ThreeFields => bare.three_fields(),
            Self::Epoch => bare.legacy(Legacy::Epoch),
            Self::Delta => bare.legacy(Legacy::Delta),
            Self::RetryAfter => bare.on_success(OnSuccess::LeftAndRetryAfter),
            Self::Nothing => bare,
        }
    }
}

fn retry() -> RetryBuilder {
    let budget = RetryBudget::unlimited();
    RetryLayer::builder().budget(budget).max_attempts(50).max_elapsed(Duration::from_secs(9_999))
}

/// Counts the refusals that pass through.
fn counting<S, B, R>(
    service: S,
    refusals: &Arc<AtomicU64>,
) -> impl Service<Request<B>, Response = Response<R>, Error = S::Error, Future: Send>
+ Clone
+ Send
+ use<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send> + Clone + Send,
{
    let refusals = Arc::clone(refusals);
    service.map_response(move |response: Response<R>| {
        let is_refusal = response.status() == StatusCode::TOO_MANY_REQUESTS;
        // ORDERING: Relaxed, here and below. A count publishes nothing else.
        refusals.fetch_add(is_refusal.into(), Relaxed);
        response
    })
}

async fn fine<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::default()))
}

const CALLS: u64 = 120;
const WORKERS: u64 = 4;
const QUOTA: Quota = Quota::per(20, Duration::from_secs(10));
/// 120 calls at 20 in 10 s, the first 20 of them at once, take 50 s at best.
const BEST: Duration = Duration::from_secs(50);

/// Returns the share of the rate that a client gets at least, by docs/clients.md.
fn least_percent(tells: Tells, algorithm: Algorithm, spend: Spend) -> u128 {
    // gcra, fixed windows, anchored windows, sliding counter, sliding log
    let row = match (tells.what_is_left(), spend) {
        (true, Spend::Burst) => [100, 100, 100, 50, 100],
        (true, Spend::Even) => [90, 75, 70, 35, 35],
        (true, _) => [90, 80, 80, 40, 40],
        (false, _) => [75, 95, 95, 65, 95],
    };
    let column = Algorithm::ALL.iter().position(|it| *it == algorithm).unwrap();
    row[column]
}

/// Makes all calls, and returns how many were refused on the way, and the seconds it took.
async fn run(tells: Tells, algorithm: Algorithm, spend: Spend) -> (u64, Duration) {
    let clock = Clock::tokio();
    // Each run is the same: the wall time begins at a full second.
    clock.set_wall_offset(Duration::from_secs(1_700_000_000));
    let memory = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let policy = Policy::new("calls", QUOTA).algorithm(algorithm);
    let limits = RateLimitLayer::builder().memory(memory).policy(policy).headers(tells.headers());
    let server = limits.build().unwrap().layer(tower::service_fn(fine));
    let refusals = Arc::new(AtomicU64::new(0));
    let pace = PaceLayer::builder().spend(spend).max_wait(Duration::from_secs(9_999));
    let pace = pace.clock(clock.clone()).build().unwrap();
    let retry = retry().clock(clock.clone()).build().unwrap();
    let client = retry.layer(pace.layer(counting(server, &refusals)));
    let (begin, next) = (clock.now(), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (client, next) = (client.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                while next.fetch_add(1, Relaxed) < CALLS {
                    let request = Request::get("http://a/").body(()).unwrap();
                    let response = client.clone().oneshot(request).await.unwrap();
                    assert_eq!(response.status(), StatusCode::OK, "all succeed at last");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    (refusals.load(Relaxed), clock.now().since(begin))
}

#[tokio::test(start_paused = true)]
async fn a_server_of_ours_is_followed_by_each_algorithm_and_each_form_of_headers() {
    for tells in ALL {
        for algorithm in Algorithm::ALL {
            for spend in [Spend::Burst, Spend::Even, Spend::default()] {
                let (refused, took) = run(tells, algorithm, spend).await;
                let row = format!("{tells:?} {algorithm:?} {spend:?}: {refused} refused, {took:?}");
                if tells.what_is_left() {
                    assert_eq!(refused, 0, "{row}");
                } else {
                    // A refusal stops all calls for at least a second, and then one goes ahead. The
                    // calls in flight are refused with it.
                    assert!(refused <= took.as_secs() + WORKERS, "{row}");
                }
                // The client is never faster than the server allows, and uses the rate that it
                // allows.
                let percent = BEST.as_millis() * 100 / took.as_millis();
                let least = least_percent(tells, algorithm, spend);
                assert!((least..=100).contains(&percent), "{row}: {percent} %");
            }
        }
    }
}

/// A client and a server over loopback, real time.
async fn over_loopback(tells: Tells) -> (u64, Duration) {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("calls", Quota::per_second(20)))
        .headers(tells.headers())
        .build()
        .unwrap();
    let address =
        crate::wire::serve(Router::new().route("/", get(|| async { "hello" })).layer(limits)).await;
    let hyper: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let refusals = Arc::new(AtomicU64::new(0));
    let pace = PaceLayer::builder().spend(Spend::Burst).build().unwrap();
    let client = retry().build().unwrap().layer(pace.layer(counting(hyper, &refusals)));
    let (clock, mut tasks) = (Clock::monotonic(), Vec::new());
    let begin = clock.now();
    for worker in 0..2 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..12 + worker {
                let request = Request::get(format!("http://{address}/"));
                let request = request.body(Full::default()).unwrap();
                let response = client.clone().oneshot(request).await.unwrap();
                assert_eq!(response.status(), StatusCode::OK, "all succeed at last");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    (refusals.load(Relaxed), clock.now().since(begin))
}

#[tokio::test]
async fn a_server_of_axum_is_followed_by_a_client_of_hyper_over_loopback() {
    let runs = ALL.map(|tells| (tells, tokio::spawn(over_loopback(tells))));
    for (tells, run) in runs {
        let (refused, took) = run.await.unwrap();
        // A scheduler that stalls may cost a few; a client without information has two calls in
        // flight.
        let most = if tells.what_is_left() { 2 } else { 2 * (took.as_secs() + 1) };
        assert!(refused <= most, "{tells:?}: {refused} refused in {took:?}");
        assert!(took >= Duration::from_millis(240), "{tells:?}: faster than the limit, {took:?}");
    }
}
