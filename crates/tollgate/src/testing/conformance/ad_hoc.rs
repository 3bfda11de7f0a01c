//! Quotas that come with each call.

use super::{Checked, holds, policy, same, text};
use crate::{
    Algorithm, Decision, Quota,
    store::{Demand, Policy, ReservationId, Store},
    testing::Subject,
};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn demand<'a>(policy: &'a Policy, cost: u64, quota: Quota) -> Result<Demand<'a>, String> {
    Demand::ad_hoc(policy, b"key", cost, quota).map_err(|error| error.to_string())
}

async fn take<S: Subject>(
    subject: &S,
    policy: &Policy,
    cost: u64,
    quota: Quota,
) -> Result<Decision, String> {
    let mut demands = [demand(policy, cost, quota)?];
    let decision = subject.store().acquire(&mut demands).await.map_err(text)?;
    same!(decision.limit(), quota.capacity(), "limit of {quota}");
    Ok(decision)
}

async fn left<S: Subject>(subject: &S, policy: &Policy, quota: Quota) -> Result<u64, String> {
    let mut demands = [demand(policy, 0, quota)?];
    Ok(subject.store().peek(&mut demands).await.map_err(text)?.remaining())
}

fn both() -> Result<[Policy; 2], String> {
    let window = Policy::ad_hoc_window("ad hoc window", MINUTE);
    Ok([Policy::ad_hoc("ad hoc"), window.map_err(|error| error.to_string())?])
}

pub(super) async fn an_ad_hoc_quota_comes_with_the_call<S: Subject>(subject: &S) -> Checked {
    let (cell, rounding) = (Policy::ad_hoc("ad hoc"), subject.rounding());
    let slow = Quota::per_second(1).burst(7);
    for expected in (0..7).rev() {
        let decision = take(subject, &cell, 1, slow).await?;
        same!((decision.is_allowed(), decision.remaining()), (true, expected), "one of seven");
    }
    let refused = take(subject, &cell, 1, slow).await?;
    let Some(wait) = refused.retry_after(refused.at()) else {
        return Err("a refusal without a time".into());
    };
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

pub(super) async fn ad_hoc_demands_know_every_verb<S: Subject>(subject: &S) -> Checked {
    let (store, quota) = (subject.store(), Quota::per_minute(10));
    let fixed = policy("beside ad hoc", 1, Algorithm::Gcra)?;
    for one in &both()? {
        let name = one.name();
        let forced = store.force(&demand(one, 12, quota)?).await.map_err(text)?;
        same!(forced.remaining(), 0, "{name}: left in debt");
        same!(store.refund(&demand(one, 8, quota)?).await.map_err(text)?, 8, "{name}: refund");
        same!(left(subject, one, quota).await?, 6, "{name}: left after a refund");
        store.reset(&demand(one, 0, quota)?).await.map_err(text)?;
        same!(left(subject, one, quota).await?, 10, "{name}: left after a reset");
        let mut demands = [demand(one, 6, quota)?];
        let id = store.reserve(&mut demands, MINUTE).await.map_err(text)?.id;
        let settled = store.settle(id.unwrap_or(ReservationId(0)), &[2]).await.map_err(text)?;
        same!((settled, left(subject, one, quota).await?), (true, 8), "{name}: settled");
        let mut wanted = demand(one, 99, quota)?;
        let leased = store.lease(&mut wanted, MINUTE).await.map_err(text)?;
        same!(leased.decision.cost(), 8, "{name}: leased");
        store.reset(&demand(one, 0, quota)?).await.map_err(text)?;
        // All or none, beside a policy with a quota of its own.
        for round in 0..2 {
            let key = name.as_bytes();
            let mut mixed = [demand(one, 1, quota)?, Demand::new(&fixed, key, 1)];
            let decision = store.acquire(&mut mixed).await.map_err(text)?;
            same!(decision.is_allowed(), round == 0, "{name}: round {round}");
            same!(left(subject, one, quota).await?, 9, "{name}: charged all or none");
        }
        let error = store.acquire(&mut [Demand::new(one, b"key", 1)]).await.err();
        holds!(error.is_some_and(|error| error.is_invalid()), "{name}: no quota came with it");
    }
    Ok(())
}
