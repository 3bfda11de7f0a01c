//! How many retries all calls of a client may make.
//!
//! If every call is repeated three times when a server is overloaded, its load quadruples, and it
//! never recovers. A budget ties retries to successes: as long as most calls succeed, the few that do
//! not are repeated; when most fail, retries dry up.
//!
//! Savings, in 10^-9 of a retry: each success adds `percent`, and each second `min_per_second`; a
//! retry takes one. They lie in ten slots by the time at which they were added, and a slot expires
//! as a whole, nine to ten tenths of `ttl` later, so an old calm does not pay for a storm. The sum is at most `most`. So in any interval
//! w there are at most `most + min_per_second x w + percent x successes` retries. A new budget has
//! what an idle one has at most: `min_per_second x ttl`.

use crate::{
    CallOutcome, Clock, ConfigError, Tick,
    clock::tick::duration_nanos,
    observe::{Collector, Samples, WeakCollector, family},
    sync::{Arc, AtomicU64, Mutex, Ordering::Relaxed, lock},
};
use std::time::Duration;

/// One retry, in the unit of savings: so a nanosecond at one per second is one.
const ONE: u64 = 1_000_000_000;
/// One token of gRPC's throttling: its ratio has three decimals.
const TOKEN: u64 = 1000;
const SLOTS: usize = 10;

/// How many retries all calls of a client may make. Clones share it.
///
/// | budget | a retry is allowed while |
/// |---|---|
/// | [`builder`](Self::builder) (Finagle, linkerd) | savings last: 20 % of the successes and 10 per second, for 10 s |
/// | [`grpc`](Self::grpc) | more than half of the tokens are left; a failure takes one, a success adds a fraction |
/// | [`unlimited`](Self::unlimited) | always: for tests, or when something else bounds retries |
///
/// # Examples
///
/// ```
/// use tollgate::{CallOutcome, Clock, RetryBudget};
///
/// let (clock, _hand) = Clock::manual();
/// let budget = RetryBudget::builder().percent(50).min_per_second(0).clock(clock).build()?;
/// assert!(!budget.try_withdraw());
/// budget.record(CallOutcome::Success);
/// budget.record(CallOutcome::Success);
/// assert!(budget.try_withdraw());
/// assert_eq!(budget.refused(), 1);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kind: Kind,
    clock: Clock,
    refused: AtomicU64,
}

#[derive(Debug)]
enum Kind {
    Savings(Mutex<Savings>),
    Grpc { tokens: AtomicU64, max_tokens: u64, per_success: u64 },
    Unlimited,
}

impl RetryBudget {
    /// Starts a budget of savings.
    pub const fn builder() -> RetryBudgetBuilder {
        RetryBudgetBuilder {
            percent: 20,
            min_per_second: 10,
            most: 100,
            ttl: Duration::from_secs(10),
            clock: None,
        }
    }

    /// Returns the retry throttling of gRPC's service config: `maxTokens` and `tokenRatio`.
    ///
    /// Tokens start at `max_tokens`, 1 to 1000. A failure takes one, a success adds `token_ratio`
    /// (decimals beyond the third are ignored), and a retry is allowed while more than half are left.
    ///
    /// # Errors
    ///
    /// When `max_tokens` is not in its range or `token_ratio` is below 0.001 or above 1000.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{CallOutcome, RetryBudget};
    ///
    /// let budget = RetryBudget::grpc(10, 0.1)?;
    /// for failure in 1..=5 {
    ///     budget.record(CallOutcome::Failure);
    ///     assert_eq!(budget.try_withdraw(), failure < 5); // 9, 8, 7, 6 tokens; 5 are not enough
    /// }
    /// budget.record(CallOutcome::Success); // 5.1
    /// assert!(budget.try_withdraw());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn grpc(max_tokens: u32, token_ratio: f64) -> Result<Self, ConfigError> {
        ConfigError::check_range("max_tokens", max_tokens, 1..=1000)?;
        ConfigError::check_range("token_ratio", token_ratio, 0.001..=1000.0)?;
        let max_tokens = u64::from(max_tokens) * TOKEN;
        // Rounded first at a finer grain: 0.1 is a little less than a tenth as a float.
        let per_success = (token_ratio * TOKEN as f64 + 1e-6) as u64;
        let tokens = AtomicU64::new(max_tokens);
        Ok(Self::of(Kind::Grpc { tokens, max_tokens, per_success }, Clock::monotonic()))
    }

    /// Returns a budget that allows every retry.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::of(Kind::Unlimited, Clock::monotonic())
    }

    fn of(kind: Kind, clock: Clock) -> Self {
        Self { shared: Arc::new(Shared { kind, clock, refused: AtomicU64::new(0) }) }
    }

    /// Records how a call ended: a success, or a failure that may be retried.
    pub fn record(&self, outcome: CallOutcome) {
        match (&self.shared.kind, outcome) {
            (Kind::Savings(savings), CallOutcome::Success) => {
                let now = self.shared.clock.now();
                lock(savings).deposit(now);
            }
            (Kind::Grpc { tokens, max_tokens, per_success }, CallOutcome::Success) => {
                let more =
                    |it: u64| (it < *max_tokens).then(|| (it + per_success).min(*max_tokens));
                // ORDERING: Relaxed, here and below. The tokens are one word and publish nothing.
                // Full ones are not written to: that is the usual case.
                let _full = tokens.fetch_update(Relaxed, Relaxed, more);
            }
            (Kind::Grpc { tokens, .. }, CallOutcome::Failure | CallOutcome::Overload) => {
                let fewer = |it: u64| Some(it.saturating_sub(TOKEN));
                let _always = tokens.fetch_update(Relaxed, Relaxed, fewer);
            }
            _ => {}
        }
    }

    /// Takes one retry, if the budget has one.
    #[must_use]
    pub fn try_withdraw(&self) -> bool {
        let is_allowed = match &self.shared.kind {
            Kind::Savings(savings) => {
                let now = self.shared.clock.now();
                lock(savings).withdraw(now)
            }
            Kind::Grpc { tokens, max_tokens, .. } => tokens.load(Relaxed) > max_tokens / 2,
            Kind::Unlimited => true,
        };
        if !is_allowed {
            // ORDERING: Relaxed. Statistics.
            self.shared.refused.fetch_add(1, Relaxed);
        }
        is_allowed
    }

    /// Returns how many whole retries there are now.
    #[must_use]
    pub fn balance(&self) -> u64 {
        match &self.shared.kind {
            Kind::Savings(savings) => lock(savings).balance(self.shared.clock.now()) / ONE,
            Kind::Grpc { tokens, max_tokens, .. } => {
                tokens.load(Relaxed).saturating_sub(max_tokens / 2).div_ceil(TOKEN)
            }
            Kind::Unlimited => u64::MAX,
        }
    }

    /// Tells whether both are clones of one budget.
    #[must_use]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the settings in one line, for logs and `explain` output.
    ///
    /// # Examples
    ///
    /// ```
    /// let budget = tollgate::RetryBudget::builder().build()?;
    /// assert_eq!(budget.summary(), "20 % of the successes and 10/s, kept for 10s, at most 100");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn summary(&self) -> String {
        match &self.shared.kind {
            Kind::Savings(savings) => {
                let savings = lock(savings);
                let ttl = Duration::from_nanos(savings.slot_ns.saturating_mul(SLOTS as u64));
                let (percent, per_second) = (savings.per_success / (ONE / 100), savings.per_nano);
                let most = savings.most / ONE;
                format!(
                    "{percent} % of the successes and {per_second}/s, kept for {ttl:?}, at most {most}"
                )
            }
            Kind::Grpc { max_tokens, per_success, .. } => {
                let (max_tokens, ratio) = (max_tokens / TOKEN, *per_success as f64 / TOKEN as f64);
                format!("gRPC throttling, {max_tokens} tokens and {ratio} for each success")
            }
            Kind::Unlimited => "unlimited".to_owned(),
        }
    }

    /// Returns how many retries were refused because the budget was spent.
    #[must_use]
    pub fn refused(&self) -> u64 {
        // ORDERING: Relaxed. Statistics.
        self.shared.refused.load(Relaxed)
    }
}

impl Collector for RetryBudget {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("retry_budget");
        if !matches!(self.shared.kind, Kind::Unlimited) {
            samples.gauge(&family::RETRY_BALANCE, self.balance() as f64);
        }
        samples.count(&family::RETRY_REFUSED, self.refused());
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}

/// Builds a [`RetryBudget`] of savings.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RetryBudgetBuilder {
    percent: u32,
    min_per_second: u32,
    most: u32,
    ttl: Duration,
    clock: Option<Clock>,
}

impl RetryBudgetBuilder {
    /// Sets how many percent of the successes may be retries, 0 to 1000. The default is 20.
    pub const fn percent(mut self, percent: u32) -> Self {
        self.percent = percent;
        self
    }

    /// Sets how many retries each second adds in any case. The default is 10, as in Finagle and
    /// linkerd, so that a client that just started, or calls rarely, can retry at all.
    pub const fn min_per_second(mut self, count: u32) -> Self {
        self.min_per_second = count;
        self
    }

    /// Sets how many retries may be saved up, at least 1. The default is 100.
    pub const fn most(mut self, most: u32) -> Self {
        self.most = most;
        self
    }

    /// Sets after what time savings expire, 1 ms to a day. The default is 10 s.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the clock. The default is [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the budget. It starts with what an idle one has: `min_per_second x ttl`, at most `most`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the setting, its value and the rule.
    pub fn build(self) -> Result<RetryBudget, ConfigError> {
        let Self { percent, min_per_second, most, ttl, clock } = self;
        ConfigError::check_range("percent", percent, 0..=1000)?;
        if most == 0 {
            let text = "most 0 saves nothing, so nothing is retried; use at least 1";
            return Err(ConfigError::new(text));
        }
        ConfigError::check_window("ttl", ttl)?;
        let clock = clock.unwrap_or_else(Clock::monotonic);
        let mut savings = Savings {
            per_success: u64::from(percent) * (ONE / 100),
            per_nano: min_per_second.into(),
            most: u64::from(most) * ONE,
            slot_ns: duration_nanos(ttl) / SLOTS as u64,
            slots: [0; SLOTS],
            counted: clock.now(),
        };
        // OVERFLOW: 2^32 per second over a tenth of a day, in 10^-9, is below 2^76: saturates.
        savings.slots = [savings.per_nano.saturating_mul(savings.slot_ns).min(savings.most); SLOTS];
        savings.cap();
        Ok(RetryBudget::of(Kind::Savings(Mutex::new(savings)), clock))
    }
}

/// Savings by age: pure, without a clock.
#[derive(Debug)]
struct Savings {
    per_success: u64,
    /// What a nanosecond adds.
    per_nano: u64,
    most: u64,
    slot_ns: u64,
    /// By the number of the slot since the clock's origin, modulo their count.
    slots: [u64; SLOTS],
    /// Until when time has added its share.
    counted: Tick,
}

impl Savings {
    fn number(&self) -> u64 {
        self.counted.as_nanos() / self.slot_ns
    }

    fn slot(&mut self) -> &mut u64 {
        &mut self.slots[(self.number() % SLOTS as u64) as usize]
    }

    /// Adds what time gives, and drops what has expired. Time that goes backwards stands still.
    fn advance(&mut self, now: Tick) {
        let oldest = (now.as_nanos() / self.slot_ns).saturating_sub(SLOTS as u64);
        if self.number() < oldest {
            // Whatever was saved has expired.
            self.slots = [0; SLOTS];
            self.counted = Tick::from_nanos(oldest * self.slot_ns);
        }
        while self.counted < now {
            let end_of_slot = (self.number() + 1).saturating_mul(self.slot_ns);
            let end = end_of_slot.min(now.as_nanos());
            let added = (end - self.counted.as_nanos()).saturating_mul(self.per_nano);
            let slot = self.slot();
            *slot = slot.saturating_add(added);
            self.counted = Tick::from_nanos(end);
            if end == end_of_slot {
                *self.slot() = 0;
            }
            self.cap();
        }
    }

    /// Keeps to the most that may be saved, by dropping the oldest.
    fn cap(&mut self) {
        let sum = self.slots.iter().fold(0_u64, |sum, slot| sum.saturating_add(*slot));
        self.take(sum.saturating_sub(self.most));
    }

    /// Takes an amount, the oldest first.
    fn take(&mut self, mut amount: u64) {
        let number = self.number();
        for back in (0..SLOTS as u64).rev() {
            let index = (number + SLOTS as u64 - back) % SLOTS as u64;
            let slot = &mut self.slots[index as usize];
            let taken = amount.min(*slot);
            *slot -= taken;
            amount -= taken;
        }
    }

    fn balance(&mut self, now: Tick) -> u64 {
        self.advance(now);
        // OVERFLOW: the sum is at most `most`, below 2^62.
        self.slots.iter().sum()
    }

    fn deposit(&mut self, now: Tick) {
        self.advance(now);
        let added = self.per_success;
        *self.slot() += added;
        self.cap();
    }

    fn withdraw(&mut self, now: Tick) -> bool {
        let is_there = self.balance(now) >= ONE;
        if is_there {
            self.take(ONE);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(builder: RetryBudgetBuilder) -> (RetryBudget, crate::ManualClock) {
        let (clock, hand) = Clock::manual();
        (builder.clock(clock).build().unwrap(), hand)
    }

    fn withdrawn(budget: &RetryBudget) -> u64 {
        (0..1000).take_while(|_| budget.try_withdraw()).count() as u64
    }

    fn succeed(budget: &RetryBudget, times: u32) {
        (0..times).for_each(|_| budget.record(CallOutcome::Success));
    }

    #[test]
    fn successes_pay_for_retries() {
        let (budget, _hand) = budget(RetryBudget::builder().percent(20).min_per_second(0).most(2));
        assert!(!budget.try_withdraw());
        succeed(&budget, 4);
        assert!(!budget.try_withdraw());
        succeed(&budget, 1);
        assert_eq!(budget.balance(), 1);
        assert!(budget.clone().try_withdraw() && !budget.try_withdraw());
        succeed(&budget, 100);
        assert_eq!((budget.balance(), budget.refused()), (2, 3));
    }

    #[test]
    fn savings_expire() {
        let (budget, hand) = budget(RetryBudget::builder().percent(100).min_per_second(0));
        succeed(&budget, 50);
        hand.advance(Duration::from_millis(9_999));
        assert_eq!(budget.balance(), 50);
        hand.advance(Duration::from_millis(1));
        assert_eq!(budget.balance(), 0, "ten seconds later");
        succeed(&budget, 100);
        hand.advance(Duration::from_secs(5));
        succeed(&budget, 60);
        assert_eq!(budget.balance(), 100, "the most");
        hand.advance(Duration::from_secs(5));
        assert_eq!(budget.balance(), 60, "newer savings replaced older ones");
    }

    #[test]
    fn a_cold_budget_has_what_an_idle_one_has() {
        let (budget, hand) = budget(RetryBudget::builder().percent(0));
        assert_eq!(withdrawn(&budget), 100);
        hand.advance(Duration::from_millis(99));
        assert_eq!(withdrawn(&budget), 0);
        hand.advance(Duration::from_millis(1));
        assert_eq!(withdrawn(&budget), 1, "ten each second");
        hand.advance(Duration::from_secs(2));
        assert_eq!(withdrawn(&budget), 20);
        hand.advance(Duration::from_secs(3600));
        assert_eq!(withdrawn(&budget), 91, "nine whole slots, and 0.1 s of the tenth");
        hand.set(Tick::MAX);
        assert!(budget.balance() <= 100);
    }

    #[test]
    fn an_interval_has_no_more_than_the_bound() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let (budget, hand) = budget(RetryBudget::builder());
            let (mut retries, mut successes) = (0, 0);
            let length = Duration::from_secs(random.u64(1..60));
            let step = length / 500;
            for _ in 0..500 {
                let more = random.u32(0..5);
                succeed(&budget, more);
                successes += u64::from(more);
                retries += (0..random.u32(0..5)).filter(|_| budget.try_withdraw()).count() as u64;
                hand.advance(step);
            }
            assert!(retries <= 100 + 10 * length.as_secs() + successes / 5, "{length:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let text = |builder: RetryBudgetBuilder| builder.build().unwrap_err().to_string();
        let builder = RetryBudget::builder;
        assert_eq!(text(builder().percent(1001)), "percent 1001 is out of range; use 0 to 1000");
        assert!(text(builder().most(0)).starts_with("most 0 saves nothing"));
        assert!(text(builder().ttl(Duration::ZERO)).starts_with("ttl 0ns is out of range"));
        assert!(RetryBudget::grpc(0, 0.1).is_err());
        assert!(RetryBudget::grpc(10, f64::NAN).is_err());
        assert!(RetryBudget::grpc(10, 0.0).is_err());
    }
}
