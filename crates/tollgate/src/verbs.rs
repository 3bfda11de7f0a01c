//! The verbs, written once: take, peek, force, refund, reserve and give back.
//!
//! Limiters, keys of keyed limiters, keys of stores and open reservations all name a state by a
//! [`StateRef`]. Fast paths stay with their hosts (`limiter/verbs.rs`, `keyed/core.rs`); everything
//! that they leave to the general path ends here.

use crate::{
    Clock, Decision, Limiter, Reason, Refused, Reservation, Tick,
    algorithm::{AnyRule, Entry},
    keyed::{
        claims::KeyClaims,
        core::{Core, Key},
    },
    limiter::Book,
    multi::locks::ResolvedState,
    observe::{Instruments, Verb},
    reservation::{
        Owner, Taken,
        ledger::{Ledger, Open},
        proportion, refusal,
    },
    sync::{Arc, MutexGuard},
    wait::limiter_queue::LimiterQueue,
};
use std::time::Duration;

/// Names a state: that of a limiter, or that of a key in a table.
#[derive(Clone, Copy)]
pub(crate) enum StateRef<'a> {
    Limiter(&'a Limiter),
    Key(&'a Arc<Core>, Key<'a>),
}

impl<'a> StateRef<'a> {
    pub(crate) fn clock(&self) -> &'a Clock {
        match self {
            Self::Limiter(limiter) => limiter.clock(),
            Self::Key(core, _) => &core.clock,
        }
    }

    pub(crate) fn instruments(&self) -> Option<&'a Instruments> {
        match self {
            Self::Limiter(limiter) => limiter.instruments(),
            Self::Key(core, _) => core.instruments(),
        }
    }

    /// Finds the state, with the rule that is in force at `now`.
    pub(crate) fn state(&self, now: Tick) -> ResolvedState<'a> {
        match self {
            Self::Limiter(limiter) => ResolvedState::of_limiter(limiter),
            Self::Key(core, key) => core.state(*key, now),
        }
    }

    /// Returns what an open reservation keeps of the name.
    pub(crate) fn owner(&self) -> Owner {
        match self {
            Self::Limiter(limiter) => Owner::Limiter((*limiter).clone()),
            Self::Key(core, key) => Owner::Key {
                core: Arc::clone(core),
                fingerprint: key.fingerprint,
                policy: key.policy.cloned(),
                call: key.call,
            },
        }
    }

    /// Answers without the state if nothing is limited, all is bypassed, or the key is blocked or
    /// on a list.
    pub(crate) fn exempt(&self, now: Tick, cost: u64) -> Option<Decision> {
        match self {
            Self::Limiter(limiter) => limiter.exempt(now, cost),
            Self::Key(core, key) => core.exempt(*key, now, cost),
        }
    }

    /// Refuses a call that would overtake others who wait for a window; `None` if nobody waits.
    pub(crate) fn behind(&self, now: Tick, cost: u64) -> Option<Decision> {
        match self {
            Self::Limiter(limiter) => limiter.behind(now, cost),
            Self::Key(core, key) => core.behind(key.fingerprint, now, cost),
        }
    }

    /// Serves the waiters of a key whose own quota has ended, before a refund lets them move up.
    fn settle(&self) {
        if let Self::Key(core, key) = self {
            core.settle_key(key.fingerprint);
        }
    }

    /// Reports a decision to the observer, and counts a refusal against the key if the limiter
    /// escalates.
    pub(crate) fn report(&self, verb: Verb, decision: Decision) -> Decision {
        match self {
            Self::Limiter(limiter) => limiter.report(verb, &decision),
            Self::Key(core, key) => return core.settle_refusal(key.fingerprint, verb, decision),
        }
        decision
    }

    /// Returns the limiter that decides for keys without room in their table, if there is one.
    pub(crate) fn overflow(&self) -> Option<Self> {
        match self {
            Self::Limiter(_) => None,
            Self::Key(core, _) => {
                core.count_saturated();
                core.overflow.as_ref().map(Self::Limiter)
            }
        }
    }

    pub(crate) fn refusal_without_room(&self, now: Tick, cost: u64) -> Decision {
        match self {
            Self::Limiter(limiter) => limiter.level_at(now).refused(cost),
            Self::Key(core, key) => core.refusal_without_room(*key, now, cost),
        }
    }

    /// Locks the open reservations and the queue of the state.
    pub(crate) fn lock_claims(&self) -> HeldClaims<'a> {
        match self {
            Self::Limiter(limiter) => HeldClaims::Limiter(limiter, limiter.book()),
            Self::Key(core, key) => HeldClaims::Key(core, core.claims.lock(key.fingerprint)),
        }
    }

    /// Returns the address of the lock of [`lock_claims`](Self::lock_claims).
    pub(crate) fn claims_address(&self) -> usize {
        match self {
            Self::Limiter(limiter) => limiter.book_address(),
            Self::Key(core, key) => core.claims.address(key.fingerprint),
        }
    }
}

impl StateRef<'_> {
    /// Decides as `verb` says, and reports it.
    pub(crate) fn ask(&self, verb: Verb, now: Tick, cost: u64) -> Decision {
        self.ask_by(verb, (now, cost), &mut |entry| entry.ask(verb, now, cost))
    }

    /// Books as much of `most` as the state can hold, even into debt.
    pub(crate) fn force_up_to(&self, now: Tick, most: u64) -> Decision {
        self.ask_by(Verb::Force, (now, most), &mut |entry| entry.force_up_to(now, most))
    }

    fn ask_by(
        &self,
        verb: Verb,
        (now, cost): (Tick, u64),
        step: &mut impl FnMut(&mut Entry<'_>) -> Decision,
    ) -> Decision {
        let without_state = match (self, verb) {
            // Permits are booked for a key even if it is blocked or listed.
            (Self::Key(core, key), Verb::Force) => core.bypassed(*key, now, cost),
            (Self::Limiter(_), Verb::Force) => self.exempt(now, cost),
            _ => self
                .exempt(now, cost)
                .or_else(|| self.behind(now, verb.least(cost)).map(|behind| behind.costing(cost))),
        };
        let decided = without_state.or_else(|| self.state(now).update(&mut *step));
        let without_room = || self.without_room(verb, (now, cost), step);
        self.report(verb, decided.unwrap_or_else(without_room))
    }

    /// Decides for a new key when every entry of its table is live.
    pub(crate) fn without_room(
        &self,
        verb: Verb,
        (now, cost): (Tick, u64),
        step: &mut impl FnMut(&mut Entry<'_>) -> Decision,
    ) -> Decision {
        let decision = match self.overflow() {
            Some(overflow) => overflow.ask_by(verb, (now, cost), step),
            None => self.refusal_without_room(now, verb.least(cost)).costing(cost),
        };
        decision.because(Reason::Saturated)
    }

    /// Answers what [`ask`](Self::ask) would for a plain take, and changes nothing.
    pub(crate) fn peek(&self, now: Tick, cost: u64) -> Decision {
        let without_state = self.exempt(now, cost).or_else(|| self.behind(now, cost));
        without_state.unwrap_or_else(|| self.state(now).look(|entry| entry.peek(now, cost)))
    }

    /// Returns the level, as a decision about nothing.
    pub(crate) fn level(&self, now: Tick) -> Decision {
        match self {
            Self::Limiter(limiter) => {
                limiter.exempt(now, 0).unwrap_or_else(|| limiter.level_at(now))
            }
            Self::Key(..) => self.peek(now, 0),
        }
    }

    /// Gives back up to `cost` permits, or what is still outstanding of `decision`. Returns how many
    /// permits that were.
    pub(crate) fn refund(&self, now: Tick, cost: u64, decision: Option<&Decision>) -> u64 {
        self.settle();
        let (mut claims, state) = (self.lock_claims(), self.state(now));
        // Bookings of waiting callers are not spent, so they cannot be given back.
        let waiting = claims.waiting_units();
        let given = state
            .update(|entry| (entry.refund_beside(now, (cost, decision), waiting), entry.is_gcra()));
        let ((units, permits), is_gcra) = given.unwrap_or_default();
        claims.change(state.rule(), |ledger| match is_gcra {
            true => ledger.lower_all(units),
            false => ledger.take_from_all(units),
        });
        claims.change_queue(|queue| match is_gcra {
            true => queue.lower_behind(0, units),
            false => queue.take_from_grants(units),
        });
        self.given_back(claims, units, permits)
    }

    /// Gives back `permits` of a reservation that cost `cost`, as far as they are outstanding.
    /// Returns how many permits that were.
    pub(crate) fn give_back(&self, now: Tick, id: u64, share: (u64, u64)) -> u64 {
        self.settle();
        let (mut claims, state) = (self.lock_claims(), self.state(now));
        // A limiter's marks were carried over with its state.
        let place = |entry: &mut Entry<'_>| entry.gcra().map(|(gcra, tat)| gcra.place(*tat));
        if let (ResolvedState::Key(..), Some(booked)) = (&state, state.read(place)) {
            claims.change(state.rule(), |ledger| ledger.cut_to(booked));
        }
        let open = claims.change(state.rule(), |ledger| ledger.remove(id));
        let Some(Open { mark, units }) = open.flatten() else { return 0 };
        let most = proportion(units, share);
        let given = state.update(|entry| (entry.give_back(now, mark, most), entry.is_gcra()));
        let ((amount, whole), is_gcra) = given.unwrap_or_default();
        // A window's marks are window numbers and stay as they are.
        if is_gcra {
            claims.change(state.rule(), |ledger| ledger.lower_younger(id, amount));
            claims.change_queue(|queue| queue.lower_behind(mark, amount));
        }
        self.given_back(claims, amount, whole)
    }

    fn given_back(&self, claims: HeldClaims<'_>, units: u64, permits: u64) -> u64 {
        claims.release(units);
        if let Some(instruments) = self.instruments() {
            instruments.counters.refund(permits);
        }
        permits
    }

    /// Takes `cost` permits, or books the earliest time within `max_wait` at which they are free.
    pub(crate) fn reserve(
        &self,
        now: Tick,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Reservation, Refused> {
        let report = |decision| self.report(Verb::Reserve, decision);
        let made = |id, act_at, decision| {
            Reservation::new(self.owner(), id, (cost, act_at), report(decision))
        };
        let without_state = |decision: Decision| match decision.is_allowed() {
            true => Ok(made(None, now, decision)),
            false => Err(refusal(report(decision), max_wait, true)),
        };
        if let Some(decision) = self.exempt(now, cost) {
            return without_state(decision);
        }
        if let Some(decision) = self.behind(now, cost) {
            return Err(refusal(report(decision), max_wait, false));
        }
        let (mut claims, state) = (self.lock_claims(), self.state(now));
        // The answer is worked out in the same step as the take, so that it describes that take.
        let reserved = state.update(|entry| (entry.reserve(now, cost, max_wait), entry.is_gcra()));
        let Some(((taken, decision), is_gcra)) = reserved else {
            drop(claims);
            return match self.overflow() {
                Some(overflow) => overflow.reserve(now, cost, max_wait),
                None => {
                    let decision = self.refusal_without_room(now, cost).costing(cost);
                    without_state(decision.because(Reason::Saturated))
                }
            };
        };
        let Some(taken) = taken else {
            drop(claims);
            return Err(refusal(report(decision), max_wait, is_gcra));
        };
        // A reservation of nothing has nothing to give back.
        let id = (cost > 0).then(|| claims.add(state.rule(), &taken));
        drop(claims);
        if let Some(instruments) = self.instruments() {
            instruments.waits.add(taken.act_at.since(now));
        }
        Ok(made(id.flatten(), taken.act_at, decision.forced(cost)))
    }

    /// Takes as many permits as are free, at most `most`, with the right to give back.
    pub(crate) fn lease(&self, now: Tick, most: u64) -> (Decision, Option<Reservation>) {
        let without_state = self.exempt(now, most).or_else(|| self.behind(now, most));
        if let Some(decision) = without_state {
            return (decision, None);
        }
        let (mut claims, state) = (self.lock_claims(), self.state(now));
        let taken = state.update(|entry| {
            let decision = entry.ask(Verb::UpTo, now, most);
            (decision, entry.taken(now, decision.cost()))
        });
        let Some((decision, taken)) = taken else {
            drop(claims);
            let up_to = &mut |entry: &mut Entry<'_>| entry.ask(Verb::UpTo, now, most);
            return (self.without_room(Verb::UpTo, (now, most), up_to), None);
        };
        let is_taken = decision.is_allowed() && decision.cost() > 0;
        let id = is_taken.then(|| claims.add(state.rule(), &taken)).flatten();
        let owned = |id| Reservation::new(self.owner(), Some(id), (decision.cost(), now), decision);
        (decision, id.map(owned))
    }
}

/// The open reservations and the queue of a state, locked.
pub(crate) enum HeldClaims<'a> {
    Limiter(&'a Limiter, MutexGuard<'a, Book>),
    Key(&'a Core, KeyClaims<'a>),
}

impl HeldClaims<'_> {
    /// Returns how much is booked for those who wait, in units.
    fn waiting_units(&self) -> u64 {
        match self {
            Self::Limiter(_, book) => book.waiting_units(),
            Self::Key(_, claims) => claims.waiting_units(),
        }
    }

    /// Adds what was taken by `rule`, which only keys have. Returns its id.
    pub(crate) fn add(&mut self, rule: Option<&AnyRule>, taken: &Taken) -> Option<u64> {
        match self {
            Self::Limiter(_, book) => Some(book.ledger.add(taken.mark, taken.units, taken.passed)),
            Self::Key(_, claims) => rule.map(|rule| claims.add(*rule, taken)),
        }
    }

    /// Changes the ledger, if there is one, after it was converted to `rule`.
    pub(crate) fn change<R>(
        &mut self,
        rule: Option<&AnyRule>,
        change: impl FnOnce(&mut Ledger) -> R,
    ) -> Option<R> {
        match self {
            Self::Limiter(_, book) => Some(change(&mut book.ledger)),
            Self::Key(_, claims) => claims.change(rule, change),
        }
    }

    fn change_queue(&mut self, change: impl FnOnce(&mut LimiterQueue)) {
        match self {
            Self::Limiter(_, book) => book.queue.as_deref_mut().map_or((), change),
            Self::Key(_, claims) => claims.change_queue(change),
        }
    }

    /// Notes that `units` were given back, unlocks, and serves the waiters that this lets pass.
    fn release(self, units: u64) {
        match self {
            Self::Limiter(limiter, book) => {
                limiter.shared.count_refund(units);
                limiter.release(book);
            }
            Self::Key(core, claims) => claims.release(core),
        }
    }
}
