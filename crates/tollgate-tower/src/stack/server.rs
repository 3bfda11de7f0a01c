//! The stack of a server.

use super::{
    StackError, StackHandle,
    observe::{ObserverLayer, Observing, State, observing_setters},
    parts::Parts,
};
use crate::{AdaptiveLayer, ConcurrencyLayer, RateLimitLayer, TimeoutLayer};
use std::{fmt, sync::Arc};
use tower_layer::{Identity, Layer, Stack};

/// All that protects a server, in the order that works. Clones, and all services that it makes, share
/// their state.
///
/// | part | place |
/// |---|---|
/// | [`total_timeout`](ServerStackBuilder::total_timeout) | outermost: it reads the caller's deadline, which bounds every wait further in |
/// | [`shed`](ServerStackBuilder::shed) or [`shed_adaptive`](ServerStackBuilder::shed_adaptive) | before authentication, because that costs too: one limit for all requests, the most urgent first |
/// | [`authenticate`](ServerStackBuilder::authenticate) | before the quotas: they count users, not claims |
/// | [`limits`](ServerStackBuilder::limits) | before slots of routes: a denied request takes none |
/// | [`bulkhead`](ServerStackBuilder::bulkhead) | a slow route cannot take the slots of the others |
/// | [`handler_timeout`](ServerStackBuilder::handler_timeout) | innermost: it ends calls that hang, which frees the slots |
///
/// Quotas before concurrency is the usual order. This stack has both: one protective limit outside,
/// because every request costs something before it is identified, and the quotas before the slots
/// that are held for long.
///
/// Every part is optional. Refusals are responses, so the error type stays as it is, and bodies
/// change as in a [`ClientStack`](super::ClientStack).
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use std::time::Duration;
/// use tollgate::{Concurrency, Quota};
/// use tollgate_tower::{ConcurrencyLayer, Policy, RateLimitLayer, ServerStack, TimeoutLayer};
///
/// let all = Concurrency::builder(200).max_waiting(400).build()?;
/// let stack = ServerStack::builder("shop")
///     .total_timeout(TimeoutLayer::builder().total(Duration::from_secs(10)).build()?)
///     .shed(ConcurrencyLayer::builder(all).max_wait(Duration::from_millis(500)).build()?)
///     .limits(RateLimitLayer::builder().policy(Policy::new("all", Quota::per_second(1000))).build()?)
///     .build()?;
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(stack);
/// # let _ = app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerStack<L> {
    layers: L,
    state: Arc<State>,
}

impl<L> ServerStack<L> {
    /// Returns a handle, which shows the state of all parts.
    #[must_use]
    pub fn handle(&self) -> StackHandle {
        StackHandle { state: Arc::clone(&self.state) }
    }
}

impl ServerStack<()> {
    /// Starts a stack; `name` is the name of the service, and the label of its metrics.
    pub fn builder(name: impl Into<Box<str>>) -> ServerStackBuilder<EmptyServer> {
        let parts = Parts::new("server", "handler timeout", name.into());
        ServerStackBuilder { parts, observing: Observing::default(), layers: EMPTY }
    }
}

impl<S, L: Layer<S>> Layer<S> for ServerStack<L> {
    type Service = L::Service;

    fn layer(&self, inner: S) -> L::Service {
        self.layers.layer(inner)
    }
}

/// The layers of a server stack without parts.
type EmptyServer = (Identity, Identity, Identity, Identity, Identity, Identity);
const EMPTY: EmptyServer = {
    const I: Identity = Identity::new();
    (I, I, I, I, I, I)
};

/// The layers of a server stack, from the inside out; one that is left out is `Identity`.
pub type ServerLayers<T, C, U, L, K, A> =
    Stack<Stack<Stack<Stack<Stack<Stack<A, K>, L>, U>, C>, T>, ObserverLayer>;

/// Builds a [`ServerStack`] from layers, in any order. Settings are validated by
/// [`build`](ServerStackBuilder::build) only.
#[must_use = "a builder does nothing until `build`"]
pub struct ServerStackBuilder<L> {
    parts: Parts,
    observing: Observing,
    layers: L,
}

impl<T, C, U, L, K, A> ServerStackBuilder<(T, C, U, L, K, A)> {
    /// Bounds the whole request, and reads the caller's deadline; the layer needs
    /// [`total`](crate::timeout::TimeoutLayerBuilder::total) or
    /// [`trust_deadline`](crate::timeout::TimeoutLayerBuilder::trust_deadline).
    pub fn total_timeout(
        mut self,
        layer: TimeoutLayer,
    ) -> ServerStackBuilder<(TimeoutLayer, C, U, L, K, A)> {
        let why = "outermost, so that every wait further in keeps to the caller's deadline";
        self.parts.line(0, ("total timeout", why), layer.summary());
        self.parts.total = Some(layer.clone());
        let (_, c, u, l, k, a) = self.layers;
        ServerStackBuilder::of(self.parts, self.observing, (layer, c, u, l, k, a))
    }

    /// Limits all requests in flight. Give it a queue and priorities, so that it sheds the least urgent
    /// ones under load.
    pub fn shed(
        mut self,
        layer: ConcurrencyLayer,
    ) -> ServerStackBuilder<(T, ConcurrencyLayer, U, L, K, A)> {
        self.parts.limit(1, SHED, layer.handle());
        let (t, _, u, l, k, a) = self.layers;
        ServerStackBuilder::of(self.parts, self.observing, (t, layer, u, l, k, a))
    }

    /// Limits all requests in flight to what the server can handle. It replaces
    /// [`shed`](Self::shed); the last of both counts.
    pub fn shed_adaptive(
        mut self,
        layer: AdaptiveLayer,
    ) -> ServerStackBuilder<(T, AdaptiveLayer, U, L, K, A)> {
        self.parts.limit(1, SHED, layer.handle());
        let (t, _, u, l, k, a) = self.layers;
        ServerStackBuilder::of(self.parts, self.observing, (t, layer, u, l, k, a))
    }

    /// Adds a layer of your own between shedding and quotas: usually authentication.
    pub fn authenticate<X>(mut self, layer: X) -> ServerStackBuilder<(T, C, X, L, K, A)> {
        let why = "after shedding, because it costs, and before the quotas, which count users";
        self.parts.line(2, ("authenticate", why), "a layer of yours".to_owned());
        let (t, c, _, l, k, a) = self.layers;
        ServerStackBuilder::of(self.parts, self.observing, (t, c, layer, l, k, a))
    }

    /// Limits the rate of requests.
    pub fn limits(
        mut self,
        layer: RateLimitLayer,
    ) -> ServerStackBuilder<(T, C, U, RateLimitLayer, K, A)> {
        let why = "after authentication, so that it counts users, and before the slots of routes, so \
                   that a denied request takes none";
        self.parts.line(3, ("rate limit", why), layer.summary());
        self.parts.rate_limit = Some(layer.clone());
        let (t, c, u, _, k, a) = self.layers;
        ServerStackBuilder::of(self.parts, self.observing, (t, c, u, layer, k, a))
    }

    /// Limits requests in flight by key, such as the route.
    pub fn bulkhead(
        mut self,
        layer: ConcurrencyLayer,
    ) -> ServerStackBuilder<(T, C, U, L, ConcurrencyLayer, A)> {
        self.parts.limit(4, BULKHEAD, layer.handle());
        let (t, c, u, l, _, a) = self.layers;
        ServerStackBuilder::of(self.parts, self.observing, (t, c, u, l, layer, a))
    }

    /// Bounds the work of the handler; the layer needs
    /// [`attempt`](crate::timeout::TimeoutLayerBuilder::attempt) or another phase.
    pub fn handler_timeout(
        mut self,
        layer: TimeoutLayer,
    ) -> ServerStackBuilder<(T, C, U, L, K, TimeoutLayer)> {
        let why = "innermost, so that a handler that hangs frees the slots of its request";
        self.parts.line(5, (self.parts.attempt_name, why), layer.summary());
        self.parts.attempt = Some(layer.clone());
        let (t, c, u, l, k, _) = self.layers;
        ServerStackBuilder::of(self.parts, self.observing, (t, c, u, l, k, layer))
    }

    /// Builds the stack.
    ///
    /// # Errors
    ///
    /// [`StackError`] if parts contradict each other, or there are none.
    #[allow(clippy::type_complexity, reason = "one parameter for each place of a layer")]
    pub fn build(self) -> Result<ServerStack<ServerLayers<T, C, U, L, K, A>>, StackError> {
        self.parts.check()?;
        let state = Arc::new(State::new(self.parts, self.observing));
        let observer = ObserverLayer { state: Arc::clone(&state) };
        let (t, c, u, l, k, a) = self.layers;
        let inner = Stack::new(Stack::new(Stack::new(a, k), l), u);
        let layers = Stack::new(Stack::new(Stack::new(inner, c), t), observer);
        Ok(ServerStack { layers, state })
    }
}

const SHED: (&str, &str) = (
    "shed",
    "one limit for all, before authentication, because that costs too; the least urgent leave first",
);
const BULKHEAD: (&str, &str) =
    ("bulkhead", "after the quotas, so that a slow route cannot take the slots of the others");

impl<L> ServerStackBuilder<L> {
    const fn of(parts: Parts, observing: Observing, layers: L) -> Self {
        Self { parts, observing, layers }
    }

    observing_setters!();
}

impl<L> fmt::Debug for ServerStackBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerStackBuilder").field("parts", &self.parts).finish_non_exhaustive()
    }
}
