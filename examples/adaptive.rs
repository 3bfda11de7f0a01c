//! A slow backend behind an adaptive limit on requests in flight.
//!
//! `cargo run -p tollgate-examples --release --bin adaptive`, then send more requests than it can
//! handle:
//! `tollgate load http 127.0.0.1:3000 --method GET --path / -c 1000 --rate 1150 --max-errors 100000`.
//! The refused requests are the errors; all others are answered within 200 ms. Without the layer
//! (`-- --off`) no request is refused, and nearly all responses come too late.

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use std::{error::Error, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc, oneshot},
    time::Instant,
};
use tollgate::{
    Clock, Concurrency,
    adaptive::{AdaptiveConcurrency, law::DampedAimd},
};
use tollgate_tower::AdaptiveLayer;

/// Clients give up after this time.
pub(crate) const DEADLINE: Duration = Duration::from_millis(200);
/// The backend works on this many requests at once, and each takes this long: 1000 a second.
const WORKERS: usize = 20;
const WORK: Duration = Duration::from_millis(20);

/// Whether the layer is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    On,
    Off,
}

/// A backend with an endless queue. It finishes every request, even if its client has left, like a
/// database.
#[derive(Clone)]
struct Backend {
    queue: mpsc::UnboundedSender<oneshot::Sender<&'static str>>,
}

impl Backend {
    fn start() -> Self {
        let (queue, requests) = mpsc::unbounded_channel();
        let requests = Arc::new(Mutex::new(requests));
        for _ in 0..WORKERS {
            tokio::spawn(work(Arc::clone(&requests)));
        }
        Self { queue }
    }

    async fn ask(&self) -> Option<&'static str> {
        let (reply, response) = oneshot::channel();
        self.queue.send(reply).ok()?;
        response.await.ok()
    }
}

#[expect(clippy::disallowed_methods, reason = "the work of this backend is to sleep")]
async fn work(requests: Arc<Mutex<mpsc::UnboundedReceiver<oneshot::Sender<&'static str>>>>) {
    let mut done_at = Instant::now();
    loop {
        let next = requests.lock().await.recv().await;
        let Some(reply) = next else { return };
        // A sleep ends a little late. Counted from the last end, a busy worker does not lose that
        // time.
        done_at = done_at.max(Instant::now() - Duration::from_millis(2)) + WORK;
        tokio::time::sleep_until(done_at).await;
        let _client_may_have_left = reply.send("done\n");
    }
}

async fn handle(State(backend): State<Backend>) -> Response {
    match backend.ask().await {
        Some(text) => text.into_response(),
        None => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// Keeps responses below half of the deadline: requests that the backend cannot finish in time are
/// refused at once.
fn layer(clock: Clock) -> Result<AdaptiveLayer, Box<dyn Error>> {
    let enforced = Concurrency::builder(0).name("backend").clock(clock).build()?;
    let law = DampedAimd::builder(DEADLINE).build()?;
    Ok(AdaptiveLayer::builder(AdaptiveConcurrency::over(enforced, law)).build()?)
}

/// Returns the service.
pub(crate) fn app(protection: Protection, clock: Clock) -> Result<Router, Box<dyn Error>> {
    let app = Router::new().route("/", get(handle)).with_state(Backend::start());
    Ok(match protection {
        Protection::On => app.layer(layer(clock)?),
        Protection::Off => app,
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let is_off = std::env::args().any(|argument| argument == "--off");
    let protection = if is_off { Protection::Off } else { Protection::On };
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}, protection {protection:?}", listener.local_addr()?);
    axum::serve(listener, app(protection, Clock::monotonic())?).await?;
    Ok(())
}
