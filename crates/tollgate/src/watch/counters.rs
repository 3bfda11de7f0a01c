//! Counts of decisions, spread over cache lines.

use super::Verb;
use crate::{Decision, Outcome, striped::home_of_thread, sync::Padded};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many decisions went which way since the limiter was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Counts {
    /// Decisions that let an event pass.
    pub allowed: u64,
    /// Permits that passed with them.
    pub allowed_cost: u64,
    /// Denials for which a wait helps.
    pub denied_later: u64,
    /// Denials for which no wait helps.
    pub denied_never: u64,
    /// Permits asked for by denied events.
    pub denied_cost: u64,
    /// Events that passed because the limiter was bypassed; also counted as allowed.
    pub bypassed: u64,
    /// Events that were booked without asking; also counted as allowed.
    pub forced: u64,
    /// Whole permits given back.
    pub refunded: u64,
}

impl Counts {
    /// Returns how many decisions were denials.
    #[must_use]
    pub const fn denied(&self) -> u64 {
        self.denied_later + self.denied_never
    }

    /// Returns how many decisions there were.
    #[must_use]
    pub const fn decided(&self) -> u64 {
        self.allowed + self.denied()
    }
}

/// Threads spread over this many stripes; enough that two busy ones rarely meet.
pub(crate) const STRIPES: usize = 16;

/// Returns the stripe of this thread.
pub(crate) fn stripe() -> usize {
    home_of_thread(STRIPES)
}

/// The fields of [`Counts`], striped.
#[derive(Debug, Default)]
pub(super) struct Counters {
    stripes: [Padded<Stripe>; STRIPES],
}

#[derive(Debug, Default)]
struct Stripe {
    allowed: AtomicU64,
    allowed_cost: AtomicU64,
    denied_later: AtomicU64,
    denied_never: AtomicU64,
    denied_cost: AtomicU64,
    bypassed: AtomicU64,
    forced: AtomicU64,
    refunded: AtomicU64,
}

/// ORDERING: Relaxed. Statistics: each count stands for itself, and a sum taken meanwhile may or
/// may not include the latest ones.
fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

impl Counters {
    pub(super) fn add(&self, verb: Verb, decision: &Decision) {
        let stripe = &self.stripes[stripe()].0;
        match decision.outcome() {
            Outcome::Allowed => {
                add(&stripe.allowed, 1);
                add(&stripe.allowed_cost, decision.cost());
            }
            Outcome::Later => add(&stripe.denied_later, 1),
            Outcome::Never => add(&stripe.denied_never, 1),
        }
        if decision.is_denied() {
            add(&stripe.denied_cost, decision.cost());
        }
        if decision.is_bypassed() {
            add(&stripe.bypassed, 1);
        }
        if verb == Verb::Force && decision.is_allowed() {
            add(&stripe.forced, 1);
        }
    }

    pub(super) fn refund(&self, permits: u64) {
        add(&self.stripes[stripe()].0.refunded, permits);
    }

    pub(super) fn sum(&self) -> Counts {
        // ORDERING: Relaxed, as in `add`.
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        self.stripes.iter().fold(Counts::default(), |sum, Padded(stripe)| Counts {
            allowed: sum.allowed + get(&stripe.allowed),
            allowed_cost: sum.allowed_cost.saturating_add(get(&stripe.allowed_cost)),
            denied_later: sum.denied_later + get(&stripe.denied_later),
            denied_never: sum.denied_never + get(&stripe.denied_never),
            denied_cost: sum.denied_cost.saturating_add(get(&stripe.denied_cost)),
            bypassed: sum.bypassed + get(&stripe.bypassed),
            forced: sum.forced + get(&stripe.forced),
            refunded: sum.refunded.saturating_add(get(&stripe.refunded)),
        })
    }
}
