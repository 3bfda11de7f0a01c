//! Serving those who wait, and booking for them.

use super::{
    super::{
        Book, Limiter, QUEUED, WAITED,
        cell::{Cell, on_cell},
        line::{Answer, Grant, Line},
    },
    Wish,
};
use crate::{
    Reason, Refused, Tick,
    algorithm::{Booked, Step},
    reservation::refusal,
    sync::{MutexGuard, Ordering::Relaxed},
    wait::Wakes,
};

impl Limiter {
    /// Gives back the rear of what is booked: somebody who wanted `cost` waits no more.
    pub(super) fn unbook(&self, book: &mut Book, now: Tick, cost: u64) {
        let (Cell::Gcra(cell), Some(line)) = (&self.shared.cell, &mut book.line) else { return };
        let mut left = cell.read(|gcra, _| gcra.units(cost));
        while left > 0 {
            let Some((end, taken)) = line.bookings.take_rear(left) else { break };
            left -= taken;
            let amount = cell.update(|gcra, tat| gcra.give_back(tat, now, end, taken));
            book.ledger.lower_behind(end, amount);
            self.shared.note_refund(amount);
        }
    }

    /// Takes everything that is booked for the queue out of the state, before that changes.
    pub(in crate::limiter) fn unbook_all(&self, book: &mut Book, now: Tick) {
        let total = book.line.as_ref().map_or(0, |line| line.queue.total());
        self.unbook(book, now, u64::try_from(total).unwrap_or(u64::MAX));
    }

    /// Books everybody who waits anew, in the order of service, and refuses whom the new state
    /// cannot serve in time.
    pub(in crate::limiter) fn rebook_all(&self, book: &mut Book, now: Tick, wakes: &mut Wakes) {
        let Some(line) = &mut book.line else { return };
        line.forget_claims();
        let mut next = line.queue.first();
        while let Some(ticket) = next {
            next = line.queue.after(ticket);
            let Some((cost, deadline)) = line.queue.wish(ticket) else { continue };
            let max_wait = Wish { cost, deadline }.max_wait(now);
            let refused = match &self.shared.cell {
                _ if self.is_unlimited() => None,
                Cell::Gcra(cell) => {
                    let (booked, decision) = cell.update(|gcra, tat| {
                        let booked = gcra.book(tat, now, (cost, max_wait), |end| end);
                        (booked, gcra.peek(tat, now, cost))
                    });
                    match booked {
                        Some(Booked { start, end, .. }) => {
                            line.bookings.add(start, end);
                            None
                        }
                        None => Some(refusal(decision, max_wait, true)),
                    }
                }
                _ => {
                    let decision = self.level_of(now, cost);
                    decision.is_never().then_some(Refused::Never(decision))
                }
            };
            if let Some(refused) = refused {
                wakes.push(line.queue.answer(ticket, Answer::Refused(refused)));
            }
        }
    }

    /// Serves who is due, refuses who is late, sets the alarm, and returns what it is set to.
    pub(in crate::limiter) fn settle(
        &self,
        book: &mut Book,
        now: Tick,
        wakes: &mut Wakes,
    ) -> Option<Tick> {
        book.line.as_ref()?;
        let target = loop {
            let due = self.serve(book, now, wakes);
            let line = book.line.as_mut()?;
            let first = line.queue.first_deadline();
            match first.filter(|(deadline, _)| *deadline <= now) {
                None => break due.into_iter().chain(first.map(|(deadline, _)| deadline)).min(),
                Some((_, ticket)) => {
                    let cost = line.queue.wish(ticket).map_or(0, |(cost, _)| cost);
                    let decision = self.level_at(now).blocked(cost, due.unwrap_or(now));
                    let decision = decision.because(Reason::Quota);
                    let late = Answer::Refused(Refused::Late(decision));
                    wakes.push(line.queue.answer(ticket, late));
                    self.unbook(book, now, cost);
                }
            }
        };
        let line = book.line.as_mut()?;
        self.set_alarm(line, target, wakes);
        let flag = if matches!(self.shared.cell, Cell::Gcra(_)) { QUEUED } else { WAITED };
        // ORDERING: Relaxed. The flag only sends others to the lock, under which it is set.
        match line.queue.is_empty() {
            true => self.shared.mode.fetch_and(!flag, Relaxed),
            false => self.shared.mode.fetch_or(flag, Relaxed),
        };
        target
    }

    /// Serves from the head for as long as that is due. Returns when the next one is.
    fn serve(&self, book: &mut Book, now: Tick, wakes: &mut Wakes) -> Option<Tick> {
        loop {
            let line = book.line.as_mut()?;
            let ticket = line.queue.first()?;
            let (cost, _) = line.queue.wish(ticket)?;
            let answer = if let Some(decision) = self.exempt(now, cost) {
                self.unbook(book, now, cost);
                Answer::Granted(Grant { decision, due: now, mark: 0, units: 0 })
            } else if let Cell::Gcra(cell) = &self.shared.cell {
                let (gcra, tat) = cell.read(|gcra, tat| (*gcra, *tat));
                let units = gcra.units(cost);
                // INVARIANT: as much is booked as those who wait cost.
                let mark = line.bookings.front_end(units)?;
                let due = gcra.act_at(mark, Tick::ZERO).unwrap_or(Tick::MAX);
                if due > now {
                    return Some(due);
                }
                line.bookings.take_front(units);
                let decision = gcra.peek(&tat, now, 0).forced(cost);
                Answer::Granted(Grant { decision, due, mark, units })
            } else {
                let (decision, mark, units) = on_cell!(&self.shared.cell, cell => {
                    cell.update(|step, state| {
                        let decision = step.decide(state, now, cost);
                        (decision, step.mark(state, now), step.units(cost))
                    })
                });
                if decision.is_allowed() {
                    Answer::Granted(Grant { decision, due: now, mark, units })
                } else if decision.is_never() {
                    Answer::Refused(Refused::Never(decision))
                } else {
                    return decision.retry_at();
                }
            };
            let line = book.line.as_mut()?;
            wakes.push(line.queue.answer(ticket, answer));
        }
    }

    /// Sees that somebody is awake at `target`.
    fn set_alarm(&self, line: &mut Line, target: Option<Tick>, wakes: &mut Wakes) {
        if let Some(hand) = self.shared.clock.hand() {
            if line.alarm.hand.map(|(at, _)| at) == target {
                return;
            }
            if let Some((_, id)) = line.alarm.hand.take() {
                hand.cancel(id);
            }
            line.alarm.hand = target.map(|at| {
                let limiter = self.clone();
                (at, hand.call_at(at, move |_| limiter.ring()))
            });
            return;
        }
        let Some(target) = target else { return };
        if let Some(driving) = &mut line.alarm.driver
            && driving.until.is_none_or(|until| target < until)
        {
            wakes.push(driving.waker.take());
        }
        let Some(first) = line.queue.first().filter(|_| line.alarm.threads > 0) else { return };
        let is_told = line.alarm.told.is_some_and(|told| told.0 == first && told.1 <= target);
        if !is_told {
            wakes.push(line.queue.waker(first).cloned());
        }
    }

    /// The timer of a manual clock has come.
    fn ring(&self) {
        let mut book = self.book();
        if let Some(line) = &mut book.line {
            line.alarm.hand = None;
        }
        self.release(book);
    }

    /// Serves whom a change lets pass, and unlocks the book.
    pub(crate) fn release(&self, mut book: MutexGuard<'_, Book>) {
        if book.line.is_none() {
            return;
        }
        let mut wakes = Wakes::new();
        self.settle(&mut book, self.now(), &mut wakes);
        drop(book);
        wakes.fire();
    }
}
