//! The builder of the layer.

use super::{
    FallbackLayer, FallbackResponse, FallbackService, SharedFallback, WhenError, WhenResponse,
    backup::Make,
};
use crate::{
    classify::{Classify, is_refusal},
    client::{Replay, ReplayBody, counts::Count},
    coded::coded,
};
use http::{StatusCode, response::Parts};
use std::{fmt, sync::Arc};
use tollgate::CallOutcome;

/// Builds a [`FallbackLayer`]. Settings are validated by `build` only.
#[must_use = "a builder does nothing until `build`"]
pub struct FallbackLayerBuilder<K = FallbackResponse> {
    backup: K,
    when_response: WhenResponse,
    when_error: WhenError,
    has_header: bool,
}

impl<K> FallbackLayerBuilder<K> {
    pub(super) fn new(backup: K) -> Self {
        let when_response = |head: &Parts| {
            let outcome = Classify::outcome_of(head);
            is_refusal(&head.extensions)
                || matches!(outcome, CallOutcome::Failure | CallOutcome::Overload)
        };
        Self {
            backup,
            when_response: Arc::new(when_response),
            when_error: Arc::new(|_| None),
            has_header: false,
        }
    }

    /// Decides by the head of a response whether the fallback answers instead.
    ///
    /// # Examples
    ///
    /// Only while a breaker is open:
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::Response;
    /// use tollgate_tower::{FallbackLayer, RefusedBy};
    ///
    /// let layer = FallbackLayer::value(Response::new(Bytes::from_static(b"[]")))
    ///     .when(|head| {
    ///         head.extensions.get::<RefusedBy>().is_some_and(|it| it.part() == "breaker")
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate_tower::fallback::FallbackLayerError>(())
    /// ```
    pub fn when(mut self, is_failed: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when_response = Arc::new(is_failed);
        self
    }

    /// Decides by an error of the type `E` whether the fallback answers instead; for errors of other
    /// types it does. The last of several closures counts.
    pub fn when_error<E: 'static>(
        mut self,
        is_failed: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.when_error = Arc::new(move |error| error.downcast_ref().map(&is_failed));
        self
    }

    /// Adds the header `tollgate-degraded: 1` to responses of the fallback. By default there is no
    /// header, and only layers of this process see the mark [`Degraded`](super::Degraded).
    pub fn degraded_header(mut self) -> Self {
        self.has_header = true;
        self
    }

    fn build_layer(self) -> FallbackLayer<K> {
        let Self { backup, when_response, when_error, has_header } = self;
        let used = Count::default();
        let shared = SharedFallback { backup, when_response, when_error, has_header, used };
        FallbackLayer { shared: Arc::new(shared) }
    }
}

impl FallbackLayerBuilder {
    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`FallbackLayerError`] names the fault and a way out.
    pub fn build(self) -> Result<FallbackLayer, FallbackLayerError> {
        if let Make::Value(response) = &self.backup.0
            && response.status().is_informational()
        {
            return Err(FallbackLayerError::Informational { status: response.status() });
        }
        Ok(self.build_layer())
    }
}

impl<T, C> FallbackLayerBuilder<FallbackService<T, C>> {
    /// Sets how requests are cloned, for bodies that are not `Clone`: a request that is not cloned
    /// has no fallback.
    ///
    /// Give it a closure `|request: &Request<B>| -> Option<Request<B>>`.
    pub fn clone_with<F>(self, clone: F) -> FallbackLayerBuilder<FallbackService<T, F>> {
        self.repeat(clone)
    }

    /// Keeps the frames read of a body, up to 64 KiB, for bodies that are not `Clone`; see
    /// [`RetryBuilder::replay`](crate::client::RetryBuilder::replay). A request with a longer body has
    /// no fallback.
    pub fn replay<B>(
        self,
        wrap: impl Fn(ReplayBody<B>) -> B + Send + Sync + 'static,
    ) -> FallbackLayerBuilder<FallbackService<T, Replay<B>>> {
        self.repeat(Replay::new(wrap))
    }

    fn repeat<D>(self, repeat: D) -> FallbackLayerBuilder<FallbackService<T, D>> {
        let Self { backup, when_response, when_error, has_header } = self;
        let backup = FallbackService { backup: backup.backup, repeat };
        FallbackLayerBuilder { backup, when_response, when_error, has_header }
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// None yet; the `Result` makes it like [`FallbackLayerBuilder::build`] of other fallbacks.
    pub fn build(self) -> Result<FallbackLayer<FallbackService<T, C>>, FallbackLayerError> {
        Ok(self.build_layer())
    }
}

impl<K> fmt::Debug for FallbackLayerBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackLayerBuilder")
            .field("has_header", &self.has_header)
            .finish_non_exhaustive()
    }
}

/// An invalid setting of a [`FallbackLayer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackLayerError {
    /// `TG-F01`: the response is informational, so another response has to follow it.
    Informational {
        /// Its status.
        status: StatusCode,
    },
}

coded!(FallbackLayerError, "TG-F01");

impl FallbackLayerError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::Informational { .. } => ("TG-F01", docs!("resilience.md#tg-f01")),
        }
    }
}

impl fmt::Display for FallbackLayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Informational { status } => write!(
                f,
                "the fallback has the status {status}, which ends no call: a response has to \
                 follow it; use 200 or above"
            )?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for FallbackLayerError {}
