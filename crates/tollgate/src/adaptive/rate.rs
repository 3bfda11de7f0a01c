//! A rate that follows what the protected service can do.
//!
//! A [`RateLaw`] turns what a period showed (outcomes, latencies, CPU load) into a rate.
//! [`AdaptiveRate`] measures the periods and puts the rate in force, between a minimum and a
//! maximum.
//!
//! | law | signal | take it when |
//! |---|---|---|
//! | [`AimdRate`] | share of failed or slow calls | you know neither the capacity nor its cause |
//! | [`SuccessRate`] | share of calls that succeed | a success rate is promised |
//! | [`StepRate`] | error rate and p99 latency | a known full limit, and clear steps below it |
//! | [`CpuRate`] | CPU load | the work happens on this host |
//! | [`LittleRate`] | shortest latency, calls in flight | the number of workers is known |
//!
//! A rate alone does not save a service that slows down: at the same rate more and more calls are
//! in flight, and a law learns of it only when they end. So a [`Limiter`] takes a [`Concurrency`]
//! beside it, which holds them at once. Limits of many keys have bounds for each key instead.
//!
//! How to choose, and how each fails: [docs/adaptive-rate.md].
//!
//! [docs/adaptive-rate.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/adaptive-rate.md

mod aimd;
mod builder;
mod cpu;
mod cpu_target;
mod law;
mod little;
mod meter;
mod steps;
mod success;
mod target;
mod ticker;

pub use aimd::{AimdRate, AimdRateBuilder};
pub use builder::AdaptiveRateBuilder;
pub use cpu::{CpuError, CpuLoad, ManualCpu};
pub use cpu_target::{CpuRate, CpuRateBuilder};
pub use law::{Measures, Period, RateLaw, RateReport};
pub use little::{LittleRate, LittleRateBuilder};
pub use steps::{StepRate, StepRateBuilder};
pub use success::{SuccessRate, SuccessRateBuilder};
pub use target::CurrentPolicy;

use crate::{
    CallOutcome, Clock, Concurrency, KeyedLimiter, Limiter, Quota,
    observe::{Collector, Samples, WeakCollector},
    sync::{Arc, Mutex, lock},
    wait::Engine,
};
use meter::Meter;
use std::{fmt, sync::TryLockError, time::Duration};
use target::{Shape, Target};
use ticker::Ticker;

/// Signals about a service that come from elsewhere than the calls reported: a metrics system, the
/// operating system.
///
/// Called once per period. What a source does not know is `None`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::adaptive::rate::Health;
///
/// #[derive(Debug)]
/// struct Metrics;
///
/// impl Health for Metrics {
///     fn error_rate(&mut self) -> Option<f64> {
///         Some(0.002) // as your metrics say
///     }
///     fn p99(&mut self) -> Option<Duration> {
///         Some(Duration::from_millis(120))
///     }
/// }
/// assert_eq!(Metrics.cpu(), None);
/// ```
pub trait Health: Send + fmt::Debug {
    /// Returns the share of calls that failed since the last time, between 0 and 1.
    fn error_rate(&mut self) -> Option<f64> {
        None
    }

    /// Returns the latency that 99 % of the calls since the last time did not exceed.
    fn p99(&mut self) -> Option<Duration> {
        None
    }

    /// Returns how busy the processors were since the last time, between 0 and 1.
    fn cpu(&mut self) -> Option<f64> {
        None
    }
}

/// Moves a rate between a minimum and a maximum, by what calls and other signals show.
///
/// | the rate of | made with | bounded by |
/// |---|---|---|
/// | a [`Limiter`] | [`of_limiter`](Self::of_limiter) | a [`Concurrency`] beside it, and the law's bounds |
/// | each key of a [`KeyedLimiter`] | [`of_keys`](Self::of_keys) | the law's bounds |
/// | each key of a store, Redis too | [`of_policy`](Self::of_policy) | the law's bounds |
///
/// Report every call that was let through, when it ends. The call that reports after a period is over decides:
/// there is no background task unless a [driver](AdaptiveRateBuilder::driver) was given.
///
/// A change is one write, however many keys there are, and keeps burst / rate: an exhausted key stays
/// exhausted, a full one full. While every call goes well, the rate returns to the maximum, the full limit.
///
/// # Concurrency
///
/// `Send + Sync`; clones share the rate. A report takes a short lock. The law and the
/// [`Health`] source run without it, one decision at a time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{CallOutcome, Clock, Concurrency, Limiter, Quota};
/// use tollgate::adaptive::rate::{AdaptiveRate, AimdRate};
///
/// let (clock, hand) = Clock::manual();
/// let limiter = Limiter::builder(Quota::per_second(100)).clock(clock).build()?;
/// let in_flight = Concurrency::new(20)?;
/// let law = AimdRate::builder(10.0..=100.0).factor(0.5).min_calls(1).build()?;
/// let rate = AdaptiveRate::of_limiter(&limiter, &in_flight, law).build()?;
///
/// hand.advance(Duration::from_secs(2));
/// rate.observe(CallOutcome::Overload, Duration::from_millis(300));
/// assert_eq!((rate.report().rate, limiter.quota().to_string()), (50.0, "50/s burst 50".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The rate of a single limiter without a cap on calls in flight does not compile:
///
/// ```compile_fail
/// # use tollgate::{Limiter, Quota, adaptive::rate::{AdaptiveRate, AimdRate}};
/// # let limiter = Limiter::new(Quota::per_second(100)).unwrap();
/// # let law = AimdRate::builder(10.0..=100.0).build().unwrap();
/// let rate = AdaptiveRate::of_limiter(&limiter, law);
/// ```
#[derive(Clone)]
pub struct AdaptiveRate {
    shared: Arc<Shared>,
    /// Ends with the last clone.
    #[allow(dead_code, reason = "held so that it goes on")]
    ticker: Option<Engine<Ticker>>,
}

struct Shared {
    clock: Clock,
    target: Target,
    shape: Shape,
    name: &'static str,
    has_health: bool,
    /// Locked for a moment. Lock order: judge, then state.
    state: Mutex<State>,
    /// Locked while a decision is made and put in force, and only tried: a waiter that is woken by a
    /// change, or a source of signals, may report a call itself.
    judge: Mutex<Judge>,
}

struct State {
    meter: Meter,
    report: RateReport,
    quota: Quota,
}

struct Judge {
    law: Box<dyn RateLaw>,
    health: Option<Box<dyn Health>>,
}

impl AdaptiveRate {
    /// Starts a rate for a limiter. `concurrency` caps the calls in flight that pass it: take its
    /// permit for every call.
    pub fn of_limiter(
        limiter: &Limiter,
        concurrency: &Concurrency,
        law: impl RateLaw + 'static,
    ) -> AdaptiveRateBuilder {
        let target = Target::Limiter(limiter.clone(), concurrency.clone());
        AdaptiveRateBuilder::new(target, Box::new(law), limiter.clock().clone())
    }

    /// Starts one rate for every key of a limiter that has no quota of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Quota, adaptive::rate::{AdaptiveRate, StepRate}};
    ///
    /// let users = KeyedLimiter::<str>::new(Quota::per_second(40).burst(80))?;
    /// let law = StepRate::builder(5.0..=40.0).build()?;
    /// let rate = AdaptiveRate::of_keys(&users, law).build()?;
    /// assert!(users.try_acquire("alice").is_allowed());
    /// rate.success();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_keys<K: ?Sized>(
        limiter: &KeyedLimiter<K>,
        law: impl RateLaw + 'static,
    ) -> AdaptiveRateBuilder {
        let target = Target::Keys(Arc::clone(&limiter.core));
        AdaptiveRateBuilder::new(target, Box::new(law), limiter.clock().clone())
    }

    /// Starts one rate for every key of a policy, in whatever store it is used.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::adaptive::rate::{AdaptiveRate, CurrentPolicy, SuccessRate};
    /// use tollgate::{Quota, store::{MemoryStore, Policy}};
    ///
    /// let store = MemoryStore::new();
    /// let users = CurrentPolicy::new(Policy::new("users", Quota::per_second(40))?);
    /// let law = SuccessRate::builder(5.0..=40.0).build()?;
    /// let rate = AdaptiveRate::of_policy(&users, law).build()?;
    /// if store.acquire_one_now(&users.get(), b"alice", 1)?.is_allowed() {
    ///     rate.success();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_policy(policy: &CurrentPolicy, law: impl RateLaw + 'static) -> AdaptiveRateBuilder {
        let target = Target::Policy(policy.clone());
        AdaptiveRateBuilder::new(target, Box::new(law), Clock::monotonic())
    }

    /// Reports a call that succeeded, without its latency.
    pub fn success(&self) {
        self.shared.add(CallOutcome::Success, None);
    }

    /// Reports a call that failed.
    ///
    /// If it failed for a reason that a lower rate cannot cure (a bad request), do not report it.
    pub fn failure(&self) {
        self.shared.add(CallOutcome::Failure, None);
    }

    /// Reports how a call ended and how long it took.
    ///
    /// Failures and overloads count alike: a rate law reads an error rate, unlike the laws for calls
    /// in flight. The latency counts if the call succeeded. A call that is ignored does not count.
    pub fn observe(&self, outcome: CallOutcome, latency: Duration) {
        self.shared.add(outcome, Some(latency));
    }

    /// Decides if a period is over. Reports and the driver do so themselves.
    pub fn tick(&self) {
        self.shared.tick(Duration::ZERO);
    }

    /// Returns the rate, its bounds, why it is what it is, and what the last period showed.
    #[must_use]
    pub fn report(&self) -> RateReport {
        lock(&self.shared.state).report
    }

    /// Returns the quota in force.
    #[must_use]
    pub fn quota(&self) -> Quota {
        lock(&self.shared.state).quota
    }

    /// Returns the name of the law, for metrics.
    #[must_use]
    pub fn law(&self) -> &'static str {
        self.shared.name
    }
}

impl Shared {
    fn add(&self, outcome: CallOutcome, latency: Option<Duration>) {
        let mut state = lock(&self.state);
        state.meter.add(outcome, latency);
        // The clock is read under the lock, so that time does not go backwards for the meter.
        let is_over = self.is_over(&state, Duration::ZERO);
        drop(state);
        if is_over {
            self.tick(Duration::ZERO);
        }
    }

    /// Tells whether the period is over, or will be within `early`.
    fn is_over(&self, state: &State, early: Duration) -> bool {
        let min_calls = if self.has_health { 0 } else { state.meter.measures.min_calls };
        state.meter.is_over(self.clock.now().saturating_add(early), min_calls)
    }

    /// Decides if the period is over, or will be within `early`.
    fn tick(&self, early: Duration) {
        let mut judge = match self.judge.try_lock() {
            Ok(judge) => judge,
            // A law or a source panicked in an earlier decision. Both stay in use.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread decides, or this call comes from a waiter that the decision woke.
            Err(TryLockError::WouldBlock) => return,
        };
        let mut state = lock(&self.state);
        if !self.is_over(&state, early) {
            return;
        }
        let (mut period, before) = (state.meter.close(self.clock.now()), state.report);
        drop(state);
        self.complete(&mut period, &before, &mut judge);
        let decided = judge.law.decide(&period);
        // INVARIANT: the rate is a number within the bounds that were checked, whatever the law.
        let rate = match decided.is_finite() {
            true => decided.clamp(before.min, before.max),
            false => before.rate,
        };
        let report =
            RateReport { rate, reason: judge.law.report().reason, last: Some(period), ..before };
        self.put_in_force(report, judge.law.measures());
    }

    /// Adds what the calls do not show.
    fn complete(&self, period: &mut Period, before: &RateReport, judge: &mut Judge) {
        period.in_flight_max = self.target.in_flight_max();
        let full = before.rate * period.length.as_secs_f64();
        if self.target.is_one_for_all() && period.calls() > 0 && full > 0.0 {
            period.used = Some(period.calls() as f64 / full);
        }
        if let Some(health) = &mut judge.health {
            let sound = |share: &f64| share.is_finite();
            period.error_rate = health.error_rate().filter(sound).or(period.error_rate);
            period.latency = health.p99().or(period.latency);
            period.cpu = health.cpu().filter(sound);
        }
    }

    fn put_in_force(&self, report: RateReport, measures: Measures) {
        let quota = self.shape.quota(report.rate);
        let is_changed = quota != lock(&self.state).quota;
        if is_changed && let Err(error) = self.target.set_quota(quota) {
            // Both ends of the range were checked; if this happens all the same, the old rate stays.
            debug_assert!(false, "{error}");
            return;
        }
        let mut state = lock(&self.state);
        state.meter.measures = measures;
        (state.report, state.quota) = (report, quota);
    }
}

impl fmt::Debug for AdaptiveRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveRate")
            .field("law", &self.law())
            .field("report", &self.report())
            .field("target", &self.shared.target)
            .finish_non_exhaustive()
    }
}

/// Its quota is that of the limiter it moves; the state is why the rate is what it is.
impl Collector for AdaptiveRate {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("adaptive_rate");
        samples.quota(self.quota());
        samples.state(self.report().reason.as_str());
    }

    fn weak(&self) -> WeakCollector {
        // The ticker is left out: a reader must not keep it going.
        WeakCollector::of(&self.shared, |shared| Self { shared, ticker: None })
    }
}
