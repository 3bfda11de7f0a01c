//! The state of a stack, for operators and health checks.

use super::{observe::State, parts::Parts};
use crate::{
    TimeoutLayer,
    client::{PaceCounts, PaceLayer},
    timeout::TimeoutCounts,
};
use std::{fmt, sync::Arc};
use tollgate::{
    Breaker, BreakerCounts, BreakerState, Priority, RetryBudget, RetryCounts, RetryPolicy,
    adaptive::LimitReason, hedge::HedgeCounts, hedge::HedgePolicy,
};

/// Shows the state of every part of a stack, and controls its breaker. Clones share it.
///
/// Made by [`ClientStack::handle`](super::ClientStack::handle) and
/// [`ServerStack::handle`](super::ServerStack::handle).
///
/// | I want to | use |
/// |---|---|
/// | know what the stack does with a call, and why in that order | [`explain`](Self::explain) |
/// | see the state of all parts | [`report`](Self::report), which prints a line for each |
/// | take the dependency out of service, or force calls through | [`breaker`](Self::breaker): `hold_open`, `hold_closed`, `automatic` |
///
/// # Examples
///
/// ```
/// use tollgate::Breaker;
/// use tollgate_tower::{BreakerLayer, ClientStack};
///
/// let breaker = BreakerLayer::builder(Breaker::builder().build()?).build()?;
/// let stack = ClientStack::builder("payments").breaker(breaker).build()?;
/// let handle = stack.handle();
/// handle.breaker().ok_or("it has one")?.hold_open();
/// assert!(handle.report().to_string().contains("breaker: held_open"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StackHandle {
    pub(super) state: Arc<State>,
}

impl StackHandle {
    /// Returns a line for each part, from the outside in: its settings, and the reason for its
    /// place.
    #[must_use]
    pub fn explain(&self) -> String {
        self.state.parts.to_string()
    }

    /// Returns the name of the stack.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.parts.name
    }

    /// Returns the breaker, to observe it or to hold it open or closed; `None` if there is none, or
    /// one for each key.
    #[must_use]
    pub fn breaker(&self) -> Option<&Breaker> {
        self.state.parts.one_breaker()
    }

    /// Returns the budget of retries and hedges.
    #[must_use]
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.state.parts.budget()
    }

    /// Returns the state of all parts at this moment.
    #[must_use]
    pub fn report(&self) -> StackReport {
        self.state.report_breaker();
        StackReport::new(&self.state)
    }
}

/// The counts of a stack's calls, by result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackCounts {
    /// Calls that the service answered, with any status.
    pub answered: u64,
    /// Calls that a part refused, by the part; parts that refused none are left out.
    pub refused: Vec<(&'static str, u64)>,
    /// Calls that a timeout ended before there was a response.
    pub timed_out: u64,
    /// Calls that ended with an error of the service.
    pub failed: u64,
    /// Calls of any of these kinds that the fallback answered.
    pub degraded: u64,
}

/// A limit on calls in flight, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReport {
    /// The part: `concurrency`, `shed` or `bulkhead`.
    pub part: &'static str,
    /// The limit; with keys, that of each key.
    pub limit: u64,
    /// Calls in flight, all keys together.
    pub in_flight: u64,
    /// Calls that wait for a slot, all keys together.
    pub waiting: u64,
    /// Why an adaptive limit has this value.
    pub reason: Option<LimitReason>,
}

/// The state of all parts of a stack at one moment; its text has a line for each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackReport {
    /// The counts of the calls.
    pub calls: StackCounts,
    /// The breaker, if one serves all calls.
    pub breaker: Option<(BreakerState, BreakerCounts)>,
    /// The counts of the retry part.
    pub retry: Option<RetryCounts>,
    /// The counts of the hedge part.
    pub hedge: Option<HedgeCounts>,
    /// How many retries or hedges the budget allows now.
    pub budget: Option<u64>,
    /// The probability with which the client refuses a call of normal priority.
    pub throttle: Option<f64>,
    /// The counts of the pace part.
    pub pace: Option<PaceCounts>,
    /// Limits on calls in flight.
    pub limits: Vec<LimitReport>,
    /// Calls that the total timeout ended.
    pub total_timeout: Option<TimeoutCounts>,
    /// Calls that the attempt timeout ended.
    pub attempt_timeout: Option<TimeoutCounts>,
}

impl Parts {
    pub(super) fn budget(&self) -> Option<&RetryBudget> {
        let of_hedge = || self.hedge.as_ref().map(HedgePolicy::budget);
        self.retry.as_ref().map(RetryPolicy::budget).or_else(of_hedge)
    }

    pub(super) fn throttle_probability(&self) -> Option<f64> {
        self.throttle.as_ref().map(|it| it.refusal_probability(Priority::NORMAL))
    }

    pub(super) fn limit_reports(&self) -> impl Iterator<Item = LimitReport> {
        self.limits.iter().map(|(part, limit)| limit.report(part))
    }
}

impl StackReport {
    fn new(state: &State) -> Self {
        let parts = &state.parts;
        Self {
            calls: state.counts(),
            breaker: parts.one_breaker().map(|it| (it.state(), it.counts())),
            retry: parts.retry.as_ref().map(RetryPolicy::counts),
            hedge: parts.hedge.as_ref().map(HedgePolicy::counts),
            budget: parts.budget().map(RetryBudget::balance),
            throttle: parts.throttle_probability(),
            pace: parts.pace.as_ref().map(PaceLayer::counts),
            limits: parts.limit_reports().collect(),
            total_timeout: parts.total.as_ref().map(TimeoutLayer::counts),
            attempt_timeout: parts.attempt.as_ref().map(TimeoutLayer::counts),
        }
    }
}

impl fmt::Display for StackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StackCounts { answered, refused, timed_out, failed, degraded } = &self.calls;
        write!(f, "calls: {answered} answered, {timed_out} timed out, {failed} failed")?;
        refused.iter().try_for_each(|(part, count)| write!(f, ", {count} refused by {part}"))?;
        writeln!(f, "; {degraded} degraded")?;
        if let Some((state, counts)) = &self.breaker {
            let (refused, opened) = (counts.refused, counts.opened);
            writeln!(f, "breaker: {}, opened {opened} times, {refused} refused", state.name())?;
        }
        if let Some(retry) = &self.retry {
            let (retries, out_of_budget) = (retry.retries, retry.out_of_budget);
            writeln!(f, "retry: {retries} retries, {out_of_budget} out of budget")?;
        }
        if let Some(hedge) = &self.hedge {
            writeln!(f, "hedge: {} hedges, {} won", hedge.hedges, hedge.wins)?;
        }
        if let Some(budget) = &self.budget {
            writeln!(f, "budget: {budget} retries or hedges")?;
        }
        if let Some(probability) = &self.throttle {
            writeln!(f, "self-throttle: refuses with probability {probability:.2}")?;
        }
        if let Some(pace) = &self.pace {
            writeln!(
                f,
                "pace: {} sent, {} waited, {} refused",
                pace.sent, pace.waited, pace.refused
            )?;
        }
        for LimitReport { part, limit, in_flight, waiting, reason } in &self.limits {
            write!(f, "{part}: {in_flight} of {limit} in flight, {waiting} waiting")?;
            reason.map_or(Ok(()), |reason| write!(f, " ({reason:?})"))?;
            writeln!(f)?;
        }
        for (part, counts) in
            [("total timeout", &self.total_timeout), ("attempt timeout", &self.attempt_timeout)]
        {
            if let Some(it) = counts {
                let late = it.attempt + it.head + it.body_idle + it.total;
                writeln!(f, "{part}: {late} late, {} not run", it.not_run)?;
            }
        }
        Ok(())
    }
}
