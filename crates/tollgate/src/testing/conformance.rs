//! The suite.

mod ad_hoc;
mod decisions;
mod reserving;
mod trace;

use super::Subject;
use crate::{
    Algorithm, Decision, Quota,
    store::{Demand, Operation, Policy, Store, StoreError},
};
use std::{error::Error, fmt, time::Duration};

/// The results of the suite.
#[derive(Clone, Debug, Default)]
#[must_use = "a report that is not read proves nothing"]
pub struct Report {
    /// Each check by its name, with what was wrong if anything was.
    pub checks: Vec<(String, Result<(), String>)>,
    /// Each check that could not be finished, with the operation that the store does not support.
    pub unsupported: Vec<(String, Operation)>,
}

impl Report {
    /// Tells whether every check passed that could be finished, and there were any.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|(_, outcome)| outcome.is_ok())
    }

    /// Notes the outcome of a check. `missing` is the first operation in it that the store lacks.
    fn note(&mut self, name: String, outcome: Checked, missing: Option<&Operation>) {
        let lacks = |error: &Fault| error.downcast_ref().is_some_and(StoreError::is_unsupported);
        let outcome = match (missing, outcome) {
            (Some(missing), Err(error)) if lacks(&error) => {
                return self.unsupported.push((name, *missing));
            }
            (Some(missing), Ok(())) => Err(format!("`operations` lacks {}", missing.name())),
            (_, outcome) => outcome.map_err(|error| error.to_string()),
        };
        self.checks.push((name, outcome));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.checks {
            match outcome {
                Ok(()) => writeln!(f, "ok           {name}")?,
                Err(text) => writeln!(f, "FAILED       {name}: {text}")?,
            }
        }
        for (name, operation) in &self.unsupported {
            writeln!(f, "unsupported  {name}: needs {}", operation.name())?;
        }
        Ok(())
    }
}

/// The fault that a check has found.
type Fault = Box<dyn Error + Send + Sync>;

/// The result of a check.
type Checked<T = ()> = Result<T, Fault>;

/// Complains unless both are equal.
macro_rules! same {
    ($left:expr, $right:expr, $($about:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let about = format!($($about)+);
            return Err(format!("{about}: {left:?}, and should be {right:?}").into());
        }
    }};
}

/// Complains unless it is true.
macro_rules! holds {
    ($fact:expr, $($about:tt)+) => {
        if !$fact {
            return Err(format!($($about)+).into());
        }
    };
}
use {holds, same};

/// Runs every check, each on a store of its own from `make`. A check of an operation that the store
/// does not [support](Subject::operations) must end with [`StoreError::unsupported`].
pub async fn run<S: Subject>(make: impl AsyncFn() -> S) -> Report {
    let mut report = Report::default();
    macro_rules! checks {
        ($($module:ident :: $check:ident $([$($needed:ident)+])?,)+) => {$(
            let (name, subject) = (stringify!($check).replace('_', " "), make().await);
            let needed: &[Operation] = &[$($(Operation::$needed),+)?];
            let missing = needed.iter().find(|needed| !subject.operations().contains(needed));
            report.note(name, $module::$check(&subject).await, missing);
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
        decisions::forcing_books_a_debt[Force],
        decisions::a_refund_never_fills_above_full[Refund],
        decisions::a_reset_key_is_as_if_never_seen[Reset],
        decisions::another_quota_keeps_what_is_used,
        decisions::a_policy_with_another_quota_takes_over,
        decisions::many_at_once_get_exactly_the_limit,
        decisions::overlapping_sets_at_once_leave_no_trace_of_refusals,
        reserving::a_reservation_that_never_was_cannot_be_settled[Settle],
        reserving::a_reservation_can_be_settled_once[Reserve Settle],
        reserving::a_reservation_is_cancelled_by_costs_of_zero[Reserve Settle],
        reserving::a_refused_reservation_takes_nothing[Reserve],
        reserving::an_expired_reservation_stays_spent[Reserve Settle],
        reserving::what_was_used_is_charged_as_far_as_it_goes[Reserve Settle],
        reserving::a_budget_that_hardly_comes_back_is_used_up[Reserve Settle],
        reserving::a_lease_takes_what_there_is[Lease Settle],
        reserving::what_is_taken_up_to_a_cost_is_spent[UpTo],
        reserving::a_permit_that_never_was_is_not_renewed[Renew],
        reserving::a_permit_that_never_was_cannot_leave[Leave],
        reserving::permits_are_limited_by_name_and_key[Enter Leave],
        reserving::permits_end_unless_renewed[Enter Renew Leave],
        ad_hoc::an_ad_hoc_quota_comes_with_the_call,
        ad_hoc::an_ad_hoc_limit_counts_in_its_window,
        ad_hoc::ad_hoc_demands_are_charged_beside_others,
        ad_hoc::ad_hoc_demands_know_every_verb[Force Refund Reset Reserve Settle Lease],
        trace::decides_as_the_core_does,
    );
    report
}

/// Complains unless a call is refused as nonsense.
fn invalid<T>(result: Result<T, StoreError>, about: &str) -> Checked {
    match result {
        Err(error) if error.is_invalid() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(format!("{about} was not refused").into()),
    }
}

/// One minute of `limit` permits, by any algorithm.
fn policy(name: &str, limit: u64, algorithm: Algorithm) -> Checked<Policy> {
    Ok(Policy::with_algorithm(name, Quota::per_minute(limit), algorithm)?)
}

async fn take<S: Subject>(
    subject: &S,
    policy: &Policy,
    key: &[u8],
    cost: u64,
) -> Checked<Decision> {
    let mut demands = [Demand::new(policy, key, cost)];
    let decision = subject.store().acquire(&mut demands).await?;
    let own = demands[0].decision().ok_or("a demand did not receive its decision")?;
    same!(own.is_allowed(), decision.is_allowed(), "a single demand's own decision");
    Ok(decision)
}

/// Returns how many permits a key has left.
async fn left<S: Subject>(subject: &S, policy: &Policy, key: &[u8]) -> Checked<u64> {
    Ok(subject.store().peek(&mut [Demand::new(policy, key, 0)]).await?.remaining())
}

fn wait<S: Subject>(subject: &S, decision: &Decision) -> Option<Duration> {
    decision.retry_after(subject.store().clock().now())
}
