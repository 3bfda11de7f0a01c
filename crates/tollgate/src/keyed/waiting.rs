//! Waiting for a key: a line for each key that somebody waits for (`wait/line.rs` has the idea).
//!
//! A line lies beside the ledger of its key, under the same lock, and only while somebody waits or
//! has not fetched the answer. So one key's waiters never hold up another key's, and a key that
//! nobody waits for pays nothing. When each line is next due stands in one ordered set, [`Dues`],
//! with one timer for the first of them.
//!
//! Lock order: claims, then dues.

mod due_times;
mod key_queue;

pub(super) use due_times::Dues;
pub(super) use key_queue::KeyLine;

use self::key_queue::KeyPost;
use super::{
    KeyedLimiter,
    claims::{AllClaims, KeyClaims},
    core::{Core, Key, WAITED},
    rule_cell::RuleCell,
};
use crate::{
    Decision, Limiter, Reason, Refused, Tick,
    algorithm::Entry,
    reservation::refusal,
    sync::{Arc, Ordering::Relaxed, lock},
    verbs::StateRef,
    wait::{
        Wait, Wakes,
        line::{At, Host, Line, Wish},
    },
    watch::Verb,
};
use std::hash::Hash;

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Waits for one permit of a key, in turn.
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Wait::block) a thread. Of those who wait
    /// for one key the first to come is the first to pass, and they hold up nobody who waits for
    /// another. One timer serves all keys: see [`Wait`].
    ///
    /// While somebody waits, the key's quota, its block or its place on a list may change: whoever
    /// waits is then served or refused by what holds. A key that is blocked is waited for until the
    /// block ends. If the table is full and new keys share a budget, it is that which is waited for.
    ///
    /// # Errors
    ///
    /// [`Refused`] at once, if no wait can help, if it does not fit the deadline, or if as many wait
    /// as may. Refusals for the key's own sake count for its [`Escalation`](crate::Escalation).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Quota};
    ///
    /// let tenants = KeyedLimiter::<str>::new(Quota::per_second(100).burst(1))?;
    /// for _ in 0..3 {
    ///     let passed = tenants.acquire("acme").block()?; // or `.await`
    ///     println!("waited {:?}", passed.waited());
    /// }
    /// let refused = tenants.acquire("acme").within(Duration::from_micros(1)).block();
    /// assert!(refused.is_err()); // at once, because it would take ten milliseconds
    /// assert!(tenants.acquire("other").block()?.waited().is_zero());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "until_key_ready")]
    pub fn acquire(&self, key: &K) -> Wait {
        self.acquire_n(key, 1)
    }

    /// Waits for `cost` permits of a key, in turn. Nothing is asked for with a cost of zero, so it
    /// passes.
    ///
    /// If a function chooses quotas, it is asked now, and not when the wait is first polled.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "until_key_n_ready")]
    pub fn acquire_n(&self, key: &K, cost: u64) -> Wait {
        let (core, fingerprint) = (Arc::clone(&self.core), self.named(key));
        Wait::for_key(WaitedKey { core, fingerprint }, cost)
    }

    /// Returns how many wait for a key at this moment.
    #[must_use]
    pub fn waiting(&self, key: &K) -> usize {
        self.core.claims.lock(self.fingerprint(key)).waiting()
    }

    /// Takes one permit of a key if it is free now, ahead of everybody who waits for it.
    pub fn try_overtake(&self, key: &K) -> Decision {
        self.try_overtake_n(key, 1)
    }

    /// Takes `cost` permits of a key if all of them are free now, ahead of everybody who waits for
    /// it.
    ///
    /// [`try_acquire_n`](Self::try_acquire_n) comes after them. Those who wait pass so much later;
    /// if that is beyond their deadline, they are refused when it comes.
    pub fn try_overtake_n(&self, key: &K, cost: u64) -> Decision {
        let now = self.now();
        let named = self.key(key, now);
        let of = StateRef::Key(&self.core, named);
        let ahead = of.exempt(now, cost).or_else(|| self.core.overtake(named, now, cost));
        let decide = &mut |entry: &mut Entry<'_>| entry.decide(now, cost);
        let decision =
            ahead.unwrap_or_else(|| of.without_room(Verb::TryAcquire, (now, cost), decide));
        let decision = of.report(Verb::TryAcquire, decision);
        if let Some(top) = &self.typed.top {
            (top.note)(&top.keys, key, named.fingerprint, &decision);
        }
        decision
    }
}

impl<K: ?Sized> KeyedLimiter<K> {
    /// Returns how many wait at this moment, for whatever key.
    #[must_use]
    pub fn waiting_total(&self) -> usize {
        let shared = self.core.overflow.as_ref().map_or(0, Limiter::waiting);
        self.core.waiting() as usize + shared
    }
}

impl Core {
    /// Returns how many wait for a key of their own.
    pub(super) fn waiting(&self) -> u64 {
        // ORDERING: Relaxed, here and below. A count: who waits is known under the lock of a key.
        self.waiting.load(Relaxed)
    }

    /// Takes a place for one more who waits, if there is one.
    fn take_place(&self) -> bool {
        let most = self.line_rules.max_waiting as u64;
        let more = |waiting: u64| (waiting < most).then(|| waiting + 1);
        self.waiting.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// As many wait in a line as `after`, where so many `before` were counted.
    fn count_waiting(&self, before: u64, after: u64) {
        if after > before {
            self.waiting.fetch_add(after - before, Relaxed);
        } else if after < before {
            self.waiting.fetch_sub(before - after, Relaxed);
        }
    }

    /// Decides ahead of those who wait at a key; `None` if there is no room for its state.
    fn overtake(&self, key: Key<'_>, now: Tick, cost: u64) -> Option<Decision> {
        let (mut claims, mut wakes) = (self.claims.lock(key.fingerprint), Wakes::new());
        let ahead = claims.at_line(self, &mut wakes, |line, post, mut at| {
            line.settle(post, &mut at);
            let decision = line.overtake(post, now, cost);
            (decision, line.settle(post, &mut at))
        });
        let decision = match ahead {
            Some(decision) => decision,
            None => self.state(key, now).update(|entry| entry.decide(now, cost)),
        };
        drop(claims);
        wakes.fire();
        decision
    }

    /// The answer to somebody who may not overtake those who wait for a window of this key; `None`
    /// if nobody waits.
    pub(crate) fn behind(&self, fingerprint: u64, now: Tick, cost: u64) -> Option<Decision> {
        if self.mode() & WAITED == 0 {
            return None;
        }
        let (mut claims, mut wakes) = (self.claims.lock(fingerprint), Wakes::new());
        let behind = claims.at_line(self, &mut wakes, |line, post, mut at| {
            let target = line.settle(post, &mut at);
            (line.behind(post, (now, target), cost), target)
        });
        drop(claims);
        wakes.fire();
        behind.flatten()
    }

    /// Serves whom a change lets pass who waits for a key.
    pub(crate) fn settle_key(&self, fingerprint: u64) {
        if self.waiting() > 0 {
            self.claims.lock(fingerprint).release(self);
        }
    }

    /// Serves whom a change lets pass, whatever key they wait for.
    pub(super) fn settle_all(&self) {
        if self.waiting() > 0 {
            self.each_line(|line, post, mut at| line.settle(post, &mut at));
        }
    }

    /// Runs `work` on every line, one lock at a time, and wakes whom it lets pass.
    fn each_line(&self, mut work: impl FnMut(&mut Line, &mut KeyPost<'_>, At<'_>) -> Option<Tick>) {
        let mut wakes = Wakes::new();
        for shard in self.claims.shards() {
            lock(shard).each_line(self, &mut wakes, &mut work);
        }
        wakes.fire();
    }
}

impl KeyClaims<'_> {
    /// Serves whom a change lets pass who waits for the key, and unlocks.
    pub(crate) fn release(mut self, core: &Core) {
        let mut wakes = Wakes::new();
        self.at_line(core, &mut wakes, |line, post, mut at| ((), line.settle(post, &mut at)));
        drop(self);
        wakes.fire();
    }
}

impl AllClaims<'_> {
    /// Takes what is booked for those who wait for keys of this quota, or of any, out of their states,
    /// before those are read by another one.
    pub(super) fn unbook(&mut self, core: &Core, quota: Option<&Arc<RuleCell>>) {
        self.shards().for_each(|shard| shard.unbook(core, quota));
    }

    /// Books whoever waits anew, serves whom that lets pass, and unlocks.
    pub(super) fn release(mut self, core: &Core) {
        let mut wakes = Wakes::new();
        let mut settle =
            |line: &mut Line, post: &mut KeyPost<'_>, mut at: At<'_>| line.settle(post, &mut at);
        self.shards().for_each(|shard| shard.each_line(core, &mut wakes, &mut settle));
        drop(self);
        wakes.fire();
    }
}

/// A key that somebody waits for.
#[derive(Clone)]
pub(crate) struct WaitedKey {
    core: Arc<Core>,
    fingerprint: u64,
}

impl WaitedKey {
    const fn key(&self) -> Key<'static> {
        Key::plain(self.fingerprint)
    }

    /// Names the state that is waited for.
    pub(crate) const fn state_ref(&self) -> StateRef<'_> {
        StateRef::Key(&self.core, self.key())
    }

    /// Decides on the fast path; `None` if somebody waits, or there is more to do.
    pub(crate) fn try_acquire(&self, cost: u64) -> Option<Decision> {
        let core = &*self.core;
        if core.mode() != 0 || core.waiting() > 0 {
            return None;
        }
        core.take_plain(self.fingerprint, core.clock.now(), cost)
    }

    /// Returns the budget that keys without room share, if they do.
    pub(crate) fn shared_budget(&self) -> Option<Limiter> {
        self.core.note_saturated();
        self.core.overflow.clone()
    }

    pub(crate) fn refusal_without_room(&self, now: Tick, wish: Wish) -> Refused {
        let decision = self.core.refusal_without_room(self.key(), now, wish.cost);
        refusal(decision.because(Reason::Saturated), wish.max_wait(now), true)
    }

    pub(crate) fn report(&self, decision: &Decision) {
        self.core.report(self.fingerprint, Verb::Acquire, decision);
    }
}

impl Host for WaitedKey {
    type Post<'a> = KeyPost<'a>;

    fn at_line<R>(
        &self,
        work: impl FnOnce(&mut Line, &mut KeyPost<'_>, At<'_>) -> (R, Option<Tick>),
    ) -> R {
        let (mut claims, mut wakes) = (self.core.claims.lock(self.fingerprint), Wakes::new());
        let done = claims.at_own_line(&self.core, &mut wakes, work);
        drop(claims);
        wakes.fire();
        done
    }

    fn start_driver(&self) {
        #[cfg(feature = "tokio")]
        crate::wait::alarm::start(&due_times::Waited(Arc::clone(&self.core)));
    }
}
