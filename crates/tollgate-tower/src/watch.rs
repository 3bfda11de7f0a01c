//! What layers tell of their decisions: to observers, to metrics, to the current span, to a log.
//!
//! All that can be told of has a number and a name, and both are fixed when a layer is built. So the
//! labels of metrics are bounded, whatever requests bring; nothing of a request ever is one.

use std::{fmt, sync::Arc, time::Duration};
#[cfg(feature = "metrics")]
use tollgate::watch::MetricsObserver;
use tollgate::{
    Clock, Decision,
    watch::{DenialLine, DenialLog, Event, Observer, TracingObserver, Verb},
};

/// What a builder was told about watching.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    observers: Vec<Arc<dyn Observer>>,
    has_span_events: bool,
    log_every: Option<Duration>,
    #[cfg(feature = "metrics")]
    has_metrics: bool,
}

impl Watching {
    pub(crate) fn observer(&mut self, observer: impl Observer + 'static) {
        self.observers.push(Arc::new(observer));
    }

    pub(crate) fn span_events(&mut self) {
        self.has_span_events = true;
    }

    pub(crate) fn log_denials(&mut self, every: Duration) {
        self.log_every = Some(every);
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn metrics(&mut self) {
        self.has_metrics = true;
    }

    /// Makes what is told from now on. These are the names of all that can be told of, for good.
    pub(crate) fn ready<'a>(
        mut self,
        clock: &Clock,
        names: impl Iterator<Item = &'a str>,
    ) -> Watch {
        if self.has_span_events {
            self.observers.push(Arc::new(TracingObserver::new()));
        }
        #[cfg(feature = "metrics")]
        let is_idle = self.observers.is_empty() && self.log_every.is_none() && !self.has_metrics;
        #[cfg(not(feature = "metrics"))]
        let is_idle = self.observers.is_empty() && self.log_every.is_none();
        if is_idle {
            return Watch { told: None };
        }
        let each = names.map(|name| Each {
            name: name.into(),
            log: self.log_every.map(|every| DenialLog::new(clock.clone(), every, warn)),
            #[cfg(feature = "metrics")]
            metrics: self.has_metrics.then(|| Metrics::new(name)),
        });
        let each = each.collect();
        Watch { told: Some(Box::new(Told { each, observers: self.observers })) }
    }
}

/// Writes the setters of a builder's field `watching`, a [`Watching`].
macro_rules! watch_setters {
    () => {
        /// Reports each decision to an observer, under the name of the limit (of a tier:
        /// `policy/tier`); several calls add several observers.
        ///
        /// Of a request that is refused, it hears of the limits that refuse; of limits in shadow mode,
        /// that they are not enforced. Requests without a key are not reported. A request that finds
        /// no slot is denied with `retry_after` 0, unless the layer has a `retry_after`, or for good
        /// if the limit is closed; a request that waits is reported when its wait is over.
        pub fn observer(mut self, observer: impl tollgate::watch::Observer + 'static) -> Self {
            self.watching.observer(observer);
            self
        }

        /// Counts decisions through the `metrics` facade, with the recorder that is installed when the
        /// layer is built: `tollgate_decisions_total` and `tollgate_permits_total` with the labels
        /// `limiter` and `outcome`, `tollgate_no_key_total`, and `tollgate_store_errors_total` where
        /// there is a store. No label comes from a request, so their number is bounded.
        #[cfg(feature = "metrics")]
        pub fn metrics(mut self) -> Self {
            self.watching.metrics();
            self
        }

        /// Records decisions as `tracing` events on the span of the request, target `tollgate`:
        /// denials at level `INFO`, the others at `TRACE`.
        pub fn span_events(mut self) -> Self {
            self.watching.span_events();
            self
        }

        /// Logs denials by `tracing` at level `WARN`, target `tollgate`: of each limit at most one
        /// line in `every`, which says how many were left out. Zero logs each. It contains no key.
        pub fn log_denials(mut self, every: std::time::Duration) -> Self {
            self.watching.log_denials(every);
            self
        }
    };
}

pub(crate) use watch_setters;

/// Who is told of what a layer decides.
///
/// A number that has no name is told to nobody.
pub(crate) struct Watch {
    told: Option<Box<Told>>,
}

struct Told {
    each: Box<[Each]>,
    observers: Vec<Arc<dyn Observer>>,
}

/// What is kept for one name.
struct Each {
    name: Box<str>,
    /// Its own, so that what was left out was left out of it.
    log: Option<DenialLog>,
    #[cfg(feature = "metrics")]
    metrics: Option<Metrics>,
}

#[cfg(feature = "metrics")]
struct Metrics {
    decisions: MetricsObserver,
    no_key: metrics::Counter,
    store_errors: metrics::Counter,
    bounds_reached: metrics::Counter,
}

#[cfg(feature = "metrics")]
impl Metrics {
    fn new(name: &str) -> Self {
        Self {
            decisions: MetricsObserver::new(name),
            no_key: metrics::counter!("tollgate_no_key_total", "limiter" => name.to_owned()),
            store_errors: metrics::counter!(
                "tollgate_store_errors_total", "limiter" => name.to_owned()
            ),
            bounds_reached: metrics::counter!(
                "tollgate_bounds_reached_total", "limiter" => name.to_owned()
            ),
        }
    }
}

impl Watch {
    /// Tells whether nobody listens: then there is no need to find out what would be told.
    pub(crate) const fn is_idle(&self) -> bool {
        self.told.is_none()
    }

    /// Tells of a decision. If it is not enforced, it was only watched, and the request passed.
    pub(crate) fn decided(
        &self,
        number: usize,
        verb: Verb,
        decision: &Decision,
        is_enforced: bool,
    ) {
        let Some((told, each)) = self.told_of(number) else { return };
        let event = Event::new(&each.name, verb, decision);
        let event = if is_enforced { event } else { event.watched() };
        #[cfg(feature = "metrics")]
        if let Some(metrics) = &each.metrics {
            metrics.decisions.decided(&event);
        }
        if let Some(log) = &each.log {
            log.decided(&event);
        }
        for observer in &told.observers {
            observer.decided(&event);
        }
    }

    /// Counts a request that was refused because nobody knows whom to count.
    pub(crate) fn no_key(&self, number: usize) {
        #[cfg(feature = "metrics")]
        if let Some(metrics) = self.told_of(number).and_then(|(_, each)| each.metrics.as_ref()) {
            metrics.no_key.increment(1);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = number;
    }

    /// Counts a question that the store could not answer, whatever was done then.
    pub(crate) fn store_failed(&self, number: usize) {
        #[cfg(feature = "metrics")]
        if let Some(metrics) = self.told_of(number).and_then(|(_, each)| each.metrics.as_ref()) {
            metrics.store_errors.increment(1);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = number;
    }

    /// Counts a question that was refused because a bound of the store is reached.
    pub(crate) fn bound_reached(&self, number: usize) {
        #[cfg(feature = "metrics")]
        if let Some(metrics) = self.told_of(number).and_then(|(_, each)| each.metrics.as_ref()) {
            metrics.bounds_reached.increment(1);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = number;
    }

    fn told_of(&self, number: usize) -> Option<(&Told, &Each)> {
        let told = self.told.as_deref()?;
        Some((told, told.each.get(number)?))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.told.iter().flat_map(|told| told.each.iter().map(|each| &each.name));
        f.debug_tuple("Watch").field(&names.collect::<Vec<_>>()).finish()
    }
}

/// Writes a line. It has no key: who was refused is nobody's business but theirs.
fn warn(line: &DenialLine<'_>) {
    let retry_after_ms = line.decision.retry_after(line.decision.at());
    tracing::warn!(
        target: "tollgate",
        limiter = line.name,
        cost = line.decision.cost(),
        limit = line.decision.limit(),
        retry_after_ms = retry_after_ms.map(|wait| wait.as_millis() as u64),
        never = line.decision.is_never(),
        enforced = line.is_enforced,
        left_out = line.left_out,
        "{line}"
    );
}

#[cfg(test)]
#[cfg(feature = "metrics")]
mod tests {
    use super::*;
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    use std::sync::Mutex;
    use tollgate::{Answer, Outcome, Tick};

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<(String, bool)>>);

    impl Observer for Heard {
        fn decided(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push((event.name.to_owned(), event.is_enforced));
        }
    }

    fn decision(outcome: Outcome) -> Decision {
        let at = Tick::ZERO;
        let (cost, limit, remaining) = (2, 5, 0);
        Decision::answered(Answer {
            outcome,
            at,
            cost,
            limit,
            remaining,
            retry_at: at,
            full_at: None,
        })
    }

    #[test]
    fn watched_denials_no_keys_and_failures_are_counted_apart() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let heard = Arc::new(Heard::default());
        metrics::with_local_recorder(&recorder, || {
            let mut watching = Watching::default();
            watching.metrics();
            watching.observer(Arc::clone(&heard));
            let watch = watching.ready(&Clock::monotonic(), ["a", "b"].into_iter());
            assert!(!watch.is_idle());
            watch.decided(0, Verb::TryAcquire, &decision(Outcome::Later), true);
            watch.decided(1, Verb::TryAcquire, &decision(Outcome::Later), false);
            watch.decided(1, Verb::TryAcquire, &decision(Outcome::Allowed), false);
            watch.no_key(0);
            watch.store_failed(1);
            // Nobody is 2.
            watch.decided(2, Verb::TryAcquire, &decision(Outcome::Never), true);
            watch.no_key(2);
            watch.store_failed(2);
        });
        let mut counted: Vec<_> = snapshotter
            .snapshot()
            .into_vec()
            .into_iter()
            .filter(|(_, _, _, value)| *value != DebugValue::Counter(0))
            .map(|(key, _, _, value)| {
                let labels: Vec<_> = key.key().labels().map(metrics::Label::value).collect();
                format!("{} {} {value:?}", key.key().name(), labels.join(" "))
            })
            .collect();
        counted.sort();
        assert_eq!(
            counted,
            [
                "tollgate_decisions_total a denied_later Counter(1)",
                "tollgate_decisions_total b allowed Counter(1)",
                "tollgate_decisions_total b shadow_denied_later Counter(1)",
                "tollgate_no_key_total a Counter(1)",
                "tollgate_permits_total a denied_later Counter(2)",
                "tollgate_permits_total b allowed Counter(2)",
                "tollgate_permits_total b shadow_denied_later Counter(2)",
                "tollgate_store_errors_total b Counter(1)",
            ]
        );
        let heard = heard.0.lock().unwrap();
        let heard: Vec<_> = heard.iter().map(|(name, told)| (name.as_str(), *told)).collect();
        assert_eq!(heard, [("a", true), ("b", false), ("b", false)]);
    }

    #[test]
    fn nobody_listens_unless_somebody_was_named() {
        let idle = Watching::default().ready(&Clock::monotonic(), ["a"].into_iter());
        assert!(idle.is_idle());
        let starts: [fn(&mut Watching); 3] =
            [Watching::span_events, Watching::metrics, |it| it.log_denials(Duration::ZERO)];
        for start in starts {
            let mut watching = Watching::default();
            start(&mut watching);
            assert!(!watching.ready(&Clock::monotonic(), ["a"].into_iter()).is_idle());
        }
    }
}
