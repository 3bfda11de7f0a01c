//! The host of one queue: a word for calls that need not wait, and a lock for the others.
//!
//! | bits | what | range |
//! |---|---|---|
//! | 0 to 29 | permits in flight | up to 1 billion |
//! | 30 to 59 | limit | up to 1 billion |
//! | 60 | seized: the holder of the lock is changing the queue | |
//! | 61 | a call waits | |
//! | 62 | closed | |
//!
//! Limit and count are one word, so no admission pairs an old limit with a new count, and a
//! refusal's numbers belong together.
//!
//! INVARIANT: while the word is seized or a call waits, only the holder of the lock changes it.
//! The fast paths exchange a word with neither flag, so setting one makes them fail; a release that
//! finds one takes the lock, where it sees the queue. Hence no release slips past a waiter that is
//! about to sleep (`tests/loom/concurrency.rs`).

use super::{
    counts::Tally,
    full::{Full, Why},
    permit::Owner,
    queue::{Entered, Gauge, PermitQueue},
    timer::{Timer, WaitRules},
};
use crate::{
    Tick,
    sync::{
        AtomicU64, Mutex,
        Ordering::{Acquire, Relaxed, Release},
        fence, lock, spin_loop,
    },
    wait::{
        WakeList,
        queue::{Request, Ticket},
    },
};
use std::task::{Poll, Waker};

const FIELD_BITS: u32 = 30;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
const SEIZED: u64 = 1 << 60;
const WAITED_FOR: u64 = 1 << 61;
const CLOSED: u64 = 1 << 62;

const _: () = assert!(super::queue::LIMIT_MAX <= FIELD);

/// Bits of the level beside the number of those who wait.
const LEVEL_BITS: u32 = 8;

/// Places that a queue keeps memory for when nobody waits.
const PLACES_KEPT: usize = 1024;

fn pack(gauge: Gauge) -> u64 {
    let flag = |is: bool, flag: u64| if is { flag } else { 0 };
    u64::from(gauge.in_flight)
        | u64::from(gauge.limit) << FIELD_BITS
        | flag(gauge.waited_for, WAITED_FOR)
        | flag(gauge.closed, CLOSED)
}

fn unpack(word: u64) -> Gauge {
    Gauge {
        // OVERFLOW: a field has 30 bits.
        in_flight: (word & FIELD) as u32,
        limit: (word >> FIELD_BITS & FIELD) as u32,
        waited_for: word & WAITED_FOR != 0,
        closed: word & CLOSED != 0,
    }
}

/// One limit. Clones of [`Concurrency`](super::Concurrency) share it.
#[derive(Debug)]
pub(super) struct Single {
    word: AtomicU64,
    /// How many wait, and in the upper bits the lowest level of them, for those who do not want the lock.
    waiting: AtomicU64,
    /// Its gauge is that of the word only within [`change`](Self::change).
    queue: Mutex<PermitQueue>,
    pub(super) name: Box<str>,
    pub(super) timer: Timer,
    pub(super) tally: Tally,
}

impl Single {
    pub(super) fn new(limit: u32, rules: WaitRules, name: Box<str>, tally: Tally) -> Self {
        let gauge = Gauge::new(limit);
        Self {
            word: AtomicU64::new(pack(gauge)),
            waiting: AtomicU64::new(0),
            queue: Mutex::new(PermitQueue::new(gauge)),
            name,
            timer: Timer::new(rules),
            tally,
        }
    }

    /// Returns the gauge as of a moment ago.
    pub(super) fn gauge(&self) -> Gauge {
        // ORDERING: Relaxed. A look: it orders nothing else.
        unpack(self.word.load(Relaxed))
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting_and_level().0
    }

    fn waiting_and_level(&self) -> (u64, usize) {
        // ORDERING: Relaxed. A look, as in `gauge`.
        let word = self.waiting.load(Relaxed);
        (word & (u64::MAX >> LEVEL_BITS), (word >> (u64::BITS - LEVEL_BITS)) as usize)
    }

    /// Takes `cost` permits, or says why not.
    ///
    /// A call that does not fit is refused without a lock and without a write. One that fits while another
    /// thread changes the queue is decided after that change, under the lock.
    #[inline]
    pub(super) fn try_enter(&self, owner: impl FnOnce() -> Owner, cost: u64) -> Result<(), Full> {
        // ORDERING: Relaxed. A refusal publishes nothing, and a stale word makes the exchange fail.
        let mut seen = self.word.load(Relaxed);
        loop {
            let gauge = unpack(seen);
            if let Some(why) = gauge.refusal(cost) {
                // ORDERING: Acquire pairs with the Release of `change`: the number of waiters read
                // next is at least as new as the word, so nobody finds an emptied queue full.
                fence(Acquire);
                return Err(gauge.full(cost, self.waiting(), why));
            }
            if seen & SEIZED != 0 {
                return self.change(&owner(), |queue, _| queue.try_enter(cost));
            }
            let next = gauge.with(cost);
            // ORDERING: Acquire pairs with the Release of `give_back` and `change`: what earlier
            // holders did comes before what this one does. Exchanges between them keep the chain.
            match self.word.compare_exchange_weak(seen, pack(next), Acquire, Relaxed) {
                Ok(_) => {
                    self.tally.peak(next.in_flight);
                    return Ok(());
                }
                Err(now) => seen = now,
            }
            spin_loop();
        }
    }

    /// Takes `cost` permits, or a place in the queue, or says why not.
    pub(super) fn enter(
        &self,
        owner: &Owner,
        cost: u64,
        request: impl FnOnce() -> Request,
        waker: &Waker,
    ) -> Entered {
        let refused = match self.try_enter(|| owner.clone(), cost) {
            Ok(()) => return Entered::Passed,
            Err(full) if full.why != Why::Busy => return Entered::Refused(full),
            Err(full) => full,
        };
        let request = request();
        // A queue that is full refuses without the lock, so that overload does not queue up there.
        let (waiting, lowest) = self.waiting_and_level();
        if let Err(why) = self.has_room(waiting)
            && request.priority.level() >= lowest
        {
            return Entered::Refused(Full { why, ..refused });
        }
        // Cloned before the lock is taken, and dropped after: both may run foreign code.
        let (mut waker, order) = (waker.clone(), self.timer.rules.order);
        self.change_at(
            owner,
            || request.since,
            |queue, wakers| match queue.try_enter(cost) {
                Ok(()) => Entered::Passed,
                Err(full) => {
                    let has_room = |waiting| self.has_room(waiting);
                    queue.queue_up(full, (request, order, &mut waker), wakers, has_room)
                }
            },
        )
    }

    fn has_room(&self, waiting: u64) -> Result<(), Why> {
        let max_waiting = self.timer.rules.max_waiting;
        if waiting < max_waiting { Ok(()) } else { Err(Why::QueueFull { max_waiting }) }
    }

    pub(super) fn fetch(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<(), Full>> {
        // As in `enter`.
        let mut waker = waker.clone();
        lock(&self.queue).fetch(ticket, &mut waker)
    }

    /// Takes `cost` permits out of flight; `false` if calls wait or a thread changes the queue, so that the lock is
    /// needed.
    pub(super) fn give_back(&self, cost: u64) -> bool {
        // ORDERING: Relaxed. A stale word makes the exchange fail.
        let mut seen = self.word.load(Relaxed);
        while seen & (SEIZED | WAITED_FOR) == 0 {
            let next = pack(unpack(seen).without(cost));
            // ORDERING: Release pairs with the Acquire of `try_enter` and `change`: the next holder
            // sees what this one did.
            match self.word.compare_exchange_weak(seen, next, Release, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
            spin_loop();
        }
        false
    }

    pub(super) fn change<R>(
        &self,
        owner: &Owner,
        change: impl FnOnce(&mut PermitQueue, &mut WakeList) -> R,
    ) -> R {
        self.change_at(owner, || self.timer.rules.clock.about_now(), change)
    }

    /// Changes the gauge with its queue: under the lock, with the word seized. Then wakes.
    fn change_at<R>(
        &self,
        owner: &Owner,
        now: impl FnOnce() -> Tick,
        change: impl FnOnce(&mut PermitQueue, &mut WakeList) -> R,
    ) -> R {
        let mut wakers = WakeList::new();
        let mut queue = lock(&self.queue);
        // ORDERING: Acquire, as in `try_enter`: this may admit. The exchanges of the fast paths
        // fail from here on.
        queue.gauge = unpack(self.word.fetch_or(SEIZED, Acquire));
        queue.expire_late(now, &mut wakers);
        let result = change(&mut queue, &mut wakers);
        if let Some(timer) = queue.reset_timer() {
            owner.set_timer(0, timer, &mut wakers);
        }
        queue.shrink(PLACES_KEPT);
        let (gauge, level) = (queue.gauge, queue.lowest_level() as u64);
        // ORDERING: Relaxed. The lock keeps writers apart, and the store below publishes it.
        self.waiting.store(queue.waiting() | level << (u64::BITS - LEVEL_BITS), Relaxed);
        // ORDERING: Release, as in `give_back`: this may release, and what was acquired above goes
        // on to the next holder. A plain store, because nobody else writes a seized word.
        self.word.store(pack(gauge), Release);
        drop(queue);
        self.tally.peak(gauge.in_flight);
        wakers.fire();
        result
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
