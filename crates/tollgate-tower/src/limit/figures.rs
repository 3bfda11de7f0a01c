//! The state of a limit after a correction, and the part of a charge that has not refilled.

use std::time::Duration;
use tollgate::{Algorithm, Answer, Decision, Outcome, Quota, Tick};

/// Returns a decision as it would have been with another cost.
pub(super) fn corrected(
    decision: &Decision,
    (quota, algorithm): (Quota, Algorithm),
    actual: u64,
) -> Decision {
    let estimate = decision.cost();
    let (less, more) = (estimate.saturating_sub(actual), actual.saturating_sub(estimate));
    let left = decision.remaining().saturating_add(less);
    let used = decision.limit().saturating_sub(decision.remaining());
    let after = used.saturating_sub(less).saturating_add(more);
    // The number of windows that the excess over the limit fills, one limit each.
    let carried = after.saturating_sub(1).checked_div(decision.limit()).unwrap_or(0);
    let excess = quota.period().saturating_mul(u32::try_from(carried).unwrap_or(u32::MAX));
    let moved = |at: Tick| match algorithm {
        Algorithm::Gcra => {
            let sooner = at.as_nanos().saturating_sub(time_of(quota, less));
            let later = Duration::from_nanos(time_of(quota, more));
            // Permits that are back already do not come back once more.
            Tick::from_nanos(sooner).max(decision.at()).saturating_add(later)
        }
        // All permits are back when less than one of the used permits still counts. They fade
        // through the window after this one, or after the last one that an excess fills.
        Algorithm::SlidingCounter => {
            let one_of = |used: u64| quota.period().as_nanos() as u64 / used.max(1);
            let later = at.saturating_add(Duration::from_nanos(one_of(used)) + excess);
            let sooner = one_of(after.saturating_sub(carried.saturating_mul(decision.limit())));
            Tick::from_nanos(later.as_nanos().saturating_sub(sooner))
        }
        // An excess takes the places of the entries that leave.
        Algorithm::SlidingLog => at.saturating_add(excess),
        // A window ends at its fixed time.
        _ => at,
    };
    Decision::answered(Answer {
        outcome: Outcome::Allowed,
        at: decision.at(),
        // The cost of the same request when it comes again.
        cost: estimate,
        limit: decision.limit(),
        remaining: left.saturating_sub(more).min(decision.limit()),
        retry_at: decision.at(),
        full_at: decision.full_at().map(moved),
    })
}

/// Returns how much of a charge has not refilled yet. Only what is certain counts.
pub(super) fn still_out(
    decision: &Decision,
    (quota, algorithm): (Quota, Algorithm),
    now: Tick,
) -> u64 {
    let cost = decision.cost();
    let Some(full_at) = decision.full_at() else { return cost };
    match algorithm {
        // Permits come back in the order in which they were taken, these last.
        Algorithm::Gcra => permits_in(quota, full_at.since(now)).min(cost),
        // It counts in the window that ends a period before all is back, and in no later window by
        // itself.
        Algorithm::SlidingCounter if full_at.since(now) <= quota.period() => 0,
        _ if full_at <= now => 0,
        _ => cost,
    }
}

/// Returns the nanoseconds in which this many permits come back.
pub(super) fn time_of(quota: Quota, permits: u64) -> u64 {
    let ns = quota.period().as_nanos().checked_mul(u128::from(permits));
    let ns = ns.and_then(|ns| ns.checked_div(u128::from(quota.count())));
    ns.map_or(u64::MAX, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Returns the whole permits that come back in a time.
fn permits_in(quota: Quota, time: Duration) -> u64 {
    let permits = time.as_nanos().checked_mul(u128::from(quota.count()));
    let permits = permits.and_then(|permits| permits.checked_div(quota.period().as_nanos()));
    permits.map_or(u64::MAX, |permits| u64::try_from(permits).unwrap_or(u64::MAX))
}
