//! Which quota a key has, and keys that are blocked, punished or exempt.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{
    Algorithm, Assigned, Bypass, Clock, Escalation, KeyedBuilder, KeyedLimiter, Limiter,
    ManualClock, Quota, Reason, Refused,
};

const SECOND: Duration = Duration::from_secs(1);

/// The same limiter over both tables.
fn each_table(
    quota: &str,
    more: impl Fn(KeyedBuilder<str>) -> KeyedBuilder<str>,
    mut test: impl FnMut(&KeyedLimiter<str>, &ManualClock),
) {
    for bounded in [false, true] {
        let (clock, hand) = Clock::manual();
        let builder = KeyedLimiter::builder(quota.parse().unwrap()).clock(clock);
        let builder = if bounded { builder.bounded(1000) } else { builder };
        test(&more(builder).build().unwrap(), &hand);
    }
}

#[test]
fn a_function_of_the_key_chooses_and_is_asked_again_after_a_while() {
    let asked = Arc::new(AtomicU64::new(0));
    let choose = {
        let asked = Arc::clone(&asked);
        move |key: &str| {
            asked.fetch_add(1, Relaxed);
            match key.split(':').next() {
                Some("pro") => Assigned::Tier("pro".into()),
                Some("own") => Assigned::Quota(Quota::per_hour(key.len() as u64)),
                Some("bad") => Assigned::Tier("no such tier".into()),
                _ => Assigned::Default,
            }
        }
    };
    let more = |builder: KeyedBuilder<str>| {
        builder.tier("pro", Quota::per_hour(50)).quota_by(60 * SECOND, choose.clone())
    };
    each_table("10/h", more, |limiter, hand| {
        asked.store(0, Relaxed);
        let limits = ["free:1", "pro:1", "own:12345", "bad:1"];
        let limits = limits.map(|key| limiter.try_acquire(key).limit());
        assert_eq!(limits, [10, 50, 9, 10]);
        assert_eq!(limiter.table_counts().unusable_quotas, 1);
        let _ = limiter.try_acquire_n("pro:1", 9);
        assert_eq!(asked.load(Relaxed), 4, "the answer is kept");
        limiter.set_tier("pro", Quota::per_hour(100)).unwrap();
        assert_eq!(limiter.available("pro:1"), 80, "a tier changes live");
        assert_eq!(limiter.tier("pro"), Some(Quota::per_hour(100)));
        limiter.set_quota(Quota::per_hour(20)).unwrap();
        assert_eq!((limiter.available("free:1"), limiter.available("pro:1")), (18, 80));
        hand.advance(60 * SECOND);
        let _ = limiter.try_acquire("pro:1");
        assert_eq!(asked.load(Relaxed), 5, "and asked for again when it has expired");
        assert_eq!(limiter.quota_of("own:12345"), Quota::per_hour(9));
    });
}

#[test]
fn an_override_holds_for_one_key_and_for_its_time() {
    each_table(
        "10/h",
        |builder| builder,
        |limiter, hand| {
            let _ = limiter.try_acquire_n("vip", 10);
            assert!(limiter.try_acquire("vip").is_denied());
            limiter.override_quota("vip", Quota::per_hour(100), Some(60 * SECOND)).unwrap();
            assert_eq!(limiter.quota_of("vip"), Quota::per_hour(100));
            assert_eq!(limiter.available("vip"), 0, "what is left stays left");
            hand.advance(36 * SECOND);
            assert_eq!(limiter.available("vip"), 1, "and it refills at the new rate");
            assert_eq!(limiter.quota_of("other"), Quota::per_hour(10));
            hand.advance(24 * SECOND);
            assert_eq!(limiter.quota_of("vip"), Quota::per_hour(10));
            limiter.override_quota("vip", Quota::unlimited(), None).unwrap();
            assert!((0..1000).all(|_| limiter.try_acquire("vip").is_allowed()));
            assert!(limiter.clear_override("vip"));
            assert!(!limiter.clear_override("vip"));
            assert_eq!(limiter.quota_of("vip"), Quota::per_hour(10));
        },
    );
}

#[test]
fn any_number_of_overrides() {
    each_table(
        "10/h",
        |builder| builder,
        |limiter, _| {
            for round in 0..5000_u64 {
                let quota = Quota::per_hour(100 + round);
                limiter.override_quota("vip", quota, None).unwrap();
                assert_eq!(limiter.try_acquire("vip").limit(), 100 + round);
            }
            let quota = |key| Quota::per_hour(10_000 + key);
            for key in 0..3000_u64 {
                limiter.override_quota(&key.to_string(), quota(key), None).unwrap();
            }
            for key in 0..3000_u64 {
                let decision = limiter.try_acquire_n(&key.to_string(), 10_000 + key);
                assert_eq!((decision.is_allowed(), decision.remaining()), (true, 0));
                assert_eq!(limiter.quota_of(&key.to_string()), quota(key));
            }
        },
    );
}

#[test]
fn a_blocked_key_is_refused_until_its_time() {
    each_table(
        "10/h",
        |builder| builder.counted(),
        |limiter, hand| {
            limiter.block("mallory", 30 * SECOND).unwrap();
            let refused = limiter.try_acquire("mallory");
            assert_eq!(refused.reason(), Reason::Blocked);
            assert_eq!(refused.retry_after(limiter.now()), Some(30 * SECOND));
            assert_eq!(limiter.peek("mallory").reason(), Reason::Blocked);
            assert!(matches!(
                limiter.reserve_within("mallory", 1, SECOND),
                Err(Refused::TooLong { .. })
            ));
            assert_eq!(
                limiter.blocked_until("mallory"),
                Some(limiter.now().saturating_add(30 * SECOND))
            );
            hand.advance(30 * SECOND - Duration::from_nanos(1));
            assert!(limiter.try_acquire("mallory").is_denied());
            hand.advance(Duration::from_nanos(1));
            assert_eq!(
                limiter.try_acquire("mallory").remaining(),
                9,
                "nothing was charged meanwhile"
            );
            limiter.block("mallory", 30 * SECOND).unwrap();
            assert!(limiter.unblock("mallory"));
            assert!(!limiter.unblock("mallory"));
            assert!(limiter.try_acquire("mallory").is_allowed());
            assert_eq!(limiter.table_counts().notes, 0, "notes without content take no room");
            assert_eq!((limiter.counts().allowed, limiter.counts().denied()), (2, 3));
        },
    );
}

#[test]
fn lists_and_penalties() {
    each_table(
        "3/h",
        |builder| builder,
        |limiter, _| {
            limiter.allow("monitor").unwrap();
            assert!((0..100).all(|_| limiter.try_acquire("monitor").is_allowed()));
            assert_eq!(limiter.try_acquire("monitor").reason(), Reason::AllowListed);
            assert_eq!(limiter.available("monitor"), 3, "nothing is charged");
            limiter.deny("scanner").unwrap();
            let refused = limiter.try_acquire("scanner");
            assert!(refused.is_never());
            assert_eq!(refused.reason(), Reason::DenyListed);
            assert!(limiter.unlist("scanner") && !limiter.unlist("scanner"));
            assert!(limiter.try_acquire("scanner").is_allowed());

            let _ = limiter.penalize("guesser", 5);
            let refused = limiter.try_acquire("guesser");
            assert_eq!(
                refused.retry_after(limiter.now()),
                Some(3600 * SECOND),
                "two in debt and one"
            );
            limiter.bypass(Bypass::On);
            assert!(limiter.try_acquire("guesser").is_bypassed());
            limiter.bypass(Bypass::Off);
            assert!(limiter.try_acquire("guesser").is_denied());
        },
    );
}

/// A bypass charges nothing, whatever the verb, in a keyed limiter as in a single one.
#[test]
fn a_bypassed_limiter_charges_nothing() {
    for algorithm in Algorithm::ALL {
        let (clock, _hand) = Clock::manual();
        let quota = Quota::per_hour(10);
        let single = Limiter::builder(quota).algorithm(algorithm).clock(clock.clone());
        let keyed = KeyedLimiter::<str>::builder(quota).algorithm(algorithm).clock(clock);
        let (single, keyed) = (single.build().unwrap(), keyed.build().unwrap());
        let reserved = [single.reserve(2).unwrap(), keyed.reserve("k", 2).unwrap()];
        single.bypass(Bypass::On);
        keyed.bypass(Bypass::On);
        for decision in [
            single.force(20),
            keyed.force("k", 20),
            keyed.penalize("k", 20),
            single.try_acquire_on_credit(20),
            keyed.try_acquire_on_credit("k", 20),
            single.up_to(20),
            keyed.up_to("k", 20),
        ] {
            assert!(decision.is_allowed() && decision.is_bypassed(), "{algorithm}");
            assert_eq!(decision.cost(), 20, "{algorithm}");
        }
        for reserved in reserved {
            assert_eq!(reserved.settle(5).cost(), 5, "{algorithm}");
        }
        single.bypass(Bypass::Off);
        keyed.bypass(Bypass::Off);
        assert_eq!((single.available(), keyed.available("k")), (8, 8), "{algorithm}");
    }
}

#[test]
fn bans_escalate_and_end() {
    let bans = Escalation::new(3, 10 * SECOND, 20 * SECOND).most(50 * SECOND);
    each_table(
        "1/h",
        |builder| builder.escalate(bans),
        |limiter, hand| {
            assert!(limiter.try_acquire("k").is_allowed());
            for length in [20, 40, 50, 50] {
                for row in 0..2 {
                    assert_eq!(limiter.try_acquire("k").reason(), Reason::Quota, "{length} {row}");
                }
                let banned = limiter.try_acquire("k");
                assert_eq!(banned.retry_after(limiter.now()), Some(length * SECOND));
                assert!((0..9).all(|_| limiter.try_acquire("k").reason() == Reason::Blocked));
                hand.advance(length * SECOND);
            }
            assert!(limiter.try_acquire("other").is_allowed());
            assert_eq!(limiter.blocked_until("other"), None);
        },
    );
}

#[test]
fn keys_can_be_reserved_settled_and_cancelled() {
    each_table(
        "3600/h burst 10",
        |builder| builder,
        |limiter, hand| {
            let first = limiter.reserve("a", 8).unwrap();
            let second = limiter.reserve("a", 8).unwrap();
            assert_eq!(second.delay(limiter.now()), 6 * SECOND);
            assert_eq!(limiter.available("b"), 10, "other keys have nothing to do with it");
            assert_eq!((second.cancel(), first.cancel()), (8, 8));
            assert_eq!(limiter.available("a"), 10);
            let estimate = limiter.reserve("a", 5).unwrap();
            assert_eq!(estimate.settle(2).remaining(), 8);
            let late = limiter.reserve("a", 5).unwrap();
            hand.advance(60 * SECOND);
            let _ = limiter.try_acquire_n("a", 4);
            assert_eq!(late.cancel(), 0, "time has given it back already");
            assert_eq!(limiter.available("a"), 6);
            assert!(matches!(limiter.reserve("a", 11), Err(Refused::Never(_))));
            // A change of quota carries open claims along.
            let open = limiter.reserve("a", 6).unwrap();
            limiter.set_quota(Quota::per_hour(3600).burst(20)).unwrap();
            assert_eq!(limiter.available("a"), 10);
            assert_eq!(open.cancel(), 6);
            assert_eq!(limiter.available("a"), 16);
            // So does an override: six seconds are twelve permits of the new quota.
            let open = limiter.reserve("a", 6).unwrap();
            limiter.override_quota("a", Quota::per_hour(7200).burst(20), None).unwrap();
            assert_eq!((open.cancel(), limiter.available("a")), (12, 12));
        },
    );
}

#[test]
fn heavy_keys_are_known_by_name() {
    let more = |builder: KeyedBuilder<str>| builder.top_keys(100);
    each_table("5/h", more, |limiter, _| {
        for key in 0..500 {
            let _ = limiter.try_acquire(&format!("small {key}"));
        }
        for _ in 0..50 {
            let _ = limiter.try_acquire("scraper");
        }
        let _ = limiter.try_acquire_n("batch", 5);
        let top = limiter.top_keys().unwrap();
        let denied = top.top_denied(3);
        assert_eq!((denied[0].name.as_ref(), denied.len()), ("scraper", 1));
        assert!(denied[0].count - denied[0].error <= 45 && denied[0].count >= 45);
        assert_eq!(top.total_denied(), 45);
        let distinct = top.distinct();
        assert!((450..=550).contains(&distinct), "{distinct} of 502");
    });
}

#[test]
fn a_lease_of_a_key_takes_batches_and_gives_back() {
    each_table(
        "100/h",
        |builder| builder,
        |limiter, hand| {
            let mut lease = limiter.lease("hot", 10, SECOND);
            assert!((0..3).all(|_| lease.try_acquire().is_allowed()));
            assert_eq!((lease.held(), limiter.available("hot")), (7, 90));
            // A change of quota ends the batch; what it held goes back.
            limiter.set_quota(Quota::per_hour(200)).unwrap();
            assert!(lease.try_acquire().is_allowed());
            assert_eq!((lease.held(), limiter.available("hot")), (9, 184));
            hand.advance(SECOND);
            assert!(lease.try_acquire_n(20).is_allowed(), "more than a batch");
            assert_eq!((lease.held(), limiter.available("hot")), (0, 173));
            assert!(lease.try_acquire_n(174).is_denied());
            assert_eq!(limiter.available("hot"), 173, "a refusal takes nothing");
            assert!(lease.try_acquire().is_allowed());
            drop(lease);
            assert_eq!(limiter.available("hot"), 172);
            let mut blocked = limiter.lease("hot", 10, SECOND);
            assert!(blocked.try_acquire().is_allowed());
            limiter.block("hot", SECOND).unwrap();
            assert_eq!(blocked.try_acquire().reason(), Reason::Blocked, "a block is felt at once");
        },
    );
}

#[test]
fn anonymous_refunds_lower_open_claims() {
    each_table(
        "10/h",
        |builder| builder,
        |limiter, _| {
            let open = limiter.reserve("a", 4).unwrap();
            assert_eq!(limiter.refund("a", 4), 4);
            assert_eq!((open.cancel(), limiter.available("a")), (0, 10));
            let open = limiter.reserve("a", 4).unwrap();
            limiter.reset("a");
            assert_eq!((open.cancel(), limiter.available("a")), (0, 10));
        },
    );
}

/// A debt is owed under any later quota, and a change back loses nothing.
#[test]
fn a_debt_outlives_a_change_of_quota() {
    each_table(
        "10/min",
        |builder| builder,
        |limiter, hand| {
            let _ = limiter.force("debtor", 20);
            let _ = limiter.try_acquire_n("spender", 10);
            limiter.set_quota("10/s".parse().unwrap()).unwrap();
            let wait = |key| limiter.peek(key).retry_after(hand.now()).unwrap();
            assert_eq!(wait("debtor"), 120 * SECOND - SECOND + Duration::from_millis(100));
            assert_eq!(wait("spender"), Duration::from_millis(100));
            limiter.set_quota("10/min".parse().unwrap()).unwrap();
            assert_eq!((wait("debtor"), wait("spender")), (66 * SECOND, 6 * SECOND));
        },
    );
}

/// An equal quota that is given again is no change: what a longer quota has left counts from the first time on.
#[test]
fn the_same_quota_given_again_is_no_change() {
    let (day, minute) = (Quota::per_day(1000), Quota::per_minute(1000));
    let passes = |limiter: &KeyedLimiter<str>, hand: &ManualClock, give: &dyn Fn(Quota)| {
        give(day);
        assert!(limiter.try_acquire_n("k", 1000).is_allowed());
        hand.advance(SECOND);
        let rows = (0..7).map(|_| {
            give(minute);
            let is_allowed = limiter.try_acquire("k").is_allowed();
            hand.advance(SECOND / 100);
            is_allowed
        });
        assert_eq!(rows.collect::<Vec<_>>(), [false, false, false, false, false, false, true]);
        // With another quota in between, it is a change.
        give(day);
        assert!(limiter.try_acquire_n("k", 900).is_allowed());
        hand.advance(SECOND);
        give(minute);
        assert!(limiter.try_acquire("k").is_denied());
    };
    let (clock, hand) = Clock::manual();
    let builder = KeyedLimiter::<str>::builder(day).clock(clock.clone());
    let limiter = builder.build().unwrap();
    passes(&limiter, &hand, &|quota| limiter.override_quota("k", quota, None).unwrap());

    let builder = KeyedLimiter::<str>::builder(Quota::per_hour(7)).clock(clock.clone());
    let limiter = builder.tier("day", day).tier("minute", minute).build().unwrap();
    let tier = |quota| if quota == day { "day" } else { "minute" };
    passes(&limiter, &hand, &|quota| limiter.assign("k", tier(quota), None).unwrap());

    let chosen = Arc::new(Mutex::new(day));
    let choose = Arc::clone(&chosen);
    let builder = KeyedLimiter::<str>::builder(Quota::per_hour(7)).clock(clock);
    let builder =
        builder.quota_by(Duration::ZERO, move |_| Assigned::Quota(*choose.lock().unwrap()));
    let limiter = builder.build().unwrap();
    passes(&limiter, &hand, &|quota| *chosen.lock().unwrap() = quota);
}
