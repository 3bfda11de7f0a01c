//! Joining a queue, fetching the result, and leaving.

use super::{Grant, LimiterQueue, LockedQueue, LockedState, QueueHost, WaitResult};
use crate::{
    Algorithm, Decision, Quota, Reason, Refused, Tick,
    algorithm::{AnyRule, Booked, Entry, Gcra, Step},
    reservation::refusal,
    wait::{
        queue::{Order, Request, SlotState, Ticket},
        queue_timer::QueueTimer,
    },
};
use std::{
    mem,
    task::{Poll, Waker},
    time::Duration,
};

/// How late the head may serve the queue before a thread behind it does so: a task's runtime may be one that
/// nothing drives, and such a task may become the head behind a thread.
const GRACE_OF_TASK: Duration = Duration::from_millis(50);
const GRACE_OF_THREAD: Duration = Duration::from_secs(1);

/// How a request to wait began.
#[derive(Debug)]
pub(crate) enum Entered {
    Passed(Decision),
    Waits(Ticket),
    Refused(Refused),
    /// There is no room for the state.
    NoRoom,
}

/// What the state says to a request.
enum Booking {
    Passed(Decision),
    Booked(Booked),
    Refused(Decision),
    /// Another rule has come into force meanwhile.
    Again,
}

/// Joins the queue, unless the request passes at once or may not wait.
///
/// Takes `waker` only if it waits: otherwise the caller drops it, without a lock.
pub(crate) fn enter<H: QueueHost>(host: &H, request: Request, waker: &mut Waker) -> Entered {
    let (entered, starts) = host.with_queue(|locked| {
        let entered = loop {
            locked.settle();
            if let Some(entered) = locked.join(request, waker) {
                break entered;
            }
        };
        let waits = matches!(entered, Entered::Waits(_));
        let starts = waits && request.is_task && locked.state.with_timer(QueueTimer::needs_task);
        // The newest may be due at once, where it is served first.
        ((entered, starts), locked.settle())
    });
    if starts {
        host.start_timer_task();
    }
    entered
}

/// Fetches the result of a ticket, or leaves the waker. Returns until when a thread may sleep.
///
/// With `keeps` a grant stays in the queue for a while, as if it was not fetched.
pub(crate) fn fetch<H: QueueHost>(
    host: &H,
    (ticket, keeps): (Ticket, Keeps),
    waker: &mut Waker,
) -> (Poll<Option<WaitResult>>, Option<Tick>) {
    let (poll, until, starts) = host.with_queue(|locked| {
        let target = locked.settle();
        let (poll, until) = locked.queue.fetch((ticket, keeps), waker, target);
        let waits = poll.is_pending() && locked.queue.waiting.is_task(ticket);
        let starts = waits && locked.state.with_timer(QueueTimer::needs_task);
        ((poll, until, starts), target)
    });
    if starts {
        host.start_timer_task();
    }
    (poll, until)
}

/// Takes a ticket out, with its result if it has one, which is not fetched any more.
pub(crate) fn leave<H: QueueHost>(host: &H, ticket: Ticket) {
    let left = host.with_queue(|locked| {
        let cost = locked.cost(ticket);
        let left = locked.queue.waiting.leave(ticket);
        match &left {
            Some(SlotState::Waits(_)) => locked.unbook(cost),
            Some(SlotState::Answered(Ok(grant))) => locked.give_back_grant(grant),
            _ => {}
        }
        (left, locked.settle())
    });
    drop(left);
}

/// Whether a fetched grant stays in the queue, which keeps its claim up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Grant,
    Nothing,
}

impl LimiterQueue {
    fn fetch(
        &mut self,
        (ticket, keeps): (Ticket, Keeps),
        waker: &mut Waker,
        target: Option<Tick>,
    ) -> (Poll<Option<WaitResult>>, Option<Tick>) {
        if keeps == Keeps::Grant
            && let Some(granted @ Ok(_)) = self.waiting.answer_of(ticket)
        {
            return (Poll::Ready(Some(*granted)), None);
        }
        let poll = self.waiting.fetch(ticket, waker);
        if let Poll::Ready(Some(Ok(Grant { id: Some(id), .. }))) = &poll {
            self.granted.remove(*id);
        }
        if poll.is_ready() || !self.waiting.is_thread(ticket) {
            return (poll, None);
        }
        let head = self.waiting.first().filter(|head| *head != ticket);
        let grace = match head {
            Some(head) if self.waiting.is_task(head) => GRACE_OF_TASK,
            Some(_) => GRACE_OF_THREAD,
            None => {
                self.thread_wakes_at = target.map(|target| (ticket, target));
                Duration::ZERO
            }
        };
        let until = target.map(|target| target.saturating_add(grace));
        (poll, until)
    }

    /// Passes if nobody waits and it can; otherwise books a place, if the state can be booked.
    fn ask(
        &self,
        entry: &mut Entry<'_>,
        rule: AnyRule,
        (now, request): (Tick, Request),
        is_full: bool,
    ) -> Booking {
        let is_first = self.waiting.is_empty();
        if let Some((gcra, tat)) = entry.gcra() {
            return match rule.as_gcra() == Some(gcra) {
                true => self.book(gcra, tat, (now, request), is_full),
                false => Booking::Again,
            };
        }
        if rule.as_gcra().is_some() {
            return Booking::Again;
        }
        if is_first {
            let decision = entry.decide(now, request.cost);
            match decision.is_allowed() {
                true => Booking::Passed(decision),
                false => Booking::Refused(decision),
            }
        } else {
            Booking::Refused(entry.peek(now, request.cost))
        }
    }

    /// Books a place at the end of the timeline, or passes if nobody waits.
    fn book(
        &self,
        gcra: &Gcra,
        tat: &mut u64,
        (now, request): (Tick, Request),
        is_full: bool,
    ) -> Booking {
        let cost = request.cost;
        // A table may have forgotten the state, and with it what was booked.
        gcra.raise(tat, self.bookings.end().unwrap_or(0));
        let decision = match self.waiting.is_empty() {
            true => gcra.decide(tat, now, cost),
            false => gcra.peek(tat, now, cost),
        };
        if decision.is_allowed() && self.waiting.is_empty() {
            return Booking::Passed(decision);
        }
        if is_full || decision.is_never() {
            return Booking::Refused(decision);
        }
        // The newest is served with the front of what is booked, its own booking included.
        let act = |end: u64| match self.waiting.order() {
            Order::OldestFirst => end,
            Order::NewestFirst => {
                let front = self.bookings.front_end(gcra.units(cost));
                front.unwrap_or(end - self.bookings.length)
            }
        };
        match gcra.book(tat, now, (cost, request.max_wait(now)), act) {
            Some(booked) => Booking::Booked(booked),
            None => Booking::Refused(decision),
        }
    }

    /// Returns a tick before which a caller who joins the queue of a window cannot pass: `head` is
    /// when the first can.
    ///
    /// Of those ahead and the new one, at most the limit passes in each window from then on. The
    /// sliding counter may straddle two.
    fn earliest(&self, cost: u64, head: Tick, (quota, algorithm): (Quota, Algorithm)) -> Tick {
        if self.waiting.order() == Order::NewestFirst {
            return head;
        }
        let all = self.waiting.total() + u128::from(cost);
        let windows = all.div_ceil(u128::from(quota.capacity().max(1)));
        let straddled = if algorithm == Algorithm::SlidingCounter { 2 } else { 1 };
        let full = u32::try_from(windows.saturating_sub(straddled)).unwrap_or(u32::MAX);
        head.saturating_add(quota.period().saturating_mul(full))
    }
}

impl<S: LockedState> LockedQueue<'_, S> {
    /// Returns `None` if another rule has come into force meanwhile, or a block has ended.
    fn join(&mut self, request: Request, waker: &mut Waker) -> Option<Entered> {
        let (now, Request { cost, is_task, .. }) = (self.now, request);
        let exempt = self.state.exempt(now, cost);
        if let Some(decision) = exempt.filter(|decision| !is_blocked(decision)) {
            return Some(match decision.is_allowed() {
                true => Entered::Passed(decision),
                false => Entered::Refused(Refused::Never(decision)),
            });
        }
        if exempt.is_none() && self.queue.is_unbooked && !self.queue.waiting.is_empty() {
            // A block has ended since the queue was settled: those who wait are booked first.
            return None;
        }
        let rule = self.state.rule(now);
        let is_full = !self.state.has_room(self.queue.waiting.len());
        let booking = match exempt {
            Some(decision) => Some(Booking::Refused(decision)),
            None => self.update(|entry| self.queue.ask(entry, rule, (now, request), is_full)),
        };
        let booked = match booking {
            None => return Some(Entered::NoRoom),
            Some(Booking::Again) => return None,
            Some(Booking::Passed(decision)) => return Some(Entered::Passed(decision)),
            Some(Booking::Booked(booked)) => Some(booked),
            Some(Booking::Refused(decision)) => {
                if let Some(refused) = self.refusal(&request, decision, is_full) {
                    return Some(Entered::Refused(refused));
                }
                None
            }
        };
        if self.queue.waiting.is_empty() {
            self.measure_by(rule);
        }
        // Behind a block nothing is booked.
        self.queue.is_unbooked |= exempt.is_some();
        let can_wake = !is_task || self.state.with_timer(|timer, clock| timer.can_wake(clock));
        let mut ticket = None;
        if can_wake {
            let own = mem::replace(waker, Waker::noop().clone());
            ticket = self.queue.waiting.push(Request { since: now, ..request }, own);
        }
        let Some(ticket) = ticket else {
            let decision = self.give_up(booked);
            return Some(Entered::Refused(match can_wake {
                true => Refused::QueueFull { decision, max_waiting: u32::MAX.into() },
                false => Refused::NoRuntime(decision),
            }));
        };
        if let Some(Booked { start, end, .. }) = booked {
            self.queue.bookings.add(start, end);
        }
        Some(Entered::Waits(ticket))
    }

    /// Returns why a caller may not wait; `None` if it may, without a booking.
    fn refusal(&self, request: &Request, decision: Decision, is_full: bool) -> Option<Refused> {
        let (now, cost, max_wait) = (self.now, request.cost, request.max_wait(self.now));
        if decision.is_never() {
            return Some(Refused::Never(decision));
        }
        if is_full {
            let max_waiting = self.state.rules().max_waiting as u64;
            return Some(Refused::QueueFull { decision, max_waiting });
        }
        if is_blocked(&decision) {
            let is_late = decision.retry_at().is_some_and(|until| until > request.deadline);
            return is_late.then_some(Refused::TooLong { decision, max_wait });
        }
        if self.state.rule(now).as_gcra().is_some() {
            return Some(refusal(decision, max_wait, true));
        }
        let waiting = &self.queue.waiting;
        let head = match waiting.order() {
            Order::OldestFirst => waiting.first().and_then(|head| waiting.request(head)),
            Order::NewestFirst => None,
        };
        let head = head.map_or(decision, |head| self.peek(head.cost));
        let until =
            self.queue.earliest(cost, head.retry_at().unwrap_or(now), self.state.quota(now));
        let decision = decision.blocked(cost, until).because(Reason::Quota);
        (until > request.deadline).then_some(Refused::TooLong { decision, max_wait })
    }

    /// Gives back what was booked for a caller who cannot wait. It is the last booking.
    fn give_up(&self, booked: Option<Booked>) -> Decision {
        if let Some(Booked { start, end, .. }) = booked {
            self.update(|entry| entry.give_back(self.now, end, end - start));
        }
        self.peek(0)
    }
}

/// Tells whether a refusal is that of a block, which ends.
fn is_blocked(decision: &Decision) -> bool {
    decision.is_denied() && decision.reason() == Reason::Blocked
}
