//! What was taken from several limits, with the right to give back.

use super::{Whose, inline_vec::InlineVec};
use crate::{
    Decision, Limiter, Reservation, Tick,
    keyed::{
        claims::KeyClaims,
        core::{Core, Key},
    },
    limiter::Book,
    reservation::{Owner, Taken},
    sync::{Arc, MutexGuard},
    table::KeyRef,
};
use std::fmt;

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

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("decision", &self.decision).finish_non_exhaustive()
    }
}

/// One part of what was taken.
#[derive(Clone, Copy)]
pub(super) struct Made<'a> {
    pub(super) whose: Whose<'a>,
    pub(super) cost: u64,
    pub(super) who: Option<&'a KeyRef>,
    pub(super) taken: Option<Taken>,
    pub(super) decision: Decision,
}

/// The ledgers of all limits of a decision, locked before their states.
pub(super) struct Books<'a> {
    books: InlineVec<(usize, Locked<'a>)>,
}

enum Locked<'a> {
    Limiter(MutexGuard<'a, Book>),
    Key(KeyClaims<'a>),
}

/// A ledger to lock, in the order of addresses.
#[derive(Clone, Copy)]
enum Ledger<'a> {
    Limiter(&'a Limiter),
    Key(&'a Core, u64),
}

impl<'a> Ledger<'a> {
    fn of(whose: Whose<'a>) -> Self {
        match whose {
            Whose::Limiter(limiter) => Self::Limiter(limiter),
            Whose::Key(core, key) => Self::Key(core, key.fingerprint),
        }
    }

    fn address(&self) -> usize {
        match self {
            Self::Limiter(limiter) => limiter.book_address(),
            Self::Key(core, key) => core.claims.address(*key),
        }
    }
}

impl<'a> Books<'a> {
    pub(super) fn lock(each: impl Iterator<Item = Whose<'a>>) -> Self {
        let mut ledgers: Vec<_> = each.map(Ledger::of).collect();
        ledgers.sort_unstable_by_key(Ledger::address);
        ledgers.dedup_by_key(|ledger| ledger.address());
        let mut books = InlineVec::new();
        for ledger in ledgers {
            books.push((
                ledger.address(),
                match ledger {
                    Ledger::Limiter(limiter) => Locked::Limiter(limiter.book()),
                    Ledger::Key(core, key) => Locked::Key(core.claims.lock(key)),
                },
            ));
        }
        Self { books }
    }

    /// Notes what was taken of one limit, and returns its reservation.
    pub(super) fn note(&mut self, made: Made<'_>) -> Reservation {
        let Made { whose, cost, who, taken, decision } = made;
        let owner = match whose {
            Whose::Limiter(limiter) => Owner::Limiter(limiter.clone()),
            Whose::Key(core, Key { fingerprint, policy, call }) => match policy {
                None => Owner::Key(Arc::clone(core), *fingerprint),
                Some(policy) => {
                    Owner::Stored(Arc::clone(core), (*policy).clone(), *fingerprint, *call)
                }
            },
        };
        let address = Ledger::of(whose).address();
        let id = taken.filter(|_| cost > 0).and_then(|taken| {
            let Taken { mark, units, passed, .. } = taken;
            let (_, locked) = self.books.iter_mut().find(|(known, _)| *known == address)?;
            match (locked, whose, who) {
                (Locked::Limiter(book), ..) => Some(book.ledger.add(mark, units, passed)),
                (Locked::Key(claims), Whose::Key(_, key), Some(who)) => {
                    claims.turn_to(key.fingerprint);
                    Some(claims.add(who.rule, &taken))
                }
                (Locked::Key(_), ..) => None,
            }
        });
        Reservation::new(owner, id, (cost, decision.at()), decision.forced(cost))
    }
}
