//! What a keyed limiter is, apart from the type of its keys.

use super::{
    claims::Claims,
    fingerprint::Seed,
    overrides::{Access, Escalation, Overrides},
    rule_cell::RuleCell,
    waiting::DueTimes,
};

use crate::{
    Algorithm, Clock, Decision, Limiter, Reason, Tick,
    algorithm::{AnyRule, PerCall, Step},
    clock::{Early, Reading},
    multi::locks::ResolvedState,
    observe::{Event, Instruments, Verb},
    store::Policy,
    sync::{Arc, AtomicU64, Count, Flags, Mutex, Ordering::Relaxed},
    table::{KeyRef, Tables},
    wait::limiter_queue::QueueRules,
};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

pub(crate) struct Core {
    /// Tells the stores of a process apart, for what policies remember of them.
    pub(super) id: u64,
    pub(crate) tables: Tables,
    pub(crate) clock: Clock,
    /// The clock's early reading, if it has one.
    pub(super) early: Early,
    /// Time from the Unix epoch to the clock's origin, by which all rules read the words of windows.
    pub(super) epoch: Duration,
    /// When it was made.
    pub(super) since: Tick,
    pub(crate) seed: Seed,
    pub(super) algorithm: Algorithm,
    pub(crate) name: Box<str>,
    /// The quota of keys that have none of their own.
    pub(super) default: Arc<RuleCell>,
    /// Which path a decision takes: see the constants.
    pub(super) mode: Flags,
    /// Named quotas. Lock order: claims, then tables, overrides and due times.
    pub(super) tiers: BTreeMap<Box<str>, Arc<RuleCell>>,
    /// The rule of each policy that came last to this store, and since when it is in force.
    pub(super) policies: Mutex<HashMap<u64, (AnyRule, Tick)>>,
    /// Counts changes of quotas.
    pub(super) changes: AtomicU64,
    pub(crate) overrides: Overrides,
    pub(crate) claims: Claims,
    pub(super) queue_rules: QueueRules,
    /// How many wait for a key.
    pub(super) waiting: Count,
    pub(super) due_times: Mutex<DueTimes>,
    /// The budget that new keys share when the table is full.
    pub(crate) overflow: Option<Limiter>,
    pub(super) escalation: Option<Escalation>,
    /// Calls that met a full table.
    pub(super) saturated: AtomicU64,
    /// Quotas that a function of the key gave and that cannot be used.
    pub(super) unusable: AtomicU64,
    pub(super) instruments: Option<Box<Instruments>>,
}

/// A key: its fingerprint, and the policy that it belongs to if it is a store's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) fingerprint: u64,
    pub(crate) policy: Option<&'a Policy>,
    /// The quota, if that comes with the call.
    pub(crate) call: Option<PerCall>,
}

impl Key<'_> {
    /// A key of a keyed limiter.
    pub(crate) const fn plain(fingerprint: u64) -> Self {
        Self { fingerprint, policy: None, call: None }
    }
}

/// Admit everything.
pub(super) const BYPASS: u8 = 1;
/// There are notes of single keys, or were.
pub(super) const OVERRIDDEN: u8 = 2;
/// Decisions are counted.
pub(super) const INSTRUMENTED: u8 = 4;
/// Somebody waits for the window of a key, and may not be overtaken. With GCRA nobody can.
pub(super) const WAITED: u8 = 8;
/// A function of the key chooses its quota.
pub(super) const ASSIGNED: u8 = 16;
/// The names of heavy keys are kept.
pub(super) const NAMED: u8 = 32;
/// An observer receives whole decisions, or refusals have consequences.
pub(super) const OBSERVED: u8 = 64;

impl Core {
    /// Returns a number that no other limiter of this process has.
    pub(super) fn next_id() -> u64 {
        // Not one of loom's, which cannot be static.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        // ORDERING: Relaxed. A number that is given out once.
        NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn mode(&self) -> u8 {
        self.mode.get()
    }

    /// Names a key as its quota is now, and says whether it is subject to that.
    pub(crate) fn key_ref(&self, key: Key<'_>, now: Tick) -> (KeyRef, Access) {
        let (own, access) = self.overrides.look(key.fingerprint, now);
        let (rule, since) = match (key.policy, own) {
            (Some(policy), _) => self.rule_in_store(policy, key.call),
            (None, Some(own)) if own.is_in_force(now) => {
                let (rule, since) = own.rule.load();
                (rule, since.max(own.since))
            }
            (None, own) => {
                let (rule, since) = self.default.load();
                (rule, own.map_or(since, |own| since.max(own.until)))
            }
        };
        let fingerprint = (key.fingerprint ^ rule.salt()).max(1);
        (KeyRef { fingerprint, now, rule, since }, access)
    }

    /// Reads the clock: early where it has such a reading.
    #[inline(always)]
    pub(super) fn reading(&self) -> Reading {
        self.early.read_or(self.early.margin() > Tick::ZERO, || self.clock.now())
    }

    /// The fast path for a key that is there and has no quota of its own, where a permit lasts a whole time; `None` if
    /// anything is unusual.
    #[inline(always)]
    pub(super) fn take_known(
        &self,
        fingerprint: u64,
        reading: Reading,
        cost: u64,
    ) -> Option<Decision> {
        let gcra = self.default.whole_gcra()?.with_margin(self.early.margin());
        self.tables.words.take((fingerprint, reading), || self.clock.now(), &gcra, cost)
    }

    /// The fast path for a key without a quota of its own; `None` if the general path has to decide.
    pub(super) fn take_plain(&self, fingerprint: u64, now: Tick, cost: u64) -> Option<Decision> {
        let rate = self.default.gcra().filter(|gcra| !gcra.is_budget())?;
        self.tables.words.take_at((fingerprint, now), &rate, cost)
    }

    /// Finds the state of a key, with the rule that is in force at `now`.
    pub(crate) fn state(&self, key: Key<'_>, now: Tick) -> ResolvedState<'_> {
        ResolvedState::Key(self, self.key_ref(key, now).0)
    }

    /// Answers without the key's state if it is bypassed, listed or blocked.
    pub(crate) fn exempt(&self, key: Key<'_>, now: Tick, cost: u64) -> Option<Decision> {
        self.bypassed(key, now, cost).or_else(|| {
            let level = || self.level(key, now);
            match self.overrides.look(key.fingerprint, now).1 {
                Access::ByQuota => None,
                Access::Allowed => Some(level().forced(cost).because(Reason::AllowListed)),
                Access::Denied => Some(level().refused(cost).because(Reason::DenyListed)),
                Access::BlockedUntil(until) => Some(level().blocked(cost, until)),
            }
        })
    }

    /// Answers without the key's state if the limiter is bypassed.
    pub(crate) fn bypassed(&self, key: Key<'_>, now: Tick, cost: u64) -> Option<Decision> {
        (self.mode() & BYPASS != 0).then(|| self.level(key, now).with_bypass(cost))
    }

    fn level(&self, key: Key<'_>, now: Tick) -> Decision {
        self.state(key, now).read(|entry| entry.peek(now, 0))
    }

    /// Counts and reports a decision, and counts a refusal against the key if that has consequences.
    #[inline]
    pub(crate) fn settle_refusal(
        &self,
        fingerprint: u64,
        verb: Verb,
        decision: Decision,
    ) -> Decision {
        let mut decision = decision;
        if let Some(rules) = &self.escalation
            && decision.is_denied()
            && decision.reason() == Reason::Quota
        {
            self.mode.set(OVERRIDDEN, true);
            let (now, cost) = (decision.at(), decision.cost());
            if let Some(until) = self.overrides.strike(fingerprint, now, rules) {
                decision = decision.blocked(cost, until);
            }
        }
        self.report(fingerprint, verb, &decision);
        decision
    }

    pub(crate) fn count_saturated(&self) {
        // ORDERING: Relaxed. A count for people to look at.
        self.saturated.fetch_add(1, Relaxed);
    }

    /// The refusal of a key that cannot be taken in: as if it had just used up its burst, because
    /// the time at which another key makes room is unknown.
    pub(crate) fn refusal_without_room(&self, key: Key<'_>, now: Tick, cost: u64) -> Decision {
        let (key, _) = self.key_ref(key, now);
        let cost = cost.max(1);
        let spent = match key.rule {
            AnyRule::Word(rule) | AnyRule::Kept(rule) => spent(&rule, now, cost),
            AnyRule::Counter(counter) => spent(&counter, now, cost),
            AnyRule::Log(log) => spent(&log, now, cost),
        };
        if spent.is_allowed() { spent.refused(cost) } else { spent }
    }

    /// Counts what the fast path has decided, if the limiter is counted.
    #[inline(always)]
    pub(super) fn count(&self, decision: &Decision) {
        if let Some(instruments) = self.instruments() {
            instruments.count_taken(decision.outcome_of_taken(), decision.cost());
        }
    }

    pub(crate) fn report(&self, fingerprint: u64, verb: Verb, decision: &Decision) {
        if let Some(instruments) = &self.instruments {
            instruments
                .decided(verb, decision, || Event::of_key(self, fingerprint, verb, decision));
        }
    }

    pub(crate) fn instruments(&self) -> Option<&Instruments> {
        self.instruments.as_deref()
    }
}

/// Returns the answer to a fresh key that has just used up what it had.
fn spent<S: Step>(step: &S, now: Tick, cost: u64) -> Decision {
    let mut state = step.initial(now);
    let all = step.available(&state, now);
    step.charge(&mut state, now, all);
    step.peek(&state, now, cost)
}
