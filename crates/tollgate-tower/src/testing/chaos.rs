//! A layer that injects faults.

use super::fault::{Ending, Fault, inject};
use crate::timer::Timer;
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};
use tollgate::{Clock, Tick};
use tower_layer::Layer;
use tower_service::Service;

/// Injects faults into the calls of a service: latency, statuses, errors and calls that hang.
///
/// Put it innermost, in place of a dependency that misbehaves, to see how the rest of the stack
/// reacts. Faults come at random by a seed, or by a script of times, and a [`ChaosHandle`] changes
/// them and switches them off while calls run. Clones share all of this.
///
/// | where | what happens |
/// |---|---|
/// | `poll_ready` | that of the inner service, and nothing else |
/// | `call` | decides which faults the call gets |
/// | the future | waits, then answers, fails, hangs, or calls the service that was ready |
/// | the future is dropped | drops what it waits for, and the service that was ready |
///
/// The error type does not change, nor the body: an injected response has the default one. Delays
/// need a tokio runtime with timers; without one they take no time.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response, StatusCode};
/// use tollgate_tower::testing::{ChaosLayer, Fault};
/// use tower::{Layer, Service, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let down = Fault::status(StatusCode::SERVICE_UNAVAILABLE);
/// let chaos = ChaosLayer::builder().fault(down).build()?;
/// let handle = chaos.handle();
/// let service = |_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) };
/// let mut service = chaos.layer(service_fn(service));
///
/// let response = service.ready().await?.call(Request::new(())).await?;
/// assert_eq!(response.status(), 503);
/// handle.turn_off();
/// let response = service.ready().await?.call(Request::new(())).await?;
/// assert_eq!(response.status(), 200);
/// # Ok(())
/// # }
/// ```
pub struct ChaosLayer<M = NoErrors> {
    shared: Arc<Shared>,
    make_error: M,
}

/// A service with injected faults; made by [`ChaosLayer`].
pub struct Chaos<S, M = NoErrors> {
    inner: S,
    shared: Arc<Shared>,
    make_error: M,
}

/// Changes the faults of a [`ChaosLayer`] while calls run. Calls that have started keep their
/// faults.
#[derive(Clone)]
pub struct ChaosHandle {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    seed: u64,
    has_errors: bool,
    state: Mutex<State>,
    calls: AtomicU64,
    delayed: AtomicU64,
    statuses: AtomicU64,
    errors: AtomicU64,
    hung: AtomicU64,
}

struct State {
    faults: Arc<[Fault]>,
    is_on: bool,
    /// Times of faults count from here.
    since: Tick,
}

/// Which faults a [`ChaosLayer`] has injected. A call that was delayed and then failed counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChaosCounts {
    /// Calls, with and without faults.
    pub calls: u64,
    /// Calls that were delayed.
    pub delayed: u64,
    /// Calls that got a status.
    pub statuses: u64,
    /// Calls that got an error.
    pub errors: u64,
    /// Calls that hang, or hung until they were dropped.
    pub hung: u64,
}

/// Makes the error of [`Fault::error`]: a closure, or [`NoErrors`].
pub trait MakeError<E> {
    /// Returns an error; `None` if it makes none.
    fn make_error(&self) -> Option<E>;
}

/// Makes no error, of any type: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoErrors;

impl<E> MakeError<E> for NoErrors {
    fn make_error(&self) -> Option<E> {
        None
    }
}

impl<E, F: Fn() -> E> MakeError<E> for F {
    fn make_error(&self) -> Option<E> {
        Some(self())
    }
}

impl ChaosLayer {
    /// Starts a layer without faults.
    pub fn builder() -> ChaosBuilder {
        let faults = Vec::new();
        ChaosBuilder { faults, make_error: NoErrors, has_errors: false, seed: 0, clock: None }
    }
}

impl<M> ChaosLayer<M> {
    /// Returns the handle that changes the faults.
    #[must_use]
    pub fn handle(&self) -> ChaosHandle {
        ChaosHandle { shared: Arc::clone(&self.shared) }
    }
}

impl ChaosHandle {
    /// Replaces all faults and switches them on; their times count from now.
    ///
    /// # Errors
    ///
    /// [`ChaosError`], and the faults stay as they are.
    pub fn set(&self, faults: impl IntoIterator<Item = Fault>) -> Result<(), ChaosError> {
        let faults = self.shared.check(faults.into_iter().collect())?;
        let since = self.shared.clock.now();
        *self.shared.state() = State { faults, is_on: true, since };
        Ok(())
    }

    /// Switches the faults on; their times count from now.
    pub fn turn_on(&self) {
        let now = self.shared.clock.now();
        let mut state = self.shared.state();
        (state.is_on, state.since) = (true, now);
    }

    /// Switches all faults off. Calls that already wait or hang continue to do so.
    pub fn turn_off(&self) {
        self.shared.state().is_on = false;
    }

    /// Tells whether faults are switched on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.state().is_on
    }

    /// Returns the counts of injected faults.
    #[must_use]
    pub fn counts(&self) -> ChaosCounts {
        // ORDERING: Relaxed. Statistics.
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        ChaosCounts {
            calls: get(&self.shared.calls),
            delayed: get(&self.shared.delayed),
            statuses: get(&self.shared.statuses),
            errors: get(&self.shared.errors),
            hung: get(&self.shared.hung),
        }
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics under this lock, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, faults: Vec<Fault>) -> Result<Arc<[Fault]>, ChaosError> {
        let mut checks = faults.iter().map(|fault| fault.check(self.has_errors));
        checks.try_for_each(|check| check).map_err(ChaosError)?;
        Ok(faults.into())
    }

    /// Decides on a call: how long it waits, and how it goes on.
    fn decide(&self) -> (Option<Tick>, Ending) {
        // ORDERING: Relaxed. Each call takes a number; which one does not matter.
        let number = self.calls.fetch_add(1, Relaxed);
        let (faults, since) = {
            let state = self.state();
            if !state.is_on {
                return (None, Ending::Service);
            }
            (Arc::clone(&state.faults), state.since)
        };
        let now = self.clock.now();
        let injection = inject(&faults, now.since(since), self.seed, number);
        // ORDERING: Relaxed. Statistics.
        let count = |counter: &AtomicU64| counter.fetch_add(1, Relaxed);
        let is_delayed = !injection.delay.is_zero();
        if is_delayed {
            count(&self.delayed);
        }
        match injection.ending {
            Ending::Service => 0,
            Ending::Status(_) => count(&self.statuses),
            Ending::Error => count(&self.errors),
            Ending::Hang => count(&self.hung),
        };
        (is_delayed.then(|| now.saturating_add(injection.delay)), injection.ending)
    }
}

impl<S, M: Clone> Layer<S> for ChaosLayer<M> {
    type Service = Chaos<S, M>;

    fn layer(&self, inner: S) -> Chaos<S, M> {
        Chaos { inner, shared: Arc::clone(&self.shared), make_error: self.make_error.clone() }
    }
}

impl<S, B, R, M> Service<Request<B>> for Chaos<S, M>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Default,
    M: MakeError<S::Error>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ChaosFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> ChaosFuture<S, B> {
        let clock = self.shared.clock.clone();
        let (due, ending) = self.shared.decide();
        if (due, ending) == (None, Ending::Service) {
            let stage = Stage::Runs { call: self.inner.call(request) };
            return ChaosFuture { clock, stage };
        }
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        let next = match ending {
            Ending::Service => Next::Call(ready, Box::new(request)),
            Ending::Status(status) => Next::Status(status),
            // INVARIANT: the builder checked that there is an error for such faults.
            Ending::Error => self.make_error.make_error().map_or(Next::Hang(ready), Next::Error),
            Ending::Hang => Next::Hang(ready),
        };
        let timer = Timer::default();
        ChaosFuture { clock, stage: Stage::Waits { timer, due, next: Some(next) } }
    }
}

pin_project! {
    /// The response future of [`Chaos`].
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time.
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct ChaosFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        clock: Clock,
        #[pin]
        stage: Stage<S, S::Future, S::Error, B>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, F, E, B> {
        Waits { timer: Timer, due: Option<Tick>, next: Option<Next<S, E, B>> },
        Runs { #[pin] call: F },
    }
}

/// The step after the delay.
enum Next<S, E, B> {
    Call(S, Box<Request<B>>),
    Status(StatusCode),
    Error(E),
    /// A call that hangs holds the service.
    Hang(S),
}

impl<S, B, R> Future for ChaosFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.stage.as_mut().project() {
                StageProjection::Runs { call } => return call.poll(context),
                StageProjection::Waits { timer, due, next } => {
                    if let Some(due) = *due {
                        // Without timers the delay is over.
                        let _over = ready!(timer.poll(this.clock, due, context));
                    }
                    match next {
                        Some(Next::Hang(_)) | None => return Poll::Pending,
                        next => next.take(),
                    }
                }
            };
            match next {
                Some(Next::Call(mut service, request)) => {
                    this.stage.set(Stage::Runs { call: service.call(*request) });
                }
                Some(Next::Status(status)) => {
                    let mut response = Response::new(R::default());
                    *response.status_mut() = status;
                    return Poll::Ready(Ok(response));
                }
                Some(Next::Error(error)) => return Poll::Ready(Err(error)),
                Some(Next::Hang(_)) | None => return Poll::Pending,
            }
        }
    }
}

/// Builds a [`ChaosLayer`]. Nothing is checked before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
pub struct ChaosBuilder<M = NoErrors> {
    faults: Vec<Fault>,
    make_error: M,
    has_errors: bool,
    seed: u64,
    clock: Option<Clock>,
}

impl<M> ChaosBuilder<M> {
    /// Adds a fault. Delays of several add up; of the other faults of a call, the first counts.
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Sets the error of [`Fault::error`]: a closure that returns an error of the inner service.
    pub fn error_with<F>(self, make_error: F) -> ChaosBuilder<F> {
        let Self { faults, seed, clock, .. } = self;
        ChaosBuilder { faults, make_error, has_errors: true, seed, clock }
    }

    /// Sets the seed from which faults are drawn. The default is 0, so that tests repeat.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the clock. The default is [`Clock::tokio`]. Delays use tokio's timers, so another clock
    /// must run as fast as they do.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the layer, with its faults switched on.
    ///
    /// # Errors
    ///
    /// [`ChaosError`] names the value, the rule and a way out.
    pub fn build(self) -> Result<ChaosLayer<M>, ChaosError> {
        let clock = self.clock.unwrap_or_else(Clock::tokio);
        let since = clock.now();
        let shared = Shared {
            clock,
            seed: self.seed,
            has_errors: self.has_errors,
            state: Mutex::new(State { faults: Arc::new([]), is_on: true, since }),
            calls: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            statuses: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            hung: AtomicU64::new(0),
        };
        let faults = shared.check(self.faults)?;
        shared.state().faults = faults;
        Ok(ChaosLayer { shared: Arc::new(shared), make_error: self.make_error })
    }
}

/// An invalid fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChaosError(String);

crate::coded::coded!(ChaosError, "TG-X01");

impl ChaosError {
    #[expect(clippy::unused_self, reason = "errors with one code")]
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        ("TG-X01", docs!("resilience.md#tg-x01"))
    }
}

impl fmt::Display for ChaosError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, see {})", self.0, self.code(), self.docs())
    }
}

impl std::error::Error for ChaosError {}

impl<M: Clone> Clone for ChaosLayer<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), make_error: self.make_error.clone() }
    }
}

impl<S: Clone, M: Clone> Clone for Chaos<S, M> {
    fn clone(&self) -> Self {
        let (inner, make_error) = (self.inner.clone(), self.make_error.clone());
        Self { inner, shared: Arc::clone(&self.shared), make_error }
    }
}

impl fmt::Debug for ChaosHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChaosHandle")
            .field("faults", &self.shared.state().faults)
            .field("is_on", &self.is_on())
            .field("counts", &self.counts())
            .finish()
    }
}

impl<M> fmt::Debug for ChaosLayer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChaosLayer").field(&self.handle()).finish()
    }
}

impl<S: fmt::Debug, M> fmt::Debug for Chaos<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chaos").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ChaosFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChaosFuture")
    }
}

impl<M> fmt::Debug for ChaosBuilder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChaosBuilder").field("faults", &self.faults).finish_non_exhaustive()
    }
}
