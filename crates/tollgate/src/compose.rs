//! Putting stages together: what waits behind what, and why in that order.
//!
//! # Events
//!
//! Each stage is a pure machine. In a composition the jobs of the first are the events of the
//! second, and one engine drives both: one worker, one lock, no second thread and no queue between
//! them.
//!
//! | I want | use |
//! |---|---|
//! | one run when a burst is over, and not too often | [`debounce_then_throttle`] |
//! | the same, with a rate that is shared with others | [`debounce_then_limit`] |
//! | all keys of a burst, when it is over | [`CoalescerBuilder::quiet`] |
//! | batches, and not too often | [`CoalescerBuilder::at_most_every`] |
//! | batches, with a rate that is shared with others | [`CoalescerBuilder::limit`] |
//! | few in a second, and few at once | [`Entrance`] |
//!
//! Debounce comes **before** the rate. A rate before a debouncer would refuse events of which all but
//! the last are going to be thrown away anyhow, and perhaps refuse that last one. Behind it, the rate
//! is only asked for what is really going to run.
//!
//! # Admission
//!
//! ```text
//! authenticate -> rate limiter -> circuit breaker -> concurrency limit -> work
//! ```
//!
//! Cheap and quick refusals come first: a rate limiter is one compare-exchange, a breaker one read, and
//! a concurrency limit may make the caller wait. It comes last also because what it gives out has to
//! be held: a permit that sleeps until its rate has come is a place nobody can use. [`Entrance`] is
//! the first and the last of these; a breaker is asked between, by whoever has one.
//!
//! - Limit by user **after** authentication, else strangers use up the rate of a user. What has no
//!   user yet (log in, reset a password) is limited by address.
//! - Each limit in one place. The same limit at the edge and in the service counts twice, and what
//!   the second one sees is only what the first one left.
//! - Whatever gives up between two layers gives back: the permits of the rate with
//!   [`Reservation::cancel`](crate::Reservation::cancel), the place in flight by dropping the
//!   [`Permit`](crate::Permit). [`Entrance`] does that.
//!
//! [`CoalescerBuilder::quiet`]: crate::CoalescerBuilder::quiet
//! [`CoalescerBuilder::at_most_every`]: crate::CoalescerBuilder::at_most_every
//! [`CoalescerBuilder::limit`]: crate::CoalescerBuilder::limit

mod booked;
mod builder;
mod debounced;
mod entrance;
mod pace;

pub use builder::{ComposeError, DebounceThenBuilder, PaceError};
pub use debounced::{DebounceThen, WeakDebounceThen};
pub use entrance::{Enter, Entrance, NotAdmitted};

pub(crate) use booked::Booked;
pub(crate) use pace::Pace;

use crate::{DebounceBuilder, Limiter};
use std::time::Duration;

/// Sets up a [`DebounceThen`]: a run for each fire of a debouncer, and at most one for each
/// `interval`.
///
/// The last value wins, within a burst and while a run waits for its interval, which counts from
/// start to start.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Debouncer, Driver, ManualClock, debounce_then_throttle};
///
/// let (quiet, interval) = (Duration::from_millis(20), Duration::from_millis(100));
/// let hand = ManualClock::new();
/// let (sender, sent) = std::sync::mpsc::channel();
/// let debounce = Debouncer::builder(quiet).driver(Driver::manual(&hand));
/// let search = debounce_then_throttle(debounce, interval)
///     .start(move |fired| sender.send(fired.into_value()).unwrap_or(()))?;
/// for text in ["c", "ca", "cat", "cats"] {
///     search.trigger(text);
///     hand.advance(quiet);
/// }
/// assert_eq!(sent.try_iter().collect::<Vec<_>>(), ["c"]); // at 20 ms
/// hand.advance(interval);
/// assert_eq!(sent.try_iter().collect::<Vec<_>>(), ["cats"]); // at 120 ms
/// # Ok::<(), tollgate::ComposeError>(())
/// ```
pub const fn debounce_then_throttle(
    debounce: DebounceBuilder,
    interval: Duration,
) -> DebounceThenBuilder {
    DebounceThenBuilder { debounce, interval: Some(interval), limiter: None }
}

/// Sets up a [`DebounceThen`]: a run for each fire of a debouncer, and a permit of `limiter` for
/// each run.
///
/// A run that does not pass at once books its permit and waits for it, and the last value wins
/// meanwhile. So it has its turn although others wait at the limiter all the time. Windows cannot be
/// booked: there it asks again when the limiter says. The limiter is asked while the composition is
/// locked, so its observer must not call it.
pub fn debounce_then_limit(debounce: DebounceBuilder, limiter: &Limiter) -> DebounceThenBuilder {
    DebounceThenBuilder { debounce, interval: None, limiter: Some(limiter.clone()) }
}
