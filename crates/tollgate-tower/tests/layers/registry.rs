//! A `Registry` of layers, and the endpoints that show it.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use std::convert::Infallible;
use tollgate::{
    Breaker, Concurrency, KeyedBreaker, Limiter, Quota,
    adaptive::AdaptiveConcurrency,
    hedge::HedgePolicy,
    observe::{KeyForm, Registry},
    self_throttle::SelfThrottle,
};
use tollgate_tower::{
    AdaptiveLayer, BandwidthLayer, BreakerLayer, ClientStack, ConcurrencyLayer, FallbackLayer, Key,
    Mode, Policy, RateLimitLayer, RegistryEndpoint, ServerStack, Shaping, TimeoutLayer,
    client::{HedgeLayer, PaceLayer, RetryLayer, SelfThrottleLayer},
};
use tower::{Layer, ServiceExt};

fn limits() -> RateLimitLayer {
    RateLimitLayer::builder()
        .policy(
            Policy::new("each", Quota::per_minute(60))
                .key(Key::header("x-user"))
                .tier("gold", Quota::per_minute(600))
                .tier_by(|_| None),
        )
        .policy(Policy::new("new", Quota::once(5)).mode(Mode::Shadow))
        .counted()
        .top_keys(100, KeyForm::Hashed)
        .build()
        .unwrap()
}

async fn ask(layer: &RateLimitLayer, user: &str) -> u16 {
    let answer =
        |_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) };
    let request = Request::get("/").header("x-user", user).body(()).unwrap();
    let response = layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap();
    response.status().as_u16()
}

/// Names and kinds, in the order of the list.
const LISTED: [&str; 31] = [
    "adaptive concurrency_layer",
    "adaptive/slots adaptive_concurrency",
    "bandwidth bandwidth_layer",
    "bandwidth/request bandwidth",
    "bandwidth/response bandwidth",
    "bandwidth/response/limiter limiter",
    "breaker breaker",
    "client client_stack",
    "client/retry retry_policy",
    "client/retry/budget retry_budget",
    "fallback fallback_layer",
    "hedge hedge_policy",
    "hedge/budget retry_budget",
    "hosts keyed_breaker",
    "limits rate_limit_layer",
    "limits/each policy",
    "limits/each/gold policy",
    "limits/new policy",
    "pace pace_layer",
    "pace/quota limiter",
    "retry retry_policy",
    "retry/budget retry_budget",
    "server server_stack",
    "server/rate limit rate_limit_layer",
    "server/rate limit/each policy",
    "server/rate limit/each/gold policy",
    "server/rate limit/new policy",
    "slots concurrency_layer",
    "slots/slots concurrency",
    "throttle self_throttle",
    "timeout timeout_layer",
];

#[test]
fn every_layer_can_be_registered() {
    let registry = Registry::new();
    let limit = || Concurrency::new(3).unwrap();
    let limits = limits();
    let slots = ConcurrencyLayer::builder(limit()).build().unwrap();
    let adaptive = AdaptiveLayer::builder(AdaptiveConcurrency::new()).build().unwrap();
    let breaker = BreakerLayer::builder(Breaker::builder().build().unwrap()).build().unwrap();
    let hosts: KeyedBreaker<str> = Breaker::builder().build_keyed(10).unwrap();
    let hosts = BreakerLayer::keyed(hosts).build().unwrap();
    let timeout =
        TimeoutLayer::builder().attempt(std::time::Duration::from_secs(1)).build().unwrap();
    let fallback = FallbackLayer::value(Response::new(Bytes::new())).build().unwrap();
    let rate = Limiter::new(Quota::per_second(9)).unwrap();
    let bandwidth = BandwidthLayer::builder()
        .request(Shaping::each(Quota::per_second(9)))
        .response(Shaping::shared(rate.clone()))
        .build()
        .unwrap();
    let pace = PaceLayer::builder().quota(rate).build().unwrap();
    let retry = RetryLayer::builder().build().unwrap();
    let Ok(hedge) = HedgeLayer::builder(HedgePolicy::at_percentile(95.0).build().unwrap()).build();
    let Ok(throttle) = SelfThrottleLayer::builder(SelfThrottle::builder().build().unwrap()).build();
    let client = ClientStack::builder("c").retry(retry.clone()).build().unwrap();
    let server = ServerStack::builder("s").limits(limits.clone()).build().unwrap();
    registry.add("limits", &limits).unwrap();
    registry.add("slots", &slots).unwrap();
    registry.add("adaptive", &adaptive).unwrap();
    registry.add("breaker", &breaker).unwrap();
    registry.add("hosts", &hosts).unwrap();
    registry.add("timeout", &timeout).unwrap();
    registry.add("fallback", &fallback).unwrap();
    registry.add("bandwidth", &bandwidth).unwrap();
    registry.add("pace", &pace).unwrap();
    registry.add("retry", &retry).unwrap();
    registry.add("hedge", &hedge).unwrap();
    registry.add("throttle", &throttle).unwrap();
    registry.add("client", &client.handle()).unwrap();
    registry.add("server", &server).unwrap();
    let list = registry.list();
    let names: Vec<_> =
        list.iter().map(|report| format!("{} {}", report.name, report.kind)).collect();
    assert_eq!(names, LISTED);
    // The registry keeps nothing alive.
    drop((limits, server, slots));
    let names: Vec<_> = registry.list().iter().map(|report| report.name.clone()).collect();
    assert!(!names.iter().any(|name| name.starts_with("limits") || name == "slots"), "{names:?}");
}

#[tokio::test]
async fn labels_are_bounded_whatever_clients_send() {
    let (registry, layer) = (Registry::new(), limits());
    registry.add("http", &layer).unwrap();
    let before = registry.prometheus().lines().count();
    for number in 0..10_000 {
        assert_eq!(ask(&layer, &format!("user-{number}")).await, 200);
    }
    assert_eq!(ask(&layer, "").await, 403);
    let text = registry.prometheus();
    for line in [
        "tollgate_decisions_total{limiter=\"http/each\",outcome=\"allowed\"} 10000",
        "tollgate_decisions_total{limiter=\"http/each/gold\",outcome=\"allowed\"} 0",
        "tollgate_shadow_denied_total{limiter=\"http/new\",outcome=\"never\"} 9995",
        "tollgate_no_key_total{limiter=\"http/each\"} 1",
        "tollgate_rate{limiter=\"http/each\"} 1",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
    }
    assert_eq!(text.lines().count(), before, "{text}");
    assert!(!text.contains("user-"));
}

async fn get(endpoint: RegistryEndpoint, accept: Option<&str>) -> (Response<()>, String) {
    let mut request = Request::get("/x").body(Full::<Bytes>::default()).unwrap();
    if let Some(accept) = accept {
        request.headers_mut().insert("accept", accept.parse().unwrap());
    }
    let (head, body) = endpoint.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn the_list_is_text_or_json_as_the_client_accepts() {
    let (registry, layer) = (Registry::new(), limits());
    registry.add("http", &layer).unwrap();
    let json = "application/json";
    for (accept, content_type) in [
        (None, "text/plain; charset=utf-8"),
        (Some("*/*"), "text/plain; charset=utf-8"),
        (Some("text/html, application/xml;q=0.9"), "text/plain; charset=utf-8"),
        (Some("application/json;q=0"), "text/plain; charset=utf-8"),
        (Some("application/jsonx"), "text/plain; charset=utf-8"),
        (Some("application/json"), json),
        (Some("text/html, Application/JSON; q=0.5"), json),
    ] {
        let (head, body) = get(RegistryEndpoint::limiters(registry.clone()), accept).await;
        assert_eq!(head.headers()["content-type"], content_type, "{accept:?}");
        assert_eq!(head.headers()["cache-control"], "no-store");
        assert_eq!(head.headers()["x-content-type-options"], "nosniff");
        if content_type == json {
            let list: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(list[1]["name"], "http/each", "{body}");
            assert_eq!(list[1]["quota"], "60/min", "{body}");
        } else {
            assert_eq!(
                body,
                "http (rate_limit_layer)\n\
                 http/each (policy), 60/min, enforce\n\
                 http/each/gold (policy), 600/min, enforce\n\
                 http/new (policy), 0/s burst 5, shadow, 5 of 5 free\n"
            );
        }
    }
    let (head, body) = get(RegistryEndpoint::metrics(registry), None).await;
    assert_eq!(head.headers()["content-type"], Registry::PROMETHEUS_TEXT);
    assert!(body.starts_with("# HELP tollgate_"), "{body}");
}

#[tokio::test]
async fn hostile_names_stay_one_line_of_text() {
    let registry = Registry::new();
    let limiter = Limiter::builder(Quota::per_second(1)).counted().build().unwrap();
    let name = "<img onerror=alert(1)>\"\n\u{202e}x\u{7}";
    registry.add(name, &limiter).unwrap();
    let (_, text) = get(RegistryEndpoint::limiters(registry.clone()), None).await;
    assert_eq!(text, "<img onerror=alert(1)>\"\\n\\u{202e}x\\u{7} (limiter), 1/s, 1 of 1 free\n");
    let (_, json) =
        get(RegistryEndpoint::limiters(registry.clone()), Some("application/json")).await;
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(list[0]["name"], name);
    let (_, metrics) = get(RegistryEndpoint::metrics(registry), None).await;
    assert!(
        metrics.contains("limiter=\"<img onerror=alert(1)>\\\"\\n\u{202e}x\u{7}\""),
        "{metrics}"
    );
}

#[tokio::test]
async fn only_reading_is_allowed() {
    for (method, status) in [("GET", 200), ("HEAD", 200), ("POST", 405), ("DELETE", 405)] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(&method).body(()).unwrap();
        let endpoint = RegistryEndpoint::metrics(Registry::new());
        let response = endpoint.oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{method}");
        assert_eq!(response.headers().contains_key("allow"), status == 405, "{method}");
    }
}
