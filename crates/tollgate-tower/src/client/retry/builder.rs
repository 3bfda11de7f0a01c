//! The builder of a retrying layer.

use super::{Backoff, CloneBody, Replay, ReplayBody, RetryBudget, RetryLayer, Shared};
use crate::client::learned::Reader;
use std::{error::Error, fmt, sync::Arc, time::Duration};
use tollgate::{Clock, ConfigError, RetryPolicy, RetryPolicyBuilder};

/// Builds a [`RetryLayer`]. Settings are validated by [`build`](Self::build) only.
#[must_use = "a builder does nothing until `build`"]
pub struct RetryBuilder<C = CloneBody> {
    repeat: C,
    policy: RetryPolicyBuilder,
    /// Settings of the policy, checked here for the codes of their errors.
    max_attempts: u32,
    pauses: (Duration, Duration),
    retries_unavailable: bool,
    clock: Option<Clock>,
}

/// The error for an invalid retrying layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryBuildError {
    /// `TG-C21`: no attempt at all is allowed.
    NoAttempt,
    /// `TG-C22`: the first pause is longer than the longest.
    Backoff {
        /// The bound of the first pause.
        base: Duration,
        /// The bound of all pauses.
        most: Duration,
    },
    /// `TG-C23`: the default budget could not be built.
    Budget(ConfigError),
}

impl RetryBuilder {
    pub(super) fn new() -> Self {
        let backoff = Backoff::full_jitter(Duration::from_millis(100), Duration::from_secs(10));
        Self {
            repeat: CloneBody,
            policy: RetryPolicy::builder().backoff(backoff),
            max_attempts: 3,
            pauses: backoff.bounds(),
            retries_unavailable: false,
            clock: None,
        }
    }
}

impl<C> RetryBuilder<C> {
    /// Sets how requests are cloned, for bodies that are not `Clone`, or to repeat only some of the
    /// requests: a request that is not cloned is not repeated.
    ///
    /// Give it a closure `|request: &Request<B>| -> Option<Request<B>>`.
    pub fn clone_with<F>(self, clone: F) -> RetryBuilder<F> {
        self.repeat(clone)
    }

    /// Keeps the frames that are read of a body, to repeat requests whose body is not `Clone`:
    /// those of tonic and reqwest, streams.
    ///
    /// `wrap` makes a body of the client's type: `tonic::body::Body::new`, `reqwest::Body::wrap`, or
    /// `BodyExt::boxed`. Frames and trailers are kept until there is an answer, up to
    /// [`max_replay_bytes`](RetryBuilder::max_replay_bytes). A longer body is sent as usual, and
    /// once. If it is refused before it was read to its end, the repeat continues where the first
    /// attempt has stopped. The first attempt then fails if it is still sending: no two attempts
    /// read at the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_tower::client::RetryLayer;
    /// use tower_layer::Layer;
    /// # let channel = ();
    ///
    /// let retry = RetryLayer::builder().replay(tonic::body::Body::new).build()?;
    /// let channel = retry.layer(channel);
    /// // let client = GreeterClient::new(channel);
    /// # Ok::<(), tollgate_tower::client::RetryBuildError>(())
    /// ```
    pub fn replay<B>(
        self,
        wrap: impl Fn(ReplayBody<B>) -> B + Send + Sync + 'static,
    ) -> RetryBuilder<Replay<B>> {
        self.repeat(Replay::new(wrap))
    }

    fn repeat<D>(self, repeat: D) -> RetryBuilder<D> {
        let Self { policy, max_attempts, pauses, retries_unavailable, clock, .. } = self;
        RetryBuilder { repeat, policy, max_attempts, pauses, retries_unavailable, clock }
    }

    /// Sets how often a call is sent at most, including the first time; by default 3.
    pub fn max_attempts(mut self, most: u32) -> Self {
        (self.max_attempts, self.policy) = (most, self.policy.max_attempts(most));
        self
    }

    /// Sets how long after the first attempt the last may start, by default 30 s. A refusal that
    /// requires a longer wait is returned at once.
    pub fn max_elapsed(mut self, longest: Duration) -> Self {
        self.policy = self.policy.max_elapsed(longest);
        self
    }

    /// Sets the pauses, by default full jitter whose bound doubles from 100 ms to 10 s. The time
    /// that the server names is added.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        (self.pauses, self.policy) = (backoff.bounds(), self.policy.backoff(backoff));
        self
    }

    /// Sets the budget, by default one of its own with 20 % of the successes and 10 each second,
    /// kept for 10 s, at most 100. One with gRPC's throttling is made by [`RetryBudget::grpc`].
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.policy = self.policy.budget(budget);
        self
    }

    /// Repeats gRPC calls that end with `UNAVAILABLE`. The server may have done some of the work:
    /// use this only if all calls may be done twice.
    pub fn unavailable(mut self) -> Self {
        self.retries_unavailable = true;
        self
    }

    /// Sets the clock, by default [`Clock::tokio`]. Pauses use tokio's timers, so another clock
    /// must run as fast as they do: a manual one does not.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// If a bound is invalid.
    pub fn build(self) -> Result<RetryLayer<C>, RetryBuildError> {
        if self.max_attempts == 0 {
            return Err(RetryBuildError::NoAttempt);
        }
        let (base, most) = self.pauses;
        if base > most {
            return Err(RetryBuildError::Backoff { base, most });
        }
        let clock = self.clock.unwrap_or_else(Clock::tokio);
        let shared = Shared {
            repeat: self.repeat,
            policy: self.policy.clock(clock).build().map_err(RetryBuildError::Budget)?,
            retries_unavailable: self.retries_unavailable,
            // No time is cut: a repeat must not come early, but may be left out.
            reader: Reader::new().longest(Duration::MAX),
        };
        Ok(RetryLayer { shared: Arc::new(shared) })
    }
}

impl<B> RetryBuilder<Replay<B>> {
    /// Sets how many bytes of a body are kept at most, by default 64 KiB. Each frame counts as 64
    /// more than it has. Requests with a longer body are not repeated.
    pub fn max_replay_bytes(mut self, most: usize) -> Self {
        self.repeat.max_bytes = most;
        self
    }
}

crate::coded::coded!(RetryBuildError, "TG-C21");

impl RetryBuildError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::NoAttempt => ("TG-C21", docs!("clients.md#tg-c21")),
            Self::Backoff { .. } => ("TG-C22", docs!("clients.md#tg-c22")),
            Self::Budget(_) => ("TG-C23", docs!("clients.md#tg-c23")),
        }
    }
}

impl fmt::Display for RetryBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAttempt => {
                f.write_str(
                    "max_attempts 0 sends nothing; the first attempt counts, so use at least 1",
                )?;
            }
            Self::Backoff { base, most } => write!(
                f,
                "the first pause of {base:?} is longer than the longest pause, {most:?}; lower the \
                 first or raise the second"
            )?,
            Self::Budget(_) => f.write_str("the default budget cannot be built; give one")?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl Error for RetryBuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Budget(error) => Some(error),
            _ => None,
        }
    }
}

impl<C> fmt::Debug for RetryBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}
