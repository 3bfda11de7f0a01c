//! Quotas that come with each call.

use super::{Checked, holds, invalid, policy, same};
use crate::{
    Algorithm, Decision, Quota,
    store::{Demand, Policy, Store},
    testing::Subject,
};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn demand<'a>(policy: &'a Policy, cost: u64, quota: Quota) -> Checked<Demand<'a>> {
    Ok(Demand::ad_hoc(policy, b"key", cost, quota)?)
}

async fn take<S: Subject>(
    subject: &S,
    policy: &Policy,
    cost: u64,
    quota: Quota,
) -> Checked<Decision> {
    let decision = subject.store().acquire(&mut [demand(policy, cost, quota)?]).await?;
    same!(decision.limit(), quota.capacity(), "limit of {quota}");
    Ok(decision)
}

async fn left<S: Subject>(subject: &S, policy: &Policy, quota: Quota) -> Checked<u64> {
    Ok(subject.store().peek(&mut [demand(policy, 0, quota)?]).await?.remaining())
}

fn both() -> Checked<[Policy; 2]> {
    Ok([Policy::ad_hoc("ad hoc"), Policy::ad_hoc_window("ad hoc window", MINUTE)?])
}

pub(super) async fn an_ad_hoc_quota_comes_with_the_call<S: Subject>(subject: &S) -> Checked {
    let (cell, rounding) = (Policy::ad_hoc("ad hoc"), subject.rounding());
    let slow = Quota::per_second(1).burst(7);
    for expected in (0..7).rev() {
        let decision = take(subject, &cell, 1, slow).await?;
        same!((decision.is_allowed(), decision.remaining()), (true, expected), "one of seven");
    }
    let refused = take(subject, &cell, 1, slow).await?;
    let wait = refused.retry_after(refused.at()).ok_or("a refusal without a time")?;
    holds!(wait <= Duration::from_secs(1) + rounding, "waits {wait:?} for one a second");
    holds!(take(subject, &cell, 8, slow).await?.is_never(), "eight of seven is not never");
    holds!(
        take(subject, &cell, 1, Quota::per_second(1).burst(0)).await?.is_never(),
        "one of none is not never"
    );
    // Seven seconds are booked, whatever the next quota is.
    let roomy = Quota::per_second(10).burst(100);
    let decision = take(subject, &cell, 5, roomy).await?;
    holds!(decision.is_allowed(), "seven seconds are 70 of 100 at ten a second");
    holds!((25..=26).contains(&decision.remaining()), "left are {}", decision.remaining());
    let tight = Quota::per_second(10).burst(10);
    holds!(take(subject, &cell, 1, tight).await?.is_denied(), "75 of 10 passed");
    subject.advance(Duration::from_secs(8)).await;
    same!(left(subject, &cell, tight).await?, 10, "left at rest");
    Ok(())
}

pub(super) async fn an_ad_hoc_limit_counts_in_its_window<S: Subject>(subject: &S) -> Checked {
    let [_, window] = both()?;
    for (row, (cost, limit, is_allowed, remaining)) in
        [(7, 10, true, 3), (4, 10, false, 3), (4, 100, true, 89), (1, 5, false, 0)]
            .into_iter()
            .enumerate()
    {
        let decision = take(subject, &window, cost, Quota::per_minute(limit)).await?;
        let got = (decision.is_allowed(), decision.remaining());
        same!(got, (is_allowed, remaining), "row {row}");
    }
    subject.advance(MINUTE + subject.rounding()).await;
    same!(left(subject, &window, Quota::per_minute(5)).await?, 5, "left in the next window");
    Ok(())
}

/// All or none, beside a policy with a quota of its own.
pub(super) async fn ad_hoc_demands_are_charged_beside_others<S: Subject>(subject: &S) -> Checked {
    let (store, quota) = (subject.store(), Quota::per_minute(10));
    let fixed = policy("beside ad hoc", 1, Algorithm::Gcra)?;
    for one in &both()? {
        let name = one.name();
        for round in 0..2 {
            let key = name.as_bytes();
            let mut mixed = [demand(one, 1, quota)?, Demand::new(&fixed, key, 1)];
            let decision = store.acquire(&mut mixed).await?;
            same!(decision.is_allowed(), round == 0, "{name}: round {round}");
            same!(left(subject, one, quota).await?, 9, "{name}: charged all or none");
        }
        let decided = store.acquire(&mut [Demand::new(one, b"key", 1)]).await;
        invalid(decided, "a call without its quota")?;
    }
    Ok(())
}

pub(super) async fn ad_hoc_demands_know_every_verb<S: Subject>(subject: &S) -> Checked {
    let (store, quota) = (subject.store(), Quota::per_minute(10));
    for one in &both()? {
        let name = one.name();
        let forced = store.force(&demand(one, 12, quota)?).await?;
        same!(forced.remaining(), 0, "{name}: left in debt");
        same!(store.refund(&demand(one, 8, quota)?).await?, 8, "{name}: refund");
        same!(left(subject, one, quota).await?, 6, "{name}: left after a refund");
        store.reset(&demand(one, 0, quota)?).await?;
        same!(left(subject, one, quota).await?, 10, "{name}: left after a reset");
        let id = store.reserve(&mut [demand(one, 6, quota)?], MINUTE).await?.id;
        let settled = store.settle(id.ok_or("refused")?, &[2]).await?;
        same!((settled, left(subject, one, quota).await?), (true, 8), "{name}: settled");
        let leased = store.lease(&mut demand(one, 99, quota)?, MINUTE).await?;
        same!(leased.decision.cost(), 8, "{name}: leased");
    }
    Ok(())
}
