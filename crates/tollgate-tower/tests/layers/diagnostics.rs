//! Likely mistakes that show only when requests come are logged once.

use crate::DOCS;
use crate::heard::Heard;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::{
    convert::Infallible,
    task::{Context, Poll, Waker},
};
use tollgate::{KeyedConcurrency, Quota, store::MemoryStore};
use tollgate_tower::{ConcurrencyLayer, Key, Policy, RateLimitLayer};
use tower::{Layer, ServiceExt};

type Body = Full<Bytes>;

fn request() -> Request<Body> {
    Request::new(Full::default())
}

/// Sends a request through a layer, to a service that is ready at once.
macro_rules! ask {
    ($layer:expr) => {{
        let inner = tower::service_fn(|_: Request<Body>| {
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::default())))
        });
        let mut future = Box::pin($layer.layer(inner).oneshot(request()));
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(response) => response.unwrap(),
            Poll::Pending => panic!("it is ready at once"),
        }
    }};
}

#[test]
fn a_room_tells_once_what_looks_wrong_with_its_key() {
    let heard = Heard::during(|| {
        let limit = KeyedConcurrency::new(1).unwrap();
        let layer = ConcurrencyLayer::keyed(limit, Key::peer()).build().unwrap();
        for _ in 0..100 {
            assert_eq!(ask!(layer).status(), 403);
        }
    });
    let [line] = &heard[..] else { panic!("{heard:?}") };
    assert!(line.starts_with("WARN message=the address of the connection is not known"), "{line}");
    assert!(line.contains(&format!(" code=TG-K52 docs={DOCS}/http.md#tg-k52")), "{line}");
}

/// A layer that is built for each request, which is a mistake.
fn built_for_each_request() {
    for _ in 0..20 {
        let layer = RateLimitLayer::builder().policy(Policy::new("p", Quota::per_second(1)));
        assert_eq!(ask!(layer.build().unwrap()).status(), 200, "it never refuses");
    }
}

#[test]
fn a_layer_that_is_built_for_each_request_is_told_of_once() {
    let heard = Heard::during(built_for_each_request);
    let [line] = &heard[..] else { panic!("{heard:?}") };
    assert!(line.contains("tests/layers/diagnostics.rs:"), "{line}");
    assert!(line.contains(&format!(" code=TG-L51 docs={DOCS}/http.md#tg-l51")), "{line}");
    assert_eq!(Heard::during(built_for_each_request), [""; 0]);
}

#[test]
fn a_layer_that_is_built_once_is_not_told_of() {
    let heard = Heard::during(|| {
        for _ in 0..20 {
            let layer = RateLimitLayer::builder().policy(Policy::new("p", Quota::per_second(9)));
            let layer = layer.build().unwrap();
            assert!((0..2).all(|_| ask!(layer).status() == 200));
        }
    });
    assert_eq!(heard, [""; 0]);
}

#[test]
fn a_layer_that_is_there_twice_is_told_of_once_and_counts_twice() {
    let heard = Heard::during(|| {
        let layer = RateLimitLayer::builder().policy(Policy::new("p", Quota::per_hour(5)));
        let layer = layer.build().unwrap();
        let twice = tower::layer::layer_fn(|inner| layer.layer(layer.layer(inner)));
        let passed = (0..5).filter(|_| ask!(twice).status() == 200).count();
        assert_eq!(passed, 2);
    });
    let [line] = &heard[..] else { panic!("{heard:?}") };
    assert!(line.contains("counted twice by \"p\": it passed the same layer"), "{line}");
    assert!(line.contains(&format!(" code=TG-L52 docs={DOCS}/http.md#tg-l52")), "{line}");
}

#[test]
fn two_layers_with_a_policy_of_one_name_count_twice_only_in_a_store() {
    for (is_shared, lines) in [(false, 0), (true, 1)] {
        let heard = Heard::during(|| {
            let one = || {
                let builder = RateLimitLayer::builder();
                let builder = match is_shared {
                    true => builder.store(MemoryStore::new()),
                    false => builder,
                };
                builder.policy(Policy::new("p", Quota::per_hour(5))).build().unwrap()
            };
            let (outer, inner) = (one(), one());
            let both = tower::layer::layer_fn(|it| outer.layer(inner.layer(it)));
            assert_eq!(ask!(both).status(), 200);
        });
        assert_eq!(heard.len(), lines, "{heard:?}");
        assert!(heard.iter().all(|line| line.contains("TG-L52")), "{heard:?}");
    }
}
