//! The overhead of a full stack per call, compared with the same parts of tower-resilience.
//!
//! The service answers at once. Each call goes through all layers, and its body is read to the end.

use super::{added, instructions::counted};
use crate::{
    Options,
    harness::{Runner, Subject, progress},
    stats::{median, median_ratio},
    table::{Table, figure},
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, poll_fn, ready},
    pin::pin,
    process::ExitCode,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Breaker, Concurrency, Limiter, Quota, RetryBudget, hedge::HedgePolicy,
    self_throttle::SelfThrottle,
};
use tollgate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, FallbackLayer, Policy, RateLimitLayer,
    ServerStack, TimeoutLayer,
    client::{HedgeLayer, PaceLayer, RetryLayer, SelfThrottleLayer},
};
use tower::service_fn;
use tower_layer::Layer;
use tower_resilience::{
    bulkhead::BulkheadLayer, circuitbreaker::CircuitBreakerLayer, ratelimiter::RateLimiterLayer,
    retry::RetryBudgetBuilder, timelimiter::TimeLimiterLayer,
};
use tower_service::Service;

const ABOUT: &str = "\
Nanoseconds and instructions (`valgrind --tool=callgrind`) of a call to a service that answers at \
once, one thread; all calls pass. *added* is the difference to the row without layers, *of \
tower-resilience* that as a share of what the same parts of tower-resilience 0.13 add. Client: \
fallback, total timeout, retry with a budget, rate limit, breaker, bulkhead, timeout of an attempt. \
Server: total timeout, bulkhead, rate limit, bulkhead, timeout of the handler.";

/// A row, and the one of tower-resilience that has the same parts.
const ROWS: [(&str, Option<usize>); 6] = [
    ("no layers", None),
    ("client: tower-resilience 0.13, seven layers", None),
    ("client: tollgate, `ClientStack`, the same parts", Some(1)),
    ("client: tollgate, `ClientStack`, and hedges and self-throttle", Some(1)),
    ("server: tower-resilience 0.13, five layers", None),
    ("server: tollgate, `ServerStack`, the same parts", Some(4)),
];

/// The argument by which this program is its own child.
const CHILD: &str = "--calls-of";
const CALLS: [u64; 2] = [2_000, 12_000];
/// Enough for every call of a run.
const AMPLE: u32 = 1_000_000_000;
const SLOTS: usize = 1_000;
const TOTAL: Duration = Duration::from_secs(2);
const ATTEMPT: Duration = Duration::from_millis(500);

type Body = Full<axum::body::Bytes>;

/// Makes calls, if this is such a child: `--calls-of ROW COUNT`.
pub(crate) fn answer(mut arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    arguments.next().filter(|first| first == CHILD)?;
    let row = arguments.next().and_then(|row| row.parse().ok());
    let count = arguments.next().and_then(|count| count.parse().ok());
    let (Some(mut run), Some(count)) = (row.and_then(runner), count) else {
        return Some(ExitCode::FAILURE);
    };
    run(count);
    Some(ExitCode::SUCCESS)
}

/// Prints the table.
pub(crate) fn run(options: &Options) {
    let rounds = options.rounds();
    println!("\n## stacks: all parts around one service\n\n{ABOUT}\n");
    let mut times = vec![Vec::new(); ROWS.len()];
    for round in 0..rounds {
        // Each round begins with another row, so that no row always follows the same one.
        for turn in 0..ROWS.len() {
            let row = (turn + round) % ROWS.len();
            progress(&format!("round {}/{rounds}: {}", round + 1, ROWS[row].0));
            let subject = Subject::new(move || runner(row).unwrap_or_else(|| Box::new(|_| ())));
            times[row].push(subject.ns_per_call(1));
        }
    }
    let instructions: Vec<_> = (0..ROWS.len())
        .map(|row| {
            progress(&format!("instructions: {}", ROWS[row].0));
            let [few, more] = CALLS.map(|count| counted(CHILD, row, count));
            more?.checked_sub(few?).map(|all| all as f64 / (CALLS[1] - CALLS[0]) as f64)
        })
        .collect();
    progress("");
    let share = |ours: Vec<Option<f64>>, peer: Vec<Option<f64>>| {
        median_ratio(&ours, &peer).map_or_else(|| "-".into(), |share| format!("{share:.2}"))
    };
    let head =
        ["", "ns", "added", "of tower-resilience", "instructions", "added", "of tower-resilience"];
    let mut table = Table::new(head);
    for (row, (name, peer)) in ROWS.into_iter().enumerate() {
        let mut line = vec![name.to_owned()];
        for values in [&times, &instructions.iter().map(|count| vec![*count]).collect()] {
            let of = |row: usize| added(&values[row], &values[0]);
            line.push(figure(median(values[row].iter().copied())));
            line.push(if row == 0 { "-".into() } else { figure(median(of(row))) });
            line.push(peer.map_or_else(|| "-".into(), |peer| share(of(row), of(peer))));
        }
        table.line(line);
    }
    println!("{table}");
}

/// Returns a function that makes calls through the layers of a row.
fn runner(row: usize) -> Option<Runner> {
    let service: Inner = service_fn(serve as _);
    let built = match row {
        0 => Ok(calling(service)),
        1 => resilience_client(service),
        2 => client(service),
        3 => full_client(service),
        4 => resilience_server(service),
        _ => server(service),
    };
    built.map_err(|error| eprintln!("\n{}: {error}", ROWS[row].0)).ok()
}

fn serve(_: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::default())))
}

/// Makes calls within a runtime, which timers need; no part of a call waits.
fn calling<S, R>(mut service: S) -> Runner
where
    S: Service<Request<Body>, Response = Response<R>> + 'static,
    R: axum::body::HttpBody + Unpin,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    Box::new(move |calls| {
        let _entered = runtime.as_ref().map(tokio::runtime::Runtime::enter);
        for _ in 0..calls {
            let call = pin!(call(&mut service));
            let answer = tokio::task::unconstrained(call);
            let answer = pin!(answer).poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(answer, Poll::Ready(Some(StatusCode::OK)), "every call passes");
        }
    })
}

async fn call<S, R>(service: &mut S) -> Option<StatusCode>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: axum::body::HttpBody + Unpin,
{
    poll_fn(|context| service.poll_ready(context)).await.ok()?;
    let request = Request::get("http://payments/").body(Body::default()).ok()?;
    let mut response = service.call(request).await.ok()?;
    while let Some(frame) = response.body_mut().frame().await {
        frame.ok()?;
    }
    Some(response.status())
}

type Inner = tower::util::ServiceFn<fn(Request<Body>) -> Ready<Result<Response<Body>, Infallible>>>;
type Built = Result<Runner, Box<dyn Error>>;

fn ample() -> Result<Limiter, tollgate::QuotaError> {
    Limiter::new(Quota::per_second(1_000_000).burst(AMPLE.into()))
}

fn slots() -> Result<ConcurrencyLayer, Box<dyn Error>> {
    Ok(ConcurrencyLayer::builder(Concurrency::new(SLOTS as u64)?).build()?)
}

macro_rules! client {
    () => {{
        let budget = RetryBudget::builder().build()?;
        let stack = ClientStack::builder("payments")
            .fallback(FallbackLayer::value(Response::default()).build()?)
            .total_timeout(TimeoutLayer::builder().total(TOTAL).build()?)
            .retry(RetryLayer::builder().budget(budget.clone()).build()?)
            .pace(PaceLayer::builder().quota(ample()?).build()?)
            .breaker(BreakerLayer::builder(Breaker::builder().build()?).build()?)
            .concurrency(slots()?)
            .attempt_timeout(TimeoutLayer::builder().attempt(ATTEMPT).build()?);
        (stack, budget)
    }};
}

fn client(service: Inner) -> Built {
    let (stack, _) = client!();
    Ok(calling(stack.build()?.layer(service)))
}

fn full_client(service: Inner) -> Built {
    let (stack, budget) = client!();
    let hedges = HedgePolicy::at_percentile(95.0).shared_budget(budget).build()?;
    let stack = stack
        .hedge(HedgeLayer::builder(hedges).build()?)
        .throttle(SelfThrottleLayer::builder(SelfThrottle::builder().build()?).build()?);
    Ok(calling(stack.build()?.layer(service)))
}

fn server(service: Inner) -> Built {
    let quota = Quota::per_second(1_000_000).burst(AMPLE.into());
    let stack = ServerStack::builder("payments")
        .total_timeout(TimeoutLayer::builder().total(TOTAL).build()?)
        .shed(slots()?)
        .limits(RateLimitLayer::builder().policy(Policy::new("all", quota)).build()?)
        .bulkhead(slots()?)
        .handler_timeout(TimeoutLayer::builder().attempt(ATTEMPT).build()?);
    Ok(calling(stack.build()?.layer(service)))
}

fn resilience_client(service: Inner) -> Built {
    let attempt = TimeLimiterLayer::builder().timeout_duration(ATTEMPT).build().layer(service);
    let bulkhead = BulkheadLayer::builder().max_concurrent_calls(SLOTS).build()?.layer(attempt);
    let breaker = CircuitBreakerLayer::standard().build()?.layer(bulkhead);
    let rate = RateLimiterLayer::per_second(AMPLE as usize).build()?.layer(breaker);
    let budget = RetryBudgetBuilder::new().token_bucket().build()?;
    let retry = tower_resilience::retry::RetryLayer::builder().budget(budget).build().layer(rate);
    let total = TimeLimiterLayer::builder().timeout_duration(TOTAL).build().layer(retry);
    let fallback = tower_resilience::fallback::FallbackLayer::value(Response::default());
    Ok(calling(fallback.layer(total)))
}

fn resilience_server(service: Inner) -> Built {
    let handler = TimeLimiterLayer::builder().timeout_duration(ATTEMPT).build().layer(service);
    let route = BulkheadLayer::builder().max_concurrent_calls(SLOTS).build()?.layer(handler);
    let rate = RateLimiterLayer::per_second(AMPLE as usize).build()?.layer(route);
    let shed = BulkheadLayer::builder().max_concurrent_calls(SLOTS).build()?.layer(rate);
    Ok(calling(TimeLimiterLayer::builder().timeout_duration(TOTAL).build().layer(shed)))
}
