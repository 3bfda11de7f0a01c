//! What a holder holds, and where it goes back to.

use super::{
    counts::{Counted, Tally},
    full::Full,
    line::Entered,
    table::Table,
    word::Single,
};
use crate::sync::Arc;
use std::{
    fmt,
    task::{Poll, Waker},
};

/// Permits in flight. Dropping it gives them back.
///
/// Got from [`Concurrency`](super::Concurrency) or [`KeyedConcurrency`](super::KeyedConcurrency).
/// It borrows nothing, so it may move into a task, a response body or another thread. It gives back
/// on every way out: the end of a scope, `?`, a panic (`tests/limiting/concurrency.rs`:
/// `a_panic_gives_back`). Only [`std::mem::forget`] keeps permits in flight for good.
///
/// # Examples
///
/// ```
/// use tollgate::Concurrency;
///
/// let limit = Concurrency::new(10)?;
/// let permit = limit.try_acquire_n(3)?;
/// assert_eq!((permit.cost(), limit.in_flight()), (3, 3));
/// drop(permit);
/// assert_eq!(limit.in_flight(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a permit that is dropped at once limits nothing; hold it while you work"]
#[doc(alias = "SemaphorePermit")]
#[doc(alias = "Token")]
pub struct Permit {
    place: Place,
    cost: u64,
}

impl Permit {
    pub(super) const fn new(place: Place, cost: u64) -> Self {
        Self { place, cost }
    }

    /// Returns how many permits it holds.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Gives the permits back, as a drop does: for code that wants to say so.
    pub fn release(self) {}

    /// Takes `cost` permits out of this one, to be given back apart; `None` if it holds fewer.
    ///
    /// # Examples
    ///
    /// A batch of three that ends one by one:
    ///
    /// ```
    /// use tollgate::Concurrency;
    ///
    /// let limit = Concurrency::new(3)?;
    /// let mut batch = limit.try_acquire_n(3)?;
    /// let one = batch.split(1).ok_or("three hold one")?;
    /// drop(one);
    /// assert_eq!((batch.cost(), limit.in_flight()), (2, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&mut self, cost: u64) -> Option<Self> {
        self.cost = self.cost.checked_sub(cost)?;
        Some(Self { place: self.place.clone(), cost })
    }

    /// Puts the permits of `other` into this one, to be given back together.
    ///
    /// # Errors
    ///
    /// `other` itself, untouched, if it belongs to another limit or another key.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !self.place.is(&other.place) {
            return Err(other);
        }
        // OVERFLOW: all that is in flight is at most a billion.
        self.cost += std::mem::take(&mut other.cost);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.cost > 0 {
            self.place.give_back(self.cost);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// Where permits come from and go back to. The one thing that permits and futures know.
#[derive(Clone)]
pub(super) enum Place {
    Single(Arc<Single>),
    Key(Arc<Table>, u64),
}

impl Place {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Single(mine), Self::Single(theirs)) => Arc::ptr_eq(mine, theirs),
            (Self::Key(mine, key), Self::Key(theirs, other)) => {
                Arc::ptr_eq(mine, theirs) && key == other
            }
            _ => false,
        }
    }

    fn tally(&self) -> &Tally {
        match self {
            Self::Single(single) => &single.tally,
            Self::Key(table, _) => &table.tally,
        }
    }

    /// Counts an answer, and makes a permit of a good one.
    fn permit(&self, cost: u64, answer: Result<(), Full>) -> Result<Permit, Full> {
        self.tally().answer(&answer);
        answer.map(|()| Permit::new(self.clone(), cost))
    }

    /// Asks, with a place in the queue if need be. `Err` is the ticket of that place.
    pub(super) fn enter(&self, cost: u64, waker: &Waker) -> Result<Result<Permit, Full>, u64> {
        let entered = match self {
            Self::Single(single) => single.enter(cost, waker),
            Self::Key(table, key) => table.enter(*key, cost, waker),
        };
        match entered {
            Entered::Passed => Ok(self.permit(cost, Ok(()))),
            Entered::Refused(full) => Ok(self.permit(cost, Err(full))),
            Entered::Waits(ticket) => {
                self.tally().add(Counted::Waited);
                Err(ticket)
            }
        }
    }

    pub(super) fn fetch(
        &self,
        ticket: u64,
        cost: u64,
        waker: &Waker,
    ) -> Poll<Result<Permit, Full>> {
        let answer = match self {
            Self::Single(single) => single.fetch(ticket, waker),
            Self::Key(table, key) => table.fetch(*key, ticket, waker),
        };
        answer.map(|answer| self.permit(cost, answer))
    }

    pub(super) fn leave(&self, ticket: u64) {
        self.tally().add(Counted::Cancelled);
        match self {
            Self::Single(single) => single.leave(ticket),
            Self::Key(table, key) => table.leave(*key, ticket),
        }
    }

    fn give_back(&self, cost: u64) {
        match self {
            Self::Single(single) => single.give_back(cost),
            Self::Key(table, key) => table.give_back(*key, cost),
        }
    }
}
