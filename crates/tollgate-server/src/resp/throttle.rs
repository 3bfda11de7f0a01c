//! `CL.THROTTLE` like redis-cell, `THROTTLE` like throttlecrab, and Redis's own commands on their
//! keys.
//!
//! Both share one key space, whose state is a time: the quota comes with each call, and the next
//! call may bring another. They differ in the meaning of the burst. For redis-cell it is the number
//! of calls *beside* the first, so the limit is larger by one; for throttlecrab it is the limit.

use super::{
    command::number,
    parse::Args,
    session::{Batch, Session},
};
use crate::{engine::since, net::Permission};
use std::time::Duration;
use tollgate::{Decision, Quota, store::StoreError};

/// A quota as the call gave it.
struct Given {
    /// How many permits may be taken at once.
    limit: i64,
    count: i64,
    period: i64,
    quantity: i64,
}

/// Why a quota that comes with a call is invalid.
enum Wrong {
    Zero,
    Negative,
    Store(StoreError),
}

impl Given {
    /// Reads the numbers after the key; returns the position of the first that is invalid.
    #[inline]
    fn read(args: &Args<'_>) -> Result<Self, usize> {
        let read = |index: usize| number(args.at(index)).ok_or(index);
        let (burst, count, period) = (read(2)?, read(3)?, read(4)?);
        let quantity = if args.len() > 5 { read(5)? } else { 1 };
        Ok(Self { limit: burst, count, period, quantity })
    }

    fn quota(&self) -> Result<Quota, Wrong> {
        if self.count == 0 || self.period == 0 {
            return Err(Wrong::Zero);
        }
        let (Ok(count), Ok(period)) = (u64::try_from(self.count), u64::try_from(self.period))
        else {
            return Err(Wrong::Negative);
        };
        // More than one permit per nanosecond: redis-cell's interval is then zero.
        if u128::from(count) > u128::from(period) * 1_000_000_000 {
            return Err(Wrong::Zero);
        }
        // A limit below zero admits as little as a limit of zero.
        let limit = u64::try_from(self.limit).unwrap_or(0);
        Ok(Quota::per(count, Duration::from_secs(period)).burst(limit))
    }

    async fn decide(&self, batch: &Batch<'_>, key: &[u8]) -> Result<Decision, Wrong> {
        let quota = self.quota()?;
        let at = (batch.plan, batch.now);
        let decided = match u64::try_from(self.quantity) {
            Ok(cost) => batch.engine.throttle(at, key, quota, cost).await,
            Err(_) => {
                let cost = self.quantity.unsigned_abs();
                batch.engine.unthrottle(at, key, quota, cost).await
            }
        };
        decided.map_err(Wrong::Store)
    }
}

/// Seconds, rounded up.
#[inline]
fn seconds(time: Duration) -> i64 {
    let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

impl Session {
    /// `CL.THROTTLE key max_burst count period [quantity]`
    pub(super) async fn cl_throttle(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        if args.len() != 5 && args.len() != 6 {
            return self.wrong(format_args!(
                "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> \
                 <period> [<quantity>]"
            ));
        }
        let mut given = match Given::read(args) {
            Ok(given) => given,
            Err(index) => {
                let text = String::from_utf8_lossy(args.at(index));
                return self.wrong(format_args!(
                    "Cell error: Store error: Couldn't parse as integer: {text:.128}"
                ));
            }
        };
        if given.quantity < 0 && !self.may(Permission::Settle) {
            return;
        }
        given.limit = given.limit.saturating_add(1);
        let decision = match given.decide(batch, args.at(1)).await {
            Ok(decision) => decision,
            Err(Wrong::Zero) => {
                return self
                    .wrong(format_args!("Cell error: Store error: Zero rates are not supported"));
            }
            Err(Wrong::Negative) => {
                return self.wrong(format_args!(
                    "Cell error: Store error: Negative rates are not supported"
                ));
            }
            Err(Wrong::Store(error)) => {
                return self.wrong(format_args!("Cell error: Store error: {error}"));
            }
        };
        // By redis-cell's arithmetic, a limit below zero denies even a quantity of zero.
        let is_limited = decision.is_denied() || given.limit < 0;
        self.tally.count(!is_limited);
        let retry_after = match decision.retry_after(since(&decision, batch.now)) {
            Some(wait) if is_limited => seconds(wait).max(1),
            _ => -1,
        };
        let reset_after = decision.reset_after(since(&decision, batch.now)).map_or(-1, seconds);
        self.replies.array(5);
        self.replies.int(i64::from(is_limited));
        self.replies.int(given.limit);
        self.replies.count(decision.remaining());
        self.replies.int(retry_after);
        self.replies.int(reset_after);
    }

    /// `THROTTLE key max_burst count period [quantity]`
    pub(super) async fn throttle(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        if args.len() != 5 && args.len() != 6 {
            return self
                .wrong(format_args!("ERR wrong number of arguments for 'throttle' command"));
        }
        let given = match Given::read(args) {
            Ok(given) => given,
            Err(index) => {
                let names = ["max_burst", "count_per_period", "period", "quantity"];
                return self.wrong(format_args!("ERR invalid {}", names[(index - 2).min(3)]));
            }
        };
        if given.quantity < 0 {
            return self.wrong(format_args!("ERR negative quantity: {}", given.quantity));
        }
        let decided = match given.limit {
            ..=0 => Err(Wrong::Zero),
            _ => given.decide(batch, args.at(1)).await,
        };
        let decision = match decided {
            Ok(decision) => decision,
            Err(Wrong::Store(error)) => return self.wrong(format_args!("ERR {error}")),
            Err(Wrong::Zero | Wrong::Negative) => {
                return self.wrong(format_args!("ERR invalid rate limit parameters"));
            }
        };
        self.tally.count(decision.is_allowed());
        let wait = decision
            .retry_after(since(&decision, batch.now))
            .map_or(0, |wait| seconds(wait).max(1));
        self.replies.array(5);
        self.replies.int(i64::from(decision.is_allowed()));
        self.replies.int(given.limit);
        self.replies.count(decision.remaining());
        self.replies.int(decision.reset_after(since(&decision, batch.now)).map_or(-1, seconds));
        self.replies.int(wait);
    }

    /// `DEL key [key ...]`
    pub(super) async fn del(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let mut count = 0;
        for key in args.iter_from(1) {
            match batch.engine.forget(batch.now, key).await {
                Ok(was_there) => count += i64::from(was_there),
                Err(error) => return self.wrong(format_args!("ERR {error}")),
            }
        }
        self.replies.int(count);
    }

    /// `EXISTS key [key ...]`
    pub(super) async fn exists(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let mut count = 0;
        for key in args.iter_from(1) {
            match batch.engine.lives(batch.now, key).await {
                Ok(left) => count += i64::from(left.is_some()),
                Err(error) => return self.wrong(format_args!("ERR {error}")),
            }
        }
        self.replies.int(count);
    }

    /// `TTL key`, `PTTL key`: in the given unit, rounded up.
    pub(super) async fn ttl(&mut self, batch: &Batch<'_>, key: &[u8], unit: fn(Duration) -> i64) {
        match batch.engine.lives(batch.now, key).await {
            Ok(left) => self.replies.int(left.map_or(-2, unit)),
            Err(error) => self.wrong(format_args!("ERR {error}")),
        }
    }
}

/// Returns whole seconds for `TTL`.
pub(super) fn ttl_seconds(left: Duration) -> i64 {
    seconds(left)
}

/// Returns whole milliseconds, rounded up: for `PTTL`, and for the commands of policies.
pub(super) fn milliseconds(time: Duration) -> i64 {
    let whole = time.as_nanos().div_ceil(1_000_000);
    i64::try_from(whole).unwrap_or(i64::MAX)
}
