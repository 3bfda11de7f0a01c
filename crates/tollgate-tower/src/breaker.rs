//! The layer that stops calling a service that fails: [`BreakerLayer`].
//!
//! The library's [`Breaker`] decides; `breaker/future.rs` runs a call and ends its pass.

mod builder;
mod check;
mod future;

pub use builder::{BreakerLayerBuilder, BreakerLayerError};
pub use check::{BreakerCheck, BreakerCheckFuture, BreakerCheckLayer};
pub use future::{BreakerBody, BreakerFuture};

use crate::{Info, RefusedBy, classify::Classify, client::Reader, refusal::RefusalFormat};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use std::{
    borrow::Borrow,
    fmt,
    hash::Hash,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::{
    Breaker, BreakerState, Clock, KeyedBreaker, Open, Pass,
    observe::{Collector, Samples, WeakCollector},
};
use tower_layer::Layer;
use tower_service::Service;

/// A circuit breaker around a client or a server. Clones, and all services that it makes, share it.
///
/// | where | what happens |
/// |---|---|
/// | `poll_ready` | that of the inner service; while a breaker for all calls is open, ready at once, so that a service that hangs delays no refusal |
/// | `call` | takes a pass, or refuses with 503 (UNAVAILABLE in gRPC) and `Retry-After` |
/// | the head of the response | ends the pass: its outcome by status, and its latency for [`Trip::slow_percent`](tollgate::Trip::slow_percent) |
/// | an error of the inner service | ends the pass ([`on_error`](BreakerLayerBuilder::on_error)); the error stays as it is |
/// | the future is dropped | the call counts for nothing, and a trial call makes room for another |
///
/// A refusal is a response with [`NotRun`](crate::NotRun) and [`RefusedBy`] in its extensions: layers
/// further out give back what they have taken for the call, and callers read why and the exact time.
/// `Retry-After` is that time in whole seconds, rounded up.
///
/// Outcomes are those of [`AdaptiveLayer`](crate::AdaptiveLayer): 5xx except 501 and 505, 429, and
/// their relatives in gRPC count as failed. Refusals of layers further in count for nothing, in
/// whatever order you stack them. A stream, too, counts by its head; a status in gRPC trailers is
/// seen only with [`until_body`](BreakerLayerBuilder::until_body).
///
/// Put it inside of [`RetryLayer`](crate::client::RetryLayer), so that each attempt is counted and an
/// open breaker ends the retrying; outside of a concurrency limit, so that a refused call takes no
/// slot; and outside of [`TimeoutLayer`](crate::TimeoutLayer), so that timeouts count.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Breaker, KeyedBreaker};
/// use tollgate_tower::BreakerLayer;
/// use tower_layer::Layer;
/// # let client = ();
///
/// let payments = Breaker::builder().name("payments").build()?;
/// let layer = BreakerLayer::builder(payments.clone())
///     .follow_retry_after(Duration::from_secs(60))
///     .build()?;
/// let client = layer.layer(client);
/// assert!(payments.state().is_closed()); // the clone is the handle
///
/// // One breaker for each server.
/// let hosts: KeyedBreaker<str> = Breaker::builder().build_keyed(10_000)?;
/// let layer = BreakerLayer::keyed(hosts).build()?;
/// # let _ = (client, layer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "CircuitBreakerLayer")]
#[doc(alias = "circuit breaker")]
pub struct BreakerLayer {
    shared: Arc<SharedBreaker>,
}

impl BreakerLayer {
    /// Starts a layer with one breaker for all calls. Keep a clone of it to observe it or to force
    /// its state.
    pub fn builder(breaker: Breaker) -> BreakerLayerBuilder {
        BreakerLayerBuilder::new(Breakers::One(breaker))
    }

    /// Starts a layer with a breaker for each server: [`Info::authority`].
    pub fn keyed(breakers: KeyedBreaker<str>) -> BreakerLayerBuilder {
        let own = breakers.clone();
        Self::each(breakers, Box::new(move |info| own.try_pass(&info.authority())))
    }

    /// Starts a layer with a breaker for each key of your own, such as a route.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Breaker, KeyedBreaker};
    /// use tollgate_tower::BreakerLayer;
    ///
    /// let methods: KeyedBreaker<str> = Breaker::builder().build_keyed(1_000)?;
    /// let layer = BreakerLayer::keyed_by(methods, |info| info.uri().path().to_owned()).build()?;
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keyed_by<K, Q>(
        breakers: KeyedBreaker<K>,
        key: impl Fn(&Info<'_>) -> Q + Send + Sync + 'static,
    ) -> BreakerLayerBuilder
    where
        K: Hash + ?Sized + 'static,
        Q: Borrow<K>,
    {
        let own = breakers.clone();
        Self::each(breakers, Box::new(move |info| own.try_pass(key(info).borrow())))
    }

    fn each<K>(breakers: KeyedBreaker<K>, try_pass: TryPass) -> BreakerLayerBuilder
    where
        K: Hash + ?Sized + 'static,
    {
        let (clock, collector) = (breakers.clock().clone(), Box::new(breakers));
        BreakerLayerBuilder::new(Breakers::Each { clock, try_pass, collector })
    }
}

impl<S> Layer<S> for BreakerLayer {
    type Service = BreakerService<S>;

    fn layer(&self, inner: S) -> BreakerService<S> {
        BreakerService { inner, is_ready: false, shared: Arc::clone(&self.shared) }
    }
}

/// Reports what its breaker reports.
impl Collector for BreakerLayer {
    fn collect(&self, samples: &mut Samples) {
        self.shared.breakers.collector().collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.shared.breakers.collector().weak()
    }
}

impl fmt::Debug for BreakerLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BreakerLayer").field(&self.shared.breakers).finish()
    }
}

type TryPass = Box<dyn Fn(&Info<'_>) -> Result<Pass<'static>, Open> + Send + Sync>;

/// One breaker, or one for each key.
enum Breakers {
    One(Breaker),
    Each { clock: Clock, try_pass: TryPass, collector: Box<dyn Collector + Send + Sync> },
}

impl Breakers {
    fn clock(&self) -> &Clock {
        match self {
            Self::One(breaker) => breaker.clock(),
            Self::Each { clock, .. } => clock,
        }
    }

    fn collector(&self) -> &dyn Collector {
        match self {
            Self::One(breaker) => breaker,
            Self::Each { collector, .. } => &**collector,
        }
    }
}

impl fmt::Debug for Breakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(breaker) => breaker.fmt(f),
            Self::Each { .. } => f.write_str("Each"),
        }
    }
}

/// State that all services of a layer share.
struct SharedBreaker {
    breakers: Breakers,
    classify: Classify,
    /// Reads `Retry-After`, if the breaker follows it.
    reader: Option<Reader>,
    refusals: RefusalFormat,
}

impl SharedBreaker {
    fn try_pass(&self, info: &Info<'_>) -> Result<Pass<'static>, Open> {
        match &self.breakers {
            Breakers::One(breaker) => breaker.try_pass().map(Pass::into_owned),
            Breakers::Each { try_pass, .. } => try_pass(info),
        }
    }

    /// Tells whether every call would be refused now.
    fn refuses_all(&self) -> bool {
        match &self.breakers {
            Breakers::One(breaker) => !breaker.state().is_closed() && breaker.peek().is_err(),
            Breakers::Each { .. } => false,
        }
    }

    fn refusal(&self, open: &Open, info: &Info<'_>) -> Response<Bytes> {
        let clock = self.breakers.clock();
        let why = match open.state() {
            BreakerState::HalfOpen => "its trial calls are under way",
            _ => open.why().as_str(),
        };
        let refused = RefusedBy::new("breaker", why, open.retry_after(clock.now()));
        self.refusals.write_unavailable(refused, clock, info)
    }
}

/// A service behind a circuit breaker; made by [`BreakerLayer`].
pub struct BreakerService<S> {
    inner: S,
    /// The inner service was polled ready, and not called since.
    is_ready: bool,
    shared: Arc<SharedBreaker>,
}

impl<S, B, R> Service<Request<B>> for BreakerService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Error: 'static,
    R: Body,
{
    type Response = Response<BreakerBody<R>>;
    type Error = S::Error;
    type Future = BreakerFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.shared.refuses_all() {
            return Poll::Ready(Ok(()));
        }
        let polled = self.inner.poll_ready(context);
        self.is_ready = matches!(polled, Poll::Ready(Ok(())));
        polled
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_ready = std::mem::take(&mut self.is_ready);
        match self.shared.try_pass(&Info::of(&request)) {
            Ok(pass) if is_ready => {
                let future = self.inner.call(request);
                BreakerFuture::runs(future, pass, Arc::clone(&self.shared))
            }
            // The breaker was open when this service was polled, and admits the call now.
            Ok(pass) => {
                let service = self.take_ready();
                BreakerFuture::readies((service, request), pass, Arc::clone(&self.shared))
            }
            Err(open) => {
                // A ready service may hold a slot of its own: other calls need it.
                if is_ready {
                    drop(self.take_ready());
                }
                BreakerFuture::refused(self.shared.refusal(&open, &Info::of(&request)))
            }
        }
    }
}

impl<S: Clone> BreakerService<S> {
    /// Takes out the service that was polled ready, and leaves another one.
    fn take_ready(&mut self) -> S {
        let other = self.inner.clone();
        std::mem::replace(&mut self.inner, other)
    }
}

impl<S: Clone> Clone for BreakerService<S> {
    fn clone(&self) -> Self {
        let (inner, shared) = (self.inner.clone(), Arc::clone(&self.shared));
        Self { inner, is_ready: false, shared }
    }
}

impl<S: fmt::Debug> fmt::Debug for BreakerService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerService")
            .field("inner", &self.inner)
            .field("breaker", &self.shared.breakers)
            .finish_non_exhaustive()
    }
}
