//! Waiting for what other processes do: always by looking again, always with a bound.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Between two looks. Short against what is waited for, long against the cost of a look.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until there is something, and returns it; or nothing once the bound has passed.
///
/// It looks at least once.
pub fn poll<T>(bound: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = now() + bound;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if now() >= end {
            return None;
        }
        thread::park_timeout(PAUSE);
    }
}

/// Looks until the condition holds, and returns how long that took.
///
/// # Panics
///
/// If it does not hold within the bound; `what` is in the message.
pub fn within(bound: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = now();
    match poll(bound, || holds().then_some(())) {
        Some(()) => now() - start,
        None => panic!("not within {bound:?}: {what}"),
    }
}

#[allow(clippy::disallowed_methods, reason = "other processes live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
