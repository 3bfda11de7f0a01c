//! The engine's answer to a request.

use super::{
    Entry, Ticket,
    special::{By, Mode, PartLimit},
};
use crate::{
    config::Failure,
    plan::{Plan, RuleIndex, Slots},
};
use std::time::Duration;
use tollgate::{Decision, Tick, store::Policy};

/// The answer to a request. Keep one per connection: the next request reuses its memory.
#[derive(Debug, Default)]
pub struct Answer {
    pub(super) allowed: bool,
    pub(super) parts: Vec<Part>,
    pub(super) statuses: Vec<Status>,
    pub(super) keys: Vec<u8>,
    /// Policies that are not their rule's own: overrides, and limits that came with the request.
    pub(super) policies: Vec<Policy>,
    pub(super) ticket: Option<Ticket>,
    pub(super) entry: Option<Entry>,
    pub(super) given: u64,
    pub(super) bound: Option<String>,
    /// From the Unix epoch to the clock's origin: windows begin at round times.
    pub(super) epoch: Duration,
}

/// One limit of a request.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The rule. A limit that came with the request has the rule whose count it shares, or else one of its
    /// domain's [`per_call_rules`](Plan::per_call_rules).
    pub rule: RuleIndex,
    /// Whether the limit came with the request.
    pub is_override: bool,
    /// Which ask of the request it belongs to.
    pub ask: usize,
    /// The cost that the request asks for.
    pub cost: u64,
    /// Its answer.
    pub code: Code,
    /// The store's decision, if the store was asked.
    pub decision: Option<Decision>,
    /// The end of the block of its key, if it is blocked.
    pub blocked_until: Option<Tick>,
    /// How many permits were left before a refusal was charged.
    pub(super) before: Option<u64>,
    /// How many permits the store was charged.
    pub charged: u64,
    /// The number of the store that holds its state.
    pub(super) store: usize,
    /// The quota; `None` if the limit is unlimited, or limits slots.
    pub(super) limit: Option<PartLimit>,
    pub(super) by: By,
    pub(super) mode: Mode,
    /// Whether its code is final before the engine asks the store.
    pub(super) is_decided: bool,
    pub(super) key: (u32, u32),
    /// Whether the request gives permits back instead of taking them.
    pub(super) gives: bool,
    /// What happens if the store cannot answer.
    pub(super) failure: Failure,
    /// Whether it is charged even if it is refused.
    pub(super) counts_refused: bool,
    /// Whether its rule is here only as the parent of another rule of the request.
    pub(super) is_parent: bool,
    /// Whether its store could not be asked for slots, so that this process or the rule has
    /// decided.
    pub(super) is_entered_here: bool,
}

/// The answer of one limit, or of one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    /// It passes.
    #[default]
    Allowed,
    /// It is refused by its quota.
    Denied,
    /// It would be refused, and passes: shadow mode.
    Shadowed,
    /// Its quota is used up, but other limits in quota mode let it pass.
    QuotaSpent,
    /// Its key is blocked.
    Blocked,
    /// It passes because the rule is bypassed.
    Bypassed,
    /// It passes because it has no limit.
    Unlimited,
    /// It passes because the store could not answer.
    FailedOpen,
    /// It is refused because the store could not answer.
    FailedClosed,
    /// It is refused because a bound of the store is reached: [`Answer::bound`] says which.
    Full,
}

impl Code {
    /// Tells whether it is refused.
    #[must_use]
    pub const fn is_refused(self) -> bool {
        matches!(self, Self::Denied | Self::Blocked | Self::FailedClosed | Self::Full)
    }
}

/// The answer of one descriptor: that of its tightest limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Whether it passes.
    pub code: Code,
    /// The tightest limit, by its number among the [parts](Answer::parts); `None` if no limit
    /// applies to the descriptor.
    pub part: Option<usize>,
}

impl Answer {
    /// Returns an answer to fill.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Frees the memory if the keys have taken more than `keep` bytes.
    pub(crate) fn trim(&mut self, keep: usize) {
        if self.keys.capacity() > keep {
            *self = Self::default();
        }
    }

    /// Tells whether the request passes.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the answer of each ask, in their order.
    #[must_use]
    pub fn statuses(&self) -> &[Status] {
        &self.statuses
    }

    /// Returns the answer of each limit.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the key of a part, as the store knows it.
    #[must_use]
    pub fn key(&self, part: &Part) -> &[u8] {
        &self.keys[part.key.0 as usize..part.key.1 as usize]
    }

    /// Returns the ticket of the reservation, if the request reserved permits.
    #[must_use]
    pub const fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }

    /// Returns the store's answer about slots; `None` if the store was not asked.
    #[must_use]
    pub const fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// Returns the limit and the lease of the request's `concurrency` rule, if it has one.
    #[must_use]
    pub fn slots(&self, plan: &Plan) -> Option<Slots> {
        plan.rule(self.parts.first()?.rule).kind().slots()
    }

    /// Tells whether a store could not be asked, so that its rules have decided by their `failure`.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.parts.iter().any(Part::is_degraded)
    }

    /// Returns how many permits were given back.
    #[must_use]
    pub const fn given(&self) -> u64 {
        self.given
    }

    /// Returns which bound of a store refuses the request, and what to do about it.
    #[must_use]
    pub fn bound(&self) -> Option<&str> {
        self.bound.as_deref()
    }

    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.statuses.clear();
        self.keys.clear();
        self.policies.clear();
        (self.allowed, self.given, self.bound) = (true, 0, None);
        (self.ticket, self.entry) = (None, None);
    }
}

impl Part {
    /// Tells whether its store could not be asked, so that its rule has decided.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_entered_here
            || matches!(self.code, Code::FailedOpen | Code::FailedClosed)
            || self.decision.is_some_and(|decision| decision.is_degraded())
    }
}
