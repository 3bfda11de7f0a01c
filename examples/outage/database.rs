//! A database that has an outage.

use axum::http::StatusCode;
use http::{Request, Response};
use std::{convert::Infallible, ops::Range, sync::Arc, time::Duration};
use tokio::sync::{Mutex, mpsc, oneshot};
use tollgate::Clock;
use tollgate_tower::testing::{ChaosError, ChaosLayer, Fault};
use tower::{Layer, Service, service_fn};

/// The time in which each query takes a second more.
pub(super) const OUTAGE: Range<Duration> = Duration::from_secs(4)..Duration::from_secs(8);
/// It runs this many queries at once, and each takes this long: 200 a second.
const CONNECTIONS: usize = 4;
const QUERY: Duration = Duration::from_millis(20);

type Reply = oneshot::Sender<StatusCode>;

/// It has an endless queue and finishes every query, even if no caller waits for it any more.
#[derive(Clone)]
pub(super) struct Database {
    queries: mpsc::UnboundedSender<Reply>,
}

impl Database {
    /// Starts the database; the times of the outage count from now.
    pub(super) fn start() -> Result<Self, ChaosError> {
        let slow = Fault::latency(Duration::from_secs(1)).during(OUTAGE);
        let chaos = ChaosLayer::builder().fault(slow).clock(Clock::tokio()).build()?;
        let (queries, queue) = mpsc::unbounded_channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..CONNECTIONS {
            tokio::spawn(work(Arc::clone(&queue), chaos.clone()));
        }
        Ok(Self { queries })
    }

    /// Runs a query.
    pub(super) async fn ask(&self) -> StatusCode {
        let (reply, response) = oneshot::channel();
        match self.queries.send(reply) {
            Ok(()) => response.await.unwrap_or(StatusCode::BAD_GATEWAY),
            Err(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

async fn work(queue: Arc<Mutex<mpsc::UnboundedReceiver<Reply>>>, chaos: ChaosLayer) {
    let mut query = chaos.layer(service_fn(query));
    loop {
        let next = queue.lock().await.recv().await;
        let Some(reply) = next else { return };
        let Ok(response) = query.call(Request::new(())).await;
        let _caller_may_have_left = reply.send(response.status());
    }
}

#[expect(clippy::disallowed_methods, reason = "the work of this database is to sleep")]
async fn query(_: Request<()>) -> Result<Response<()>, Infallible> {
    tokio::time::sleep(QUERY).await;
    Ok(Response::new(()))
}
