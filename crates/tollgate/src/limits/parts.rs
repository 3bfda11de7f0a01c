//! How several limits are decided as one.

use super::{
    Charge, Whose,
    few::Lent,
    locks::{Locks, Room, State},
    ticket::{Books, Made},
};
use crate::{
    Decision, Reason, Reservation, Tick, algorithm::Entry, reservation::Taken, watch::Verb,
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
    whose: Whose<'a>,
    cost: u64,
    /// Nobody needs to ask the state if there is none: bypassed, unlimited, listed or blocked.
    state: Option<State<'a>>,
    /// The first part about the same state.
    leader: usize,
    /// Sum of the costs of all parts about the same state; only a leader's counts.
    total: u64,
    /// The key has no room and shares a budget, or is refused.
    is_saturated: bool,
    /// The answer, once there is one.
    decision: Option<Decision>,
    /// What can be given back, if somebody wants to know.
    taken: Option<Taken>,
}

/// The parts of one decision.
pub(crate) struct Parts<'r, 'a> {
    parts: Lent<'r, Part<'a>>,
    now: Tick,
}

/// A key found no room: the decision starts again without it.
struct Saturated(usize);

impl<'a> Parts<'_, 'a> {
    /// Decides over all charges: all are taken or none. Tells each limit's own decision, and
    /// returns the one over all, with the reservations if that was asked for and it is allowed.
    pub(crate) fn decide(
        charges: &'a [Charge<'a>],
        now: Tick,
        taking: Taking,
        told: impl FnMut(usize, &Decision),
    ) -> (Decision, Option<Vec<Reservation>>) {
        let mut saturated = 0;
        loop {
            // Room for as many limits as are usual.
            let mut room = [const { None }; 8];
            let mut parts = Parts { parts: Lent::new(&mut room), now };
            parts.add(charges, saturated);
            match parts.run(taking) {
                Ok((refused, reservations)) => {
                    return (parts.tell(refused, taking, told), reservations);
                }
                Err(Saturated(index)) => saturated |= 1 << index,
            }
        }
    }

    fn add(&mut self, charges: &'a [Charge<'a>], saturated: u64) {
        for (index, charge) in charges.iter().enumerate() {
            let is_saturated = saturated >> index & 1 == 1;
            let mut part = Part::new(charge, self.now, is_saturated);
            // What finds no room may share with another that found none.
            let same = self.parts.iter().position(|known| known.whose.is_same(&part.whose));
            part.leader = same.unwrap_or(index);
            self.parts.push(part);
            if let Some(first) = same.and_then(|first| self.parts.slice_mut()[first].as_mut()) {
                first.total = first.total.saturating_add(charge.cost);
            }
        }
    }

    /// Tells each limit's own decision, and returns the one over all.
    fn tell(
        &mut self,
        refused: u64,
        taking: Taking,
        mut told: impl FnMut(usize, &Decision),
    ) -> Decision {
        for (index, part) in self.parts.iter_mut().enumerate() {
            part.report(taking);
            debug_assert!(part.decision.is_some(), "every limit has said something");
            if let Some(decision) = &part.decision {
                told(index, decision);
            }
        }
        let each = self.parts.iter().filter_map(|part| part.decision.as_ref());
        let joined = Decision::joined(each, refused);
        joined.unwrap_or_else(|| Decision::unlimited(self.now, 0))
    }

    /// Returns a mask of those that refused, and the reservations if all were taken.
    fn run(&mut self, taking: Taking) -> Result<(u64, Option<Vec<Reservation>>), Saturated> {
        let is_reserving = taking == Taking::Reserve;
        let mut books = is_reserving.then(|| Books::lock(self.parts.iter().map(|part| part.whose)));
        let mut room = Room::new();
        let mut locks = Locks::take(&mut room, self.parts.iter().filter_map(|part| part.state));
        let refused = self.look(&mut locks)?;
        if refused != 0 {
            self.look_untouched(&mut locks)?;
        } else if taking != Taking::Look {
            self.take(&mut locks, taking)?;
        }
        drop(locks);
        let reservations = books.as_mut().filter(|_| refused == 0).map(|books| {
            let made = self.parts.iter().filter_map(Part::made).map(|made| books.note(made));
            made.collect()
        });
        Ok((refused, reservations))
    }

    /// Asks every state for the sum of what is wanted of it. Returns a mask of those that refused.
    fn look(&mut self, locks: &mut Locks<'_, 'a>) -> Result<u64, Saturated> {
        let (mut refused, now) = (0, self.now);
        let parts = self.parts.slice_mut();
        for index in 0..parts.len() {
            let (before, rest) = parts.split_at_mut(index);
            let Some(Some(part)) = rest.first_mut() else { break };
            if part.leader != index {
                let leader = before.get(part.leader).and_then(Option::as_ref);
                part.decision = leader.and_then(|leader| leader.decision);
            } else {
                if let Some(state) = &part.state {
                    let (total, decision) = (part.total, &mut part.decision);
                    let mut peek = |entry: &mut Entry<'_>| *decision = Some(entry.peek(now, total));
                    let looked = locks.update(state, &mut peek);
                    looked.map_err(|_| Saturated(index))?;
                }
                if part.is_saturated {
                    part.decision = part.decision.map(|it| it.because(Reason::Saturated));
                }
            }
            let is_denied = part.decision.as_ref().is_some_and(Decision::is_denied);
            refused |= u64::from(is_denied) << index;
        }
        Ok(refused)
    }

    /// Those that would have allowed are not charged: what they tell is their level as it is.
    fn look_untouched(&mut self, locks: &mut Locks<'_, 'a>) -> Result<(), Saturated> {
        let now = self.now;
        for (index, part) in self.parts.iter_mut().enumerate() {
            if let (Some(state), Some(decision)) = (&part.state, &mut part.decision)
                && decision.is_allowed()
            {
                let (cost, reason) = (decision.cost(), decision.reason());
                let mut peek = |entry: &mut Entry<'_>| {
                    *decision = entry.peek(now, 0).forced(cost).because(reason);
                };
                let looked = locks.update(state, &mut peek);
                looked.map_err(|_| Saturated(index))?;
            }
        }
        Ok(())
    }

    /// Takes from every state. All have agreed, under the same locks.
    fn take(&mut self, locks: &mut Locks<'_, 'a>, taking: Taking) -> Result<(), Saturated> {
        let (now, is_reserving) = (self.now, taking == Taking::Reserve);
        let mut full = None;
        for (index, part) in self.parts.iter_mut().enumerate() {
            let Some(state) = &part.state else { continue };
            let (cost, taken) = (part.cost, &mut part.taken);
            let mut take = |entry: &mut Entry<'_>| {
                let booked = entry.charge(now, cost);
                debug_assert!(booked, "what is free can be booked");
                if is_reserving {
                    *taken = Some(entry.taken(now, cost));
                }
            };
            if locks.update(state, &mut take).is_err() {
                full = Some(index);
                break;
            }
        }
        match full {
            None => Ok(()),
            Some(index) => {
                // Another key of this decision took the last room: undo, and share.
                self.undo(locks, index);
                Err(Saturated(index))
            }
        }
    }

    /// Gives back what the first `count` have taken, under the locks under which they took it.
    #[cold]
    fn undo(&self, locks: &mut Locks<'_, 'a>, count: usize) {
        for part in self.parts.iter().take(count) {
            if let Some(state) = &part.state {
                let back = |entry: &mut Entry<'_>| entry.refund(self.now, part.cost);
                let undone = locks.update(state, back);
                debug_assert!(undone.is_ok(), "what was just charged is there");
            }
        }
    }
}

impl<'a> Part<'a> {
    fn new(charge: &'a Charge<'a>, now: Tick, is_saturated: bool) -> Self {
        let (whose, cost) = (charge.whose(), charge.cost);
        let state = None;
        let plain = Self {
            whose,
            cost,
            state,
            leader: 0,
            total: cost,
            is_saturated,
            decision: None,
            taken: None,
        };
        match whose {
            Whose::Limiter(limiter) => match limiter.exempt(now, cost) {
                None => plain.asking(State::of_limiter(limiter), limiter.behind(now, cost)),
                exempt => Self { decision: exempt, ..plain },
            },
            Whose::Key(core, key) => {
                let (who, access) = core.who(*key, now);
                let waits = || core.behind(key.fingerprint, now, cost);
                let exempt = core.exempt(*key, (now, access), cost).or_else(waits);
                if !is_saturated || exempt.is_some() {
                    return plain.asking(State::of_key(core, who), exempt);
                }
                core.note_saturated();
                match core.overflow() {
                    // The shared budget takes the place of the key.
                    Some(overflow) => {
                        let shared = Self { whose: Whose::Limiter(overflow), ..plain };
                        shared.asking(State::of_limiter(overflow), overflow.exempt(now, cost))
                    }
                    None => {
                        let refusal = core.refusal_without_room(*key, now, cost);
                        Self { decision: Some(refusal), ..plain }
                    }
                }
            }
        }
    }

    /// The same part, which asks the state unless it has an answer already.
    fn asking(self, state: State<'a>, answer: Option<Decision>) -> Self {
        match answer {
            None => Self { state: Some(state), ..self },
            answer => Self { decision: answer, ..self },
        }
    }

    /// Tells the limit's watcher, and counts a refusal against its key.
    fn report(&mut self, taking: Taking) {
        let verb = match taking {
            Taking::Look => return,
            Taking::Take => Verb::TryAcquire,
            Taking::Reserve => Verb::Reserve,
        };
        let Some(decision) = &mut self.decision else { return };
        match self.whose {
            Whose::Limiter(limiter) => limiter.report(verb, decision),
            Whose::Key(core, key) => {
                *decision = core.settle_refusal(key.fingerprint, verb, *decision);
            }
        }
    }

    fn made(&self) -> Option<Made<'_>> {
        let who = self.state.as_ref().and_then(State::who);
        let Self { whose, cost, taken, .. } = *self;
        Some(Made { whose, cost, who, taken, decision: self.decision? })
    }
}
