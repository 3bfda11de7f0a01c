//! The verbs of [`KeyedLimiter`] that decide.

use super::{
    KeyedLimiter,
    core::{Core, INSTRUMENTED, Key, NAMED, OBSERVED},
};
use crate::{
    Decision, Outcome, Refused, Reservation, Tick, clock::Reading, observe::Verb,
    reservation::ledger::Ledger, verbs::StateRef, wait::limiter_queue::LimiterQueue,
};
use std::{hash::Hash, time::Duration};

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    #[inline]
    pub(super) fn fingerprint(&self, key: &K) -> u64 {
        self.core.seed.fingerprint(key)
    }

    /// Names a key, after its quota was chosen if a function does that.
    pub(super) fn key(&self, key: &K, now: Tick) -> Key<'static> {
        let fingerprint = self.fingerprint(key);
        self.choose(key, fingerprint, now);
        Key::plain(fingerprint)
    }

    /// Returns the fingerprint of a key, after its quota was chosen if a function does that.
    pub(crate) fn named(&self, key: &K) -> u64 {
        match &self.typed.assign {
            None => self.fingerprint(key),
            Some(_) => self.key(key, self.now()).fingerprint,
        }
    }

    /// Lets the function of the key choose its quota, unless it has one.
    pub(super) fn choose(&self, key: &K, fingerprint: u64, now: Tick) {
        if self.typed.assign.is_some() {
            let own = self.core.overrides.look(fingerprint, now).0;
            if own.is_none_or(|own| own.until <= now) {
                self.assign_by_function(key, fingerprint, now);
                self.core.settle_key(fingerprint);
            }
        }
    }

    /// Takes one permit of a key if it is free now. Never waits.
    #[inline(always)]
    #[doc(alias = "check_key")]
    pub fn try_acquire(&self, key: &K) -> Decision {
        self.try_acquire_n(key, 1)
    }

    /// Takes `cost` permits of a key if all of them are free now. Never waits.
    #[inline(always)]
    #[doc(alias = "check_key_n")]
    pub fn try_acquire_n(&self, key: &K, cost: u64) -> Decision {
        self.take(key, self.core.reading(), cost)
    }

    /// [`try_acquire_n`](Self::try_acquire_n) as of `now`.
    #[inline(always)]
    pub fn try_acquire_at(&self, key: &K, now: Tick, cost: u64) -> Decision {
        self.take(key, Reading::exact(now), cost)
    }

    #[inline(always)]
    fn take(&self, key: &K, reading: Reading, cost: u64) -> Decision {
        let fingerprint = self.fingerprint(key);
        let mode = self.core.mode();
        if mode & !(INSTRUMENTED | NAMED) == 0
            && let Some(decision) = self.core.take_known(fingerprint, reading, cost)
        {
            if mode != 0 {
                self.core.count(&decision);
                self.record_top(key, fingerprint, (decision.outcome_of_taken(), cost));
            }
            return decision;
        }
        self.general(key, (fingerprint, reading), cost).taken_apart()
    }

    /// Decides for every algorithm and whatever is going on. Not inlined: it is large.
    #[inline(never)]
    fn general(&self, key: &K, (fingerprint, reading): (u64, Reading), cost: u64) -> Decision {
        let now = reading.or_exact(|| self.now());
        let mode = self.core.mode();
        let take = || self.core.take_plain(fingerprint, now, cost);
        let take_any = || self.core.take_any(Key::plain(fingerprint), now, cost);
        if mode == 0
            && let Some(decision) = take().or_else(take_any)
        {
            return decision;
        }
        // Counters and observers change no decision: the fast path decides, and then the decision is reported.
        if mode & !(INSTRUMENTED | NAMED | OBSERVED) == 0
            && let Some(decision) = take()
        {
            let decision = self.core.settle_refusal(fingerprint, Verb::TryAcquire, decision);
            self.record_top(key, fingerprint, (decision.outcome(), decision.cost()));
            return decision;
        }
        self.ask(key, (fingerprint, now), cost, Verb::TryAcquire)
    }

    /// Records a decision under the name of its key, if names are kept.
    #[inline]
    pub(super) fn record_top(&self, key: &K, fingerprint: u64, decided: (Outcome, u64)) {
        if let Some(top) = &self.typed.top {
            (top.note)(&top.keys, key, fingerprint, decided);
        }
    }

    #[cold]
    #[inline(never)]
    fn ask(&self, key: &K, (fingerprint, now): (u64, Tick), cost: u64, verb: Verb) -> Decision {
        self.choose(key, fingerprint, now);
        let decision = StateRef::Key(&self.core, Key::plain(fingerprint)).ask(verb, now, cost);
        self.record_top(key, fingerprint, (decision.outcome(), decision.cost()));
        decision
    }

    /// Takes as many permits of a key as are free now, at most `most`.
    pub fn up_to(&self, key: &K, most: u64) -> Decision {
        self.up_to_at(key, self.now(), most)
    }

    /// [`up_to`](Self::up_to) as of `now`.
    pub fn up_to_at(&self, key: &K, now: Tick, most: u64) -> Decision {
        self.ask(key, (self.fingerprint(key), now), most, Verb::UpTo)
    }

    /// Takes `cost` permits of a key if at least one of them is free now, and books the others into debt:
    /// [`Limiter::try_acquire_on_credit`](crate::Limiter::try_acquire_on_credit) for a key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Quota};
    ///
    /// let tokens: KeyedLimiter<str> = KeyedLimiter::builder(Quota::per_hour(1000)).build()?;
    /// assert!(tokens.try_acquire_on_credit("alice", 1500).is_allowed());
    /// assert!(tokens.try_acquire_on_credit("alice", 1).is_denied()); // until 500 are paid off
    /// assert!(tokens.try_acquire_on_credit("bob", 1).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_acquire_on_credit(&self, key: &K, cost: u64) -> Decision {
        self.try_acquire_on_credit_at(key, self.now(), cost)
    }

    /// [`try_acquire_on_credit`](Self::try_acquire_on_credit) as of `now`.
    pub fn try_acquire_on_credit_at(&self, key: &K, now: Tick, cost: u64) -> Decision {
        self.ask(key, (self.fingerprint(key), now), cost, Verb::OnCredit)
    }

    /// Books `cost` permits of a key even into debt.
    pub fn force(&self, key: &K, cost: u64) -> Decision {
        self.force_at(key, self.now(), cost)
    }

    /// [`force`](Self::force) as of `now`.
    pub fn force_at(&self, key: &K, now: Tick, cost: u64) -> Decision {
        self.ask(key, (self.fingerprint(key), now), cost, Verb::Force)
    }

    /// Gives back up to `cost` permits of what a key has outstanding. Returns the number of permits;
    /// one that has refilled in part is given back for the rest, and counts.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund(&self, key: &K, cost: u64) -> u64 {
        self.refund_at(key, self.now(), cost)
    }

    /// [`refund`](Self::refund) as of `now`.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund_at(&self, key: &K, now: Tick, cost: u64) -> u64 {
        StateRef::Key(&self.core, self.key(key, now)).refund(now, cost, None)
    }

    /// Returns what [`try_acquire`](Self::try_acquire) would answer, and changes nothing. For a key
    /// that finds no room in a full table it is what the answer would be if there were.
    ///
    /// A key that does not start full ([`Initial`](crate::Initial)) begins to fill with the first look at it,
    /// a peek or a call, so that the wait that the peek names is exact.
    pub fn peek(&self, key: &K) -> Decision {
        self.peek_n(key, 1)
    }

    /// Returns what [`try_acquire_n`](Self::try_acquire_n) would answer, and changes nothing.
    pub fn peek_n(&self, key: &K, cost: u64) -> Decision {
        self.peek_at(key, self.now(), cost)
    }

    /// [`peek_n`](Self::peek_n) as of `now`.
    pub fn peek_at(&self, key: &K, now: Tick, cost: u64) -> Decision {
        StateRef::Key(&self.core, self.key(key, now)).peek(now, cost)
    }

    /// Returns how many whole permits of a key are free now.
    #[must_use]
    pub fn available(&self, key: &K) -> u64 {
        self.available_at(key, self.now())
    }

    /// [`available`](Self::available) as of `now`.
    #[must_use]
    pub fn available_at(&self, key: &K, now: Tick) -> u64 {
        let key = self.key(key, now);
        match self.core.behind(key.fingerprint, now, 1) {
            Some(_) => 0,
            None => self.core.state(key, now).read(|entry| entry.available(now)),
        }
    }

    /// Forgets what a key has used: it is as if never seen. Its open reservations become final; an
    /// override, a block or a place on a list stays.
    pub fn reset(&self, key: &K) {
        let now = self.now();
        self.core.reset(self.key(key, now), now);
    }

    /// Takes `cost` permits of a key now, or books the earliest time at which they are free.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why, if no wait can help. Window algorithms can reserve only what passes
    /// now.
    pub fn reserve(&self, key: &K, cost: u64) -> Result<Reservation, Refused> {
        self.reserve_within(key, cost, Duration::MAX)
    }

    /// Takes `cost` permits of a key that are free within `max_wait`; refuses at once if they are
    /// not.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why.
    pub fn reserve_within(
        &self,
        key: &K,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Reservation, Refused> {
        self.reserve_at(key, self.now(), (cost, max_wait))
    }

    /// [`reserve_within`](Self::reserve_within) as of `now`.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why.
    pub fn reserve_at(
        &self,
        key: &K,
        now: Tick,
        (cost, max_wait): (u64, Duration),
    ) -> Result<Reservation, Refused> {
        StateRef::Key(&self.core, self.key(key, now)).reserve(now, cost, max_wait)
    }
}

impl Core {
    pub(crate) fn reset(&self, key: Key<'_>, now: Tick) {
        let mut claims = self.claims.lock(key.fingerprint);
        let (key, _) = self.key_ref(key, now);
        self.tables.remove(key.fingerprint);
        claims.change(Some(&key.rule), Ledger::clear);
        // Waiting callers are booked again.
        claims.change_queue(LimiterQueue::lose_bookings);
        claims.release(self);
    }
}
