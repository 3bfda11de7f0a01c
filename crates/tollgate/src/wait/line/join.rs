//! Coming to a line, fetching what one has got, and leaving.

use super::{Answer, By, Grant, Host, Line, Post, Wish};
use crate::{
    Algorithm, Decision, Priority, Quota, Reason, Refused, Tick,
    algorithm::{AnyRule, Booked, Entry, Gcra, Step},
    reservation::refusal,
    wait::{
        alarm::Alarm,
        queue::{Left, Order, Request, Ticket},
    },
};
use std::{
    mem,
    task::{Poll, Waker},
};

/// What became of a wish.
#[derive(Debug)]
pub(crate) enum Entered {
    Passed(Decision),
    Waits(Ticket),
    Refused(Refused),
    /// There is no room for the state.
    NoRoom,
}

/// What the state says to a wish.
enum Booking {
    Passed(Decision),
    Booked(Booked),
    Refused(Decision),
    /// Another rule has come into force meanwhile.
    Again,
}

/// Joins the line, unless it passes at once or may not wait.
///
/// Takes `waker` only if it waits: otherwise the caller drops it, without a lock.
pub(crate) fn enter<H: Host>(host: &H, wish: Wish, waker: &mut Waker, by: By) -> Entered {
    let (entered, starts) = host.at_line(|line, post, mut at| {
        let entered = loop {
            line.settle(post, &mut at);
            if let Some(entered) = line.join(post, at.now, (wish, by), waker) {
                break entered;
            }
        };
        let waits = matches!(entered, Entered::Waits(_));
        let starts = waits && by != By::Thread && post.with_timer(Alarm::needs_driver);
        // The newest may be due at once, where it is served first.
        ((entered, starts), line.settle(post, &mut at))
    });
    if starts {
        host.start_driver();
    }
    entered
}

/// Fetches the answer of a ticket, or leaves the waker. Says until when a thread may sleep.
///
/// With `keeps` a grant stays where it is for a while, as if nobody had asked.
pub(crate) fn fetch<H: Host>(
    host: &H,
    (ticket, keeps): (Ticket, Keeps),
    waker: &mut Waker,
    by: By,
) -> (Poll<Option<Answer>>, Option<Tick>) {
    let (poll, until, starts) = host.at_line(|line, post, mut at| {
        let target = line.settle(post, &mut at);
        let (poll, until) = line.fetch((ticket, keeps), waker, (by, target));
        let starts = poll.is_pending() && by != By::Thread && post.with_timer(Alarm::needs_driver);
        ((poll, until, starts), target)
    });
    if starts {
        host.start_driver();
    }
    (poll, until)
}

/// Takes a ticket out, with whatever it has got: nobody will fetch it.
pub(crate) fn leave<H: Host>(host: &H, ticket: Ticket, by: By) {
    let left = host.at_line(|line, post, mut at| {
        let left = line.queue.leave(ticket);
        if !matches!(left, Left::Nothing) {
            line.threads -= usize::from(by == By::Thread);
        }
        match &left {
            Left::Place { cost, .. } => line.unbook(post, at.now, *cost),
            Left::Answer(Answer::Granted(grant)) => line.give_back_grant(post, at.now, grant),
            _ => {}
        }
        (left, line.settle(post, &mut at))
    });
    drop(left);
}

/// Whether a grant stays in the line when it is fetched, where its claim is kept up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Grant,
    Nothing,
}

impl Line {
    fn fetch(
        &mut self,
        (ticket, keeps): (Ticket, Keeps),
        waker: &mut Waker,
        (by, target): (By, Option<Tick>),
    ) -> (Poll<Option<Answer>>, Option<Tick>) {
        if keeps == Keeps::Grant
            && let Some(answer @ Answer::Granted(_)) = self.queue.answer_of(ticket)
        {
            return (Poll::Ready(Some(*answer)), None);
        }
        let poll = self.queue.fetch(ticket, waker);
        if let Poll::Ready(Some(Answer::Granted(Grant { id: Some(id), .. }))) = &poll {
            self.granted.remove(*id);
        }
        if poll.is_ready() {
            self.threads -= usize::from(by == By::Thread);
        } else if by == By::Thread && self.queue.first() == Some(ticket) {
            self.told = target.map(|target| (ticket, target));
            return (poll, target);
        }
        (poll, None)
    }

    /// Returns `None` if another rule has come into force meanwhile, or a block has ended.
    fn join(
        &mut self,
        post: &mut impl Post,
        now: Tick,
        (wish, by): (Wish, By),
        waker: &mut Waker,
    ) -> Option<Entered> {
        let Wish { cost, deadline } = wish;
        let exempt = post.exempt(now, cost);
        if let Some(decision) = exempt.filter(|decision| !is_blocked(decision)) {
            return Some(match decision.is_allowed() {
                true => Entered::Passed(decision),
                false => Entered::Refused(Refused::Never(decision)),
            });
        }
        if exempt.is_none() && self.is_unbooked && !self.queue.is_empty() {
            // A block has ended since the line was settled: those who wait are booked first.
            return None;
        }
        let rule = post.rule(now);
        let is_full = !post.has_room(self.queue.len());
        let booking = match exempt {
            Some(decision) => Some(Booking::Refused(decision)),
            None => post.update(now, |entry| self.ask(entry, rule, (now, wish), is_full)),
        };
        let booked = match booking {
            None => return Some(Entered::NoRoom),
            Some(Booking::Again) => return None,
            Some(Booking::Passed(decision)) => return Some(Entered::Passed(decision)),
            Some(Booking::Booked(booked)) => Some(booked),
            Some(Booking::Refused(decision)) => {
                let refused = self.refusal(post, now, (wish, decision), is_full);
                if let Some(refused) = refused {
                    return Some(Entered::Refused(refused));
                }
                None
            }
        };
        if self.queue.is_empty() {
            self.measure_by(rule);
        }
        // Behind a block nothing is booked.
        self.is_unbooked |= exempt.is_some();
        let can_wake = by == By::Thread || post.with_timer(|timer, clock| timer.can_wake(clock));
        let mut ticket = None;
        if can_wake {
            let own = mem::replace(waker, Waker::noop().clone());
            let (priority, is_task) = (Priority::NORMAL, by != By::Thread);
            ticket =
                self.queue.push(Request { cost, priority, deadline, since: now, is_task }, own);
        }
        let Some(ticket) = ticket else {
            let decision = give_up(post, now, booked);
            return Some(Entered::Refused(match can_wake {
                true => Refused::QueueFull { decision, max_waiting: u32::MAX.into() },
                false => Refused::NoRuntime(decision),
            }));
        };
        if let Some(Booked { start, end, .. }) = booked {
            self.bookings.add(start, end);
        }
        self.threads += usize::from(by == By::Thread);
        Some(Entered::Waits(ticket))
    }

    /// Passes if nobody waits and it can; otherwise books a place, if the state can be booked.
    fn ask(
        &self,
        entry: &mut Entry<'_>,
        rule: AnyRule,
        (now, wish): (Tick, Wish),
        is_full: bool,
    ) -> Booking {
        let is_first = self.queue.is_empty();
        if let Some((gcra, tat)) = entry.gcra() {
            return match rule.as_gcra() == Some(gcra) {
                true => self.book(gcra, tat, (now, wish), is_full),
                false => Booking::Again,
            };
        }
        if rule.as_gcra().is_some() {
            return Booking::Again;
        }
        if is_first {
            let decision = entry.decide(now, wish.cost);
            match decision.is_allowed() {
                true => Booking::Passed(decision),
                false => Booking::Refused(decision),
            }
        } else {
            Booking::Refused(entry.peek(now, wish.cost))
        }
    }

    /// Books a place at the end of the timeline, or passes if nobody waits.
    fn book(
        &self,
        gcra: &Gcra,
        tat: &mut u64,
        (now, wish): (Tick, Wish),
        is_full: bool,
    ) -> Booking {
        let cost = wish.cost;
        // A table may have forgotten the state, and with it what was booked.
        gcra.raise(tat, self.bookings.end().unwrap_or(0));
        let decision = match self.queue.is_empty() {
            true => gcra.decide(tat, now, cost),
            false => gcra.peek(tat, now, cost),
        };
        if decision.is_allowed() && self.queue.is_empty() {
            return Booking::Passed(decision);
        }
        if is_full || decision.is_never() {
            return Booking::Refused(decision);
        }
        // The newest is served with the front of what is booked, its own booking included.
        let act = |end: u64| match self.queue.order() {
            Order::OldestFirst => end,
            Order::NewestFirst => {
                let front = self.bookings.front_end(gcra.units(cost));
                front.unwrap_or(end - self.bookings.length)
            }
        };
        match gcra.book(tat, now, (cost, wish.max_wait(now)), act) {
            Some(booked) => Booking::Booked(booked),
            None => Booking::Refused(decision),
        }
    }

    /// Returns why somebody may not wait; `None` if it may, without a booking.
    fn refusal(
        &self,
        post: &impl Post,
        now: Tick,
        (wish, decision): (Wish, Decision),
        is_full: bool,
    ) -> Option<Refused> {
        let Wish { cost, deadline } = wish;
        let max_wait = wish.max_wait(now);
        if decision.is_never() {
            return Some(Refused::Never(decision));
        }
        if is_full {
            let max_waiting = post.rules().max_waiting as u64;
            return Some(Refused::QueueFull { decision, max_waiting });
        }
        if is_blocked(&decision) {
            let is_late = decision.retry_at().is_some_and(|until| until > deadline);
            return is_late.then_some(Refused::TooLong { decision, max_wait });
        }
        if post.rule(now).as_gcra().is_some() {
            return Some(refusal(decision, max_wait, true));
        }
        let head = match self.queue.order() {
            Order::OldestFirst => self.queue.first().and_then(|it| self.queue.wish(it)),
            Order::NewestFirst => None,
        };
        let level = |(cost, _)| post.read(now, |entry| entry.peek(now, cost));
        let head = head.map_or(decision, level).retry_at().unwrap_or(now);
        let until = self.earliest(cost, head, &post.quota(now), post.algorithm());
        let decision = decision.blocked(cost, until).because(Reason::Quota);
        (until > deadline).then_some(Refused::TooLong { decision, max_wait })
    }

    /// Returns a tick before which somebody who joins the queue of a window cannot pass: `head` is
    /// when the first can.
    ///
    /// Of those ahead and the new one, at most the limit passes in each window from then on. The
    /// sliding counter may straddle two.
    fn earliest(&self, cost: u64, head: Tick, quota: &Quota, algorithm: Algorithm) -> Tick {
        if self.queue.order() == Order::NewestFirst {
            return head;
        }
        let all = self.queue.total() + u128::from(cost);
        let windows = all.div_ceil(u128::from(quota.capacity().max(1)));
        let straddled = if algorithm == Algorithm::SlidingCounter { 2 } else { 1 };
        let full = u32::try_from(windows.saturating_sub(straddled)).unwrap_or(u32::MAX);
        head.saturating_add(quota.period().saturating_mul(full))
    }
}

/// Tells whether a refusal is that of a block, which ends.
fn is_blocked(decision: &Decision) -> bool {
    decision.is_denied() && decision.reason() == Reason::Blocked
}

/// Gives back what was booked for somebody who cannot wait. It is the last booking.
fn give_up(post: &impl Post, now: Tick, booked: Option<Booked>) -> Decision {
    if let Some(Booked { start, end, .. }) = booked {
        post.update(now, |entry| entry.give_back(now, end, end - start));
    }
    post.read(now, |entry| entry.peek(now, 0))
}
