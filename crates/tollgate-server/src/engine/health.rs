//! How the stores are, and the sampled log of denials.

use super::{KeyText, Part};
use crate::plan::{Plan, Rule};
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tollgate::{Tick, store::StoreError};

/// Failures of the stores.
#[derive(Debug, Default)]
pub struct StoreHealth {
    errors: AtomicU64,
    degraded: AtomicU64,
    last: Mutex<Option<String>>,
    full: AtomicU64,
    last_full: Mutex<Option<(Tick, String)>>,
}

impl StoreHealth {
    /// Notes a failure, or a bound that is reached.
    pub(super) fn failed(&self, store: usize, error: &StoreError, now: Tick) {
        if error.is_full() {
            return self.full(store, error, now);
        }
        // ORDERING: Relaxed, here and below. The count is a statistic.
        let before = self.errors.fetch_add(1, Relaxed);
        // One line for each: the program throttles its log, and says how many lines it left out.
        tracing::warn!(store, count = before + 1, "the store failed: {error}");
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    /// Notes that a bound of a store is reached.
    fn full(&self, store: usize, error: &StoreError, now: Tick) {
        let before = self.full.fetch_add(1, Relaxed);
        tracing::warn!(store, count = before + 1, "a bound of the store is reached: {error}");
        let mut last = self.last_full.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((now, error.to_string()));
    }

    /// Returns how often a bound of a store was reached, so that a call was refused.
    pub fn bounds_reached(&self) -> u64 {
        self.full.load(Relaxed)
    }

    /// Returns when a bound was last reached, and which.
    pub fn last_bound(&self) -> Option<(Tick, String)> {
        self.last_full.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a decision that was made without its store.
    pub(super) fn degraded(&self) {
        self.degraded.fetch_add(1, Relaxed);
    }

    /// Returns how many decisions were made without their store.
    pub fn degraded_decisions(&self) -> u64 {
        self.degraded.load(Relaxed)
    }

    /// Returns how often a store could not answer.
    pub fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    /// Returns what the last failure was.
    pub fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The most characters of a key in the log.
const LOGGED_MAX: usize = 256;

/// Returns a key as the log shows it.
pub(super) fn logged_key(rule: &Rule, key: &[u8]) -> String {
    let mut key = KeyText::of(rule, key).to_string();
    if let Some((end, _)) = key.char_indices().nth(LOGGED_MAX) {
        key.truncate(end);
        key.push_str("...");
    }
    key
}

/// Logs one in every `denial_log` denials.
#[derive(Debug, Default)]
pub(super) struct DenialLog {
    seen: AtomicU64,
}

impl DenialLog {
    /// Logs the denial of a part, with the rate if it has one, and with what is left if its store was asked.
    pub(super) fn note(&self, plan: &Plan, rule: &Rule, key: &[u8], part: &Part) {
        let settings = &plan.config().server;
        let Some(every) = settings.denial_log.filter(|every| *every > 0) else { return };
        // ORDERING: Relaxed. Any of them will do.
        let seen = self.seen.fetch_add(1, Relaxed);
        if !seen.is_multiple_of(every) {
            return;
        }
        let key = (settings.log_keys == Some(true)).then(|| logged_key(rule, key));
        tracing::info!(
            target: "tollgate::denied",
            policy = rule.label(),
            key = key.as_deref(),
            cost = part.cost,
            rate = part.limit.map(|limit| tracing::field::display(limit.rate())),
            limit = part.limit.map(|limit| limit.capacity),
            remaining = part.decision.map(|decision| decision.remaining()),
            one_in = every,
            "denied"
        );
    }
}
