//! Any sequence of requests over any policies, on a manual clock: each header parses, its numbers
//! make sense, our own client reads the same, and a client that retries at the reported time
//! passes.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use std::{convert::Infallible, time::Duration};
use tollgate::{Algorithm, Clock, ManualClock, Quota, store::MemoryStore};
use tollgate_tower::{
    Charge, Key, Mode, Policy, RateLimitLayer, Settle,
    answer::{Headers, Legacy, OnSuccess},
    client::{Reader, Refusal, RetryWhen},
};
use tower::{Layer, ServiceExt};

/// The settings of a policy.
#[derive(Clone, Debug)]
struct Spec {
    quota: Quota,
    algorithm: Algorithm,
    cost: u64,
    by_header: bool,
    has_key: bool,
    tier: Option<Quota>,
    mode: Mode,
    settles: bool,
    on_failure: bool,
}

fn any_quota() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![Just(500), Just(1_000), Just(7_300), Just(60_000), Just(3_600_000)];
    (1..20_u64, period, proptest::option::of(1..30_u64)).prop_map(|(count, ms, burst)| {
        let quota = Quota::per(count, Duration::from_millis(ms));
        burst.map_or(quota, |burst| quota.burst(burst))
    })
}

fn any_spec() -> impl Strategy<Value = Spec> {
    let mode = prop_oneof![5 => Just(Mode::Enforce), 1 => Just(Mode::Shadow),
        1 => Just(Mode::Percent(50))];
    let algorithm = proptest::sample::select(Algorithm::ALL.to_vec());
    let rest = (any::<(bool, bool, bool, bool)>(), proptest::option::of(any_quota()), mode);
    (any_quota(), algorithm, 1..5_u64, rest).prop_map(|(quota, algorithm, cost, rest)| {
        let ((by_header, has_key, settles, on_failure), tier, mode) = rest;
        // A percentage needs keys.
        let has_key = has_key || matches!(mode, Mode::Percent(_));
        Spec { quota, algorithm, cost, by_header, has_key, tier, mode, settles, on_failure }
    })
}

fn policy(place: usize, spec: &Spec) -> Policy {
    let number = |info: &tollgate_tower::Info<'_>, name: &str| {
        info.headers().get(name).and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
    };
    // A window has no burst of its own.
    let fits = |quota: Quota| match spec.algorithm {
        Algorithm::Gcra => quota,
        _ => Quota::per(quota.count(), quota.period()),
    };
    let mut policy = Policy::new(format!("policy {place}"), fits(spec.quota))
        .algorithm(spec.algorithm)
        .mode(spec.mode);
    // Sometimes more than the capacity, which a fixed cost may not be.
    let (cost, by_header) = (spec.cost, spec.by_header);
    policy = policy.cost_by(move |info| match by_header {
        true => number(info, "x-cost").unwrap_or(0),
        false => cost,
    });
    if spec.has_key {
        policy = policy.key(Key::header("x-key"));
    }
    if let Some(quota) = spec.tier {
        policy = policy.tier("other", fits(quota));
        policy = policy.tier_by(move |info| (number(info, "x-key")? == 1).then_some(0));
    }
    if spec.settles {
        policy = policy.settle(Settle::header(HeaderName::from_static("x-used")));
    }
    if spec.on_failure {
        policy = policy.charge(Charge::on_failure());
    }
    policy
}

/// One request.
#[derive(Clone, Copy, Debug)]
struct Ask {
    after_ms: u64,
    key: u8,
    cost: u64,
    used: u64,
    fails: bool,
    is_grpc: bool,
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let after = prop_oneof![4 => Just(0), 2 => 0..1_000_u64, 1 => 0..100_000_u64];
    (after, 0..3_u8, 0..6_u64, 0..8_u64, any::<(bool, bool)>()).prop_map(
        |(after_ms, key, cost, used, (fails, is_grpc))| Ask {
            after_ms,
            key,
            cost,
            used,
            fails,
            is_grpc,
        },
    )
}

async fn answer(request: Request<Ask>) -> Result<Response<Full<Bytes>>, Infallible> {
    let ask = request.body();
    let status = if ask.fails { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
    let response = Response::builder().status(status).header("x-used", ask.used);
    Ok(response.body(Full::from("done")).unwrap())
}

/// Sends a request, and returns whether it passed, and the headers.
fn send(layer: &RateLimitLayer, ask: Ask) -> (bool, StatusCode, HeaderMap) {
    let request = Request::builder().header("x-key", ask.key.to_string());
    let mut request = request.header("x-cost", ask.cost).body(ask).unwrap();
    if ask.is_grpc {
        let kind = http::HeaderValue::from_static("application/grpc");
        request.headers_mut().insert("content-type", kind);
    }
    let sent = layer.layer(tower::service_fn(answer)).oneshot(request);
    // Memory answers at once, so the future is ready.
    let response = at_once(sent).unwrap();
    let (head, body) = response.into_parts();
    let body = at_once(body.collect()).unwrap().to_bytes();
    let passed = body == "done";
    (passed, head.status, head.headers)
}

fn at_once<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

/// An item of a list: its name, and its parameters that are numbers.
type Item = (String, Vec<(String, u64)>);

/// Reads a field with a foreign parser.
fn items(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
    let list: List = Parser::new(&lines.join(", ")).parse().unwrap();
    let read = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list") };
        let BareItem::String(name) = &item.bare_item else { panic!("no string") };
        let parameters = item.params.iter().map(|(key, value)| {
            let BareItem::Integer(number) = value else { panic!("{key}: no number") };
            let number = i64::from(*number);
            (key.to_string(), u64::try_from(number).expect("no number is negative"))
        });
        (name.as_str().to_owned(), parameters.collect())
    };
    list.iter().map(read).collect()
}

fn parameter(item: &Item, key: &str) -> Option<u64> {
    item.1.iter().find(|(name, _)| name == key).map(|(_, number)| *number)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name).map(|value| value.to_str().unwrap().parse().unwrap())
}

/// The wall time at the origin of the clock, a whole second.
const WALL: Duration = Duration::from_secs(1_800_000_000);

/// Checks the headers of any response, whether the request passed or not.
fn check(headers: &HeaderMap, status: StatusCode, now: Duration, passed: bool) {
    let reader = Reader::new().longest(Duration::MAX);
    let learned = reader.read(status, headers, now);
    assert_eq!((learned.malformed, learned.clamped, learned.is_cached), (0, 0, false));
    let wait = number(headers, "retry-after");
    assert_ne!(wait, Some(0));
    let Some(left) = headers.contains_key("ratelimit").then(|| items(headers, "ratelimit")) else {
        assert!(learned.policies.is_empty() && !headers.contains_key("x-ratelimit-limit"));
        return;
    };
    let policies = items(headers, "ratelimit-policy");
    assert_eq!(left.len(), 1);
    let (r, t) = (parameter(&left[0], "r").unwrap(), parameter(&left[0], "t"));
    let policy = policies.iter().find(|(name, _)| *name == left[0].0).expect("it is named");
    let (q, w) = (parameter(policy, "q").unwrap(), parameter(policy, "w"));
    assert!(r <= q, "{r} left of {q}");
    if !passed {
        assert!(wait.is_none_or(|wait| t == Some(wait)), "{wait:?} {t:?}");
    }
    // Our own client reads the same.
    let read = &learned.policies[0];
    assert_eq!(read.name.as_deref(), Some(left[0].0.as_str()));
    assert_eq!((read.remaining, read.limit), (r, Some(q)));
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64() as u64);
    assert_eq!((seconds(read.reset_after), seconds(read.window)), (t.or(w), w));
    assert_eq!(learned.policies.len(), 1);
    // The older forms say the same; the reset is when all is back.
    for prefix in ["ratelimit-", "x-ratelimit-"] {
        let three = |what: &str| number(headers, &format!("{prefix}{what}"));
        assert_eq!((three("limit"), three("remaining")), (Some(q), Some(r)));
    }
    let without = ["ratelimit", "ratelimit-policy"];
    let mut older = headers.clone();
    without.iter().for_each(|name| drop(older.remove(*name)));
    let three = reader.read(status, &older, now);
    let reset = number(headers, "ratelimit-reset");
    assert_eq!(seconds(three.policies[0].reset_after), reset);
    let older_names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    older_names.iter().for_each(|name| drop(older.remove(*name)));
    let legacy = reader.read(status, &older, now);
    // The `Date` beside it is cut to the second, so the distance is up to one second more.
    let distance = seconds(legacy.policies[0].reset_after);
    let is_near = |distance: u64, reset: u64| distance == reset || distance == reset + 1;
    assert!(distance.zip(reset).is_none_or(|(distance, reset)| is_near(distance, reset)));
    assert_eq!(distance.is_some(), reset.is_some());
}

/// Checks a refusal, and returns how long to wait, if waiting helps.
fn check_refusal(headers: &HeaderMap, ask: Ask, status: StatusCode, now: Duration) -> Option<u64> {
    let expected = if ask.is_grpc { 200 } else { 429 };
    assert_eq!(status.as_u16(), expected);
    assert_eq!(headers["cache-control"], "no-store");
    let learned = Reader::new().longest(Duration::MAX).read(status, headers, now);
    assert_eq!(learned.refusal, Some(Refusal::Client));
    let wait = number(headers, "retry-after");
    match (learned.retry, wait) {
        (Some(RetryWhen::After(after)), Some(wait)) if ask.is_grpc => {
            let pushback = number(headers, "grpc-retry-pushback-ms").unwrap();
            assert_eq!(after, Duration::from_millis(pushback));
            assert!(after <= Duration::from_secs(wait));
        }
        (Some(RetryWhen::After(after)), Some(wait)) => {
            assert_eq!(after, Duration::from_secs(wait));
        }
        (Some(RetryWhen::Never), None) => assert!(ask.is_grpc),
        (None, None) => assert!(!ask.is_grpc),
        other => panic!("{other:?}"),
    }
    wait
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn what_is_told_is_well_formed_and_true(
        specs in proptest::collection::vec(any_spec(), 1..4),
        asks in proptest::collection::vec(any_ask(), 1..25),
        start_ms in 0..100_000_u64,
    ) {
        let (clock, hand): (Clock, ManualClock) = Clock::manual();
        clock.set_wall_offset(WALL);
        hand.advance(Duration::from_millis(start_ms));
        let memory = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let headers = Headers::new().three_fields().legacy(Legacy::Epoch).envoy();
        let headers = headers.on_success(OnSuccess::LeftAndRetryAfter);
        let layer = RateLimitLayer::builder().memory(memory).headers(headers);
        let layer = specs.iter().enumerate().fold(layer, |layer, (place, spec)| {
            layer.policy(policy(place, spec))
        });
        let layer = layer.build().unwrap();
        let now = || clock.to_wall(clock.now());
        for ask in asks {
            hand.advance(Duration::from_millis(ask.after_ms));
            let (passed, status, told) = send(&layer, ask);
            check(&told, status, now(), passed);
            if passed {
                continue;
            }
            let Some(wait) = check_refusal(&told, ask, status, now()) else { continue };
            hand.advance(Duration::from_secs(wait));
            let (passed, status, again) = send(&layer, ask);
            check(&again, status, now(), passed);
            prop_assert!(passed, "{ask:?}: after {wait} s it is refused again: {again:?}");
        }
    }
}
