//! From the parts of a request to its answer.
//!
//! Limits in force are charged all or none. Limits in shadow mode are charged one by one, and only
//! if the request passes, as they would be if they were in force. Limits in quota mode are charged
//! with those in force as long as one of them admits.

use super::{
    Answer, Code, Engine, Part, Request, RequestError, Status, Verb,
    special::{By, Mode},
};
use crate::{config::Failure, plan::Plan};
use tollgate::{
    Decision, Quota, Tick,
    store::{Demand, Policy, Store, StoreError},
};

/// Demands that fit on the stack.
const USUAL: usize = 8;

/// What to do with some parts of an answer.
#[derive(Clone, Copy)]
pub(super) enum Op {
    Take,
    Look,
}

impl Engine {
    /// Decides a request by a plan, as of `now`. The answer's memory is reused.
    ///
    /// # Errors
    ///
    /// When the request is invalid. A denial is no error, and neither is a store that does not
    /// respond: each rule says what happens then.
    pub async fn decide(
        &self,
        plan: &Plan,
        now: Tick,
        request: &Request<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        self.collect(plan, now, request, answer)?;
        if answer.parts.iter().any(|part| part.gives) {
            self.give_back(plan, now, answer).await;
        }
        match request.verb {
            Verb::Peek => self.look(plan, now, answer).await,
            Verb::Enter => self.enter(plan, now, request, answer).await?,
            Verb::Renew(id) | Verb::Leave(id) => {
                return self.hold(plan, now, (request.verb, id), answer).await;
            }
            Verb::Check | Verb::Reserve(_) if is_refused(answer) && !pass_by_quota(answer) => {
                self.look(plan, now, answer).await;
            }
            Verb::Check => self.take(plan, now, answer).await,
            Verb::Reserve(life) => {
                self.reserve(plan, now, (life, request.asks.len()), answer).await?;
            }
        }
        if !matches!(request.verb, Verb::Peek) {
            note_charges(answer);
            self.charge_refused(plan, now, answer).await;
            self.record(plan, now, answer);
        }
        summarize(request.asks.len(), answer);
        Ok(())
    }

    /// Takes from all limits in force, or from none.
    async fn take(&self, plan: &Plan, now: Tick, answer: &mut Answer) {
        let most = self.stores.len();
        loop {
            let mut refused = false;
            for store in 0..most {
                let asked = self.ask(plan, (now, Op::Take, store), answer, is_in_force).await;
                if let Some(Err(error)) = asked {
                    self.failed(store, &error, answer);
                }
                if is_refused(answer) {
                    // Gives back the charges of the other stores.
                    self.undo(plan, (now, store), answer).await;
                    refused = true;
                    break;
                }
            }
            if !refused || !pass_by_quota(answer) {
                answer.allowed = !refused;
                break;
            }
        }
        let op = if answer.allowed { Op::Take } else { Op::Look };
        self.shadows(plan, (now, op), answer).await;
    }

    /// Decides the limits in shadow mode, one by one.
    pub(super) async fn shadows(&self, plan: &Plan, (now, op): (Tick, Op), answer: &mut Answer) {
        for index in 0..answer.parts.len() {
            let part = answer.parts[index];
            if part.mode != Mode::Shadow || part.is_decided || part.decision.is_some() {
                continue;
            }
            if !answer.allowed {
                self.look_alone(plan, now, (index, 0), answer).await;
                if answer.parts[index].remaining() >= part.cost {
                    continue;
                }
            }
            let (mut at, store) = (0.., part.store);
            let only = |_: &Part| at.next() == Some(index);
            if let Some(Err(error)) = self.ask(plan, (now, op, store), answer, only).await {
                self.failed(store, &error, answer);
            }
        }
    }

    /// Peeks at one limit with another cost than the part's own; a cost of 0 shows the remaining
    /// permits as they are.
    async fn look_alone(
        &self,
        plan: &Plan,
        now: Tick,
        (index, cost): (usize, u64),
        answer: &mut Answer,
    ) {
        let part = answer.parts[index];
        let at = (&*answer.policies, &*answer.keys);
        let Some(mut look) = demand(plan, at, &Part { cost, ..part }) else { return };
        let looked = self.stores[part.store].peek_at(now, std::slice::from_mut(&mut look)).await;
        match looked {
            Ok(left) => answer.parts[index].decision = Some(left),
            Err(error) => self.health.failed(part.store, &error, self.now()),
        }
    }

    /// Peeks at all limits, and changes nothing.
    async fn look(&self, plan: &Plan, now: Tick, answer: &mut Answer) {
        self.look_together(plan, now, answer).await;
        answer.allowed = !are_quotas_spent(&answer.parts) && !answer.parts.iter().any(is_final);
        if answer.allowed && is_refused(answer) {
            // Only the limits with permits left are charged: asks them again, for the permits that
            // would remain.
            pass_by_quota(answer);
            self.look_together(plan, now, answer).await;
        } else if !answer.allowed && answer.parts.iter().any(is_refused_unasked) {
            // The store does not know of that denial, and reports the permits that would remain
            // after a charge.
            for index in 0..answer.parts.len() {
                let Part { code, is_decided, decision, .. } = answer.parts[index];
                if code == Code::Allowed && !is_decided && decision.is_some() {
                    self.look_alone(plan, now, (index, 0), answer).await;
                }
            }
        }
        self.shadows(plan, (now, Op::Look), answer).await;
    }

    /// Peeks at all limits in force.
    async fn look_together(&self, plan: &Plan, now: Tick, answer: &mut Answer) {
        for store in 0..self.stores.len() {
            let asked = self.ask(plan, (now, Op::Look, store), answer, is_in_force).await;
            if let Some(Err(error)) = asked {
                self.failed(store, &error, answer);
            }
        }
    }

    /// Asks a store about those of its parts that `picks` selects, and records its decisions.
    /// Returns `None` if there are none.
    pub(super) async fn ask(
        &self,
        plan: &Plan,
        (now, op, store): (Tick, Op, usize),
        answer: &mut Answer,
        mut picks: impl FnMut(&Part) -> bool,
    ) -> Option<Result<Decision, StoreError>> {
        let Answer { parts, keys, policies, .. } = answer;
        let nothing = Demand::new(&self.ad_hoc, b"", 0);
        let (mut short, mut long, mut count) = ([nothing; USUAL], Vec::new(), 0);
        let mut picked = 0_u64;
        for (index, part) in parts.iter().enumerate() {
            let its = part.store;
            if !picks(part) || its != store || part.is_decided {
                continue;
            }
            let Some(demand) = demand(plan, (policies, keys), part) else { continue };
            match short.get_mut(count) {
                Some(slot) => *slot = demand,
                None if long.is_empty() => {
                    long.extend_from_slice(&short);
                    long.push(demand);
                }
                None => long.push(demand),
            }
            (picked, count) = (picked | 1 << index, count + 1);
        }
        let demands = if long.is_empty() { &mut short[..count] } else { &mut long[..] };
        if demands.is_empty() {
            return None;
        }
        let backend = &self.stores[store];
        let asked = match op {
            Op::Take => backend.acquire_at(now, demands).await,
            Op::Look => backend.peek_at(now, demands).await,
        };
        if asked.is_ok() {
            let told = demands.iter().map(Demand::decision);
            let picked = (0..parts.len()).filter(|index| picked >> index & 1 == 1);
            for (index, decision) in picked.zip(told) {
                note(&mut parts[index], decision);
            }
        }
        Some(asked)
    }

    /// Gives back the charges of all stores before `refusing`, and reads the permits that remain
    /// then.
    async fn undo(&self, plan: &Plan, (now, refusing): (Tick, usize), answer: &mut Answer) {
        let Answer { parts, keys, policies, .. } = answer;
        for part in parts.iter().filter(|part| is_in_force(part) && part.store < refusing) {
            let charged = demand(plan, (policies, keys), part).zip(part.decision);
            if let Some((demand, decision)) = charged {
                // A store that fails now keeps the charge: the docs say so.
                let _ = self.stores[part.store].undo(&demand, &decision).await;
            }
        }
        for index in 0..answer.parts.len() {
            let part = &answer.parts[index];
            if is_in_force(part) && part.store < refusing {
                self.look_alone(plan, now, (index, 0), answer).await;
            }
        }
    }

    /// Decides each part of a store that has returned an error. If the store could not be reached,
    /// the part's rule decides. If a bound of the store is reached, the part is denied whatever the
    /// rule says: it would be no bound otherwise. A call that the store cannot make sense of is
    /// denied, too.
    pub(super) fn failed(&self, store: usize, error: &StoreError, answer: &mut Answer) {
        self.health.failed(store, error, self.now());
        if error.is_full() {
            answer.bound = Some(error.to_string());
        }
        for part in &mut answer.parts {
            if part.is_decided || part.store != store {
                continue;
            }
            part.code = match part.failure {
                _ if error.is_full() => part.mode.refused(Code::Full),
                // A store that supports local decisions has made them already.
                Failure::Open | Failure::Local if error.is_unreachable() => Code::FailedOpen,
                _ => part.mode.refused(Code::FailedClosed),
            };
            part.is_decided = true;
        }
    }

    /// Charges refused hits in full, for rules that count as the reference does. A cost above the
    /// largest debt is not charged; health reports it. The remaining permits are those after all
    /// charges of the request.
    async fn charge_refused(&self, plan: &Plan, now: Tick, answer: &mut Answer) {
        let mut forced = 0_u64;
        for index in 0..answer.parts.len() {
            let part = answer.parts[index];
            let passes = matches!(part.code, Code::Allowed) && answer.allowed;
            if passes || !part.counts_refused || part.is_decided || part.gives || part.cost == 0 {
                continue;
            }
            let Some(demand) = demand(plan, (&answer.policies, &answer.keys), &part) else {
                continue;
            };
            match self.stores[part.store].force(&demand).await {
                Ok(booked) => {
                    if booked.is_never() {
                        let (cost, policy) = (part.cost, demand.policy().name());
                        let text = format!(
                            "a cost of {cost} reported to \"{policy}\" exceeds the largest debt of its \
                             key, so nothing was booked; report less at a time, or raise the limit"
                        );
                        self.health.failed(part.store, &StoreError::full(text), now);
                    }
                    forced |= 1 << index;
                    let part = &mut answer.parts[index];
                    part.charged = if booked.is_allowed() { part.cost } else { 0 };
                    part.before = part.decision.map(|decision| decision.remaining());
                }
                Err(error) => self.health.failed(part.store, &error, self.now()),
            }
        }
        for index in 0..answer.parts.len() {
            let Part { code, cost, .. } = answer.parts[index];
            if forced >> index & 1 == 1 {
                let cost = if code == Code::Allowed { 0 } else { cost };
                self.look_alone(plan, now, (index, cost), answer).await;
            }
        }
    }

    /// Gives permits back, and reads the permits that remain then.
    async fn give_back(&self, plan: &Plan, now: Tick, answer: &mut Answer) {
        for index in 0..answer.parts.len() {
            let part = answer.parts[index];
            if !part.gives || part.by == By::Nothing {
                continue;
            }
            let at = (&*answer.policies, &*answer.keys);
            let (Some(give), Some(mut look)) =
                (demand(plan, at, &part), demand(plan, at, &Part { cost: 0, ..part }))
            else {
                continue;
            };
            let store = part.store;
            let given = self.stores[store].refund(&give).await;
            let looked = self.stores[store].peek_at(now, std::slice::from_mut(&mut look)).await;
            match (given, looked) {
                (Ok(given), Ok(decision)) => {
                    plan.rule(part.rule).live().returned(given);
                    answer.given = answer.given.saturating_add(given);
                    answer.parts[index].decision = Some(decision);
                }
                (Err(error), _) | (_, Err(error)) => {
                    self.health.failed(store, &error, self.now());
                }
            }
            answer.parts[index].is_decided = true;
        }
    }
}

/// Tells whether a part is charged together with the others.
pub(super) fn is_in_force(part: &Part) -> bool {
    part.mode != Mode::Shadow && !part.is_decided && part.code != Code::QuotaSpent
}

/// Tells whether the parts that were charged together deny.
pub(super) fn is_refused(answer: &Answer) -> bool {
    answer.parts.iter().any(|part| part.mode != Mode::Shadow && part.code.is_refused())
}

/// Tells whether a part denies without asking its store.
fn is_refused_unasked(part: &Part) -> bool {
    part.is_decided && part.code.is_refused()
}

/// Tells whether there are parts in quota mode, and all of them deny.
fn are_quotas_spent(parts: &[Part]) -> bool {
    let mut quotas = parts.iter().filter(|part| part.mode == Mode::Quota).peekable();
    quotas.peek().is_some() && quotas.all(|part| part.code.is_refused())
}

/// Tells whether a part denies the whole request. A bound that is reached does not mean that a
/// quota is spent.
fn is_final(part: &Part) -> bool {
    part.code == Code::Full || part.code.is_refused() && part.mode == Mode::Enforced
}

/// After a denial: if only parts in quota mode deny, and not all of them, removes those, so that
/// the others can be asked again.
pub(super) fn pass_by_quota(answer: &mut Answer) -> bool {
    if answer.parts.iter().any(is_final) {
        return false;
    }
    let mut quotas = answer.parts.iter().filter(|part| part.mode == Mode::Quota);
    if !quotas.any(|part| !part.code.is_refused() && part.code != Code::QuotaSpent) {
        for part in &mut answer.parts {
            if part.code == Code::QuotaSpent {
                part.code = refusal(part);
            }
        }
        return false;
    }
    for part in &mut answer.parts {
        if part.mode == Mode::Quota && part.code.is_refused() {
            part.code = Code::QuotaSpent;
        } else if !part.is_decided {
            part.code = Code::Allowed;
        }
    }
    true
}

/// Returns why a part denied, before its quota counted as spent.
fn refusal(part: &Part) -> Code {
    match part.by {
        _ if part.blocked_until.is_some() => Code::Blocked,
        By::Rule | By::Listed(_) if part.is_decided => Code::FailedClosed,
        _ => Code::Denied,
    }
}

/// Returns the demand of a part on its store; `None` if it has none.
pub(super) fn demand<'a>(
    plan: &'a Plan,
    (policies, keys): (&'a [Policy], &'a [u8]),
    part: &Part,
) -> Option<Demand<'a>> {
    let policy = match part.by {
        By::Rule => plan.rule(part.rule).kind().policy()?,
        By::Listed(index) => &policies[index],
        By::Nothing => return None,
    };
    let key = &keys[part.key.0 as usize..part.key.1 as usize];
    match part.limit {
        Some(limit) if policy.is_ad_hoc() => {
            // The quota was checked when the part was made.
            Demand::ad_hoc(policy, key, part.cost, Quota::per(limit.count, limit.per)).ok()
        }
        _ => Some(Demand::new(policy, key, part.cost)),
    }
}

/// Records the store's decision about a part.
pub(super) fn note(part: &mut Part, decision: Option<Decision>) {
    part.decision = decision;
    let Some(decision) = decision else { return };
    let is_denied = decision.is_denied();
    if decision.is_degraded() && part.failure != Failure::Local {
        // The remaining permits are unknown, and nothing was charged.
        let closed = part.mode.refused(Code::FailedClosed);
        part.code = if is_denied { closed } else { Code::FailedOpen };
        // A denial may know when to retry.
        part.decision = part.decision.filter(|_| is_denied);
        part.is_decided = true;
        return;
    }
    part.code = if is_denied { part.mode.refused(Code::Denied) } else { Code::Allowed };
}

/// Records what each part was charged.
fn note_charges(answer: &mut Answer) {
    let allowed = answer.allowed;
    for part in answer.parts.iter_mut().filter(|part| !part.is_decided && part.limit.is_some()) {
        let is_charged = allowed && part.code == Code::Allowed && !part.is_degraded();
        part.charged = if is_charged { part.cost } else { 0 };
    }
}

/// Sets the status of each ask: that of its tightest part.
fn summarize(asks: usize, answer: &mut Answer) {
    answer.statuses.resize(asks, Status { code: Code::Unlimited, part: None });
    for (index, part) in answer.parts.iter().enumerate() {
        let status = &mut answer.statuses[part.ask];
        // A spent quota is reported, although it does not bind.
        let rank = |part: &Part| match part.code {
            code if code.is_refused() => (0, part.rank().1),
            Code::QuotaSpent => (1, 0),
            Code::Unlimited => (3, 0),
            _ => (2, part.remaining()),
        };
        if status.part.is_none_or(|best| rank(part) < rank(&answer.parts[best])) {
            *status = Status { code: part.code, part: Some(index) };
        }
    }
}
