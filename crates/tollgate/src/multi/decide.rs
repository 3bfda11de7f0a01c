//! How several limits are decided as one.

use super::{
    Charge,
    inline_vec::BorrowedVec,
    locks::{LockBuffers, Locks, ResolvedState},
    multi_reservation::AllHeldClaims,
};
use crate::{
    Decision, Reason, Reservation, Tick, observe::Verb, reservation::Taken, verbs::StateRef,
};

/// What to do if every limit has the permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    Look,
    Take,
    /// Take, and remember what can be given back.
    Reserve,
}

/// One limit's part of a decision.
#[derive(Clone, Copy)]
struct LimitPart<'a> {
    of: StateRef<'a>,
    cost: u64,
    /// None if the limit is bypassed or unlimited, or the key is listed or blocked.
    state: Option<ResolvedState<'a>>,
    /// The first part about the same state.
    leader: usize,
    /// The number of the state among those that are locked.
    number: usize,
    /// Sum of the costs of all parts about the same state; only a leader's counts.
    total: u64,
    /// The key has no room and shares a budget, or is refused.
    is_saturated: bool,
    /// The answer, once there is one.
    decision: Option<Decision>,
    /// What a reservation can give back.
    taken: Option<Taken>,
}

/// The parts of one decision.
pub(crate) struct MultiDecision<'r, 'a> {
    parts: BorrowedVec<'r, LimitPart<'a>>,
    now: Tick,
}

/// A key found no room: the decision starts again without it.
struct Saturated(usize);

impl<'a> MultiDecision<'_, 'a> {
    /// Decides over all charges: all are taken or none. Calls `told` with each limit's own decision, and
    /// returns the one over all, with the reservations if `taking` says so and it is allowed.
    pub(crate) fn decide(
        charges: &'a [Charge<'a>],
        now: Tick,
        taking: Taking,
        told: impl FnMut(usize, &Decision),
    ) -> (Decision, Option<Vec<Reservation>>) {
        let mut saturated = 0_u64;
        loop {
            // Room for as many limits as are usual.
            let mut buffers = [const { None }; 8];
            let mut parts = MultiDecision { parts: BorrowedVec::within(&mut buffers), now };
            for (index, charge) in charges.iter().enumerate() {
                let is_saturated = saturated >> index & 1 == 1;
                parts.parts.push(LimitPart::new((index, charge), now, is_saturated));
            }
            match parts.run(taking) {
                Ok((refused, reservations)) => {
                    return (parts.tell(refused, taking, told), reservations);
                }
                Err(Saturated(index)) => saturated |= 1 << index,
            }
        }
    }

    /// Locks the states of all parts. Of several parts about one state the first leads.
    fn lock<'r>(&mut self, buffers: &'r mut LockBuffers<'a>) -> Locks<'r, 'a> {
        let mut locks = Locks::new(buffers);
        for part in self.parts.iter_mut() {
            part.number = part.state.map_or(0, |state| locks.push(state));
        }
        let parts = self.parts.slice_mut();
        locks.lock(|number, first| {
            let is = |part: &Option<LimitPart<'_>>, number| {
                part.as_ref().is_some_and(|part| part.state.is_some() && part.number == number)
            };
            let leader = parts.iter().position(|part| is(part, first)).unwrap_or_default();
            let Some(Some(part)) = parts.iter_mut().find(|part| is(part, number)) else { return };
            (part.number, part.leader) = (first, leader);
            let cost = part.cost;
            if let Some(Some(leader)) = parts.get_mut(leader) {
                leader.total = leader.total.saturating_add(cost);
            }
        });
        locks
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
        let mut all_claims =
            is_reserving.then(|| AllHeldClaims::lock(self.parts.iter().map(|part| part.of)));
        let mut buffers = LockBuffers::new();
        let mut locks = self.lock(&mut buffers);
        let refused = self.look(&mut locks)?;
        if refused != 0 {
            self.look_untouched(&mut locks)?;
        } else if taking != Taking::Look {
            self.take(&mut locks, taking)?;
        }
        drop(locks);
        let reservations = all_claims.as_mut().filter(|_| refused == 0).map(|all_claims| {
            self.parts.iter().filter_map(|part| part.reservation(all_claims)).collect()
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
                if part.state.is_some() {
                    let looked = locks.update(part.number, |entry| entry.peek(now, part.total));
                    part.decision = Some(looked.map_err(|_| Saturated(index))?);
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

    /// Limits that would have allowed are not charged: their decisions report the level as it is.
    fn look_untouched(&mut self, locks: &mut Locks<'_, 'a>) -> Result<(), Saturated> {
        let now = self.now;
        for (index, part) in self.parts.iter_mut().enumerate() {
            if let (Some(_), Some(decision)) = (&part.state, &mut part.decision)
                && decision.is_allowed()
            {
                let looked = locks.update(part.number, |entry| entry.peek(now, 0));
                let level = looked.map_err(|_| Saturated(index))?;
                *decision = level.forced(decision.cost()).because(decision.reason());
            }
        }
        Ok(())
    }

    /// Takes from every state. All have agreed, under the same locks.
    fn take(&mut self, locks: &mut Locks<'_, 'a>, taking: Taking) -> Result<(), Saturated> {
        let (now, is_reserving) = (self.now, taking == Taking::Reserve);
        let mut states = self.parts.iter_mut().enumerate().filter(|(_, it)| it.state.is_some());
        let full = states.find_map(|(index, part)| {
            let taken = locks.update(part.number, |entry| {
                let booked = entry.charge(now, part.cost);
                debug_assert!(booked, "what is free can be booked");
                is_reserving.then(|| entry.taken(now, part.cost))
            });
            taken.map(|taken| part.taken = taken).err().map(|_| index)
        });
        drop(states);
        let Some(index) = full else { return Ok(()) };
        // Another key of this decision took the last room: undo, and share.
        self.undo(locks, index);
        Err(Saturated(index))
    }

    /// Gives back what the first `count` have taken, under the locks under which they took it.
    #[cold]
    fn undo(&self, locks: &mut Locks<'_, 'a>, count: usize) {
        for part in self.parts.iter().take(count).filter(|part| part.state.is_some()) {
            let undone = locks.update(part.number, |entry| entry.refund(self.now, part.cost));
            debug_assert!(undone.is_ok(), "what was just charged is there");
        }
    }
}

impl<'a> LimitPart<'a> {
    fn new((index, charge): (usize, &'a Charge<'a>), now: Tick, is_saturated: bool) -> Self {
        let Charge { mut of, cost } = *charge;
        let mut decision = of.exempt(now, cost).or_else(|| of.behind(now, cost));
        if is_saturated && decision.is_none() {
            match of.overflow() {
                // The shared budget takes the place of the key.
                Some(shared) => (of, decision) = (shared, shared.exempt(now, cost)),
                None => decision = Some(of.refusal_without_room(now, cost)),
            }
        }
        let state = decision.is_none().then(|| of.state(now));
        let (leader, number, total) = (index, 0, cost);
        Self { of, cost, state, leader, number, total, is_saturated, decision, taken: None }
    }

    /// Counts and reports the decision, and counts a refusal against its key.
    fn report(&mut self, taking: Taking) {
        let verb = match taking {
            Taking::Look => return,
            Taking::Take => Verb::TryAcquire,
            Taking::Reserve => Verb::Reserve,
        };
        self.decision = self.decision.map(|decision| self.of.report(verb, decision));
    }

    fn reservation(&self, all_claims: &mut AllHeldClaims<'_>) -> Option<Reservation> {
        let (Self { of, cost, .. }, decision) = (*self, self.decision?);
        let rule = self.state.as_ref().and_then(ResolvedState::rule);
        let taken = self.taken.as_ref().filter(|_| cost > 0);
        let id = taken.and_then(|taken| all_claims.add(&of, rule, taken));
        Some(Reservation::new(of.owner(), id, (cost, decision.at()), decision.forced(cost)))
    }
}
