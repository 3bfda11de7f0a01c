//! The verbs of [`KeyedLimiter`] that decide.

use super::{
    KeyedLimiter,
    core::{Core, Key},
};
use crate::{
    Decision, Refused, Reservation, Tick, reservation::ledger::Ledger, verbs::StateRef,
    wait::line::Line, watch::Verb,
};
use std::{hash::Hash, time::Duration};

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    #[inline]
    pub(super) fn fingerprint(&self, key: &K) -> u64 {
        self.core.seed.fingerprint(key)
    }

    /// Tells whether a decision needs no more than the key's state.
    #[inline]
    fn is_plain(&self) -> bool {
        self.core.mode() == 0 && self.typed.assign.is_none() && self.typed.top.is_none()
    }

    /// Names a key, after its quota was chosen if a function does that.
    pub(super) fn key(&self, key: &K, now: Tick) -> Key<'static> {
        let fingerprint = self.fingerprint(key);
        self.choose(key, fingerprint, now);
        Key::plain(fingerprint)
    }

    /// Returns the fingerprint of a key, after its quota was chosen if a function does that.
    pub(crate) fn named(&self, key: &K) -> u64 {
        let fingerprint = self.fingerprint(key);
        if self.typed.assign.is_some() {
            self.choose(key, fingerprint, self.now());
        }
        fingerprint
    }

    /// Lets the function of the key choose its quota, unless it has one.
    pub(super) fn choose(&self, key: &K, fingerprint: u64, now: Tick) {
        if self.typed.assign.is_some() {
            let own = self.core.notes.look(fingerprint, now).0;
            if own.is_none_or(|own| own.until <= now) {
                self.assign_by_function(key, fingerprint, now);
                self.core.settle_key(fingerprint);
            }
        }
    }

    /// Takes one permit of a key if it is free now. Never waits.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    #[doc(alias = "check_key")]
    pub fn try_acquire(&self, key: &K) -> Decision {
        self.try_acquire_n(key, 1)
    }

    /// Takes `cost` permits of a key if all of them are free now. Never waits.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    #[doc(alias = "check_key_n")]
    pub fn try_acquire_n(&self, key: &K, cost: u64) -> Decision {
        self.try_acquire_at(key, self.now(), cost)
    }

    /// [`try_acquire_n`](Self::try_acquire_n) as of `now`.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub fn try_acquire_at(&self, key: &K, now: Tick, cost: u64) -> Decision {
        let fingerprint = self.fingerprint(key);
        if self.is_plain()
            && let Some(decision) = self.core.take_plain(fingerprint, now, cost)
        {
            return decision;
        }
        self.general(key, (fingerprint, now), cost).taken_apart()
    }

    /// Decides for every algorithm and whatever is going on. Not inlined: it is large.
    #[inline(never)]
    fn general(&self, key: &K, (fingerprint, now): (u64, Tick), cost: u64) -> Decision {
        if self.is_plain()
            && let Some(decision) = self.core.take_any(Key::plain(fingerprint), now, cost)
        {
            return decision;
        }
        self.ask(key, (fingerprint, now), cost, Verb::TryAcquire)
    }

    #[cold]
    #[inline(never)]
    fn ask(&self, key: &K, (fingerprint, now): (u64, Tick), cost: u64, verb: Verb) -> Decision {
        self.choose(key, fingerprint, now);
        let decision = StateRef::Key(&self.core, Key::plain(fingerprint)).ask(verb, now, cost);
        if let Some(top) = &self.typed.top {
            (top.note)(&top.keys, key, fingerprint, &decision);
        }
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

    /// Gives back up to `cost` permits of what a key has outstanding. Returns how many that were; one that has
    /// refilled in part is given back for the rest, and counts.
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
    /// that finds no room in a full table it is what the key would be told if there were.
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
        let (who, _) = self.who(key, now);
        self.tables.remove(who.fingerprint);
        claims.change(Some(&who.rule), Ledger::clear);
        // Whoever waits is booked anew.
        claims.change_line(Line::lose_bookings);
        claims.release(self);
    }
}
