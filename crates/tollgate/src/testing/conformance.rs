//! The suite.

mod ad_hoc;
mod decisions;
mod reserving;
mod trace;

use super::Subject;
use crate::{
    Algorithm, Decision, Quota,
    store::{Demand, Policy, Store, StoreError},
};
use std::{fmt, time::Duration};

/// What became of the suite.
#[derive(Clone, Debug, Default)]
#[must_use = "a report that is not read proves nothing"]
pub struct Report {
    /// Each check by its name, with what was wrong if anything was.
    pub checks: Vec<(String, Result<(), String>)>,
}

impl Report {
    /// Tells whether every check passed, and there were any.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|(_, outcome)| outcome.is_ok())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.checks {
            match outcome {
                Ok(()) => writeln!(f, "ok      {name}")?,
                Err(text) => writeln!(f, "FAILED  {name}: {text}")?,
            }
        }
        Ok(())
    }
}

/// What a check returns: what was wrong, if anything was.
type Checked = Result<(), String>;

/// Complains unless both are equal.
macro_rules! same {
    ($left:expr, $right:expr, $($about:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let about = format!($($about)+);
            return Err(format!("{about}: {left:?}, and should be {right:?}"));
        }
    }};
}

/// Complains unless it is true.
macro_rules! holds {
    ($fact:expr, $($about:tt)+) => {
        if !$fact {
            return Err(format!($($about)+));
        }
    };
}
use {holds, same};

/// Runs every check, each on a store of its own from `make`.
pub async fn run<S: Subject>(make: impl AsyncFn() -> S) -> Report {
    let mut report = Report::default();
    macro_rules! checks {
        ($($module:ident :: $check:ident),+ $(,)?) => {$(
            let subject = make().await;
            let outcome = $module::$check(&subject).await;
            report.checks.push((stringify!($check).replace('_', " "), outcome));
        )+};
    }
    checks!(
        decisions::admits_the_limit_and_no_more,
        decisions::a_refused_call_passes_at_its_time_and_not_before,
        decisions::never_is_not_later,
        decisions::a_cost_of_nothing_takes_nothing,
        decisions::several_demands_are_charged_all_or_none,
        decisions::a_key_named_twice_is_charged_the_sum,
        decisions::as_many_demands_as_a_decision_can_name,
        decisions::keys_and_policies_share_nothing,
        decisions::peeking_changes_nothing,
        decisions::forcing_books_a_debt,
        decisions::a_refund_never_fills_above_full,
        decisions::a_reset_key_is_as_if_never_seen,
        decisions::another_quota_keeps_what_is_used,
        decisions::a_policy_with_another_quota_takes_over,
        decisions::many_at_once_get_exactly_the_limit,
        decisions::overlapping_sets_at_once_leave_no_trace_of_refusals,
        reserving::a_reservation_can_be_settled_once,
        reserving::a_reservation_is_cancelled_by_costs_of_zero,
        reserving::a_refused_reservation_takes_nothing,
        reserving::an_expired_reservation_stays_spent,
        reserving::what_was_used_is_charged_as_far_as_it_goes,
        reserving::a_budget_that_hardly_comes_back_is_used_up,
        reserving::a_lease_takes_what_there_is,
        reserving::permits_are_limited_by_name_and_key,
        reserving::permits_end_unless_renewed,
        ad_hoc::an_ad_hoc_quota_comes_with_the_call,
        ad_hoc::an_ad_hoc_limit_counts_in_its_window,
        ad_hoc::ad_hoc_demands_know_every_verb,
        trace::decides_as_the_core_does,
    );
    report
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` wants it")]
fn text(error: StoreError) -> String {
    error.to_string()
}

/// One minute of `limit` permits, by any algorithm.
fn policy(name: &str, limit: u64, algorithm: Algorithm) -> Result<Policy, String> {
    let quota = Quota::per_minute(limit);
    Policy::with_algorithm(name, quota, algorithm).map_err(|error| error.to_string())
}

async fn take<S: Subject>(
    subject: &S,
    policy: &Policy,
    key: &[u8],
    cost: u64,
) -> Result<Decision, String> {
    let mut demands = [Demand::new(policy, key, cost)];
    let decision = subject.store().acquire(&mut demands).await.map_err(text)?;
    let own = demands[0].decision().ok_or("a demand did not receive its decision")?;
    same!(own.is_allowed(), decision.is_allowed(), "a single demand's own decision");
    Ok(decision)
}

/// Returns how many permits a key has left.
async fn left<S: Subject>(subject: &S, policy: &Policy, key: &[u8]) -> Result<u64, String> {
    let mut demands = [Demand::new(policy, key, 0)];
    let decision = subject.store().peek(&mut demands).await.map_err(text)?;
    Ok(decision.remaining())
}

fn wait<S: Subject>(subject: &S, decision: &Decision) -> Option<Duration> {
    decision.retry_after(subject.store().clock().now())
}
