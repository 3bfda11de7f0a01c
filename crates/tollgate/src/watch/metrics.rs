//! Counters through the `metrics` facade.

use super::{Event, Observer};
use crate::Outcome;
use metrics::{Counter, counter};

/// Counts decisions as `tollgate_decisions_total` and their cost as `tollgate_permits_total`, with
/// the labels `limiter` and `outcome`.
///
/// The outcomes are `allowed`, `denied_later` and `denied_never`; denials that were only watched are
/// `shadow_denied_later` and `shadow_denied_never`. The labels are fixed when the observer is made,
/// so their number is bounded: five series of each per limiter.
#[derive(Debug)]
pub struct MetricsObserver {
    allowed: Pair,
    later: Pair,
    never: Pair,
    shadow_later: Pair,
    shadow_never: Pair,
}

#[derive(Debug)]
struct Pair {
    decisions: Counter,
    permits: Counter,
}

impl Pair {
    fn new(limiter: &str, outcome: &'static str) -> Self {
        let limiter = limiter.to_owned();
        Self {
            decisions: counter!(
                "tollgate_decisions_total", "limiter" => limiter.clone(), "outcome" => outcome
            ),
            permits: counter!(
                "tollgate_permits_total", "limiter" => limiter, "outcome" => outcome
            ),
        }
    }
}

impl MetricsObserver {
    /// Registers the counters of one limiter with the current recorder.
    #[must_use]
    pub fn new(limiter: &str) -> Self {
        Self {
            allowed: Pair::new(limiter, "allowed"),
            later: Pair::new(limiter, "denied_later"),
            never: Pair::new(limiter, "denied_never"),
            shadow_later: Pair::new(limiter, "shadow_denied_later"),
            shadow_never: Pair::new(limiter, "shadow_denied_never"),
        }
    }
}

impl Observer for MetricsObserver {
    fn decided(&self, event: &Event<'_>) {
        let pair = match (event.decision.outcome(), event.is_enforced) {
            (Outcome::Allowed, _) => &self.allowed,
            (Outcome::Later, true) => &self.later,
            (Outcome::Never, true) => &self.never,
            (Outcome::Later, false) => &self.shadow_later,
            (Outcome::Never, false) => &self.shadow_never,
        };
        pair.decisions.increment(1);
        pair.permits.increment(event.decision.cost());
    }
}
