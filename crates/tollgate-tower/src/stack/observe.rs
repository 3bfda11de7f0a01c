//! Counts the results that callers get from a stack, and reports them as events of the current
//! span.

use super::{handle::StackCounts, parts::Parts};
use crate::{RefusedBy, TimeoutError, client::counts::Count};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};
use tollgate::BreakerState;
use tower_layer::Layer;
use tower_service::Service;

/// Parts that refuse calls, as [`RefusedBy::part`] names them. The last one stands for foreign
/// layers.
pub(super) const PARTS: [&str; 9] = [
    "rate limit",
    "concurrency",
    "shed",
    "bulkhead",
    "breaker",
    "timeout",
    "pace",
    "self-throttle",
    "other",
];

/// State that a stack shares with its services and handles.
#[derive(Debug)]
pub(super) struct State {
    pub(super) parts: Parts,
    answered: Count,
    timed_out: Count,
    failed: Count,
    refused: [Count; PARTS.len()],
    /// The state of the breaker that was reported last, as a number.
    breaker: AtomicU8,
    has_span_events: bool,
}

/// How a stack reports its calls; set by its builder.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observing {
    pub(super) span_events: bool,
}

/// Writes the setters of a builder's field `observing`.
macro_rules! observing_setters {
    () => {
        /// Adds refusals, timeouts and changes of the breaker's state to the current span, as events
        /// of the target `tollgate`.
        pub fn span_events(mut self) -> Self {
            self.observing.span_events = true;
            self
        }
    };
}

pub(super) use observing_setters;

/// How a call ended, as its caller sees it.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Answered,
    Refused(RefusedBy),
    TimedOut(TimeoutError),
    Failed,
}

impl State {
    pub(super) fn new(parts: Parts, observing: Observing) -> Self {
        Self {
            parts,
            answered: Count::default(),
            timed_out: Count::default(),
            failed: Count::default(),
            refused: Default::default(),
            breaker: AtomicU8::new(number(BreakerState::Closed)),
            has_span_events: observing.span_events,
        }
    }

    pub(super) fn counts(&self) -> StackCounts {
        let refused = PARTS.into_iter().zip(self.refused());
        StackCounts {
            answered: self.answered.get(),
            refused: refused.filter(|(_, count)| *count > 0).collect(),
            timed_out: self.timed_out.get(),
            failed: self.failed.get(),
            degraded: self.parts.fallback.as_ref().map_or(0, |used| used()),
        }
    }

    /// Returns how many calls each of [`PARTS`] refused.
    pub(super) fn refused(&self) -> impl Iterator<Item = u64> {
        self.refused.iter().map(Count::get)
    }

    fn ended(&self, ending: Ending) {
        let count = match ending {
            Ending::Answered => &self.answered,
            Ending::TimedOut(_) => &self.timed_out,
            Ending::Failed => &self.failed,
            Ending::Refused(refused) => &self.refused[index(refused)],
        };
        count.add(1);
        self.report_breaker();
        if self.has_span_events {
            self.report(ending);
        }
    }

    /// Reports a breaker that has changed its state.
    pub(super) fn report_breaker(&self) {
        let Some(breaker) = self.parts.one_breaker().filter(|_| self.has_span_events) else {
            return;
        };
        let (state, stack) = (breaker.state(), &*self.parts.name);
        // ORDERING: Relaxed. The number stands for itself; of two callers that see a change, the one
        // that swaps first reports it.
        if self.breaker.swap(number(state), Relaxed) != number(state) {
            tracing::warn!(target: "tollgate", stack, state = state.name(), "the breaker changed its state");
        }
    }

    fn report(&self, ending: Ending) {
        let stack = &*self.parts.name;
        match ending {
            Ending::Answered | Ending::Failed => {}
            Ending::Refused(refused) => tracing::info!(
                target: "tollgate",
                stack,
                part = refused.part(),
                retry_after_ms = refused.retry_after().map(|wait| wait.as_millis() as u64),
                "{refused}"
            ),
            Ending::TimedOut(error) => {
                tracing::info!(target: "tollgate", stack, phase = error.phase().name(), "{error}");
            }
        }
    }
}

/// Returns the number of the part that refused.
fn index(refused: RefusedBy) -> usize {
    let part = PARTS.iter().position(|part| *part == refused.part());
    part.unwrap_or(PARTS.len() - 1)
}

/// Returns the number of a state: 0 closed, 1 half-open, 2 open; a held state has
/// the number of its effect, plus 10.
pub(super) const fn number(state: BreakerState) -> u8 {
    match state {
        BreakerState::Closed => 0,
        BreakerState::HalfOpen => 1,
        BreakerState::HeldClosed => 10,
        BreakerState::HeldOpen => 12,
        // A state that is added later counts as open until it is known.
        _ => 2,
    }
}

/// Counts the results that callers get; the outermost layer of a stack except for its fallback.
#[derive(Clone, Debug)]
pub struct ObserverLayer {
    pub(super) state: Arc<State>,
}

impl<S> Layer<S> for ObserverLayer {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, state: Arc::clone(&self.state) }
    }
}

/// A service whose calls a stack counts; made by [`ObserverLayer`].
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    state: Arc<State>,
}

impl<S, B, R> Service<Request<B>> for Observed<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ObservedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ObservedFuture { future: self.inner.call(request), state: Arc::clone(&self.state) }
    }
}

pin_project! {
    /// The response future of [`Observed`].
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct ObservedFuture<F> {
        #[pin]
        future: F,
        state: Arc<State>,
    }
}

impl<F, R, E> Future for ObservedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<R>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.future.poll(context));
        this.state.ended(match &answer {
            Err(_) => Ending::Failed,
            Ok(response) => {
                let extensions = response.extensions();
                let refused = extensions.get().copied().map(Ending::Refused);
                let timed_out = || extensions.get().copied().map(Ending::TimedOut);
                refused.or_else(timed_out).unwrap_or(Ending::Answered)
            }
        });
        Poll::Ready(answer)
    }
}

impl<F> fmt::Debug for ObservedFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObservedFuture")
    }
}
