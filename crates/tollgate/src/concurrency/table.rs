//! The host of many queues: one for each key in use, spread over locked shards.
//!
//! Keys are fingerprints. A queue whose last permit has come back, with nobody in the queue, equals
//! an absent one and is removed at once, so memory follows what is in flight. Every bound is
//! counted in one number and checked as it is raised, so it holds exactly.
//!
//! Lock order: terms, then one shard. Wakers are fired when neither is held.

use super::{
    counts::Tally,
    full::{Full, Why},
    permit::Owner,
    queue::{Entered, Gauge, PermitQueue},
    timer::{Timer, WaitRules},
};
use crate::{
    keyed::fingerprint::Seed,
    sync::{Count, Mutex, Padded, lock},
    table::{FingerprintMap, SHARDS, shrink},
    wait::{
        WakeList,
        queue::{Request, Ticket},
    },
};
use std::task::{Poll, Waker};

/// The bits that choose the shard: not the low ones nor the top ones, which the maps use.
const SHARD_SHIFT: u32 = 40;

/// All keys of one [`KeyedConcurrency`](super::KeyedConcurrency).
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Padded<Mutex<Shard>>]>,
    terms: Mutex<Terms>,
    pub(super) seed: Seed,
    pub(super) name: Box<str>,
    pub(super) bounds: Bounds,
    pub(super) timer: Timer,
    pub(super) tally: Tally,
    pub(super) keys: Count,
    pub(super) waiting: Count,
    pub(super) overrides: Count,
}

/// What holds for all keys.
#[derive(Clone, Copy, Debug)]
struct Terms {
    limit: u32,
    closed: bool,
}

/// Bounds on waiting calls, keys and limits of single keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) max_waiting_total: u64,
    pub(super) max_keys: u64,
    pub(super) max_overrides: u64,
}

#[derive(Debug)]
struct Shard {
    /// A copy, so that a key needs one lock.
    terms: Terms,
    queues: FingerprintMap<PermitQueue>,
    overrides: FingerprintMap<u32>,
    /// The sum over the queues.
    in_flight: u64,
}

impl Table {
    pub(super) fn new(
        limit: u32,
        (bounds, rules): (Bounds, WaitRules),
        name: Box<str>,
        tally: Tally,
    ) -> Self {
        let terms = Terms { limit, closed: false };
        let shard = || Shard {
            terms,
            queues: FingerprintMap::default(),
            overrides: FingerprintMap::default(),
            in_flight: 0,
        };
        Self {
            shards: std::iter::repeat_with(|| Padded(Mutex::new(shard()))).take(SHARDS).collect(),
            terms: Mutex::new(terms),
            seed: Seed::random(),
            name,
            bounds,
            timer: Timer::new(rules),
            tally,
            keys: Count::default(),
            waiting: Count::default(),
            overrides: Count::default(),
        }
    }

    fn shard(&self, key: u64) -> &Mutex<Shard> {
        &self.shards[(key >> SHARD_SHIFT) as usize % SHARDS].0
    }

    pub(super) fn try_enter(&self, key: u64, cost: u64) -> Result<(), Full> {
        self.take(&mut lock(self.shard(key)), key, cost)
    }

    pub(super) fn enter(
        &self,
        (owner, key): (&Owner, u64),
        cost: u64,
        request: impl FnOnce() -> Request,
        waker: &Waker,
    ) -> Entered {
        // Cloned before the lock is taken, and dropped after: both may run foreign code.
        let (mut waker, mut wakers) = (waker.clone(), WakeList::new());
        let mut shard = lock(self.shard(key));
        let full = match self.take(&mut shard, key, cost) {
            Ok(()) => return Entered::Passed,
            Err(full) => full,
        };
        let request = (request(), self.timer.rules.order, &mut waker);
        let Shard { queues, in_flight, .. } = &mut *shard;
        // A key that is not in use refuses only what no wait would help.
        let Some(queue) = queues.get_mut(&key) else { return Entered::Refused(full) };
        let before = queue.gauge.in_flight;
        let has_room = |waiting| self.has_room(waiting);
        let entered = queue.queue_up(full, request, &mut wakers, has_room);
        *in_flight += u64::from(queue.gauge.in_flight - before);
        if let Some(timer) = queue.reset_timer() {
            owner.set_timer(key, timer, &mut wakers);
        }
        drop(shard);
        wakers.fire();
        entered
    }

    pub(super) fn fetch(
        &self,
        owner: (&Owner, u64),
        ticket: Ticket,
        waker: &Waker,
    ) -> Poll<Result<(), Full>> {
        // As in `enter`.
        let mut waker = waker.clone();
        self.change(owner, |queue, _| queue.fetch(ticket, &mut waker)).unwrap_or(Poll::Pending)
    }

    /// Takes `cost` permits of a key, which gets a queue if it has none, or says why not.
    fn take(&self, shard: &mut Shard, key: u64, cost: u64) -> Result<(), Full> {
        let in_flight = match shard.queues.get_mut(&key) {
            Some(queue) => {
                queue.try_enter(cost)?;
                queue.gauge.in_flight
            }
            None => {
                let gauge = shard.fresh(key);
                let mut queue = PermitQueue::new(gauge);
                queue.try_enter(cost)?;
                // A cost of nothing leaves nothing to remember.
                if cost > 0 {
                    let max_keys = self.bounds.max_keys;
                    if !self.keys.raise(max_keys) {
                        return Err(gauge.full(cost, 0, Why::TooManyKeys { max_keys }));
                    }
                    shard.queues.insert(key, queue);
                }
                cost as u32 // OVERFLOW: it fitted the limit, a `u32`.
            }
        };
        shard.in_flight += cost; // OVERFLOW: a billion keys of a billion permits are below 2^60.
        self.tally.peak(in_flight);
        Ok(())
    }

    /// Gives a place in the queue of a key in which `waiting` wait, and counts it.
    fn has_room(&self, waiting: u64) -> Result<(), Why> {
        let (max_waiting, max_waiting_total) =
            (self.timer.rules.max_waiting, self.bounds.max_waiting_total);
        if waiting >= max_waiting {
            return Err(Why::QueueFull { max_waiting });
        }
        match self.waiting.raise(max_waiting_total) {
            true => Ok(()),
            false => Err(Why::QueuesFull { max_waiting_total }),
        }
    }

    /// Changes the queue of a key in use; removes it if that left it idle. Then wakes.
    pub(super) fn change<R>(
        &self,
        (owner, key): (&Owner, u64),
        change: impl FnOnce(&mut PermitQueue, &mut WakeList) -> R,
    ) -> Option<R> {
        let mut wakers = WakeList::new();
        let result =
            self.change_locked((owner, key), &mut lock(self.shard(key)), &mut wakers, change);
        wakers.fire();
        result
    }

    fn change_locked<R>(
        &self,
        (owner, key): (&Owner, u64),
        shard: &mut Shard,
        wakers: &mut WakeList,
        change: impl FnOnce(&mut PermitQueue, &mut WakeList) -> R,
    ) -> Option<R> {
        let queue = shard.queues.get_mut(&key)?;
        let result = self.change_queue((owner, key), (queue, &mut shard.in_flight), wakers, change);
        if queue.is_idle() {
            shard.queues.remove(&key);
            self.keys.lower(1);
            shrink(&mut shard.queues);
        }
        Some(result)
    }

    /// Changes a queue, and the sums with it. The change puts nobody into the queue.
    fn change_queue<R>(
        &self,
        (owner, key): (&Owner, u64),
        (queue, sum): (&mut PermitQueue, &mut u64),
        wakers: &mut WakeList,
        change: impl FnOnce(&mut PermitQueue, &mut WakeList) -> R,
    ) -> R {
        let (in_flight, waiting) = (queue.gauge.in_flight, queue.waiting());
        queue.expire_late(|| self.timer.rules.clock.about_now(), wakers);
        let result = change(queue, wakers);
        if let Some(timer) = queue.reset_timer() {
            owner.set_timer(key, timer, wakers);
        }
        queue.shrink(0);
        // INVARIANT: the sum includes what this queue had in flight; nobody has joined it.
        *sum = *sum - u64::from(in_flight) + u64::from(queue.gauge.in_flight);
        self.waiting.lower(waiting - queue.waiting());
        self.tally.peak(queue.gauge.in_flight);
        result
    }

    /// Changes what holds for all keys, shard by shard, with each queue in use. Then wakes.
    fn change_all(
        &self,
        owner: &Owner,
        change: impl Fn(&mut Terms),
        change_queue: impl Fn(&mut PermitQueue, Option<u32>, &mut WakeList),
    ) {
        let mut wakers = WakeList::new();
        let mut terms = lock(&self.terms);
        change(&mut terms);
        for shard in &self.shards {
            let Shard { terms: copy, queues, overrides, in_flight } = &mut *lock(&shard.0);
            *copy = *terms;
            let before = queues.len();
            queues.retain(|key, queue| {
                let own = overrides.get(key).copied();
                self.change_queue(
                    (owner, *key),
                    (queue, in_flight),
                    &mut wakers,
                    |queue, wakers| {
                        change_queue(queue, own, wakers);
                    },
                );
                !queue.is_idle()
            });
            self.keys.lower((before - queues.len()) as u64);
            shrink(queues);
        }
        drop(terms);
        wakers.fire();
    }

    /// Changes the limit of all keys that have none of their own.
    pub(super) fn set_limit(&self, owner: &Owner, limit: u32) {
        self.change_all(
            owner,
            |terms| terms.limit = limit,
            |queue, own, wakers| queue.set_limit(own.unwrap_or(limit), wakers),
        );
    }

    pub(super) fn close(&self, owner: &Owner) {
        self.change_all(owner, |terms| terms.closed = true, |queue, _, wakers| queue.close(wakers));
    }

    /// Gives a key a limit of its own, or takes it away. Tells whether there was room for it.
    pub(super) fn set_key_limit(&self, (owner, key): (&Owner, u64), own: Option<u32>) -> bool {
        let mut wakers = WakeList::new();
        let mut shard = lock(self.shard(key));
        let is_known = shard.overrides.contains_key(&key);
        match own {
            Some(limit) if is_known || self.overrides.raise(self.bounds.max_overrides) => {
                shard.overrides.insert(key, limit);
            }
            None if is_known => {
                shard.overrides.remove(&key);
                self.overrides.lower(1);
                shrink(&mut shard.overrides);
            }
            own => return own.is_none(),
        }
        let limit = own.unwrap_or(shard.terms.limit);
        self.change_locked((owner, key), &mut shard, &mut wakers, |queue, wakers| {
            queue.set_limit(limit, wakers);
        });
        drop(shard);
        wakers.fire();
        true
    }

    /// Returns the gauge of a key, and how many wait for it.
    pub(super) fn look(&self, key: u64) -> (Gauge, u64) {
        let shard = lock(self.shard(key));
        match shard.queues.get(&key) {
            Some(queue) => (queue.gauge, queue.waiting()),
            None => (shard.fresh(key), 0),
        }
    }

    /// Returns the limit of keys that have none of their own.
    pub(super) fn limit(&self) -> u64 {
        lock(&self.terms).limit.into()
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.terms).closed
    }

    pub(super) fn total_in_flight(&self) -> u64 {
        self.shards.iter().map(|shard| lock(&shard.0).in_flight).sum()
    }
}

impl Shard {
    /// Returns the gauge of a key that is not in use.
    fn fresh(&self, key: u64) -> Gauge {
        let limit = self.overrides.get(&key).copied().unwrap_or(self.terms.limit);
        Gauge { closed: self.terms.closed, ..Gauge::new(limit) }
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
