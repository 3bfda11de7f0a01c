//! Waiting at a limiter: how the queue, the bookings and the state move together.
//!
//! Everything happens under the lock of the book. Whatever may let somebody pass ends in
//! [`Limiter::settle`], which serves who is due, refuses whose deadline has passed, and sets the one
//! alarm: for the head of the queue, or for the first deadline.
//!
//! With GCRA, a place in the queue is booked at the end of the timeline (`wait/bookings.rs`), so
//! nobody can overtake. The time at which a booking is due does not depend on when somebody wakes
//! up: a late timer costs no rate, and those who are overdue pass together. Windows cannot be booked,
//! so a flag sends other callers here, who find that somebody waits.

#[cfg(feature = "tokio")]
mod driver;
mod future;
mod serve;

pub use future::{Passed, Wait};

use super::{
    Book, Limiter, QUEUED, WAITED,
    cell::{Cell, on_cell},
    line::{Answer, Grant, Line},
};
use crate::{
    Algorithm, Decision, Quota, Reason, Refused, Tick,
    algorithm::{Booked, Gcra, Step},
    reservation::refusal,
    sync::Ordering::Relaxed,
    wait::{
        Wakes,
        queue::{Left, Order, Ticket},
    },
    watch::Verb,
};
use std::{
    task::{Poll, Waker},
    time::Duration,
};

/// What somebody wants.
#[derive(Clone, Copy, Debug)]
struct Wish {
    cost: u64,
    /// [`Tick::MAX`] if it may take for ever.
    deadline: Tick,
}

/// Who waits: that decides who looks at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Thread,
    #[cfg(feature = "tokio")]
    Task,
}

impl By {
    /// A wait that says nothing else is for a task, if there are tasks.
    #[cfg(feature = "tokio")]
    const ANY: Self = Self::Task;
    #[cfg(not(feature = "tokio"))]
    const ANY: Self = Self::Thread;
}

/// What became of a wish.
#[derive(Debug)]
enum Entered {
    Passed(Decision),
    Waits(Ticket),
    Refused(Refused),
}

/// What the state says to a wish.
enum Booking {
    Passed(Decision),
    Booked(Booked),
    Refused(Decision),
}

impl Limiter {
    /// Returns how many wait at this moment.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.book().line.as_ref().map_or(0, |line| line.queue.len())
    }

    /// Takes one permit if it is free now, ahead of everybody who waits.
    pub fn try_overtake(&self) -> Decision {
        self.try_overtake_n(1)
    }

    /// Takes `cost` permits if all of them are free now, ahead of everybody who waits.
    ///
    /// [`try_acquire_n`](Self::try_acquire_n) comes after them. Those who wait pass so much later;
    /// if that is beyond their deadline, they are refused when it comes.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tollgate::{Clock, Limiter, Quota};
    /// # use std::{pin::pin, task::{Context, Waker}};
    ///
    /// let (clock, _hand) = Clock::manual();
    /// let limiter = Limiter::builder(Quota::per_second(1).burst(10)).clock(clock).build().unwrap();
    /// let _nine_left = limiter.try_acquire();
    /// let mut all = pin!(limiter.acquire_n(10)); // waits for a second
    /// # let _ = all.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    /// assert!(limiter.try_acquire().is_denied());
    /// assert!(limiter.try_overtake().is_allowed());
    /// # }
    /// ```
    pub fn try_overtake_n(&self, cost: u64) -> Decision {
        let now = self.now();
        let decision = self.exempt(now, cost).unwrap_or_else(|| self.overtake(now, cost));
        self.report(Verb::TryAcquire, &decision);
        decision
    }

    fn overtake(&self, now: Tick, cost: u64) -> Decision {
        let mut book = self.book();
        let waiting = book.line.as_ref().map_or(0, |line| line.bookings.length());
        let decision = match &self.shared.cell {
            Cell::Gcra(cell) => cell.update(|gcra, tat| {
                let mut without = tat.saturating_sub(waiting);
                let decision = gcra.decide(&mut without, now, cost);
                if decision.is_allowed() {
                    *tat = without + waiting;
                }
                decision
            }),
            cell => {
                on_cell!(cell, cell => cell.update(|step, state| step.decide(state, now, cost)))
            }
        };
        if let (Cell::Gcra(cell), Some(line)) = (&self.shared.cell, &mut book.line)
            && decision.is_allowed()
        {
            line.bookings.raise(cell.read(|gcra, _| gcra.units(cost)));
        }
        self.release(book);
        decision
    }

    /// Tells whether nobody waits, and there is nothing more to do than to decide.
    fn is_free(&self) -> bool {
        self.mode() & (super::SPECIAL | QUEUED) == 0
    }

    /// Joins the queue, unless it passes at once or may not wait.
    ///
    /// Takes `waker` only if it waits: otherwise the caller drops it, without a lock.
    fn enter(&self, wish: Wish, waker: &mut Waker, by: By) -> Entered {
        let mut book = self.book();
        let now = self.now();
        if let Some(decision) = self.exempt(now, wish.cost) {
            return Entered::Passed(decision);
        }
        let mut wakes = Wakes::new();
        self.settle(&mut book, now, &mut wakes);
        let entered = self.join(&mut book, now, (wish, by), waker);
        // The newest may be due at once, where it is served first.
        self.settle(&mut book, now, &mut wakes);
        let starts = matches!(entered, Entered::Waits(_)) && needs_driver(&mut book, by, self);
        drop(book);
        wakes.fire();
        if starts {
            self.start_driver();
        }
        entered
    }

    fn join(
        &self,
        book: &mut Book,
        now: Tick,
        (wish, by): (Wish, By),
        waker: &mut Waker,
    ) -> Entered {
        let Wish { cost, deadline } = wish;
        let (max_wait, rules) = (wish.max_wait(now), self.shared.line_rules);
        let quota = book.quota;
        let line = book.line.get_or_insert_with(|| Box::new(Line::new(rules.order)));
        let is_full = line.queue.len() >= rules.max_waiting;
        let booking = match &self.shared.cell {
            Cell::Gcra(cell) => {
                cell.update(|gcra, tat| book_gcra(gcra, tat, line, (now, wish), is_full))
            }
            cell => on_cell!(cell, cell => cell.update(|step, state| {
                let is_first = line.queue.is_empty();
                let decision =
                    if is_first { step.decide(state, now, cost) } else { step.peek(state, now, cost) };
                match (is_first, decision.is_allowed()) {
                    (true, true) => Booking::Passed(decision),
                    _ => Booking::Refused(decision),
                }
            })),
        };
        let booked = match booking {
            Booking::Passed(decision) => return Entered::Passed(decision),
            Booking::Booked(booked) => Some(booked),
            Booking::Refused(decision) if decision.is_never() => {
                return Entered::Refused(Refused::Never(decision));
            }
            Booking::Refused(decision) if is_full => {
                let max_waiting = rules.max_waiting as u64;
                return Entered::Refused(Refused::QueueFull { decision, max_waiting });
            }
            Booking::Refused(decision) if matches!(self.shared.cell, Cell::Gcra(_)) => {
                return Entered::Refused(refusal(decision, max_wait, true));
            }
            Booking::Refused(decision) => {
                let head = match line.queue.order() {
                    Order::OldestFirst => line.queue.first().and_then(|it| line.queue.wish(it)),
                    Order::NewestFirst => None,
                };
                let head = head.map_or(decision, |(cost, _)| self.level_of(now, cost));
                let head = head.retry_at().unwrap_or(now);
                let until = earliest(line, cost, head, &quota, self.algorithm());
                if until > deadline {
                    let decision = decision.blocked(cost, until).because(Reason::Quota);
                    return Entered::Refused(Refused::TooLong { decision, max_wait });
                }
                None
            }
        };
        #[cfg(feature = "tokio")]
        if by == By::Task && !driver::can_start(self, line) {
            let decision = self.give_up_booking(now, booked);
            return Entered::Refused(Refused::NoRuntime(decision));
        }
        let own = std::mem::replace(waker, Waker::noop().clone());
        let Some(ticket) = line.queue.push(cost, deadline, own) else {
            let decision = self.give_up_booking(now, booked);
            return Entered::Refused(Refused::QueueFull { decision, max_waiting: u32::MAX.into() });
        };
        if let Some(Booked { start, end, .. }) = booked {
            line.bookings.add(start, end);
        }
        line.alarm.threads += usize::from(by == By::Thread);
        Entered::Waits(ticket)
    }

    /// Gives back what was booked for somebody who cannot wait. It is the last booking.
    fn give_up_booking(&self, now: Tick, booked: Option<Booked>) -> Decision {
        if let (Some(Booked { start, end, .. }), Cell::Gcra(cell)) = (booked, &self.shared.cell) {
            cell.update(|gcra, tat| gcra.give_back(tat, now, end, end - start));
        }
        self.level_at(now)
    }

    /// Fetches the answer of a ticket, or leaves the waker. Says until when a thread may sleep.
    fn fetch(
        &self,
        ticket: Ticket,
        waker: &mut Waker,
        by: By,
    ) -> (Poll<Option<Answer>>, Option<Tick>) {
        let mut book = self.book();
        let (now, mut wakes) = (self.now(), Wakes::new());
        let target = self.settle(&mut book, now, &mut wakes);
        let (mut poll, mut starts) = (Poll::Ready(None), false);
        let mut until = None;
        if let Some(line) = &mut book.line {
            poll = line.queue.fetch(ticket, waker);
            if poll.is_ready() {
                line.alarm.threads -= usize::from(by == By::Thread);
            } else if by == By::Thread && line.queue.first() == Some(ticket) {
                line.alarm.told = target.map(|target| (ticket, target));
                until = target;
            }
        }
        if poll.is_pending() {
            starts = needs_driver(&mut book, by, self);
        }
        drop(book);
        wakes.fire();
        if starts {
            self.start_driver();
        }
        (poll, until)
    }

    /// Takes a ticket out, with whatever it has got: nobody will fetch it.
    fn leave(&self, ticket: Ticket, by: By) {
        let mut book = self.book();
        let now = self.now();
        let left = match &mut book.line {
            Some(line) => {
                line.alarm.threads -= usize::from(by == By::Thread);
                line.queue.leave(ticket)
            }
            None => Left::Nothing,
        };
        match &left {
            Left::Place { cost, .. } => self.unbook(&mut book, now, *cost),
            Left::Answer(Answer::Granted(grant)) => self.give_back_grant(&mut book, now, grant),
            _ => {}
        }
        self.release(book);
        drop(left);
    }

    /// Gives back what a grant has taken and nobody has used.
    fn return_grant(&self, grant: &Grant) {
        let mut book = self.book();
        self.give_back_grant(&mut book, self.now(), grant);
        self.release(book);
    }

    fn give_back_grant(&self, book: &mut Book, now: Tick, grant: &Grant) {
        let Grant { mark, units, .. } = *grant;
        if units == 0 {
            return;
        }
        let (amount, whole) = on_cell!(&self.shared.cell, cell => cell.update(|step, state| {
            let amount = step.give_back(state, now, mark, units);
            (amount, step.whole_permits(amount))
        }));
        if matches!(self.shared.cell, Cell::Gcra(_)) {
            book.ledger.lower_behind(mark, amount);
            book.lower_line(mark, amount);
        }
        self.shared.note_refund(amount);
        if let Some(watch) = self.watch() {
            watch.refunded(whole);
        }
    }

    /// The answer to somebody who may not overtake those who wait for a window; `None` if nobody
    /// waits.
    pub(crate) fn behind(&self, now: Tick, cost: u64) -> Option<Decision> {
        // ORDERING: Relaxed. Under the lock it is what it is.
        if self.shared.mode.load(Relaxed) & WAITED == 0 {
            return None;
        }
        let (mut book, mut wakes) = (self.book(), Wakes::new());
        let target = self.settle(&mut book, self.now(), &mut wakes);
        let is_waited_for = book.line.as_ref().is_some_and(|line| !line.queue.is_empty());
        drop(book);
        wakes.fire();
        if !is_waited_for {
            return None;
        }
        let level = self.level_of(now, cost);
        let until = target.max(level.retry_at()).unwrap_or(now);
        Some(match level.is_never() {
            true => level,
            false => level.blocked(cost, until).because(Reason::Quota),
        })
    }

    /// What the state says, whoever waits.
    fn level_of(&self, now: Tick, cost: u64) -> Decision {
        on_cell!(&self.shared.cell, cell => cell.read(|step, state| step.peek(state, now, cost)))
    }

    /// Starts a task that serves the queue.
    fn start_driver(&self) {
        #[cfg(feature = "tokio")]
        driver::start(self);
    }
}

impl Book {
    /// Somebody who had booked up to `mark` gave back `amount`: the queue moves up.
    pub(crate) fn lower_line(&mut self, mark: u64, amount: u64) {
        if let Some(line) = &mut self.line {
            line.lower_behind(mark, amount);
        }
    }

    /// Returns how much is booked for those who wait, in units.
    pub(crate) fn waiting_units(&self) -> u64 {
        self.line.as_ref().map_or(0, |line| line.bookings.length())
    }
}

impl Wish {
    fn max_wait(&self, now: Tick) -> Duration {
        match self.deadline {
            Tick::MAX => Duration::MAX,
            deadline => deadline.since(now),
        }
    }
}

/// Books a place at the end of the timeline, or passes if nobody waits.
fn book_gcra(
    gcra: &Gcra,
    tat: &mut u64,
    line: &Line,
    (now, wish): (Tick, Wish),
    is_full: bool,
) -> Booking {
    let cost = wish.cost;
    let decision = match line.queue.is_empty() {
        true => gcra.decide(tat, now, cost),
        false => gcra.peek(tat, now, cost),
    };
    if decision.is_allowed() && line.queue.is_empty() {
        return Booking::Passed(decision);
    }
    if is_full || decision.is_never() {
        return Booking::Refused(decision);
    }
    // The newest is served with the front of what is booked, its own booking included.
    let act = |end: u64| match line.queue.order() {
        Order::OldestFirst => end,
        Order::NewestFirst => {
            let front = line.bookings.front_end(gcra.units(cost));
            front.unwrap_or(end - line.bookings.length())
        }
    };
    match gcra.book(tat, now, (cost, wish.max_wait(now)), act) {
        Some(booked) => Booking::Booked(booked),
        None => Booking::Refused(decision),
    }
}

/// Returns a tick before which somebody who joins the queue of a window cannot pass: `head` is when
/// the first can.
///
/// Of those ahead and the new one, at most the limit passes in each window from then on. The sliding
/// counter may straddle two.
fn earliest(line: &Line, cost: u64, head: Tick, quota: &Quota, algorithm: Algorithm) -> Tick {
    if line.queue.order() == Order::NewestFirst {
        return head;
    }
    let all = line.queue.total() + u128::from(cost);
    let windows = all.div_ceil(u128::from(quota.capacity().max(1)));
    let straddled = if algorithm == Algorithm::SlidingCounter { 2 } else { 1 };
    let full = u32::try_from(windows.saturating_sub(straddled)).unwrap_or(u32::MAX);
    head.saturating_add(quota.period().saturating_mul(full))
}

/// Tells whether a task has to be started, and notes that it is.
fn needs_driver(book: &mut Book, by: By, limiter: &Limiter) -> bool {
    let Some(line) = &mut book.line else { return false };
    let needs = by != By::Thread
        && limiter.shared.clock.hand().is_none()
        && line.alarm.driver.is_none()
        && !line.queue.is_empty();
    if needs {
        line.alarm.driver = Some(super::line::Driving::default());
    }
    needs
}
