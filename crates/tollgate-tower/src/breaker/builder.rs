//! The builder of the layer.

use super::{BreakerLayer, Breakers, SharedBreaker};
use crate::{
    classify::Classify,
    client::Reader,
    coded::coded,
    refusal::{RefusalFormat, refusal_setters},
};
use http::response::Parts;
use std::{fmt, sync::Arc, time::Duration};
use tollgate::CallOutcome;

/// Builds a [`BreakerLayer`]. Settings are validated by [`build`](Self::build) only.
#[must_use = "a builder does nothing until `build`"]
pub struct BreakerLayerBuilder {
    breakers: Breakers,
    classify: Classify,
    follow: Option<Duration>,
    refusals: RefusalFormat,
}

impl BreakerLayerBuilder {
    pub(super) fn new(breakers: Breakers) -> Self {
        let mut classify = Classify::default();
        classify.has_streams = true;
        Self { breakers, classify, follow: None, refusals: RefusalFormat::default() }
    }

    /// Opens the breaker at once when a failed response names a time to come back, until that time:
    /// 429 or 503 with `Retry-After` or its relatives, RESOURCE_EXHAUSTED or UNAVAILABLE with
    /// `RetryInfo` or a pushback. A time beyond `most` opens it for `most`.
    ///
    /// By default such a response is a failure like any other. [`Reader`] lists the headers.
    pub fn follow_retry_after(mut self, most: Duration) -> Self {
        self.follow = Some(most);
        self
    }

    /// Ends a call with the body of its response instead of its head, unless the head says that it
    /// failed.
    ///
    /// Then `grpc-status` in the trailers decides on calls of gRPC, a body that fails has the outcome
    /// [`on_error`](Self::on_error), one that is dropped counts for nothing, and slow calls are those
    /// whose body ends late.
    pub fn until_body(mut self) -> Self {
        self.classify.until_body = true;
        self
    }

    /// Decides how a call went by its response, by default
    /// [`AdaptiveLayer::outcome_of`](crate::AdaptiveLayer::outcome_of). The closure does not see
    /// refusals of layers further in.
    ///
    /// # Examples
    ///
    /// A server that answers 404 while it starts:
    ///
    /// ```
    /// use tollgate::{Breaker, CallOutcome};
    /// use tollgate_tower::{AdaptiveLayer, BreakerLayer};
    ///
    /// let layer = BreakerLayer::builder(Breaker::builder().build()?)
    ///     .classify(|head| match head.status.as_u16() {
    ///         404 => CallOutcome::Failure,
    ///         _ => AdaptiveLayer::outcome_of(head),
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn classify(
        mut self,
        classify: impl Fn(&Parts) -> CallOutcome + Send + Sync + 'static,
    ) -> Self {
        self.classify.by_head = Arc::new(classify);
        self
    }

    /// Sets the outcome of a call that ends with an error of the inner service, by default
    /// [`CallOutcome::Overload`], which counts as failed. [`CallOutcome::Ignore`] counts none.
    pub fn on_error(mut self, outcome: CallOutcome) -> Self {
        self.classify.on_error = outcome;
        self
    }

    /// Decides how a call went by its error, if it has the type `E`; other errors have the outcome
    /// [`on_error`](Self::on_error). The last of several closures counts.
    ///
    /// # Examples
    ///
    /// A request that cannot be encoded is no fault of the server:
    ///
    /// ```
    /// use std::io;
    /// use tollgate::{Breaker, CallOutcome};
    /// use tollgate_tower::BreakerLayer;
    ///
    /// let layer = BreakerLayer::builder(Breaker::builder().build()?)
    ///     .classify_error(|error: &io::Error| match error.kind() {
    ///         io::ErrorKind::InvalidInput => CallOutcome::Ignore,
    ///         _ => CallOutcome::Failure,
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// [`BreakerLayerError`] names the fault and a way out.
    pub fn build(self) -> Result<BreakerLayer, BreakerLayerError> {
        if self.follow.is_some_and(|most| most.is_zero()) {
            return Err(BreakerLayerError::ZeroFollow);
        }
        let shared = SharedBreaker {
            breakers: self.breakers,
            classify: self.classify,
            reader: self.follow.map(|most| Reader::new().longest(most)),
            refusals: self.refusals,
        };
        Ok(BreakerLayer { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for BreakerLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerLayerBuilder")
            .field("breakers", &self.breakers)
            .field("follow", &self.follow)
            .finish_non_exhaustive()
    }
}

/// An invalid setting of a [`BreakerLayer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerLayerError {
    /// `TG-O01`: `follow_retry_after` of zero.
    ZeroFollow,
}

coded!(BreakerLayerError, "TG-O01");

impl BreakerLayerError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::ZeroFollow => ("TG-O01", docs!("resilience.md#tg-o01")),
        }
    }
}

impl fmt::Display for BreakerLayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroFollow => f.write_str(
                "`follow_retry_after` is 0 s, so no time that a server names would open the \
                 breaker; raise it, or leave it out",
            )?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for BreakerLayerError {}
