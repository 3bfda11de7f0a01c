//! What a keyed limiter is, apart from the type of its keys.

use super::{
    claims::Claims,
    fingerprint::Seed,
    notes::{Access, Escalation, Notes},
    plan::ClassUse,
    waiting::Dues,
};
use crate::{
    Algorithm, Clock, Decision, Limiter, Quota, Reason, Tick,
    algorithm::{Entry, PerCall, Step},
    decision::Level,
    limiter::backoff::Backoff,
    store::Policy,
    sync::{
        Arc, AtomicU8, AtomicU64, Mutex,
        Ordering::{Acquire, Relaxed, Release},
    },
    table::{
        Miss, Tables, Who,
        class::{Class, ClassRule},
    },
    wait::line::LineRules,
    watch::{Verb, Watch},
};
use std::collections::BTreeMap;

pub(crate) struct Core {
    /// Tells the stores of a process apart, for the hints of policies.
    pub(super) id: u64,
    pub(crate) tables: Tables,
    pub(crate) clock: Clock,
    pub(super) seed: Seed,
    pub(super) algorithm: Algorithm,
    pub(super) name: Box<str>,
    /// The class of keys that have none of their own.
    default: AtomicU64,
    /// Which path a decision takes: see the constants.
    mode: AtomicU8,
    /// Held while a quota changes for all its keys, and while a snapshot is written.
    ///
    /// Lock order: changing, then claims, then plan, then tables, notes and dues.
    pub(super) changing: Mutex<()>,
    pub(super) plan: Mutex<Plan>,
    /// Which classes are kept, and when to look for unused ones again; locked after the plan.
    pub(super) class_use: Mutex<ClassUse>,
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

/// The quotas in force.
pub(super) struct Plan {
    pub(super) quota: Quota,
    pub(super) tiers: BTreeMap<Box<str>, (Quota, Class)>,
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
    pub(super) plan: Plan,
    pub(super) default: Class,
    pub(super) notes: Notes,
    pub(super) overflow: Option<Limiter>,
    pub(super) escalation: Option<Escalation>,
    pub(super) watch: Option<Box<Watch>>,
    pub(super) line_rules: LineRules,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { tables, clock, seed, algorithm, name, plan, default, .. } = parts;
        let Parts { notes, overflow, escalation, watch, line_rules, .. } = parts;
        let watched = watch.is_some() || escalation.is_some();
        // ORDERING: Relaxed. A number that is given out once.
        let id = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(Self {
            id,
            tables,
            clock,
            seed,
            algorithm,
            name,
            default: AtomicU64::new(default.index() as u64),
            mode: AtomicU8::new(if watched { WATCHED } else { 0 }),
            changing: Mutex::new(()),
            plan: Mutex::new(plan),
            class_use: Mutex::default(),
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

    #[inline]
    pub(super) fn default_class(&self) -> Class {
        // ORDERING: Acquire pairs with the Release below: the class is made before it is named.
        Class::from_index(self.default.load(Acquire) as usize)
    }

    pub(super) fn set_default_class(&self, class: Class) {
        // ORDERING: Release, see above.
        self.default.store(class.index() as u64, Release);
    }

    /// Names a key that has no class of its own.
    #[inline]
    pub(super) fn who_plain(&self, fingerprint: u64, now: Tick) -> Who {
        let stamp = self.tables.base.classes.stamp();
        Who { fingerprint, class: self.default_class(), now, class_since: now, stamp }
    }

    /// Names a key as its class is now, and says whether it is subject to its quota.
    pub(crate) fn who(&self, key: Key<'_>, now: Tick) -> (Who, Access) {
        // The stamp is read before the note: a class that is retired in between is then found out.
        let mut who = self.who_plain(key.fingerprint, now);
        let (own, access) = self.notes.look(key.fingerprint, now);
        if let Some(policy) = key.policy {
            return match self.who_stored(key.fingerprint, policy, now) {
                Some(who) => (who, access),
                None => (who, Access::NoClass),
            };
        }
        match own {
            // The answer of a function holds until it is asked again.
            Some(own) if own.until > now || !own.is_override => who.class = own.class,
            Some(own) => who.class_since = own.until,
            None => {}
        }
        (who, access)
    }

    /// Applies `step` to the state of a key, atomically; `None` if the table is full, or has no
    /// class left for the key's policy. Returns also under which name the key was found.
    pub(crate) fn update<R>(
        &self,
        key: Key<'_>,
        now: Tick,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Option<(R, Who)> {
        let mut backoff = Backoff::new();
        loop {
            let (who, access) = self.who(key, now);
            if access == Access::NoClass {
                return None;
            }
            match self.tables.update(&who, |entry| entry.by(key.call.as_ref(), &mut step)) {
                Ok(result) => return Some((result, who)),
                Err(Miss::Full) => return None,
                // A quota is changing: its new class can be found in a moment.
                Err(Miss::Stale) => backoff.wait(),
            }
        }
    }

    /// Applies `look` to a copy of the state of a key.
    pub(crate) fn read<R>(
        &self,
        key: Key<'_>,
        now: Tick,
        mut look: impl FnMut(&mut Entry<'_>) -> R,
    ) -> R {
        let mut backoff = Backoff::new();
        loop {
            let (who, _) = self.who(key, now);
            let read = self.tables.read(&who, |entry| entry.by(key.call.as_ref(), &mut look));
            if let Ok(result) = read {
                return result;
            }
            backoff.wait();
        }
    }

    /// Decides for a key whatever is going on.
    pub(super) fn ask(&self, key: Key<'_>, now: Tick, cost: u64, verb: Verb) -> Decision {
        let (_, access) = self.who(key, now);
        let without_state = if verb == Verb::Force {
            None
        } else {
            let waits = || self.behind(key.fingerprint, now, cost);
            self.exempt(key, (now, access), cost).or_else(waits)
        };
        let decision = without_state.unwrap_or_else(|| {
            self.update(key, now, |entry| match verb {
                Verb::UpTo => entry.up_to(now, cost),
                Verb::Force => entry.force(now, cost),
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
            Access::NoClass => {
                let level = Level { at: now, limit: 0, remaining: 0, full: 0 };
                let refusal = Decision::never(level, cost);
                Some(refusal.because(Reason::Saturated))
            }
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
            _ => overflow.try_acquire_at(now, cost),
        };
        let decision = match &self.overflow {
            Some(overflow) => shared(overflow),
            None => self.refusal_without_room(key, now, cost),
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
        let spent = match self.tables.base.classes.any_rule(who.class) {
            ClassRule::Word(rule) | ClassRule::Kept(rule) => {
                let rule = key.call.map_or(rule, |call| call.rule(&rule));
                spent(&rule, now, cost)
            }
            ClassRule::Counter(counter) => spent(&counter, now, cost),
            ClassRule::Log(log) => spent(&log, now, cost),
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
