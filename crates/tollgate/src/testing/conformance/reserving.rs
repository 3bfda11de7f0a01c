//! Reservations, leases and permits.

use super::{Checked, holds, invalid, left, policy, same, take};
use crate::{
    Algorithm, Quota,
    store::{Demand, PermitId, Permits, Policy, ReservationId, Store},
    testing::Subject,
};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Reserves for a minute. Returns what to settle.
async fn reserve<S: Subject>(subject: &S, demands: &mut [Demand<'_>]) -> Checked<ReservationId> {
    let reserved = subject.store().reserve(demands, MINUTE).await?;
    Ok(reserved.id.ok_or("nothing was reserved")?)
}

pub(super) async fn a_reservation_that_never_was_cannot_be_settled<S: Subject>(
    subject: &S,
) -> Checked {
    same!(subject.store().settle(ReservationId(u64::MAX), &[1]).await?, false, "settled");
    Ok(())
}

pub(super) async fn a_reservation_can_be_settled_once<S: Subject>(subject: &S) -> Checked {
    let store = subject.store();
    for algorithm in Algorithm::ALL {
        let key = algorithm.name().as_bytes();
        let (calls, tokens) = (policy("calls", 9, algorithm)?, policy("tokens", 100, algorithm)?);
        let mut demands = [Demand::new(&calls, key, 1), Demand::new(&tokens, key, 60)];
        let id = reserve(subject, &mut demands).await?;
        same!(left(subject, &tokens, key).await?, 40, "{algorithm}: left while reserved");
        invalid(store.settle(id, &[1]).await, "one cost for two demands")?;
        same!(store.settle(id, &[1, 25]).await?, true, "{algorithm}: settled");
        same!(left(subject, &tokens, key).await?, 75, "{algorithm}: left after less");
        same!(store.settle(id, &[1, 0]).await?, false, "{algorithm}: twice");
        same!(left(subject, &calls, key).await?, 8, "{algorithm}: the other demand");

        let id = reserve(subject, &mut demands).await?;
        same!(store.settle(id, &[1, 75]).await?, true, "{algorithm}: more");
        same!(left(subject, &tokens, key).await?, 0, "{algorithm}: left after more");
    }
    Ok(())
}

pub(super) async fn a_reservation_is_cancelled_by_costs_of_zero<S: Subject>(
    subject: &S,
) -> Checked {
    let store = subject.store();
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("cancel", 10, algorithm)?, algorithm.name().as_bytes());
        let mut demands = [Demand::new(&policy, key, 4)];
        let first = reserve(subject, &mut demands).await?;
        let second = reserve(subject, &mut demands).await?;
        for (id, expected) in [(first, 6), (second, 10)] {
            same!(store.settle(id, &[0]).await?, true, "{algorithm}: cancel");
            same!(left(subject, &policy, key).await?, expected, "{algorithm}: left");
        }
        // What time has given back already is not given back again.
        let open = store.reserve(&mut demands, 9 * MINUTE).await?.id.ok_or("refused")?;
        subject.advance(3 * MINUTE).await;
        let _ = take(subject, &policy, key, 5).await?;
        store.settle(open, &[0]).await?;
        same!(left(subject, &policy, key).await?, 5, "{algorithm}: a late cancel");
    }
    Ok(())
}

pub(super) async fn a_refused_reservation_takes_nothing<S: Subject>(subject: &S) -> Checked {
    let (wide, tight) = (policy("wide", 9, Algorithm::Gcra)?, policy("tight", 1, Algorithm::Gcra)?);
    let mut demands = [Demand::new(&wide, b"key", 1), Demand::new(&tight, b"key", 1)];
    reserve(subject, &mut demands).await?;
    let second = subject.store().reserve(&mut demands, MINUTE).await?;
    holds!(second.decision.is_denied() && second.id.is_none(), "the second was not refused");
    same!(left(subject, &wide, b"key").await?, 8, "left of what agreed");
    Ok(())
}

pub(super) async fn an_expired_reservation_stays_spent<S: Subject>(subject: &S) -> Checked {
    let policy = policy("expires", 60, Algorithm::Gcra)?;
    let mut demands = [Demand::new(&policy, b"key", 60)];
    let life = Duration::from_secs(10);
    let id = subject.store().reserve(&mut demands, life).await?.id.ok_or("refused")?;
    subject.advance(life + subject.rounding()).await;
    same!(subject.store().settle(id, &[0]).await?, false, "settled after its end");
    let left = left(subject, &policy, b"key").await?;
    holds!((9..=11).contains(&left), "left is {left}: what ten seconds refill, and no more");
    Ok(())
}

/// More than a debt can hold is no reason to charge nothing.
pub(super) async fn what_was_used_is_charged_as_far_as_it_goes<S: Subject>(subject: &S) -> Checked {
    let store = subject.store();
    for algorithm in Algorithm::ALL {
        let (used, beside) = (policy("used", 20, algorithm)?, policy("beside", 20, algorithm)?);
        for actual in [40, 1_000, 1 << 40, 1 << 47, 1 << 51, 1 << 62, u64::MAX] {
            let key = format!("{algorithm} {actual}").into_bytes();
            let mut demands = [Demand::new(&beside, &key, 2), Demand::new(&used, &key, 1)];
            let first = reserve(subject, &mut demands).await?;
            for id in [first, reserve(subject, &mut demands).await?] {
                let settled = store.settle(id, &[2, actual]).await?;
                same!(settled, true, "{algorithm}: settled to {actual}");
                same!(left(subject, &used, &key).await?, 0, "{algorithm}: left of 20 - {actual}");
                let refused = take(subject, &used, &key, 1).await?;
                holds!(refused.is_denied(), "{algorithm}: {actual} used of 20, and it goes on");
                same!(left(subject, &beside, &key).await?, 16, "{algorithm}: beside");
            }
            if algorithm == Algorithm::Gcra {
                continue;
            }
            subject.advance(2 * MINUTE + subject.rounding()).await;
            if matches!(algorithm, Algorithm::SlidingCounter | Algorithm::SlidingLog) {
                same!(left(subject, &used, &key).await?, 0, "{algorithm}: it is carried");
                continue;
            }
            // Fixed windows forget.
            same!(left(subject, &used, &key).await?, 20, "{algorithm}: left of the next window");
            let id = reserve(subject, &mut demands).await?;
            same!(store.settle(id, &[2, actual]).await?, true, "{algorithm}: again");
            same!(left(subject, &used, &key).await?, 0, "{algorithm}: left, again, of {actual}");
        }
    }
    Ok(())
}

/// Burst and debt together refill within 4.5 years, so a debt may hold less than a burst.
pub(super) async fn a_budget_that_hardly_comes_back_is_used_up<S: Subject>(subject: &S) -> Checked {
    let store = subject.store();
    for (count, actual) in [(2, 2), (2, 4), (2, 5), (2, 1_000), (4, 1_000), (4, u64::MAX)] {
        let quota = Quota::per_year(1).burst(4);
        let policy = Policy::new(format!("budget {count}"), quota)?;
        let key = actual.to_be_bytes();
        let id = reserve(subject, &mut [Demand::new(&policy, &key, count)]).await?;
        same!(store.settle(id, &[actual]).await?, true, "{count} to {actual}");
        let expected = 4_u64.saturating_sub(actual);
        same!(left(subject, &policy, &key).await?, expected, "left of 4, {actual} used");
    }
    Ok(())
}

pub(super) async fn a_lease_takes_what_there_is<S: Subject>(subject: &S) -> Checked {
    let store = subject.store();
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("lease", 10, algorithm)?, algorithm.name().as_bytes());
        for (row, (wanted, granted)) in [(7, 7), (7, 3), (7, 0)].into_iter().enumerate() {
            let mut demand = Demand::new(&policy, key, wanted);
            let leased = store.lease(&mut demand, MINUTE).await?;
            let got = if leased.id.is_some() { leased.decision.cost() } else { 0 };
            same!(got, granted, "{algorithm}, row {row}: granted of {wanted}");
            if row == 1 {
                let id = leased.id.ok_or("nothing was leased")?;
                same!(store.settle(id, &[1]).await?, true, "{algorithm}: settled");
                same!(left(subject, &policy, key).await?, 2, "{algorithm}: unused is given back");
                let _ = take(subject, &policy, key, 2).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn what_is_taken_up_to_a_cost_is_spent<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("up to", 10, algorithm)?, algorithm.name().as_bytes());
        for (row, (wanted, taken)) in [(7, 7), (7, 3), (7, 0)].into_iter().enumerate() {
            let mut demand = Demand::new(&policy, key, wanted);
            let decision = subject.store().up_to(&mut demand).await?;
            let got = if decision.is_allowed() { decision.cost() } else { 0 };
            same!(got, taken, "{algorithm}, row {row}: taken of {wanted}");
            same!(demand.decision(), Some(decision), "{algorithm}, row {row}: its own decision");
        }
    }
    Ok(())
}

pub(super) async fn a_permit_that_never_was_is_not_renewed<S: Subject>(subject: &S) -> Checked {
    let permits = Permits::new("never", b"key", 1);
    same!(subject.store().renew(&permits, PermitId(7), MINUTE).await?, false, "renewed");
    Ok(())
}

pub(super) async fn a_permit_that_never_was_cannot_leave<S: Subject>(subject: &S) -> Checked {
    let permits = Permits::new("never", b"key", 1);
    same!(subject.store().leave(&permits, PermitId(7)).await?, false, "left");
    Ok(())
}

pub(super) async fn permits_are_limited_by_name_and_key<S: Subject>(subject: &S) -> Checked {
    let store = subject.store();
    let permits = Permits::new("flight", b"key", 3);
    let mut ids = Vec::new();
    for expected in 1..=3 {
        let entered = store.enter(&permits, MINUTE).await?;
        same!(entered.in_flight, expected, "in flight");
        ids.extend(entered.id);
    }
    same!(ids.len(), 3, "permits");
    let full = store.enter(&permits, MINUTE).await?;
    same!((full.id, full.in_flight), (None, 3), "the fourth of three");
    holds!(full.retry_after.is_some_and(|wait| wait <= MINUTE), "no wait: {:?}", full.retry_after);
    for other in [Permits::new("flight", b"other", 3), Permits::new("other", b"key", 3)] {
        let entered = store.enter(&other, MINUTE).await?;
        holds!(entered.id.is_some(), "another name or key was refused");
    }
    same!(store.leave(&permits, ids[0]).await?, true, "leaving");
    same!(store.leave(&permits, ids[0]).await?, false, "leaving twice");
    let two = Permits { cost: 2, ..permits };
    same!(store.enter(&two, MINUTE).await?.id, None, "two where one fits");
    same!(store.leave(&permits, ids[1]).await?, true, "leaving");
    holds!(store.enter(&two, MINUTE).await?.id.is_some(), "two where two fit");
    // A larger limit holds at once; a smaller one lets nobody in until enough have left.
    let larger = Permits { limit: 4, ..permits };
    holds!(store.enter(&larger, MINUTE).await?.id.is_some(), "a raised limit");
    same!(store.enter(&permits, MINUTE).await?.id, None, "a lowered limit");
    Ok(())
}

pub(super) async fn permits_end_unless_renewed<S: Subject>(subject: &S) -> Checked {
    let (store, half) = (subject.store(), MINUTE / 2);
    let permits = Permits::new("ends", b"key", 2);
    let kept = store.enter(&permits, MINUTE).await?.id;
    let lost = store.enter(&permits, MINUTE).await?.id;
    let (Some(kept), Some(lost)) = (kept, lost) else { return Err("refused".into()) };
    subject.advance(half).await;
    same!(store.renew(&permits, kept, MINUTE).await?, true, "renewed");
    subject.advance(half + subject.rounding()).await;
    same!(store.renew(&permits, lost, MINUTE).await?, false, "renewed after its end");
    same!(store.leave(&permits, lost).await?, false, "left after its end");
    let entered = store.enter(&permits, MINUTE).await?;
    same!((entered.id.is_some(), entered.in_flight), (true, 2), "the place of the one that ended");
    Ok(())
}
