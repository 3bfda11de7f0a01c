//! Callers, and their observations.

use super::database::OUTAGE;
use axum::Router;
use http::{Request, Response};
use reqwest::Body;
use std::{
    error::Error,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};
use tollgate::{Clock, Tick};
use tollgate_tower::client::HttpClient;
use tower::{ServiceExt, util::BoxCloneService};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
/// A client of reqwest, or in tests the service itself.
pub(crate) type Client = BoxCloneService<Request<Body>, Response<Body>, Failure>;

/// Serves on a free port; returns the client for it and its address.
pub(crate) async fn connect(app: Router) -> Result<(Client, String), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = HttpClient::<_, reqwest::Request>::new(reqwest::Client::new());
    Ok((BoxCloneService::new(client.map_err(Failure::from)), url))
}

pub(super) const SECONDS: u32 = 16;
const CALLS_PER_SECOND: u32 = 120;
/// A caller waits for this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The answer that a caller got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// From the database.
    Good,
    /// From the fallback.
    Degraded,
    /// Nothing, or too late.
    Failed,
}

/// A call: when it began, how long its caller waited, and its answer.
pub(crate) struct Call {
    pub(crate) begun: Duration,
    pub(crate) waited: Duration,
    pub(crate) answer: Answer,
}

/// The record of a run: the calls, and when each attempt was sent.
pub(crate) struct Seen {
    pub(crate) calls: Vec<Call>,
    pub(crate) attempts: Vec<Duration>,
}

/// A part of the run: its name, from, to.
pub(crate) const PHASES: [(&str, Duration, Duration); 4] = [
    ("before", Duration::ZERO, OUTAGE.start),
    ("outage", OUTAGE.start, OUTAGE.end),
    ("2 s after it", OUTAGE.end, Duration::from_secs(10)),
    ("later", Duration::from_secs(10), Duration::from_secs(SECONDS as u64)),
];

/// The callers' observations in a part of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub(crate) calls: usize,
    /// In percent of the calls.
    pub(crate) good: usize,
    pub(crate) degraded: usize,
    pub(crate) failed: usize,
    /// Half of the callers, and all but 1 %, waited for at most this long.
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) attempts: usize,
}

impl Seen {
    pub(crate) fn during(&self, from: Duration, to: Duration) -> Phase {
        let calls: Vec<_> =
            self.calls.iter().filter(|call| (from..to).contains(&call.begun)).collect();
        let percent = |answer| {
            let count = calls.iter().filter(|call| call.answer() == answer).count();
            (count * 200 + calls.len()) / (2 * calls.len()).max(1)
        };
        let mut waits: Vec<_> = calls.iter().map(|call| call.waited).collect();
        waits.sort_unstable();
        let at_most = |percent| waits.get(waits.len() * percent / 100).copied().unwrap_or_default();
        Phase {
            calls: calls.len(),
            good: percent(Answer::Good),
            degraded: percent(Answer::Degraded),
            failed: percent(Answer::Failed),
            p50: at_most(50),
            p99: at_most(99),
            attempts: self.attempts.iter().filter(|at| (from..to).contains(*at)).count(),
        }
    }
}

impl Call {
    /// An answer that comes too late does not count.
    pub(super) fn answer(&self) -> Answer {
        // A timer may be a little late.
        let is_late = self.waited > PATIENCE + PATIENCE / 10;
        if is_late { Answer::Failed } else { self.answer }
    }
}

/// Counts the attempts of a client, and starts calls.
pub(super) struct Load {
    clock: Clock,
    start: Tick,
    attempts: Arc<Mutex<Vec<Duration>>>,
}

impl Load {
    pub(super) fn new() -> Self {
        let clock = Clock::tokio();
        Self { start: clock.now(), clock, attempts: Arc::default() }
    }

    /// Returns the client, and records from now on when it sends a request.
    pub(super) fn counted(&self, client: Client) -> Client {
        let (clock, start, attempts) = (self.clock.clone(), self.start, Arc::clone(&self.attempts));
        BoxCloneService::new(client.map_request(move |request| {
            let at = clock.now().since(start);
            attempts.lock().into_iter().for_each(|mut attempts| attempts.push(at));
            request
        }))
    }

    /// Makes this many calls in each second, whatever the state of the others (an open loop).
    pub(super) async fn run<F>(&self, call: impl Fn() -> F) -> Seen
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let mut calls = JoinSet::new();
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / CALLS_PER_SECOND);
        for _ in 0..CALLS_PER_SECOND * SECONDS {
            ticks.tick().await;
            let (clock, start, call) = (self.clock.clone(), self.start, call());
            calls.spawn(async move {
                let begun = clock.now();
                let answer = call.await;
                Call { begun: begun.since(start), waited: clock.now().since(begun), answer }
            });
        }
        let calls = calls.join_all().await;
        let attempts = self.attempts.lock().map(|attempts| attempts.clone()).unwrap_or_default();
        Seen { calls, attempts }
    }
}
