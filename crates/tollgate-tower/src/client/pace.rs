//! Sends calls no faster than the server allows.

mod answer;
mod builder;
mod error;
mod future;

pub use answer::{PaceAnswer, PaceAnswerFuture, PaceAnswerLayer, Unsent};
pub use builder::PaceBuilder;
pub use error::{PaceBuildError, PaceError};
pub use future::PaceFuture;

use super::{
    counts::{Counts, PaceCounts},
    lanes::Lanes,
    learned::{Learned, Reader},
    turn::Line,
};
use crate::{Info, observe::metric};
use http::{Request, Response};
use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tollgate::{
    Clock, Limiter,
    observe::{Collector, Samples, WeakCollector},
};
use tower_layer::Layer;
use tower_service::Service;

/// Paces the calls of a client: by a quota of its own, and by the limits that the server reports.
///
/// The layer learns the limits of each server (host and port), or of each route of it, from its
/// answers: the `RateLimit` headers and their relatives say how many calls are left and for how
/// long, and `Retry-After` and gRPC's pushback say when to retry. [`Reader`] lists the headers that
/// it understands. Calls beyond the limits wait in a queue, up to
/// [`max_wait`](PaceBuilder::max_wait); a call that would wait longer is not sent, and fails at
/// once.
///
/// Clones of the layer, and of the services it makes, share the quota and what is learned.
///
/// * `poll_ready` polls the inner service, and does nothing else.
/// * `call` takes the service that was polled ready, and leaves a clone. The wait begins when the
///   future is polled first.
/// * A future that has to wait drops the service that was polled ready, and polls a clone of it
///   when the call may start. So a waiting call holds no place further in, neither in
///   [`ConcurrencyLayer`](crate::ConcurrencyLayer) nor in tower's `ConcurrencyLimit`. Waiting for
///   that clone is not bounded by `max_wait`.
/// * The error becomes a [`PaceError`], which holds the inner one. To keep the inner type, use
///   [`answering`](Self::answering).
/// * A future that is dropped while it waits gives back its place, and its permits as far as they
///   have not refilled already. Permits that it had to wait for stay spent until they refill. Once
///   the call was sent, it counts.
/// * A call that a layer further in refuses ([`RefusedBy`](crate::RefusedBy)) was not sent: its
///   permits go back, and nothing is learned from the response. The refusal of a rate limit layer is
///   an exception: it counts as an answer of the server, in the same process, too.
///
/// Put it inside of [`RetryLayer`](super::RetryLayer), so that a repeated call is paced, too, and
/// outside of what limits concurrency.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Quota};
/// use tollgate_tower::client::PaceLayer;
/// use tower_layer::Layer;
/// # let client = ();
///
/// let pace = PaceLayer::builder()
///     .quota(Limiter::new(Quota::per_second(50))?)
///     .max_wait(Duration::from_secs(10))
///     .build()?;
/// let client = pace.layer(client); // a client of hyper, or a channel of tonic
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PaceLayer {
    shared: Arc<Shared>,
}

/// A service whose calls are paced; made by [`PaceLayer`].
#[derive(Clone, Debug)]
pub struct Pace<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// Has the client's own quota as a part.
impl Collector for PaceLayer {
    fn collect(&self, samples: &mut Samples) {
        let counts = self.counts();
        samples.kind("pace_layer");
        for (event, count) in [
            ("sent", counts.sent),
            ("waited", counts.waited),
            ("refused", counts.refused),
            ("server_refused", counts.server_refused),
        ] {
            samples.count_by(&metric::PACED, event, count);
        }
        samples.count(&metric::PACE_STOPS, counts.stops);
        samples.gauge(&metric::PACE_SERVERS, self.lanes() as f64);
        if let Some(quota) = &self.shared.quota {
            samples.part("quota", quota);
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}

type CostOf = Box<dyn Fn(&Info<'_>) -> u64 + Send + Sync>;
type RouteOf = Box<dyn Fn(&Info<'_>, &mut dyn Hasher) + Send + Sync>;

/// State that all clones share.
struct Shared {
    quota: Option<Limiter>,
    cost: Option<CostOf>,
    route: Option<RouteOf>,
    /// None if nothing is to be learned.
    lanes: Option<Lanes>,
    reader: Reader,
    max_wait: Duration,
    clock: Clock,
    counts: Counts,
    hash: RandomState,
}

impl PaceLayer {
    /// Returns a builder of a layer that learns from the server and has no quota of its own.
    pub fn builder() -> PaceBuilder {
        PaceBuilder::new()
    }

    /// Answers calls that it does not send with a response, so that the error type stays that of
    /// the inner service.
    ///
    /// The response is a 429 with `Retry-After`, or for gRPC a `RESOURCE_EXHAUSTED` with a pushback,
    /// with an empty body. Bodies of the service become [`GuardedBody`](crate::GuardedBody).
    #[must_use]
    pub fn answering(self) -> PaceAnswerLayer {
        PaceAnswerLayer::new(self)
    }

    /// Returns the settings in one line.
    pub(crate) fn summary(&self) -> String {
        let Shared { quota, lanes, max_wait, .. } = &*self.shared;
        let quota = quota.as_ref().map(|quota| format!("{} of the client's", quota.quota()));
        let server = lanes.as_ref().map(|_| "what the server says".to_owned());
        let by = quota.into_iter().chain(server).collect::<Vec<_>>().join(" and ");
        format!("by {by}, with waits of up to {max_wait:?}")
    }

    /// Returns the counts of the calls so far.
    #[must_use]
    pub fn counts(&self) -> PaceCounts {
        self.shared.counts.get()
    }

    /// Returns how many servers, or routes of them, are remembered.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.shared.lanes.as_ref().map_or(0, Lanes::len)
    }
}

impl<S> Layer<S> for PaceLayer {
    type Service = Pace<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Pace { inner, shared: Arc::clone(&self.shared) }
    }
}

impl<S, B, R> Service<Request<B>> for Pace<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<R>;
    type Error = PaceError<S::Error>;
    type Future = PaceFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(PaceError::Inner)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        PaceFuture::new(ready, request, Arc::clone(&self.shared))
    }
}

impl Shared {
    fn cost(&self, info: &Info<'_>) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(info))
    }

    /// Returns the lane of a request, if anything is learned.
    fn line(&self, info: &Info<'_>) -> Option<Arc<Line>> {
        let lanes = self.lanes.as_ref()?;
        let mut hasher = self.hash.build_hasher();
        // Requests without an authority share a lane.
        hasher.write(info.authority().as_bytes());
        if let Some(route) = &self.route {
            hasher.write_u8(0xff);
            route(info, &mut hasher);
        }
        Some(lanes.get(hasher.finish(), &self.counts))
    }

    /// Reads the limits in a response, and counts.
    fn learn<R>(&self, response: &Response<R>) -> Learned {
        let wall = self.clock.to_wall(self.clock.now());
        let learned = self.reader.read(response.status(), response.headers(), wall);
        self.counts.server_refused.add(learned.refusal.is_some().into());
        if self.lanes.is_none() {
            return learned;
        }
        self.counts.clamped.add(learned.clamped.into());
        self.counts.malformed.add(learned.malformed.into());
        self.counts.cached.add(learned.is_cached.into());
        learned
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("quota", &self.quota)
            .field("max_wait", &self.max_wait)
            .field("counts", &self.counts.get())
            .finish_non_exhaustive()
    }
}
