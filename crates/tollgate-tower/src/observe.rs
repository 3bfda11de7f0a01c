//! Reports the decisions of layers: to counters, observers, the current span and a log.
//!
//! Every limit has a number and a name, and both are fixed when a layer is built. So the labels of
//! metrics are bounded: none ever comes from a request.

pub(crate) mod metric;

use crate::client::counts::Count;
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{
    Clock,
    observe::{
        Counts, DecisionCounters, DenialLine, DenialLog, Event, Health, HealthCheck, Observer,
        Samples, TracingObserver,
    },
};

/// Changes the settings of a denial log.
type LogSettings = Box<dyn Fn(DenialLog) -> DenialLog + Send + Sync>;

/// The settings of a builder.
#[derive(Default)]
pub(crate) struct InstrumentSettings {
    observers: Vec<Arc<dyn Observer>>,
    log: Option<(Duration, LogSettings)>,
    is_counted: bool,
}

impl InstrumentSettings {
    pub(crate) fn observer(&mut self, observer: impl Observer + 'static) {
        self.observers.push(Arc::new(observer));
    }

    pub(crate) fn span_events(&mut self) {
        self.observer(TracingObserver::new());
    }

    pub(crate) fn counted(&mut self) {
        self.is_counted = true;
    }

    pub(crate) fn log_denials(
        &mut self,
        every: Duration,
        settings: impl Fn(DenialLog) -> DenialLog + Send + Sync + 'static,
    ) {
        self.log = Some((every, Box::new(settings)));
    }

    /// Builds the reports of limits with these names.
    pub(crate) fn ready<'a>(
        self,
        clock: &Clock,
        names: impl Iterator<Item = &'a str>,
    ) -> Instruments {
        let has_reports = self.is_counted || self.log.is_some() || !self.observers.is_empty();
        let limits = names.map(|name| LimitInstruments {
            name: name.into(),
            counters: self.is_counted.then(Box::default),
            log: self
                .log
                .as_ref()
                .map(|(every, settings)| settings(DenialLog::new(clock.clone(), *every, warn))),
            failures: Failures::default(),
        });
        Instruments {
            limits: limits.collect(),
            observers: self.observers,
            has_reports,
            clock: clock.clone(),
        }
    }
}

/// Writes the setters of a builder's field `instruments`, a [`InstrumentSettings`].
macro_rules! instrument_setters {
    () => {
        /// Reports each decision to an observer, under the name of the limit (of a tier:
        /// `policy/tier`); several calls add several observers.
        ///
        /// For a refused request, the observer receives the limits that refuse; for limits in
        /// shadow mode, decisions that are not enforced. Requests without a key are not reported. A
        /// request that finds no slot is denied with `retry_after` 0, unless the layer has a
        /// `retry_after`, or for good if the limit is closed; a request that waits is reported when
        /// its wait is over.
        pub fn observer(mut self, observer: impl tollgate::observe::Observer + 'static) -> Self {
            self.instruments.observer(observer);
            self
        }

        /// Counts decisions, by limit and outcome: for `counts` and `health` of the layer, and for the
        /// metrics of a [`Registry`](tollgate::observe::Registry) that it is added to. By default only
        /// requests without a key and failures of a store are counted.
        pub fn counted(mut self) -> Self {
            self.instruments.counted();
            self
        }

        /// Records decisions as `tracing` events on the span of the request, target `tollgate`:
        /// denials at level `INFO`, the others at `TRACE`. To show the keys of denials, add
        /// `TracingObserver::new().show_key(..)` as an [`observer`](Self::observer) instead.
        pub fn span_events(mut self) -> Self {
            self.instruments.span_events();
            self
        }

        /// Logs denials by `tracing` at level `WARN`, target `tollgate`: of each limit at most one
        /// line in `every`, which says how many were left out. Zero logs each. It contains no key.
        pub fn log_denials(self, every: std::time::Duration) -> Self {
            self.log_denials_with(every, |log| log)
        }

        /// [`log_denials`](Self::log_denials) with settings of the library's
        /// [`DenialLog`](tollgate::observe::DenialLog): a sample of the denials, their keys, quotas and
        /// levels.
        pub fn log_denials_with(
            mut self,
            every: std::time::Duration,
            settings: impl Fn(tollgate::observe::DenialLog) -> tollgate::observe::DenialLog
            + Send
            + Sync
            + 'static,
        ) -> Self {
            self.instruments.log_denials(every, settings);
            self
        }
    };
}

pub(crate) use instrument_setters;

/// The counts of one limit's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerCounts {
    /// Decisions that were enforced, and requests that passed a limit in shadow mode; all zero unless
    /// the layer is `counted`.
    pub decisions: Counts,
    /// Requests that passed although a limit in shadow mode denied them; the same.
    pub shadow: Counts,
    /// Requests that were refused because they have no key.
    pub no_key: u64,
    /// Requests that the store did not answer, whether they passed or not.
    pub store_errors: u64,
    /// Requests that were refused because a bound of the store was reached.
    pub bounds_reached: u64,
}

/// Reports the decisions of one layer.
pub(crate) struct Instruments {
    /// By the number of the limit. A number without a limit is not reported.
    limits: Box<[LimitInstruments]>,
    observers: Vec<Arc<dyn Observer>>,
    has_reports: bool,
    clock: Clock,
}

struct LimitInstruments {
    name: Box<str>,
    counters: Option<Box<Counters>>,
    /// Each limit has one, so that a line says how many denials of this limit were left out.
    log: Option<DenialLog>,
    failures: Failures,
}

/// Requests without a decision. They are rare, so they are always counted.
#[derive(Debug, Default)]
struct Failures {
    no_key: Count,
    store_errors: Count,
    bounds_reached: Count,
}

/// Decisions by outcome, and their permits.
#[derive(Debug, Default)]
struct Counters {
    decisions: DecisionCounters,
    /// Denials in shadow mode.
    shadow: DecisionCounters,
    health: HealthCheck,
}

impl Counters {
    fn add(&self, event: &Event<'_>) {
        let is_shadow = event.decision.is_denied() && !event.is_enforced;
        let counters = if is_shadow { &self.shadow } else { &self.decisions };
        counters.add(event.verb, event.decision);
    }
}

impl Instruments {
    /// Tells whether there are no observers, counters or logs, so that no events need to be made.
    pub(crate) const fn is_idle(&self) -> bool {
        !self.has_reports
    }

    /// Reports a decision of a limit; `event` gets the limit's name.
    pub(crate) fn decided<'a>(&'a self, number: usize, event: impl FnOnce(&'a str) -> Event<'a>) {
        let Some(limit) = self.limits.get(number) else { return };
        let event = event(&limit.name);
        if let Some(counters) = &limit.counters {
            counters.add(&event);
        }
        if let Some(log) = &limit.log {
            log.decided(&event);
        }
        for observer in &self.observers {
            observer.decided(&event);
        }
    }

    /// Counts a request that was refused because it has no key.
    pub(crate) fn no_key(&self, number: usize) {
        self.limits.get(number).iter().for_each(|limit| limit.failures.no_key.add(1));
    }

    /// Counts a request that the store did not answer, whether it passed or not.
    pub(crate) fn store_failed(&self, number: usize) {
        self.limits.get(number).iter().for_each(|limit| limit.failures.store_errors.add(1));
    }

    /// Counts a request that was refused because a bound of the store is reached.
    pub(crate) fn bound_reached(&self, number: usize) {
        self.limits.get(number).iter().for_each(|limit| limit.failures.bounds_reached.add(1));
    }

    /// Returns the number of the limit with this name.
    pub(crate) fn number_of(&self, name: &str) -> Option<usize> {
        self.limits.iter().position(|limit| &*limit.name == name)
    }

    /// Returns the counts of a limit's requests.
    pub(crate) fn counts(&self, number: usize) -> Option<LayerCounts> {
        let limit = self.limits.get(number)?;
        let (counters, failures) = (limit.counters.as_ref(), &limit.failures);
        let (decisions, shadow) =
            counters.map(|it| (it.decisions.sum(), it.shadow.sum())).unwrap_or_default();
        Some(LayerCounts {
            decisions,
            shadow,
            no_key: failures.no_key.get(),
            store_errors: failures.store_errors.get(),
            bounds_reached: failures.bounds_reached.get(),
        })
    }

    /// Evaluates the health of a limit by its enforced decisions.
    pub(crate) fn health(&self, number: usize) -> Option<Health> {
        let limit = self.limits.get(number)?;
        let Some(counters) = &limit.counters else { return Some(Health::Unknown) };
        Some(counters.health.judge(self.clock.now(), &counters.decisions.sum()))
    }

    /// Tells whether decisions are counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.limits.iter().any(|limit| limit.counters.is_some())
    }

    /// Writes the metrics of a limit.
    pub(crate) fn collect(&self, number: usize, samples: &mut Samples) {
        let (Some(limit), Some(counts)) = (self.limits.get(number), self.counts(number)) else {
            return;
        };
        if limit.counters.is_some() {
            samples.decisions(&counts.decisions);
        }
        samples.health(self.health(number).unwrap_or(Health::Unknown));
        samples.count(&metric::NO_KEY, counts.no_key);
    }
}

impl fmt::Debug for Instruments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.limits.iter().map(|limit| &limit.name);
        f.debug_tuple("Instruments").field(&names.collect::<Vec<_>>()).finish()
    }
}

/// Writes a line.
fn warn(line: &DenialLine<'_>) {
    let retry_after_ms = line.decision.retry_after(line.decision.at());
    tracing::warn!(
        target: "tollgate",
        limiter = line.name,
        cost = line.decision.cost(),
        limit = line.decision.limit(),
        key = line.key,
        quota = line.quota.map(tracing::field::display),
        retry_after_ms = retry_after_ms.map(|wait| wait.as_millis() as u64),
        never = line.decision.is_never(),
        enforced = line.is_enforced,
        left_out = line.left_out,
        "{line}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tollgate::{Answer, Decision, Outcome, Tick, observe::Verb};

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<(String, bool)>>);

    impl Observer for Heard {
        fn decided(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push((event.name.to_owned(), event.is_enforced));
        }
    }

    fn decision(outcome: Outcome) -> Decision {
        let (at, cost, limit, remaining) = (Tick::ZERO, 2, 5, 0);
        let (retry_at, full_at) = (at, None);
        Decision::answered(Answer { outcome, at, cost, limit, remaining, retry_at, full_at })
    }

    #[test]
    fn shadow_denials_missing_keys_and_failures_are_counted_apart() {
        let heard = Arc::new(Heard::default());
        let mut instruments = InstrumentSettings::default();
        instruments.counted();
        instruments.observer(Arc::clone(&heard));
        let instruments = instruments.ready(&Clock::monotonic(), ["a", "b"].into_iter());
        assert!(!instruments.is_idle());
        // There is no limit 2.
        for (number, outcome, is_enforced) in [
            (0, Outcome::Later, true),
            (1, Outcome::Later, false),
            (1, Outcome::Allowed, false),
            (2, Outcome::Never, true),
        ] {
            let decision = decision(outcome);
            instruments.decided(number, |name| {
                let event = Event::new(name, Verb::TryAcquire, &decision);
                if is_enforced { event } else { event.not_enforced() }
            });
        }
        instruments.no_key(0);
        instruments.store_failed(1);
        instruments.bound_reached(1);
        instruments.no_key(2);
        let (mut a, mut b) = (LayerCounts::default(), LayerCounts::default());
        (a.decisions.denied_later, a.decisions.denied_cost, a.no_key) = (1, 2, 1);
        (b.decisions.allowed, b.decisions.allowed_cost) = (1, 2);
        (b.shadow.denied_later, b.shadow.denied_cost) = (1, 2);
        (b.store_errors, b.bounds_reached) = (1, 1);
        assert_eq!(
            [instruments.counts(0), instruments.counts(1), instruments.counts(2)],
            [Some(a), Some(b), None]
        );
        let heard = heard.0.lock().unwrap();
        let heard: Vec<_> = heard.iter().map(|(name, told)| (name.as_str(), *told)).collect();
        assert_eq!(heard, [("a", true), ("b", false), ("b", false)]);
    }

    #[test]
    fn nobody_listens_unless_a_setter_says_so() {
        let idle = InstrumentSettings::default().ready(&Clock::monotonic(), ["a"].into_iter());
        assert!(idle.is_idle());
        let starts: [fn(&mut InstrumentSettings); 3] =
            [InstrumentSettings::span_events, InstrumentSettings::counted, |it| {
                it.log_denials(Duration::ZERO, |log| log);
            }];
        for start in starts {
            let mut instruments = InstrumentSettings::default();
            start(&mut instruments);
            assert!(!instruments.ready(&Clock::monotonic(), ["a"].into_iter()).is_idle());
        }
    }
}
