//! What the engine answers.

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

/// The answer to a request. Keep one per connection: its memory is used again.
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

/// One limit that was asked.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The rule. A limit that came with the request has the rule whose count it shares, or else one of its
    /// domain's [`per_call_rules`](Plan::per_call_rules).
    pub rule: RuleIndex,
    /// Whether the limit came with the request.
    pub is_override: bool,
    /// Which ask of the request it belongs to.
    pub ask: usize,
    /// What was asked for.
    pub cost: u64,
    /// Its answer.
    pub code: Code,
    /// What the store said, if it was asked.
    pub decision: Option<Decision>,
    /// Until when its key is blocked, if it is.
    pub blocked_until: Option<Tick>,
    /// How many permits were left before a refusal was charged.
    pub(super) before: Option<u64>,
    /// How many permits the store was charged.
    pub charged: u64,
    /// The number of the store that holds its state.
    pub(super) store: usize,
    /// What is counted; `None` if it is unlimited, or limits slots.
    pub(super) limit: Option<PartLimit>,
    pub(super) by: By,
    pub(super) mode: Mode,
    /// Whether its code is final before the store is asked.
    pub(super) is_decided: bool,
    pub(super) key: (u32, u32),
    /// Whether it gives back instead of taking.
    pub(super) gives: bool,
    /// What happens if the store cannot answer.
    pub(super) failure: Failure,
    /// Whether it is charged also if it is refused.
    pub(super) counts_refused: bool,
    /// Whether it is there because of another one, whose rule names it as a parent.
    pub(super) is_parent: bool,
    /// Whether its store could not be asked for slots, and this process or the rule has decided.
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
    /// Its quota is used up, and others in quota mode let it pass.
    QuotaSpent,
    /// Its key is blocked.
    Blocked,
    /// It passes because the rule is bypassed.
    Bypassed,
    /// It passes because nothing limits it.
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

    /// Gives memory back, if its keys have taken more than `keep` bytes.
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

    /// Returns what to settle, if something was reserved.
    #[must_use]
    pub const fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }

    /// Returns what a store said about slots; `None` if it was not asked.
    #[must_use]
    pub const fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// Returns the limit and the lease of the `concurrency` rule that it is about, if it is.
    #[must_use]
    pub fn slots(&self, plan: &Plan) -> Option<Slots> {
        plan.rule(self.parts.first()?.rule).kind().slots()
    }

    /// Tells whether a store could not be asked, so that the answer is by what its rules say then.
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
    /// Tells whether its store could not be asked, and its rule has decided.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_entered_here
            || matches!(self.code, Code::FailedOpen | Code::FailedClosed)
            || self.decision.is_some_and(|decision| decision.is_degraded())
    }
}
