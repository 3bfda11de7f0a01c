//! Slots of `concurrency` rules: which calls may be in flight, and for how long.
//!
//! A caller enters and holds its slots until it leaves. A caller that dies without leaving loses
//! them when its lease ends, so a caller that needs more time renews. The store keeps the leases
//! under the rule's id, which a reload does not change: calls in flight stay in flight, and a lower
//! limit only keeps others out.

use super::{Answer, Code, Engine, Request, RequestError, Verb};
use crate::{
    config::Failure,
    plan::{Plan, Rule, RuleIndex, Slots},
};
use std::{collections::HashMap, fmt, hash::Hasher, str::FromStr, time::Duration};
use tollgate::{
    Tick,
    store::{Entered, PermitId, Permits, Store},
};

/// The most slots that one call can take: an id of a store in Redis has 14 bits for their number.
const COST_MAX: u64 = (1 << 14) - 1;

/// The store's answer about a caller's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The lease to renew or to leave; `None` if no slot was taken.
    pub id: Option<LeaseId>,
    /// How many slots are in use, this caller's among them; `None` if unknown.
    pub in_flight: Option<u64>,
    /// When the next lease ends, after a refusal. A slot becomes free earlier if its holder leaves,
    /// and later if the holder renews. For a blocked key, when the block ends. `None` if no wait
    /// helps.
    pub retry_after: Option<Duration>,
    /// Why the caller may enter or not, in the words of the metrics; additionally
    /// `cost-above-limit`.
    pub reason: &'static str,
}

/// Identifies slots that a caller holds. Its text form cannot be guessed, and works only with the
/// policy and the key that were entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId {
    permit: u64,
    proof: u64,
}

/// A text that is not a lease id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseError(String);

impl fmt::Display for LeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not a lease; use the id that `enter` returned", self.0)
    }
}

impl std::error::Error for LeaseError {}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:016x}", self.permit, self.proof)
    }
}

impl FromStr for LeaseId {
    type Err = LeaseError;

    fn from_str(text: &str) -> Result<Self, LeaseError> {
        let number = |digits: &str| {
            let is_plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            u64::from_str_radix(digits, 16).ok().filter(|_| is_plain)
        };
        let read = text.split_once('-').and_then(|(permit, proof)| {
            Some(Self { permit: number(permit)?, proof: number(proof)? })
        });
        read.ok_or_else(|| LeaseError(text.chars().take(40).collect()))
    }
}

/// The rule and the key that a request is about.
struct Held<'a> {
    rule: &'a Rule,
    slots: Slots,
    key: &'a [u8],
}

impl<'a> Held<'a> {
    fn of(plan: &'a Plan, rule: RuleIndex, key: &'a [u8]) -> Option<Self> {
        let rule = plan.rule(rule);
        Some(Self { rule, slots: rule.kind().slots()?, key })
    }

    fn permits(&self, cost: u64) -> Permits<'a> {
        Permits { cost, ..Permits::new(self.rule.id(), self.key, self.slots.limit) }
    }
}

impl Engine {
    fn lease_id(&self, held: &Held<'_>, PermitId(permit): PermitId) -> LeaseId {
        let mut hasher = self.proof_hasher(held.rule.store());
        hasher.write(held.rule.id().as_bytes());
        // No id has this byte, so id and key cannot be split at another place.
        hasher.write_u8(0xff);
        hasher.write(held.key);
        hasher.write_u64(permit);
        LeaseId { permit, proof: hasher.finish() }
    }

    /// Takes the slots that the only part of an answer asks for.
    pub(super) async fn enter(
        &self,
        plan: &Plan,
        now: Tick,
        request: &Request<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        if request.asks.len() > 1 {
            return Err(RequestError::Limit(format!(
                "enter takes slots of one policy or descriptor, but {} were given; enter them one \
                 by one",
                request.asks.len()
            )));
        }
        let Some(part) = answer.parts.first().copied() else { return Ok(()) };
        if !(1..=COST_MAX).contains(&part.cost) {
            return Err(RequestError::Limit(format!(
                "cost {} is out of range; one call can take from 1 to {COST_MAX} slots",
                part.cost
            )));
        }
        let Some(held) = Held::of(plan, part.rule, answer.key(&part)) else { return Ok(()) };
        let (limit, mut entry) = (held.slots.limit, Entry::default());
        if part.is_decided {
            entry.retry_after = part.blocked_until.map(|until| until.since(now));
        } else {
            let permits = held.permits(part.cost);
            match self.stores[part.store].enter(&permits, held.slots.lease).await {
                Ok(entered) => {
                    let id = entered.id.map(|id| self.lease_id(&held, id));
                    let is_counted = !entered.is_degraded || part.failure == Failure::Local;
                    let in_flight = is_counted.then_some(entered.in_flight);
                    let retry_after = entered.retry_after;
                    entry = Entry { id, in_flight, retry_after, reason: "" };
                    let part = &mut answer.parts[0];
                    let code = code_of(&entered, part.failure);
                    part.code = if code.is_refused() { part.mode.refused(code) } else { code };
                    part.is_entered_here = entered.is_degraded;
                }
                Err(error) => self.failed(part.store, &error, answer),
            }
        }
        let part = &answer.parts[0];
        answer.allowed = !part.code.is_refused();
        // Shadow mode admits a caller that would otherwise have to wait.
        entry.retry_after = entry.retry_after.filter(|_| !answer.allowed);
        entry.reason = match part.code {
            Code::Denied if part.cost > limit => "cost-above-limit",
            _ => part.reason(answer.allowed),
        };
        answer.entry = Some(entry);
        Ok(())
    }

    /// Renews or leaves a caller's lease. The answer is a refusal if the caller holds nothing any
    /// more.
    pub(super) async fn hold(
        &self,
        plan: &Plan,
        now: Tick,
        (verb, id): (Verb, LeaseId),
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        answer.allowed = false;
        let Some(part) = answer.parts.first() else { return Ok(()) };
        let Some(held) = Held::of(plan, part.rule, answer.key(part)) else { return Ok(()) };
        let permit = PermitId(id.permit);
        if self.lease_id(&held, permit) != id {
            return Ok(());
        }
        let (store, permits) = (&self.stores[part.store], held.permits(1));
        let done = match verb {
            Verb::Leave(_) => store.leave(&permits, permit).await,
            _ => store.renew(&permits, permit, held.slots.lease).await,
        };
        answer.allowed = done.map_err(|error| {
            self.health.failed(part.store, &error, now);
            RequestError::Store(error.to_string())
        })?;
        Ok(())
    }

    /// Returns how many slots are in use under each `concurrency` rule of a store in this process,
    /// over all keys, by the rule's id. It visits every key with slots in use: for metrics, not for
    /// decisions.
    #[must_use]
    pub fn in_flight(&self, plan: &Plan) -> HashMap<Box<str>, u64> {
        let mut counts = HashMap::new();
        for (number, store) in self.stores.iter().enumerate() {
            let Some(store) = store.memory() else { continue };
            let has_slots = |rule: &&Rule| rule.store() == number && rule.kind().slots().is_some();
            let ids: Vec<&str> = plan.rules().iter().filter(has_slots).map(Rule::id).collect();
            if !ids.is_empty() {
                let owned = ids.iter().map(|id| Box::from(*id));
                counts.extend(owned.zip(store.in_flight(&ids)));
            }
        }
        counts
    }
}

/// Returns the code of a store's answer, regardless of the rule's mode.
fn code_of(entered: &Entered, failure: Failure) -> Code {
    let by_policy = entered.is_degraded && failure != Failure::Local;
    match entered.id {
        Some(_) if by_policy => Code::FailedOpen,
        Some(_) => Code::Allowed,
        None if by_policy => Code::FailedClosed,
        None => Code::Denied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_as_it_is_written() {
        let lease = LeaseId { permit: 0x2a, proof: 7 };
        assert_eq!(lease.to_string(), "2a-0000000000000007");
        assert_eq!(lease.to_string().parse(), Ok(lease));
        for text in ["", "-", "2a", "2a-", "+2a-7", "2a-7-1", "2a--7", "x-7"] {
            assert!(text.parse::<LeaseId>().is_err(), "{text}");
        }
        let long = "x".repeat(1000).parse::<LeaseId>().unwrap_err().to_string();
        assert!(long.len() < 120 && long.ends_with("use the id that `enter` returned"), "{long}");
    }
}
