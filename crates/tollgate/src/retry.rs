//! Retries: repeat a call that failed, after a pause, and no more often than a budget allows.
//!
//! `policy.rs` decides whether and when an attempt is repeated, `backoff.rs` says how long to pause,
//! and `budget.rs` how many retries all calls together may make. None of them sleeps.

mod backoff;
mod budget;
mod policy;

pub use backoff::{Backoff, Pauses};
pub use budget::{RetryBudget, RetryBudgetBuilder};
pub use policy::{Attempts, RetryCounts, RetryPolicy, RetryPolicyBuilder};

use crate::wait;
use std::time::Duration;
#[cfg(feature = "tokio")]
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
};

/// Whether a call that failed with an error is made again.
///
/// # Examples
///
/// ```
/// use std::{io, time::Duration};
/// use tollgate::ShouldRetry;
///
/// fn classify(error: &io::Error) -> ShouldRetry {
///     match error.kind() {
///         io::ErrorKind::TimedOut => ShouldRetry::Yes,
///         io::ErrorKind::ResourceBusy => ShouldRetry::After(Duration::from_secs(1)),
///         _ => ShouldRetry::No,
///     }
/// }
/// assert_eq!(classify(&io::ErrorKind::NotFound.into()), ShouldRetry::No);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShouldRetry {
    /// After the pause of the policy.
    Yes,
    /// Not before the time that the server named; the pause of the policy comes on top, so that
    /// clients that were refused together do not come back together.
    After(Duration),
    /// Never: the error would come again, or the call must not be made twice.
    No,
}

/// Makes a call, and repeats it after any error, as the policy allows.
///
/// When the policy allows no more, the last error is returned as it came; [`RetryPolicy::counts`]
/// tells why.
///
/// # Errors
///
/// The error of the last attempt. Outside of a tokio runtime nothing can pause, so the first error is
/// the last, unless the pause is zero or the clock is manual.
///
/// # Cancel safety
///
/// A future that is dropped makes no further attempt; a retry it has taken from the budget stays
/// spent.
///
/// # Examples
///
/// ```
/// use tollgate::{Backoff, RetryPolicy, retry};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = RetryPolicy::builder().backoff(Backoff::fixed(Duration::ZERO)).build()?;
/// let mut failures = 2;
/// let answer = retry(&policy, || {
///     failures -= 1;
///     let result = if failures >= 0 { Err("busy") } else { Ok(42) };
///     async move { result }
/// });
/// assert_eq!(answer.await, Ok(42));
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "tokio")]
pub async fn retry<T, E, F>(policy: &RetryPolicy, call: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    retry_if(policy, |_| ShouldRetry::Yes, call).await
}

/// [`retry`], for errors that a closure chooses.
///
/// # Errors
///
/// As [`retry`].
///
/// # Cancel safety
///
/// As [`retry`].
///
/// # Examples
///
/// ```
/// use std::io;
/// use tollgate::{RetryPolicy, ShouldRetry, retry_if};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = RetryPolicy::builder().build()?;
/// let when = |error: &io::Error| match error.kind() {
///     io::ErrorKind::TimedOut => ShouldRetry::Yes,
///     _ => ShouldRetry::No,
/// };
/// let call = || async { Err::<(), _>(io::Error::from(io::ErrorKind::NotFound)) };
/// assert!(retry_if(&policy, when, call).await.is_err()); // at once
/// assert_eq!(policy.counts().not_retryable, 1);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "tokio")]
pub async fn retry_if<T, E, F>(
    policy: &RetryPolicy,
    mut should_retry: impl FnMut(&E) -> ShouldRetry,
    mut call: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let clock = policy.clock();
    let mut attempts = policy.start(clock.now());
    loop {
        let error = match call().await {
            Ok(value) => {
                policy.succeeded();
                return Ok(value);
            }
            Err(error) => error,
        };
        let now = clock.now();
        let Some(due) = policy.next_attempt(&mut attempts, now, should_retry(&error)) else {
            return Err(error);
        };
        // The timer is set before the budget is charged: a call that cannot pause takes nothing.
        let mut sleeper = pin!(wait::Sleeper::ANY);
        let mut pause = poll_fn(|context| sleeper.as_mut().poll_until(clock, due, context));
        let started = poll_fn(|context| Poll::Ready(Pin::new(&mut pause).poll(context))).await;
        if started == Poll::Ready(Err(crate::NoRuntime)) || !policy.withdraw() {
            return Err(error);
        }
        if started.is_pending() && pause.await.is_err() {
            return Err(error);
        }
    }
}

/// [`retry`] for plain threads: parks this one while it pauses.
///
/// # Errors
///
/// The error of the last attempt.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Backoff, RetryPolicy, retry_sync};
///
/// let policy = RetryPolicy::builder().backoff(Backoff::fixed(Duration::ZERO)).build()?;
/// let mut attempts = 0;
/// let answer = retry_sync(&policy, || {
///     attempts += 1;
///     if attempts < 3 { Err("busy") } else { Ok(attempts) }
/// });
/// assert_eq!(answer, Ok(3));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub fn retry_sync<T, E>(policy: &RetryPolicy, call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    retry_sync_if(policy, |_| ShouldRetry::Yes, call)
}

/// [`retry_sync`], for errors that a closure chooses.
///
/// # Errors
///
/// The error of the last attempt.
///
/// # Examples
///
/// ```
/// use tollgate::{RetryPolicy, ShouldRetry, retry_sync_if};
///
/// let policy = RetryPolicy::builder().build()?;
/// let answer = retry_sync_if(&policy, |_| ShouldRetry::No, || Err::<(), _>("not found"));
/// assert_eq!(answer, Err("not found"));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub fn retry_sync_if<T, E>(
    policy: &RetryPolicy,
    mut should_retry: impl FnMut(&E) -> ShouldRetry,
    mut call: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let clock = policy.clock();
    let mut attempts = policy.start(clock.now());
    loop {
        let error = match call() {
            Ok(value) => {
                policy.succeeded();
                return Ok(value);
            }
            Err(error) => error,
        };
        let now = clock.now();
        let due = policy.next_attempt(&mut attempts, now, should_retry(&error));
        match due.filter(|_| policy.withdraw()) {
            Some(due) => wait::park_until(clock, due),
            None => return Err(error),
        }
    }
}
