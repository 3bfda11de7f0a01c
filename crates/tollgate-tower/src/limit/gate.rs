//! State that a layer shares with all its services: the limits, the store, and the decisions by
//! them.

use super::{
    OnStoreError,
    backend::Backend,
    crowd::Crowd,
    pass::{Limit, Part, Pass, Way},
};
use crate::{
    Info, answer::Jitter, key::KeyText, misuse::Misuse, observe::Instruments,
    refusal::RefusalFormat,
};
use smallvec::SmallVec;
use std::{
    pin::{Pin, pin},
    sync::atomic::AtomicUsize,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Decision, Sometimes,
    observe::{Event, EventKey, Verb},
    store::{Demand, Store, StoreError},
};

pub(super) struct Gate {
    pub(super) backend: Backend,
    pub(super) limits: Vec<Limit>,
    pub(super) refusals: RefusalFormat,
    pub(super) jitter: Jitter,
    pub(super) life: Duration,
    pub(super) on_store_error: OnStoreError,
    /// How long a refused request may wait; zero if it may not.
    pub(super) max_wait: Duration,
    pub(super) crowd: Crowd,
    /// Store calls whose request is gone.
    pub(super) left_behind: AtomicUsize,
    /// How long a store may take to answer.
    pub(super) store_timeout: Duration,
    /// Responses may give permits back, or correct a cost.
    pub(super) reserves: bool,
    /// Adds headers for troubleshooting.
    pub(super) explains: bool,
    /// Most requests can take the fast path.
    pub(super) is_light: bool,
    /// Limits the log lines of store failures.
    pub(super) failures: Sometimes,
    pub(super) instruments: Instruments,
    /// Decisions are reported to an observer, a counter or a log, or a policy ranks its keys.
    pub(super) is_observed: bool,
    pub(super) misuse: Misuse,
}

/// What a policy decided about a request.
pub(super) struct Decided<'a> {
    pub(super) key: &'a [u8],
    pub(super) verb: Verb,
    pub(super) decision: &'a Decision,
    pub(super) is_enforced: bool,
}

/// Room for the policies of a usual request, without an allocation.
type Few<T> = SmallVec<[T; 4]>;

const NO_ANSWER: &str = "the store of a rate limit failed";

/// The reason why no store is called for a request.
pub(super) enum Nothing {
    /// No policy counts the request.
    Free,
    /// A policy counts the request, but the request has no key.
    NoKey(usize),
}

impl Gate {
    /// Finds the policies, keys and costs of a request.
    pub(super) fn prepare(&self, info: &Info<'_>) -> Result<Pass, Nothing> {
        let mut parts = Vec::with_capacity(self.limits.len());
        for (number, limit) in self.limits.iter().enumerate() {
            parts.push(Part::new(number));
            let Some(part) = parts.last_mut() else { continue };
            if !limit.prepare(info, part)? {
                parts.pop();
            }
        }
        if parts.is_empty() {
            return Err(Nothing::Free);
        }
        let verb = if self.reserves { Verb::Reserve } else { Verb::TryAcquire };
        Ok(Pass::new(parts, verb))
    }

    pub(super) fn way(&self, part: &Part) -> Option<&Way> {
        self.limits.get(part.limit).and_then(|limit| limit.ways.get(part.way))
    }

    /// Looks at an arriving request for signs of misuse.
    #[inline]
    pub(super) fn look(&self, info: &Info<'_>) {
        self.misuse.look(self.limits.iter().map(|limit| &limit.policy.key), info);
    }

    /// Reports what the policies decided about a request.
    pub(super) fn tell(&self, pass: &Pass) {
        for part in &pass.parts {
            let Some(limit) = self.limits.get(part.limit) else { continue };
            let number = limit.first + part.way;
            match &part.decision {
                // A policy that would have admitted a refused request was not charged for it.
                Some(decision) if pass.is_allowed || decision.is_denied() => {
                    let (key, verb) = (part.key.as_bytes(), pass.verb);
                    let is_enforced = part.is_enforced();
                    self.report(limit, part.way, &Decided { key, verb, decision, is_enforced });
                }
                None if part.is_unknown && pass.is_full => self.instruments.bound_reached(number),
                None if part.is_unknown => self.instruments.store_failed(number),
                _ => {}
            }
        }
    }

    /// Reports the decision of a policy, and ranks its key.
    pub(super) fn report(&self, limit: &Limit, way: usize, decided: &Decided<'_>) {
        if !self.is_observed {
            return;
        }
        let Decided { key, verb, decision, is_enforced } = *decided;
        limit.heavy_keys.iter().for_each(|heavy| heavy.record(key, decision));
        if self.instruments.is_idle() {
            return;
        }
        let text = KeyText::of(key);
        self.instruments.decided(limit.first + way, |name| {
            let mut event = Event::new(name, verb, decision);
            if let Some(way) = limit.ways.get(way) {
                event = event.with_quota(way.policy.quota());
            }
            if !limit.policy.key.is_global() {
                event = event.with_key(EventKey::Plain(&text));
            }
            if is_enforced { event } else { event.not_enforced() }
        });
    }

    pub(super) fn demand<'a>(&'a self, part: &'a Part) -> Option<Demand<'a>> {
        Some(Demand::new(&self.way(part)?.policy, part.key.as_bytes(), part.cost))
    }

    /// Decides, if the decision is available at once.
    pub(super) fn ask_now(&self, pass: &mut Pass) -> bool {
        if !self.backend.is_memory() {
            return false;
        }
        // INVARIANT: the calls of a memory store are ready at once.
        let answer = at_once(self.ask(pass));
        debug_assert!(answer.is_some(), "memory answers at once");
        answer.is_some()
    }

    /// Returns how long a refused request would wait, if it may.
    pub(super) fn wait(&self, pass: &Pass) -> Option<Duration> {
        let is_unknown = pass.enforced().any(|part| part.is_unknown);
        if pass.is_allowed || is_unknown || self.max_wait.is_zero() {
            return None;
        }
        let mut longest = None;
        for decision in pass.enforced().filter_map(|part| part.decision) {
            if decision.is_denied() {
                // If no wait helps for one limit, the request is refused at once.
                longest = longest.max(Some(decision.retry_after(pass.now)?));
            }
        }
        longest.filter(|wait| *wait <= self.max_wait)
    }

    /// Decides, wherever the store is.
    pub(super) async fn ask(&self, pass: &mut Pass) {
        pass.forget();
        let answer = self.decide(pass).await;
        self.conclude(pass, answer);
    }

    pub(super) fn conclude(&self, pass: &mut Pass, answer: Result<bool, StoreError>) {
        // Memory decides at the current time; the reply of a shared store was in transit for a
        // while.
        let decided = pass.parts.iter().find_map(|part| part.decision);
        let decided = decided.filter(|_| self.backend.is_memory()).map(|decision| decision.at());
        pass.now = decided.unwrap_or_else(|| self.backend.clock().now());
        match answer {
            Ok(is_allowed) => pass.is_allowed = is_allowed,
            Err(error) => self.without_answer(pass, &error),
        }
    }

    /// Decides without an answer of the store.
    pub(super) fn without_answer(&self, pass: &mut Pass, error: &StoreError) {
        // A client that exhausts a bound of the store gets no free tries for it; and a request that
        // the store rejects as invalid would never be limited.
        pass.is_allowed = self.on_store_error == OnStoreError::Allow && error.is_unreachable();
        pass.is_full = error.is_full();
        for part in pass.parts.iter_mut().filter(|part| part.is_enforced()) {
            part.is_unknown = true;
        }
        self.failed(error, NO_ANSWER);
    }

    /// Logs a failure of the store, unless one was logged just now.
    pub(super) fn failed(&self, error: &StoreError, what: &str) {
        self.failures.run(|left_out| {
            tracing::warn!(target: "tollgate", %error, left_out, "{what}");
        });
    }

    async fn decide(&self, pass: &mut Pass) -> Result<bool, StoreError> {
        let is_allowed = self.decide_enforced(pass).await?;
        if is_allowed {
            self.evaluate_shadow(pass).await;
        }
        Ok(is_allowed)
    }

    /// Decides by all enforced policies at once.
    async fn decide_enforced(&self, pass: &mut Pass) -> Result<bool, StoreError> {
        let mut demands: Few<Demand<'_>> =
            pass.enforced().filter_map(|part| self.demand(part)).collect();
        if demands.is_empty() {
            return Ok(true);
        }
        let (decision, reservation) = if self.reserves {
            let reserved = self.backend.reserve(&mut demands, self.life).await?;
            (reserved.decision, reserved.id)
        } else {
            (self.backend.acquire(&mut demands).await?, None)
        };
        let told: Few<Option<Decision>> = demands.iter().map(Demand::decision).collect();
        drop(demands);
        pass.reservation = reservation;
        let enforced = pass.parts.iter_mut().filter(|part| part.is_enforced());
        for (part, decision) in enforced.zip(told) {
            part.decision = decision;
        }
        Ok(decision.is_allowed())
    }

    /// Evaluates each policy that is not enforced on its own. It does not affect the request, not
    /// even by a failure.
    async fn evaluate_shadow(&self, pass: &mut Pass) {
        for part in pass.parts.iter_mut().filter(|part| !part.is_enforced()) {
            let reserves = self.limits.get(part.limit).is_some_and(|it| it.policy.reserves());
            let Some(demand) = self.demand(part) else { continue };
            let mut demand = [demand];
            let mut reservation = None;
            let answer = if reserves {
                let reserved = self.backend.reserve(&mut demand, self.life).await;
                reserved.map(|reserved| {
                    reservation = reserved.id;
                    reserved.decision
                })
            } else {
                self.backend.acquire(&mut demand).await
            };
            part.reservation = reservation;
            part.is_unknown = answer.is_err();
            part.decision = answer.map_err(|error| self.failed(&error, NO_ANSWER)).ok();
        }
    }
}

/// Polls a future that is ready at once.
pub(super) fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match Pin::as_mut(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
