//! A reservation of permits from several limits.

use crate::{
    Decision, Reservation, Tick,
    algorithm::AnyRule,
    reservation::Taken,
    verbs::{HeldClaims, StateRef},
};
use std::collections::BTreeMap;

/// Permits taken from several limits, with the right to give back. Made by
/// [`Limits::reserve`](super::Limits::reserve).
///
/// Dropping it keeps them spent. Each limit is given back on its own, by the rules of
/// [`Reservation`].
///
/// # Examples
///
/// ```
/// use tollgate::{Clock, Limiter, Limits, Quota};
///
/// let (clock, _hand) = Clock::manual();
/// let limiter = |quota| Limiter::builder(quota).clock(clock.clone()).build();
/// let (requests, tokens) = (limiter(Quota::per_minute(60))?, limiter(Quota::per_minute(9000))?);
/// let ticket = Limits::new(&[requests.charge(1), tokens.charge(500)])?.reserve().unwrap();
/// ticket.settle_each(|index, cost| if index == 1 { 320 } else { cost });
/// assert_eq!((requests.available(), tokens.available()), (59, 8680));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a ticket keeps its permits spent; call `keep` if you mean that"]
#[derive(Debug)]
pub struct Ticket {
    reservations: Vec<Reservation>,
    decision: Decision,
}

impl Ticket {
    pub(crate) const fn new(reservations: Vec<Reservation>, decision: Decision) -> Self {
        Self { reservations, decision }
    }

    /// Returns the decision that admitted it.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Keeps the permits spent: the same as dropping, but said.
    pub fn keep(self) {}

    /// Gives back what is still outstanding, to every limit.
    pub fn cancel(self) {
        for reservation in self.reservations {
            reservation.cancel();
        }
    }

    /// [`cancel`](Self::cancel) as of `now`.
    pub fn cancel_at(self, now: Tick) {
        for reservation in self.reservations {
            reservation.cancel_at(now);
        }
    }

    /// Corrects each limit's cost to what `actual` says, given its number and what it was charged.
    pub fn settle_each(self, mut actual: impl FnMut(usize, u64) -> u64) {
        for (index, reservation) in self.reservations.into_iter().enumerate() {
            let cost = reservation.cost();
            let _ = reservation.settle(actual(index, cost));
        }
    }
}

/// The open reservations of all limits of a decision, locked before their states, in the order of
/// addresses.
pub(super) struct AllHeldClaims<'a>(BTreeMap<usize, HeldClaims<'a>>);

impl<'a> AllHeldClaims<'a> {
    pub(super) fn lock(each: impl Iterator<Item = StateRef<'a>>) -> Self {
        let in_order: BTreeMap<_, _> = each.map(|of| (of.claims_address(), of)).collect();
        Self(in_order.into_iter().map(|(address, of)| (address, of.lock_claims())).collect())
    }

    /// Adds what was taken of one limit. Returns its id.
    pub(super) fn add(
        &mut self,
        of: &StateRef<'_>,
        rule: Option<&AnyRule>,
        taken: &Taken,
    ) -> Option<u64> {
        let held = self.0.get_mut(&of.claims_address())?;
        // Keys of one shard share a lock.
        if let (HeldClaims::Key(_, claims), StateRef::Key(_, key)) = (&mut *held, of) {
            claims.turn_to(key.fingerprint);
        }
        held.add(rule, taken)
    }
}
