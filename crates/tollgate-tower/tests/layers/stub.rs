//! A server in the same process, that answers by a script or by a real limiter.
#![allow(dead_code, reason = "each test uses what it needs")]

use http::{HeaderName, HeaderValue, Request, Response};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};
use tollgate::{Clock, Tick};
use tower::Service;

/// The server.
#[derive(Clone)]
pub(crate) struct Stub {
    shared: Arc<Shared>,
}

type Reply = Box<dyn Fn(&Request<()>) -> Response<()> + Send + Sync>;

struct Shared {
    clock: Clock,
    origin: Tick,
    reply: Reply,
    seen: Mutex<Vec<(Duration, Request<()>)>>,
    /// How long the next call takes.
    delay: Mutex<Duration>,
}

impl Stub {
    /// Answers by the script; its last line repeats for ever.
    pub(crate) fn scripted<const N: usize>(lines: [(u16, &'static str); N]) -> Self {
        let lines = Mutex::new(VecDeque::from(lines));
        Self::new(move |_| {
            let mut lines = lines.lock().unwrap();
            let (status, headers) = match lines.len() {
                1 => lines[0],
                _ => lines.pop_front().unwrap(),
            };
            response(status, headers)
        })
    }

    pub(crate) fn new(
        reply: impl Fn(&Request<()>) -> Response<()> + Send + Sync + 'static,
    ) -> Self {
        let clock = Clock::tokio();
        let (origin, reply) = (clock.now(), Box::new(reply));
        let shared =
            Shared { clock, origin, reply, seen: Mutex::default(), delay: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Makes the next call take this long.
    pub(crate) fn delay(&self, delay: Duration) {
        *self.shared.delay.lock().unwrap() = delay;
    }

    /// Returns the time since the server's creation, to the millisecond.
    pub(crate) fn now(&self) -> Duration {
        let now = self.shared.clock.now().since(self.shared.origin);
        // Tokio's timers have a resolution of a millisecond, and are late rather than early.
        Duration::from_millis(now.as_millis() as u64)
    }

    /// Returns when each call came.
    pub(crate) fn starts(&self) -> Vec<Duration> {
        self.seen(|(at, _)| *at)
    }

    /// Returns the path of each call.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.seen(|(_, request)| request.uri().path().to_owned())
    }

    pub(crate) fn seen<T>(&self, show: impl Fn(&(Duration, Request<()>)) -> T) -> Vec<T> {
        self.shared.seen.lock().unwrap().iter().map(show).collect()
    }
}

impl Service<Request<()>> for Stub {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let delay = std::mem::take(&mut *self.shared.delay.lock().unwrap());
        let response = (self.shared.reply)(&request);
        self.shared.seen.lock().unwrap().push((self.now(), request));
        Box::pin(async move {
            if !delay.is_zero() {
                let _over = tokio::time::timeout(delay, std::future::pending::<()>()).await;
            }
            Ok(response)
        })
    }
}

pub(crate) fn response(status: u16, headers: &str) -> Response<()> {
    let mut response = Response::builder().status(status).body(()).unwrap();
    for line in headers.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        let name: HeaderName = name.parse().unwrap();
        response.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    }
    response
}

pub(crate) fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).unwrap()
}

pub(crate) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
