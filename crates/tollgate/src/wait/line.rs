//! The line before one state: who waits, what is booked for them, and when they pass.
//!
//! The idea: a line knows neither where its state lives nor who watches the clock. It is handed the
//! state, under a lock, as a [`Post`]: that of a limiter, or of one key of many. Whatever may let
//! somebody pass ends in [`Line::settle`], which serves who is due, refuses whose deadline has
//! passed, and says when to come again.
//!
//! With GCRA, a place in the line is booked at the end of the timeline ([`Bookings`]), so nobody can
//! overtake. The time at which a booking is due does not depend on when somebody wakes up: a late
//! timer costs no rate, and those who are overdue pass together. Windows cannot be booked, so their
//! hosts send other callers here, who find that somebody waits.

mod join;
mod serve;

pub(crate) use join::{Entered, Keeps, enter, fetch, leave};

use crate::{
    Algorithm, Clock, Decision, Quota, Refused, Tick,
    algorithm::{AnyRule, Entry, Gcra},
    limits::locks::State,
    reservation::ledger::Ledger,
    wait::{
        Wakes,
        alarm::Alarm,
        bookings::Bookings,
        queue::{Order, Queue, Ticket},
    },
    watch::Watch,
};
use std::{task::Waker, time::Duration};

/// How a limiter lets wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineRules {
    pub(crate) order: Order,
    pub(crate) max_waiting: usize,
}

/// As many wait at a limiter unless its builder says otherwise.
pub(crate) const MAX_WAITING: usize = 10_000;

/// The queue, with what it has booked. GCRA books for those who wait; windows cannot.
#[derive(Debug)]
pub(crate) struct Line {
    queue: Queue<Answer>,
    bookings: Bookings,
    /// What can be given back of grants that nobody has fetched, in the order in which they were
    /// granted.
    granted: Ledger,
    /// What the bookings are measured by, and the claims of the answers.
    rule: Option<AnyRule>,
    /// Nothing is booked for those who wait, and they are not to pass before it is.
    is_unbooked: bool,
    /// What a thread at the head of the queue was told to wake up at.
    told: Option<(Ticket, Tick)>,
    /// Threads among those who wait.
    threads: usize,
}

/// The state that a line stands before, with the ledger of its open takes, under their lock.
pub(crate) trait Post {
    fn rules(&self) -> LineRules;
    /// Tells whether one more may wait beside so many in this line.
    fn has_room(&mut self, waiting: usize) -> bool;
    /// Answers without the state if it is out of force, listed or blocked.
    fn exempt(&self, now: Tick, cost: u64) -> Option<Decision>;
    /// Returns what the state is judged by.
    fn rule(&self, now: Tick) -> AnyRule;
    fn quota(&self, now: Tick) -> Quota;
    fn algorithm(&self) -> Algorithm;
    /// Returns the state, with the rule that is in force.
    fn state(&self, now: Tick) -> State<'_>;
    /// Returns the state, with a rule that may not be in force any more.
    fn state_by(&self, rule: &AnyRule, now: Tick) -> State<'_>;
    /// Somebody who had booked up to `mark` gave back `units`: younger claims are lowered.
    fn lower_behind(&mut self, mark: u64, units: u64);
    fn watch(&self) -> Option<&Watch>;
    /// Returns when another rule will hold, if that is known.
    fn changes_at(&self, now: Tick) -> Option<Tick>;
    /// The answer to somebody for whose state there is no room.
    fn without_room(&self, now: Tick, cost: u64) -> Decision;
    /// Runs `work` with the timer of the line, and the clock that it goes by.
    fn with_timer<R>(&mut self, work: impl FnOnce(&mut Alarm, &Clock) -> R) -> R;

    /// Applies `step` to the state; `None` if there is no room for it.
    fn update<R>(&self, now: Tick, step: impl FnMut(&mut Entry<'_>) -> R) -> Option<R> {
        self.state(now).update(step)
    }

    /// Applies `look` to a copy of the state, or to the state.
    fn read<R>(&self, now: Tick, look: impl FnMut(&mut Entry<'_>) -> R) -> R {
        self.state(now).read(look)
    }
}

/// Who has lines: a limiter, or a key of many.
pub(crate) trait Host {
    type Post<'a>: Post
    where
        Self: 'a;

    /// Locks the line and runs `work`, which also returns when to come again. Then unlocks, and wakes.
    fn at_line<R>(
        &self,
        work: impl FnOnce(&mut Line, &mut Self::Post<'_>, At<'_>) -> (R, Option<Tick>),
    ) -> R;

    /// Starts a task that looks after the next due time.
    fn start_driver(&self);
}

/// When something happens at a line, and who is woken by it.
pub(crate) struct At<'a> {
    pub(crate) now: Tick,
    pub(crate) wakes: &'a mut Wakes,
}

/// What somebody who waited has got.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Granted(Grant),
    Refused(Refused),
}

/// Permits that are taken for somebody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) decision: Decision,
    /// When they were due, which is before they are fetched.
    pub(crate) due: Tick,
    /// Its entry among the granted ones, if it can be given back.
    id: Option<u64>,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) cost: u64,
    /// [`Tick::MAX`] if it may take for ever.
    pub(crate) deadline: Tick,
}

impl Wish {
    pub(crate) fn max_wait(&self, now: Tick) -> Duration {
        match self.deadline {
            Tick::MAX => Duration::MAX,
            deadline => deadline.since(now),
        }
    }
}

/// Who waits: that decides who looks at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Thread,
    #[cfg(feature = "tokio")]
    Task,
}

impl By {
    /// A wait that says nothing else is for a task, if there are tasks.
    #[cfg(feature = "tokio")]
    pub(crate) const ANY: Self = Self::Task;
    #[cfg(not(feature = "tokio"))]
    pub(crate) const ANY: Self = Self::Thread;
}

impl Line {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            queue: Queue::new(order),
            bookings: Bookings::default(),
            granted: Ledger::default(),
            rule: None,
            is_unbooked: false,
            told: None,
            threads: 0,
        }
    }

    /// Returns how many wait.
    pub(crate) const fn len(&self) -> usize {
        self.queue.len()
    }

    /// Tells whether nobody waits and every answer was fetched.
    pub(crate) const fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// Returns how many places it has memory for.
    pub(crate) const fn places(&self) -> usize {
        self.queue.places()
    }

    /// Returns how much is booked for those who wait, in units.
    pub(crate) fn booked(&self) -> u64 {
        self.bookings.length
    }

    /// Somebody who had booked up to `position` gave back `amount`: what is behind moves up.
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

    /// Returns the waker of a thread at the head that sleeps for longer than until `target`.
    pub(crate) fn thread_to_wake(&self, target: Tick) -> Option<Waker> {
        let first = self.queue.first().filter(|_| self.threads > 0)?;
        let is_told = self.told.is_some_and(|told| told.0 == first && told.1 <= target);
        if is_told { None } else { self.queue.waker(first).cloned() }
    }

    /// Returns how much later than `target` a task may look at the clock: a 64th of the wait of the
    /// head, at most a millisecond, and nothing if a deadline is near.
    ///
    /// Those who wait for long do not notice it, and several of them pass at one wake-up, which is
    /// most of what a crowd costs.
    #[cfg(feature = "tokio")]
    pub(crate) fn slack(&self, target: Tick) -> Duration {
        const MOST: Duration = Duration::from_millis(1);
        let since = self.queue.first().and_then(|first| self.queue.since(first));
        let latest = target.saturating_add(MOST);
        if self.queue.first_deadline().is_some_and(|(deadline, _)| deadline <= latest) {
            return Duration::ZERO;
        }
        since.map_or(Duration::ZERO, |since| (target.since(since) / 64).min(MOST))
    }

    /// Wakes everybody, because whoever looked at the clock for them is gone.
    #[cfg(feature = "tokio")]
    fn wake_all(&self, wakes: &mut Wakes) {
        let mut next = self.queue.first();
        while let Some(ticket) = next {
            next = self.queue.after(ticket);
            wakes.push(self.queue.waker(ticket).cloned());
        }
    }

    /// A driver is gone. If `is_lost`, nobody can wake the tasks that wait, so they are refused;
    /// otherwise everybody is woken, and starts another one. Returns when to come again.
    #[cfg(feature = "tokio")]
    pub(crate) fn abandon(
        &mut self,
        post: &mut impl Post,
        mut at: At<'_>,
        is_lost: bool,
    ) -> Option<Tick> {
        match is_lost {
            true => self.refuse_tasks(post, &mut at),
            false => self.wake_all(at.wakes),
        }
        self.settle(post, &mut at)
    }

    fn gcra(&self) -> Option<Gcra> {
        self.rule.and_then(|rule| rule.as_gcra().copied())
    }
}
