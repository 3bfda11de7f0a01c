//! The queue of callers who wait for one state, what is booked for them, and when they pass.
//!
//! The idea: a [`LimiterQueue`] knows neither where its state lives nor which timer serves it. A
//! [`QueueHost`], a limiter or one key of many, locks both together as a [`LockedQueue`]. Every event
//! that may let a caller pass ends in [`LockedQueue::settle`], which serves the callers who are due,
//! refuses those whose deadline has passed, and returns the next due time.
//!
//! With GCRA, a place in the queue is booked at the end of the timeline ([`Bookings`]), so no caller can
//! overtake. The time at which a booking is due does not depend on when the timer fires: a late
//! timer costs no rate, and callers who are overdue pass together. Windows cannot be booked, so their
//! hosts send other callers here, where [`LockedQueue::behind`] refuses them while callers wait.

mod join;
mod serve;

pub(crate) use join::{Entered, Keeps, enter, fetch, leave};

use crate::{
    Algorithm, Clock, Decision, Quota, Refused, Tick,
    algorithm::{AnyRule, Gcra},
    multi::locks::ResolvedState,
    reservation::ledger::Ledger,
    wait::{
        WakeList,
        bookings::Bookings,
        queue::{Order, Queue, Ticket},
        queue_timer::QueueTimer,
    },
};
use std::task::Waker;
#[cfg(feature = "tokio")]
use std::time::Duration;

/// The bounds and the order of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRules {
    pub(crate) order: Order,
    pub(crate) max_waiting: usize,
}

/// How many callers may wait at a limiter unless its builder says otherwise.
pub(crate) const MAX_WAITING: usize = 10_000;

/// The queue, with what it has booked. GCRA books for waiting callers; windows cannot.
#[derive(Debug)]
pub(crate) struct LimiterQueue {
    pub(crate) waiting: Queue<WaitResult>,
    pub(crate) bookings: Bookings,
    /// What can be given back of grants that are not fetched yet, in the order in which they were
    /// granted.
    granted: Ledger,
    /// What the bookings are measured by, and the claims of the grants.
    rule: Option<AnyRule>,
    /// Nothing is booked for waiting callers, and they must not pass before it is.
    is_unbooked: bool,
    /// The tick until which the thread at the head of the queue sleeps.
    thread_wakes_at: Option<(Ticket, Tick)>,
}

/// The end of a wait in the queue.
pub(crate) type WaitResult = Result<Grant, Refused>;

/// Permits that are taken for a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) decision: Decision,
    /// When they were due, which is before the caller fetches them.
    pub(crate) due: Tick,
    /// Its entry among the granted ones, if it can be given back.
    id: Option<u64>,
}

/// A queue and its state, locked for one event.
pub(crate) struct LockedQueue<'a, S> {
    pub(crate) queue: &'a mut LimiterQueue,
    pub(crate) state: S,
    /// The time of the event.
    pub(crate) now: Tick,
    /// The callers that the event wakes.
    pub(crate) wakers: &'a mut WakeList,
}

/// The state that callers wait for, with the ledger of its open takes, under their lock.
pub(crate) trait LockedState {
    fn rules(&self) -> QueueRules;
    /// Tells whether one more caller may wait beside `waiting` in this queue.
    fn has_room(&mut self, waiting: usize) -> bool;
    /// Answers without the state if it is out of force, listed or blocked.
    fn exempt(&self, now: Tick, cost: u64) -> Option<Decision>;
    /// Returns what the state is judged by.
    fn rule(&self, now: Tick) -> AnyRule;
    fn quota(&self, now: Tick) -> (Quota, Algorithm);
    /// Returns the state, with the rule that is in force.
    fn state(&self, now: Tick) -> ResolvedState<'_>;
    /// Returns the state, with a rule that may not be in force any more.
    fn state_by(&self, rule: &AnyRule, now: Tick) -> ResolvedState<'_>;
    /// Lowers claims that were booked after `mark`: up to there, `units` were given back.
    fn lower_behind(&mut self, mark: u64, units: u64);
    /// Returns when another rule comes into force, if that is known.
    fn changes_at(&self, now: Tick) -> Option<Tick>;
    /// Returns the refusal of a caller for whose state there is no room.
    fn without_room(&self, now: Tick, cost: u64) -> Decision;
    /// Runs `work` with the timer of the queue, and its clock.
    fn with_timer<R>(&mut self, work: impl FnOnce(&mut QueueTimer, &Clock) -> R) -> R;
}

/// The owner of queues: a limiter, or a key of many.
pub(crate) trait QueueHost {
    type State<'a>: LockedState
    where
        Self: 'a;

    /// Locks the queue and runs `work`, which also returns the next due time. Then unlocks, and wakes.
    fn with_queue<R>(
        &self,
        work: impl FnOnce(&mut LockedQueue<'_, Self::State<'_>>) -> (R, Option<Tick>),
    ) -> R;

    /// Starts a task that serves the queue.
    fn start_timer_task(&self);
}

impl LimiterQueue {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            waiting: Queue::new(order),
            bookings: Bookings::default(),
            granted: Ledger::default(),
            rule: None,
            is_unbooked: false,
            thread_wakes_at: None,
        }
    }

    /// Moves up what is booked after `position`, because `amount` before it was given back.
    pub(crate) fn lower_behind(&mut self, position: u64, amount: u64) {
        self.bookings.lower_behind(position, amount);
        self.granted.lower_behind(position, amount);
    }

    /// Takes `units` from what can be given back of every grant: for windows.
    pub(crate) fn take_from_grants(&mut self, units: u64) {
        self.granted.take_from_all(units);
    }

    /// Makes all grants final: nothing can be given back any more.
    pub(crate) fn forget_claims(&mut self) {
        self.granted.clear();
    }

    /// Forgets what is booked, because the state has gone. The next [`LockedQueue::settle`] books for
    /// the waiting callers anew.
    pub(crate) fn lose_bookings(&mut self) {
        self.bookings.clear();
        self.forget_claims();
        self.is_unbooked = true;
    }

    /// Returns the waker of a thread at the head that sleeps for longer than until `target`.
    pub(crate) fn thread_to_wake(&self, target: Tick) -> Option<Waker> {
        let first = self.waiting.first().filter(|first| self.waiting.is_thread(*first))?;
        let wakes_in_time = |(ticket, until)| ticket == first && until <= target;
        match self.thread_wakes_at.is_some_and(wakes_in_time) {
            true => None,
            false => self.waiting.waker(first).cloned(),
        }
    }

    /// Returns how much later than `target` a task may look at the clock: a 64th of the wait of the
    /// head, at most a millisecond, and nothing if a deadline is near.
    ///
    /// Callers who wait for long do not notice it, and several of them pass at one wake-up, which is
    /// most of what a crowd costs.
    #[cfg(feature = "tokio")]
    pub(crate) fn slack(&self, target: Tick) -> Duration {
        const MOST: Duration = Duration::from_millis(1);
        let first = self.waiting.first().and_then(|first| self.waiting.request(first));
        let latest = target.saturating_add(MOST);
        if self.waiting.first_deadline().is_some_and(|(deadline, _)| deadline <= latest) {
            return Duration::ZERO;
        }
        first.map_or(Duration::ZERO, |first| (target.since(first.since) / 64).min(MOST))
    }

    fn gcra(&self) -> Option<Gcra> {
        self.rule.and_then(|rule| rule.as_gcra().copied())
    }
}
