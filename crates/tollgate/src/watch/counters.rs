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

/// Counters that each thread adds to on cache lines of its own stripe.
///
/// ORDERING: Relaxed throughout. Statistics: each count stands for itself, and a sum taken meanwhile
/// may or may not include the latest ones.
#[derive(Debug)]
pub(crate) struct StripedCounters<const N: usize> {
    stripes: [Padded<[AtomicU64; N]>; STRIPES],
}

impl<const N: usize> Default for StripedCounters<N> {
    fn default() -> Self {
        let stripe = |_| Padded(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { stripes: std::array::from_fn(stripe) }
    }
}

impl<const N: usize> StripedCounters<N> {
    pub(crate) fn add(&self, counter: usize, amount: u64) {
        self.stripes[stripe()].0[counter].fetch_add(amount, Relaxed);
    }

    pub(crate) fn sum(&self) -> [u64; N] {
        std::array::from_fn(|counter| {
            let counts = self.stripes.iter().map(|stripe| stripe.0[counter].load(Relaxed));
            counts.fold(0, u64::saturating_add)
        })
    }
}

/// The fields of [`Counts`], in their order.
#[derive(Clone, Copy)]
enum Counter {
    Allowed,
    AllowedCost,
    DeniedLater,
    DeniedNever,
    DeniedCost,
    Bypassed,
    Forced,
    Refunded,
}

#[derive(Debug, Default)]
pub(super) struct Counters(StripedCounters<8>);

impl Counters {
    pub(super) fn add(&self, verb: Verb, decision: &Decision) {
        let count = |counter: Counter, amount| self.0.add(counter as usize, amount);
        match decision.outcome() {
            Outcome::Allowed => {
                count(Counter::Allowed, 1);
                count(Counter::AllowedCost, decision.cost());
            }
            Outcome::Later => count(Counter::DeniedLater, 1),
            Outcome::Never => count(Counter::DeniedNever, 1),
        }
        if decision.is_denied() {
            count(Counter::DeniedCost, decision.cost());
        }
        if decision.is_bypassed() {
            count(Counter::Bypassed, 1);
        }
        if verb == Verb::Force && decision.is_allowed() {
            count(Counter::Forced, 1);
        }
    }

    pub(super) fn refund(&self, permits: u64) {
        self.0.add(Counter::Refunded as usize, permits);
    }

    pub(super) fn sum(&self) -> Counts {
        let [allowed, allowed_cost, denied_later, denied_never, denied_cost, rest @ ..] =
            self.0.sum();
        let [bypassed, forced, refunded] = rest;
        Counts {
            allowed,
            allowed_cost,
            denied_later,
            denied_never,
            denied_cost,
            bypassed,
            forced,
            refunded,
        }
    }
}
