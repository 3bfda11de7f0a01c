//! Waiting for a key: a queue for each key that callers wait for (`wait/limiter_queue.rs` has the idea).
//!
//! A queue lies beside the ledger of its key, under the same lock, and only while a caller waits or
//! has not fetched the answer. So one key's waiters never hold up another key's, and a key without
//! waiters pays nothing. One ordered set, [`DueTimes`], holds the next due time of each queue, with one
//! timer for the first of them.
//!
//! Lock order: claims, then due times.

mod due_times;
mod key_queue;

pub(super) use due_times::DueTimes;
pub(super) use key_queue::KeyQueue;

use self::key_queue::LockedKey;
use super::{
    KeyedLimiter,
    claims::{AllClaims, KeyClaims},
    core::{Core, Key, WAITED},
    rule_cell::RuleCell,
};
use crate::{
    Decision, Limiter, Reason, Refused, Tick,
    algorithm::Entry,
    observe::Verb,
    reservation::refusal,
    sync::{Arc, lock},
    verbs::StateRef,
    wait::{
        Source, Wait, WakeList,
        limiter_queue::{LockedQueue, QueueHost},
        queue::Request,
    },
};
use std::hash::Hash;

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Waits for one permit of a key, in turn.
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Wait::block) a thread. Of those who wait
    /// for one key the first to come is the first to pass, and they hold up nobody who waits for
    /// another. One timer serves all keys: see [`Wait`].
    ///
    /// While callers wait, the key's quota, its block or its place on a list may change: they are then
    /// served or refused by the new one. Callers wait for a blocked key until the block ends. If the
    /// table is full and new keys share a budget, they wait for that budget.
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
    ///
    /// let slow = KeyedLimiter::<str>::new(Quota::per_hour(1))?;
    /// let _first = slow.try_acquire("acme");
    /// let refused = slow.acquire("acme").within(Duration::from_secs(5)).block();
    /// assert!(refused.is_err()); // at once, because it would take an hour
    /// assert!(slow.acquire("other").block()?.waited().is_zero());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "until_key_ready")]
    pub fn acquire(&self, key: &K) -> Wait {
        self.acquire_n(key, 1)
    }

    /// Waits for `cost` permits of a key, in turn. A cost of zero takes nothing, so it passes.
    ///
    /// If a function chooses quotas, it runs now, and not when the wait is first polled.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "until_key_n_ready")]
    pub fn acquire_n(&self, key: &K, cost: u64) -> Wait {
        let (core, fingerprint) = (Arc::clone(&self.core), self.named(key));
        Wait::new(Source::Key(WaitedKey { core, fingerprint }), cost)
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
        self.record_top(key, named.fingerprint, (decision.outcome(), decision.cost()));
        decision
    }
}

impl<K: ?Sized> KeyedLimiter<K> {
    /// Returns how many wait at this moment, for all keys.
    #[must_use]
    pub fn waiting_total(&self) -> usize {
        let shared = self.core.overflow.as_ref().map_or(0, Limiter::waiting);
        self.core.waiting() as usize + shared
    }
}

impl Core {
    /// Returns how many callers wait, without those of the shared budget.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// Decides ahead of the callers who wait for a key; `None` if there is no room for its state.
    fn overtake(&self, key: Key<'_>, now: Tick, cost: u64) -> Option<Decision> {
        let (mut claims, mut wakers) = (self.claims.lock(key.fingerprint), WakeList::new());
        let ahead = claims.with_queue(self, &mut wakers, |locked| {
            locked.settle();
            let decision = locked.overtake(cost);
            (decision, locked.settle())
        });
        let decision = match ahead {
            Some(decision) => decision,
            None => self.state(key, now).update(|entry| entry.decide(now, cost)),
        };
        drop(claims);
        wakers.fire();
        decision
    }

    /// Returns the refusal of a caller who may not overtake those who wait for a window of this key;
    /// `None` if none waits.
    pub(crate) fn behind(&self, fingerprint: u64, now: Tick, cost: u64) -> Option<Decision> {
        if self.mode() & WAITED == 0 {
            return None;
        }
        let (mut claims, mut wakers) = (self.claims.lock(fingerprint), WakeList::new());
        let behind = claims.with_queue(self, &mut wakers, |locked| {
            let target = locked.settle();
            (locked.behind(now, target, cost), target)
        });
        drop(claims);
        wakers.fire();
        behind.flatten()
    }

    /// Serves the callers of a key that a change lets pass.
    pub(crate) fn settle_key(&self, fingerprint: u64) {
        if self.waiting() > 0 {
            self.claims.lock(fingerprint).release(self);
        }
    }

    /// Serves the callers of all keys that a change lets pass.
    pub(super) fn settle_all(&self) {
        if self.waiting() > 0 {
            self.each_queue(|locked| locked.settle());
        }
    }

    /// Runs `work` on every queue, one lock at a time, and wakes the callers that it lets pass.
    fn each_queue(
        &self,
        mut work: impl FnMut(&mut LockedQueue<'_, LockedKey<'_>>) -> Option<Tick>,
    ) {
        let mut wakers = WakeList::new();
        for shard in self.claims.shards() {
            lock(shard).each_queue(self, &mut wakers, &mut work);
        }
        wakers.fire();
    }
}

impl KeyClaims<'_> {
    /// Serves the callers that a change lets pass, and unlocks.
    pub(crate) fn release(mut self, core: &Core) {
        let mut wakers = WakeList::new();
        self.with_queue(core, &mut wakers, |locked| ((), locked.settle()));
        drop(self);
        wakers.fire();
    }
}

impl AllClaims<'_> {
    /// Takes what is booked for callers who wait for keys of this quota, or of any, out of their states,
    /// before those are read by another one.
    pub(super) fn unbook(&mut self, core: &Core, quota: Option<&Arc<RuleCell>>) {
        self.shards().for_each(|shard| shard.unbook(core, quota));
    }

    /// Books for the waiting callers anew, serves those that pass then, and unlocks.
    pub(super) fn release(mut self, core: &Core) {
        let mut wakers = WakeList::new();
        for shard in self.shards() {
            shard.each_queue(core, &mut wakers, |locked| locked.settle());
        }
        drop(self);
        wakers.fire();
    }
}

/// A key that a caller waits for.
#[derive(Clone)]
pub(crate) struct WaitedKey {
    core: Arc<Core>,
    fingerprint: u64,
}

impl WaitedKey {
    /// Names the state that is waited for.
    pub(crate) const fn state_ref(&self) -> StateRef<'_> {
        StateRef::Key(&self.core, Key::plain(self.fingerprint))
    }

    /// Decides on the fast path; `None` if callers wait, or there is more to do.
    pub(crate) fn try_acquire(&self, cost: u64) -> Option<Decision> {
        let core = &*self.core;
        if core.mode() != 0 || core.waiting() > 0 {
            return None;
        }
        core.take_plain(self.fingerprint, core.clock.now(), cost)
    }

    /// Returns the budget that keys without room share, if they do.
    pub(crate) fn shared_budget(&self) -> Option<Limiter> {
        self.core.count_saturated();
        self.core.overflow.clone()
    }

    pub(crate) fn refusal_without_room(&self, now: Tick, request: &Request) -> Refused {
        let decision = self.state_ref().refusal_without_room(now, request.cost);
        refusal(decision.because(Reason::Saturated), request.max_wait(now), true)
    }

    pub(crate) fn report(&self, decision: &Decision) {
        self.core.report(self.fingerprint, Verb::Acquire, decision);
    }
}

impl QueueHost for WaitedKey {
    type State<'a> = LockedKey<'a>;

    fn with_queue<R>(
        &self,
        work: impl FnOnce(&mut LockedQueue<'_, LockedKey<'_>>) -> (R, Option<Tick>),
    ) -> R {
        let (mut claims, mut wakers) = (self.core.claims.lock(self.fingerprint), WakeList::new());
        let done = claims.with_own_queue(&self.core, &mut wakers, work);
        drop(claims);
        wakers.fire();
        done
    }

    fn start_timer_task(&self) {
        #[cfg(feature = "tokio")]
        crate::wait::queue_timer::start(&self.core);
    }
}
