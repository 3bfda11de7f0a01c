//! What a keyed limiter is, apart from the type of its keys.

use super::{
    claims::Claims,
    fingerprint::Seed,
    notes::{Access, Escalation, Notes},
    rule_cell::RuleCell,
    waiting::Dues,
};
use crate::{
    Algorithm, Clock, Decision, Limiter, Reason, Tick,
    algorithm::{AnyRule, Entry, PerCall, Step},
    store::Policy,
    sync::{Arc, AtomicU8, AtomicU64, Mutex, Ordering::Relaxed},
    table::{KeyRef, Tables},
    wait::line::LineRules,
    watch::{Verb, Watch},
};
use std::{collections::BTreeMap, time::Duration};

pub(crate) struct Core {
    /// Tells the stores of a process apart, for what policies remember of them.
    pub(super) id: u64,
    pub(crate) tables: Tables,
    pub(crate) clock: Clock,
    /// Time from the Unix epoch to the clock's origin, by which all rules read the words of windows.
    pub(super) epoch: Duration,
    /// When it was made.
    pub(super) since: Tick,
    pub(super) seed: Seed,
    pub(super) algorithm: Algorithm,
    pub(super) name: Box<str>,
    /// The quota of keys that have none of their own.
    pub(super) default: Arc<RuleCell>,
    /// Which path a decision takes: see the constants.
    mode: AtomicU8,
    /// Named quotas. Lock order: claims, then tables, notes and dues.
    pub(super) tiers: BTreeMap<Box<str>, Arc<RuleCell>>,
    /// Counts changes of quotas.
    pub(super) changes: AtomicU64,
    pub(crate) notes: Notes,
    pub(crate) claims: Claims,
    pub(super) line_rules: LineRules,
    /// How many wait for a key.
    pub(super) waiting: AtomicU64,
    pub(super) dues: Mutex<Dues>,
    /// The budget that new keys share when the table is full.
    pub(super) overflow: Option<Limiter>,
    pub(super) escalation: Option<Escalation>,
    /// Calls that met a full table.
    pub(super) saturated: AtomicU64,
    /// Quotas that a function of the key gave and that cannot be used.
    pub(super) unusable: AtomicU64,
    pub(super) watch: Option<Box<Watch>>,
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

/// Numbers for cores. Not one of loom's, which cannot be static.
static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// Admit everything.
pub(super) const BYPASS: u8 = 1;
/// There are notes of single keys, or were.
pub(super) const NOTED: u8 = 2;
/// Somebody watches, or refusals have consequences.
pub(super) const WATCHED: u8 = 4;
/// Somebody waits for the window of a key, and may not be overtaken. With GCRA nobody can.
pub(super) const WAITED: u8 = 8;

/// What a builder gives the core.
pub(super) struct Parts {
    pub(super) tables: Tables,
    pub(super) clock: Clock,
    pub(super) seed: Seed,
    pub(super) algorithm: Algorithm,
    pub(super) name: Box<str>,
    pub(super) default: Arc<RuleCell>,
    pub(super) tiers: BTreeMap<Box<str>, Arc<RuleCell>>,
    pub(super) notes: Notes,
    pub(super) overflow: Option<Limiter>,
    pub(super) escalation: Option<Escalation>,
    pub(super) watch: Option<Box<Watch>>,
    pub(super) line_rules: LineRules,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { tables, clock, seed, algorithm, name, default, tiers, .. } = parts;
        let Parts { notes, overflow, escalation, watch, line_rules, .. } = parts;
        let watched = watch.is_some() || escalation.is_some();
        // ORDERING: Relaxed. A number that is given out once.
        let id = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(Self {
            id,
            tables,
            epoch: clock.wall_offset(),
            since: clock.now(),
            clock,
            seed,
            algorithm,
            name,
            default,
            mode: AtomicU8::new(if watched { WATCHED } else { 0 }),
            tiers,
            changes: AtomicU64::new(0),
            notes,
            claims: Claims::default(),
            line_rules,
            waiting: AtomicU64::new(0),
            dues: Mutex::default(),
            overflow,
            escalation,
            saturated: AtomicU64::new(0),
            unusable: AtomicU64::new(0),
            watch,
        })
    }

    #[inline]
    pub(super) fn mode(&self) -> u8 {
        // ORDERING: Relaxed, here and below. Each flag stands for itself; seeing one late is a
        // decision that happened a moment earlier.
        self.mode.load(Relaxed)
    }

    pub(super) fn set_mode(&self, flag: u8, on: bool) {
        if on {
            self.mode.fetch_or(flag, Relaxed);
        } else {
            self.mode.fetch_and(!flag, Relaxed);
        }
    }

    /// Names a key as its quota is now, and says whether it is subject to that.
    pub(crate) fn who(&self, key: Key<'_>, now: Tick) -> (KeyRef, Access) {
        let (own, access) = self.notes.look(key.fingerprint, now);
        let (rule, since) = match (key.policy, own) {
            (Some(policy), _) => self.stored_rule(policy, key.call),
            // The answer of a function holds until it is asked again.
            (None, Some(own)) if own.until > now || !own.is_override => {
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

    /// The fast path for a key without a quota of its own; `None` if the general path has to decide.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn take_plain(&self, fingerprint: u64, now: Tick, cost: u64) -> Option<Decision> {
        self.tables.words.take((fingerprint, now), &self.default.gcra()?, cost)
    }

    /// Applies `step` to the state of a key, atomically; `None` if the table is full. Returns also under which
    /// name the key was found.
    pub(crate) fn update<R>(
        &self,
        key: Key<'_>,
        now: Tick,
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Option<(R, KeyRef)> {
        let (who, _) = self.who(key, now);
        self.tables.update(&who, step).ok().map(|result| (result, who))
    }

    /// Applies `look` to a copy of the state of a key.
    pub(crate) fn read<R>(
        &self,
        key: Key<'_>,
        now: Tick,
        look: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> R {
        self.tables.read(&self.who(key, now).0, look)
    }

    /// Decides for a key whatever is going on.
    pub(super) fn ask(&self, key: Key<'_>, now: Tick, cost: u64, verb: Verb) -> Decision {
        let (_, access) = self.who(key, now);
        let without_state = if verb == Verb::Force {
            None
        } else {
            let waits = || self.behind(key.fingerprint, now, verb.least(cost));
            let waits = || waits().map(|behind| behind.costing(cost));
            self.exempt(key, (now, access), cost).or_else(waits)
        };
        let decision = without_state.unwrap_or_else(|| {
            self.update(key, now, |entry| match verb {
                Verb::UpTo => entry.up_to(now, cost),
                Verb::Force => entry.force(now, cost),
                Verb::OnCredit => entry.on_credit(now, cost),
                _ => entry.decide(now, cost),
            })
            .map_or_else(|| self.without_room(key, now, cost, verb), |(decision, _)| decision)
        });
        self.settle_refusal(key.fingerprint, verb, decision)
    }

    /// Answers without the key's state if it is bypassed, listed or blocked.
    pub(crate) fn exempt(
        &self,
        key: Key<'_>,
        (now, access): (Tick, Access),
        cost: u64,
    ) -> Option<Decision> {
        let level = || self.read(key, now, |entry| entry.peek(now, 0));
        if self.mode() & BYPASS != 0 {
            return Some(level().with_bypass(cost));
        }
        match access {
            Access::ByQuota => None,
            Access::Allowed => Some(level().forced(cost).because(Reason::AllowListed)),
            Access::Denied => Some(level().refused(cost).because(Reason::DenyListed)),
            Access::BlockedUntil(until) => Some(level().blocked(cost, until)),
        }
    }

    /// Tells the watcher, and counts a refusal against the key if that has consequences.
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
            self.set_mode(NOTED, true);
            let (now, cost) = (decision.at(), decision.cost());
            if let Some(until) = self.notes.strike(fingerprint, now, rules) {
                decision = decision.blocked(cost, until);
            }
        }
        self.report(verb, &decision);
        decision
    }

    /// Decides for a new key when every entry is live.
    pub(crate) fn without_room(&self, key: Key<'_>, now: Tick, cost: u64, verb: Verb) -> Decision {
        self.note_saturated();
        let shared = |overflow: &Limiter| match verb {
            Verb::UpTo => overflow.up_to_at(now, cost),
            Verb::Force => overflow.force_at(now, cost),
            Verb::OnCredit => overflow.try_acquire_on_credit_at(now, cost),
            _ => overflow.try_acquire_at(now, cost),
        };
        let decision = match &self.overflow {
            Some(overflow) => shared(overflow),
            None => self.refusal_without_room(key, now, verb.least(cost)).costing(cost),
        };
        decision.because(Reason::Saturated)
    }

    pub(crate) fn note_saturated(&self) {
        // ORDERING: Relaxed. A count for people to look at.
        self.saturated.fetch_add(1, Relaxed);
    }

    pub(crate) const fn overflow(&self) -> Option<&Limiter> {
        self.overflow.as_ref()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The refusal of a key that cannot be taken in: as if it had just used up its burst, because
    /// nobody knows when another key will make room.
    pub(crate) fn refusal_without_room(&self, key: Key<'_>, now: Tick, cost: u64) -> Decision {
        let (who, _) = self.who(key, now);
        let cost = cost.max(1);
        let spent = match who.rule {
            AnyRule::Word(rule) | AnyRule::Kept(rule) => spent(&rule, now, cost),
            AnyRule::Counter(counter) => spent(&counter, now, cost),
            AnyRule::Log(log) => spent(&log, now, cost),
        };
        if spent.is_allowed() { spent.refused(cost) } else { spent }
    }

    pub(crate) fn report(&self, verb: Verb, decision: &Decision) {
        if let Some(watch) = &self.watch {
            watch.decided(&self.name, verb, decision);
        }
    }

    pub(crate) fn watch_refund(&self, permits: u64) {
        if let Some(watch) = &self.watch {
            watch.refunded(permits);
        }
    }

    pub(crate) fn watch_wait(&self, wait: std::time::Duration) {
        if let Some(watch) = &self.watch {
            watch.waits(wait);
        }
    }
}

/// Returns the answer to a fresh key that has just used up what it had.
fn spent<S: Step>(step: &S, now: Tick, cost: u64) -> Decision {
    let mut state = step.initial(now);
    let all = step.available(&state, now);
    step.charge(&mut state, now, all);
    step.peek(&state, now, cost)
}
