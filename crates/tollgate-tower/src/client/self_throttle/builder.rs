//! The builder of the layer.

use super::{SelfThrottleLayer, SharedThrottle};
use crate::{
    Info,
    classify::Classify,
    concurrency::PrioritySource,
    refusal::{RefusalFormat, refusal_setters},
};
use http::response::Parts;
use std::{convert::Infallible, fmt, sync::Arc};
use tollgate::{CallOutcome, Priority, self_throttle::SelfThrottle};

/// Builds a [`SelfThrottleLayer`].
#[must_use = "a builder does nothing until `build`"]
pub struct SelfThrottleLayerBuilder {
    throttle: SelfThrottle,
    priority: PrioritySource,
    classify: Classify,
    refusals: RefusalFormat,
}

impl SelfThrottleLayerBuilder {
    pub(super) fn new(throttle: SelfThrottle) -> Self {
        let mut classify = Classify::default();
        classify.has_streams = true;
        let (priority, refusals) = (PrioritySource::default(), RefusalFormat::default());
        Self { throttle, priority, classify, refusals }
    }

    /// Sets how urgent a call is; `None` leaves it to the extensions of the request.
    pub fn priority_by(
        mut self,
        priority: impl Fn(&Info<'_>) -> Option<Priority> + Send + Sync + 'static,
    ) -> Self {
        self.priority.by = Some(Arc::new(priority));
        self
    }

    /// Decides how a call went by its response, by default
    /// [`AdaptiveLayer::outcome_of`](crate::AdaptiveLayer::outcome_of). The closure does not see
    /// refusals of layers further in.
    pub fn classify(
        mut self,
        classify: impl Fn(&Parts) -> CallOutcome + Send + Sync + 'static,
    ) -> Self {
        self.classify.by_head = Arc::new(classify);
        self
    }

    /// Sets the outcome of a call that ends with an error of the inner service, by default
    /// [`CallOutcome::Overload`]: in clients, errors are timeouts and broken connections.
    pub fn on_error(mut self, outcome: CallOutcome) -> Self {
        self.classify.on_error = outcome;
        self
    }

    /// Decides how a call went by its error, if it has the type `E`; other errors have the outcome
    /// [`on_error`](Self::on_error). The last of several closures counts.
    pub fn classify_error<E: 'static>(
        mut self,
        classify: impl Fn(&E) -> CallOutcome + Send + Sync + 'static,
    ) -> Self {
        self.classify.by_error(classify);
        self
    }

    refusal_setters!();

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// None: the throttle was checked when it was built. The `Result` makes all layers build alike.
    #[must_use]
    pub fn build(self) -> Result<SelfThrottleLayer, Infallible> {
        let Self { throttle, priority, classify, refusals } = self;
        let shared = SharedThrottle { throttle, priority, classify, refusals };
        Ok(SelfThrottleLayer { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for SelfThrottleLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelfThrottleLayerBuilder")
            .field("throttle", &self.throttle)
            .finish_non_exhaustive()
    }
}
