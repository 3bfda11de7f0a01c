//! How several limits are decided as one.

use super::{
    Charge, Limits, Target,
    few::Few,
    locks::{Locks, State},
    ticket::Books,
};
use crate::{
    Decision, Reason, Reservation, Tick,
    algorithm::Entry,
    limiter::backoff::Backoff,
    reservation::Taken,
    table::{Miss, Who},
    watch::Verb,
};

/// What is done with permits that all limits have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    Look,
    Take,
    /// Take, and remember what can be given back.
    Reserve,
}

/// One limit's part of a decision.
#[derive(Clone, Copy)]
struct Part<'a> {
    charge: Charge<'a>,
    who: Option<Who>,
    /// Nobody needs to ask the state: bypassed, unlimited, listed or blocked.
    exempt: Option<Decision>,
    /// The first part about the same state.
    leader: usize,
    /// Sum of the costs of all parts about the same state; only a leader's counts.
    total: u64,
    /// The key has no room and shares a budget, or is refused.
    is_saturated: bool,
    /// The answer.
    decision: Option<Decision>,
    taken: Option<Taken>,
}

/// The parts of one decision.
pub(crate) struct Parts<'a> {
    parts: Few<Part<'a>>,
    now: Tick,
}

/// Why a decision must start again.
enum Again {
    /// A class changed.
    Stale,
    /// A key found no room.
    Saturated(usize),
}

impl<'a> Parts<'a> {
    /// Decides over all charges: all are taken or none. Tells each limit's own decision, and
    /// returns the one over all, with the reservations if that was asked for and it is allowed.
    pub(crate) fn decide(
        charges: &'a [Charge<'a>],
        now: Tick,
        taking: Taking,
        mut told: impl FnMut(usize, &Decision),
    ) -> (Decision, Option<Vec<Reservation>>) {
        let (mut saturated, mut backoff) = (0, Backoff::new());
        let (parts, refused, reservations) = loop {
            let mut parts = Self::new(charges, now, saturated);
            match parts.run(taking) {
                Ok((refused, reservations)) => break (parts, refused, reservations),
                Err(Again::Stale) => backoff.wait(),
                Err(Again::Saturated(index)) => saturated |= 1 << index,
            }
        };
        let decisions = || parts.parts.iter().filter_map(|part| part.decision);
        let mut each = Few::new();
        for (index, part) in parts.parts.iter().enumerate() {
            if let Some(decision) = part.decision {
                let decision = part.report(decision, taking);
                told(index, &decision);
                each.push(decision);
            }
        }
        let joined = Decision::joined(each.iter().copied(), refused);
        debug_assert_eq!(decisions().count(), charges.len(), "every limit has said something");
        (joined.unwrap_or_else(|| Decision::unlimited(now, 0)), reservations)
    }

    fn new(charges: &'a [Charge<'a>], now: Tick, saturated: u64) -> Self {
        let mut parts: Few<Part<'a>> = Few::new();
        for (index, charge) in charges.iter().enumerate() {
            let mut part = Part::new(*charge, now, index, saturated >> index & 1 == 1);
            // What finds no room may share with another that found none.
            let leader = parts.iter().position(|known| known.charge.is_same(&part.charge));
            part.leader = leader.unwrap_or(index);
            parts.push(part);
            if let Some(first) = leader.and_then(|first| parts.get_mut(first)) {
                first.total = first.total.saturating_add(charge.cost);
            }
        }
        Self { parts, now }
    }

    /// Returns a mask of those that refused, and the reservations if all were taken.
    fn run(&mut self, taking: Taking) -> Result<(u64, Option<Vec<Reservation>>), Again> {
        let mut books = (taking == Taking::Reserve).then(|| Books::lock(self.charges()));
        let states = self.parts.iter().filter(|part| part.asks()).map(Part::state);
        let mut locks = Locks::take(states);
        let refused = self.look(&mut locks)?;
        if refused != 0 {
            self.look_untouched(&mut locks)?;
        }
        if refused == 0 && taking != Taking::Look {
            self.take(&mut locks)?;
        }
        drop(locks);
        let reservations = books.as_mut().filter(|_| refused == 0).map(|books| {
            let made = self.parts.iter().map(|part| books.note(&part.taken_of(self.now)));
            made.collect()
        });
        Ok((refused, reservations))
    }

    fn charges(&self) -> impl Iterator<Item = (Charge<'a>, Option<u64>)> + Clone {
        self.parts.iter().map(|part| (part.charge, part.who.map(|who| who.fingerprint)))
    }

    /// Asks every state for the sum of what is wanted of it.
    fn look(&mut self, locks: &mut Locks<'a>) -> Result<u64, Again> {
        let (mut refused, now) = (0, self.now);
        for (index, part) in self.parts.slice_mut().iter_mut().flatten().enumerate() {
            if part.leader != index {
                continue;
            }
            let decision = match part.exempt {
                Some(decision) => decision,
                None => {
                    let (total, call) = (part.total, part.charge.call());
                    let peek = |entry: &mut Entry<'_>| entry.peek(now, total);
                    match locks.update(&part.state(), |entry| entry.by(call.as_ref(), peek)) {
                        Ok(decision) => decision,
                        Err(Miss::Stale) => return Err(Again::Stale),
                        Err(Miss::Full) => return Err(Again::Saturated(index)),
                    }
                }
            };
            let reason = if part.is_saturated { Reason::Saturated } else { decision.reason() };
            part.decision = Some(decision.because(reason));
        }
        for index in 0..Limits::MOST {
            let Some(leader) = self.parts.get(index).map(|part| part.leader) else { break };
            let decision = self.parts.get(leader).and_then(|part| part.decision);
            if let Some(part) = self.parts.get_mut(index) {
                part.decision = decision;
            }
            if decision.is_some_and(|decision| decision.is_denied()) {
                refused |= 1 << index;
            }
        }
        Ok(refused)
    }

    /// Those that would have allowed are not charged: what they tell is their level as it is.
    fn look_untouched(&mut self, locks: &mut Locks<'a>) -> Result<(), Again> {
        let now = self.now;
        for (index, part) in self.parts.slice_mut().iter_mut().flatten().enumerate() {
            if !part.asks() {
                continue;
            }
            if let Some(decision) = part.decision.filter(Decision::is_allowed) {
                let call = part.charge.call();
                let peek = |entry: &mut Entry<'_>| entry.peek(now, 0);
                let level = locks.update(&part.state(), |entry| entry.by(call.as_ref(), peek));
                let level = level.map_err(|miss| match miss {
                    Miss::Stale => Again::Stale,
                    Miss::Full => Again::Saturated(index),
                })?;
                part.decision = Some(level.forced(decision.cost()).because(decision.reason()));
            }
        }
        Ok(())
    }

    /// Takes from every state. All have agreed, under the same locks.
    fn take(&mut self, locks: &mut Locks<'a>) -> Result<(), Again> {
        let now = self.now;
        for index in 0..Limits::MOST {
            let Some(part) = self.parts.get_mut(index) else { break };
            if !part.asks() {
                continue;
            }
            let (state, cost, call) = (part.state(), part.charge.cost, part.charge.call());
            let take = |entry: &mut Entry<'_>| {
                let booked = entry.charge(now, cost);
                debug_assert!(booked, "what is free can be booked");
                entry.taken(now, cost)
            };
            let taken = locks.update_seen(&state, |entry| entry.by(call.as_ref(), take));
            match taken {
                Ok(taken) => part.taken = Some(taken),
                Err(_) => {
                    // Another key of this decision took the last room: undo, and share.
                    self.undo(locks);
                    return Err(Again::Saturated(index));
                }
            }
        }
        Ok(())
    }

    fn undo(&mut self, locks: &mut Locks<'a>) {
        let now = self.now;
        for part in self.parts.slice_mut().iter_mut().flatten() {
            if let Some(Taken { mark, units, .. }) = part.taken.take() {
                let (state, call) = (part.state(), part.charge.call());
                let back = |entry: &mut Entry<'_>| entry.give_back(now, mark, units);
                let undone = locks.update_seen(&state, |entry| entry.by(call.as_ref(), back));
                debug_assert!(undone.is_ok(), "what was just charged is there");
            }
        }
    }
}

impl<'a> Part<'a> {
    fn new(charge: Charge<'a>, now: Tick, leader: usize, is_saturated: bool) -> Self {
        let total = charge.cost;
        let plain = Self {
            charge,
            who: None,
            exempt: None,
            leader,
            total,
            is_saturated,
            decision: None,
            taken: None,
        };
        match charge.target {
            Target::Limiter(limiter) => {
                let waits = || limiter.behind(now, charge.cost);
                Self { exempt: limiter.exempt(now, charge.cost).or_else(waits), ..plain }
            }
            Target::Key(core, key) => {
                let (who, access) = core.who(key, now);
                let waits = || core.behind(key.fingerprint, now, charge.cost);
                let exempt = core.exempt(key, (now, access), charge.cost).or_else(waits);
                if !is_saturated || exempt.is_some() {
                    return Self { who: Some(who), exempt, ..plain };
                }
                core.note_saturated();
                match core.overflow() {
                    // The shared budget takes the place of the key.
                    Some(overflow) => Self {
                        charge: overflow.charge(charge.cost),
                        exempt: overflow.exempt(now, charge.cost),
                        ..plain
                    },
                    None => {
                        let refusal = core.refusal_without_room(key, now, charge.cost);
                        Self { who: Some(who), exempt: Some(refusal), ..plain }
                    }
                }
            }
        }
    }

    /// Tells whether the state must be asked.
    const fn asks(&self) -> bool {
        self.exempt.is_none()
    }

    fn state(&self) -> State<'a> {
        self.charge.state(self.who)
    }

    /// Tells the limit's watcher, and counts a refusal against its key.
    fn report(&self, decision: Decision, taking: Taking) -> Decision {
        let verb = match taking {
            Taking::Look => return decision,
            Taking::Take => Verb::TryAcquire,
            Taking::Reserve => Verb::Reserve,
        };
        match self.charge.target {
            Target::Limiter(limiter) => {
                limiter.report(verb, &decision);
                decision
            }
            Target::Key(core, key) => core.settle_refusal(key.fingerprint, verb, decision),
        }
    }

    fn taken_of(&self, now: Tick) -> super::ticket::Made<'a> {
        let decision = self.decision.unwrap_or_else(|| Decision::unlimited(now, self.charge.cost));
        super::ticket::Made { charge: self.charge, who: self.who, taken: self.taken, decision }
    }
}
