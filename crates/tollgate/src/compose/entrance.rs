//! A rate, and then a place in flight.

use super::booked::Booked;
use crate::{
    Acquire, Concurrency, Full, Limiter, NoRuntime, Permit, Refused, Reservation,
    wait::{Sleeper, block_until, guarded},
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

/// A rate limiter and a concurrency limit, asked in that order, all or nothing.
///
/// | I want to | use | waits |
/// |---|---|---|
/// | turn away what does not fit now | [`try_acquire`](Self::try_acquire) | never |
/// | wait in async code | `acquire` (feature `tokio`) | for the rate, then for a place |
/// | wait on a thread | [`acquire_blocking`](Self::acquire_blocking) | for the rate, then for a place |
///
/// The permits of the rate are taken by reservation. They stay spent when the place in flight is
/// there too; if that is refused, or the caller gives up while it waits, they are given back
/// (`tests/flow/compose_entrance.rs`). For the moment between the two, others may find the rate used up.
///
/// Why the rate comes first is told with the [order of layers](crate::compose#admission).
///
/// Clones ask the same two.
///
/// # Examples
///
/// ```
/// use tollgate::{Entrance, Clock, Concurrency, Limiter, Quota};
///
/// let (clock, _hand) = Clock::manual();
/// let rate = Limiter::builder(Quota::per_second(10)).clock(clock).build()?;
/// let room = Concurrency::new(1)?;
/// let door = Entrance::new(&rate, &room);
/// let permit = door.try_acquire()?;
/// assert!(door.try_acquire().is_err_and(|refused| refused.is_room()));
/// assert_eq!(rate.available(), 9); // the refused call gave back
/// drop(permit);
/// assert!(door.try_acquire().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "Bulkhead")]
pub struct Entrance {
    rate: Limiter,
    room: Concurrency,
}

impl Entrance {
    /// Puts the two together. Others may go on using each of them.
    #[must_use]
    pub fn new(rate: &Limiter, room: &Concurrency) -> Self {
        Self { rate: rate.clone(), room: room.clone() }
    }

    /// Enters if the rate and the room allow it now. Never waits.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`] says which of the two refused. A refusal changes nothing.
    pub fn try_acquire(&self) -> Result<Permit, NotAdmitted> {
        self.try_acquire_n(1)
    }

    /// [`try_acquire`](Self::try_acquire) with `cost` permits of the rate. In flight it counts as
    /// one.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_n(&self, cost: u64) -> Result<Permit, NotAdmitted> {
        let booked = Booked::new(self.rate.reserve_within(cost, Duration::ZERO)?);
        let permit = self.room.try_acquire()?;
        booked.keep();
        Ok(permit)
    }

    /// Waits for the rate, at most for `max_wait`, and then for a place in flight.
    ///
    /// The time is booked at the first poll: whoever asks later comes later. Only GCRA can book
    /// ahead; other algorithms enter what passes at once. How long it waits for a place is up to the
    /// caller, who may drop it, and to the [queue](crate::ConcurrencyBuilder::max_waiting) of the
    /// concurrency limit.
    ///
    /// # Errors
    ///
    /// The future gives [`NotAdmitted`] at once if the wait for the rate does not fit, and later if
    /// there is no place and none in the queue.
    ///
    /// # Cancel safety
    ///
    /// See [`Enter`].
    #[cfg(feature = "tokio")]
    pub fn acquire(&self, cost: u64, max_wait: Duration) -> Enter {
        self.enter(cost, max_wait, Sleeper::task())
    }

    /// `acquire` for plain threads: parks this one while it waits.
    ///
    /// In async code it would hold up the runtime.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`] at once if the wait for the rate does not fit, and later if there is no place
    /// and none in the queue.
    pub fn acquire_blocking(&self, cost: u64, max_wait: Duration) -> Result<Permit, NotAdmitted> {
        let mut enter = pin!(self.enter(cost, max_wait, Sleeper::thread()));
        block_until(self.rate.clock(), |context| match enter.as_mut().poll(context) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending if enter.acquire.is_some() => Err(None),
            Poll::Pending => Err(enter.booked.get().map(Reservation::act_at)),
        })
    }

    fn enter(&self, cost: u64, max_wait: Duration, sleeper: Sleeper) -> Enter {
        let door = self.clone();
        Enter { door, cost, max_wait, booked: Booked::NONE, sleeper, acquire: None }
    }
}

pin_project! {
    /// Waits for the rate, and then for a place in flight; made by `Entrance::acquire`.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time. The permits of the rate are given back, as far as time has not
    /// refilled them already, and the place in the queue goes to the next.
    #[derive(Debug)]
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct Enter {
        door: Entrance,
        cost: u64,
        max_wait: Duration,
        booked: Booked,
        #[pin]
        sleeper: Sleeper,
        // From when the rate has come.
        acquire: Option<Acquire>,
    }
}

impl Future for Enter {
    type Output = Result<Permit, NotAdmitted>;

    /// Once it was ready, another poll asks anew.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Entrance { rate, room } = this.door;
        if this.acquire.is_none() {
            let act_at = match this.booked.get() {
                Some(booked) => booked.act_at(),
                None => {
                    let booked = rate.reserve_within(*this.cost, *this.max_wait)?;
                    let act_at = booked.act_at();
                    *this.booked = Booked::new(booked);
                    act_at
                }
            };
            let sleeper = this.sleeper;
            // Tokio panics if its runtime has no timers.
            match guarded(|| sleeper.poll_until(rate.clock(), act_at, context)) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(Ok(()))) => {}
                Ok(Poll::Ready(Err(NoRuntime))) | Err(_) => {
                    drop(std::mem::take(this.booked));
                    return Poll::Ready(Err(NotAdmitted::NoRuntime(NoRuntime)));
                }
            }
        }
        let acquire = this.acquire.get_or_insert_with(|| room.acquire());
        let Poll::Ready(answer) = Pin::new(acquire).poll(context) else { return Poll::Pending };
        *this.acquire = None;
        let booked = std::mem::take(this.booked);
        if answer.is_ok() {
            booked.keep();
        }
        Poll::Ready(answer.map_err(NotAdmitted::Room))
    }
}

/// Which of the two refused, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// The rate.
    Rate(Refused),
    /// The concurrency limit. The permits of the rate were given back.
    Room(Full),
    /// There is no runtime to wait in. The permits of the rate were given back.
    NoRuntime(NoRuntime),
}

impl NotAdmitted {
    /// Tells whether the rate refused.
    #[must_use]
    pub const fn is_rate(&self) -> bool {
        matches!(self, Self::Rate(_))
    }

    /// Tells whether the concurrency limit refused.
    #[must_use]
    pub const fn is_room(&self) -> bool {
        matches!(self, Self::Room(_))
    }
}

impl From<Refused> for NotAdmitted {
    fn from(refused: Refused) -> Self {
        Self::Rate(refused)
    }
}

impl From<Full> for NotAdmitted {
    fn from(full: Full) -> Self {
        Self::Room(full)
    }
}

impl fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(refused) => refused.fmt(f),
            Self::Room(full) => full.fmt(f),
            Self::NoRuntime(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotAdmitted {}
