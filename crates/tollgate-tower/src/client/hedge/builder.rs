//! The builder of the layer.

use super::{HedgeIf, HedgeLayer, SharedHedge};
use crate::{Info, classify::Classify, client::CloneBody, client::retry::is_repeatable};
use http::response::Parts;
use std::{convert::Infallible, fmt, sync::Arc};
use tollgate::{CallOutcome, hedge::HedgePolicy};

/// Builds a [`HedgeLayer`].
#[must_use = "a builder does nothing until `build`"]
pub struct HedgeLayerBuilder<C = CloneBody> {
    policy: HedgePolicy,
    repeat: C,
    hedge_if: HedgeIf,
    classify: Classify,
}

impl HedgeLayerBuilder {
    pub(super) fn new(policy: HedgePolicy) -> Self {
        let hedge_if = Box::new(|info: &Info<'_>| is_repeatable(info.method(), info.headers()));
        let mut classify = Classify::default();
        classify.has_streams = true;
        Self { policy, repeat: CloneBody, hedge_if, classify }
    }
}

impl<C> HedgeLayerBuilder<C> {
    /// Sets which calls may be made twice. The default is idempotent methods and requests with an
    /// `Idempotency-Key`.
    ///
    /// # Examples
    ///
    /// Searches, which are POST and change nothing:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::hedge::HedgePolicy;
    /// use tollgate_tower::client::HedgeLayer;
    ///
    /// let policy = HedgePolicy::after(Duration::from_millis(50)).build()?;
    /// let Ok(layer) = HedgeLayer::builder(policy)
    ///     .hedge_if(|info| info.uri().path().ends_with("/_search"))
    ///     .build();
    /// # let _ = layer;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn hedge_if(
        mut self,
        hedge_if: impl Fn(&Info<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.hedge_if = Box::new(hedge_if);
        self
    }

    /// Sets how requests are cloned, for bodies that are not `Clone`: a closure
    /// `|request: &Request<B>| -> Option<Request<B>>`. A request that is not cloned is not hedged.
    pub fn clone_with<F>(self, clone: F) -> HedgeLayerBuilder<F> {
        let Self { policy, hedge_if, classify, .. } = self;
        HedgeLayerBuilder { policy, repeat: clone, hedge_if, classify }
    }

    /// Decides how an attempt went by its response, by default
    /// [`AdaptiveLayer::outcome_of`](crate::AdaptiveLayer::outcome_of). Only a success is returned
    /// while another attempt runs. A refusal of a layer further in is not a success, and the
    /// closure does not see it.
    pub fn classify(
        mut self,
        classify: impl Fn(&Parts) -> CallOutcome + Send + Sync + 'static,
    ) -> Self {
        self.classify.by_head = Arc::new(classify);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// None: the policy was checked when it was built. The `Result` makes all layers build alike.
    #[must_use]
    pub fn build(self) -> Result<HedgeLayer<C>, Infallible> {
        let Self { policy, repeat, hedge_if, classify } = self;
        Ok(HedgeLayer { shared: Arc::new(SharedHedge { policy, repeat, hedge_if, classify }) })
    }
}

impl<C> fmt::Debug for HedgeLayerBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HedgeLayerBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}
