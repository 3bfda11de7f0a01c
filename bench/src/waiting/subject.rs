//! The limiters, each with the way to wait that its own documentation recommends.

use super::crowd::Rate;
use governor::{DefaultDirectRateLimiter, Jitter, Quota, RateLimiter};
use std::{fmt::Display, num::NonZeroU32, time::Duration};
use tollgate::{Limiter, LimiterBuilder};

/// A limiter that makes its callers wait.
pub(super) trait Waiting: Send + Sync + Sized + 'static {
    /// Makes one. It is called on the runtime.
    fn new(rate: Rate) -> Result<Self, String>;

    /// Waits for this many permits.
    fn acquire(&self, cost: u64) -> impl Future<Output = Result<(), String>> + Send;
}

pub(super) fn text(error: impl Display) -> String {
    error.to_string()
}

fn nonzero(value: u64) -> Result<NonZeroU32, String> {
    let small = u32::try_from(value).ok().and_then(NonZeroU32::new);
    small.ok_or_else(|| format!("governor takes 1 to 2^32 - 1, not {value}"))
}

/// governor: a refused caller sleeps until it could pass, and tries again.
pub(super) struct Governor(pub(super) DefaultDirectRateLimiter);

impl Waiting for Governor {
    fn new(rate: Rate) -> Result<Self, String> {
        let quota = Quota::per_second(nonzero(rate.per_second)?).allow_burst(nonzero(rate.burst)?);
        Ok(Self(RateLimiter::direct(quota)))
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        if cost == 1 {
            self.0.until_ready().await;
            return Ok(());
        }
        self.0.until_n_ready(nonzero(cost)?).await.map_err(text)
    }
}

/// The same, and sleeps a little longer, at random.
pub(super) struct JitteredGovernor(Governor);

impl Waiting for JitteredGovernor {
    fn new(rate: Rate) -> Result<Self, String> {
        Governor::new(rate).map(Self)
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        let jitter = Jitter::up_to(Duration::from_millis(5));
        self.0.0.until_n_ready_with_jitter(nonzero(cost)?, jitter).await.map_err(text)
    }
}

fn leaky_bucket(rate: Rate, fair: bool) -> leaky_bucket::RateLimiter {
    // Its finest interval is a millisecond.
    leaky_bucket::RateLimiter::builder()
        .refill((rate.per_second / 1000) as usize)
        .interval(Duration::from_millis(1))
        .max(rate.burst as usize)
        .initial(rate.burst as usize)
        .fair(fair)
        .build()
}

/// leaky-bucket, with one of the waiting tasks as the one that refills.
pub(super) struct LeakyFair(leaky_bucket::RateLimiter);

impl Waiting for LeakyFair {
    fn new(rate: Rate) -> Result<Self, String> {
        Ok(Self(leaky_bucket(rate, true)))
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        self.0.acquire(cost as usize).await;
        Ok(())
    }
}

/// leaky-bucket, where a task that finds permits may take them past the queue.
pub(super) struct LeakyUnfair(leaky_bucket::RateLimiter);

impl Waiting for LeakyUnfair {
    fn new(rate: Rate) -> Result<Self, String> {
        Ok(Self(leaky_bucket(rate, false)))
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        self.0.acquire(cost as usize).await;
        Ok(())
    }
}

/// async-rate-limiter: books a time and sleeps; has no costs.
pub(super) struct AsyncRateLimiter(async_rate_limiter::RateLimiter);

impl Waiting for AsyncRateLimiter {
    fn new(rate: Rate) -> Result<Self, String> {
        let limiter = async_rate_limiter::RateLimiter::new(rate.per_second as usize);
        limiter.burst(rate.burst as usize);
        Ok(Self(limiter))
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        if cost != 1 {
            return Err(format!("async-rate-limiter takes one permit at a time, not {cost}"));
        }
        self.0.acquire().await;
        Ok(())
    }
}

fn builder(rate: Rate) -> LimiterBuilder {
    Limiter::builder(tollgate::Quota::per_second(rate.per_second).burst(rate.burst))
}

/// A limiter without a queue: books a time, and sleeps until then.
pub(super) struct Reserving(pub(super) Limiter);

impl Reserving {
    /// Books permits and returns how long to wait for them.
    pub(super) fn book(&self, cost: u64) -> Result<Duration, String> {
        let reservation = self.0.reserve(cost).map_err(text)?;
        let act_at = reservation.act_at();
        reservation.keep();
        Ok(act_at.since(self.0.now()))
    }
}

impl Waiting for Reserving {
    fn new(rate: Rate) -> Result<Self, String> {
        builder(rate).build().map(Self).map_err(text)
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        let wait = self.book(cost)?;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }
}

/// More than the tasks of any table here.
const WAITING_MAX: usize = 20_000;

/// tollgate's queue, in the order of arrival.
pub(super) struct Fifo(Limiter);

impl Fifo {
    /// Waits for one permit on this thread.
    pub(super) fn acquire_blocking(&self) -> Result<(), String> {
        self.0.acquire().block().map(drop).map_err(text)
    }
}

impl Waiting for Fifo {
    fn new(rate: Rate) -> Result<Self, String> {
        builder(rate).max_waiting(WAITING_MAX).build().map(Self).map_err(text)
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        self.0.acquire_n(cost).await.map(drop).map_err(text)
    }
}

/// tollgate's queue, newest first.
pub(super) struct NewestFirst(Limiter);

impl Waiting for NewestFirst {
    fn new(rate: Rate) -> Result<Self, String> {
        builder(rate).max_waiting(WAITING_MAX).newest_first().build().map(Self).map_err(text)
    }

    async fn acquire(&self, cost: u64) -> Result<(), String> {
        self.0.acquire_n(cost).await.map(drop).map_err(text)
    }
}
