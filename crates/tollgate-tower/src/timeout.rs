//! The layer that bounds how long a call takes, phase by phase: [`TimeoutLayer`].
//!
//! `timeout/future.rs` waits for the head, `timeout/body.rs` for the body.

mod body;
mod builder;
mod error;
mod future;
mod summary;

pub use body::TimeoutBody;
pub use builder::{TimeoutLayerBuilder, TimeoutLayerError};
pub use error::{TimeoutError, TimeoutPhase};
pub use future::TimeoutFuture;

use crate::{Deadline, Info, client::counts::Count, key::Trust, observe::metric};
use http::{Request, Response};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tollgate::{
    Clock, Tick,
    observe::{Collector, Samples, WeakCollector},
};
use tower_layer::Layer;
use tower_service::Service;

/// Bounds how long a call takes, in four phases, and passes its deadline on. Clones share counts.
///
/// | phase | from | to |
/// |---|---|---|
/// | [`head`](TimeoutLayerBuilder::head) | the call | the head of the response |
/// | [`body_idle`](TimeoutLayerBuilder::body_idle) | the reader polls for a frame of the body | the frame arrives |
/// | [`attempt`](TimeoutLayerBuilder::attempt) | the call | the end of the body |
/// | [`total`](TimeoutLayerBuilder::total) | the call, or the sender's deadline if that is earlier | the end of the body |
///
/// `attempt` and `total` bound the same time and differ in their place: `total` goes outside of
/// [`RetryLayer`](crate::client::RetryLayer), `attempt` inside. Each leaves a [`Deadline`] in the
/// request's extensions, which bounds layers further in, this layer included.
///
/// | where | what happens |
/// |---|---|
/// | `poll_ready` | that of the inner service, and nothing else |
/// | `call` | finds the deadline. If it has passed, the service is not called |
/// | no head in time | the inner future is dropped; the response is 504 (DEADLINE_EXCEEDED in gRPC) with a [`TimeoutError`] in its extensions |
/// | no body in time | the inner body is dropped; ours ends with a [`TimeoutError`] |
/// | an error of the inner service | stays as it is |
///
/// If this layer answers because a call took too long, the call has run, so a
/// [`BreakerLayer`](crate::BreakerLayer) further out counts it. If the deadline had passed before
/// the call, the response is marked [`NotRun`](crate::NotRun) and [`RefusedBy`](crate::RefusedBy).
///
/// Timeouts need a tokio runtime with timers: without one they are only noticed when something else
/// wakes the call.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_tower::{TimeoutLayer, key::Trust};
///
/// // A server that believes the deadlines of its own network.
/// let server = TimeoutLayer::builder()
///     .total(Duration::from_secs(10))
///     .trust_deadline(Trust::private_networks())
///     .build()?;
///
/// // A client: outside and inside of the retries.
/// let total = TimeoutLayer::builder().total(Duration::from_secs(2)).build()?;
/// let attempt = TimeoutLayer::builder()
///     .attempt(Duration::from_millis(800))
///     .head(Duration::from_millis(500))
///     .send_deadline()
///     .build()?;
/// # let _ = (server, total, attempt);
/// # Ok::<(), tollgate_tower::timeout::TimeoutLayerError>(())
/// ```
#[derive(Clone)]
pub struct TimeoutLayer {
    shared: Arc<SharedTimeouts>,
}

impl TimeoutLayer {
    /// Starts a layer.
    pub fn builder() -> TimeoutLayerBuilder {
        TimeoutLayerBuilder::new()
    }

    /// Returns how many calls took too long, by phase.
    #[must_use]
    pub fn counts(&self) -> TimeoutCounts {
        let counts = &self.shared.counts;
        TimeoutCounts {
            attempt: counts.attempt.get(),
            head: counts.head.get(),
            body_idle: counts.body_idle.get(),
            total: counts.total.get(),
            not_run: counts.not_run.get(),
        }
    }
}

impl Collector for TimeoutLayer {
    fn collect(&self, samples: &mut Samples) {
        let TimeoutCounts { attempt, head, body_idle, total, not_run } = self.counts();
        samples.kind("timeout_layer");
        for (phase, count) in [
            ("attempt", attempt),
            ("head", head),
            ("body_idle", body_idle),
            ("total", total),
            ("not_run", not_run),
        ] {
            samples.count_by(&metric::TIMEOUTS, phase, count);
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}

/// How many calls took too long for a [`TimeoutLayer`], by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeoutCounts {
    /// Calls that exceeded phase `attempt`.
    pub attempt: u64,
    /// Calls that exceeded phase `head`.
    pub head: u64,
    /// Calls that exceeded phase `body_idle`.
    pub body_idle: u64,
    /// Calls that exceeded phase `total`, deadlines included.
    pub total: u64,
    /// Calls that were not made, since their deadline had passed.
    pub not_run: u64,
}

#[derive(Default)]
struct Counts {
    attempt: Count,
    head: Count,
    body_idle: Count,
    total: Count,
    not_run: Count,
}

/// State that all services of a layer share.
struct SharedTimeouts {
    attempt: Option<Duration>,
    head: Option<Duration>,
    body_idle: Option<Duration>,
    total: Option<Duration>,
    /// Peers whose deadlines are believed.
    trust: Option<Trust>,
    sends_deadline: bool,
    clock: Clock,
    counts: Counts,
}

/// When a phase has to end.
#[derive(Clone, Copy)]
struct Bound {
    due: Tick,
    error: TimeoutError,
}

impl Bound {
    fn new(start: Tick, phase: TimeoutPhase, limit: Duration) -> Self {
        Self { due: start.saturating_add(limit), error: TimeoutError::new(phase, limit) }
    }

    /// Returns the earlier one; the first if both are due at the same time.
    fn earlier(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) if other.due < one.due => Some(other),
            (one, other) => one.or(other),
        }
    }
}

impl SharedTimeouts {
    /// Returns the time that the sender leaves for a request; `None` if the sender sets none.
    fn left(&self, info: &Info<'_>) -> Option<Duration> {
        let own = info.extensions().get::<Deadline>().map(Deadline::left);
        let is_believed = || {
            let trust = self.trust.as_ref();
            trust.is_some_and(|trust| info.peer().is_some_and(|peer| trust.believes(peer.ip())))
        };
        // A client's own request may have the header, too, for example with tonic.
        let sent = if self.sends_deadline || is_believed() {
            Deadline::read(&self.clock, info.headers()).map(|deadline| deadline.left())
        } else {
            None
        };
        own.into_iter().chain(sent).min()
    }

    /// Returns when a call that starts now has to be over; `None` if it is not bounded.
    fn whole(&self, now: Tick, left: Option<Duration>) -> Option<Bound> {
        let bound = |phase, limit: Option<Duration>| limit.map(|it| Bound::new(now, phase, it));
        let deadline = bound(TimeoutPhase::Total, left);
        let total = Bound::earlier(deadline, bound(TimeoutPhase::Total, self.total));
        Bound::earlier(total, bound(TimeoutPhase::Attempt, self.attempt))
    }

    fn count(&self, phase: TimeoutPhase) {
        let count = match phase {
            TimeoutPhase::Attempt => &self.counts.attempt,
            TimeoutPhase::Head => &self.counts.head,
            TimeoutPhase::BodyIdle => &self.counts.body_idle,
            TimeoutPhase::Total => &self.counts.total,
        };
        count.add(1);
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = TimeoutService<S>;

    fn layer(&self, inner: S) -> TimeoutService<S> {
        TimeoutService { inner, shared: Arc::clone(&self.shared) }
    }
}

impl fmt::Debug for TimeoutLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutLayer")
            .field("attempt", &self.shared.attempt)
            .field("head", &self.shared.head)
            .field("body_idle", &self.shared.body_idle)
            .field("total", &self.shared.total)
            .finish_non_exhaustive()
    }
}

/// A service whose calls take a bounded time; made by [`TimeoutLayer`].
#[derive(Clone)]
pub struct TimeoutService<S> {
    inner: S,
    shared: Arc<SharedTimeouts>,
}

impl<S, B, R> Service<Request<B>> for TimeoutService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<TimeoutBody<R>>;
    type Error = S::Error;
    type Future = TimeoutFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        let info = Info::of(&request);
        let (now, left, is_grpc) = (shared.clock.now(), shared.left(&info), info.is_grpc());
        let whole = shared.whole(now, left);
        if left == Some(Duration::ZERO) {
            // A ready service may hold a slot of its own: other calls need it.
            let other = self.inner.clone();
            drop(std::mem::replace(&mut self.inner, other));
            shared.counts.not_run.add(1);
            return TimeoutFuture::not_run(shared, is_grpc);
        }
        if let Some(whole) = whole {
            let deadline = Deadline::new(&shared.clock, whole.due);
            if shared.sends_deadline {
                deadline.write(request.headers_mut());
            }
            request.extensions_mut().insert(deadline);
        }
        let head = shared.head.map(|limit| Bound::new(now, TimeoutPhase::Head, limit));
        let head = Bound::earlier(whole, head);
        TimeoutFuture::runs(self.inner.call(request), shared, (head, whole), is_grpc)
    }
}

impl<S: fmt::Debug> fmt::Debug for TimeoutService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
