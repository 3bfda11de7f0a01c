//! A key's state as its queue sees it, and where the queue is kept.

use crate::{
    Algorithm, Clock, Decision, Quota, Reason, Tick,
    algorithm::AnyRule,
    keyed::{
        claims::{KeyClaims, KeyLedger, Ledgers, Shard},
        core::{Core, Key},
        rule_cell::RuleCell,
    },
    multi::locks::ResolvedState,
    sync::{Arc, lock},
    table::KeyRef,
    wait::{
        WakeList,
        limiter_queue::{LimiterQueue, LockedQueue, LockedState, QueueRules},
        queue_timer::QueueTimer,
    },
};

/// Queues that a shard keeps for the next key, and how large they may be: so that keys that are
/// waited for again and again cost no allocation.
const SPARES: usize = 4;
const SPARE_PLACES: usize = 64;

/// The queue of a key.
#[derive(Debug)]
pub(crate) struct KeyQueue {
    queue: Box<LimiterQueue>,
    /// Its entry in [`DueTimes`](super::DueTimes).
    pub(super) due: Option<Tick>,
}

/// The state of a key, with the ledger of its open takes.
pub(crate) struct LockedKey<'a> {
    core: &'a Core,
    fingerprint: u64,
    ledgers: &'a mut Ledgers,
    /// A place was taken for one more waiting caller.
    has_place: bool,
}

impl LockedKey<'_> {
    const fn key(&self) -> Key<'static> {
        Key::plain(self.fingerprint)
    }
}

impl LockedState for LockedKey<'_> {
    fn rules(&self) -> QueueRules {
        self.core.queue_rules
    }

    fn has_room(&mut self, _waiting: usize) -> bool {
        let most = self.core.queue_rules.max_waiting as u64;
        self.has_place = self.has_place || self.core.waiting.raise(most);
        self.has_place
    }

    fn exempt(&self, now: Tick, cost: u64) -> Option<Decision> {
        self.core.exempt(self.key(), now, cost)
    }

    fn rule(&self, now: Tick) -> AnyRule {
        self.core.key_ref(self.key(), now).0.rule
    }

    fn quota(&self, now: Tick) -> (Quota, Algorithm) {
        (self.core.cell_of(self.fingerprint, now).quota(), self.core.algorithm)
    }

    fn state(&self, now: Tick) -> ResolvedState<'_> {
        self.core.state(self.key(), now)
    }

    fn state_by(&self, rule: &AnyRule, now: Tick) -> ResolvedState<'_> {
        let fingerprint = (self.fingerprint ^ rule.salt()).max(1);
        ResolvedState::Key(self.core, KeyRef { fingerprint, now, rule: *rule, since: Tick::MAX })
    }

    fn lower_behind(&mut self, mark: u64, units: u64) {
        if let Some(KeyLedger { ledger, .. }) = self.ledgers.get_mut(&self.fingerprint) {
            ledger.lower_behind(mark, units);
        }
    }

    fn changes_at(&self, now: Tick) -> Option<Tick> {
        let (own, _) = self.core.overrides.look(self.fingerprint, now);
        let own = own.filter(|own| own.is_override && own.until > now)?;
        (own.until < Tick::MAX).then_some(own.until)
    }

    fn without_room(&self, now: Tick, cost: u64) -> Decision {
        let decision = self.core.refusal_without_room(self.key(), now, cost);
        decision.because(Reason::Saturated)
    }

    fn with_timer<R>(&mut self, work: impl FnOnce(&mut QueueTimer, &Clock) -> R) -> R {
        work(&mut lock(&self.core.due_times).timer, &self.core.clock)
    }
}

impl KeyClaims<'_> {
    /// Returns how many callers wait for the key.
    pub(super) fn waiting(&self) -> usize {
        self.queue().map_or(0, |queue| queue.waiting.len())
    }

    /// Returns how much is booked for the waiting callers, in units.
    pub(crate) fn waiting_units(&self) -> u64 {
        self.queue().map_or(0, |queue| queue.bookings.length)
    }

    fn queue(&self) -> Option<&LimiterQueue> {
        self.shard.queues.get(&self.fingerprint).map(|known| &*known.queue)
    }

    /// Changes the queue if there is one, without settling it.
    pub(crate) fn change_queue(&mut self, change: impl FnOnce(&mut LimiterQueue)) {
        if let Some(known) = self.shard.queues.get_mut(&self.fingerprint) {
            change(&mut known.queue);
        }
    }

    /// Runs `work` on the queue of the key, if there is one.
    pub(crate) fn with_queue<R>(
        &mut self,
        core: &Core,
        wakers: &mut WakeList,
        work: impl FnOnce(&mut LockedQueue<'_, LockedKey<'_>>) -> (R, Option<Tick>),
    ) -> Option<R> {
        let (fingerprint, shard) = (self.fingerprint, &mut *self.shard);
        let known = shard.queues.get_mut(&fingerprint)?;
        let caller = Caller { core, own: None };
        let done = known.work(&caller, (fingerprint, &mut shard.ledgers), wakers, work);
        shard.remove_if_idle(fingerprint);
        Some(done)
    }

    /// Runs `work` on the queue of the key, which is made if there is none, because a caller comes.
    pub(super) fn with_own_queue<R>(
        &mut self,
        core: &Arc<Core>,
        wakers: &mut WakeList,
        work: impl FnOnce(&mut LockedQueue<'_, LockedKey<'_>>) -> (R, Option<Tick>),
    ) -> R {
        let (fingerprint, shard) = (self.fingerprint, &mut *self.shard);
        let spares = &mut shard.spares;
        let fresh = || Box::new(LimiterQueue::new(core.queue_rules.order));
        let known = shard
            .queues
            .entry(fingerprint)
            .or_insert_with(|| KeyQueue { queue: spares.pop().unwrap_or_else(fresh), due: None });
        let caller = Caller { core, own: Some(core) };
        let done = known.work(&caller, (fingerprint, &mut shard.ledgers), wakers, work);
        shard.remove_if_idle(fingerprint);
        done
    }

    /// Takes what is booked for the waiting callers out of the key's state, before that changes.
    pub(crate) fn unbook(&mut self, core: &Core) {
        let Shard { queues, ledgers, .. } = &mut *self.shard;
        if let Some(known) = queues.get_mut(&self.fingerprint) {
            known.unbook(core, (self.fingerprint, ledgers));
        }
    }
}

impl Shard {
    /// Removes a queue without callers.
    fn remove_if_idle(&mut self, fingerprint: u64) {
        if self.queues.get(&fingerprint).is_some_and(|known| known.queue.waiting.is_idle())
            && let Some(KeyQueue { queue, .. }) = self.queues.remove(&fingerprint)
            && self.spares.len() < SPARES
            && queue.waiting.places() <= SPARE_PLACES
        {
            self.spares.push(queue);
        }
    }

    /// Takes what is booked for callers who wait for keys of this quota, or of any, out of their states.
    pub(super) fn unbook(&mut self, core: &Core, quota: Option<&Arc<RuleCell>>) {
        let now = core.clock.now();
        for (fingerprint, known) in &mut self.queues {
            let has = |quota| Arc::ptr_eq(&core.cell_of(*fingerprint, now), quota);
            if quota.is_none_or(has) {
                known.unbook(core, (*fingerprint, &mut self.ledgers));
            }
        }
    }

    /// The states are gone, and what was booked with them.
    pub(crate) fn lose_bookings(&mut self) {
        self.queues.values_mut().for_each(|known| known.queue.lose_bookings());
    }

    /// Runs `work` on all queues of the shard.
    pub(super) fn each_queue(
        &mut self,
        core: &Core,
        wakers: &mut WakeList,
        mut work: impl FnMut(&mut LockedQueue<'_, LockedKey<'_>>) -> Option<Tick>,
    ) {
        let (ledgers, caller) = (&mut self.ledgers, Caller { core, own: None });
        self.queues.retain(|fingerprint, known| {
            known.work(&caller, (*fingerprint, ledgers), wakers, |locked| ((), work(locked)));
            !known.queue.waiting.is_idle()
        });
    }
}

/// The limiter for which work at a queue is done.
pub(super) struct Caller<'a> {
    pub(super) core: &'a Core,
    /// The same, if a caller may come to wait.
    pub(super) own: Option<&'a Arc<Core>>,
}

impl KeyQueue {
    /// Takes what is booked out of the state.
    fn unbook(&mut self, core: &Core, (fingerprint, ledgers): (u64, &mut Ledgers)) {
        let state = LockedKey { core, fingerprint, ledgers, has_place: false };
        let (queue, now) = (&mut *self.queue, core.clock.now());
        LockedQueue { queue, state, now, wakers: &mut WakeList::new() }.unbook_all();
        self.queue.forget_claims();
    }

    /// Runs `work`, counts the waiting callers, and sets the timer to the next due time.
    fn work<R>(
        &mut self,
        caller: &Caller<'_>,
        (fingerprint, ledgers): (u64, &mut Ledgers),
        wakers: &mut WakeList,
        work: impl FnOnce(&mut LockedQueue<'_, LockedKey<'_>>) -> (R, Option<Tick>),
    ) -> R {
        let (core, before) = (caller.core, self.queue.waiting.len());
        let state = LockedKey { core, fingerprint, ledgers, has_place: false };
        let (queue, now) = (&mut *self.queue, core.clock.now());
        let mut locked = LockedQueue { queue, state, now, wakers: &mut *wakers };
        let (done, target) = work(&mut locked);
        let has_place = locked.state.has_place;
        let counted = before + usize::from(has_place);
        let after = self.queue.waiting.len();
        core.waiting.add(after.saturating_sub(counted) as u64);
        core.waiting.lower(counted.saturating_sub(after) as u64);
        // A caller who took a place and did not wait may have kept another from seeing that none waits.
        if self.due != target || (before == 0) != (after == 0) || has_place {
            lock(&core.due_times).put(caller, fingerprint, (&mut self.due, target), wakers);
        }
        wakers.push(target.and_then(|target| self.queue.thread_to_wake(target)));
        done
    }
}
