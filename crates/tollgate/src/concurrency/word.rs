//! The host of one line: a word for those who need not wait, and a lock for the others.
//!
//! | bits | what | range |
//! |---|---|---|
//! | 0 to 29 | permits in flight | up to 1 billion |
//! | 30 to 59 | limit | up to 1 billion |
//! | 60 | seized: whoever holds the lock is changing the line | |
//! | 61 | somebody waits | |
//! | 62 | closed | |
//!
//! Limit and count are one word, so no admission pairs an old limit with a new count, and a
//! refusal's numbers belong together.
//!
//! INVARIANT: while the word is seized or somebody waits, only the holder of the lock changes it.
//! The fast paths exchange a word with neither flag, so setting one makes them fail; a release that
//! finds one takes the lock, where it sees the queue. Hence no release slips past a waiter that is
//! about to sleep (`tests/loom/concurrency.rs`).

use super::{
    counts::Tally,
    full::{Full, Why},
    line::{Entered, Gauge, Line, Wakes},
};
use crate::sync::{
    AtomicU64, Mutex,
    Ordering::{Acquire, Relaxed, Release},
    fence, lock, spin_loop,
};
use std::task::{Poll, Waker};

const FIELD_BITS: u32 = 30;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
const SEIZED: u64 = 1 << 60;
const WAITED_FOR: u64 = 1 << 61;
const CLOSED: u64 = 1 << 62;

const _: () = assert!(super::line::LIMIT_MAX <= FIELD);

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
    /// How many wait, for those who do not want the lock.
    waiting: AtomicU64,
    /// Its gauge is that of the word only within [`locked`](Self::locked).
    line: Mutex<Line>,
    pub(super) name: Box<str>,
    pub(super) max_waiting: u64,
    pub(super) tally: Tally,
}

impl Single {
    pub(super) fn new(limit: u32, max_waiting: u64, name: Box<str>, tally: Tally) -> Self {
        let gauge = Gauge::new(limit);
        Self {
            word: AtomicU64::new(pack(gauge)),
            waiting: AtomicU64::new(0),
            line: Mutex::new(Line::new(gauge)),
            name,
            max_waiting,
            tally,
        }
    }

    /// Returns the gauge as of a moment ago.
    pub(super) fn gauge(&self) -> Gauge {
        // ORDERING: Relaxed. A look: it orders nothing else.
        unpack(self.word.load(Relaxed))
    }

    pub(super) fn waiting(&self) -> u64 {
        // ORDERING: Relaxed. A look, as in `gauge`.
        self.waiting.load(Relaxed)
    }

    /// Takes `cost` permits, or says why not.
    ///
    /// What does not fit is refused without a lock and without a write. What fits while somebody
    /// changes the line is decided after that change, under the lock.
    #[inline]
    pub(super) fn try_enter(&self, cost: u64) -> Result<(), Full> {
        // ORDERING: Relaxed. A refusal publishes nothing, and a stale word makes the exchange fail.
        let mut seen = self.word.load(Relaxed);
        loop {
            let gauge = unpack(seen);
            if let Some(why) = gauge.refusal(cost) {
                // ORDERING: Acquire pairs with the Release of `locked`: the number of waiters read
                // next is at least as new as the word, so nobody finds an emptied queue full.
                fence(Acquire);
                return Err(gauge.full(cost, self.waiting(), why));
            }
            if seen & SEIZED != 0 {
                return self.locked(|line, _| line.try_enter(cost));
            }
            let next = gauge.with(cost);
            // ORDERING: Acquire pairs with the Release of `give_back` and `locked`: what earlier
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
    pub(super) fn enter(&self, cost: u64, waker: &Waker) -> Entered {
        let refused = match self.try_enter(cost) {
            Ok(()) => return Entered::Passed,
            Err(full) if full.why != Why::Busy => return Entered::Refused(full),
            Err(full) => full,
        };
        // A queue that is full refuses without the lock, so that overload does not queue up there.
        if let Err(why) = self.place(refused.waiting) {
            return Entered::Refused(Full { why, ..refused });
        }
        // Cloned before the lock is taken, and dropped after: both may be a stranger's code.
        let mut waker = waker.clone();
        self.locked(|line, _| line.enter(cost, &mut waker, |waiting| self.place(waiting)))
    }

    fn place(&self, waiting: u64) -> Result<(), Why> {
        match waiting < self.max_waiting {
            true => Ok(()),
            false => Err(Why::QueueFull { max_waiting: self.max_waiting }),
        }
    }

    pub(super) fn fetch(&self, ticket: u64, waker: &Waker) -> Poll<Result<(), Full>> {
        // As in `enter`.
        let mut waker = waker.clone();
        lock(&self.line).fetch(ticket, &mut waker)
    }

    pub(super) fn leave(&self, ticket: u64) {
        self.locked(|line, wakes| line.leave(ticket, wakes));
    }

    pub(super) fn give_back(&self, cost: u64) {
        // ORDERING: Relaxed. A stale word makes the exchange fail.
        let mut seen = self.word.load(Relaxed);
        while seen & (SEIZED | WAITED_FOR) == 0 {
            let next = pack(unpack(seen).without(cost));
            // ORDERING: Release pairs with the Acquire of `try_enter` and `locked`: the next holder
            // sees what this one did.
            match self.word.compare_exchange_weak(seen, next, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
            spin_loop();
        }
        self.locked(|line, wakes| line.give_back(cost, wakes));
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.locked(|line, wakes| line.set_limit(limit, wakes));
    }

    pub(super) fn close(&self) {
        self.locked(|line, wakes| line.close(wakes));
    }

    /// Changes the line with its queue: under the lock, with the word seized. Then wakes.
    fn locked<R>(&self, change: impl FnOnce(&mut Line, &mut Wakes) -> R) -> R {
        let mut wakes = Wakes::default();
        let mut line = lock(&self.line);
        // ORDERING: Acquire, as in `try_enter`: this may admit. The exchanges of the fast paths
        // fail from here on.
        line.gauge = unpack(self.word.fetch_or(SEIZED, Acquire));
        let result = change(&mut line, &mut wakes);
        let gauge = line.gauge;
        // ORDERING: Relaxed. The lock keeps writers apart, and the store below publishes it.
        self.waiting.store(line.waiting(), Relaxed);
        // ORDERING: Release, as in `give_back`: this may release, and what was acquired above goes
        // on to the next holder. A plain store, because nobody else writes a seized word.
        self.word.store(pack(gauge), Release);
        drop(line);
        self.tally.peak(gauge.in_flight);
        wakes.fire();
        result
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_a_gauge_at_its_edges() {
        let most = super::super::line::LIMIT_MAX as u32;
        for limit in [0, 1, most] {
            for in_flight in [0, 1, most] {
                for (waited_for, closed) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    let gauge = Gauge { limit, in_flight, waited_for, closed };
                    assert_eq!(unpack(pack(gauge)), gauge);
                    assert_eq!(unpack(pack(gauge) | SEIZED), gauge);
                }
            }
        }
    }
}
