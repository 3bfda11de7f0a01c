//! Repeats refused calls.

mod builder;
mod future;
mod repeat;
mod replay;
mod state;

pub use builder::{RetryBuildError, RetryBuilder};
pub use future::RetryFuture;
pub use repeat::{CloneBody, Repeat};
pub use replay::{Replay, ReplayBody, ReplaySpare};

use super::learned::{Learned, Reader, Refusal, RetryWhen};
use http::{HeaderMap, Method, Request, Response};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
pub use tollgate::{Backoff, RetryBudget, RetryBudgetBuilder};
use tollgate::{
    RetryCounts, RetryPolicy, ShouldRetry,
    observe::{Collector, Samples, WeakCollector},
};
use tower_layer::Layer;
use tower_service::Service;

/// Repeats calls that the server refused.
///
/// Repeating adds load just when there is too much of it. So it has bounds: a number of tries, a
/// time, and a [`RetryBudget`] that all clones share, which successes fill. When a bound is
/// reached, the last refusal is returned as it came. A repeat comes after a random pause, whose
/// bound doubles each time; not after the request's [`Deadline`](crate::Deadline), and never before
/// the time that the server names: by `Retry-After` or its relatives, otherwise by the reset of the
/// exhausted policies. [`Reader`] lists the headers that it understands.
///
/// | refusal | repeated |
/// |---|---|
/// | 429; 403 with `Retry-After` or `X-RateLimit-Remaining: 0` | yes: nothing was done |
/// | 503 with `Retry-After` | if the method is idempotent, or the request has an `Idempotency-Key` |
/// | gRPC `RESOURCE_EXHAUSTED` with `RetryInfo` or pushback | yes |
/// | any of another layer that names a time ([`RefusedBy`](crate::RefusedBy)) | yes: it was not sent |
/// | gRPC `UNAVAILABLE` | only with [`unavailable`](RetryBuilder::unavailable) |
/// | any with a pushback that forbids it | no |
/// | anything else, errors too | no |
///
/// | a body that | is repeated |
/// |---|---|
/// | is `Clone` | always |
/// | is not: those of tonic and reqwest, streams | with [`replay`](RetryBuilder::replay), if it is short |
/// | needs care | as far as [`clone_with`](RetryBuilder::clone_with) clones it |
///
/// Of gRPC, only refusals without messages are seen, which is how servers refuse. Repeats of gRPC
/// have `grpc-previous-rpc-attempts`.
///
/// * `poll_ready` polls the inner service, and does nothing else; the layer polls it again before
///   each repeat.
/// * `call` takes the service that was polled ready, and leaves a clone.
/// * The error type does not change.
/// * A future that is dropped repeats nothing; the budget keeps what it has taken.
/// * Pauses need a tokio runtime with timers. Without one nothing is repeated, and the budget is
///   not charged.
///
/// Put it outside of [`PaceLayer`](super::PaceLayer), so that repeats are paced, too.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_tower::client::{RetryBudget, RetryLayer};
///
/// let budget = RetryBudget::builder().percent(10).min_per_second(1).build()?;
/// let retry = RetryLayer::builder()
///     .max_attempts(4)
///     .max_elapsed(Duration::from_secs(20))
///     .budget(budget)
///     .build()?;
/// # drop(retry);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RetryLayer<C = CloneBody> {
    shared: Arc<Shared<C>>,
}

/// A service whose refused calls are repeated; made by [`RetryLayer`].
#[derive(Debug)]
pub struct Retry<S, C = CloneBody> {
    inner: S,
    shared: Arc<Shared<C>>,
}

/// State that all clones share.
struct Shared<C> {
    repeat: C,
    policy: RetryPolicy,
    retries_unavailable: bool,
    reader: Reader,
}

impl RetryLayer {
    /// Returns a builder.
    pub fn builder() -> RetryBuilder {
        RetryBuilder::new()
    }
}

impl<C> RetryLayer<C> {
    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> &RetryBudget {
        self.shared.policy.budget()
    }

    pub(crate) fn policy(&self) -> &RetryPolicy {
        &self.shared.policy
    }

    /// Returns how many calls were repeated, and why others were not: `out_of_budget` above all.
    #[must_use]
    pub fn counts(&self) -> RetryCounts {
        self.shared.policy.counts()
    }
}

/// Reports what its policy reports.
impl<C> Collector for RetryLayer<C> {
    fn collect(&self, samples: &mut Samples) {
        self.shared.policy.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.shared.policy.weak()
    }
}

impl<S, C> Layer<S> for RetryLayer<C> {
    type Service = Retry<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry { inner, shared: Arc::clone(&self.shared) }
    }
}

impl<C> Clone for RetryLayer<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Clone, C> Clone for Retry<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S, B, R, C> Service<Request<B>> for Retry<S, C>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    C: Repeat<B>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = RetryFuture<S, B, C>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        RetryFuture::new(ready, request, Arc::clone(&self.shared))
    }
}

/// Whether a request may be repeated after the server did some of its work.
#[derive(Clone, Copy, Debug)]
struct Repeatable(bool);

impl Repeatable {
    fn of<B>(request: &Request<B>) -> Self {
        Self(is_repeatable(request.method(), request.headers()))
    }
}

/// Tells whether a call may be made twice: by its method, or by an `Idempotency-Key`.
pub(super) fn is_repeatable(method: &Method, headers: &HeaderMap) -> bool {
    method.is_idempotent() || headers.contains_key("idempotency-key")
}

impl<C> Shared<C> {
    /// Reads an answer.
    fn learn<R>(&self, response: &Response<R>) -> Learned {
        let clock = self.policy.clock();
        let wall = clock.to_wall(clock.now());
        self.reader.read(response.status(), response.headers(), wall)
    }

    /// Tells whether a refusal may be repeated; `None` if the response is not a refusal.
    fn should_retry(
        &self,
        learned: &Learned,
        is_grpc: bool,
        repeatable: Repeatable,
    ) -> Option<ShouldRetry> {
        let refusal = learned.refusal?;
        let is_asked = learned.retry.is_some();
        let repeats = match (refusal, is_grpc) {
            _ if learned.retry == Some(RetryWhen::Never) => false,
            (Refusal::Client, is_grpc) => is_asked || !is_grpc,
            (Refusal::Server, false) => is_asked && repeatable.0,
            (Refusal::Server, true) => self.retries_unavailable,
        };
        Some(match repeats {
            true => ShouldRetry::After(learned.named().unwrap_or_default()),
            false => ShouldRetry::No,
        })
    }
}

impl<C> fmt::Debug for Shared<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("policy", &self.policy).finish_non_exhaustive()
    }
}
