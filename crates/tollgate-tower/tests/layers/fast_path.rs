//! Usual requests take a fast path through the layer, all others the general path: both give the
//! same answers.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use proptest::prelude::*;
use std::{
    convert::Infallible,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{Algorithm, Clock, ManualClock, Quota, store::MemoryStore};
use tollgate_tower::{
    NotRun, Peer, Policy, RateLimitLayer,
    answer::{Headers, Legacy, OnSuccess},
    key::{ClientAddress, Found, Key, KeyBytes},
};
use tower::Service;
use tower_layer::Layer;

/// The course of a request.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is answered at once.
    Answered,
    /// It is answered after this many milliseconds.
    Slow(u64),
    /// It is shed further in.
    Shed,
    /// Its future is dropped before it was polled.
    Dropped,
    /// Its future is dropped while it runs.
    Left,
}

#[derive(Clone, Debug)]
struct Case {
    algorithm: Algorithm,
    quota: Quota,
    cost: u64,
    key: usize,
    headers: usize,
}

fn keys() -> [Key; 6] {
    [
        Key::global(),
        Key::peer(),
        Key::client(ClientAddress::peer().ipv4_prefix(24).ipv6_prefix(48)),
        Key::header("x-api-key").or_anonymous(),
        Key::all([Key::peer(), Key::header("x-api-key").or_anonymous()]),
        // Longer than a key of the fast path.
        Key::from_fn(|_, key| {
            key.push(&[7; 300]);
            true
        }),
    ]
}

fn headers() -> [Headers; 5] {
    [
        Headers::new(),
        Headers::bare(),
        Headers::new().legacy(Legacy::Epoch),
        Headers::bare().legacy(Legacy::Delta).three_fields(),
        Headers::new().on_success(OnSuccess::LeftAndRetryAfter),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let algorithm = prop_oneof![
        3 => Just(Algorithm::Gcra),
        1 => Just(Algorithm::FixedWindow),
        1 => Just(Algorithm::SlidingCounter),
    ];
    (algorithm, 1_u64..6, 1_u64..4, 0_usize..6, 0_usize..5).prop_map(
        |(algorithm, count, cost, key, headers)| {
            let quota = Quota::per(count.max(cost), Duration::from_secs(3));
            Case { algorithm, quota, cost, key, headers }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<(Step, u8, u64)>> {
    let step = prop_oneof![
        6 => Just(Step::Answered),
        2 => (0_u64..2500).prop_map(Step::Slow),
        1 => Just(Step::Shed),
        1 => Just(Step::Dropped),
        1 => Just(Step::Left),
    ];
    // the client, and the milliseconds since the request before
    proptest::collection::vec((step, 0_u8..4, 0_u64..1500), 1..24)
}

fn request(who: u8) -> Request<()> {
    let address: [IpAddr; 4] = [
        [192, 0, 2, 1].into(),
        "::ffff:192.0.2.2".parse().unwrap(),
        "2001:db8:1:2::3".parse().unwrap(),
        "64:ff9b::c000:201".parse().unwrap(),
    ];
    let peer = Peer(SocketAddr::new(address[usize::from(who)], 4711));
    let mut request = Request::builder().extension(peer);
    if who.is_multiple_of(2) {
        request = request.header("x-api-key", format!("key-{who}"));
    }
    request.body(()).unwrap()
}

/// Sends a request through a layer; returns the response, if there is one.
fn send(
    layer: &RateLimitLayer,
    hand: &ManualClock,
    (step, who): (Step, u8),
) -> Option<(StatusCode, HeaderMap)> {
    let service = tower::service_fn(move |_: Request<()>| {
        let mut is_first = matches!(step, Step::Slow(_) | Step::Left);
        std::future::poll_fn(move |_| {
            if std::mem::take(&mut is_first) {
                return Poll::Pending;
            }
            let mut response = Response::new(Full::<Bytes>::default());
            if let Step::Shed = step {
                response.extensions_mut().insert(NotRun);
            }
            Poll::Ready(Ok::<_, Infallible>(response))
        })
    });
    let mut future = pin!(layer.layer(service).call(request(who)));
    let context = &mut Context::from_waker(Waker::noop());
    if let Step::Dropped = step {
        return None;
    }
    let mut answer = future.as_mut().poll(context);
    if let (true, Step::Slow(ms)) = (answer.is_pending(), step) {
        hand.advance(Duration::from_millis(ms));
        answer = future.as_mut().poll(context);
    }
    let Poll::Ready(Ok(response)) = answer else { return None };
    let (head, _) = response.into_parts();
    Some((head.status, head.headers))
}

/// If the service has not waited for anything, the layer does not read the clock again: reported
/// times may then be too long by the duration of the call, and are never too short.
#[test]
fn a_service_that_answers_at_once_is_told_of_as_of_the_request() {
    // how long the service works without waiting, and the seconds until the ten permits of a minute
    // are back
    for (works_ms, waits, expected) in [(0, false, 6), (3_000, false, 6), (3_000, true, 3)] {
        let (clock, hand) = Clock::manual();
        let store = MemoryStore::builder().clock(clock).build().unwrap();
        let policy = Policy::new("p", Quota::per_minute(10));
        let limits = RateLimitLayer::builder().memory(store).policy(policy).build().unwrap();
        let service = tower::service_fn(move |_: Request<()>| {
            let (hand, mut waits) = (hand.clone(), waits);
            std::future::poll_fn(move |_| {
                if std::mem::take(&mut waits) {
                    return Poll::Pending;
                }
                hand.advance(Duration::from_millis(works_ms));
                Poll::Ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
            })
        });
        let mut future = pin!(limits.layer(service).call(Request::new(())));
        let context = &mut Context::from_waker(Waker::noop());
        assert_eq!(waits, waits && future.as_mut().poll(context).is_pending());
        let Poll::Ready(Ok(response)) = future.as_mut().poll(context) else { panic!("it waits") };
        let told = format!("\"p\";r=9;t={expected}");
        assert_eq!(response.headers()["ratelimit"], told, "{works_ms} ms, {waits}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_short_way_says_what_the_long_one_says(case in cases(), steps in steps()) {
        let policy = Policy::new("p", case.quota).algorithm(case.algorithm).cost(case.cost);
        let policy = policy.key(keys()[case.key].clone());
        let [short, long] = [false, true].map(|is_long| {
            let (clock, hand) = Clock::manual();
            let store = MemoryStore::builder().clock(clock).build().unwrap();
            let builder = RateLimitLayer::builder().memory(store).policy(policy.clone());
            let builder = builder.headers(headers()[case.headers]);
            let builder = if is_long { builder.debug_headers() } else { builder };
            (builder.build().unwrap(), hand)
        });
        for (number, (step, who, later)) in steps.into_iter().enumerate() {
            let [mut one, mut other] = [&short, &long].map(|(layer, hand)| {
                hand.advance(Duration::from_millis(later));
                send(layer, hand, (step, who))
            });
            for (_, headers) in one.iter_mut().chain(&mut other) {
                headers.remove("x-tollgate-decision");
                headers.remove("x-tollgate-policies");
            }
            prop_assert_eq!(one, other, "request {}: {:?} of {}", number, step, who);
        }
    }

    #[test]
    fn the_key_of_an_address_is_the_same_on_both_ways(
        bits in any::<u128>(),
        is_v4 in any::<bool>(),
        prefixes in (8_u8..=32, 32_u8..=128),
    ) {
        let address = match is_v4 {
            true => IpAddr::V4((bits as u32).into()),
            false => IpAddr::V6(bits.into()),
        };
        for (v4, v6) in [(32, 64), prefixes] {
            let client = ClientAddress::peer().ipv4_prefix(v4).ipv6_prefix(v6);
            let key = Key::client(client);
            // As the store knows it: one permit, which both paths take from the same key.
            let layer = |is_long: bool, store: &MemoryStore| {
                let policy = Policy::new("p", Quota::once(1)).key(key.clone());
                let builder = RateLimitLayer::builder().memory(store.clone()).policy(policy);
                let builder = if is_long { builder.debug_headers() } else { builder };
                builder.build().unwrap()
            };
            let (clock, hand) = Clock::manual();
            let store = MemoryStore::builder().clock(clock).build().unwrap();
            let peer = Peer(SocketAddr::new(address, 1));
            for (is_long, expected) in [(false, 200), (true, 429)] {
                let service = tower::service_fn(|_: Request<()>| async {
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                });
                let request = Request::builder().extension(peer).body(()).unwrap();
                let mut future = pin!(layer(is_long, &store).layer(service).call(request));
                let answer = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                let Poll::Ready(Ok(response)) = answer else { panic!("it waits") };
                prop_assert_eq!(response.status().as_u16(), expected, "{}", address);
            }
            drop(hand);
            let mut bytes = KeyBytes::new();
            let request = Request::builder().extension(peer).body(()).unwrap();
            let found = key.find(&tollgate_tower::Info::of(&request), &mut bytes);
            prop_assert_eq!(found, Found::Known);
        }
    }
}
