//! The figures of a limit after a decision: computed once, written by every protocol.

use super::{
    Answer, Code, Part, Status,
    special::{Mode, PartLimit},
};
use crate::{config::Unit, plan::Plan};
use std::time::Duration;
use tollgate::{Algorithm, Decision, Tick};

/// The state of one limit after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReport<'p> {
    /// The policy's name, or its id if it has none.
    pub policy: &'p str,
    /// How many permits a caller can take at once: the burst if there is one, otherwise `count`.
    pub limit: u64,
    /// How many permits are left after the decision: never more than `limit`.
    pub remaining: u64,
    /// When all permits are back: for a fixed window, when it ends; for a blocked key, when the
    /// block ends. [`Duration::MAX`] if they never come back.
    pub reset_after: Duration,
    /// When this limit would let the same request pass; `None` if it does so now, or if no wait helps.
    pub retry_after: Option<Duration>,
    /// How many permits come in `per`.
    pub count: u64,
    /// The time in which `count` permits come.
    pub per: Duration,
}

impl LimitReport<'_> {
    /// Returns the unit of time in which `limit` permits come, if there is one: for 10/s burst 600,
    /// the minute.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        if self.limit == self.count {
            return Unit::of(self.per);
        }
        let (limit, count) = (u128::from(self.limit), u128::from(self.count));
        Unit::ALL.into_iter().find(|unit| {
            // OVERFLOW: a limit is below 2^50, and a period in nanoseconds below 2^64.
            limit * self.per.as_nanos() == count * unit.length().as_nanos()
        })
    }
}

/// Returns the time from which waits are measured: a request that has waited for a store is
/// answered later than it came.
pub(crate) fn since(decision: &Decision, now: Tick) -> Tick {
    now.max(decision.at())
}

impl Answer {
    /// Returns the report of the whole answer: that of the limit that [bound](Self::bound_part),
    /// without a wait if the request passes.
    #[must_use]
    pub fn report<'p>(&self, plan: &'p Plan, now: Tick) -> Option<LimitReport<'p>> {
        let report = self.report_of(plan, self.bound_part()?, now)?;
        let retry_after = report.retry_after.filter(|_| !self.allowed);
        Some(LimitReport { retry_after, ..report })
    }

    /// Returns the limit that decided: of those that deny, the one with the longest wait; if none
    /// denies, the one with the least remaining. Limits that cannot deny the request (shadow mode,
    /// a spent quota beside others) count only if there is no other.
    #[must_use]
    pub fn bound_part(&self) -> Option<&Part> {
        self.parts.iter().filter(|part| part.has_figures()).min_by_key(|part| part.rank())
    }

    /// Returns the report of the limit that decided about a descriptor; `None` if no limit applies.
    #[must_use]
    pub fn report_at<'p>(
        &self,
        plan: &'p Plan,
        status: &Status,
        now: Tick,
    ) -> Option<LimitReport<'p>> {
        self.report_of(plan, &self.parts[status.part?], now)
    }

    /// Returns the report of a limit; `None` if it is unlimited, or passes without a look at its
    /// state.
    #[must_use]
    pub fn report_of<'p>(&self, plan: &'p Plan, part: &Part, now: Tick) -> Option<LimitReport<'p>> {
        let PartLimit { count, per, capacity, .. } = part.limit.filter(|_| part.has_figures())?;
        let policy = plan.rule(part.rule).label();
        let block = part.blocked_until.map(|until| until.since(now));
        let decision = part.decision.as_ref();
        // A limit that admits the request may be peeked at again while it is in debt.
        let retry = decision.filter(|it| it.is_denied() && part.code != Code::Allowed);
        Some(LimitReport {
            policy,
            limit: decision.map_or(capacity, Decision::limit),
            remaining: decision.map_or(0, Decision::remaining),
            reset_after: block.unwrap_or_else(|| self.reset_after(part, now)),
            retry_after: block
                .or_else(|| retry.and_then(|denied| denied.retry_after(since(denied, now)))),
            count,
            per,
        })
    }

    /// Returns when all permits of a limit are back.
    fn reset_after(&self, part: &Part, now: Tick) -> Duration {
        let (at, reset) = match &part.decision {
            Some(decision) => {
                let at = since(decision, now);
                // A bucket that never refills reports the longest time.
                (at, decision.reset_after(at).unwrap_or(Duration::MAX))
            }
            None => (now, Duration::ZERO),
        };
        match part.limit {
            Some(limit) if reset.is_zero() => {
                self.window_end(limit, at, part.decision.is_none()).unwrap_or(reset)
            }
            _ => reset,
        }
    }

    /// Returns when the window ends that is in force, or that would begin now.
    fn window_end(&self, limit: PartLimit, now: Tick, is_closed: bool) -> Option<Duration> {
        match limit.algorithm {
            Algorithm::FixedWindow => {
                let (wall, per) = (self.epoch.as_nanos() + u128::from(now.as_nanos()), limit.per);
                let into = wall.checked_rem(per.as_nanos())?;
                // OVERFLOW: less than a period, which is below 2^64 nanoseconds.
                Some(per.saturating_sub(Duration::from_nanos(into as u64)))
            }
            Algorithm::AnchoredWindow => Some(limit.per),
            _ => is_closed.then_some(limit.per),
        }
    }
}

impl Part {
    /// Tells whether the limit has figures: it is not unlimited, and was evaluated, or refused
    /// without evaluation.
    pub(super) const fn has_figures(&self) -> bool {
        let passes = matches!(
            self.code,
            Code::Allowed | Code::Bypassed | Code::FailedOpen | Code::Unlimited
        );
        self.limit.is_some() && (self.decision.is_some() || !passes)
    }

    /// Orders the limits of an answer: the deciding one is the least.
    pub(super) fn rank(&self) -> (u8, u64) {
        match self.code {
            code if code.is_refused() => (0, u64::MAX - self.waits_until()),
            Code::QuotaSpent => (2, 0),
            _ if self.mode == Mode::Shadow => (2, self.remaining()),
            _ => (1, self.remaining()),
        }
    }

    pub(super) fn remaining(&self) -> u64 {
        self.decision.as_ref().map_or(u64::MAX, Decision::remaining)
    }

    /// Returns when a denying limit may admit, in nanoseconds: the largest number if never, 0 if
    /// unknown.
    fn waits_until(&self) -> u64 {
        match (self.blocked_until, &self.decision) {
            (Some(until), _) => until.as_nanos(),
            (None, Some(decision)) => decision.retry_at().map_or(u64::MAX, Tick::as_nanos),
            (None, None) if matches!(self.code, Code::FailedClosed | Code::Full) => 0,
            (None, None) => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_the_unit_in_which_it_comes() {
        for (limit, count, per_secs, unit) in [
            (10, 10, 1, Some(Unit::Second)),
            (20, 10, 1, None),
            (600, 10, 1, Some(Unit::Minute)),
            (10, 600, 60, Some(Unit::Second)),
            (5, 5, 30, None),
            (0, 0, 60, Some(Unit::Minute)),
        ] {
            let per = Duration::from_secs(per_secs);
            let (policy, remaining, reset_after, retry_after) = ("", 0, Duration::ZERO, None);
            let report =
                LimitReport { policy, limit, remaining, reset_after, retry_after, count, per };
            assert_eq!(report.unit(), unit, "{report:?}");
        }
    }
}
