//! Metrics are pulled: a type writes its counts and gauges into [`Samples`] when an output reads them.
//!
//! So nothing is sent on a decision's path, no count can be lost on its way, and every output (Prometheus text,
//! the `metrics` facade, OpenTelemetry, a list for people) reads the same samples.

use super::{Counts, Health, WaitHistogram, family::*};
use crate::{
    Quota,
    sync::Arc,
    wait::{Engine, Machine},
};
use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

/// Something whose counts and gauges can be read: every limiter, breaker and queue of this crate.
///
/// # Examples
///
/// A type of your own, beside those of the crate:
///
/// ```
/// use std::sync::Arc;
/// use tollgate::observe::{Collector, Family, Registry, Samples, StripedCounter, WeakCollector};
///
/// #[derive(Clone, Default)]
/// struct Cache {
///     hits: Arc<StripedCounter>,
/// }
///
/// impl Collector for Cache {
///     fn collect(&self, samples: &mut Samples) {
///         const HITS: Family = Family::counter("cache_hits_total", "Lookups that found something.");
///         samples.kind("cache");
///         samples.count(&HITS, self.hits.sum());
///     }
///     fn weak(&self) -> WeakCollector {
///         let hits = Arc::downgrade(&self.hits);
///         WeakCollector::new(move || Some(Box::new(Cache { hits: hits.upgrade()? })))
///     }
/// }
///
/// let (registry, cache) = (Registry::new(), Cache::default());
/// registry.add("users", &cache)?;
/// cache.hits.add(3);
/// assert!(registry.prometheus().contains("cache_hits_total{limiter=\"users\"} 3"));
/// # Ok::<(), tollgate::observe::RegistryError>(())
/// ```
pub trait Collector {
    /// Writes the counts and gauges of this moment. Label values must come from a fixed set: never from a request.
    fn collect(&self, samples: &mut Samples);

    /// Returns a reference that does not keep it alive.
    fn weak(&self) -> WeakCollector;
}

type Upgrade = dyn Fn() -> Option<Box<dyn Collector>> + Send + Sync;

/// A reference to a [`Collector`] that does not keep it alive.
pub struct WeakCollector(Box<Upgrade>);

impl WeakCollector {
    /// Returns a reference that `upgrade` follows; `None` if the collector is gone.
    pub fn new(upgrade: impl Fn() -> Option<Box<dyn Collector>> + Send + Sync + 'static) -> Self {
        Self(Box::new(upgrade))
    }

    /// Returns a reference to the clones that share `shared`.
    pub fn of<S, C>(shared: &Arc<S>, handle: impl Fn(Arc<S>) -> C + Send + Sync + 'static) -> Self
    where
        S: Send + Sync + 'static,
        C: Collector + 'static,
    {
        // Loom's `Arc` has no weak references, and its models read no metrics.
        #[cfg(tollgate_loom)]
        return {
            let _ = (shared, handle);
            Self::new(|| None)
        };
        #[cfg(not(tollgate_loom))]
        {
            let weak = Arc::downgrade(shared);
            Self::new(move || Some(Box::new(handle(weak.upgrade()?))))
        }
    }

    /// Returns a reference to several parts, by name; it lives as long as one of them.
    pub(crate) fn of_parts<'a>(
        kind: &'static str,
        parts: impl Iterator<Item = (&'static str, &'a dyn Collector)>,
    ) -> Self {
        let parts: Vec<_> = parts.map(|(name, part)| (name, part.weak())).collect();
        Self::new(move || {
            let alive = parts.iter().filter_map(|(name, part)| Some((*name, part.upgrade()?)));
            let parts = Parts { kind, parts: alive.collect() };
            (!parts.parts.is_empty()).then(|| Box::new(parts) as Box<dyn Collector>)
        })
    }

    /// Returns the collector, if it still exists.
    #[must_use]
    pub fn upgrade(&self) -> Option<Box<dyn Collector>> {
        (self.0)()
    }
}

impl fmt::Debug for WeakCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakCollector")
    }
}

/// Parts that are not clones of one thing.
struct Parts {
    kind: &'static str,
    parts: Vec<(&'static str, Box<dyn Collector>)>,
}

impl Collector for Parts {
    fn collect(&self, samples: &mut Samples) {
        samples.kind(self.kind);
        self.parts.iter().for_each(|(name, part)| samples.part(name, &**part));
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of_parts(self.kind, self.parts.iter().map(|(name, part)| (*name, &**part)))
    }
}

/// One value of one metric.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Sample {
    /// The metric.
    #[cfg_attr(feature = "serde", serde(rename = "metric"))]
    pub family: Family,
    /// The value of its label; empty if it has none.
    pub label: &'static str,
    /// The value.
    pub value: SampleValue,
}

/// The value of a [`Sample`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(untagged))]
#[non_exhaustive]
pub enum SampleValue {
    /// A count since the start.
    Count(u64),
    /// A value that goes up and down.
    Gauge(f64),
    /// Durations.
    Waits(WaitHistogram),
}

/// A number under a name and at most one label: what every output can write.
pub(super) struct Point {
    /// The end of the name, after that of the metric.
    pub(super) suffix: &'static str,
    pub(super) label: Option<(&'static str, Cow<'static, str>)>,
    pub(super) value: PointValue,
}

pub(super) enum PointValue {
    Count(u64),
    /// A gauge, or the sum of a histogram.
    Float(f64),
}

impl Sample {
    /// Returns the numbers to write: one, or those of a histogram.
    pub(super) fn points(&self) -> Vec<Point> {
        let own = (!self.family.label.is_empty()).then_some((self.family.label, self.label.into()));
        let point = |suffix, label, value| Point { suffix, label, value };
        match &self.value {
            SampleValue::Count(count) => vec![point("", own, PointValue::Count(*count))],
            SampleValue::Gauge(value) => vec![point("", own, PointValue::Float(*value))],
            SampleValue::Waits(waits) => {
                let bucket = |le: Cow<'static, str>, count| {
                    point("_bucket", Some(("le", le)), PointValue::Count(count))
                };
                let buckets = waits.cumulative();
                let mut points: Vec<_> = buckets
                    .map(|(upper, count)| bucket(upper.as_secs_f64().to_string().into(), count))
                    .collect();
                points.push(bucket("+Inf".into(), waits.count()));
                points.push(point("_sum", None, PointValue::Float(waits.sum().as_secs_f64())));
                points.push(point("_count", None, PointValue::Count(waits.count())));
                points
            }
        }
    }
}

/// What one limiter, or one part of a larger one, looked like at one moment.
///
/// `Display` is one line for people, with control and direction characters of the name escaped; with the feature `serde` it
/// serialises.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The name in the registry; of a part, `name/part`.
    pub name: String,
    /// What it is: `limiter`, `keyed_limiter`, `breaker`.
    pub kind: &'static str,
    /// Its quota, if it has one.
    pub quota: Option<Quota>,
    /// Its state in a word, if it has one: `open`, `closed`, `bypassed`.
    pub state: Option<&'static str>,
    /// Whether it denies nearly everything.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub health: Health,
    /// Its counts and gauges.
    pub samples: Vec<Sample>,
}

impl Report {
    fn new(name: String) -> Self {
        let (kind, health) = ("", Health::Unknown);
        Self { name, kind, quota: None, state: None, health, samples: Vec::new() }
    }

    /// Returns the value of a gauge by the name of its metric.
    #[must_use]
    pub fn gauge(&self, metric: &str) -> Option<f64> {
        self.samples.iter().find_map(|sample| match sample.value {
            SampleValue::Gauge(value) if sample.family.name == metric => Some(value),
            _ => None,
        })
    }

    /// Returns the value of a count by the name of its metric and the value of its label (`""` if
    /// the metric has none).
    #[must_use]
    pub fn count(&self, metric: &str, label: &str) -> Option<u64> {
        self.samples.iter().find_map(|sample| match sample.value {
            SampleValue::Count(value) if sample.family.name == metric && sample.label == label => {
                Some(value)
            }
            _ => None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, &self.name)?;
        write!(f, " ({})", self.kind)?;
        if let Some(quota) = self.quota {
            write!(f, ", {quota}")?;
        }
        if let Some(state) = self.state {
            write!(f, ", {state}")?;
        }
        for (of, most, what) in [
            (&LEVEL, &CAPACITY, "free"),
            (&IN_FLIGHT, &IN_FLIGHT_LIMIT, "in flight"),
            (&WAITING, &WAITING_LIMIT, "waiting"),
        ] {
            match (self.gauge(of.name), self.gauge(most.name)) {
                (Some(0.0), _) if *of == WAITING => {}
                (Some(value), Some(most)) => write!(f, ", {value} of {most} {what}")?,
                (Some(value), None) => write!(f, ", {value} {what}")?,
                _ => {}
            }
        }
        match self.health {
            Health::Unknown => Ok(()),
            Health::Healthy => f.write_str(", healthy"),
            Health::Denying { denied_percent } => write!(f, ", denies {denied_percent} %"),
        }
    }
}

/// Writes a name so that a line stays one line, and no character changes the direction of the text.
fn write_escaped(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    name.chars().try_for_each(|character| match character {
        '"' | '\'' | '\\' => f.write_char(character),
        other => other.escape_debug().try_for_each(|escaped| f.write_char(escaped)),
    })
}

/// Receives the counts and gauges of a [`Collector`].
#[derive(Debug)]
pub struct Samples {
    reports: Vec<Report>,
    /// The report that is written now.
    at: usize,
}

impl Samples {
    pub(super) fn new() -> Self {
        Self { reports: Vec::new(), at: 0 }
    }

    /// Reads a collector under this name.
    pub(super) fn read(&mut self, name: &str, collector: &dyn Collector) {
        self.under(name.to_owned(), |samples| collector.collect(samples));
    }

    pub(super) fn into_reports(self) -> Vec<Report> {
        self.reports
    }

    fn under(&mut self, name: String, write: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.at, self.reports.len());
        self.reports.push(Report::new(name));
        write(self);
        self.at = outer;
    }

    fn report(&mut self) -> &mut Report {
        // INVARIANT: `at` is the report that `under` has pushed.
        &mut self.reports[self.at]
    }

    /// Says what the collector is, in a word.
    pub fn kind(&mut self, kind: &'static str) {
        self.report().kind = kind;
    }

    /// Says which quota is in force; its rate becomes a gauge.
    pub fn quota(&mut self, quota: Quota) {
        self.report().quota = Some(quota);
        self.gauge(&RATE, per_second(&quota));
    }

    /// Says in which state it is, in a word.
    pub fn state(&mut self, state: &'static str) {
        self.report().state = Some(state);
    }

    /// Says whether it denies nearly everything.
    pub fn health(&mut self, health: Health) {
        self.report().health = health;
    }

    /// Adds a count since the start.
    pub fn count(&mut self, family: &Family, value: u64) {
        self.count_by(family, "", value);
    }

    /// Adds a count for one value of the family's label.
    pub fn count_by(&mut self, family: &Family, label: &'static str, value: u64) {
        self.add(family, label, SampleValue::Count(value));
    }

    /// Adds a value that goes up and down.
    pub fn gauge(&mut self, family: &Family, value: f64) {
        self.add(family, "", SampleValue::Gauge(value));
    }

    /// Adds such a value for one value of the family's label.
    pub fn gauge_by(&mut self, family: &Family, label: &'static str, value: f64) {
        self.add(family, label, SampleValue::Gauge(value));
    }

    /// Adds a histogram of waits.
    pub fn waits(&mut self, family: &Family, waits: WaitHistogram) {
        self.add(family, "", SampleValue::Waits(waits));
    }

    fn add(&mut self, family: &Family, label: &'static str, value: SampleValue) {
        debug_assert!(family.kind.takes(&value), "{} is no {value:?}", family.name);
        debug_assert_eq!(family.label.is_empty(), label.is_empty(), "label of {}", family.name);
        self.report().samples.push(Sample { family: *family, label, value });
    }

    /// Reads a part of the collector as `name/part`: a level of a tree, the budget of a policy.
    pub fn part(&mut self, part: &str, collector: &dyn Collector) {
        self.part_by(part, |samples| collector.collect(samples));
    }

    /// Writes a part of the collector as `name/part`: a policy of a layer, a direction.
    pub fn part_by(&mut self, part: &str, write: impl FnOnce(&mut Self)) {
        let name = format!("{}/{part}", self.report().name);
        self.under(name, write);
    }

    /// Adds counts of decisions.
    pub fn decisions(&mut self, counts: &Counts) {
        self.count_by(&DECISIONS, "allowed", counts.allowed);
        self.count_by(&DECISIONS, "denied_later", counts.denied_later);
        self.count_by(&DECISIONS, "denied_never", counts.denied_never);
        self.count_by(&PERMITS, "allowed", counts.allowed_cost);
        self.count_by(&PERMITS, "denied", counts.denied_cost);
        self.count_by(&PERMITS, "refunded", counts.refunded);
        self.count(&BYPASSED, counts.bypassed);
        self.count(&FORCED, counts.forced);
    }

    /// Adds counts of calls that were let through and of those that were not, where no wait is known.
    pub(crate) fn calls(&mut self, allowed: u64, denied: u64) {
        self.count_by(&DECISIONS, "allowed", allowed);
        self.count_by(&DECISIONS, "denied", denied);
    }

    /// Adds the counts of an action: how often it was triggered, how often it ran, how many triggers
    /// were merged, and how many runs panicked; and whether it is stopped.
    pub(crate) fn action<M: Machine>(&mut self, runs: RunCounts, engine: &Engine<M>) {
        self.count(&TRIGGERS, runs.triggers);
        self.count(&RUNS, runs.runs);
        self.count(&COALESCED, runs.coalesced);
        self.panics(engine);
    }

    /// Adds how many runs panicked, and whether the engine is stopped.
    pub(crate) fn panics<M: Machine>(&mut self, engine: &Engine<M>) {
        self.count(&PANICS, engine.panics());
        if engine.is_stopped() {
            self.state("stopped");
        }
    }

    /// Adds a queue: `waiting` of at most `limit`.
    pub(crate) fn queue(&mut self, waiting: u64, limit: u64) {
        self.gauge(&WAITING, waiting as f64);
        self.gauge(&WAITING_LIMIT, permits(limit));
    }

    /// Adds the level of a limiter: `free` of at most `capacity`.
    pub fn level(&mut self, free: u64, capacity: u64) {
        self.gauge(&LEVEL, permits(free));
        self.gauge(&CAPACITY, permits(capacity));
    }
}

/// The counts of an action, kept under the lock of its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunCounts {
    pub(crate) triggers: u64,
    pub(crate) runs: u64,
    /// Triggers that did not lead to a run of their own.
    pub(crate) coalesced: u64,
}

impl RunCounts {
    /// Counts a trigger of a debouncer, by the values that it left over. Without a trailing edge the
    /// last one is that of a trigger for which nothing runs.
    pub(crate) fn trigger<T>(&mut self, [.., without_run]: &[Option<T>; 4]) {
        // OVERFLOW: counts of events.
        self.triggers += 1;
        self.coalesced += u64::from(without_run.is_some());
    }

    /// Counts a run that stands for so many triggers.
    pub(crate) fn run(&mut self, triggers: u64) {
        // OVERFLOW: counts of events.
        self.runs += 1;
        self.coalesced += triggers.saturating_sub(1);
    }
}

/// Returns a number of permits as a float; no limit is infinite.
fn permits(count: u64) -> f64 {
    if count == u64::MAX { f64::INFINITY } else { count as f64 }
}

fn per_second(quota: &Quota) -> f64 {
    match (quota.is_unlimited(), quota.period().as_secs_f64()) {
        (true, _) => f64::INFINITY,
        (false, 0.0) => 0.0,
        (false, seconds) => quota.count() as f64 / seconds,
    }
}
