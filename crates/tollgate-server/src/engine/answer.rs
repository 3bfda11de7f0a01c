//! What the engine answers.

use super::{
    Entry, Ticket,
    special::{By, Mode, PartKind},
};
use crate::{
    config::{Failure, Unit},
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
}

/// One limit that was asked.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The rule; `None` for a limit that came with the request.
    pub rule: Option<RuleIndex>,
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
    /// The number of the store that holds its state.
    pub(super) store: usize,
    pub(super) kind: PartKind,
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

/// What headers tell of an answer: its tightest limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary<'p> {
    /// What the policy is called, if it has a name or a rule.
    pub policy: &'p str,
    /// How many pass in `per`.
    pub limit: u64,
    /// In which time.
    pub per: Duration,
    /// The unit, if it is one.
    pub unit: Option<Unit>,
    /// How many can pass at once: the burst if there is one, and else the limit. The remaining ones are
    /// never more.
    pub capacity: u64,
    /// How many are left.
    pub remaining: u64,
    /// When all are back.
    pub reset_after: Duration,
    /// When to try again, if refused; `None` also if no wait helps.
    pub retry_after: Option<Duration>,
}

/// Returns from when waits are counted: a request that has waited for a store is answered later than
/// it came.
pub(crate) fn since(decision: &Decision, now: Tick) -> Tick {
    now.max(decision.at())
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
    pub const fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Returns what a store said about slots; `None` if it was not asked.
    #[must_use]
    pub const fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// Returns the limit and the lease of the `concurrency` rule that it is about, if it is.
    #[must_use]
    pub fn slots(&self, plan: &Plan) -> Option<Slots> {
        plan.rule(self.parts.first()?.rule?).kind().slots()
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

    /// Returns what there is to tell of a part; `None` if it has no limit, or passes and nobody has
    /// asked how much is left.
    #[must_use]
    pub fn summary_of<'p>(&self, plan: &'p Plan, part: &Part, now: Tick) -> Option<Summary<'p>> {
        let (policy, (limit, per, unit)) = part.configured(plan)?;
        let retry_after = match (&part.decision, part.code.is_refused()) {
            (_, true) if part.blocked_until.is_some() => {
                part.blocked_until.map(|until| until.since(now))
            }
            (Some(decision), true) => decision.retry_after(since(decision, now)),
            _ => None,
        };
        let (remaining, reset_after) = match &part.decision {
            Some(decision) => {
                // A bucket that never refills says so with the longest time there is.
                let reset = decision.reset_after(since(decision, now)).unwrap_or(Duration::MAX);
                (decision.remaining(), reset)
            }
            None => (0, per),
        };
        let capacity = part.decision.map_or(limit, |decision| decision.limit());
        Some(Summary { policy, limit, per, unit, capacity, remaining, reset_after, retry_after })
    }

    /// Returns what there is to tell of a status; `None` if no limit applies.
    #[must_use]
    pub fn summary_at<'p>(
        &self,
        plan: &'p Plan,
        status: &Status,
        now: Tick,
    ) -> Option<Summary<'p>> {
        self.summary_of(plan, &self.parts[status.part?], now)
    }

    /// Returns what there is to tell of the whole answer: the longest wait of those that refuse, and
    /// else the limit with the least remaining.
    #[must_use]
    pub fn summary<'p>(&self, plan: &'p Plan, now: Tick) -> Option<Summary<'p>> {
        let rank = |part: &&Part| match part.code {
            code if code.is_refused() => (0, u64::MAX - part.waits_until()),
            // They do not bind.
            Code::Shadowed | Code::QuotaSpent => (2, 0),
            _ => (1, part.decision.map_or(u64::MAX, |decision| decision.remaining())),
        };
        let told = self.parts.iter().filter(|part| part.configured(plan).is_some());
        self.summary_of(plan, told.min_by_key(rank)?, now)
    }
}

/// What was configured: count, time, unit.
type Configured = (u64, Duration, Option<Unit>);

impl Part {
    /// Tells whether its store could not be asked, and its rule has decided.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_entered_here
            || matches!(self.code, Code::FailedOpen | Code::FailedClosed)
            || self.decision.is_some_and(|decision| decision.is_degraded())
    }

    /// Returns when a part that refuses may pass, in nanoseconds: the largest number if never, none
    /// if nobody knows.
    pub(super) fn waits_until(&self) -> u64 {
        match (self.blocked_until, &self.decision) {
            (Some(until), _) => until.as_nanos(),
            (None, Some(decision)) => decision.retry_at().map_or(u64::MAX, Tick::as_nanos),
            (None, None) if matches!(self.code, Code::FailedClosed | Code::Full) => 0,
            (None, None) => u64::MAX,
        }
    }

    const fn passes_unasked(&self) -> bool {
        matches!(self.code, Code::Allowed | Code::Bypassed | Code::FailedOpen)
    }

    /// Returns what the limit is called and what was configured; `None` if it is unlimited, or
    /// if nothing is known of it.
    pub(super) fn configured<'p>(&self, plan: &'p Plan) -> Option<(&'p str, Configured)> {
        match (self.kind, self.rule) {
            _ if self.decision.is_none() && self.passes_unasked() => None,
            (PartKind::AdHoc(limit), _) => {
                Some(("", (limit.count, limit.unit.length(), Some(limit.unit))))
            }
            (PartKind::Of { count, per, unit }, Some(rule)) => {
                Some((plan.rule(rule).label(), (count, per, unit)))
            }
            _ => None,
        }
    }
}
