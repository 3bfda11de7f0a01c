//! What looks wrong once requests come is told in the log, once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod heard;

use bytes::Bytes;
use heard::Heard;
use http::{Request, Response};
use http_body_util::Full;
use std::{
    convert::Infallible,
    task::{Context, Poll, Waker},
};
use tollgate::KeyedConcurrency;
use tollgate_tower::{ConcurrencyLayer, Key};
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
    assert!(line.contains(" code=TG-K52 docs=docs/http.md#tg-k52"), "{line}");
}
