//! The wait queues for permits: waiting requests try again one after the other, not all at once.

use super::{figures::time_of, gate::Gate, pass::Pass};
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tollgate::Algorithm;

/// All waiting requests of a layer.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    state: Mutex<State>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// How many permits requests wait for, by the hash of policy and key. If two hashes are equal,
    /// some requests wait a little longer.
    lines: HashMap<u64, u64>,
}

/// A place in a queue, until it is dropped.
pub(super) struct Place {
    gate: Arc<Gate>,
    line: u64,
    permits: u64,
}

impl Crowd {
    pub(super) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), hasher: RandomState::new() }
    }

    /// Joins a queue, and returns how many permits the requests ahead wait for; `None` if too many
    /// wait.
    fn join(&self, line: u64, permits: u64) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.waiting >= self.most {
            return None;
        }
        state.waiting += 1;
        let waited = state.lines.entry(line).or_default();
        let ahead = *waited;
        *waited = waited.saturating_add(permits);
        Some(ahead)
    }

    fn leave(&self, line: u64, permits: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        if let Some(waited) = state.lines.get_mut(&line) {
            *waited = waited.saturating_sub(permits);
            if *waited == 0 {
                state.lines.remove(&line);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.crowd.leave(self.line, self.permits);
    }
}

impl Gate {
    /// Lets a refused request wait, if it may: returns its place, and how long it waits before it
    /// tries again. `None` if it is to be refused at once.
    pub(super) fn join(self: &Arc<Self>, pass: &Pass) -> Option<(Place, Duration)> {
        let wait = self.wait(pass)?;
        // It joins the queue of the policy with the longest wait.
        let part = pass
            .enforced()
            .filter(|part| part.is_denied())
            .max_by_key(|part| part.decision.and_then(|decision| decision.retry_after(pass.now)))?;
        let line = self.crowd.hasher.hash_one((part.limit, part.way, part.key.as_bytes()));
        let ahead = self.crowd.join(line, part.cost)?;
        // From here on, dropping the place leaves the queue.
        let place = Place { gate: Arc::clone(self), line, permits: part.cost };
        let (quota, limit) = (self.way(part)?.policy.quota(), part.decision?.limit().max(1));
        let behind = match self.limits.get(part.limit)?.policy.algorithm {
            Algorithm::Gcra => Duration::from_nanos(time_of(quota, ahead)),
            // This many permits come back at once, with each window.
            _ => quota.period().saturating_mul(u32::try_from(ahead / limit).unwrap_or(u32::MAX)),
        };
        let wait = wait.saturating_add(behind);
        (wait <= self.max_wait).then_some((place, wait))
    }
}
