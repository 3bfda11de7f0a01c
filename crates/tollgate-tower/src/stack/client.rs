//! The stack of a client.

use super::{
    StackError, StackHandle,
    observe::{ObserverLayer, Observing, State, observing_setters},
    parts::Parts,
};
use crate::{
    AdaptiveLayer, BreakerLayer, ConcurrencyLayer, FallbackLayer, TimeoutLayer,
    breaker::BreakerCheckLayer,
    client::{HedgeLayer, PaceAnswerLayer, PaceLayer, RetryLayer, SelfThrottleLayer},
};
use std::{fmt, sync::Arc};
use tower_layer::{Identity, Layer, Stack};

/// All that protects a client and the server it calls, in the order that works. Clones, and all
/// services that it makes, share their state.
///
/// | part | place |
/// |---|---|
/// | [`fallback`](ClientStackBuilder::fallback) | outermost: it answers the refusals and timeouts of all others |
/// | [`total_timeout`](ClientStackBuilder::total_timeout) | outside of the retries: it bounds all attempts and pauses together |
/// | [`retry`](ClientStackBuilder::retry) | outside of the breaker: each attempt counts, and an open breaker ends the retrying |
/// | [`hedge`](ClientStackBuilder::hedge) | inside of the retries, with their budget: a retry may be hedged, a hedge is not retried |
/// | breaker, a check without a pass | before anything that waits or is counted: while it is open no call waits for a rate, and no rate is used |
/// | [`throttle`](ClientStackBuilder::throttle) | before the rate: a call that the client does not send uses none |
/// | [`pace`](ClientStackBuilder::pace) | inside of the retries, because the server counts attempts; outside of the slots, because it waits |
/// | [`breaker`](ClientStackBuilder::breaker) | after the last long wait, so that its state is current for a call; outside of the slots, so that a refused call takes none |
/// | [`concurrency`](ClientStackBuilder::concurrency) or [`adaptive`](ClientStackBuilder::adaptive) | outside of the attempt's timeout, which frees the slot |
/// | [`attempt_timeout`](ClientStackBuilder::attempt_timeout) | innermost: it ends calls that hang, and the breaker counts them |
///
/// Every part is optional, and [`StackHandle::explain`] prints those that are there.
///
/// * The error type of the client stays as it is. A refusal is a response with
///   [`RefusedBy`](crate::RefusedBy) in its extensions: the part, the reason, and when to retry.
/// * Bodies of responses become [`GuardedBody`](crate::GuardedBody) or
///   [`TimeoutBody`](crate::timeout::TimeoutBody) around the client's, depending on the parts. If
///   the type has to be named, `tower::util::BoxCloneService` hides it.
/// * A future that is dropped gives back what every part has taken for it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Breaker, Concurrency};
/// use tollgate_tower::{BreakerLayer, ClientStack, ConcurrencyLayer, TimeoutLayer, client::RetryLayer};
/// use tower_layer::Layer;
/// # let client = ();
///
/// let stack = ClientStack::builder("payments")
///     .total_timeout(TimeoutLayer::builder().total(Duration::from_secs(2)).build()?)
///     .retry(RetryLayer::builder().build()?)
///     .breaker(BreakerLayer::builder(Breaker::builder().build()?).build()?)
///     .concurrency(ConcurrencyLayer::builder(Concurrency::new(50)?).build()?)
///     .attempt_timeout(TimeoutLayer::builder().attempt(Duration::from_millis(500)).build()?)
///     .build()?;
/// let client = stack.layer(client); // of hyper, of tonic, or of reqwest in `HttpClient`
/// println!("{}", stack.handle().explain());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientStack<L> {
    layers: L,
    state: Arc<State>,
}

impl<L> ClientStack<L> {
    /// Returns a handle, which shows the state of all parts and can force the breaker open or
    /// closed.
    #[must_use]
    pub fn handle(&self) -> StackHandle {
        StackHandle { state: Arc::clone(&self.state) }
    }
}

impl ClientStack<()> {
    /// Starts a stack; `name` is the name of the dependency, and the label of its metrics.
    pub fn builder(name: impl Into<Box<str>>) -> ClientStackBuilder<Empty> {
        ClientStackBuilder {
            parts: Parts::new("client", "attempt timeout", name.into()),
            observing: Observing::default(),
            layers: EMPTY,
        }
    }
}

impl<S, L: Layer<S>> Layer<S> for ClientStack<L> {
    type Service = L::Service;

    fn layer(&self, inner: S) -> L::Service {
        self.layers.layer(inner)
    }
}

type I = Identity;
/// The layers of a stack without parts.
type Empty = (I, I, I, I, I, I, I, I, I, I);
const EMPTY: Empty = {
    const I: Identity = Identity::new();
    (I, I, I, I, I, I, I, I, I, I)
};

/// The layers of a client stack, from the inside out; one that is left out is `Identity`.
pub type ClientLayers<F, T, R, H, K, J, P, B, C, A> = Stack<
    Stack<
        Stack<Stack<Stack<Stack<Stack<Stack<Stack<Stack<A, C>, B>, P>, J>, K>, H>, R>, T>,
        ObserverLayer,
    >,
    F,
>;

/// Builds a [`ClientStack`] from layers, in any order. Settings are validated by
/// [`build`](ClientStackBuilder::build) only.
#[must_use = "a builder does nothing until `build`"]
pub struct ClientStackBuilder<L> {
    parts: Parts,
    observing: Observing,
    layers: L,
}

#[allow(clippy::type_complexity, reason = "one parameter for each place of a layer")]
impl<F, T, R, H, K, J, P, B, C, A> ClientStackBuilder<(F, T, R, H, K, J, P, B, C, A)> {
    /// Answers calls that fail or are refused; see [`FallbackLayer`].
    ///
    /// A backup *service* needs the body type of the stack, so a value or a function fits here.
    pub fn fallback<X: Send + Sync + 'static>(
        mut self,
        layer: FallbackLayer<X>,
    ) -> ClientStackBuilder<(FallbackLayer<X>, T, R, H, K, J, P, B, C, A)> {
        let why = "outermost, so that it answers for refusals and timeouts of all others";
        self.parts.line(0, ("fallback", why), "answers calls that fail".to_owned());
        let counted = layer.clone();
        self.parts.fallback = Some(Arc::new(move || counted.used()));
        let (_, t, r, h, k, j, p, b, c, a) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (layer, t, r, h, k, j, p, b, c, a))
    }

    /// Bounds the whole call; the layer needs [`total`](crate::timeout::TimeoutLayerBuilder::total).
    pub fn total_timeout(
        mut self,
        layer: TimeoutLayer,
    ) -> ClientStackBuilder<(F, TimeoutLayer, R, H, K, J, P, B, C, A)> {
        let why = "outside of the retries, so that it bounds all attempts and pauses together";
        self.parts.line(1, ("total timeout", why), layer.summary());
        self.parts.total = Some(layer.clone());
        let (f, _, r, h, k, j, p, b, c, a) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (f, layer, r, h, k, j, p, b, c, a))
    }

    /// Repeats refused calls within a budget.
    pub fn retry<X>(
        mut self,
        layer: RetryLayer<X>,
    ) -> ClientStackBuilder<(F, T, RetryLayer<X>, H, K, J, P, B, C, A)> {
        let why = "outside of the breaker, so that each attempt counts and an open breaker ends the \
                   retrying";
        let policy = layer.policy().clone();
        let settings = format!("{}, budget: {}", policy.summary(), policy.budget().summary());
        self.parts.line(2, ("retry", why), settings);
        self.parts.retry = Some(policy);
        let (f, t, _, h, k, j, p, b, c, a) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (f, t, layer, h, k, j, p, b, c, a))
    }

    /// Sends slow calls a second time. With [`retry`](Self::retry), both need clones of one
    /// [`RetryBudget`](tollgate::RetryBudget).
    pub fn hedge<X>(
        mut self,
        layer: HedgeLayer<X>,
    ) -> ClientStackBuilder<(F, T, R, HedgeLayer<X>, K, J, P, B, C, A)> {
        let why =
            "inside of the retries and with their budget, so that both together stay within it";
        self.parts.line(3, ("hedge", why), layer.policy().summary());
        self.parts.hedge = Some(layer.policy().clone());
        let (f, t, r, _, k, j, p, b, c, a) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (f, t, r, layer, k, j, p, b, c, a))
    }

    /// Refuses calls here that an overloaded server would refuse.
    pub fn throttle(
        mut self,
        layer: SelfThrottleLayer,
    ) -> ClientStackBuilder<(F, T, R, H, K, SelfThrottleLayer, P, B, C, A)> {
        let why = "before the rate, so that a call that is not sent uses none of it";
        self.parts.line(5, ("self-throttle", why), layer.throttle().summary());
        self.parts.throttle = Some(layer.throttle().clone());
        let (f, t, r, h, k, _, p, b, c, a) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (f, t, r, h, k, layer, p, b, c, a))
    }

    /// Paces calls by the client's own quota and by the limits of the server.
    pub fn pace(
        mut self,
        layer: PaceLayer,
    ) -> ClientStackBuilder<(F, T, R, H, K, J, PaceAnswerLayer, B, C, A)> {
        let why = "inside of the retries, because the server counts attempts, and outside of the \
                   slots, because it waits";
        self.parts.line(6, ("pace", why), layer.summary());
        self.parts.pace = Some(layer.clone());
        let (f, t, r, h, k, j, _, b, c, a) = self.layers;
        let layers = (f, t, r, h, k, j, layer.answering(), b, c, a);
        ClientStackBuilder::of(self.parts, self.observing, layers)
    }

    /// Stops calling a service that fails.
    pub fn breaker(
        mut self,
        layer: BreakerLayer,
    ) -> ClientStackBuilder<(F, T, R, H, BreakerCheckLayer, J, P, BreakerLayer, C, A)> {
        let why = "checked before anything waits or is counted, and passed after the last long wait, \
                   so that an open one uses no rate, and outside of the slots, so that a refused call \
                   takes none";
        self.parts.line(7, ("breaker", why), layer.summary());
        self.parts.breaker = Some(layer.clone());
        let (f, t, r, h, _, j, p, _, c, a) = self.layers;
        let layers = (f, t, r, h, layer.check(), j, p, layer, c, a);
        ClientStackBuilder::of(self.parts, self.observing, layers)
    }

    /// Limits calls in flight; also called a bulkhead.
    pub fn concurrency(
        mut self,
        layer: ConcurrencyLayer,
    ) -> ClientStackBuilder<(F, T, R, H, K, J, P, B, ConcurrencyLayer, A)> {
        self.parts.limit(8, CONCURRENCY, layer.handle());
        let (f, t, r, h, k, j, p, b, _, a) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (f, t, r, h, k, j, p, b, layer, a))
    }

    /// Limits calls in flight to what the server can handle. It replaces
    /// [`concurrency`](Self::concurrency); the last of both counts.
    pub fn adaptive(
        mut self,
        layer: AdaptiveLayer,
    ) -> ClientStackBuilder<(F, T, R, H, K, J, P, B, AdaptiveLayer, A)> {
        self.parts.limit(8, CONCURRENCY, layer.handle());
        let (f, t, r, h, k, j, p, b, _, a) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (f, t, r, h, k, j, p, b, layer, a))
    }

    /// Bounds each attempt; the layer needs [`attempt`](crate::timeout::TimeoutLayerBuilder::attempt) or another
    /// phase.
    pub fn attempt_timeout(
        mut self,
        layer: TimeoutLayer,
    ) -> ClientStackBuilder<(F, T, R, H, K, J, P, B, C, TimeoutLayer)> {
        let why =
            "innermost, so that an attempt that hangs frees its slot and counts for the breaker";
        self.parts.line(9, (self.parts.attempt_name, why), layer.summary());
        self.parts.attempt = Some(layer.clone());
        let (f, t, r, h, k, j, p, b, c, _) = self.layers;
        ClientStackBuilder::of(self.parts, self.observing, (f, t, r, h, k, j, p, b, c, layer))
    }

    /// Builds the stack.
    ///
    /// # Errors
    ///
    /// [`StackError`] if parts contradict each other, or there are none.
    pub fn build(
        self,
    ) -> Result<ClientStack<ClientLayers<F, T, R, H, K, J, P, B, C, A>>, StackError> {
        self.parts.check()?;
        let state = Arc::new(State::new(self.parts, self.observing));
        let observer = ObserverLayer { state: Arc::clone(&state) };
        let (f, t, r, h, k, j, p, b, c, a) = self.layers;
        let attempt = Stack::new(Stack::new(Stack::new(Stack::new(Stack::new(a, c), b), p), j), k);
        let call = Stack::new(Stack::new(Stack::new(attempt, h), r), t);
        let layers = Stack::new(Stack::new(call, observer), f);
        Ok(ClientStack { layers, state })
    }
}

const CONCURRENCY: (&str, &str) = (
    "concurrency",
    "inside of the breaker, so that a refused call takes no slot, and outside of the attempt's \
     timeout, which frees it",
);

impl<L> ClientStackBuilder<L> {
    const fn of(parts: Parts, observing: Observing, layers: L) -> Self {
        Self { parts, observing, layers }
    }

    observing_setters!();
}

impl<L> fmt::Debug for ClientStackBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStackBuilder").field("parts", &self.parts).finish_non_exhaustive()
    }
}
