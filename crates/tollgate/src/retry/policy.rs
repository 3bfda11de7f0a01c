//! Whether and when a call is repeated.

use super::{Backoff, Pauses, RetryBudget, ShouldRetry};
use crate::{
    CallOutcome, Clock, ConfigError, Tick,
    observe::{Collector, Samples, WeakCollector, family},
    sync::{Arc, AtomicU64, Ordering::Relaxed},
    wait::mix,
};
use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// How often, when and within which bounds calls are repeated; clones share budget and counts.
///
/// A retry happens only within every bound: attempts of one call, its time, and a [`RetryBudget`]
/// that all calls share. Retries add load exactly when there is too much of it; the budget keeps them
/// a fraction of the successes.
///
/// | setting | default |
/// |---|---|
/// | [`max_attempts`](RetryPolicyBuilder::max_attempts) | 3, the first included |
/// | [`max_elapsed`](RetryPolicyBuilder::max_elapsed) | 30 s |
/// | [`backoff`](RetryPolicyBuilder::backoff) | full jitter from 100 ms to 10 s |
/// | [`budget`](RetryPolicyBuilder::budget) | its own: 20 % of the successes and 10 per second, kept 10 s, at most 100 |
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Backoff, RetryPolicy, retry_sync};
///
/// let policy = RetryPolicy::builder()
///     .max_attempts(4)
///     .backoff(Backoff::full_jitter(Duration::from_micros(1), Duration::from_millis(1)))
///     .build()?;
/// assert_eq!(retry_sync(&policy, || Err::<(), _>("down")), Err("down"));
/// assert_eq!((policy.counts().retries, policy.counts().out_of_attempts), (3, 1));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    shared: Arc<Shared>,
    deadline: Tick,
}

#[derive(Debug)]
struct Shared {
    max_attempts: u32,
    max_elapsed: Duration,
    backoff: Backoff,
    budget: RetryBudget,
    clock: Clock,
    seed: u64,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    started: AtomicU64,
    retries: AtomicU64,
    not_retryable: AtomicU64,
    out_of_attempts: AtomicU64,
    out_of_time: AtomicU64,
    out_of_budget: AtomicU64,
}

/// What became of the failed attempts of a [`RetryPolicy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RetryCounts {
    /// Attempts that were repeated.
    pub retries: u64,
    /// Calls that ended with an error that must not be repeated.
    pub not_retryable: u64,
    /// Calls that ended because all attempts were made.
    pub out_of_attempts: u64,
    /// Calls that ended because a retry would have come too late.
    pub out_of_time: u64,
    /// Calls that ended because the budget was spent.
    pub out_of_budget: u64,
}

/// The attempts of one call so far; made by [`RetryPolicy::start`].
#[derive(Clone, Debug)]
pub struct Attempts {
    made: u32,
    latest: Tick,
    pauses: Pauses,
}

impl Attempts {
    /// Returns how many attempts were made, the one under way included.
    #[must_use]
    pub const fn made(&self) -> u32 {
        self.made
    }
}

fn count(counter: &AtomicU64) {
    // ORDERING: Relaxed. Statistics.
    counter.fetch_add(1, Relaxed);
}

impl RetryPolicy {
    /// Starts a policy.
    pub const fn builder() -> RetryPolicyBuilder {
        RetryPolicyBuilder {
            max_attempts: 3,
            max_elapsed: Duration::from_secs(30),
            backoff: Backoff::full_jitter(Duration::from_millis(100), Duration::from_secs(10)),
            budget: None,
            clock: None,
            seed: None,
        }
    }

    /// Returns the same policy for a call with a deadline: no retry that would start at or after it
    /// is waited for.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Backoff, RetryPolicy, retry_sync};
    ///
    /// let policy = RetryPolicy::builder().backoff(Backoff::fixed(Duration::from_secs(5))).build()?;
    /// let deadline = policy.clock().now().saturating_add(Duration::from_secs(1));
    /// let answer = retry_sync(&policy.until(deadline), || Err::<(), _>("down")); // at once
    /// assert_eq!((answer, policy.counts().out_of_time), (Err("down"), 1));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn until(&self, deadline: Tick) -> Self {
        Self { shared: Arc::clone(&self.shared), deadline: self.deadline.min(deadline) }
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> &RetryBudget {
        &self.shared.budget
    }

    /// Returns the clock it goes by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Returns how often a call is made at most.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.shared.max_attempts
    }

    /// Returns how long after the first attempt the last may start.
    #[must_use]
    pub fn max_elapsed(&self) -> Duration {
        self.shared.max_elapsed
    }

    /// Returns the settings in one line, for logs and `explain` output; without the budget's.
    ///
    /// # Examples
    ///
    /// ```
    /// let policy = tollgate::RetryPolicy::builder().build()?;
    /// assert_eq!(policy.summary(), "up to 3 attempts within 30s, pauses of up to 100ms to 10s");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn summary(&self) -> String {
        let Shared { max_attempts, max_elapsed, backoff, .. } = &*self.shared;
        let (base, most) = backoff.bounds();
        format!(
            "up to {max_attempts} attempts within {max_elapsed:?}, pauses of up to {base:?} to {most:?}"
        )
    }

    /// Returns what became of failed attempts.
    #[must_use]
    pub fn counts(&self) -> RetryCounts {
        let counters = &self.shared.counters;
        // ORDERING: Relaxed. Statistics.
        RetryCounts {
            retries: counters.retries.load(Relaxed),
            not_retryable: counters.not_retryable.load(Relaxed),
            out_of_attempts: counters.out_of_attempts.load(Relaxed),
            out_of_time: counters.out_of_time.load(Relaxed),
            out_of_budget: counters.out_of_budget.load(Relaxed),
        }
    }

    /// Starts a call: its first attempt is made now.
    ///
    /// [`retry`](crate::retry) and its relatives do all of this; middleware that has to make its own
    /// attempts calls `start`, after each failure [`next_attempt`](Self::next_attempt) and
    /// [`withdraw`](Self::withdraw), and at the end [`succeeded`](Self::succeeded).
    #[must_use]
    pub fn start(&self, now: Tick) -> Attempts {
        // ORDERING: Relaxed. Each call takes a number; which one does not matter.
        let number = self.shared.counters.started.fetch_add(1, Relaxed);
        let seed = mix(self.shared.seed.wrapping_add(number));
        Attempts {
            made: 1,
            latest: now.saturating_add(self.shared.max_elapsed),
            pauses: self.shared.backoff.pauses(seed),
        }
    }

    /// Returns when to make the next attempt after a failed one, or `None` to give up.
    ///
    /// Never before the time that the server named. A random pause that would end beyond
    /// [`max_elapsed`](RetryPolicyBuilder::max_elapsed) is cut: chance must not be what makes it late.
    pub fn next_attempt(
        &self,
        attempts: &mut Attempts,
        now: Tick,
        should_retry: ShouldRetry,
    ) -> Option<Tick> {
        let least = match should_retry {
            ShouldRetry::No => {
                count(&self.shared.counters.not_retryable);
                return None;
            }
            ShouldRetry::Yes => Duration::ZERO,
            ShouldRetry::After(least) => least,
        };
        self.shared.budget.record(CallOutcome::Failure);
        if attempts.made >= self.shared.max_attempts {
            count(&self.shared.counters.out_of_attempts);
            return None;
        }
        let earliest = now.saturating_add(least);
        let pause = attempts.pauses.next().unwrap_or_default();
        let due = earliest.saturating_add(pause).min(attempts.latest);
        if earliest > attempts.latest || due >= self.deadline {
            count(&self.shared.counters.out_of_time);
            return None;
        }
        attempts.made += 1;
        Some(due)
    }

    /// Takes the retry that [`next_attempt`](Self::next_attempt) allowed from the budget.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        let Shared { budget, counters, .. } = &*self.shared;
        let is_allowed = budget.try_withdraw();
        count(if is_allowed { &counters.retries } else { &counters.out_of_budget });
        is_allowed
    }

    /// Records that a call succeeded.
    pub fn succeeded(&self) {
        self.shared.budget.record(CallOutcome::Success);
    }
}

/// Builds a [`RetryPolicy`]. Nothing is checked before [`build`](Self::build).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RetryPolicyBuilder {
    max_attempts: u32,
    max_elapsed: Duration,
    backoff: Backoff,
    budget: Option<RetryBudget>,
    clock: Option<Clock>,
    seed: Option<u64>,
}

impl RetryPolicyBuilder {
    /// Sets how often a call is made at most, the first time included. The default is 3.
    pub const fn max_attempts(mut self, most: u32) -> Self {
        self.max_attempts = most;
        self
    }

    /// Sets how long after the first attempt the last may start. The default is 30 s.
    pub const fn max_elapsed(mut self, longest: Duration) -> Self {
        self.max_elapsed = longest;
        self
    }

    /// Sets the pauses. The default is full jitter, from 100 ms to 10 s.
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the budget, which policies may share. The default is one of its own.
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets the clock. The default is [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets what pauses are drawn from, so that tests repeat. The default is the system's randomness.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// When no attempt is allowed, or the first pause is longer than the longest.
    pub fn build(self) -> Result<RetryPolicy, ConfigError> {
        if self.max_attempts == 0 {
            let text = "max_attempts 0 sends nothing; the first attempt counts, so use at least 1";
            return Err(ConfigError::new(text));
        }
        let (base, most) = self.backoff.bounds();
        if base > most {
            return Err(ConfigError::new(format!(
                "the first pause of {base:?} is longer than the longest pause, {most:?}; lower the \
                 first or raise the second"
            )));
        }
        let clock = self.clock.unwrap_or_else(Clock::monotonic);
        let budget = match self.budget {
            Some(budget) => budget,
            None => RetryBudget::builder().clock(clock.clone()).build()?,
        };
        let shared = Shared {
            max_attempts: self.max_attempts,
            max_elapsed: self.max_elapsed,
            backoff: self.backoff,
            budget,
            clock,
            seed: self.seed.unwrap_or_else(|| RandomState::new().hash_one("tollgate retry")),
            counters: Counters::default(),
        };
        Ok(RetryPolicy { shared: Arc::new(shared), deadline: Tick::MAX })
    }
}

/// The budget is a part: `name/budget`.
impl Collector for RetryPolicy {
    fn collect(&self, samples: &mut Samples) {
        let counts = self.counts();
        samples.kind("retry_policy");
        for (outcome, count) in [
            ("retried", counts.retries),
            ("not_retryable", counts.not_retryable),
            ("out_of_attempts", counts.out_of_attempts),
            ("out_of_time", counts.out_of_time),
            ("out_of_budget", counts.out_of_budget),
        ] {
            samples.count_by(&family::RETRIES, outcome, count);
        }
        samples.part("budget", &self.shared.budget);
    }

    fn weak(&self) -> WeakCollector {
        let deadline = self.deadline;
        WeakCollector::of(&self.shared, move |shared| Self { shared, deadline })
    }
}
