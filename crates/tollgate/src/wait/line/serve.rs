//! Serving those who wait, and booking for them.

use super::{Answer, At, Grant, Line, Post, Wish};
use crate::{
    Decision, Reason, Refused, Tick,
    algorithm::{AnyRule, Booked, Entry, Gcra, Step},
    reservation::{ledger::Open, refusal},
    wait::queue::Ticket,
};
use std::time::Duration;

impl Line {
    /// Gives back the rear of what is booked: somebody who wanted `cost` waits no more.
    pub(crate) fn unbook(&mut self, post: &mut impl Post, now: Tick, cost: u64) {
        let (Some(rule), Some(gcra)) = (self.rule, self.gcra()) else { return };
        let mut left = gcra.units(cost);
        while left > 0 {
            let Some((end, taken)) = self.bookings.take_rear(left) else { break };
            left -= taken;
            // By the rule by which it was booked: another one may be in force already.
            let given = post.state_by(&rule, now).update(|entry| match entry.gcra() {
                Some((gcra, tat)) => {
                    // A table may have forgotten the state, and with it what was booked.
                    gcra.raise(tat, end);
                    gcra.give_back(tat, now, end, taken)
                }
                None => 0,
            });
            post.lower_behind(end, given.unwrap_or(0));
        }
    }

    /// Takes everything that is booked out of the state, before that changes. Whoever waits is
    /// booked anew when the line is next settled.
    pub(crate) fn unbook_all(&mut self, post: &mut impl Post, now: Tick) {
        let total = u64::try_from(self.queue.total()).unwrap_or(u64::MAX);
        self.unbook(post, now, total);
        debug_assert_eq!(self.bookings.length, 0, "as much is booked as those who wait cost");
        self.is_unbooked = true;
    }

    /// The state has gone, and what was booked with it. Whoever waits is booked anew when the line
    /// is next settled.
    pub(crate) fn lose_bookings(&mut self) {
        self.bookings.clear();
        self.forget_claims();
        self.is_unbooked = true;
    }

    /// From now on `rule` is what counts: claims that were measured by another one are final.
    pub(super) fn measure_by(&mut self, rule: AnyRule) {
        if self.rule != Some(rule) {
            self.forget_claims();
            self.rule = Some(rule);
        }
        self.is_unbooked = false;
    }

    /// Books everybody who waits anew, in the order of service, and refuses whom the new state
    /// cannot serve in time.
    fn rebook(&mut self, post: &mut impl Post, rule: AnyRule, at: &mut At<'_>) {
        let now = at.now;
        if !self.is_unbooked {
            self.unbook_all(post, now);
        }
        self.measure_by(rule);
        let mut next = self.queue.first();
        while let Some(ticket) = next {
            next = self.queue.after(ticket);
            let Some((cost, deadline)) = self.queue.wish(ticket) else { continue };
            let max_wait = Wish { cost, deadline }.max_wait(now);
            let booked = post.update(now, |entry| match entry.gcra() {
                Some((gcra, tat)) => {
                    let booked = gcra.book(tat, now, (cost, max_wait), |end| end);
                    booked.map(Some).ok_or_else(|| gcra.peek(tat, now, cost))
                }
                None => {
                    let decision = entry.peek(now, cost);
                    if decision.is_never() { Err(decision) } else { Ok(None) }
                }
            });
            let refused = match booked {
                Some(Ok(Some(Booked { start, end, .. }))) => {
                    self.bookings.add(start, end);
                    None
                }
                Some(Ok(None)) => None,
                Some(Err(decision)) => Some(decision),
                None => Some(post.without_room(now, cost)),
            };
            if let Some(decision) = refused {
                let refused = Answer::Refused(refusal(decision, max_wait, true));
                at.wakes.push(self.queue.answer(ticket, refused));
            }
        }
    }

    /// Serves who is due and refuses who is late. Returns when to come again.
    pub(crate) fn settle(&mut self, post: &mut impl Post, at: &mut At<'_>) -> Option<Tick> {
        let now = at.now;
        loop {
            let due = self.serve(post, at);
            let first = self.queue.first_deadline();
            match first.filter(|(deadline, _)| *deadline <= now) {
                None if self.queue.is_empty() => return None,
                None => {
                    let changes = post.changes_at(now);
                    let deadline = first.map(|(deadline, _)| deadline);
                    return due.into_iter().chain(deadline).chain(changes).min();
                }
                Some((_, ticket)) => {
                    let cost = self.queue.wish(ticket).map_or(0, |(cost, _)| cost);
                    let level = post.read(now, |entry| entry.peek(now, 0));
                    let decision = level.blocked(cost, due.unwrap_or(now)).because(Reason::Quota);
                    self.refuse(post, ticket, Refused::Late(decision), at);
                }
            }
        }
    }

    fn refuse(&mut self, post: &mut impl Post, ticket: Ticket, refused: Refused, at: &mut At<'_>) {
        let cost = self.queue.wish(ticket).map_or(0, |(cost, _)| cost);
        at.wakes.push(self.queue.answer(ticket, Answer::Refused(refused)));
        self.unbook(post, at.now, cost);
    }

    /// Refuses all tasks: nobody can wake them. Threads look at the clock themselves.
    #[cfg(feature = "tokio")]
    pub(super) fn refuse_tasks(&mut self, post: &mut impl Post, at: &mut At<'_>) {
        let decision = post.read(at.now, |entry| entry.peek(at.now, 0));
        let mut next = self.queue.first();
        while let Some(ticket) = next {
            next = self.queue.after(ticket);
            if self.queue.is_task(ticket) {
                self.refuse(post, ticket, Refused::NoRuntime(decision), at);
            }
        }
    }

    /// Serves from the head for as long as that is due. Returns when the next one is.
    fn serve(&mut self, post: &mut impl Post, at: &mut At<'_>) -> Option<Tick> {
        let now = at.now;
        loop {
            let ticket = self.queue.first()?;
            let (cost, _) = self.queue.wish(ticket)?;
            let answer = match post.exempt(now, cost) {
                Some(decision) if decision.is_denied() => match decision.retry_at() {
                    // Meanwhile the state refills: afterwards everybody is booked anew.
                    Some(until) => {
                        self.unbook_all(post, now);
                        return Some(until);
                    }
                    None => {
                        self.unbook(post, now, cost);
                        Answer::Refused(Refused::Never(decision))
                    }
                },
                Some(decision) => {
                    self.unbook(post, now, cost);
                    Answer::Granted(Grant { decision, due: now, id: None })
                }
                None => {
                    let rule = post.rule(now);
                    if self.is_unbooked || self.rule != Some(rule) {
                        self.rebook(post, rule, at);
                        continue;
                    }
                    let since = self.queue.since(ticket).unwrap_or(now);
                    match self.turn(post, now, (cost, since)) {
                        Ok(answer) => answer,
                        Err(due) => return due,
                    }
                }
            };
            at.wakes.push(self.queue.answer(ticket, answer));
        }
    }

    /// Answers the head, who wants `cost`, if it is due; otherwise says when it is.
    fn turn(
        &mut self,
        post: &mut impl Post,
        now: Tick,
        (cost, since): (u64, Tick),
    ) -> Result<Answer, Option<Tick>> {
        let Some(gcra) = self.gcra() else { return self.turn_at_window(post, now, cost) };
        let units = gcra.units(cost);
        // INVARIANT: as much is booked as those who wait cost.
        let Some(mark) = self.freshen(post, &gcra, (now, since), units) else {
            debug_assert!(false, "a waiting call has no booking");
            return Err(None);
        };
        let due = gcra.act_at(mark, since).unwrap_or(Tick::MAX);
        if due > now {
            self.hold(post, now, &gcra);
            return Err(Some(due));
        }
        self.bookings.take_front(units);
        let decision = post.read(now, |entry| entry.peek(now, 0)).forced(cost);
        Ok(self.grant(decision, due, (mark, units)))
    }

    /// Windows are not booked: the head takes what it wants, or is told when to try again.
    fn turn_at_window(
        &mut self,
        post: &impl Post,
        now: Tick,
        cost: u64,
    ) -> Result<Answer, Option<Tick>> {
        let tried = post.update(now, |entry| {
            let decision = entry.decide(now, cost);
            (decision, entry.taken(now, cost))
        });
        let Some((decision, taken)) = tried else {
            return Err(post.without_room(now, cost).retry_at());
        };
        if decision.is_allowed() {
            Ok(self.grant(decision, now, (taken.mark, taken.units)))
        } else if decision.is_never() {
            Ok(Answer::Refused(Refused::Never(decision)))
        } else {
            Err(decision.retry_at())
        }
    }

    /// Grants what is taken, with the right to give it back until it is fetched.
    fn grant(&mut self, decision: Decision, due: Tick, (mark, units): (u64, u64)) -> Answer {
        self.granted.warm_up();
        let id = (units > 0).then(|| self.granted.add(mark, units, 0));
        Answer::Granted(Grant { decision, due, id })
    }

    /// Returns where the front ends with which somebody is served who came at `since`.
    ///
    /// What was booked for others in between may have left a front that is older than the time at
    /// which it can be used: that part is given up, for as much at the end of the timeline.
    fn freshen(
        &mut self,
        post: &impl Post,
        gcra: &Gcra,
        (now, since): (Tick, Tick),
        units: u64,
    ) -> Option<u64> {
        loop {
            let (mark, (start, length)) = (self.bookings.front_end(units)?, self.bookings.front()?);
            let oldest = gcra.act_position(mark).max(gcra.position(since));
            let stale = oldest.saturating_sub(start).min(length);
            if stale == 0 {
                return Some(mark);
            }
            let end = self.bookings.end()?;
            let again = post.update(now, |entry| {
                let (gcra, tat) = entry.gcra()?;
                let start = gcra.place(*tat).max(end).max(gcra.position(now));
                // OVERFLOW: as much lies behind now as it is ahead.
                *tat = gcra.word(start + stale);
                Some(start)
            });
            let Some(start) = again.flatten() else { return Some(mark) };
            self.bookings.add(start, start + stale);
            self.bookings.take_front(stale);
        }
    }

    /// Books again what a table has forgotten with the state: there it is full, and the key gains
    /// what it had used, but those who wait keep their places.
    fn hold(&self, post: &impl Post, now: Tick, gcra: &Gcra) {
        let Some(end) = self.bookings.end() else { return };
        let is_lost = |entry: &mut Entry<'_>| {
            entry.gcra().is_some_and(|(known, tat)| known == gcra && gcra.place(*tat) < end)
        };
        if post.read(now, is_lost) {
            post.update(now, |entry| {
                if let Some((known, tat)) = entry.gcra()
                    && known == gcra
                {
                    gcra.raise(tat, end);
                }
            });
        }
    }

    /// Gives back what a grant has taken and nobody has used.
    pub(super) fn give_back_grant(&mut self, post: &mut impl Post, now: Tick, grant: &Grant) {
        let claim = grant.id.and_then(|id| self.granted.remove(id));
        // Claims that were measured by another rule are final.
        let Some(Open { mark, units }) = claim.filter(|_| self.rule == Some(post.rule(now))) else {
            return;
        };
        let given = post.update(now, |entry| entry.give_back(now, mark, units));
        let (amount, whole) = given.unwrap_or_default();
        if self.gcra().is_some() {
            post.lower_behind(mark, amount);
            self.lower_behind(mark, amount);
        }
        if let Some(watch) = post.watch() {
            watch.refunded(whole);
        }
    }

    /// The answer to somebody who may not overtake those who wait for a window; `None` if nobody
    /// waits. `target` is when to come again.
    pub(crate) fn behind(
        &self,
        post: &impl Post,
        (now, target): (Tick, Option<Tick>),
        cost: u64,
    ) -> Option<Decision> {
        if self.queue.is_empty() || self.gcra().is_some() {
            return None;
        }
        let level = post.read(now, |entry| entry.peek(now, cost));
        if level.is_never() {
            return Some(level);
        }
        let until = target.max(level.retry_at()).unwrap_or(now);
        Some(level.blocked(cost, until).because(Reason::Quota))
    }

    /// Decides ahead of everybody who waits; `None` if there is no room for the state.
    pub(crate) fn overtake(
        &mut self,
        post: &mut impl Post,
        now: Tick,
        cost: u64,
    ) -> Option<Decision> {
        let Some(gcra) = self.gcra().filter(|_| self.bookings.length > 0) else {
            return post.update(now, |entry| entry.decide(now, cost));
        };
        let units = gcra.units(cost);
        // It books at the end, as everybody, and is served with the front, its own included.
        let front = self.freshen(post, &gcra, (now, now), units);
        let (end, length) = (self.bookings.end()?, self.bookings.length);
        let act = |own: u64| front.unwrap_or(own - length);
        let (booked, decision, until) = post.update(now, |entry| {
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
        self.bookings.add(start, end);
        self.bookings.take_front(units);
        Some(decision.forced(cost))
    }
}
