//! The layer that limits requests in flight: which requests hold a slot, until when, and the
//! responses to others.

use crate::DOCS;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use std::{
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tollgate::{Clock, Concurrency, KeyedConcurrency, Quota};
use tollgate_tower::{
    BandwidthLayer, ConcurrencyBody, ConcurrencyLayer, ConcurrencyLayerBuilder, ConcurrencyLimit,
    Key, NotRun, Policy, RateLimitLayer, Shaping, answer::Refusal,
};
use tower::{Layer, Service, ServiceExt};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than any step over loopback takes.
const LONG: Duration = Duration::from_secs(20);

pub(crate) type Sender = mpsc::UnboundedSender<Result<&'static str, String>>;

/// A body that is fed by a test, and ends when the sender is gone.
pub(crate) struct Fed(mpsc::UnboundedReceiver<Result<&'static str, String>>);

impl Fed {
    /// Returns a body that begins with this text, and never ends.
    pub(crate) fn endless(text: &'static str) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(Ok(text)).unwrap();
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        Self(receiver)
    }
}

impl Body for Fed {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        let next = self.0.poll_recv(context);
        next.map(|next| next.map(|next| next.map(|text| Frame::data(Bytes::from(text)))))
    }
}

/// The head of the response that a test wants, in the extensions of its request.
#[derive(Clone)]
pub(crate) struct Head(pub(crate) Response<()>);

/// A service that must be polled ready before each call, and answers with the body that a test
/// feeds.
pub(crate) struct Inner {
    is_ready: bool,
    bodies: mpsc::UnboundedSender<Sender>,
}

impl Clone for Inner {
    fn clone(&self) -> Self {
        Self { is_ready: false, bodies: self.bodies.clone() }
    }
}

impl Service<Request<String>> for Inner {
    type Response = Response<Fed>;
    type Error = String;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Fed>, String>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.bodies.send(sender);
        Box::pin(async move {
            match request.uri().path() {
                "/fails" => Err("it failed".into()),
                "/hangs" => std::future::pending().await,
                _ => {
                    let head = request.extensions().get::<Head>();
                    let head = head.map_or_else(Response::default, |Head(head)| head.clone());
                    Ok(head.map(|()| Fed(receiver)))
                }
            }
        })
    }
}

/// A service behind the layer, and the senders of its bodies.
pub(crate) fn limited<L>(layer: &L) -> (L::Service, mpsc::UnboundedReceiver<Sender>)
where
    L: Layer<Inner>,
{
    let (bodies, senders) = mpsc::unbounded_channel();
    (layer.layer(Inner { is_ready: false, bodies }), senders)
}

pub(crate) fn request(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

pub(crate) async fn ask(
    service: &ConcurrencyLimit<Inner>,
    request: Request<String>,
) -> Response<ConcurrencyBody<Fed>> {
    service.clone().oneshot(request).await.unwrap()
}

fn built(builder: ConcurrencyLayerBuilder) -> ConcurrencyLayer {
    builder.build().unwrap()
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_has_ended_or_is_gone() {
    let limit = Concurrency::new(1).unwrap();
    let (mut service, mut senders) = limited(&built(ConcurrencyLayer::builder(limit.clone())));
    service.ready().await.unwrap();
    assert_eq!(limit.in_flight(), 0, "being ready takes no slot");
    for end in ["ends", "fails", "is dropped half way", "is dropped unread"] {
        let response = ask(&service, request("/")).await;
        let sender = senders.recv().await.unwrap();
        assert_eq!(limit.in_flight(), 1, "{end}: the response is there, its body is not");
        let mut body = response.into_body();
        if end != "is dropped unread" {
            sender.send(Ok("half")).unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
            assert_eq!(limit.in_flight(), 1, "{end}: half of it is sent");
        }
        match end {
            "ends" => {
                drop(sender);
                assert!(body.frame().await.is_none());
            }
            "fails" => {
                sender.send(Err("broken".into())).unwrap();
                assert_eq!(body.frame().await.unwrap().unwrap_err(), "broken");
            }
            _ => drop(body),
        }
        assert_eq!(limit.in_flight(), 0, "the body {end}");
    }
}

#[tokio::test]
async fn errors_and_dropped_calls_free_their_slots() {
    let limit = Concurrency::new(1).unwrap();
    let (service, _senders) = limited(&built(ConcurrencyLayer::builder(limit.clone())));
    let mut service = service;
    let error = service.clone().oneshot(request("/fails")).await.unwrap_err();
    assert_eq!((error.as_str(), limit.in_flight()), ("it failed", 0));

    let mut failing = Box::pin(service.ready().await.unwrap().call(request("/fails")));
    assert_eq!(limit.in_flight(), 1);
    assert!(failing.as_mut().await.is_err());
    assert_eq!(limit.in_flight(), 0, "although the future is still there");

    drop(service.ready().await.unwrap().call(request("/")));
    assert_eq!(limit.in_flight(), 0, "never polled");

    let mut hanging = Box::pin(service.ready().await.unwrap().call(request("/hangs")));
    assert!(hanging.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
    assert_eq!(limit.in_flight(), 1);
    drop(hanging);
    assert_eq!(limit.in_flight(), 0, "dropped while it ran");
}

#[tokio::test]
async fn whoever_finds_no_slot_is_told_so_at_once() {
    let limit = Concurrency::builder(2).name("slots").build().unwrap();
    let layer = built(ConcurrencyLayer::builder(limit.clone()).retry_after(2 * SECOND));
    let (service, _senders) = limited(&layer);
    let (other, _others) = limited(&layer.clone());
    let held = (ask(&service, request("/")).await, ask(&other, request("/")).await);
    let refused = ask(&service, request("/")).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.extensions().get::<NotRun>().is_some());
    let headers = refused.headers();
    assert_eq!(headers["retry-after"], "2");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["ratelimit-policy"], r#""slots";q=2;qu="concurrent-requests""#);
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["slots"]));
    assert_eq!(problem["title"], "Temporary Reduced Capacity");

    limit.set_limit(1).unwrap();
    let refused = ask(&service, request("/")).await;
    let policy = &refused.headers()["ratelimit-policy"];
    assert_eq!(policy, r#""slots";q=1;qu="concurrent-requests""#, "the limit in force");

    let call = Request::post("/a.B/C").header("content-type", "application/grpc");
    let refused = ask(&service, call.body(String::new()).unwrap()).await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["grpc-status"]),
        (200, &"14".parse().unwrap())
    );
    assert!(refused.extensions().get::<NotRun>().is_some());
    drop(held);
    assert_eq!(limit.in_flight(), 0);
    assert_eq!(ask(&service, request("/")).await.status(), 200);
}

#[tokio::test]
async fn no_time_is_told_unless_it_is_said() {
    let layer = built(ConcurrencyLayer::builder(Concurrency::new(0).unwrap()));
    let refused = ask(&limited(&layer).0, request("/")).await;
    assert_eq!(refused.status(), 503);
    assert!(!refused.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn what_is_shed_costs_nothing_further_out() {
    let limit = Concurrency::new(1).unwrap();
    let (service, _senders) = limited(&built(ConcurrencyLayer::builder(limit.clone())));
    let rate = RateLimitLayer::builder().policy(Policy::new("p", Quota::per_hour(2)));
    let service = rate.build().unwrap().layer(service);
    let held = service.clone().oneshot(request("/")).await.unwrap();
    for _ in 0..10 {
        let shed = service.clone().oneshot(request("/")).await.unwrap();
        assert_eq!(shed.status(), 503);
    }
    drop(held);
    assert_eq!(service.clone().oneshot(request("/")).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(request("/")).await.unwrap().status(), 429, "two have run");
}

#[tokio::test]
async fn keys_have_slots_of_their_own() {
    let of = |path: &str, key: &str| {
        let mut request = request(path);
        request.headers_mut().insert("x-key", key.parse().unwrap());
        request
    };
    let limit = KeyedConcurrency::builder(1).max_keys(2).build().unwrap();
    let key = Key::header("x-key");
    let (service, _senders) = limited(&built(ConcurrencyLayer::keyed(limit.clone(), key.clone())));
    let first = ask(&service, of("/", "a")).await;
    assert_eq!(ask(&service, of("/", "a")).await.status(), 429, "a has its share");
    let second = ask(&service, of("/", "b")).await;
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    assert_eq!(ask(&service, of("/", "c")).await.status(), 503, "too many keys are in use");
    let unknown = ask(&service, request("/")).await;
    assert_eq!(unknown.status(), 403, "nobody knows whom to count");
    assert!(unknown.extensions().get::<NotRun>().is_some());
    drop(first);
    assert_eq!(ask(&service, of("/", "a")).await.status(), 200);
    drop(second);
    assert_eq!((limit.total_in_flight(), limit.len()), (0, 0));

    let builder = ConcurrencyLayer::keyed(limit.clone(), key.clone());
    let (service, _senders) = limited(&built(builder.refusal(Refusal::ReducedCapacity)));
    let held = ask(&service, of("/", "a")).await;
    assert_eq!(ask(&service, of("/", "a")).await.status(), 503, "as it was said");
    drop(held);
    limit.close();
    let (service, _senders) = limited(&built(ConcurrencyLayer::keyed(limit, key.clone())));
    assert_eq!(ask(&service, of("/", "a")).await.status(), 503, "closed");
    let limit = KeyedConcurrency::new(1).unwrap();

    let (service, _senders) =
        limited(&built(ConcurrencyLayer::keyed(limit.clone(), key.or_skip())));
    let free = ask(&service, request("/")).await;
    assert_eq!((free.status().as_u16(), limit.total_in_flight()), (200, 0));
}

/// A limit of one, with a queue of two.
fn queue() -> (Concurrency, ConcurrencyLimit<Inner>, mpsc::UnboundedReceiver<Sender>) {
    let limit = Concurrency::builder(1).max_waiting(2).clock(Clock::tokio()).build().unwrap();
    let (service, senders) =
        limited(&built(ConcurrencyLayer::builder(limit.clone()).max_wait(SECOND)));
    (limit, service, senders)
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_bounded_in_length_and_in_time() {
    let (limit, mut service, mut senders) = queue();
    let clock = Clock::tokio();
    let start = clock.now();
    let held = ask(&service, request("/")).await;
    let one = service.ready().await.unwrap().call(request("/"));
    let two = service.ready().await.unwrap().call(request("/"));
    assert_eq!(limit.waiting(), 2);
    assert_eq!(ask(&service, request("/")).await.status(), 503, "the queue is full");
    assert_eq!(clock.now().since(start), Duration::ZERO);

    // The second is polled first, but is still served second.
    let (two, one) = (tokio::spawn(two), tokio::spawn(one));
    tokio::time::advance(SECOND / 2).await;
    drop(held);
    let one = one.await.unwrap().unwrap();
    assert_eq!((one.status().as_u16(), clock.now().since(start)), (200, SECOND / 2));
    let two = two.await.unwrap().unwrap();
    assert_eq!((two.status().as_u16(), two.extensions().get()), (503, Some(&NotRun)));
    let waited = clock.now().since(start);
    assert!((SECOND..SECOND + Duration::from_millis(2)).contains(&waited), "{waited:?}");
    drop(one);
    assert_eq!((limit.in_flight(), limit.waiting()), (0, 0));
    let mut ran = 0;
    while senders.try_recv().is_ok() {
        ran += 1;
    }
    assert_eq!(ran, 2, "what was refused has not run");
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_in_the_queue_leaves_it() {
    let (limit, mut service, _senders) = queue();
    let held = ask(&service, request("/")).await;
    let one = service.ready().await.unwrap().call(request("/"));
    let mut two = Box::pin(service.ready().await.unwrap().call(request("/")));
    assert!(timeout(SECOND / 4, two.as_mut()).await.is_err());
    drop(held);
    assert_eq!((limit.in_flight(), limit.waiting()), (1, 1), "the slot is set aside for the first");
    drop(one);
    let two = two.await.unwrap();
    assert_eq!(two.status(), 200, "and goes to the second");
    drop(two);
    assert_eq!((limit.in_flight(), limit.waiting()), (0, 0));
}

#[test]
fn without_a_runtime_that_has_timers_nobody_waits_and_nothing_panics() {
    let (limit, mut service, _senders) = queue();
    let held = limit.try_acquire().unwrap();
    let mut context = Context::from_waker(std::task::Waker::noop());
    let mut refused = || {
        assert!(service.poll_ready(&mut context).is_ready());
        let mut future = Box::pin(service.call(request("/")));
        let Poll::Ready(Ok(response)) = future.as_mut().poll(&mut context) else {
            panic!("it is refused at once");
        };
        (response.status().as_u16(), limit.waiting())
    };
    assert_eq!(refused(), (503, 0), "no runtime");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(async { refused() }), (503, 0), "no timers");
    drop(held);
}

#[test]
fn what_cannot_be_meant_is_refused_at_the_start() {
    let all = |waiting| {
        let limit = Concurrency::builder(1).max_waiting(waiting).build().unwrap();
        ConcurrencyLayer::builder(limit)
    };
    let each = ConcurrencyLayer::keyed(KeyedConcurrency::new(1).unwrap(), Key::header("no good"));
    for (builder, code) in [
        (all(0).max_wait(SECOND), "TG-R01"),
        (all(1).max_wait(Duration::ZERO), "TG-R02"),
        (all(0).refusal(Refusal::Forbidden), "TG-R03"),
        (all(0).name(""), "TG-R04"),
        (each, "TG-K"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(error.code().starts_with(code), "{error}");
        assert_eq!(error.docs(), format!("{DOCS}/http.md#{}", error.code().to_ascii_lowercase()));
        let place = format!("({}, see {})", error.code(), error.docs());
        assert!(error.to_string().ends_with(&place), "{error}");
    }
}

/// Waits until a condition holds.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(LONG, waits).await.is_ok(), "it never came to this: {what}");
}

/// Sends a request over a connection of its own.
async fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
    stream
}

async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(timeout(LONG, stream.read_u8()).await.unwrap().unwrap());
    }
    String::from_utf8(text).unwrap()
}

/// Serves bodies that are fed by a test on a free port, as long as the runtime lives.
async fn serve(layer: ConcurrencyLayer) -> (SocketAddr, mpsc::UnboundedReceiver<Sender>) {
    let (bodies, senders) = mpsc::unbounded_channel::<Sender>();
    let handler = move || {
        let (sender, receiver) = mpsc::unbounded_channel();
        bodies.send(sender).unwrap();
        std::future::ready(Response::new(axum::body::Body::new(Fed(receiver))))
    };
    let router = axum::Router::new().route("/", axum::routing::get(handler)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, senders)
}

#[tokio::test]
async fn clients_that_hang_up_leave_no_slot_behind() {
    let limit = Concurrency::builder(1).max_waiting(2).build().unwrap();
    let layer = built(ConcurrencyLayer::builder(limit.clone()).max_wait(LONG));
    let (address, mut senders) = serve(layer).await;

    let mut first = connect(address).await;
    let first_body = timeout(LONG, senders.recv()).await.unwrap().unwrap();
    assert!(head(&mut first).await.starts_with("HTTP/1.1 200"));
    let second = connect(address).await;
    until("the second waits", || limit.waiting() == 1).await;
    let mut third = connect(address).await;
    until("the third waits", || limit.waiting() == 2).await;
    drop(second);
    until("the second hung up while it waited", || limit.waiting() == 1).await;
    assert_eq!(limit.in_flight(), 1);

    first_body.send(Ok("half")).unwrap();
    let mut half = [0; 9];
    timeout(LONG, first.read_exact(&mut half)).await.unwrap().unwrap();
    assert_eq!(&half, b"4\r\nhalf\r\n");
    assert_eq!(limit.in_flight(), 1, "it is being sent");
    drop(first);
    let third_body = timeout(LONG, senders.recv()).await.unwrap().unwrap();
    assert!(head(&mut third).await.starts_with("HTTP/1.1 200"), "it has the slot of the first");
    assert_eq!((limit.in_flight(), limit.waiting()), (1, 0));
    drop(third_body);
    until("the third is done, on a connection that stays", || limit.in_flight() == 0).await;
}

#[tokio::test]
async fn streams_that_are_reset_leave_no_slot_behind() {
    use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    let limit = Concurrency::builder(1).max_waiting(2).build().unwrap();
    let layer = built(ConcurrencyLayer::builder(limit.clone()).max_wait(LONG));
    let (address, mut senders) = serve(layer).await;
    let client: Client<_, String> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let get = || timeout(LONG, client.request(request(&format!("http://{address}/"))));

    let first = get().await.unwrap().unwrap();
    assert_eq!(first.version(), http::Version::HTTP_2);
    let body = senders.recv().await.unwrap();
    body.send(Ok("half")).unwrap();
    let mut first = first.into_body();
    let half = timeout(LONG, first.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(half.into_data().unwrap(), "half");
    let waiting = tokio::spawn(get());
    until("the second waits", || limit.waiting() == 1).await;
    waiting.abort();
    until("it was reset while it waited", || limit.waiting() == 0).await;
    assert_eq!(limit.in_flight(), 1, "the first is being sent");
    drop(first);
    until("it was reset half way", || limit.in_flight() == 0).await;
    assert_eq!(get().await.unwrap().unwrap().status(), 200, "on the same connection");
}

#[tokio::test]
async fn the_layers_fit_around_the_routes_of_tonic() {
    let limit = Concurrency::new(1).unwrap();
    let rate = Shaping::each(Quota::per_second(1_000_000));
    let shape = BandwidthLayer::builder().request(rate.clone()).response(rate).build().unwrap();
    let routes = shape.layer(tonic::service::Routes::default().prepare());
    let routes = built(ConcurrencyLayer::builder(limit.clone())).layer(routes);
    let call = || {
        let call = Request::post("/a.B/C").header("content-type", "application/grpc");
        routes.clone().oneshot(call.body(tonic::body::Body::empty()).unwrap())
    };
    let held = call().await.unwrap();
    assert_eq!(held.headers()["grpc-status"], "12", "there is no such method");
    assert_eq!(call().await.unwrap().headers()["grpc-status"], "14", "there is no slot");
    drop(held);
    assert_eq!(call().await.unwrap().headers()["grpc-status"], "12");
}
