//! The layer whose limit follows what the service can do.

use super::{ConcurrencyLayerBuilder, ConcurrencyLayerError, shared::SharedLimit, slot::Slots};
use crate::{Info, classify::Classify};
use http::response::Parts;
use std::sync::Arc;
use tollgate::{
    CallOutcome,
    adaptive::{AdaptiveConcurrency, Partitions},
};

/// Limits requests in flight to what the service can do, measured while it runs. Clones, and all
/// services that it makes, share one limit.
///
/// It is a [`ConcurrencyLayer`](crate::ConcurrencyLayer) whose limit a
/// [law](tollgate::adaptive::law) moves, and has all its settings: queue, priorities, load
/// shedding, refusals. It fits around servers and around clients.
///
/// | where | what happens |
/// |---|---|
/// | `poll_ready` | that of the inner service, and nothing else |
/// | `call` | takes a slot, or a place in the queue, or refuses with 503 and `Retry-After` |
/// | the head of the response | is a sample for the law: its latency, and an outcome by its status |
/// | the body of the response | keeps the slot until it has ended, has failed or is dropped |
/// | an error of the inner service | is a sample ([`on_error`](AdaptiveLayerBuilder::on_error)) and frees the slot; the error stays as it is |
/// | the future is dropped | frees the slot, or leaves the queue; no sample |
///
/// Outcomes by default:
///
/// | response | outcome |
/// |---|---|
/// | 429, 503, 504; gRPC RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED | [`Overload`](CallOutcome::Overload) |
/// | other 5xx, except 501 and 505; gRPC INTERNAL, UNKNOWN, DATA_LOSS | [`Failure`](CallOutcome::Failure) |
/// | marked [`NotRun`](crate::NotRun) or [`RefusedBy`](crate::RefusedBy): a layer further in refused it | [`Ignore`](CallOutcome::Ignore) |
/// | 499; gRPC CANCELLED | [`Ignore`](CallOutcome::Ignore) |
/// | event streams, and all of gRPC, unless [`measure_streams`](AdaptiveLayerBuilder::measure_streams) is set | [`Ignore`](CallOutcome::Ignore) |
/// | all others, 4xx included | [`Success`](CallOutcome::Success) |
///
/// Put it outside of what takes time, authentication included, and inside of tracing.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Concurrency, Priority, adaptive::{AdaptiveConcurrency, law::DampedAimd}};
/// use tollgate_tower::AdaptiveLayer;
///
/// // The law sets the limit: 0 is only the start.
/// let queue = Concurrency::builder(0).name("api").max_waiting(100).build()?;
/// let law = DampedAimd::builder(Duration::from_millis(200)).build()?;
/// let layer = AdaptiveLayer::builder(AdaptiveConcurrency::over(queue, law))
///     .max_wait(Duration::from_millis(100))
///     .priority_by(|info| info.uri().path().starts_with("/pay").then_some(Priority::CRITICAL))
///     .bypass(|info| info.uri().path() == "/health")
///     .build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AdaptiveLayer {
    pub(super) shared: Arc<SharedLimit>,
}

/// Builds an [`AdaptiveLayer`].
pub type AdaptiveLayerBuilder = ConcurrencyLayerBuilder<AdaptiveLayer>;

impl AdaptiveLayer {
    /// Starts a layer with one limit for all requests. Keep a clone of the limit to observe it.
    pub fn builder(limit: AdaptiveConcurrency) -> AdaptiveLayerBuilder {
        AdaptiveLayerBuilder::new(Slots::Adaptive(limit)).adaptive()
    }

    /// Starts a layer with guaranteed shares of one limit; `partition` names that of a request.
    /// Requests of partitions never wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::adaptive::{AdaptiveConcurrency, Partitions};
    /// use tollgate_tower::AdaptiveLayer;
    ///
    /// let limit = AdaptiveConcurrency::new();
    /// let shares = Partitions::builder(&limit).share("web", 75).share("jobs", 25).build()?;
    /// let layer = AdaptiveLayer::partitioned(shares, |info| {
    ///     if info.uri().path().starts_with("/jobs") { "jobs" } else { "web" }
    /// });
    /// # let _ = layer.build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn partitioned<N: AsRef<str>>(
        partitions: Partitions,
        partition: impl Fn(&Info<'_>) -> N + Send + Sync + 'static,
    ) -> AdaptiveLayerBuilder {
        let limit = partitions.limit().clone();
        let try_acquire =
            Arc::new(move |info: &Info<'_>| partitions.try_acquire(partition(info).as_ref()));
        AdaptiveLayerBuilder::new(Slots::Partitioned(limit, try_acquire)).adaptive()
    }

    /// Returns the default outcome of a response, for a
    /// [classifier](AdaptiveLayerBuilder::classify) that changes it for some.
    #[must_use]
    pub fn outcome_of(head: &Parts) -> CallOutcome {
        Classify::outcome_of(head)
    }
}

impl AdaptiveLayerBuilder {
    /// Ends a call with the body of its response instead of its head.
    ///
    /// By default a sample ends with the head: a long download is no sign of load. Set this where
    /// the work is done while the body is sent. A body that fails or is dropped is then no sample,
    /// and `grpc-status` in the trailers decides on calls of gRPC.
    pub fn until_body(self) -> Self {
        self.measured(|measurement| measurement.until_body = true)
    }

    /// Measures event streams and gRPC calls, too. By default they take a slot and are no samples:
    /// the duration of a stream says nothing about load, and the head of a gRPC call does not say
    /// whether it streams. For services with unary calls, set [`until_body`](Self::until_body) as
    /// well.
    pub fn measure_streams(self) -> Self {
        self.measured(|measurement| measurement.has_streams = true)
    }

    /// Decides the outcome of a call by its response, by default [`AdaptiveLayer::outcome_of`].
    ///
    /// The closure does not see streams, nor refusals of layers further in.
    ///
    /// # Examples
    ///
    /// A service that answers 500 when its database is overloaded:
    ///
    /// ```
    /// use tollgate::{CallOutcome, adaptive::AdaptiveConcurrency};
    /// use tollgate_tower::AdaptiveLayer;
    ///
    /// let layer = AdaptiveLayer::builder(AdaptiveConcurrency::new())
    ///     .classify(|head| match head.status.as_u16() {
    ///         500 => CallOutcome::Overload,
    ///         _ => AdaptiveLayer::outcome_of(head),
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate_tower::ConcurrencyLayerError>(())
    /// ```
    pub fn classify(
        self,
        classify: impl Fn(&Parts) -> CallOutcome + Send + Sync + 'static,
    ) -> Self {
        self.measured(|measurement| measurement.by_head = Arc::new(classify))
    }

    /// Sets the outcome of a call that ends with an error of the inner service, by default
    /// [`CallOutcome::Overload`]: in stacks of tower, errors are timeouts, shed calls and broken
    /// connections. Where they are bugs, choose [`CallOutcome::Failure`].
    pub fn on_error(self, outcome: CallOutcome) -> Self {
        self.measured(|measurement| measurement.on_error = outcome)
    }

    fn measured(mut self, change: impl FnOnce(&mut Classify)) -> Self {
        // INVARIANT: builders of this layer begin with a measurement.
        if let Some(measurement) = &mut self.settings.measurement {
            change(measurement);
        }
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`ConcurrencyLayerError`] names the fault and a way out.
    pub fn build(self) -> Result<AdaptiveLayer, ConcurrencyLayerError> {
        self.build_shared().map(|shared| AdaptiveLayer { shared })
    }
}
