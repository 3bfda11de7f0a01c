//! The evaluation of a request: its demands on the policies, and their decisions.

use super::{gate::Nothing, heavy_keys::HeavyKeys, policy::Policy, usage::Usage};
use crate::{
    Info, Mode,
    answer::Label,
    key::{Found, KeyBytes, rollout_place},
};
use std::sync::Arc;
use tollgate::{
    Decision, Tick,
    observe::Verb,
    store::{self, ReservationId},
};

/// One policy with its quotas, ready to decide.
pub(super) struct Limit {
    pub(super) policy: Policy,
    /// Its own quota, then those of its tiers.
    pub(super) ways: Vec<Way>,
    /// How many quotas the policies before it have.
    pub(super) first: usize,
    pub(super) heavy_keys: Option<HeavyKeys>,
}

/// One quota of a policy: in the form for a store, and in the form for clients.
pub(super) struct Way {
    pub(super) policy: store::Policy,
    pub(super) label: Label,
}

/// The demand of a request on one policy, and the decision about it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) limit: usize,
    pub(super) way: usize,
    pub(super) cost: u64,
    pub(super) key: KeyBytes,
    pub(super) stance: Stance,
    pub(super) decision: Option<Decision>,
    /// The store could not answer, so the decision is unknown.
    pub(super) is_unknown: bool,
    /// Its own reservation, if the policy is not enforced.
    pub(super) reservation: Option<ReservationId>,
}

/// The treatment of a request that exceeds a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stance {
    Refused,
    /// It passes, and observers receive it.
    Shadow,
    /// It passes, and the service is informed.
    Tagged,
}

/// A request that is evaluated.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) parts: Vec<Part>,
    /// The reservation of all enforced policies.
    pub(super) reservation: Option<ReservationId>,
    pub(super) now: Tick,
    pub(super) is_allowed: bool,
    /// It is refused because a bound of the store is reached.
    pub(super) is_full: bool,
    /// The verb that decided it.
    pub(super) verb: Verb,
    /// The value by which the service reports the cost, if a policy settles by it.
    pub(super) usage: Option<Usage>,
}

impl Part {
    /// Returns an empty demand on policy number `limit`.
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            way: 0,
            cost: 0,
            key: KeyBytes::new(),
            stance: Stance::Refused,
            decision: None,
            is_unknown: false,
            reservation: None,
        }
    }

    pub(super) fn is_enforced(&self) -> bool {
        self.stance == Stance::Refused
    }

    pub(super) fn is_denied(&self) -> bool {
        self.decision.is_some_and(|decision| decision.is_denied())
    }
}

impl Pass {
    pub(super) const fn new(parts: Vec<Part>, verb: Verb) -> Self {
        let (reservation, usage, now) = (None, None, Tick::ZERO);
        Self { parts, reservation, now, is_allowed: true, is_full: false, verb, usage }
    }

    /// Removes earlier decisions: the next try may get no answer.
    pub(super) fn forget(&mut self) {
        (self.reservation, self.is_full) = (None, false);
        for part in &mut self.parts {
            (part.decision, part.is_unknown, part.reservation) = (None, false, None);
        }
    }

    /// Tells whether there is a reservation to settle.
    pub(super) fn is_reserved(&self) -> bool {
        self.reservation.is_some() || self.parts.iter().any(|part| part.reservation.is_some())
    }

    /// Returns the cost that the service has reported so far.
    pub(super) fn reported(&self) -> Option<u64> {
        self.usage.as_ref().and_then(Usage::reported)
    }

    /// Tells whether the store could not answer for a policy.
    pub(super) fn is_unknown(&self) -> bool {
        self.parts.iter().any(|part| part.is_unknown)
    }

    /// Returns the state of a request that gets no answer: without decisions, and without keys,
    /// which are gone.
    pub(super) fn without_answer(&self) -> Self {
        let parts = self.parts.iter().map(|part| Part {
            key: KeyBytes::new(),
            decision: None,
            is_unknown: true,
            reservation: None,
            ..*part
        });
        Self { parts: parts.collect(), reservation: None, usage: None, ..*self }
    }

    pub(super) fn enforced(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.is_enforced())
    }

    /// Returns the policies that the request exceeds although it passes.
    pub(super) fn over(&self) -> impl Iterator<Item = &Part> + Clone {
        self.parts.iter().filter(|part| !part.is_enforced() && part.is_denied())
    }
}

impl Limit {
    /// Returns the cost of a request; `None` if this policy does not count it.
    pub(super) fn cost(&self, info: &Info<'_>) -> Option<u64> {
        let policy = &self.policy;
        if policy.applies.as_ref().is_some_and(|applies| !applies(info)) {
            return None;
        }
        match policy.cost_of(info) {
            // The response determines the cost, whatever the estimate is.
            0 if policy.settle.is_some() => Some(1),
            0 => None,
            cost => Some(cost),
        }
    }

    /// Returns which quota applies to a request.
    pub(super) fn way(&self, info: &Info<'_>) -> usize {
        let tier = self.policy.tier.as_ref().and_then(|tier| tier(info));
        let way = tier.map_or(0, |tier| tier.saturating_add(1));
        // A tier that does not exist counts as none.
        if way < self.ways.len() { way } else { 0 }
    }

    /// Fills in the demand of a request on this policy; returns whether the policy counts the
    /// request. It writes in place: a key is large, so moving it would cost time.
    pub(super) fn prepare(&self, info: &Info<'_>, part: &mut Part) -> Result<bool, Nothing> {
        let policy = &self.policy;
        let Some(cost) = self.cost(info) else { return Ok(false) };
        part.cost = cost;
        match policy.key.find(info, &mut part.key) {
            Found::Known | Found::Anonymous => {}
            found => {
                let passes = found == Found::Skip || !policy.mode.can_refuse();
                return if passes { Ok(false) } else { Err(Nothing::NoKey(part.limit)) };
            }
        }
        part.way = self.way(info);
        part.stance = match policy.mode {
            Mode::Enforce => Stance::Refused,
            Mode::Shadow => Stance::Shadow,
            Mode::Tag => Stance::Tagged,
            Mode::Percent(percent) if rollout_place(part.key.texts()) < percent => Stance::Refused,
            Mode::Percent(_) => Stance::Shadow,
        };
        Ok(true)
    }
}

/// The policies that a request exceeds although it passes.
///
/// With [`Mode::Tag`] it is in the extensions of the request, for the service to read: the service
/// can answer from a cache, leave out costly parts, or run the work after that of others. With
/// [`Mode::Tag`] and [`Mode::Shadow`] it is in the extensions of the response, for layers further
/// out.
///
/// # Examples
///
/// ```
/// use axum::Extension;
/// use tollgate_tower::OverLimit;
///
/// async fn search(over: Option<Extension<OverLimit>>) -> &'static str {
///     if over.is_some() { "the ten best of yesterday" } else { "all of them" }
/// }
/// # let _ = search;
/// ```
#[derive(Clone, Debug)]
pub struct OverLimit {
    labels: Arc<[Label]>,
}

impl OverLimit {
    /// Returns a mark with these policies and those of another layer; `None` if there are no
    /// policies.
    pub(super) fn of(labels: impl Iterator<Item = Label>, other: Option<&Self>) -> Option<Self> {
        let mut labels = labels.peekable();
        labels.peek()?;
        let mut all = other.map(|other| other.labels.to_vec()).unwrap_or_default();
        for label in labels {
            // A name appears once, even if a request passes the layer several times.
            if all.iter().all(|known| known.name() != label.name()) {
                all.push(label);
            }
        }
        Some(Self { labels: all.into() })
    }

    /// Returns the names of the policies, of all layers that the request has passed; for a tier,
    /// `policy/tier`.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(Label::name)
    }
}
