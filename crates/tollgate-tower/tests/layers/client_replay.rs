//! Bodies that cannot be cloned are sent again, on paused time.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::BoxBody};
use std::{
    collections::VecDeque,
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tollgate_tower::client::{Backoff, Replay, ReplayBody, RetryBudget, RetryBuilder, RetryLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

type BoxError = Box<dyn Error + Send + Sync>;
type Upload = BoxBody<Bytes, BoxError>;

/// A layer that pauses no longer than the server requires.
fn prompt() -> RetryBuilder<Replay<Upload>> {
    let budget = RetryBudget::unlimited();
    let retry = RetryLayer::builder().backoff(Backoff::fixed(Duration::ZERO));
    retry.budget(budget).replay(ReplayBody::boxed)
}

/// A body that is not `Clone`: pieces, and trailers. Counts how often it was polled.
struct Stream {
    pieces: VecDeque<Result<Bytes, &'static str>>,
    trailers: Option<HeaderMap>,
    is_exact: bool,
    given: Arc<AtomicUsize>,
}

impl Stream {
    fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let pieces = pieces.into_iter().map(Ok).collect();
        Self { pieces, trailers: None, is_exact: false, given: Arc::default() }
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.given.fetch_add(1, SeqCst);
        let piece = self.pieces.pop_front();
        let frame = piece.map(|piece| piece.map(Frame::data).map_err(Into::into));
        Poll::Ready(frame.or_else(|| self.trailers.take().map(|it| Ok(Frame::trailers(it)))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_exact && self.pieces.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let bytes: usize = self.pieces.iter().flatten().map(Bytes::len).sum();
        if self.is_exact { SizeHint::with_exact(bytes as u64) } else { SizeHint::default() }
    }
}

/// The parts of one attempt that a server has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Got {
    bytes: Vec<u8>,
    trailers: Option<HeaderMap>,
    hint: Option<u64>,
    was_empty: bool,
    error: Option<String>,
}

/// Reads at most this many frames.
async fn read(body: &mut Upload, frames: usize) -> Got {
    let (hint, was_empty) = (body.size_hint().exact(), body.is_end_stream());
    let mut got = Got { hint, was_empty, ..Got::default() };
    for _ in 0..frames {
        match body.frame().await {
            None => break,
            Some(Err(error)) => got.error = Some(error.to_string()),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => got.bytes.extend(data),
                Err(frame) => got.trailers = frame.into_trailers().ok(),
            },
        }
    }
    got
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Got>>>);

impl Seen {
    fn push(&self, got: Got) -> usize {
        let mut seen = self.0.lock().unwrap();
        seen.push(got);
        seen.len()
    }

    fn take(&self) -> Vec<Got> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A server that refuses this many calls after it has read this many frames, and then accepts all.
fn server(
    refusals: usize,
    frames: usize,
    seen: &Seen,
) -> impl Service<Request<Upload>, Response = Response<()>, Error = Infallible> + Clone + use<> {
    let (seen, calls) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
    service_fn(move |request: Request<Upload>| {
        let (seen, calls) = (seen.clone(), Arc::clone(&calls));
        async move {
            let refuses = calls.fetch_add(1, SeqCst) < refusals;
            let mut body = request.into_body();
            let got = read(&mut body, if refuses { frames } else { usize::MAX }).await;
            seen.push(got);
            let status = if refuses { 429 } else { 200 };
            Ok(Response::builder().status(status).header("retry-after", "1").body(()).unwrap())
        }
    })
}

fn post(stream: Stream) -> Request<Upload> {
    Request::post("http://a/").body(stream.boxed()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn whatever_was_read_the_repeat_has_all_of_it() {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
    for is_exact in [false, true] {
        for trailers in [None, Some(trailers.clone())] {
            for frames in 0..6 {
                let mut stream = Stream::new(["one", "", "two", "three"].map(Bytes::from));
                (stream.trailers, stream.is_exact) = (trailers.clone(), is_exact);
                let given = Arc::clone(&stream.given);
                let seen = Seen::default();
                let client = prompt().build().unwrap().layer(server(2, frames, &seen));
                let response = client.oneshot(post(stream)).await.unwrap();
                assert_eq!(response.status(), 200);
                let seen = seen.take();
                assert_eq!(seen.len(), 3);
                let (bytes, hint) = (b"onetwothree".to_vec(), is_exact.then_some(11));
                let got = Got { bytes, hint, trailers: trailers.clone(), ..Got::default() };
                assert_eq!(seen[2], got, "{frames} frames, {trailers:?}");
                assert_eq!((seen[1].hint, seen[1].was_empty), (hint, false));
                // One poll for each frame and one for the end, as without repeats.
                let polls = 5 + usize::from(trailers.is_some());
                assert_eq!(given.load(SeqCst), polls, "the body is read once");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_stays_empty() {
    let seen = Seen::default();
    let client = prompt().max_replay_bytes(0).build().unwrap().layer(server(1, 9, &seen));
    let mut stream = Stream::new([]);
    stream.is_exact = true;
    assert_eq!(client.oneshot(post(stream)).await.unwrap().status(), 200);
    let empty = Got { hint: Some(0), was_empty: true, ..Got::default() };
    assert_eq!(seen.take(), [empty.clone(), empty]);
}

/// Bytes that count how many of them are in memory.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, SeqCst);
    }
}

fn counted(pieces: usize, length: usize, alive: &Arc<AtomicUsize>) -> Stream {
    let piece = |_| {
        alive.fetch_add(1, SeqCst);
        Bytes::from_owner(Counted(vec![7; length], Arc::clone(alive)))
    };
    Stream::new((0..pieces).map(piece).collect::<Vec<_>>())
}

#[tokio::test(start_paused = true)]
async fn what_is_too_long_is_sent_once_unharmed_and_not_kept() {
    // frames of 1000 bytes, bound, how often it is sent
    for (frames, most, expected) in
        [(4, 4 * 1064, 2), (4, 4 * 1064 - 1, 1), (100, 4 * 1064, 1), (1, 0, 1), (60, 64 * 1024, 2)]
    {
        let seen = Seen::default();
        let alive = Arc::new(AtomicUsize::new(0));
        let layer = prompt().max_replay_bytes(most).build().unwrap();
        let client = layer.layer(server(1, usize::MAX, &seen));
        let response = client.oneshot(post(counted(frames, 1000, &alive))).await.unwrap();
        assert_eq!(response.status(), if expected == 1 { 429 } else { 200 });
        let seen = seen.take();
        assert_eq!(seen.len(), expected, "{frames} frames, {most} bytes");
        assert!(seen.iter().all(|got| got.bytes.len() == frames * 1000 && got.error.is_none()));
        assert_eq!(alive.load(SeqCst), 0, "nothing is left of it");
    }
}

#[tokio::test(start_paused = true)]
async fn once_it_is_too_long_what_was_kept_is_freed() {
    let alive = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (watched, kept) = (Arc::clone(&alive), Arc::clone(&most));
    let service = service_fn(move |request: Request<Upload>| {
        let (watched, kept) = (Arc::clone(&watched), Arc::clone(&kept));
        async move {
            let mut body = request.into_body();
            let mut read = 0;
            while let Some(frame) = body.frame().await {
                drop(frame.unwrap());
                read += 1;
                // The frames that the stream has not yielded yet exist, too.
                kept.fetch_max(watched.load(SeqCst) + read - 100, SeqCst);
            }
            assert_eq!(watched.load(SeqCst), 0);
            Ok::<_, Infallible>(Response::new(()))
        }
    });
    let client = prompt().max_replay_bytes(10 * 1064).build().unwrap().layer(service);
    client.oneshot(post(counted(100, 1000, &alive))).await.unwrap();
    assert_eq!(most.load(SeqCst), 10);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_behind_an_answer() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sender = Arc::new(Mutex::new(Some(sender)));
    // A server that answers when it has read one frame, and continues reading after the answer.
    let service = service_fn(move |request: Request<Upload>| {
        let sender = sender.lock().unwrap().take().unwrap();
        async move {
            let mut body = request.into_body();
            read(&mut body, 1).await;
            assert!(sender.send(body).is_ok());
            Ok::<_, Infallible>(Response::new(()))
        }
    });
    let alive = Arc::new(AtomicUsize::new(0));
    let client = prompt().build().unwrap().layer(service);
    client.oneshot(post(counted(9, 1000, &alive))).await.unwrap();
    assert_eq!(alive.load(SeqCst), 8, "the first is read and gone");
    let mut body = receiver.await.unwrap();
    for left in (0..8).rev() {
        read(&mut body, 1).await;
        assert_eq!(alive.load(SeqCst), left);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_still_sends_is_stopped_before_the_next_begins() {
    // A body that never ends by itself.
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    struct Channel(tokio::sync::mpsc::UnboundedReceiver<Bytes>);
    impl Body for Channel {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
        }
    }
    let seen = Seen::default();
    let (noted, calls) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
    // It answers at once, and continues reading, as HTTP/2 may.
    let service = service_fn(move |request: Request<Upload>| {
        let is_first = calls.fetch_add(1, SeqCst) == 0;
        let noted = noted.clone();
        let mut body = request.into_body();
        let rest = tokio::spawn(async move {
            let mut got = Got::default();
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => got.bytes.extend(frame.into_data().unwrap()),
                    Err(error) => {
                        got.error = Some(error.to_string());
                        break;
                    }
                }
            }
            noted.push(got);
        });
        async move {
            let mut response = Response::new(());
            // Lets the other task run.
            tokio::task::yield_now().await;
            if is_first {
                *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                response.headers_mut().insert("retry-after", "5".parse().unwrap());
            } else {
                rest.await.unwrap();
            }
            Ok::<_, Infallible>(response)
        }
    });
    let client = prompt().build().unwrap().layer(service);
    sender.send(Bytes::from("before ")).unwrap();
    let request = Request::post("http://a/").body(Channel(receiver).boxed()).unwrap();
    let call = tokio::spawn(client.oneshot(request));
    let _second = tokio::time::timeout(Duration::from_secs(1), std::future::pending::<()>()).await;
    let stopped = seen.take();
    assert_eq!(stopped.len(), 1, "it is stopped as soon as it is refused");
    assert_eq!(stopped[0].bytes, b"before ");
    assert!(stopped[0].error.as_ref().unwrap().contains("sent again"));
    sender.send(Bytes::from("between ")).unwrap();
    let _sixth = tokio::time::timeout(Duration::from_secs(6), std::future::pending::<()>()).await;
    sender.send(Bytes::from("behind")).unwrap();
    drop(sender);
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    let all = Got { bytes: b"before between behind".to_vec(), ..Got::default() };
    assert_eq!(seen.take(), [all]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_is_not_repeated() {
    let seen = Seen::default();
    let client = prompt().build().unwrap().layer(server(1, 9, &seen));
    let mut stream = Stream::new([Bytes::from("one")]);
    stream.pieces.push_back(Err("the disk is gone"));
    assert_eq!(client.oneshot(post(stream)).await.unwrap().status(), 429);
    let seen = seen.take();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].error.as_deref(), Some("the disk is gone"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_waits_frees_all() {
    let alive = Arc::new(AtomicUsize::new(0));
    let seen = Seen::default();
    let client = prompt().build().unwrap().layer(server(1, 2, &seen));
    let call = client.oneshot(post(counted(5, 10, &alive)));
    assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
    assert_eq!((seen.take().len(), alive.load(SeqCst)), (1, 0));
}
