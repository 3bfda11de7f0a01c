//! Which call enters, which waits and which is next: a pure state machine.
//!
//! The idea: a [`Gauge`] says how much is in flight and how much may be; a [`PermitQueue`] is a gauge with
//! the callers who wait for it ([`Queue`]), the most urgent first. A request of cost c passes when no call
//! waits and `in_flight + c <= limit`. Whatever may free permits (a release, a waiter that leaves,
//! a higher limit) ends in [`PermitQueue::pump`], which admits from the head for as long as the head fits.
//! Nobody overtakes the head, so a big request there waits for at most what was in flight before it.
//!
//! State and units: permits, as whole numbers up to [`LIMIT_MAX`]. An answered ticket holds its answer until its
//! owner comes for it; a granted one is in flight already. The machine refuses a waiter from its deadline on.
//!
//! Cost: O(1) without waiters; O(log w) among w deadlines; a lower limit or a close visits them all.
//!
//! No clock, no lock, no atomics, and wakers are only collected: the host fires them after it has released its lock.

use super::full::{Full, Why};
use crate::{
    Tick,
    wait::{
        WakeList,
        queue::{Order, Queue, Request, SlotState, Ticket},
    },
};
use std::task::{Poll, Waker};

/// The highest limit: so that limit, in flight and flags fit one word.
pub(super) const LIMIT_MAX: u64 = 1_000_000_000;

/// How much is in flight, and how much may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gauge {
    /// At most [`LIMIT_MAX`].
    pub(super) limit: u32,
    /// INVARIANT: at most [`LIMIT_MAX`]: it only rises to at most the limit of that moment.
    pub(super) in_flight: u32,
    /// A call waits.
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
pub(super) struct PermitQueue {
    pub(super) gauge: Gauge,
    /// None while nobody waits and every answer has been fetched, so that a key is small.
    waits: Option<Box<Waits>>,
}

#[derive(Debug)]
struct Waits {
    /// A grant is in flight from then on.
    queue: Queue<Result<(), Full>>,
    /// What the timer is set to: at most the first deadline.
    timer: Option<Tick>,
}

/// How a request that may wait began.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    Passed,
    Waits(Ticket),
    Refused(Full),
}

impl PermitQueue {
    pub(super) const fn new(gauge: Gauge) -> Self {
        Self { gauge, waits: None }
    }

    /// Returns how many wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waits.as_ref().map_or(0, |waits| waits.queue.len() as u64)
    }

    /// Returns the lowest level of those who wait.
    pub(super) fn lowest_level(&self) -> usize {
        let least = self.waits.as_ref().and_then(|waits| waits.queue.least());
        least.map_or(0, |(priority, _)| priority.level())
    }

    /// Tells whether nothing is in flight, nobody waits and no answer is to be fetched.
    pub(super) fn is_idle(&self) -> bool {
        self.gauge.in_flight == 0 && self.waits.as_ref().is_none_or(|waits| waits.queue.is_idle())
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

    /// Takes `cost` permits even beyond the limit, unless it is closed.
    pub(super) fn enter_beyond(&mut self, cost: u32) -> Result<(), Full> {
        let in_flight = self.gauge.in_flight + cost; // OVERFLOW: both are at most a billion.
        if self.gauge.closed || u64::from(in_flight) > LIMIT_MAX {
            return Err(self.full(cost.into(), Why::Closed));
        }
        self.gauge.in_flight = in_flight;
        Ok(())
    }

    /// Takes a place in the queue after a refusal, if that is [`Why::Busy`] and `place`, called with the number of
    /// waiting calls, grants one. If it does not, a less urgent call has to leave. Passes if it is the first to be
    /// served and fits.
    ///
    /// Takes `waker` only if it waits: otherwise the caller drops it, without a lock.
    pub(super) fn queue_up(
        &mut self,
        full: Full,
        (request, order, waker): (Request, Order, &mut Waker),
        wakers: &mut WakeList,
        place: impl FnOnce(u64) -> Result<(), Why>,
    ) -> Entered {
        if full.why != Why::Busy {
            return Entered::Refused(full);
        }
        let gauge = self.gauge;
        let fresh = || Box::new(Waits { queue: Queue::new(order), timer: None });
        let queue = &mut self.waits.get_or_insert_with(fresh).queue;
        if gauge.fits(request.cost) && queue.would_be_first(request.priority) {
            self.gauge = gauge.with(request.cost);
            return Entered::Passed;
        }
        if request.deadline <= request.since {
            return Entered::Refused(Full { why: Why::TimedOut, ..full });
        }
        if let Err(why) = place(full.waiting) {
            match queue.least() {
                Some((priority, least)) if request.priority.is_above(priority) => {
                    let cost = queue.request(least).map_or(0, |request| request.cost);
                    let full = gauge.full(cost, full.waiting, Why::Displaced);
                    wakers.push(queue.answer(least, Err(full)));
                }
                _ => return Entered::Refused(Full { why, ..full }),
            }
        }
        match queue.push(request, std::mem::replace(waker, Waker::noop().clone())) {
            Some(ticket) => {
                self.gauge.waited_for = true;
                Entered::Waits(ticket)
            }
            // More than any bound allows.
            None => {
                Entered::Refused(Full { why: Why::QueueFull { max_waiting: full.waiting }, ..full })
            }
        }
    }

    /// Fetches the answer of a ticket, which is then no more; or leaves `waker` to be woken.
    ///
    /// A waker that is no longer needed is left in `waker`, so that it is dropped without a lock.
    pub(super) fn fetch(&mut self, ticket: Ticket, waker: &mut Waker) -> Poll<Result<(), Full>> {
        let Some(waits) = &mut self.waits else { return Poll::Pending };
        let answer = waits.queue.fetch(ticket, waker);
        // INVARIANT: a ticket is in the queue or answered until its owner fetches or leaves.
        answer.map(|answer| answer.unwrap_or_else(|| Err(self.full(0, Why::Closed))))
    }

    /// Takes a ticket out, with whatever it has got: nobody will fetch it. Returns a waker to be dropped without a lock.
    pub(super) fn leave(&mut self, ticket: Ticket, wakers: &mut WakeList) -> Option<Waker> {
        let queue = &mut self.waits.as_mut()?.queue;
        let cost = queue.request(ticket)?.cost;
        let left = queue.leave(ticket);
        if let Some(SlotState::Answered(Ok(()))) = left {
            self.gauge = self.gauge.without(cost);
        }
        self.pump(wakers);
        if let Some(SlotState::Waits(waker)) = left { Some(waker) } else { None }
    }

    /// Takes `cost` permits out of flight.
    pub(super) fn give_back(&mut self, cost: u64, wakers: &mut WakeList) {
        self.gauge = self.gauge.without(cost);
        self.pump(wakers);
    }

    /// Changes the limit. Waiters that could never pass under it are refused.
    pub(super) fn set_limit(&mut self, limit: u32, wakers: &mut WakeList) {
        self.gauge.limit = limit;
        self.refuse(wakers, Why::Never, |cost| cost > u64::from(limit));
        self.pump(wakers);
    }

    /// Refuses all calls from now on.
    pub(super) fn close(&mut self, wakers: &mut WakeList) {
        self.gauge.closed = true;
        self.refuse(wakers, Why::Closed, |_| true);
        self.pump(wakers);
    }

    /// [`expire`](Self::expire) at the begin of a change, for callers that no timer has refused in time. Reads the
    /// time only if a caller has a deadline.
    ///
    /// INVARIANT: between two changes the timer is set if and only if a caller has a deadline, and to no later than
    /// the first of them, because every change ends with [`reset_timer`](Self::reset_timer). So no caller is late
    /// before that time, and most changes do not look at the deadlines.
    pub(super) fn expire_late(&mut self, now: impl FnOnce() -> Tick, wakers: &mut WakeList) {
        let Some(waits) = &self.waits else { return };
        debug_assert!(match waits.queue.first_deadline() {
            Some((first, _)) => waits.timer.is_some_and(|timer| timer <= first),
            None => waits.timer.is_none(),
        });
        let Some(timer) = waits.timer else { return };
        let now = now();
        if timer <= now {
            self.expire(now, wakers);
        }
    }

    /// Refuses callers whose deadline has come, and admits those who fit then.
    pub(super) fn expire(&mut self, now: Tick, wakers: &mut WakeList) {
        let gauge = self.gauge;
        let Some(waits) = &mut self.waits else { return };
        let mut has_changed = false;
        while let Some((_, ticket)) = waits.queue.first_deadline().filter(|(due, _)| *due <= now) {
            refuse(&mut waits.queue, ticket, gauge, Why::TimedOut, wakers);
            has_changed = true;
        }
        if has_changed {
            self.pump(wakers);
        }
    }

    /// Says when the timer has to be set anew, from what and to what.
    ///
    /// It may stay set to a tick at which no caller is due any more: that is cheaper than to follow each waiter.
    pub(super) fn reset_timer(&mut self) -> Option<(Option<Tick>, Option<Tick>)> {
        let Waits { queue, timer } = &mut **self.waits.as_mut()?;
        let first = queue.first_deadline().map(|(deadline, _)| deadline);
        let is_set = timer.is_some_and(|timer| first.is_some_and(|first| timer <= first));
        (!is_set && *timer != first).then(|| (std::mem::replace(timer, first), first))
    }

    /// The timer has come.
    pub(super) fn timer_came(&mut self, now: Tick, wakers: &mut WakeList) {
        if let Some(waits) = &mut self.waits {
            waits.timer = None;
        }
        self.expire(now, wakers);
    }

    /// Gives the memory of an idle queue back if it has more than `most` places.
    pub(super) fn shrink(&mut self, most: usize) {
        self.waits.take_if(|waits| waits.queue.is_idle() && waits.queue.places() > most);
    }

    /// Answers the waiters whose cost is `hopeless` with a refusal.
    fn refuse(&mut self, wakers: &mut WakeList, why: Why, hopeless: impl Fn(u64) -> bool) {
        let gauge = self.gauge;
        let Some(waits) = &mut self.waits else { return };
        let mut next = waits.queue.first();
        while let Some(ticket) = next {
            next = waits.queue.after(ticket);
            if waits.queue.request(ticket).is_some_and(|request| hopeless(request.cost)) {
                refuse(&mut waits.queue, ticket, gauge, why, wakers);
            }
        }
    }

    /// Admits from the head for as long as the head fits.
    ///
    /// INVARIANT: afterwards `waited_for` says whether a caller waits.
    fn pump(&mut self, wakers: &mut WakeList) {
        if let Some(waits) = &mut self.waits {
            while let Some(head) = waits.queue.first()
                && let Some(&Request { cost, .. }) = waits.queue.request(head)
                && self.gauge.fits(cost)
            {
                self.gauge = self.gauge.with(cost);
                wakers.push(waits.queue.answer(head, Ok(())));
            }
        }
        self.gauge.waited_for = self.waiting() > 0;
    }
}

/// Refuses a waiting caller.
fn refuse(
    queue: &mut Queue<Result<(), Full>>,
    ticket: Ticket,
    gauge: Gauge,
    why: Why,
    wakers: &mut WakeList,
) {
    let cost = queue.request(ticket).map_or(0, |request| request.cost);
    let full = gauge.full(cost, queue.len() as u64 - 1, why);
    wakers.push(queue.answer(ticket, Err(full)));
}
