//! Taking, looking, giving back.

use super::{Checked, holds, invalid, left, policy, same, take, wait};
use crate::{
    Algorithm, Decision, Limits,
    store::{Demand, Store},
    testing::{Subject, together},
};
use std::time::Duration;

pub(super) async fn admits_the_limit_and_no_more<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let policy = policy("admits", 5, algorithm)?;
        let key = algorithm.name().as_bytes();
        for expected in (0..5).rev() {
            let decision = take(subject, &policy, key, 1).await?;
            holds!(decision.is_allowed(), "{algorithm}: refused with {expected} to go");
            same!(decision.remaining(), expected, "{algorithm}: remaining");
            same!(decision.limit(), 5, "{algorithm}: limit");
        }
        let decision = take(subject, &policy, key, 1).await?;
        holds!(decision.is_denied(), "{algorithm}: the sixth of five passed");
        same!(decision.remaining(), 0, "{algorithm}: remaining of a refusal");
    }
    Ok(())
}

pub(super) async fn a_refused_call_passes_at_its_time_and_not_before<S: Subject>(
    subject: &S,
) -> Checked {
    let (nano, rounding) = (Duration::from_nanos(1), subject.rounding());
    for algorithm in Algorithm::ALL {
        for cost in [1, 3] {
            let policy = policy("waits", 5, algorithm)?;
            let key = [algorithm.name().as_bytes(), &[cost as u8]].concat();
            let _ = take(subject, &policy, &key, 3).await?;
            subject.advance(Duration::from_secs(7)).await;
            let all = left(subject, &policy, &key).await?;
            let _ = take(subject, &policy, &key, all).await?;
            let refused = take(subject, &policy, &key, cost).await?;
            holds!(refused.is_denied(), "{algorithm}: passed with nothing left");
            let wait = wait(subject, &refused).ok_or("a refusal without a time")?;
            let early = wait.saturating_sub(nano + 2 * rounding);
            subject.advance(early).await;
            let again = take(subject, &policy, &key, cost).await?;
            holds!(again.is_denied(), "{algorithm}, cost {cost}: passed before its time");
            subject.advance(wait - early).await;
            let at_last = take(subject, &policy, &key, cost).await?;
            holds!(at_last.is_allowed(), "{algorithm}, cost {cost}: refused at its time {wait:?}");
        }
    }
    Ok(())
}

pub(super) async fn never_is_not_later<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let policy = policy("never", 5, algorithm)?;
        for cost in [6, u64::from(u32::MAX), u64::MAX] {
            let decision = take(subject, &policy, algorithm.name().as_bytes(), cost).await?;
            holds!(decision.is_never(), "{algorithm}: cost {cost} of 5 is not never");
        }
        same!(left(subject, &policy, algorithm.name().as_bytes()).await?, 5, "{algorithm}: left");
    }
    Ok(())
}

pub(super) async fn a_cost_of_nothing_takes_nothing<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("nothing", 2, algorithm)?, algorithm.name().as_bytes());
        for expected in [2, 1, 0] {
            let decision = take(subject, &policy, key, 0).await?;
            same!((decision.is_allowed(), decision.remaining()), (true, expected), "{algorithm}");
            let _ = take(subject, &policy, key, 1).await?;
        }
    }
    Ok(())
}

pub(super) async fn several_demands_are_charged_all_or_none<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let key = algorithm.name().as_bytes();
        let (global, tenant) = (policy("global", 9, algorithm)?, policy("tenant", 4, algorithm)?);
        let user = policy("user", 2, algorithm)?;
        let demands =
            || [(&global, 1), (&tenant, 2), (&user, 1)].map(|(it, n)| Demand::new(it, key, n));
        for round in 1..=2 {
            let mut now = demands();
            let decision = subject.store().acquire(&mut now).await?;
            holds!(decision.is_allowed(), "{algorithm}: round {round} was refused");
            let own = now.map(|demand| demand.decision().map(|own| own.remaining()));
            same!(own, [9 - round, 4 - 2 * round, 2 - round].map(Some), "{algorithm}: each");
            same!(
                Some(decision.remaining()),
                own.into_iter().flatten().min(),
                "{algorithm}: least"
            );
        }
        let mut third = demands();
        let decision = subject.store().acquire(&mut third).await?;
        same!(decision.refusing().collect::<Vec<_>>(), [1, 2], "{algorithm}: those that refuse");
        let own = third.iter().filter_map(Demand::decision);
        same!(decision.retry_at(), own.filter_map(|own| own.retry_at()).max(), "{algorithm}: wait");
        same!(left(subject, &global, key).await?, 7, "{algorithm}: what agreed is not charged");
    }
    Ok(())
}

pub(super) async fn a_key_named_twice_is_charged_the_sum<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("twice", 5, algorithm)?, algorithm.name().as_bytes());
        let mut over = [3, 3].map(|cost| Demand::new(&policy, key, cost));
        let decision = subject.store().acquire(&mut over).await?;
        holds!(decision.is_denied(), "{algorithm}: six of five passed");
        same!(left(subject, &policy, key).await?, 5, "{algorithm}: left after a refusal");
        let mut fits = [3, 2].map(|cost| Demand::new(&policy, key, cost));
        let decision = subject.store().acquire(&mut fits).await?;
        holds!(decision.is_allowed(), "{algorithm}: five of five were refused");
        same!(left(subject, &policy, key).await?, 0, "{algorithm}: left");
    }
    Ok(())
}

pub(super) async fn as_many_demands_as_a_decision_can_name<S: Subject>(subject: &S) -> Checked {
    let policy = policy("many", 1, Algorithm::Gcra)?;
    let keys: Vec<_> = (0..=Limits::MOST).map(|key| key.to_string()).collect();
    let demands = |count: usize| -> Vec<_> {
        keys[..count].iter().map(|key| Demand::new(&policy, key.as_bytes(), 1)).collect()
    };
    for count in [0, Limits::MOST + 1] {
        let decided = subject.store().acquire(&mut demands(count)).await;
        invalid(decided, &format!("a call with {count} demands"))?;
    }
    let mut all = demands(Limits::MOST);
    let decision = subject.store().acquire(&mut all).await?;
    holds!(decision.is_allowed(), "{} demands were refused", Limits::MOST);
    let decision = subject.store().acquire(&mut all).await?;
    same!(decision.refusing().count(), Limits::MOST, "those that refuse");
    Ok(())
}

pub(super) async fn keys_and_policies_share_nothing<S: Subject>(subject: &S) -> Checked {
    let long = vec![b'x'; 5000];
    let pairs: [(&str, &[u8]); 14] = [
        ("a_b", b"c"),
        ("a", b"b_c"),
        ("a:b", b"c"),
        ("a", b"b:c"),
        ("a", b""),
        ("", b"a"),
        ("a", b"{b}"),
        ("a{b}", b"c"),
        ("a", b"\0"),
        ("a", b"\0\0"),
        ("a", b"\xff\xfe"),
        ("a", b"\r\nGET x\r\n"),
        ("a", &long),
        ("a", &long[1..]),
    ];
    for algorithm in Algorithm::ALL {
        for (row, (name, key)) in pairs.into_iter().enumerate() {
            let policy = policy(&format!("{algorithm}{name}"), 2, algorithm)?;
            let first = take(subject, &policy, key, 1).await?;
            same!(first.remaining(), 1, "{algorithm}, row {row}: a fresh key");
        }
    }
    Ok(())
}

pub(super) async fn peeking_changes_nothing<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("peek", 3, algorithm)?, algorithm.name().as_bytes());
        for _ in 0..5 {
            let decision = subject.store().peek(&mut [Demand::new(&policy, key, 2)]).await?;
            same!((decision.is_allowed(), decision.remaining()), (true, 1), "{algorithm}: peek");
        }
        same!(take(subject, &policy, key, 3).await?.is_allowed(), true, "{algorithm}: take");
    }
    Ok(())
}

pub(super) async fn forcing_books_a_debt<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("force", 6, algorithm)?, algorithm.name().as_bytes());
        let decision = subject.store().force(&Demand::new(&policy, key, 9)).await?;
        same!((decision.is_allowed(), decision.remaining()), (true, 0), "{algorithm}: forced");
        let refused = take(subject, &policy, key, 1).await?;
        holds!(refused.is_denied(), "{algorithm}: passed in debt");
        if algorithm == Algorithm::Gcra {
            let (seen, expected) = (wait(subject, &refused), Duration::from_secs(40));
            let latest = expected + 2 * subject.rounding();
            let fits = seen.is_some_and(|seen| (expected..=latest).contains(&seen));
            holds!(fits, "three in debt and one at 6 a minute wait {seen:?}, not 40 s");
        }
    }
    Ok(())
}

pub(super) async fn a_refund_never_fills_above_full<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("refund", 5, algorithm)?, algorithm.name().as_bytes());
        let _ = take(subject, &policy, key, 4).await?;
        let demand = |cost| Demand::new(&policy, key, cost);
        same!(subject.store().refund(&demand(1)).await?, 1, "{algorithm}: one");
        same!(left(subject, &policy, key).await?, 2, "{algorithm}: left");
        same!(subject.store().refund(&demand(9)).await?, 3, "{algorithm}: the rest");
        same!(left(subject, &policy, key).await?, 5, "{algorithm}: full and no more");
    }
    Ok(())
}

pub(super) async fn a_reset_key_is_as_if_never_seen<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let (policy, key) = (policy("reset", 5, algorithm)?, algorithm.name().as_bytes());
        let _ = take(subject, &policy, key, 5).await?;
        let _ = take(subject, &policy, b"another", 2).await?;
        subject.store().reset(&Demand::new(&policy, key, 0)).await?;
        same!(left(subject, &policy, key).await?, 5, "{algorithm}: left");
        same!(left(subject, &policy, b"another").await?, 3, "{algorithm}: another key");
        subject.store().reset(&Demand::new(&policy, b"another", 0)).await?;
    }
    Ok(())
}

/// Used permits stay used: with GCRA the time until the bucket is full, in windows the count.
pub(super) async fn another_quota_keeps_what_is_used<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let name = format!("change {algorithm}");
        let (old, new) = (policy(&name, 10, algorithm)?, policy(&name, 50, algorithm)?);
        let _ = take(subject, &old, b"key", 6).await?;
        let expected = if algorithm == Algorithm::Gcra { 20 } else { 44 };
        same!(left(subject, &new, b"key").await?, expected, "{algorithm}: by the new quota");
        same!(left(subject, &new, b"new").await?, 50, "{algorithm}: a fresh key");
        same!(left(subject, &old, b"key").await?, 4, "{algorithm}: by the old quota again");
    }
    Ok(())
}

pub(super) async fn a_policy_with_another_quota_takes_over<S: Subject>(subject: &S) -> Checked {
    let (old, new) = (policy("over", 10, Algorithm::Gcra)?, policy("over", 50, Algorithm::Gcra)?);
    let _ = take(subject, &old, b"key", 10).await?;
    same!(left(subject, &new, b"key").await?, 0, "a larger quota gives nothing away");
    Ok(())
}

pub(super) async fn many_at_once_get_exactly_the_limit<S: Subject>(subject: &S) -> Checked {
    for algorithm in Algorithm::ALL {
        let policy = policy("at once", 50, algorithm)?;
        let calls = (0..200).map(|_| take(subject, &policy, algorithm.name().as_bytes(), 1));
        let decisions: Vec<Decision> =
            together(calls.collect()).await.into_iter().collect::<Result<_, _>>()?;
        let passed = decisions.iter().filter(|decision| decision.is_allowed()).count();
        same!(passed, 50, "{algorithm}: admitted of 200 at once");
    }
    Ok(())
}

pub(super) async fn overlapping_sets_at_once_leave_no_trace_of_refusals<S: Subject>(
    subject: &S,
) -> Checked {
    for algorithm in Algorithm::ALL {
        let each = format!("each {algorithm}");
        let (all, each) = (policy("all", 30, algorithm)?, policy(&each, 20, algorithm)?);
        let call = async |index: usize| {
            let key = [b"abcd"[index % 4]];
            let mut demands =
                [Demand::new(&all, algorithm.name().as_bytes(), 1), Demand::new(&each, &key, 1)];
            let decision = subject.store().acquire(&mut demands).await;
            decision.map(|decision| (index % 4, decision.is_allowed()))
        };
        let mut passed = [0_u64; 4];
        for outcome in together((0..200).map(call).collect()).await {
            let (key, allowed) = outcome?;
            passed[key] += u64::from(allowed);
        }
        same!(passed.iter().sum::<u64>(), 30, "{algorithm}: admitted over all keys");
        for (key, passed) in passed.into_iter().enumerate() {
            let name = [b"abcd"[key]];
            same!(left(subject, &each, &name).await?, 20 - passed, "{algorithm}: left of a key");
        }
    }
    Ok(())
}
