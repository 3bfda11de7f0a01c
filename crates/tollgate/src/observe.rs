//! Observing limiters: metrics of every type, a registry, observers, a denial log, health, snapshots.
//!
//! A limiter built without [`counted`](crate::LimiterBuilder::counted) or
//! [`observer`](crate::LimiterBuilder::observer) pays for one test, about a nanosecond
//! (`docs/benchmarks/limiter.md`, "observed").
//!
//! Metrics are *pulled*: a type keeps its counts, and an output reads them ([`Collector`]). Only
//! single decisions are *pushed*, to an [`Observer`].
//!
//! | I want | use |
//! |---|---|
//! | metrics of all my limiters for Prometheus | [`Registry::prometheus`] |
//! | the same in the `metrics` facade or OpenTelemetry | `Registry::flush_metrics` (feature `metrics`), `Registry::observe_with` (feature `otel`) |
//! | a page that lists my limiters | [`Registry::list`] |
//! | how many passed, and how many did not | [`Limiter::counts`](crate::Limiter::counts) |
//! | to receive every decision | [`Observer`] |
//! | events on the current span | `TracingObserver`, feature `tracing` |
//! | a log line for some denials | [`DenialLog`] |
//! | a liveness check | [`Limiter::health`](crate::Limiter::health), [`HealthCheck`] |
//! | the state, to look at or to send | [`Limiter::snapshot`](crate::Limiter::snapshot) |
//! | a count that many threads add to | [`StripedCounter`] |

mod collector;
mod counters;
mod denial_log;
#[cfg(feature = "metrics")]
mod facade;
pub(crate) mod family;
mod health;
mod histogram;
mod observer;
#[cfg(feature = "otel")]
mod otel;
mod prometheus;
mod registry;
mod sampling;
mod snapshot;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "tracing")]
pub use self::tracing::TracingObserver;
pub(crate) use collector::RunCounts;
pub use collector::{Collector, Report, Sample, SampleValue, Samples, WeakCollector};
#[cfg(feature = "log")]
pub(crate) use counters::own_stripe;
pub use counters::{Counts, DecisionCounters, StripedCounter};
pub(crate) use counters::{STRIPES, StripedCounters};
pub use denial_log::{DenialLine, DenialLog};
pub use family::Family;
pub use health::{Health, HealthCheck};
pub(crate) use histogram::StripedHistogram;
pub use histogram::WaitHistogram;
pub use observer::{Event, EventKey, KeyForm, Observer, Verb};
pub use registry::{Registry, RegistryError};
pub use snapshot::Snapshot;

use crate::{Decision, Limiter, Outcome, Tick};

/// The counters and the observer of a limiter.
#[derive(Debug, Default)]
pub(crate) struct Instruments {
    pub(crate) counters: DecisionCounters,
    pub(crate) waits: StripedHistogram,
    observer: Option<Box<dyn Observer>>,
    health: HealthCheck,
}

impl Instruments {
    pub(crate) fn new(observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Box::new(observer)), ..Self::default() }
    }

    pub(crate) fn decided<'a>(
        &self,
        verb: Verb,
        decision: &Decision,
        event: impl FnOnce() -> Event<'a>,
    ) {
        self.counters.add(verb, decision);
        if let Some(observer) = &self.observer {
            observer.decided(&event());
        }
    }

    /// Counts what a fast path has decided about a plain take. Not inlined: a limiter that counts
    /// nothing pays for no more than the jump around it.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_taken(&self, outcome: Outcome, cost: u64) {
        self.counters.add_taken(outcome, cost);
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.sum()
    }

    pub(crate) fn health(&self, now: Tick) -> Health {
        self.health.judge(now, &self.counts())
    }

    /// Writes what is counted.
    pub(crate) fn collect(&self, samples: &mut Samples, now: Tick) {
        samples.decisions(&self.counts());
        samples.waits(&family::WAITS, self.waits.sum());
        samples.health(self.health(now));
    }
}

impl Limiter {
    /// Returns how many decisions went which way; all zero unless the limiter is
    /// [`counted`](crate::LimiterBuilder::counted).
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.instruments().map(|instruments| instruments.counters.sum()).unwrap_or_default()
    }

    /// Returns how long reservations had to wait; empty unless the limiter is
    /// [`counted`](crate::LimiterBuilder::counted).
    #[must_use]
    pub fn waits(&self) -> WaitHistogram {
        self.instruments().map(|instruments| instruments.waits.sum()).unwrap_or_default()
    }

    /// Tells whether the limiter works as it should: one that denies nearly everything for a while
    /// is misconfigured, or under attack.
    ///
    /// Call it at regular times, for example from a health endpoint: each call looks at what came
    /// since a call at least 10 s before. Without [`counted`](crate::LimiterBuilder::counted) it is
    /// always [`Health::Unknown`].
    #[must_use]
    pub fn health(&self) -> Health {
        match self.instruments() {
            Some(instruments) => instruments.health(self.now()),
            None => Health::Unknown,
        }
    }

    /// Returns a picture of the limiter: quota, level and counts.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_at(self.now())
    }

    /// [`snapshot`](Self::snapshot) as of `now`.
    #[must_use]
    pub fn snapshot_at(&self, now: Tick) -> Snapshot {
        Snapshot::of(self, now)
    }
}
