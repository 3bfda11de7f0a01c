//! How many repeats a client may afford.
//!
//! If all calls of all clients are repeated three times when a server is overloaded, its load
//! quadruples, and it never recovers. A budget ties repeats to successes: as long as most calls pass,
//! the few that do not are repeated; when most fail, repeats dry up.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tollgate::{Clock, Limiter, Quota, QuotaError};

/// What one repeat costs, in hundredths.
const ONE: u64 = 100;

/// How many repeats a client may afford. Clones share it.
///
/// Each success pays in a share of a repeat, and each repeat takes one out. Besides, there are a few
/// each second for clients that call so seldom that shares do not add up.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// What successes have paid in, in hundredths of a repeat.
    balance: AtomicU64,
    per_success: u64,
    most: u64,
    /// What time gives; none if nothing.
    minimum: Option<Limiter>,
}

/// Builds a [`RetryBudget`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RetryBudgetBuilder {
    percent: u32,
    min_per_second: u64,
    most: u32,
    clock: Option<Clock>,
}

impl RetryBudget {
    /// Returns a builder.
    pub const fn builder() -> RetryBudgetBuilder {
        RetryBudgetBuilder { percent: 20, min_per_second: 1, most: 100, clock: None }
    }

    /// Returns how many repeats successes have paid for, not counting those that time gives.
    #[must_use]
    pub fn balance(&self) -> u64 {
        // ORDERING: Relaxed, here and below. The balance is one word and publishes nothing else.
        self.shared.balance.load(Relaxed) / ONE
    }

    /// Pays in for a success.
    pub(super) fn deposit(&self) {
        let Shared { balance, per_success, most, .. } = &*self.shared;
        let paid = |balance: u64| (balance < *most).then(|| (balance + per_success).min(*most));
        // A full balance is not written to: that is the usual case.
        let _full = balance.fetch_update(Relaxed, Relaxed, paid);
    }

    /// Takes one repeat out, if there is one.
    pub(super) fn withdraw(&self) -> bool {
        let taken = |balance: u64| balance.checked_sub(ONE);
        self.shared.balance.fetch_update(Relaxed, Relaxed, taken).is_ok()
            || self
                .shared
                .minimum
                .as_ref()
                .is_some_and(|limiter| limiter.try_acquire().is_allowed())
    }
}

impl RetryBudgetBuilder {
    /// Sets how many percent of the successes may be repeats, by default 20.
    pub const fn percent(mut self, percent: u32) -> Self {
        self.percent = percent;
        self
    }

    /// Sets how many repeats there are each second in any case, by default 1.
    pub const fn min_per_second(mut self, count: u64) -> Self {
        self.min_per_second = count;
        self
    }

    /// Sets how many repeats may be saved up by successes, by default 100.
    pub const fn most(mut self, most: u32) -> Self {
        self.most = most;
        self
    }

    /// Sets the clock, by default [`Clock::tokio`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the budget. It starts with what one second gives.
    ///
    /// # Errors
    ///
    /// When so many per second are more than a quota can have.
    pub fn build(self) -> Result<RetryBudget, QuotaError> {
        let minimum = match self.min_per_second {
            0 => None,
            count => {
                let clock = self.clock.unwrap_or_else(Clock::tokio);
                Some(Limiter::builder(Quota::per_second(count)).clock(clock).build()?)
            }
        };
        let shared = Shared {
            balance: AtomicU64::new(0),
            per_success: self.percent.into(),
            most: u64::from(self.most) * ONE,
            minimum,
        };
        Ok(RetryBudget { shared: Arc::new(shared) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn successes_pay_for_repeats() {
        let budget = RetryBudget::builder().percent(20).min_per_second(0).most(2).build().unwrap();
        assert!(!budget.withdraw());
        (0..4).for_each(|_| budget.deposit());
        assert!(!budget.withdraw());
        budget.deposit();
        assert_eq!(budget.balance(), 1);
        assert!(budget.clone().withdraw() && !budget.withdraw());
        (0..100).for_each(|_| budget.deposit());
        assert_eq!(budget.balance(), 2);
    }

    #[test]
    fn time_gives_a_minimum() {
        let (clock, hand) = Clock::manual();
        let builder = RetryBudget::builder().percent(0).min_per_second(2);
        let budget = builder.clock(clock).build().unwrap();
        assert!(budget.withdraw() && budget.withdraw() && !budget.withdraw());
        hand.advance(Duration::from_millis(500));
        assert!(budget.withdraw() && !budget.withdraw());
        hand.advance(Duration::from_secs(100));
        assert!(budget.withdraw() && budget.withdraw() && !budget.withdraw());
    }
}
