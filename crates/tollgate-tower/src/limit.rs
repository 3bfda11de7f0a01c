//! The rate limit layer: it decides which requests pass, reports limits to clients, and settles
//! costs.

mod backend;
mod body;
mod builder;
mod correct;
mod crowd;
mod error;
mod figures;
mod future;
mod gate;
mod handle;
mod heavy_keys;
mod light;
mod pass;
mod policy;
mod same;
mod settle;
pub(crate) mod status;
mod ticket;
mod told;
mod turn;
mod usage;

pub use body::LimitBody;
pub use builder::RateLimitBuilder;
pub use error::LayerError;
pub use future::LimitFuture;
pub use pass::OverLimit;
pub use policy::{Mode, Policy};
pub use same::{SameBody, SameBodyFuture, SameBodyLayer};
pub use settle::{Charge, Settle};
pub use usage::Usage;

use future::Held;
use gate::Gate;

use http::{Request, Response};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use ticket::{Instead, Ticket};
use tower_layer::Layer;
use tower_service::Service;

/// Limits the requests of any tower stack. Clones, and all services that it makes, share one limit.
///
/// It does not wait, unless [`wait_up_to`](RateLimitBuilder::wait_up_to) is set: a request over a
/// limit is answered at once, with a status, headers and a body that say why it was refused and
/// when to retry. The error of the inner service stays as it is.
///
/// | a request that | pays |
/// |---|---|
/// | is refused | nothing, by any policy |
/// | passes | the cost of every policy that counts it |
/// | passes, but is dropped before the inner service was polled | nothing: it never ran |
/// | was shed further in ([`NotRun`](crate::NotRun)) | nothing |
/// | has a policy that [settles](Policy::settle) or [charges](Policy::charge) by the response | the cost that the response determines |
///
/// # Examples
///
/// ```
/// use tollgate::Quota;
/// use tollgate_tower::{Policy, RateLimitLayer, key::Key};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("per-client", Quota::per_minute(60)).key(Key::peer()))
///     .policy(Policy::new("global", Quota::per_second(1000)))
///     .build()?;
/// // axum: Router::new().route(..).layer(layer)
/// # let _ = layer;
/// # Ok::<(), tollgate_tower::LayerError>(())
/// ```
#[derive(Clone)]
pub struct RateLimitLayer {
    gate: Arc<Gate>,
}

impl RateLimitLayer {
    /// Starts a layer.
    pub fn builder() -> RateLimitBuilder {
        RateLimitBuilder::new()
    }

    /// Returns the layer for services whose body type can hold ours: its responses keep the type of
    /// the body. In axum (feature `axum`) and in tonic (feature `tonic`) that saves an allocation
    /// for each response; other bodies need a `From<LimitBody<Self>>`. Both layers share one limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use tollgate::Quota;
    /// use tollgate_tower::{Policy, RateLimitLayer, key::Key};
    ///
    /// let limits = RateLimitLayer::builder()
    ///     .policy(Policy::new("per-client", Quota::per_minute(60)).key(Key::peer()))
    ///     .build()?;
    /// let app: axum::Router = axum::Router::new().layer(limits.same_body());
    /// # }
    /// # Ok::<(), tollgate_tower::LayerError>(())
    /// ```
    #[must_use]
    pub const fn same_body(self) -> SameBodyLayer {
        SameBodyLayer::new(self)
    }

    /// Returns the policies in one line.
    pub(crate) fn summary(&self) -> String {
        let policies = self.gate.limits.iter().map(|limit| &limit.policy);
        let each = policies.map(|policy| format!("`{}` {}", policy.name, policy.quota));
        format!("policies {}", each.collect::<Vec<_>>().join(", "))
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, gate: Arc::clone(&self.gate) }
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.gate.limits.iter().map(|limit| &limit.policy);
        f.debug_tuple("RateLimitLayer").field(&policies.collect::<Vec<_>>()).finish()
    }
}

/// A service behind limits; made by [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    gate: Arc<Gate>,
}

/// How to decide if a store cannot answer.
///
/// A store with a failure policy of its own (`Guarded` of `tollgate-redis`) decides by that policy
/// instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStoreError {
    /// The request passes, and the failure is logged.
    #[default]
    Allow,
    /// The request is refused.
    Refuse,
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<LimitBody<R>>;
    type Error = S::Error;
    type Future = LimitFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let mut ticket = Ticket::new(Arc::clone(&self.gate));
        if let Some(instead) = ticket.ask(&mut request) {
            let service = self.take_ready();
            return match instead {
                // A ready service may hold a slot of its own: other calls need it.
                Instead::Refused(response) => LimitFuture::refused(response, ticket),
                Instead::Waits(turn) => LimitFuture::asks(turn, Held { service, request }, ticket),
            };
        }
        LimitFuture::runs(self.inner.call(request), ticket)
    }
}

impl<S: Clone> RateLimit<S> {
    /// Takes out the service that was polled ready, and leaves another one.
    fn take_ready(&mut self) -> S {
        let other = self.inner.clone();
        std::mem::replace(&mut self.inner, other)
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
