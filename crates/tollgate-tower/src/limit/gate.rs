//! What a layer shares with all its services: the limits, the store and the answers.

use super::{
    OnStoreError,
    policy::{Mode, Policy},
};
use crate::{
    Info,
    answer::{Body, Headers, Label, Refusal, Told, Verdict, raw},
    key::{Found, KeyBytes},
};
use bytes::Bytes;
use http::{HeaderValue, Response, response};
use std::{
    hash::Hasher,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Clock, Decision, Tick,
    store::{self, Demand, DynStore, MemoryStore, ReservationId, Reserved, Store, StoreError},
};

/// Where the state is.
pub(super) enum Backend {
    /// Answers at once.
    Memory(MemoryStore),
    Shared(Arc<dyn DynStore>),
}

impl Backend {
    fn clock(&self) -> &Clock {
        match self {
            Self::Memory(store) => Store::clock(store),
            Self::Shared(store) => store.dyn_clock(),
        }
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.acquire_now(demands),
            Self::Shared(store) => store.dyn_acquire(demands).await,
        }
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        match self {
            Self::Memory(store) => store.reserve(demands, life).await,
            Self::Shared(store) => store.dyn_reserve(demands, life).await,
        }
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => store.settle(id, actual).await,
            Self::Shared(store) => store.dyn_settle(id, actual).await,
        }
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => store.refund(demand).await,
            Self::Shared(store) => store.dyn_refund(demand).await,
        }
    }

    const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}

/// One policy, ready to be asked.
pub(super) struct Limit {
    pub(super) policy: Policy,
    /// Its own quota, then those of its tiers.
    pub(super) ways: Vec<(store::Policy, Label)>,
}

pub(super) struct Gate {
    pub(super) backend: Backend,
    pub(super) limits: Vec<Limit>,
    pub(super) headers: Headers,
    pub(super) body: Body,
    pub(super) hook: Option<Hook>,
    pub(super) life: Duration,
    pub(super) on_store_error: OnStoreError,
    /// How long a refused request may wait; zero if it does not.
    pub(super) max_wait: Duration,
    /// Something may be given back or corrected when the response is there.
    pub(super) reserves: bool,
}

/// Changes the response to a refused request.
pub(super) type Hook = Arc<dyn Fn(&Verdict<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

/// What one policy is asked for a request, and what it said.
#[derive(Debug)]
pub(super) struct Part {
    limit: usize,
    way: usize,
    cost: u64,
    key: KeyBytes,
    is_enforced: bool,
    decision: Option<Decision>,
}

/// A request on its way through: what was asked, and what came of it.
#[derive(Debug)]
pub(super) struct Pass {
    parts: Vec<Part>,
    reservation: Option<ReservationId>,
    now: Tick,
    pub(super) is_allowed: bool,
}

/// Why there is nothing to ask.
pub(super) enum Nothing {
    /// No policy counts the request.
    Free,
    /// A policy must count it, and cannot tell for whom.
    NoKey(usize),
}

impl Gate {
    /// Finds out what is to be asked for a request.
    pub(super) fn prepare(&self, info: &Info<'_>) -> Result<Pass, Nothing> {
        let mut parts = Vec::new();
        for (limit, Limit { policy, ways }) in self.limits.iter().enumerate() {
            if policy.applies.as_ref().is_some_and(|applies| !applies(info)) {
                continue;
            }
            let cost = policy.cost_of(info);
            if cost == 0 {
                continue;
            }
            let mut key = KeyBytes::new();
            match policy.key.find(info, &mut key) {
                Found::Known | Found::Anonymous => {}
                Found::Skip => continue,
                _ if policy.mode == Mode::Shadow => continue,
                _ => return Err(Nothing::NoKey(limit)),
            }
            let tier = policy.tier.as_ref().and_then(|tier| tier(info));
            let way = tier.map_or(0, |tier| tier + 1);
            // A tier that does not exist counts as none.
            let way = if way < ways.len() { way } else { 0 };
            let is_enforced = match policy.mode {
                Mode::Enforce => true,
                Mode::Shadow => false,
                Mode::Percent(percent) => side(&key) < u64::from(percent),
            };
            parts.push(Part { limit, way, cost, key, is_enforced, decision: None });
        }
        if parts.is_empty() {
            return Err(Nothing::Free);
        }
        Ok(Pass { parts, reservation: None, now: Tick::ZERO, is_allowed: true })
    }

    fn way(&self, part: &Part) -> Option<&(store::Policy, Label)> {
        self.limits.get(part.limit).and_then(|limit| limit.ways.get(part.way))
    }

    /// Asks, if the answer is there at once.
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
        if pass.is_allowed || self.max_wait.is_zero() {
            return None;
        }
        let refusing = pass.parts.iter().filter_map(|part| part.decision);
        let refusing = refusing.filter(Decision::is_denied);
        // A limit that no wait helps refuses at once.
        let waits: Option<Vec<_>> = refusing.map(|it| it.retry_after(pass.now)).collect();
        waits?.into_iter().max().filter(|wait| *wait <= self.max_wait)
    }

    /// Asks until the request passes, or may not wait any longer.
    #[allow(clippy::disallowed_methods, reason = "waiting is what was asked for")]
    pub(super) async fn ask_and_wait(&self, pass: &mut Pass, mut was_asked: bool) {
        let until = self.backend.clock().now().saturating_add(self.max_wait);
        loop {
            if !was_asked {
                self.ask(pass).await;
            }
            was_asked = false;
            let Some(wait) = self.wait(pass) else { return };
            if pass.now.saturating_add(wait) > until {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks, wherever the store is.
    pub(super) async fn ask(&self, pass: &mut Pass) {
        let answer = self.decide(pass).await;
        // What memory decided, it decided now; another store's answer was on its way for a while.
        let decided = pass.parts.iter().find_map(|part| part.decision);
        let decided = decided.filter(|_| self.backend.is_memory()).map(|decision| decision.at());
        pass.now = decided.unwrap_or_else(|| self.backend.clock().now());
        pass.is_allowed = match answer {
            Ok(is_allowed) => is_allowed,
            Err(error) => {
                tracing::warn!(%error, "the store of a rate limit could not answer");
                self.on_store_error == OnStoreError::Allow
            }
        };
    }

    async fn decide(&self, pass: &mut Pass) -> Result<bool, StoreError> {
        let store = &self.backend;
        let (mut demands, mut places) = (Vec::new(), Vec::new());
        let mut told = Vec::with_capacity(pass.parts.len());
        for (place, part) in pass.parts.iter().enumerate().filter(|(_, part)| part.is_enforced) {
            if let Some((policy, _)) = self.way(part) {
                demands.push(Demand::new(policy, part.key.as_bytes(), part.cost));
                places.push(place);
            }
        }
        let mut is_allowed = true;
        if !demands.is_empty() {
            let decision = if self.reserves {
                let reserved = store.reserve(&mut demands, self.life).await?;
                pass.reservation = reserved.id;
                reserved.decision
            } else {
                store.acquire(&mut demands).await?
            };
            is_allowed = decision.is_allowed();
            told.extend(places.iter().zip(&demands).map(|(place, it)| (*place, it.decision())));
        }
        // What is only watched is counted as if it stood alone.
        for (place, part) in pass.parts.iter().enumerate().filter(|(_, part)| !part.is_enforced) {
            if let Some((policy, _)) = self.way(part).filter(|_| is_allowed) {
                let mut demand = [Demand::new(policy, part.key.as_bytes(), part.cost)];
                // What is only watched decides nothing, not even by a failure.
                let decision = store.acquire(&mut demand).await;
                told.push((place, decision.ok()));
            }
        }
        drop(demands);
        for (place, decision) in told {
            if let Some(part) = pass.parts.get_mut(place) {
                part.decision = decision;
            }
        }
        Ok(is_allowed)
    }

    /// Runs `with` on what was decided.
    fn told<R>(&self, pass: &Pass, with: impl FnOnce(&Verdict<'_>) -> R) -> R {
        let told: Vec<_> = pass
            .parts
            .iter()
            .filter_map(|part| {
                let told = Told::new(&self.way(part)?.1, part.decision?);
                Some(if part.is_enforced { told } else { told.shadow() })
            })
            .collect();
        with(&Verdict::new(self.backend.clock(), pass.now, &told))
    }

    /// Returns the response to a refused request.
    pub(super) fn refusal(&self, pass: &Pass, is_grpc: bool) -> Response<Bytes> {
        self.told(pass, |verdict| {
            // If no limit refuses, the store could not be asked.
            let is_down = verdict.is_allowed();
            let down = verdict.refused(Refusal::ReducedCapacity);
            let verdict = if is_down { &down } else { verdict };
            let response = if is_grpc {
                self.headers.grpc_response(verdict).map(|()| Bytes::new())
            } else {
                self.headers.response(verdict, self.body)
            };
            match &self.hook {
                Some(hook) => hook(verdict, response),
                None => response,
            }
        })
    }

    /// Returns the response to a request that must be counted, and nobody knows for whom.
    pub(super) fn no_key(&self, limit: usize, is_grpc: bool) -> Response<Bytes> {
        let name = self.limits.get(limit).map_or("", |limit| &limit.policy.name);
        let mut response = Response::new(Bytes::new());
        if is_grpc {
            let headers = response.headers_mut();
            headers.insert("content-type", HeaderValue::from_static("application/grpc"));
            // PERMISSION_DENIED
            headers.insert("grpc-status", HeaderValue::from_static("7"));
            headers.insert("grpc-message", HeaderValue::from_static("the caller is not known"));
            return response;
        }
        let mut body = Vec::new();
        let detail = "the request does not say who sends it, or says it twice";
        raw::push_problem(&mut body, Refusal::Forbidden, Some(detail), std::iter::once(name));
        *response.body_mut() = body.into();
        *response.status_mut() = Refusal::Forbidden.status();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert("content-type", kind);
        response.headers_mut().insert("cache-control", HeaderValue::from_static("no-store"));
        response
    }

    /// Adds the headers of a request that has passed.
    pub(super) fn decorate(&self, pass: &Pass, headers: &mut http::HeaderMap) {
        self.told(pass, |verdict| self.headers.write(verdict, headers));
    }

    /// Returns what a request has cost by each policy, as far as the head of its response tells, and
    /// whether its body tells more. `None` if nothing is to be corrected.
    pub(super) fn actual(&self, pass: &Pass, head: &response::Parts) -> Option<Actual> {
        pass.reservation?;
        let mut actual = Actual { costs: Vec::new(), by_body: Vec::new() };
        for part in pass.parts.iter().filter(|part| part.is_enforced) {
            let policy = &self.limits.get(part.limit)?.policy;
            let is_charged = policy.charge.is_charged(head);
            let settle = policy.settle.as_ref().filter(|_| is_charged);
            let by_body = settle.is_some_and(super::Settle::is_by_body);
            let told = settle.and_then(|settle| settle.head(head));
            actual.costs.push(match is_charged {
                true => told.unwrap_or(part.cost),
                false => 0,
            });
            actual.by_body.push(by_body);
        }
        Some(actual)
    }

    /// Corrects the costs of a request.
    pub(super) fn settle(self: &Arc<Self>, pass: &Pass, costs: Vec<u64>) {
        let Some(id) = pass.reservation else { return };
        let gate = Arc::clone(self);
        self.beside(async move { gate.backend.settle(id, &costs).await.map(drop) });
    }

    /// Gives back everything: the request never ran.
    pub(super) fn give_back(self: &Arc<Self>, pass: Pass) {
        if !pass.is_allowed {
            return;
        }
        if pass.reservation.is_some() {
            let enforced = pass.parts.iter().filter(|part| part.is_enforced).count();
            return self.settle(&pass, vec![0; enforced]);
        }
        let gate = Arc::clone(self);
        self.beside(async move { gate.refund(&pass).await });
    }

    async fn refund(&self, pass: &Pass) -> Result<(), StoreError> {
        for part in pass.parts.iter().filter(|part| part.decision.is_some_and(|it| it.is_allowed()))
        {
            if let Some((policy, _)) = self.way(part) {
                let demand = Demand::new(policy, part.key.as_bytes(), part.cost);
                self.backend.refund(&demand).await?;
            }
        }
        Ok(())
    }

    /// Lets a correction run beside the response: at once if it can, in a task if it takes a while.
    /// Without a runtime for that, permits stay spent.
    fn beside(&self, work: impl Future<Output = Result<(), StoreError>> + Send + 'static) {
        let work = async move {
            if let Err(error) = work.await {
                tracing::warn!(%error, "a rate limit could not be corrected");
            }
        };
        if self.backend.is_memory() {
            at_once(work);
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(work));
        }
    }
}

/// What a request has cost by each policy that is enforced.
#[derive(Debug)]
pub(super) struct Actual {
    pub(super) costs: Vec<u64>,
    /// It is the length of the body.
    pub(super) by_body: Vec<bool>,
}

/// Returns on which side of a percentage a key stands: 0 to 99.
fn side(key: &KeyBytes) -> u64 {
    let mut hasher = siphasher::sip::SipHasher13::new_with_keys(0x7065_7263, 0x656e_7461);
    hasher.write(key.as_bytes());
    hasher.finish() % 100
}

/// Polls a future that is ready at once.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match Pin::as_mut(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
