//! The breaker's states as callers of the layer see them, and the effect of a refusal on other
//! calls.

use super::*;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use tollgate::{BreakerState, CallOutcome, Concurrency, KeyedBreaker, Limiter, Quota};
use tollgate_tower::{
    AdaptiveLayer, ConcurrencyLayer, Deadline, NotRun, Policy, RateLimitLayer,
    client::{PaceLayer, RetryLayer},
};
use tower::limit::ConcurrencyLimitLayer;

#[tokio::test]
async fn it_opens_refuses_with_the_exact_time_and_closes_after_a_trial() {
    let mut scene = scene(|builder| builder);
    scene.open().await;
    assert_eq!(scene.calls(), 2);
    scene.hand.advance(1_600 * MS);
    for _ in 0..100 {
        let response = once(&scene.service, request("/")).await.unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "4", "3.4 s, rounded up");
        assert!(response.extensions().get::<NotRun>().is_some());
        let refused = response.extensions().get::<RefusedBy>().unwrap();
        assert_eq!(refused.part(), "breaker");
        assert_eq!(refused.why(), "too many calls failed in a row");
        assert_eq!(refused.retry_after(), Some(3_400 * MS));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"{\"type\""), "{body:?}");
    }
    assert_eq!((scene.calls(), scene.breaker.counts().refused), (0, 100));

    scene.hand.advance(3_400 * MS - Duration::from_nanos(1));
    assert_eq!(once(&scene.service, request("/")).await.unwrap().status(), 503, "a moment early");
    scene.hand.advance(Duration::from_nanos(1));
    assert_eq!(once(&scene.service, request("/")).await.unwrap().status(), 200, "the trial");
    assert_eq!((scene.calls(), scene.breaker.state()), (1, BreakerState::Closed));
}

#[tokio::test]
async fn a_refusal_of_grpc_is_unavailable_with_a_pushback() {
    let scene = scene(|builder| builder);
    scene.breaker.trip_for(1_234 * MS);
    let mut call = request("/");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let response = once(&scene.service, call).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (200, &"14".parse().unwrap())
    );
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1234");
    assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test]
async fn while_it_is_open_outer_limits_give_back_and_inner_ones_are_not_asked() {
    let mut scene = scene(|builder| builder);
    let rate = Policy::new("p", Quota::per_hour(3));
    let rate = RateLimitLayer::builder().policy(rate).build().unwrap();
    let slots = Concurrency::new(1).unwrap();
    let outer = ConcurrencyLayer::builder(slots.clone()).build().unwrap();
    let stack = rate.layer(outer.layer(scene.service.clone()));
    scene.breaker.hold_open();
    for _ in 0..50 {
        let response = once(&stack, request("/")).await.unwrap();
        assert_eq!(response.headers()["ratelimit"], r#""p";r=3;t=0"#, "nothing is charged");
        assert_eq!(refused_by(&response), Some(("breaker", None)), "an operator has to act");
        drop(response);
        assert_eq!(slots.in_flight(), 0);
    }
    assert_eq!(scene.calls(), 0);
    scene.breaker.automatic();
    for left in [2, 1, 0] {
        let response = once(&stack, request("/")).await.unwrap();
        assert!(response.headers()["ratelimit"].to_str().unwrap().contains(&format!("r={left};")));
    }
}

/// Calls that inner layers refuse did not reach the target.
#[tokio::test]
async fn refusals_of_inner_layers_feed_nobody() {
    let (clock, _hand) = Clock::manual();
    let breaker = settings(clock).build().unwrap();
    let layer = BreakerLayer::builder(breaker.clone()).build().unwrap();
    let service = || {
        tower::service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        })
    };
    let full = ConcurrencyLayer::builder(Concurrency::new(0).unwrap()).build().unwrap();
    let no_rate = Policy::new("p", Quota::per_hour(1));
    let no_rate = RateLimitLayer::builder().policy(no_rate).build().unwrap();
    let inner_breaker = Breaker::builder().build().unwrap();
    inner_breaker.hold_open();
    let open = BreakerLayer::builder(inner_breaker).build().unwrap();
    let limiter = Limiter::new(Quota::per_hour(1)).unwrap();
    let pace = PaceLayer::builder().quota(limiter).max_wait(MS).build().unwrap();
    let pace = pace.answering();
    for number in 0..4 {
        let refused = [
            once(&layer.layer(full.layer(service())), request("/")).await.unwrap().map(drop),
            once(&layer.layer(no_rate.layer(service())), request("/")).await.unwrap().map(drop),
            once(&layer.layer(open.layer(service())), request("/")).await.unwrap().map(drop),
            once(&layer.layer(pace.layer(service())), request("/")).await.unwrap().map(drop),
        ];
        let parts = refused.each_ref().map(|response| refused_by(response).map(|(part, _)| part));
        let (rate, pace) = (Some("rate limit"), Some("pace"));
        // The first call has the only permit.
        let (rate, pace) = if number == 0 { (None, None) } else { (rate, pace) };
        assert_eq!(parts, [Some("concurrency"), rate, Some("breaker"), pace]);
    }
    let counts = breaker.counts();
    assert_eq!((counts.ended, counts.failed, breaker.state()), (2, 0, BreakerState::Closed));
}

#[tokio::test]
async fn a_refusal_of_the_breaker_is_no_sample_of_an_outer_adaptive_limit() {
    let scene = scene(|builder| builder);
    scene.breaker.hold_open();
    let adaptive = tollgate::adaptive::AdaptiveConcurrency::new();
    let before = adaptive.report();
    let outer = AdaptiveLayer::builder(adaptive.clone()).build().unwrap().layer(scene.service);
    for _ in 0..1_000 {
        drop(once(&outer, request("/")).await.unwrap());
    }
    assert_eq!(adaptive.report().limit, before.limit);
    assert_eq!(adaptive.report().in_flight, 0);
}

#[tokio::test]
async fn a_trial_that_is_dropped_at_any_point_makes_room_for_another() {
    for point in ["before its first poll", "while it runs", "with its body unread", "in its body"] {
        let mut scene = scene(|builder| builder.until_body());
        scene.open().await;
        scene.hand.advance(5 * SECOND);
        assert_eq!(scene.calls(), 2);
        let path = if point == "while it runs" { "/hangs" } else { "/" };
        let mut trial = call(&mut scene.service, request(path)).await;
        match point {
            "before its first poll" => {}
            "while it runs" => assert!(poll_once(&mut trial).is_pending()),
            _ => {
                let mut body = trial.as_mut().await.unwrap().into_body();
                let sender = scene.senders.recv().await.unwrap();
                sender.send(Ok("half")).unwrap();
                if point == "in its body" {
                    assert!(body.frame().await.unwrap().is_ok());
                }
                let refused = once(&scene.service, request("/")).await.unwrap();
                assert_eq!(refused.status(), 503, "{point}: the only trial is under way");
            }
        }
        drop(trial);
        assert_eq!(scene.breaker.state(), BreakerState::HalfOpen, "{point}: nothing is decided");
        let mut next = once(&scene.service, request("/")).await.unwrap();
        assert_eq!(next.status(), 200, "{point}");
        while scene.senders.try_recv().is_ok() {}
        assert!(next.body_mut().frame().await.is_none());
        assert_eq!(scene.breaker.state(), BreakerState::Closed, "{point}");
    }
}

/// The inner service takes its slot when it is polled ready, as tower's limits do.
#[tokio::test]
async fn a_refused_call_gives_back_the_readiness_of_the_inner_service() {
    let scene = scene(|builder| builder);
    let layer = BreakerLayer::builder(scene.breaker.clone()).build().unwrap();
    let (inner, _senders) = limited(&ConcurrencyLimitLayer::new(1));
    let mut service = layer.layer(inner);
    service.ready().await.unwrap();
    scene.breaker.hold_open();
    let refused = service.call(request("/")).await.unwrap();
    assert_eq!(refused.status(), 503);
    scene.breaker.automatic();
    let mut other = service.clone();
    let ready = Box::pin(other.ready());
    assert!(poll_once(&mut { ready }).is_ready(), "the slot is free");
}

#[tokio::test]
async fn an_open_breaker_refuses_although_the_inner_service_hangs_in_poll_ready() {
    let scene = scene(|builder| builder);
    let layer = BreakerLayer::builder(scene.breaker.clone()).build().unwrap();
    let (inner, _senders) = limited(&ConcurrencyLimitLayer::new(1));
    let mut service = layer.layer(inner);
    let hangs = call(&mut service, request("/hangs")).await;
    scene.open().await;
    let mut refused = service.clone();
    let mut refused = call(&mut refused, request("/")).await;
    assert!(
        matches!(poll_once(&mut refused), Poll::Ready(Ok(response)) if response.status() == 503)
    );

    // Polled while it was open, called as a trial: the call waits until the service is ready.
    let mut late = service.clone();
    late.ready().await.unwrap();
    scene.hand.advance(5 * SECOND);
    let mut trial = Box::pin(late.call(request("/")));
    assert!(poll_once(&mut trial).is_pending(), "the slot is taken");
    drop(hangs);
    assert_eq!(trial.await.unwrap().status(), 200);
    assert!(scene.breaker.state().is_closed());
}

#[tokio::test]
async fn each_server_or_key_has_a_breaker_and_clones_share_them() {
    let (clock, _hand) = Clock::manual();
    let hosts: KeyedBreaker<str> = settings(clock.clone()).build_keyed(100).unwrap();
    let (service, _senders) = limited(&BreakerLayer::keyed(hosts.clone()).build().unwrap());
    let to = |uri: &str, host: Option<&str>, status| {
        let mut request = answered(head(status, &[]));
        *request.uri_mut() = uri.parse().unwrap();
        if let Some(host) = host {
            request.headers_mut().insert("host", host.parse().unwrap());
        }
        request
    };
    drop(once(&service, to("http://A.example:80/x", None, 500)).await.unwrap());
    drop(once(&service, to("/y", Some("a.example:80"), 500)).await.unwrap());
    assert_eq!(hosts.state("a.example:80"), BreakerState::Open);
    for (uri, expected) in [
        ("http://me@a.EXAMPLE:80/", 503),
        ("http://b.example:80/", 200),
        ("http://a.example/", 200),
    ] {
        let response = once(&service, to(uri, None, 200)).await.unwrap();
        assert_eq!(response.status(), expected, "{uri}");
    }

    let numbers: KeyedBreaker<u64> = settings(clock).build_keyed(100).unwrap();
    let layer = BreakerLayer::keyed_by(numbers.clone(), |info| info.uri().path().len() as u64);
    let (service, _senders) = limited(&layer.build().unwrap());
    for _ in 0..2 {
        drop(once(&service, to("/abc", None, 500)).await.unwrap());
    }
    assert_eq!((numbers.state(&4), numbers.state(&3)), (BreakerState::Open, BreakerState::Closed));
}

#[tokio::test]
async fn a_full_table_refuses_new_servers_only_while_all_known_ones_are_down() {
    let (clock, hand) = Clock::manual();
    let hosts: KeyedBreaker<str> = settings(clock).build_keyed(2).unwrap();
    let (service, _senders) = limited(&BreakerLayer::keyed(hosts.clone()).build().unwrap());
    let to = |host: &str, status| {
        let mut request = answered(head(status, &[]));
        *request.uri_mut() = format!("http://{host}/").parse().unwrap();
        once(&service, request)
    };
    for host in ["a", "a", "b"] {
        assert_eq!(to(host, 500).await.unwrap().status(), 500);
    }
    // `a` is open and stays; `b` is closed and gives up its place.
    assert_eq!(to("c", 500).await.unwrap().status(), 500);
    assert_eq!((hosts.forgotten(), hosts.refused()), (1, 0));
    assert_eq!(to("c", 500).await.unwrap().status(), 500);
    assert_eq!([hosts.state("a"), hosts.state("c")], [BreakerState::Open; 2]);
    let response = to("d", 200).await.unwrap();
    assert_eq!(response.status(), 503, "the service is not called");
    let refused = response.extensions().get::<RefusedBy>().unwrap();
    assert_eq!(refused.part(), "breaker");
    assert_eq!(refused.why(), "every key that the breaker has room for is open or held");
    assert_eq!(refused.retry_after(), None);
    assert!(!response.headers().contains_key("retry-after"), "no time would be right");
    assert_eq!(hosts.refused(), 1);
    // A trial closes `a`; now there is a free place.
    hand.advance(60 * SECOND);
    assert_eq!(to("a", 200).await.unwrap().status(), 200);
    assert_eq!(hosts.state("a"), BreakerState::Closed);
    assert_eq!(to("d", 200).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_retry_outside_comes_exactly_when_a_trial_gets_through() {
    for (deadline, attempts) in [(None, 2), (Some(4 * SECOND), 1)] {
        let clock = Clock::tokio();
        let breaker = settings(clock.clone()).build().unwrap();
        let layer = BreakerLayer::builder(breaker.clone()).build().unwrap();
        let (service, mut senders) = limited(&layer);
        let no_pause = tollgate::Backoff::fixed(Duration::ZERO);
        let retry = RetryLayer::builder().backoff(no_pause).build().unwrap();
        breaker.trip_for(5 * SECOND);
        let mut post = request("/");
        *post.method_mut() = http::Method::POST;
        if let Some(time) = deadline {
            post.extensions_mut().insert(Deadline::after(&clock, time));
        }
        let start = clock.now();
        let response = once(&retry.layer(service), post).await.unwrap();
        let waited = clock.now().since(start);
        if attempts == 1 {
            assert_eq!((response.status().as_u16(), waited), (503, Duration::ZERO), "no time left");
            assert_eq!(retry.counts().out_of_time, 1);
        } else {
            assert_eq!(response.status(), 200, "not sent, so even a POST is repeated");
            assert!((5 * SECOND..5 * SECOND + 2 * MS).contains(&waited), "{waited:?}");
        }
        assert_eq!(senders.try_recv().is_ok(), attempts == 2);
    }
}

#[tokio::test]
async fn errors_stay_as_they_are_and_count() {
    for (outcome, failed) in [
        (None, 2),
        (Some(CallOutcome::Failure), 2),
        (Some(CallOutcome::Success), 0),
        (Some(CallOutcome::Ignore), 0),
    ] {
        let scene = scene(|builder| match outcome {
            Some(outcome) => builder.on_error(outcome),
            None => builder,
        });
        for _ in 0..2 {
            assert_eq!(once(&scene.service, request("/fails")).await.unwrap_err(), "it failed");
        }
        assert_eq!(scene.breaker.counts().failed, failed, "{outcome:?}");
        assert_eq!(scene.breaker.counts().opened, failed / 2, "{outcome:?}");
    }
    let by_text = |error: &String| match error.contains("failed") {
        true => CallOutcome::Ignore,
        false => CallOutcome::Failure,
    };
    let seen = scene(|builder| builder.classify_error(by_text));
    assert!(once(&seen.service, request("/fails")).await.is_err());
    assert_eq!(seen.breaker.counts().ended, 0);
    let other_type = scene(|builder| builder.classify_error(|_: &u64| CallOutcome::Ignore));
    assert!(once(&other_type.service, request("/fails")).await.is_err());
    assert_eq!(other_type.breaker.counts().failed, 1);
}

#[test]
fn settings_without_a_meaning_are_refused() {
    let breaker = Breaker::builder().build().unwrap();
    let error = BreakerLayer::builder(breaker).follow_retry_after(Duration::ZERO).build();
    let error = error.unwrap_err();
    assert_eq!(error.code(), "TG-O01");
    assert_eq!(
        error.to_string(),
        format!(
            "`follow_retry_after` is 0 s, so no time that a server names would open the breaker; \
             raise it, or leave it out (TG-O01, see {}/resilience.md#tg-o01)",
            crate::DOCS
        )
    );
}
