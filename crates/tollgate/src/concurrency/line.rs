//! Who may enter, who waits, and who is next: a pure state machine.
//!
//! The idea: a [`Gauge`] says how much is in flight and how much may be; a [`Line`] is a gauge with
//! the people who wait for it, first come, first served. A request of cost c passes when nobody
//! waits and `in_flight + c <= limit`. Whatever may free permits (a release, a waiter that leaves,
//! a higher limit) ends in [`Line::pump`], which admits from the head for as long as the head fits.
//! Nobody overtakes, so a big request at the head waits for at most what was in flight before it.
//!
//! State and units: permits, as whole numbers up to [`LIMIT_MAX`]. A waiter is a ticket, a number
//! that grows. An answered ticket holds its answer until its owner comes for it; a granted one is
//! in flight already. Everything is exact, and there is no time.
//!
//! Cost: O(1) without waiters; O(log w) among w waiters; a lower limit or a close visits them all.
//!
//! No clock, no lock, no atomics, and wakers are only collected: whoever hosts a line fires them
//! after its lock is released.

use super::full::{Full, Why};
use std::{
    collections::BTreeMap,
    task::{Poll, Waker},
};

/// The highest limit: so that limit, in flight and flags fit one word.
pub(super) const LIMIT_MAX: u64 = 1_000_000_000;

/// How much is in flight, and how much may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gauge {
    /// At most [`LIMIT_MAX`].
    pub(super) limit: u32,
    /// INVARIANT: at most [`LIMIT_MAX`]: it only rises to at most the limit of that moment.
    pub(super) in_flight: u32,
    /// Somebody waits.
    pub(super) waited_for: bool,
    pub(super) closed: bool,
}

impl Gauge {
    pub(super) const fn new(limit: u32) -> Self {
        Self { limit, in_flight: 0, waited_for: false, closed: false }
    }

    /// Tells why a request may not pass now; `None` if it may.
    pub(super) fn refusal(&self, cost: u64) -> Option<Why> {
        if self.closed {
            Some(Why::Closed)
        } else if cost > u64::from(self.limit) {
            Some(Why::Never)
        } else if self.waited_for || !self.fits(cost) {
            Some(Why::Busy)
        } else {
            None
        }
    }

    fn fits(&self, cost: u64) -> bool {
        // OVERFLOW: a cost that is not below the limit does not reach the sum.
        cost <= u64::from(self.limit) && u64::from(self.in_flight) + cost <= u64::from(self.limit)
    }

    /// Returns the gauge with `cost` more in flight, for a request that [`fits`](Self::fits).
    #[must_use]
    pub(super) fn with(self, cost: u64) -> Self {
        debug_assert!(self.fits(cost));
        // OVERFLOW: what fits is at most the limit, a `u32`.
        Self { in_flight: self.in_flight + cost as u32, ..self }
    }

    /// Returns the gauge with `cost` less in flight.
    #[must_use]
    pub(super) fn without(self, cost: u64) -> Self {
        // INVARIANT: only what is in flight is given back, once, by the permit that holds it.
        debug_assert!(cost <= u64::from(self.in_flight));
        Self { in_flight: u64::from(self.in_flight).saturating_sub(cost) as u32, ..self }
    }

    pub(super) fn available(&self) -> u64 {
        match self.closed || self.waited_for {
            true => 0,
            false => u64::from(self.limit.saturating_sub(self.in_flight)),
        }
    }

    pub(super) fn full(&self, cost: u64, waiting: u64, why: Why) -> Full {
        let (limit, in_flight) = (u64::from(self.limit), u64::from(self.in_flight));
        Full { limit, in_flight, waiting, cost, why }
    }
}

/// A gauge and those who wait for it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) gauge: Gauge,
    /// None while nobody waits and every answer has been fetched, so that a line is small.
    waits: Option<Box<Waits>>,
}

#[derive(Debug, Default)]
struct Waits {
    /// Tickets in order: the first one is the head.
    queue: BTreeMap<u64, Waiter>,
    answers: BTreeMap<u64, Answer>,
    /// The next ticket. It may start anew with the box: then no ticket is out.
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    cost: u64,
    waker: Waker,
}

/// What a ticket has got: permits, which are in flight from then on, or a refusal.
#[derive(Debug)]
enum Answer {
    Granted { cost: u64 },
    Refused(Full),
}

/// What became of a request that may wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    Passed,
    /// It waits, with this ticket.
    Waits(u64),
    Refused(Full),
}

impl Line {
    pub(super) const fn new(gauge: Gauge) -> Self {
        Self { gauge, waits: None }
    }

    /// Returns how many wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waits.as_ref().map_or(0, |waits| waits.queue.len() as u64)
    }

    /// Tells whether nothing is in flight, nobody waits and no answer is to be fetched.
    pub(super) fn is_idle(&self) -> bool {
        self.gauge.in_flight == 0 && self.waits.is_none()
    }

    fn full(&self, cost: u64, why: Why) -> Full {
        self.gauge.full(cost, self.waiting(), why)
    }

    /// Takes `cost` permits, or says why not.
    pub(super) fn try_enter(&mut self, cost: u64) -> Result<(), Full> {
        match self.gauge.refusal(cost) {
            None => {
                self.gauge = self.gauge.with(cost);
                Ok(())
            }
            Some(why) => Err(self.full(cost, why)),
        }
    }

    /// Takes `cost` permits, or a place in the queue if `place` gives one, or says why not.
    pub(super) fn enter(
        &mut self,
        cost: u64,
        waker: &mut Waker,
        place: impl FnOnce(u64) -> Result<(), Why>,
    ) -> Entered {
        match self.try_enter(cost) {
            Ok(()) => Entered::Passed,
            Err(full) => self.queue_up(full, waker, place),
        }
    }

    /// Takes a place in the queue after a refusal, if that is [`Why::Busy`] and `place`, which is
    /// told how many wait, gives one.
    ///
    /// Takes `waker` only then: otherwise the caller drops it, without a lock.
    pub(super) fn queue_up(
        &mut self,
        full: Full,
        waker: &mut Waker,
        place: impl FnOnce(u64) -> Result<(), Why>,
    ) -> Entered {
        if full.why != Why::Busy {
            return Entered::Refused(full);
        }
        if let Err(why) = place(full.waiting) {
            return Entered::Refused(Full { why, ..full });
        }
        let waker = std::mem::replace(waker, Waker::noop().clone());
        let waits = self.waits.get_or_insert_default();
        let ticket = waits.next;
        waits.next += 1; // OVERFLOW: 2^64 waits take centuries.
        waits.queue.insert(ticket, Waiter { cost: full.cost, waker });
        self.gauge.waited_for = true;
        Entered::Waits(ticket)
    }

    /// Fetches the answer of a ticket, which is then no more; or leaves `waker` to be woken.
    ///
    /// A waker that is no longer needed is left in `waker`, so that it is dropped without a lock.
    pub(super) fn fetch(&mut self, ticket: u64, waker: &mut Waker) -> Poll<Result<(), Full>> {
        let Some(waits) = &mut self.waits else { return Poll::Pending };
        if let Some(waiter) = waits.queue.get_mut(&ticket) {
            std::mem::swap(&mut waiter.waker, waker);
            return Poll::Pending;
        }
        let answer = waits.answers.remove(&ticket);
        // INVARIANT: a ticket is in the queue or answered until its owner fetches or leaves.
        debug_assert!(answer.is_some());
        self.tidy();
        match answer {
            None => Poll::Pending,
            Some(Answer::Granted { .. }) => Poll::Ready(Ok(())),
            Some(Answer::Refused(full)) => Poll::Ready(Err(full)),
        }
    }

    /// Takes a ticket out, with whatever it has got: nobody will fetch it.
    pub(super) fn leave(&mut self, ticket: u64, wakes: &mut Wakes) {
        let Some(waits) = &mut self.waits else { return };
        if let Some(waiter) = waits.queue.remove(&ticket) {
            wakes.unused.push(waiter.waker);
        } else if let Some(Answer::Granted { cost }) = waits.answers.remove(&ticket) {
            self.gauge = self.gauge.without(cost);
        }
        self.pump(wakes);
    }

    /// Takes `cost` permits out of flight.
    pub(super) fn give_back(&mut self, cost: u64, wakes: &mut Wakes) {
        self.gauge = self.gauge.without(cost);
        self.pump(wakes);
    }

    /// Changes the limit. Waiters that could never pass under it are told so.
    pub(super) fn set_limit(&mut self, limit: u32, wakes: &mut Wakes) {
        self.gauge.limit = limit;
        self.refuse(wakes, Why::Never, |cost| cost > u64::from(limit));
        self.pump(wakes);
    }

    /// Refuses everybody from now on.
    pub(super) fn close(&mut self, wakes: &mut Wakes) {
        self.gauge.closed = true;
        self.refuse(wakes, Why::Closed, |_| true);
        self.tidy();
    }

    /// Answers the waiters whose cost is `hopeless` with a refusal.
    fn refuse(&mut self, wakes: &mut Wakes, why: Why, hopeless: impl Fn(u64) -> bool) {
        let gauge = self.gauge;
        let Some(waits) = &mut self.waits else { return };
        let hopeless: Vec<u64> = waits
            .queue
            .iter()
            .filter(|(_, waiter)| hopeless(waiter.cost))
            .map(|(&ticket, _)| ticket)
            .collect();
        for ticket in hopeless {
            let Some(Waiter { cost, waker }) = waits.queue.remove(&ticket) else { continue };
            let full = gauge.full(cost, waits.queue.len() as u64, why);
            waits.answers.insert(ticket, Answer::Refused(full));
            wakes.due.push(waker);
        }
    }

    /// Admits from the head for as long as the head fits.
    fn pump(&mut self, wakes: &mut Wakes) {
        let Some(waits) = &mut self.waits else { return };
        while let Some(head) = waits.queue.first_entry() {
            if !self.gauge.fits(head.get().cost) {
                break;
            }
            let (ticket, Waiter { cost, waker }) = head.remove_entry();
            self.gauge = self.gauge.with(cost);
            waits.answers.insert(ticket, Answer::Granted { cost });
            wakes.due.push(waker);
        }
        self.tidy();
    }

    /// INVARIANT: `waited_for` says whether the queue has somebody in it.
    fn tidy(&mut self) {
        self.gauge.waited_for = self.waiting() > 0;
        self.waits.take_if(|waits| waits.queue.is_empty() && waits.answers.is_empty());
    }
}

/// Wakers to fire when no lock is held, in order, and others that are only to be dropped then:
/// both run code of strangers.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    due: Vec<Waker>,
    unused: Vec<Waker>,
}

impl Wakes {
    /// Wakes everybody, also if a waker panics: the others must not wait forever for it.
    pub(super) fn fire(self) {
        struct Rest(std::vec::IntoIter<Waker>);
        impl Drop for Rest {
            fn drop(&mut self) {
                self.0.by_ref().for_each(Waker::wake);
            }
        }
        let mut rest = Rest(self.due.into_iter());
        for waker in rest.0.by_ref() {
            waker.wake();
        }
    }
}
