//! Streams that are sent again, by real clients over loopback: tonic, hyper-util and reqwest.

use crate::wire::{Plain, join, serve};
use axum::{Router, response::IntoResponse, routing::any};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, combinators::BoxBody};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{
    error::Error,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::mpsc;
use tollgate::Quota;
use tollgate_tower::{
    Policy, RateLimitLayer,
    client::{Backoff, PaceLayer, ReplayBody, RetryBudget, RetryBuilder, RetryLayer},
};
use tonic::{Code, Status, client::Grpc, codegen::tokio_stream::Stream};
use tower::{Layer, Service, ServiceExt, service_fn};

type BoxError = Box<dyn Error + Send + Sync>;

fn retry() -> RetryBuilder {
    let budget = RetryBudget::unlimited();
    let retry = RetryLayer::builder().budget(budget).max_attempts(20);
    retry.backoff(Backoff::full_jitter(Duration::from_millis(1), Duration::from_millis(1)))
}

/// The messages of gRPC, or the frames of a body, that are sent into a channel.
struct Sent(mpsc::UnboundedReceiver<Bytes>);

impl Sent {
    fn all(pieces: &[&[u8]]) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        for piece in pieces {
            sender.send(Bytes::copy_from_slice(piece)).unwrap();
        }
        Self(receiver)
    }
}

impl Stream for Sent {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(context)
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// One call in this many milliseconds.
fn one_in(ms: u64) -> RateLimitLayer {
    let quota = Quota::per(1, Duration::from_millis(ms)).burst(1);
    RateLimitLayer::builder().policy(Policy::new("calls", quota)).build().unwrap()
}

/// Calls by any service that tonic can call.
async fn call<S>(channel: S, messages: Sent) -> Result<Bytes, Status>
where
    S: Service<
            Request<tonic::body::Body>,
            Response = Response<tonic::body::Body>,
            Error: Into<BoxError>,
        >,
{
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let path = "/test.Join/Join".parse().unwrap();
    let answer = client.client_streaming(tonic::Request::new(messages), path, Plain).await?;
    Ok(answer.into_inner())
}

/// Counts the calls that are sent through a channel.
fn counted<S>(
    channel: S,
) -> (
    impl Service<
        Request<tonic::body::Body>,
        Response = Response<tonic::body::Body>,
        Error = S::Error,
        Future: Send,
    > + Clone
    + Send,
    Arc<AtomicU64>,
)
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>, Future: Send>
        + Clone
        + Send,
{
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let counted = channel.map_request(move |request| {
        // ORDERING: Relaxed, here and below. A count publishes nothing else.
        count.fetch_add(1, Relaxed);
        request
    });
    (counted, sent)
}

#[tokio::test]
async fn calls_of_tonic_that_are_refused_are_repeated_until_they_pass() {
    let (channel, sent) = counted(join(one_in(40)).await);
    let retry = retry().replay(tonic::body::Body::new).build().unwrap();
    let client = retry.layer(channel);
    let calls = [&[&b"one"[..], b"two"][..], &[b"three"], &[], &[&[7; 9_000], b"end"]];
    let tasks = calls.map(|pieces| {
        let expected = Bytes::from(pieces.join(&b','));
        (expected, tokio::spawn(call(client.clone(), Sent::all(pieces))))
    });
    for (expected, task) in tasks {
        assert_eq!(task.await.unwrap().unwrap(), expected);
    }
    // Of four at once at least three are refused the first time.
    assert!(sent.load(Relaxed) >= 7, "{sent:?}");
}

#[tokio::test]
async fn a_stream_of_tonic_goes_on_where_it_was_refused() {
    let (channel, sent) = counted(join(one_in(150)).await);
    let retry = retry().replay(tonic::body::Body::new).build().unwrap();
    let client = retry.layer(channel);
    assert_eq!(call(client.clone(), Sent::all(&[])).await.unwrap(), "");
    let (sender, receiver) = mpsc::unbounded_channel();
    sender.send(Bytes::from("before")).unwrap();
    let task = tokio::spawn(call(client, Sent(receiver)));
    // The stream is open while the call is refused, waits, and is sent again.
    let again = async {
        while sent.load(Relaxed) < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), again).await.unwrap();
    sender.send(Bytes::from("behind")).unwrap();
    drop(sender);
    assert_eq!(task.await.unwrap().unwrap(), "before,behind");
}

#[tokio::test]
async fn a_channel_of_tonic_is_paced_and_its_streams_are_repeated() {
    let (channel, sent) = counted(join(one_in(100)).await);
    let retry = retry().replay(tonic::body::Body::new).build().unwrap();
    let client = retry.layer(PaceLayer::builder().build().unwrap().layer(channel));
    let task = || tokio::spawn(call(client.clone(), Sent::all(&[b"one", b"two"])));
    let tasks = [task(), task()];
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap(), "one,two");
    }
    // Nothing is known when the two start: one is refused, and not again after the client has
    // learned.
    assert!((2..=3).contains(&sent.load(Relaxed)), "{sent:?}");
}

#[tokio::test]
async fn a_long_upload_of_tonic_is_sent_once_and_unharmed() {
    let channel = join(one_in(60_000)).await;
    let retry = retry().replay(tonic::body::Body::new).build().unwrap();
    let client = retry.layer(channel);
    let long = vec![7; 500_000];
    let pieces = [&long[..], b"end"];
    let answer = call(client.clone(), Sent::all(&pieces)).await.unwrap();
    assert_eq!(answer.len(), 500_000 + 4);
    let refused = call(client, Sent::all(&pieces)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

/// A server that refuses each path once, without reading, and then echoes the body.
async fn refuses_once() -> SocketAddr {
    let refused = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    let reply = move |request: Request<axum::body::Body>| {
        let is_first = refused.lock().unwrap().insert(request.uri().path().to_owned());
        async move {
            if is_first {
                return StatusCode::TOO_MANY_REQUESTS.into_response();
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::new(axum::body::Body::from(body)).into_response()
        }
    };
    serve(Router::new().fallback(any(reply))).await
}

#[tokio::test]
async fn streams_of_hyper_util_are_repeated_by_http_1_and_2() {
    let address = refuses_once().await;
    for http2 in [false, true] {
        let hyper: Client<HttpConnector, BoxBody<Bytes, BoxError>> =
            Client::builder(TokioExecutor::new()).http2_only(http2).build_http();
        let client = retry().replay(ReplayBody::boxed).build().unwrap().layer(hyper);
        for (path, pieces) in
            [("one", &[&b"one "[..], b"two"][..]), ("none", &[]), ("long", &[&[7; 40_000]])]
        {
            let uri = format!("http://{address}/{path}/{http2}");
            let request = Request::post(uri).body(Sent::all(pieces).boxed()).unwrap();
            let response = client.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, pieces.concat(), "{path}");
        }
    }
}

#[tokio::test]
async fn streams_of_reqwest_are_repeated() {
    let address = refuses_once().await;
    let reqwest = reqwest::Client::new();
    let inner = service_fn(move |request: Request<reqwest::Body>| {
        let reqwest = reqwest.clone();
        async move { reqwest.execute(request.try_into()?).await.map(Response::<reqwest::Body>::from) }
    });
    let client = retry().replay(reqwest::Body::wrap).build().unwrap().layer(inner);
    for (path, body) in [
        ("stream", reqwest::Body::wrap(Sent::all(&[b"one ", b"two"]))),
        ("whole", reqwest::Body::from("one two")),
    ] {
        let request = Request::post(format!("http://{address}/{path}")).body(body).unwrap();
        let response = client.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "one two");
    }
}
