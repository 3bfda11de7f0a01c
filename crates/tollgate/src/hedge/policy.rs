//! When a call is hedged.

use super::latency::LatencyWindow;
use crate::{
    Breaker, CallOutcome, Clock, Concurrency, ConfigError, RetryBudget, Tick,
    observe::{Collector, Samples, WeakCollector, family},
    sync::{Arc, Mutex, lock},
};
use std::time::Duration;

/// When, how often and within which bounds calls are hedged; clones share budget, latencies and
/// counts.
///
/// | setting | default |
/// |---|---|
/// | [`after`](Self::after) or [`at_percentile`](Self::at_percentile) | has to be chosen; 95 is a good percentile |
/// | [`max_hedges`](HedgePolicyBuilder::max_hedges) | 1: a call is sent twice at most |
/// | [`budget`](HedgePolicyBuilder::budget) | its own: 20 % of the successes and 10 per second, kept 10 s, at most 100 |
/// | [`breaker`](HedgePolicyBuilder::breaker), [`concurrency`](HedgePolicyBuilder::concurrency) | none |
///
/// Hedge only calls that may be made twice, such as reads: the server does the work of both.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Breaker, hedge::HedgePolicy};
///
/// let breaker = Breaker::builder().build()?;
/// let policy = HedgePolicy::at_percentile(95.0).breaker(&breaker).build()?;
/// assert_eq!(policy.delay(), None); // too few calls for a percentile
/// let policy = HedgePolicy::after(Duration::from_millis(50)).build()?;
/// assert_eq!(policy.delay(), Some(Duration::from_millis(50)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HedgePolicy {
    shared: Arc<Shared>,
    deadline: Tick,
}

#[derive(Debug)]
struct Shared {
    delay: Delay,
    max_hedges: u32,
    first_answer_wins: bool,
    budget: RetryBudget,
    /// Whether successes fill the budget here; else a retry policy does it.
    fills_budget: bool,
    breaker: Option<Breaker>,
    concurrency: Option<Concurrency>,
    clock: Clock,
    counts: Mutex<HedgeCounts>,
}

#[derive(Debug)]
enum Delay {
    Fixed(Duration),
    Percentile(Mutex<LatencyWindow>),
}

/// What became of the calls of a [`HedgePolicy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HedgeCounts {
    /// Calls that might have been hedged.
    pub calls: u64,
    /// Hedges that were sent.
    pub hedges: u64,
    /// Hedges whose answer was returned.
    pub wins: u64,
    /// Calls that were not hedged, or not again, because the budget was spent.
    pub out_of_budget: u64,
    /// The same, because the breaker was not closed.
    pub breaker_not_closed: u64,
    /// The same, because the concurrency limit was full.
    pub limit_full: u64,
}

/// The attempts of one call so far; made by [`HedgePolicy::start`].
#[derive(Clone, Debug)]
pub struct HedgedAttempts {
    made: u32,
    /// When the first one began; `None` if it has failed.
    first_began: Option<Tick>,
    /// `None` if it is not hedged.
    delay: Option<Duration>,
    next_due: Option<Tick>,
}

impl HedgedAttempts {
    /// Returns how many attempts were made, the first included.
    #[must_use]
    pub const fn made(&self) -> u32 {
        self.made
    }

    /// Returns when the next hedge is due; `None` if there is none.
    #[must_use]
    pub const fn next_due(&self) -> Option<Tick> {
        self.next_due
    }

    /// Sends no further hedge.
    pub const fn stop(&mut self) {
        self.next_due = None;
    }
}

impl HedgePolicy {
    /// Starts a policy that hedges a call which has taken so long; more than 0.
    pub const fn after(delay: Duration) -> HedgePolicyBuilder {
        HedgePolicyBuilder::new(DelaySetting::Fixed(delay))
    }

    /// Starts a policy that hedges a call which takes longer than so many percent of the recent
    /// ones; above 0 and below 100.
    ///
    /// At the 95th percentile about 5 % of the calls are hedged. A percentile inside the slow tail
    /// (the 99th, if 3 % of the calls are slow) helps nobody.
    pub const fn at_percentile(percent: f64) -> HedgePolicyBuilder {
        HedgePolicyBuilder::new(DelaySetting::Percentile(percent))
    }

    /// Returns the same policy for a call with a deadline: no hedge that would start at or after it
    /// is sent.
    #[must_use]
    pub fn until(&self, deadline: Tick) -> Self {
        Self { shared: Arc::clone(&self.shared), deadline: self.deadline.min(deadline) }
    }

    /// Returns after what time a call that starts now is hedged; `None` if there were too few calls
    /// for a percentile.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.delay_at(self.shared.clock.now())
    }

    fn delay_at(&self, now: Tick) -> Option<Duration> {
        match &self.shared.delay {
            Delay::Fixed(delay) => Some(*delay),
            Delay::Percentile(latencies) => lock(latencies).percentile(now),
        }
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

    /// Returns the settings in one line, for logs and `explain` output.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::hedge::HedgePolicy;
    ///
    /// let policy = HedgePolicy::after(Duration::from_millis(50)).build()?;
    /// assert_eq!(policy.summary(), "up to 1 hedge, after 50ms");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn summary(&self) -> String {
        let most = match self.shared.max_hedges {
            1 => "up to 1 hedge".to_owned(),
            most => format!("up to {most} hedges"),
        };
        match &self.shared.delay {
            Delay::Fixed(delay) => format!("{most}, after {delay:?}"),
            Delay::Percentile(latencies) => {
                format!("{most}, at percentile {} of latencies", lock(latencies).percent())
            }
        }
    }

    /// Returns what became of the calls.
    #[must_use]
    pub fn counts(&self) -> HedgeCounts {
        *lock(&self.shared.counts)
    }

    /// Starts a call: its first attempt is made now.
    ///
    /// `hedge` and `HedgedCall` (feature `tokio`) do all of this. A program that runs its own attempts,
    /// such as a simulation, calls `start`, [`try_hedge`](Self::try_hedge) when
    /// [`next_due`](HedgedAttempts::next_due) has come, and [`ended`](Self::ended) whenever an
    /// attempt ends.
    #[must_use]
    pub fn start(&self, now: Tick) -> HedgedAttempts {
        lock(&self.shared.counts).calls += 1;
        let delay = self.delay_at(now);
        let mut attempts =
            HedgedAttempts { made: 1, first_began: Some(now), delay, next_due: None };
        attempts.next_due = self.due_after(now, &attempts);
        attempts
    }

    fn due_after(&self, now: Tick, attempts: &HedgedAttempts) -> Option<Tick> {
        let due = now.saturating_add(attempts.delay?);
        (attempts.made <= self.shared.max_hedges && due < self.deadline).then_some(due)
    }

    /// Tells whether the hedge that is due is sent, and takes it from the budget. If not, the call
    /// is not hedged any more.
    #[must_use]
    pub fn try_hedge(&self, attempts: &mut HedgedAttempts, now: Tick) -> bool {
        attempts.stop();
        let shared = &*self.shared;
        if shared.breaker.as_ref().is_some_and(|breaker| !breaker.state().is_closed()) {
            lock(&shared.counts).breaker_not_closed += 1;
            return false;
        }
        if shared.concurrency.as_ref().is_some_and(|limit| limit.available() == 0) {
            lock(&shared.counts).limit_full += 1;
            return false;
        }
        if !shared.budget.try_withdraw() {
            lock(&shared.counts).out_of_budget += 1;
            return false;
        }
        lock(&shared.counts).hedges += 1;
        attempts.made += 1;
        attempts.next_due = self.due_after(now, attempts);
        true
    }

    /// Records that an attempt has ended, the first having number 0. Tells whether its answer is
    /// returned although others may still run: if it is a success, or
    /// [`first_answer_wins`](HedgePolicyBuilder::first_answer_wins).
    #[must_use]
    pub fn ended(
        &self,
        attempts: &mut HedgedAttempts,
        number: u32,
        now: Tick,
        outcome: CallOutcome,
    ) -> bool {
        let is_success = outcome == CallOutcome::Success;
        if number == 0 && !is_success {
            attempts.first_began = None;
        }
        if is_success {
            self.succeeded(attempts, now);
        }
        let wins = is_success || self.shared.first_answer_wins;
        if wins && number > 0 {
            lock(&self.shared.counts).wins += 1;
        }
        wins
    }

    fn succeeded(&self, attempts: &HedgedAttempts, now: Tick) {
        if self.shared.fills_budget {
            self.shared.budget.record(CallOutcome::Success);
        }
        // If a hedge has won, the first attempt took at least so long, which is above the percentile.
        // The latency of the whole call would lower the percentile with each hedge that wins, and so
        // lead to more and more of them.
        if let (Delay::Percentile(latencies), Some(began)) =
            (&self.shared.delay, attempts.first_began)
        {
            lock(latencies).add(now, now.since(began));
        }
    }
}

/// Builds a [`HedgePolicy`]. Nothing is checked before [`build`](Self::build).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct HedgePolicyBuilder {
    delay: DelaySetting,
    min_calls: u64,
    window: Duration,
    max_hedges: u32,
    first_answer_wins: bool,
    budget: Option<(RetryBudget, bool)>,
    breaker: Option<Breaker>,
    concurrency: Option<Concurrency>,
    clock: Option<Clock>,
}

#[derive(Clone, Copy, Debug)]
enum DelaySetting {
    Fixed(Duration),
    Percentile(f64),
}

impl HedgePolicyBuilder {
    const fn new(delay: DelaySetting) -> Self {
        Self {
            delay,
            min_calls: 100,
            window: Duration::from_secs(60),
            max_hedges: 1,
            first_answer_wins: false,
            budget: None,
            breaker: None,
            concurrency: None,
            clock: None,
        }
    }

    /// Sets how many calls must be in the window before its percentile counts; at least 1. The
    /// default is 100: of fewer, the 95th percentile is five calls.
    pub const fn min_calls(mut self, count: u64) -> Self {
        self.min_calls = count;
        self
    }

    /// Sets how far back calls count for the percentile; 1 ms to a day. The default is 60 s, of
    /// which the last 30 s to 60 s count.
    pub const fn window(mut self, length: Duration) -> Self {
        self.window = length;
        self
    }

    /// Sets how many hedges a call has at most, 1 to 4, each after another delay. The default is 1.
    pub const fn max_hedges(mut self, most: u32) -> Self {
        self.max_hedges = most;
        self
    }

    /// Returns the answer that comes first, also if it is an error.
    ///
    /// By default an error waits for the attempts that still run.
    pub const fn first_answer_wins(mut self) -> Self {
        self.first_answer_wins = true;
        self
    }

    /// Sets the budget that hedges are taken from, and that successes fill. The default is one of its
    /// own.
    ///
    /// If retries have the same budget, use [`shared_budget`](Self::shared_budget).
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = Some((budget, true));
        self
    }

    /// Takes hedges from the budget of a [`RetryPolicy`](crate::RetryPolicy) around this one, which
    /// fills it: a success must not be counted twice.
    pub fn shared_budget(mut self, budget: RetryBudget) -> Self {
        self.budget = Some((budget, false));
        self
    }

    /// Sends no hedge while this breaker is not closed.
    pub fn breaker(mut self, breaker: &Breaker) -> Self {
        self.breaker = Some(breaker.clone());
        self
    }

    /// Sends no hedge while this limit is full: hedging under overload would double it.
    pub fn concurrency(mut self, limit: &Concurrency) -> Self {
        self.concurrency = Some(limit.clone());
        self
    }

    /// Sets the clock. The default is [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the setting, its value and the rule.
    pub fn build(self) -> Result<HedgePolicy, ConfigError> {
        self.check()?;
        let delay = match self.delay {
            DelaySetting::Fixed(delay) => Delay::Fixed(delay),
            DelaySetting::Percentile(percent) => {
                let latencies = LatencyWindow::new(percent, self.min_calls, self.window);
                Delay::Percentile(Mutex::new(latencies))
            }
        };
        let clock = self.clock.unwrap_or_else(Clock::monotonic);
        let (budget, fills_budget) = match self.budget {
            Some(given) => given,
            None => (RetryBudget::builder().clock(clock.clone()).build()?, true),
        };
        let shared = Shared {
            delay,
            max_hedges: self.max_hedges,
            first_answer_wins: self.first_answer_wins,
            budget,
            fills_budget,
            breaker: self.breaker,
            concurrency: self.concurrency,
            clock,
            counts: Mutex::default(),
        };
        Ok(HedgePolicy { shared: Arc::new(shared), deadline: Tick::MAX })
    }

    fn check(&self) -> Result<(), ConfigError> {
        match self.delay {
            DelaySetting::Fixed(Duration::ZERO) => {
                return Err(ConfigError::new(
                    "a delay of 0 s would send every call twice; use the time that nearly all \
                     calls take, or `at_percentile(95.0)`",
                ));
            }
            DelaySetting::Percentile(percent) if !(percent > 0.0 && percent < 100.0) => {
                return Err(ConfigError::new(format!(
                    "percentile {percent} is out of range; use more than 0 and less than 100, such \
                     as 95"
                )));
            }
            _ => {}
        }
        if !(1..=4).contains(&self.max_hedges) {
            let most = self.max_hedges;
            let text = format!("max_hedges {most} is out of range; use 1 to 4, or no hedging");
            return Err(ConfigError::new(text));
        }
        if self.min_calls == 0 {
            let text = "min_calls 0 is out of range: nothing has no percentile; use at least 1";
            return Err(ConfigError::new(text));
        }
        ConfigError::check_window("window", self.window)
    }
}

/// The budget is a part: `name/budget`.
impl Collector for HedgePolicy {
    fn collect(&self, samples: &mut Samples) {
        let counts = self.counts();
        samples.kind("hedge_policy");
        for (outcome, count) in [
            ("considered", counts.calls),
            ("sent", counts.hedges),
            ("won", counts.wins),
            ("out_of_budget", counts.out_of_budget),
            ("breaker_not_closed", counts.breaker_not_closed),
            ("limit_full", counts.limit_full),
        ] {
            samples.count_by(&family::HEDGES, outcome, count);
        }
        samples.part("budget", self.budget());
    }

    fn weak(&self) -> WeakCollector {
        let deadline = self.deadline;
        WeakCollector::of(&self.shared, move |shared| Self { shared, deadline })
    }
}
