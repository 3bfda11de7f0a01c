//! A debouncer, and a pace behind it.

use crate::{Debouncer, WeakDebouncer};

/// A [`Debouncer`] that runs once when a burst of triggers is over, and not more often than a pace
/// allows.
///
/// Made by [`debounce_then_throttle`](crate::debounce_then_throttle) or
/// [`debounce_then_limit`](crate::debounce_then_limit). Clones are handles of the same one.
///
/// ```text
/// triggers  a b c      d      e f
/// quiet           c        d        f      one fire for each burst
/// pace            c                 f      d was held back, then f took its place
/// ```
///
/// The last value wins at each stage, and [`Fired`](crate::Fired) tells how many triggers a run
/// stands for, from both stages together.
///
/// A fire that waits for its pace is pending. [`flush`](Debouncer::flush) and
/// [`finish`](Debouncer::finish) end the burst, and the run still waits for its pace: a rate is a
/// promise to others. [`cancel`](Debouncer::cancel) forgets both stages and keeps the pace; a permit
/// that was booked goes back to the limiter.
///
/// # Concurrency
///
/// `Send + Sync`, and every method takes `&self`. The action runs without a lock, one run at a time,
/// and may trigger again. A run that falls due meanwhile waits for it.
pub type DebounceThen<T> = Debouncer<T>;

/// A handle of a [`DebounceThen`] that does not keep it alive.
pub type WeakDebounceThen<T> = WeakDebouncer<T>;
