//! Permits, and the limits that they go back to.

use super::{
    counts::{Counted, Tally},
    full::Full,
    queue::{Entered, PermitQueue},
    table::Table,
    timer::Timer,
    word::Single,
};
use crate::{
    sync::Arc,
    wait::{
        WakeList,
        queue::{Request, Ticket},
    },
};
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
    owner: Owner,
    cost: u64,
}

impl Permit {
    pub(super) const fn new(owner: Owner, cost: u64) -> Self {
        Self { owner, cost }
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
        Some(Self { owner: self.owner.clone(), cost })
    }

    /// Puts the permits of `other` into this one, to be given back together.
    ///
    /// # Errors
    ///
    /// `other` itself, untouched, if it belongs to another limit or another key.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !self.owner.is(&other.owner) {
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
            self.owner.give_back(self.cost);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// The limit, or the key of one, that permits and futures belong to.
#[derive(Clone)]
pub(super) enum Owner {
    Single(Arc<Single>),
    Key(Arc<Table>, u64),
}

impl Owner {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Single(mine), Self::Single(theirs)) => Arc::ptr_eq(mine, theirs),
            (Self::Key(mine, key), Self::Key(theirs, other)) => {
                Arc::ptr_eq(mine, theirs) && key == other
            }
            _ => false,
        }
    }

    pub(super) fn tally(&self) -> &Tally {
        match self {
            Self::Single(single) => &single.tally,
            Self::Key(table, _) => &table.tally,
        }
    }

    pub(super) fn timer(&self) -> &Timer {
        match self {
            Self::Single(single) => &single.timer,
            Self::Key(table, _) => &table.timer,
        }
    }

    /// Returns the owner of another key of the same limit.
    pub(super) fn of_key(&self, key: u64) -> Self {
        match self {
            Self::Single(_) => self.clone(),
            Self::Key(table, _) => Self::Key(Arc::clone(table), key),
        }
    }

    /// Counts an answer, and makes a permit of a good one.
    pub(super) fn permit(&self, cost: u64, answer: Result<(), Full>) -> Result<Permit, Full> {
        self.tally().answer(&answer);
        answer.map(|()| Permit::new(self.clone(), cost))
    }

    /// Takes `cost` permits, or a place in the queue, or says why not.
    pub(super) fn enter(
        &self,
        cost: u64,
        request: impl FnOnce() -> Request,
        waker: &Waker,
    ) -> Entered {
        let entered = match self {
            Self::Single(single) => single.enter(self, cost, request, waker),
            Self::Key(table, key) => table.enter((self, *key), cost, request, waker),
        };
        if matches!(entered, Entered::Waits(_)) {
            self.tally().add(Counted::Waited);
        }
        entered
    }

    pub(super) fn fetch(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<(), Full>> {
        match self {
            Self::Single(single) => single.fetch(ticket, waker),
            Self::Key(table, key) => table.fetch((self, *key), ticket, waker),
        }
    }

    pub(super) fn leave(&self, ticket: Ticket) {
        self.tally().add(Counted::Cancelled);
        drop(self.change(|queue, wakers| queue.leave(ticket, wakers)));
    }

    /// Changes the queue, after callers whose deadline has come were refused; `None` if a key is not in use.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&mut PermitQueue, &mut WakeList) -> R,
    ) -> Option<R> {
        match self {
            Self::Single(single) => Some(single.change(self, change)),
            Self::Key(table, key) => table.change((self, *key), change),
        }
    }

    fn give_back(&self, cost: u64) {
        if let Self::Single(single) = self
            && single.give_back(cost)
        {
            return;
        }
        self.change(|queue, wakers| queue.give_back(cost, wakers));
    }
}
