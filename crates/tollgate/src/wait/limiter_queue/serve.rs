//! Serving waiting callers, and booking for them.

use super::{Grant, LockedQueue, LockedState, WaitResult};
use crate::{
    Decision, Reason, Refused, Tick,
    algorithm::{AnyRule, Booked, Entry, Gcra, Step},
    reservation::{ledger::Open, refusal},
    wait::queue::{Request, Ticket},
};
use std::time::Duration;

impl<S: LockedState> LockedQueue<'_, S> {
    /// Applies `step` to the state; `None` if there is no room for it.
    pub(super) fn update<R>(&self, step: impl FnMut(&mut Entry<'_>) -> R) -> Option<R> {
        self.state.state(self.now).update(step)
    }

    /// Applies `look` to a copy of the state, or to the state.
    fn read<R>(&self, look: impl FnMut(&mut Entry<'_>) -> R) -> R {
        self.state.state(self.now).read(look)
    }

    /// Returns what the state has left, for a call of `cost`.
    pub(super) fn peek(&self, cost: u64) -> Decision {
        self.read(|entry| entry.peek(self.now, cost))
    }

    /// Gives back the rear of what is booked: a caller who wanted `cost` waits no more.
    pub(super) fn unbook(&mut self, cost: u64) {
        let (Some(rule), Some(gcra)) = (self.queue.rule, self.queue.gcra()) else { return };
        let mut left = gcra.units(cost);
        while left > 0 {
            let Some((end, taken)) = self.queue.bookings.take_rear(left) else { break };
            left -= taken;
            // By the rule by which it was booked: another one may be in force already.
            let state = self.state.state_by(&rule, self.now);
            let given = state.update(|entry| match entry.gcra() {
                Some((gcra, tat)) => {
                    // A table may have forgotten the state, and with it what was booked.
                    gcra.raise(tat, end);
                    gcra.give_back(tat, self.now, end, taken)
                }
                None => 0,
            });
            self.state.lower_behind(end, given.unwrap_or(0));
        }
    }

    /// Takes everything that is booked out of the state, before that changes. The next
    /// [`settle`](Self::settle) books for the waiting callers anew.
    pub(crate) fn unbook_all(&mut self) {
        let total = u64::try_from(self.queue.waiting.total()).unwrap_or(u64::MAX);
        self.unbook(total);
        debug_assert_eq!(self.queue.bookings.length, 0, "as much is booked as the callers cost");
        self.queue.is_unbooked = true;
    }

    /// Measures by `rule` from now on: claims that were measured by another one are final.
    pub(super) fn measure_by(&mut self, rule: AnyRule) {
        if self.queue.rule != Some(rule) {
            self.queue.forget_claims();
            self.queue.rule = Some(rule);
        }
        self.queue.is_unbooked = false;
    }

    /// Books for every waiting caller anew, in the order of service, and refuses those that the new
    /// state cannot serve in time.
    fn rebook(&mut self, rule: AnyRule) {
        let now = self.now;
        if !self.queue.is_unbooked {
            self.unbook_all();
        }
        self.measure_by(rule);
        let mut next = self.queue.waiting.first();
        while let Some(ticket) = next {
            next = self.queue.waiting.after(ticket);
            let Some(&request) = self.queue.waiting.request(ticket) else { continue };
            let (cost, max_wait) = (request.cost, request.max_wait(now));
            let booked = self.update(|entry| match entry.gcra() {
                Some((gcra, tat)) => {
                    let booked = gcra.book(tat, now, (cost, max_wait), |end| end);
                    booked.map(Some).ok_or_else(|| gcra.peek(tat, now, cost))
                }
                None => {
                    let decision = entry.peek(now, cost);
                    if decision.is_never() { Err(decision) } else { Ok(None) }
                }
            });
            match booked.unwrap_or_else(|| Err(self.state.without_room(now, cost))) {
                Ok(Some(Booked { start, end, .. })) => self.queue.bookings.add(start, end),
                Ok(None) => {}
                Err(decision) => self.answer(ticket, Err(refusal(decision, max_wait, true))),
            }
        }
    }

    /// Serves the callers who are due, and refuses those who are late. Returns the next due time.
    pub(crate) fn settle(&mut self) -> Option<Tick> {
        loop {
            let due = self.serve();
            let first = self.queue.waiting.first_deadline();
            match first.filter(|(deadline, _)| *deadline <= self.now) {
                None if self.queue.waiting.is_empty() => return None,
                None => {
                    let changes = self.state.changes_at(self.now);
                    let deadline = first.map(|(deadline, _)| deadline);
                    return due.into_iter().chain(deadline).chain(changes).min();
                }
                Some((_, ticket)) => {
                    let cost = self.cost(ticket);
                    let until = due.unwrap_or(self.now);
                    let decision = self.peek(0).blocked(cost, until).because(Reason::Quota);
                    self.refuse(ticket, Refused::Late(decision));
                }
            }
        }
    }

    pub(super) fn cost(&self, ticket: Ticket) -> u64 {
        self.queue.waiting.request(ticket).map_or(0, |request| request.cost)
    }

    fn answer(&mut self, ticket: Ticket, result: WaitResult) {
        self.wakers.push(self.queue.waiting.answer(ticket, result));
    }

    fn refuse(&mut self, ticket: Ticket, refused: Refused) {
        let cost = self.cost(ticket);
        self.answer(ticket, Err(refused));
        self.unbook(cost);
    }

    /// Handles the loss of a timer task. If `is_lost`, no task can wake the waiting tasks, so they are
    /// refused; otherwise every caller is woken, and starts another timer task. Returns the next due
    /// time.
    #[cfg(feature = "tokio")]
    pub(crate) fn abandon(&mut self, is_lost: bool) -> Option<Tick> {
        let decision = self.peek(0);
        let mut next = self.queue.waiting.first();
        while let Some(ticket) = next {
            next = self.queue.waiting.after(ticket);
            if !is_lost {
                self.wakers.push(self.queue.waiting.waker(ticket).cloned());
            } else if self.queue.waiting.is_task(ticket) {
                // Threads look at the clock themselves.
                self.refuse(ticket, Refused::NoRuntime(decision));
            }
        }
        self.settle()
    }

    /// Serves from the head for as long as that is due. Returns when the next one is.
    fn serve(&mut self) -> Option<Tick> {
        let now = self.now;
        loop {
            let ticket = self.queue.waiting.first()?;
            let &Request { cost, since, .. } = self.queue.waiting.request(ticket)?;
            let result = match self.state.exempt(now, cost) {
                Some(decision) if decision.is_denied() => match decision.retry_at() {
                    // Meanwhile the state refills: afterwards every caller is booked anew.
                    Some(until) => {
                        self.unbook_all();
                        return Some(until);
                    }
                    None => {
                        self.unbook(cost);
                        Err(Refused::Never(decision))
                    }
                },
                Some(decision) => {
                    self.unbook(cost);
                    Ok(Grant { decision, due: now, id: None })
                }
                None => {
                    let rule = self.state.rule(now);
                    if self.queue.is_unbooked || self.queue.rule != Some(rule) {
                        self.rebook(rule);
                        continue;
                    }
                    match self.serve_head(cost, since) {
                        Ok(result) => result,
                        Err(due) => return due,
                    }
                }
            };
            self.answer(ticket, result);
        }
    }

    /// Returns the result for the head, who wants `cost`, if it is due; otherwise when it is.
    fn serve_head(&mut self, cost: u64, since: Tick) -> Result<WaitResult, Option<Tick>> {
        let Some(gcra) = self.queue.gcra() else { return self.serve_head_of_window(cost) };
        let units = gcra.units(cost);
        // INVARIANT: as much is booked as the waiting callers cost.
        let Some(mark) = self.replace_stale_front(&gcra, since, units) else {
            debug_assert!(false, "a waiting call has no booking");
            return Err(None);
        };
        let due = gcra.act_at(mark, since).unwrap_or(Tick::MAX);
        if due > self.now {
            self.restore_bookings(&gcra);
            return Err(Some(due));
        }
        self.queue.bookings.take_front(units);
        let decision = self.peek(0).forced(cost);
        Ok(Ok(self.grant(decision, due, (mark, units))))
    }

    /// Windows are not booked: the head takes what it wants, or tries again when it can.
    fn serve_head_of_window(&mut self, cost: u64) -> Result<WaitResult, Option<Tick>> {
        let now = self.now;
        let tried = self.update(|entry| {
            let decision = entry.decide(now, cost);
            (decision, entry.taken(now, cost))
        });
        let Some((decision, taken)) = tried else {
            return Err(self.state.without_room(now, cost).retry_at());
        };
        if decision.is_allowed() {
            Ok(Ok(self.grant(decision, now, (taken.mark, taken.units))))
        } else if decision.is_never() {
            Ok(Err(Refused::Never(decision)))
        } else {
            Err(decision.retry_at())
        }
    }

    /// Grants what is taken, with the right to give it back until it is fetched.
    fn grant(&mut self, decision: Decision, due: Tick, (mark, units): (u64, u64)) -> Grant {
        let granted = &mut self.queue.granted;
        granted.warm_up();
        let id = (units > 0).then(|| granted.add(mark, units, 0));
        Grant { decision, due, id }
    }

    /// Returns where the front ends that serves a caller who came at `since`.
    ///
    /// Bookings of other callers in between may have left a front that is older than the time at
    /// which it can be used: that part is given up, for as much at the end of the timeline.
    fn replace_stale_front(&mut self, gcra: &Gcra, since: Tick, units: u64) -> Option<u64> {
        loop {
            let bookings = &self.queue.bookings;
            let (mark, (start, length)) = (bookings.front_end(units)?, bookings.front()?);
            let oldest = gcra.act_position(mark).max(gcra.position(since));
            let stale = oldest.saturating_sub(start).min(length);
            if stale == 0 {
                return Some(mark);
            }
            let end = bookings.end()?;
            let again = self.update(|entry| {
                let (gcra, tat) = entry.gcra()?;
                let start = gcra.place(*tat).max(end).max(gcra.position(self.now));
                // OVERFLOW: as much lies behind now as it is ahead.
                *tat = gcra.word(start + stale);
                Some(start)
            });
            let Some(start) = again.flatten() else { return Some(mark) };
            self.queue.bookings.add(start, start + stale);
            self.queue.bookings.take_front(stale);
        }
    }

    /// Books again what a table has forgotten with the state: there it is full, and the key gains
    /// what it had used, but waiting callers keep their places.
    fn restore_bookings(&self, gcra: &Gcra) {
        let Some(end) = self.queue.bookings.end() else { return };
        let is_lost = |entry: &mut Entry<'_>| {
            entry.gcra().is_some_and(|(known, tat)| known == gcra && gcra.place(*tat) < end)
        };
        if self.read(is_lost) {
            self.update(|entry| {
                if let Some((known, tat)) = entry.gcra()
                    && known == gcra
                {
                    gcra.raise(tat, end);
                }
            });
        }
    }

    /// Gives back what a grant has taken and its caller has not used. Its call has not passed, so the permits were not
    /// counted as allowed, and are not counted as refunded.
    pub(super) fn give_back_grant(&mut self, grant: &Grant) {
        let claim = grant.id.and_then(|id| self.queue.granted.remove(id));
        // Claims that were measured by another rule are final.
        let is_current = self.queue.rule == Some(self.state.rule(self.now));
        let Some(Open { mark, units }) = claim.filter(|_| is_current) else { return };
        let given = self.update(|entry| entry.give_back(self.now, mark, units));
        let (amount, _) = given.unwrap_or_default();
        if self.queue.gcra().is_some() {
            self.state.lower_behind(mark, amount);
            self.queue.lower_behind(mark, amount);
        }
    }

    /// Returns the refusal of a caller who may not overtake those who wait for a window; `None` if
    /// none waits. `now` is the caller's time, and `target` the next due time.
    pub(crate) fn behind(&self, now: Tick, target: Option<Tick>, cost: u64) -> Option<Decision> {
        if self.queue.waiting.is_empty() || self.queue.gcra().is_some() {
            return None;
        }
        let level = self.state.state(now).read(|entry| entry.peek(now, cost));
        if level.is_never() {
            return Some(level);
        }
        let until = target.max(level.retry_at()).unwrap_or(now);
        Some(level.blocked(cost, until).because(Reason::Quota))
    }

    /// Decides ahead of all waiting callers; `None` if there is no room for the state.
    pub(crate) fn overtake(&mut self, cost: u64) -> Option<Decision> {
        let now = self.now;
        let is_booked = self.queue.bookings.length > 0;
        let Some(gcra) = self.queue.gcra().filter(|_| is_booked) else {
            return self.update(|entry| entry.decide(now, cost));
        };
        let units = gcra.units(cost);
        // It books at the end, as every caller, and is served with the front, its own included.
        let front = self.replace_stale_front(&gcra, now, units);
        let (end, length) = (self.queue.bookings.end()?, self.queue.bookings.length);
        let act = |own: u64| front.unwrap_or(own - length);
        let (booked, decision, until) = self.update(|entry| {
            let (gcra, tat) = entry.gcra()?;
            gcra.raise(tat, end);
            let until = gcra.act_at(act(gcra.place(*tat) + units), now);
            let booked = gcra.book(tat, now, (cost, Duration::ZERO), act);
            Some((booked, gcra.peek(tat, now, cost), until))
        })??;
        let Some(Booked { start, end, .. }) = booked else {
            let later = decision.blocked(cost, until.unwrap_or(Tick::MAX)).because(Reason::Quota);
            return Some(if decision.is_never() { decision } else { later });
        };
        self.queue.bookings.add(start, end);
        self.queue.bookings.take_front(units);
        Some(decision.forced(cost))
    }
}
