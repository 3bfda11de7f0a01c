//! The metrics of this crate: their names, types and labels.

use super::SampleValue;
use std::fmt;

/// A metric: its name, what it means, and its one label beside `limiter`.
///
/// All are constants, so a program has a fixed number of series per limiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Family {
    pub(super) name: &'static str,
    pub(super) kind: FamilyKind,
    pub(super) help: &'static str,
    /// Empty if there is none.
    pub(super) label: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

impl FamilyKind {
    pub(super) const fn takes(self, value: &SampleValue) -> bool {
        matches!(
            (self, value),
            (Self::Counter, SampleValue::Count(_))
                | (Self::Gauge, SampleValue::Gauge(_))
                | (Self::Histogram, SampleValue::Waits(_))
        )
    }

    /// Returns the name that Prometheus has for it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Family {
    /// Returns a count since the start. By convention its name ends in `_total`.
    ///
    /// # Panics
    ///
    /// When the name is not one of Prometheus: ASCII letters, digits and `_`, not beginning with a
    /// digit. In a constant that is an error of the compiler. The same holds for the other kinds.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, FamilyKind::Counter, help)
    }

    /// Returns a value that goes up and down.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, FamilyKind::Gauge, help)
    }

    /// Returns a histogram of durations. By convention its name ends in `_seconds`.
    #[must_use]
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self::new(name, FamilyKind::Histogram, help)
    }

    /// Adds a label, whose values come with the samples.
    #[must_use]
    pub const fn label(mut self, label: &'static str) -> Self {
        assert!(is_name(label), "a label consists of letters, digits and _");
        self.label = label;
        self
    }

    const fn new(name: &'static str, kind: FamilyKind, help: &'static str) -> Self {
        assert!(is_name(name), "the name of a metric consists of letters, digits and _");
        Self { name, kind, help, label: "" }
    }

    /// Returns the name of the metric.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

const fn is_name(name: &str) -> bool {
    let (bytes, mut at) = (name.as_bytes(), 0);
    while at < bytes.len() {
        let byte = bytes[at];
        if !(byte.is_ascii_alphabetic() || byte == b'_' || (at > 0 && byte.is_ascii_digit())) {
            return false;
        }
        at += 1; // OVERFLOW: at most the length.
    }
    !bytes.is_empty()
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Family {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// Writes the constants and the list of them.
macro_rules! families {
    ($($name:ident: $kind:ident $metric:literal $([$label:literal])? = $help:literal;)*) => {
        $(pub(crate) const $name: Family = Family::$kind($metric, $help)$(.label($label))?;)*
        /// Every metric of this crate.
        #[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "for OpenTelemetry"))]
        pub(super) const FAMILIES: &[Family] = &[$($name),*];
    };
}

families! {
    DECISIONS: counter "tollgate_decisions_total" ["outcome"] = "Decisions by outcome.";
    PERMITS: counter "tollgate_permits_total" ["outcome"] = "Permits that were allowed, denied and given back.";
    BYPASSED: counter "tollgate_bypassed_total" = "Decisions that passed because the limiter was bypassed; also counted as allowed.";
    FORCED: counter "tollgate_forced_total" = "Costs that were booked without asking; also counted as allowed.";
    LEVEL: gauge "tollgate_level" = "Permits that are free now.";
    CAPACITY: gauge "tollgate_capacity" = "The most permits that can be free.";
    RATE: gauge "tollgate_rate" = "Permits per second of the quota in force.";
    WAITS: histogram "tollgate_wait_seconds" = "How long calls that passed had to wait.";
    WAITING: gauge "tollgate_waiting" = "Calls or keys in the queue.";
    WAITING_LIMIT: gauge "tollgate_waiting_limit" = "The most that may be in the queue.";
    IN_FLIGHT: gauge "tollgate_in_flight" = "Calls in flight.";
    IN_FLIGHT_LIMIT: gauge "tollgate_in_flight_limit" = "The most calls that may be in flight; of a keyed limit, for each key.";
    IN_FLIGHT_PEAK: gauge "tollgate_in_flight_peak" = "The most calls that were in flight at once; of a keyed limit, for one key.";
    KEYS: gauge "tollgate_keys" = "Keys that have a slot in the table.";
    KEYS_LIMIT: gauge "tollgate_keys_limit" = "The most keys that the table takes.";
    TABLE_BYTES: gauge "tollgate_table_bytes" = "Memory of the table.";
    TABLE_EVENTS: counter "tollgate_table_events_total" ["event"] = "Keys that were forgotten at rest, evicted alive, or found no room, and quotas that could not be used.";
    SHARED: counter "tollgate_shared_permits_total" ["direction"] = "Permits that a class borrowed, and that it lent to others.";
    BREAKER_STATE: gauge "tollgate_breaker_state" ["state"] = "1 for the state that a breaker is in, else 0; of a keyed breaker, the number of keys in it.";
    BREAKER_CALLS: counter "tollgate_breaker_calls_total" ["result"] = "Calls that ended, by result; `ignored` and `without_effect` decided nothing.";
    BREAKER_SLOW: counter "tollgate_breaker_slow_total" = "Calls that were slow.";
    BREAKER_OPENED: counter "tollgate_breaker_opened_total" = "How often a breaker opened.";
    BREAKER_TRIALS: counter "tollgate_breaker_trials_total" = "Calls that passed as trials of a half-open breaker.";
    RETRIES: counter "tollgate_retries_total" ["outcome"] = "Failed attempts: repeated, or why not.";
    RETRY_BALANCE: gauge "tollgate_retry_budget" = "Retries that the budget has now.";
    RETRY_REFUSED: counter "tollgate_retry_budget_refused_total" = "Retries that were refused because the budget was spent.";
    HEDGES: counter "tollgate_hedges_total" ["outcome"] = "Calls that were considered, hedges that were sent, that won, and why others were not sent.";
    REFUSAL_PROBABILITY: gauge "tollgate_refusal_probability" = "Share of its calls that a client refuses by itself, at normal priority.";
    OVERLOADED: counter "tollgate_overloaded_total" = "Calls that the server refused for overload.";
    TRIGGERS: counter "tollgate_triggers_total" = "Triggers, or values that were added.";
    RUNS: counter "tollgate_runs_total" = "Runs of the action.";
    COALESCED: counter "tollgate_coalesced_total" = "Triggers that were merged with another one into one run, or values into one key.";
    PANICS: counter "tollgate_panics_total" = "Runs of the action that panicked.";
    LOG_LINES: counter "tollgate_log_lines_total" ["outcome"] = "Log lines that passed, and that were left out.";
}
