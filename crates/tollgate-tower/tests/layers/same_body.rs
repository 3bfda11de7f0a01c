//! The layer that leaves the type of the body as it is.

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};
use tollgate::{Clock, Quota, store::MemoryStore};
use tollgate_tower::{LimitBody, Policy, RateLimitLayer, SameBodyLayer, Settle};
use tower::ServiceExt;
use tower_layer::Layer;

/// A body that knows whether it was made of ours.
enum Own {
    Plain(Full<Bytes>),
    Made(Box<LimitBody<Own>>),
}

impl From<LimitBody<Self>> for Own {
    fn from(body: LimitBody<Self>) -> Self {
        Self::Made(Box::new(body))
    }
}

impl Body for Own {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Plain(body) => Pin::new(body).poll_frame(context),
            Self::Made(body) => Pin::new(&mut **body).poll_frame(context),
        }
    }
}

fn layer(policy: Policy) -> SameBodyLayer {
    let store = MemoryStore::builder().clock(Clock::manual().0).build().unwrap();
    RateLimitLayer::builder().memory(store).policy(policy).build().unwrap().same_body()
}

async fn ask(layer: &SameBodyLayer) -> Response<Own> {
    let answer = |_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Own::Plain(Full::from("0123456789"))))
    };
    layer.layer(tower::service_fn(answer)).oneshot(Request::new(())).await.unwrap()
}

#[tokio::test]
async fn a_body_comes_as_it_was_unless_there_is_something_to_see_to() {
    let layer = layer(Policy::new("p", Quota::per_hour(1)));
    let passed = ask(&layer).await;
    assert_eq!(
        (passed.status().as_u16(), &passed.headers()["ratelimit"]),
        (200, &http::HeaderValue::from_static("\"p\";r=0;t=3600"))
    );
    assert!(matches!(passed.body(), Own::Plain(_)));

    let refused = ask(&layer).await;
    assert_eq!(refused.status(), 429);
    assert!(matches!(refused.body(), Own::Made(_)));
    let told = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(told.starts_with(b"{\"type\":"), "{told:?}");
}

#[tokio::test]
async fn a_body_that_settles_is_counted() {
    let layer = layer(Policy::new("bytes", Quota::per_hour(25)).settle(Settle::body_bytes()));
    for remaining in ["24", "14", "4"] {
        let response = ask(&layer).await;
        let left = response.headers()["ratelimit"].to_str().unwrap();
        assert!(left.contains(&format!(";r={remaining};")), "{left}");
        assert!(matches!(response.body(), Own::Made(_)));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "0123456789");
    }
    assert_eq!(ask(&layer).await.status(), 429);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_router_of_axum_takes_it() {
    let layer = layer(Policy::new("p", Quota::per_hour(1)));
    let get = axum::routing::get(|| async { "hello" });
    let app: axum::Router = axum::Router::new().route("/", get).layer(layer);
    for (status, starts) in [(200, "hello"), (429, "{")] {
        let response = app.clone().oneshot(Request::new(axum::body::Body::empty())).await.unwrap();
        assert_eq!(response.status(), status);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(starts.as_bytes()), "{body:?}");
    }
}

#[cfg(feature = "tonic")]
#[tokio::test]
async fn a_body_of_tonic_can_be_made_of_ours() {
    let answer = |_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(tonic::body::Body::new(Full::from("hello"))))
    };
    let service = layer(Policy::new("p", Quota::per_hour(1))).layer(tower::service_fn(answer));
    for status in [200, 429] {
        let response: Response<tonic::body::Body> =
            service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), status);
    }
}
