//! Compositions: a debouncer or a coalescer with a rate behind it.
//!
//! Each stage is a pure state machine. In a composition the jobs of the first stage are the events
//! of the second, and one engine drives both: one worker, one lock, no second thread and no queue
//! between them.
//!
//! | I want | use |
//! |---|---|
//! | one run when a burst is over, and not too often | [`debounce_then_throttle`] |
//! | the same, with a rate that other code shares | [`debounce_then_limit`] |
//! | all keys of a burst, when it is over | [`CoalescerBuilder::quiet`] |
//! | batches, and not too often | [`CoalescerBuilder::at_most_every`] |
//! | batches, with a rate that other code shares | [`CoalescerBuilder::limit`] |
//! | a rate, a circuit breaker and a limit on calls in flight | [`Admission`](crate::Admission) |
//!
//! The debouncer comes **before** the rate. A rate in front of it would refuse events that the
//! debouncer discards anyway, and might refuse the last one, which is the one that counts. Behind the
//! debouncer, the rate only decides about runs.
//!
//! [`CoalescerBuilder::quiet`]: crate::CoalescerBuilder::quiet
//! [`CoalescerBuilder::at_most_every`]: crate::CoalescerBuilder::at_most_every
//! [`CoalescerBuilder::limit`]: crate::CoalescerBuilder::limit

mod booked;
mod builder;
mod debounced;
mod pace;

pub use builder::{ComposeError, DebounceThenBuilder, PaceError};
pub use debounced::{DebounceThen, WeakDebounceThen};

pub(crate) use booked::Booked;
pub(crate) use pace::Pace;

use crate::{DebounceBuilder, Limiter};
use std::time::Duration;

/// Sets up a [`DebounceThen`] that runs once for each fire of a debouncer, and at most once in each
/// `interval`.
///
/// The last value wins, within a burst and while a run waits for its interval. Intervals count from
/// the start of one run to the start of the next.
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

/// Sets up a [`DebounceThen`] that runs once for each fire of a debouncer, and takes a permit of
/// `limiter` for each run.
///
/// A run that the limiter does not admit at once books its permit and waits for it; the last value
/// wins meanwhile. So callers that wait in the limiter's queue cannot starve it. A window cannot be
/// booked: the composition then retries when the limiter's decision says. It calls the limiter while
/// it holds its own lock, so an observer of the limiter must not call the composition.
pub fn debounce_then_limit(debounce: DebounceBuilder, limiter: &Limiter) -> DebounceThenBuilder {
    DebounceThenBuilder { debounce, interval: None, limiter: Some(limiter.clone()) }
}
