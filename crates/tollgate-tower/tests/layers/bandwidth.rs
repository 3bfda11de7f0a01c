//! The layer that shapes bodies: how fast bodies pass, and what a client that hangs up leaves
//! behind.

use crate::DOCS;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tollgate::{Clock, Limiter, Quota};
use tollgate_tower::{BandwidthLayer, ShapedBody, Shaping};
use tower::{Layer, ServiceExt};

/// Longer than any step over loopback takes.
const LONG: Duration = Duration::from_secs(20);

/// A body of frames that are ready; counts how often it was polled for one.
struct Frames {
    frames: VecDeque<Result<Frame<Bytes>, String>>,
    asked: Arc<AtomicU64>,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        // ORDERING: SeqCst, for a test.
        self.asked.fetch_add(1, SeqCst);
        Poll::Ready(self.frames.pop_front())
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.frames.iter().flatten().filter_map(Frame::data_ref);
        SizeHint::with_exact(data.map(|data| data.len() as u64).sum())
    }
}

fn frames(lengths: &[usize]) -> (Frames, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let data = lengths.iter().map(|length| Ok(Frame::data(Bytes::from(vec![7; *length]))));
    (Frames { frames: data.collect(), asked: Arc::clone(&asked) }, asked)
}

/// Returns a body as it comes out of the layer.
async fn shaped<B: Send + 'static>(layer: &BandwidthLayer, body: B) -> ShapedBody<B> {
    let mut body = Some(body);
    let service = layer.layer(tower::service_fn(move |_: Request<ShapedBody<String>>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(body.take().unwrap())))
    }));
    service.oneshot(Request::new(String::new())).await.unwrap().into_body()
}

fn shared(quota: Quota) -> (BandwidthLayer, Limiter, Clock) {
    let clock = Clock::tokio();
    let limiter = Limiter::builder(quota).clock(clock.clone()).build().unwrap();
    let layer = BandwidthLayer::builder().response(Shaping::shared(limiter.clone()));
    (layer.build().unwrap(), limiter, clock)
}

/// Asserts a time within a small tolerance: tokio's timers have whole milliseconds.
fn assert_near(actual: Duration, expected: Duration, what: &str) {
    let slack = Duration::from_millis(20);
    assert!(actual + slack >= expected && actual <= expected + slack, "{what}: {actual:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_comes_at_its_rate_after_the_burst() {
    let clock = Clock::tokio();
    let quota = Quota::per_second(1000).burst(500);
    let layer = BandwidthLayer::builder().response(Shaping::each_by(quota, clock.clone()));
    let layer = layer.build().unwrap();
    // Each body has its own limiter, so the second is as fast as the first.
    for lengths in [&[5000][..], &[100; 50], &[0, 4999, 1], &[500, 4500]] {
        let start = clock.now();
        let mut body = shaped(&layer, frames(lengths).0).await;
        let mut sent = 0;
        assert_eq!(body.size_hint().exact(), Some(5000));
        while let Some(frame) = body.frame().await {
            let length = frame.unwrap().into_data().unwrap().len() as u64;
            assert!(length <= 500, "a piece of {length} is larger than the burst");
            sent += length;
            let most = 500 + u64::try_from(clock.now().since(start).as_millis()).unwrap();
            assert!(sent <= most + 1, "{lengths:?}: {sent} after {:?}", clock.now().since(start));
            assert_eq!(body.size_hint().exact(), Some(5000 - sent));
        }
        assert_eq!(sent, 5000);
        assert_near(clock.now().since(start), Duration::from_millis(4500), "all of it");
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_share_take_turns() {
    let (layer, limiter, clock) = shared(Quota::per_second(1000).burst(100));
    let start = clock.now();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let body = shaped(&layer, frames(&[1000]).0).await;
        let clock = clock.clone();
        tasks.push(tokio::spawn(async move {
            let all = body.collect().await.unwrap().to_bytes();
            (all.len(), clock.now().since(start))
        }));
    }
    // One piece every 100 ms. The first body has the burst, so it is already queued for its second
    // piece when the others come; from then on the bodies take turns.
    for (task, expected_ms) in tasks.into_iter().zip([2500, 2800, 2900]) {
        let (length, took) = task.await.unwrap();
        assert_eq!(length, 1000);
        assert_near(took, Duration::from_millis(expected_ms), "they take turns");
    }
    assert_eq!(limiter.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_lost_when_too_many_wait() {
    let clock = Clock::tokio();
    let quota = Quota::per_second(1000).burst(100);
    let limiter = Limiter::builder(quota).clock(clock.clone()).max_waiting(1).build().unwrap();
    let layer = BandwidthLayer::builder().response(Shaping::shared(limiter)).build().unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(tokio::spawn(shaped(&layer, frames(&[300]).0).await.collect()));
    }
    let start = clock.now();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap().to_bytes().len(), 300);
    }
    let took = clock.now().since(start);
    assert!(took >= Duration::from_millis(1090), "never faster than the rate: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_leaves_its_bytes_to_others() {
    let (layer, limiter, clock) = shared(Quota::per_second(1000).burst(1000));
    let (inner, asked) = frames(&[1000; 10]);
    let mut body = shaped(&layer, inner).await;
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1000);
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(100), body.frame()).await.is_err());
    }
    // ORDERING: SeqCst, for a test.
    assert_eq!(asked.load(SeqCst), 2, "one frame is sent, one waits, and no more are asked for");
    assert_eq!(limiter.waiting(), 1);
    let start = clock.now();
    let mut other = shaped(&layer, frames(&[1000]).0).await;
    assert!(timeout(Duration::from_millis(100), other.frame()).await.is_err());
    drop(body);
    assert_eq!(other.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1000);
    assert_near(clock.now().since(start), Duration::from_millis(700), "it has the other's turn");
    assert_eq!(limiter.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn trailers_and_errors_pass_as_they_are() {
    let (layer, ..) = shared(Quota::per_second(10));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    let (mut inner, _) = frames(&[25]);
    inner.frames.push_back(Ok(Frame::trailers(trailers.clone())));
    inner.frames.push_back(Err("broken".into()));
    let mut body = shaped(&layer, inner).await;
    for expected in [10, 10, 5] {
        let length = body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        assert_eq!(length, expected);
        assert!(!body.is_end_stream());
    }
    assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers);
    assert_eq!(body.frame().await.unwrap().unwrap_err(), "broken");
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn requests_are_shaped_and_responses_are_not_unless_said() {
    let clock = Clock::tokio();
    let quota = Quota::per_second(100).burst(100);
    let layer = BandwidthLayer::builder().request(Shaping::each_by(quota, clock.clone()));
    let service = layer.build().unwrap().layer(tower::service_fn(
        async |request: Request<ShapedBody<Full<Bytes>>>| {
            let body = request.into_body().collect().await?.to_bytes();
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        },
    ));
    let start = clock.now();
    let request = Request::new(Full::new(Bytes::from(vec![1; 600])));
    let response = service.oneshot(request).await.unwrap();
    assert_near(clock.now().since(start), Duration::from_secs(5), "the upload");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 600);
    assert_near(clock.now().since(start), Duration::from_secs(5), "the download is free");
}

#[test]
fn without_a_runtime_that_has_timers_bodies_pass_and_nothing_panics() {
    let sent = || {
        let limiter = Limiter::new(Quota::per_hour(10)).unwrap();
        let layer = BandwidthLayer::builder().response(Shaping::shared(limiter)).build().unwrap();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut make = Box::pin(shaped(&layer, frames(&[100]).0));
        let Poll::Ready(mut body) = make.as_mut().poll(&mut context) else { panic!("it is there") };
        let mut sent = 0;
        while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
            sent += frame.unwrap().into_data().unwrap().len();
        }
        sent
    };
    assert_eq!(sent(), 100, "no runtime");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(async { sent() }), 100, "no timers");
}

#[test]
fn what_cannot_be_meant_is_refused_at_the_start() {
    let builder = BandwidthLayer::builder;
    for (builder, code) in [
        (builder(), "TG-B01"),
        (builder().request(Shaping::each(Quota::per(1, Duration::ZERO))), "TG-B02"),
        (builder().response(Shaping::each(Quota::once(5))), "TG-B03"),
        (builder().response(Shaping::shared(Limiter::new(Quota::once(5)).unwrap())), "TG-B03"),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        let docs = format!("{DOCS}/http.md#{}", code.to_ascii_lowercase());
        assert_eq!(error.docs(), docs);
        assert!(error.to_string().ends_with(&format!("({code}, see {docs})")), "{error}");
    }
    assert!(builder().request(Shaping::each(Quota::unlimited())).build().is_ok());
}

/// Waits until this many bodies wait.
async fn until_waiting(limiter: &Limiter, count: usize) -> Result<(), tokio::time::error::Elapsed> {
    let until = async {
        while limiter.waiting() != count {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, until).await
}

#[tokio::test]
async fn a_client_that_hangs_up_gives_way_to_the_next() {
    use axum::{Router, body::Body, routing::get};
    // At this rate the second piece of a body comes in about an hour.
    let limiter = Limiter::new(Quota::per_hour(1000)).unwrap();
    let layer = BandwidthLayer::builder()
        .response(Shaping::shared(limiter.clone()))
        .request(Shaping::each(Quota::per_second(1_000_000)))
        .build()
        .unwrap();
    let router = Router::new().route("/", get(|| async { Body::from(vec![b'x'; 2000]) }));
    let router = router.layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });

    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
    let mut text = Vec::new();
    while !text.ends_with(&[b'x'; 1000]) {
        text.push(timeout(LONG, client.read_u8()).await.unwrap().unwrap());
    }
    assert!(String::from_utf8(text).unwrap().contains("content-length: 2000"));
    until_waiting(&limiter, 1).await.unwrap();
    drop(client);
    until_waiting(&limiter, 0).await.unwrap();
    server.abort();
}

/// Reports when a handler has ended, or was dropped.
struct Ends(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn an_upload_that_is_cut_off_gives_way_to_the_next() {
    use axum::{Router, body::Body, routing::post};
    // The first client has sent everything, so the server sees its end while it waits for an hour.
    // The second has sent more than the server has read, so the server has to read the rest first,
    // at its rate.
    for (quota, length, sent) in [
        (Quota::per_hour(1000), 2000, 2000),
        (Quota::per_second(1_000_000).burst(10_000), 10_000_000, 300_000),
    ] {
        let limiter = Limiter::new(quota).unwrap();
        let layer = BandwidthLayer::builder().request(Shaping::shared(limiter.clone()));
        let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let handler = move |body: Body| {
            let ends = Ends(sender.clone());
            async move {
                let _ends = ends;
                let _cut_off = body.collect().await;
            }
        };
        let router = Router::new().route("/", post(handler)).layer(layer.build().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nhost: here\r\ncontent-length: {length}\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b'x'; sent]).await.unwrap();
        until_waiting(&limiter, 1).await.unwrap();
        drop(client);
        timeout(LONG, ended.recv()).await.unwrap().unwrap();
        assert_eq!(limiter.waiting(), 0, "{quota:?}");
    }
}
