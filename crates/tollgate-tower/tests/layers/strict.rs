//! A service that checks tower's contract, and counts how layers use it.
#![allow(dead_code, reason = "each test uses what it needs")]

use http::{HeaderMap, Request, Response};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tollgate::{Clock, Tick};

/// The course of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    takes: Duration,
    result: Option<Result<u16, &'static str>>,
}

/// Answers with a status, after this many milliseconds.
pub(crate) const fn status(status: u16, takes_ms: u64) -> Step {
    Step { takes: Duration::from_millis(takes_ms), result: Some(Ok(status)) }
}

/// Fails, after this many milliseconds.
pub(crate) const fn error(text: &'static str, takes_ms: u64) -> Step {
    Step { takes: Duration::from_millis(takes_ms), result: Some(Err(text)) }
}

/// Never answers.
pub(crate) const HANGS: Step = Step { takes: Duration::ZERO, result: None };

/// Panics if it is called without being ready; clones are not ready.
pub(crate) struct Strict {
    is_ready: bool,
    /// How long the next `poll_ready` of this clone is pending.
    readies: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    shared: Arc<Shared>,
}

/// The observations of a [`Strict`] and its clones.
pub(crate) struct Shared {
    clock: Clock,
    origin: Tick,
    steps: Mutex<VecDeque<Step>>,
    ready_takes: Mutex<Duration>,
    /// Services that became ready, and those that were dropped ready.
    pub(crate) ready: AtomicU64,
    pub(crate) dropped_ready: AtomicU64,
    /// Calls that run now.
    running: AtomicU64,
    seen: Mutex<Vec<(u64, HeaderMap)>>,
}

impl Strict {
    /// Runs these steps; the last one repeats for ever.
    pub(crate) fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let clock = Clock::tokio();
        let shared = Shared {
            origin: clock.now(),
            clock,
            steps: Mutex::new(steps.into_iter().collect()),
            ready_takes: Mutex::default(),
            ready: AtomicU64::new(0),
            dropped_ready: AtomicU64::new(0),
            running: AtomicU64::new(0),
            seen: Mutex::default(),
        };
        Self { is_ready: false, readies: None, shared: Arc::new(shared) }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Shared {
    /// Returns the milliseconds since its creation.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.origin).as_millis()).unwrap()
    }

    /// Returns when each call began, in milliseconds.
    pub(crate) fn starts(&self) -> Vec<u64> {
        self.seen.lock().unwrap().iter().map(|(at_ms, _)| *at_ms).collect()
    }

    pub(crate) fn headers(&self) -> Vec<HeaderMap> {
        self.seen.lock().unwrap().iter().map(|(_, headers)| headers.clone()).collect()
    }

    // ORDERING: SeqCst here and below, which a test can afford.
    pub(crate) fn running(&self) -> u64 {
        self.running.load(SeqCst)
    }

    /// Returns how many services are ready and wait to be called.
    pub(crate) fn reserved(&self) -> u64 {
        let calls = self.seen.lock().unwrap().len() as u64;
        self.ready.load(SeqCst) - self.dropped_ready.load(SeqCst) - calls
    }

    /// Makes services ready only after this many milliseconds.
    pub(crate) fn ready_takes(&self, ms: u64) {
        *self.ready_takes.lock().unwrap() = Duration::from_millis(ms);
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, readies: None, shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        self.shared.dropped_ready.fetch_add(u64::from(self.is_ready), SeqCst);
    }
}

async fn wait(length: Duration) {
    if !length.is_zero() {
        let _over = tokio::time::timeout(length, std::future::pending::<()>()).await;
    }
}

struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

impl tower::Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, &'static str>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if !self.is_ready {
            let takes = *self.shared.ready_takes.lock().unwrap();
            let readies = self.readies.get_or_insert_with(|| Box::pin(wait(takes)));
            std::task::ready!(readies.as_mut().poll(context));
            (self.is_ready, self.readies) = (true, None);
            self.shared.ready.fetch_add(1, SeqCst);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        let shared = &self.shared;
        let step = {
            let mut steps = shared.steps.lock().unwrap();
            if steps.len() == 1 { steps[0] } else { steps.pop_front().unwrap() }
        };
        let seen = (shared.now_ms(), request.headers().clone());
        shared.seen.lock().unwrap().push(seen);
        shared.running.fetch_add(1, SeqCst);
        let running = Running(Arc::clone(shared));
        Box::pin(async move {
            let _running = running;
            wait(step.takes).await;
            match step.result {
                Some(Ok(status)) => {
                    let body = status.to_string();
                    Ok(Response::builder().status(status).body(body).unwrap())
                }
                Some(Err(text)) => Err(text),
                None => std::future::pending().await,
            }
        })
    }
}

pub(crate) fn get(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}
