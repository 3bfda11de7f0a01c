//! Waiting for keys: how changes of rules affect the waiting calls, and how much memory these take.
#![cfg(feature = "tokio")]

use crate::queued::{Pinned, poll, queued, times};
use std::{task::Poll, time::Duration};
use tollgate::{
    Algorithm, Assigned, Clock, Escalation, KeyedBuilder, KeyedLimiter, Limits, ManualClock, Quota,
    Reason, Refused, Seed, Tick, WhenFull,
};

const MS: Duration = Duration::from_millis(1);

/// One permit each millisecond, `burst` at most, and full.
fn built(
    burst: u64,
    with: impl FnOnce(KeyedBuilder<str>) -> KeyedBuilder<str>,
) -> (KeyedLimiter<str>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = KeyedLimiter::builder(Quota::per_second(1000).burst(burst)).clock(clock);
    (with(builder).build().unwrap(), hand)
}

fn limiter(burst: u64) -> (KeyedLimiter<str>, ManualClock) {
    built(burst, |builder| builder)
}

fn windows(limit: u64) -> (KeyedLimiter<str>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = KeyedLimiter::builder(Quota::per(limit, 10 * MS));
    (builder.algorithm(Algorithm::FixedWindow).clock(clock).build().unwrap(), hand)
}

/// Calls for `key`, `count` of them, after its burst is used up.
fn crowd(limiter: &KeyedLimiter<str>, key: &str, count: usize) -> Vec<Pinned> {
    let _all = limiter.up_to(key, u64::MAX);
    (0..count).map(|_| queued(limiter.acquire(key))).collect()
}

#[test]
fn keys_do_not_wait_for_each_other_and_share_one_timer() {
    let (limiter, hand) = limiter(1);
    let keys: Vec<_> = (0..100).map(|number| format!("key {number}")).collect();
    let mut waits: Vec<_> = keys.iter().flat_map(|key| crowd(&limiter, key, 3)).collect();
    assert_eq!((limiter.waiting_total(), hand.timers()), (300, 1));
    assert_eq!(limiter.waiting("key 7"), 3);
    assert_eq!(times(&hand, &mut waits), [1, 2, 3].repeat(100));
    assert_eq!((limiter.waiting_total(), hand.timers()), (0, 0));
}

#[test]
fn nobody_overtakes_unless_told_to() {
    for (limiter, hand) in [limiter(10), windows(10)] {
        let _used = limiter.try_acquire_n("a", 5);
        let mut all = vec![queued(limiter.acquire_n("a", 10))];
        assert!(limiter.try_acquire("a").is_denied());
        assert!(limiter.up_to("a", 2).is_denied());
        assert!(limiter.peek("a").is_denied());
        assert_eq!(limiter.available("a"), 0);
        assert!(limiter.reserve_within("a", 1, Duration::ZERO).is_err());
        assert!(limiter.lease("a", 2, MS).try_acquire().is_denied());
        let charges = [limiter.charge("a", 1), limiter.charge("b", 1)];
        let decision = Limits::new(&charges).unwrap().try_acquire();
        assert!(decision.is_denied() && decision.is_refused_by(0));
        assert_eq!(limiter.available("b"), 10, "nothing was taken of the other key");
        assert!(limiter.try_acquire_n("b", 10).is_allowed());
        assert!(limiter.try_overtake_n("a", 3).is_allowed());
        assert!(limiter.try_overtake_n("a", 3).is_denied());
        let passed = times(&hand, &mut all)[0];
        assert_eq!(passed, if limiter.algorithm() == Algorithm::Gcra { 8 } else { 10 });
    }
}

#[test]
fn as_many_wait_as_may_for_all_keys_together() {
    let (limiter, hand) = built(1, |builder| builder.max_waiting(3));
    let mut waits = crowd(&limiter, "a", 2);
    waits.extend(crowd(&limiter, "b", 1));
    let _used = limiter.try_acquire("c");
    let mut fourth = Box::pin(limiter.acquire("c"));
    let Poll::Ready(Err(refused)) = poll(&mut fourth) else { panic!("there is no room") };
    assert!(matches!(refused, Refused::QueueFull { max_waiting: 3, .. }), "{refused:?}");
    assert!(limiter.acquire("d").block().is_ok(), "who need not wait passes");
    drop(waits.pop());
    assert!(poll(&mut fourth).is_pending());
    waits.push(fourth);
    assert_eq!(times(&hand, &mut waits), [1, 2, 1]);
    let (none, _hand) = built(1, |builder| builder.max_waiting(0));
    assert!(none.acquire("a").block().is_ok());
    assert!(matches!(none.acquire("a").block(), Err(Refused::QueueFull { .. })));
    assert_eq!(none.waiting_total(), 0);
}

#[test]
fn who_is_refused_leaves_nothing() {
    let (limiter, hand) = limiter(2);
    let mut waits = crowd(&limiter, "a", 2);
    for (wait, expected) in [
        (limiter.acquire("a").within(2 * MS), "TooLong"),
        (limiter.acquire("a").until(Tick::from_millis(2)), "TooLong"),
        (limiter.acquire_n("a", 3), "Never"),
    ] {
        let Poll::Ready(Err(refused)) = poll(&mut Box::pin(wait)) else { panic!("{expected}") };
        assert!(format!("{refused:?}").starts_with(expected), "{refused:?}");
    }
    assert_eq!((limiter.waiting("a"), limiter.waiting_total()), (2, 2));
    assert_eq!(times(&hand, &mut waits), [1, 2]);
}

#[test]
fn newest_first_for_each_key() {
    let (limiter, hand) = built(1, KeyedBuilder::newest_first);
    let mut waits = crowd(&limiter, "a", 3);
    waits.extend(crowd(&limiter, "b", 2));
    assert_eq!(times(&hand, &mut waits), [3, 2, 1, 2, 1]);
}

#[test]
fn a_key_that_is_denied_refuses_who_waits_and_one_that_is_allowed_lets_pass() {
    for (limiter, _hand) in [limiter(1), windows(1)] {
        let (mut denied, mut allowed, mut other) =
            (crowd(&limiter, "a", 2), crowd(&limiter, "b", 2), crowd(&limiter, "c", 1));
        limiter.deny("a").unwrap();
        limiter.allow("b").unwrap();
        for wait in &mut denied {
            let Poll::Ready(Err(Refused::Never(decision))) = poll(wait) else { panic!("denied") };
            assert_eq!(decision.reason(), Reason::DenyListed);
        }
        assert!(allowed.iter_mut().all(|wait| matches!(poll(wait), Poll::Ready(Ok(_)))));
        assert!(poll(&mut other[0]).is_pending());
        let refused = poll(&mut Box::pin(limiter.acquire("a")));
        assert!(matches!(refused, Poll::Ready(Err(Refused::Never(_)))), "{refused:?}");
        limiter.unlist("a");
        assert_eq!(limiter.waiting_total(), 1);
    }
}

#[test]
fn a_block_is_waited_out_and_nothing_piles_up_behind_it() {
    let (limiter, hand) = limiter(2);
    let mut waits = crowd(&limiter, "a", 4);
    limiter.block("a", 20 * MS).unwrap();
    waits.push(queued(limiter.acquire("a")));
    let mut hasty = queued(limiter.acquire("a").within(20 * MS));
    let refused = poll(&mut Box::pin(limiter.acquire("a").within(19 * MS)));
    assert!(matches!(refused, Poll::Ready(Err(Refused::TooLong { .. }))), "{refused:?}");
    // Of the permits that have refilled meanwhile two pass at once, as the burst says, and not all.
    assert_eq!(times(&hand, &mut waits), [20, 20, 21, 22, 23]);
    let late = poll(&mut hasty);
    assert!(matches!(late, Poll::Ready(Err(_))), "{late:?}");

    let mut waits = crowd(&limiter, "a", 2);
    let start = hand.now().as_nanos() / 1_000_000;
    limiter.block("a", Duration::from_secs(3600)).unwrap();
    hand.advance(10 * MS);
    assert!(poll(&mut waits[0]).is_pending());
    assert!(limiter.unblock("a"));
    assert_eq!(times(&hand, &mut waits), [start + 10, start + 10]);

    // No call waits for the end of a block without an end.
    let mut waits = crowd(&limiter, "a", 1);
    limiter.block("a", Duration::MAX).unwrap();
    waits.push(Box::pin(limiter.acquire("a")));
    for wait in &mut waits {
        assert!(matches!(poll(wait), Poll::Ready(Err(Refused::Never(_)))));
    }
    assert_eq!((limiter.waiting_total(), hand.timers()), (0, 0));
}

#[test]
fn a_quota_of_its_own_books_anew_and_so_does_its_end() {
    let (limiter, hand) = limiter(1);
    let mut waits = crowd(&limiter, "a", 3);
    let mut hasty = queued(limiter.acquire("a").within(4 * MS));
    let mut other = crowd(&limiter, "b", 2);
    limiter.override_quota("a", Quota::per_second(500).burst(1), None).unwrap();
    let refused = poll(&mut hasty);
    assert!(matches!(refused, Poll::Ready(Err(Refused::TooLong { .. }))), "{refused:?}");
    // A millisecond's worth is used, by either quota.
    assert_eq!(times(&hand, &mut waits), [1, 3, 5]);
    assert!(other.iter_mut().all(|wait| poll(wait).is_ready()));

    // Slow for five milliseconds, and then like all keys.
    let (limiter, hand) = self::limiter(1);
    let mut waits = crowd(&limiter, "a", 4);
    limiter.override_quota("a", Quota::per_second(100).burst(1), Some(5 * MS)).unwrap();
    // The second call has to wait for ten milliseconds, but the quota of all keys refills in one.
    assert_eq!(times(&hand, &mut waits), [1, 6, 7, 8]);

    let (limiter, hand) = self::limiter(1);
    let mut waits = crowd(&limiter, "a", 2);
    limiter.override_quota("a", Quota::per_second(1).burst(1), None).unwrap();
    hand.advance(2 * MS);
    assert!(poll(&mut waits[0]).is_ready() && poll(&mut waits[1]).is_pending());
    assert!(limiter.clear_override("a"));
    assert_eq!(times(&hand, &mut waits[1..]), [3]);
}

#[test]
fn no_limit_lets_everybody_pass() {
    let (limiter, hand) = limiter(1);
    let (mut own, mut all) = (crowd(&limiter, "a", 3), crowd(&limiter, "b", 3));
    limiter.override_quota("a", Quota::unlimited(), None).unwrap();
    assert!(own.iter_mut().all(|wait| poll(wait).is_ready()));
    assert!(all.iter_mut().all(|wait| poll(wait).is_pending()));
    limiter.set_quota(Quota::unlimited()).unwrap();
    assert!(all.iter_mut().all(|wait| poll(wait).is_ready()));
    assert_eq!((limiter.waiting_total(), hand.timers()), (0, 0));
}

#[test]
fn tiers_and_the_default_change_for_those_who_wait_in_them() {
    let (limiter, hand) = built(1, |builder| builder.tier("slow", Quota::per_second(100).burst(1)));
    limiter.assign("a", "slow", None).unwrap();
    let (mut slow, mut fast) = (crowd(&limiter, "a", 2), crowd(&limiter, "b", 2));
    limiter.set_tier("slow", Quota::per_second(500).burst(1)).unwrap();
    limiter.set_quota(Quota::per_second(250).burst(1)).unwrap();
    // Ten milliseconds of the tier's quota were used, but its new quota refills in two; one of the
    // other's.
    slow.append(&mut fast);
    assert_eq!(times(&hand, &mut slow), [2, 4, 1, 5]);
    assert!(limiter.set_tier("none", Quota::per_second(1)).is_err());
}

#[test]
fn a_quota_that_makes_no_sense_leaves_those_who_wait_as_they_are() {
    let (limiter, hand) = limiter(1);
    let mut waits = crowd(&limiter, "a", 3);
    let nonsense = Quota::per(1, Duration::ZERO);
    assert!(limiter.set_quota(nonsense).is_err());
    assert!(limiter.override_quota("a", nonsense, None).is_err());
    assert!(limiter.assign("a", "none", None).is_err());
    assert_eq!(times(&hand, &mut waits), [1, 2, 3]);
}

#[test]
fn a_function_may_choose_another_quota_meanwhile() {
    let is_fast = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&is_fast);
    let (limiter, hand) = built(1, |builder| {
        builder.tier("slow", Quota::per_second(10).burst(1)).quota_by(3 * MS, move |_| {
            match seen.load(std::sync::atomic::Ordering::SeqCst) {
                true => Assigned::Default,
                false => Assigned::Tier("slow".into()),
            }
        })
    });
    let mut waits = crowd(&limiter, "a", 3);
    is_fast.store(true, std::sync::atomic::Ordering::SeqCst);
    hand.advance(4 * MS);
    assert!(poll(&mut waits[0]).is_pending());
    // A call for the key consults the function again.
    assert!(limiter.try_acquire("a").is_denied());
    let passed = times(&hand, &mut waits);
    assert!(passed[2] <= 8 && passed[2] - passed[0] == 2, "{passed:?}");
}

#[test]
fn what_is_given_back_moves_up_who_waits() {
    let (limiter, hand) = limiter(2);
    let reservation = limiter.reserve("a", 2).unwrap();
    let mut waits: Vec<_> = (0..3).map(|_| queued(limiter.acquire("a"))).collect();
    let behind = limiter.reserve("a", 1).unwrap();
    assert_eq!(behind.act_at(), Tick::from_millis(4));
    waits.push(queued(limiter.acquire("a")));
    assert_eq!(behind.cancel(), 1);
    assert_eq!(reservation.cancel(), 2);
    assert_eq!(times(&hand, &mut waits), [0, 0, 1, 2]);

    let (limiter, hand) = self::limiter(4);
    let _all = limiter.try_acquire_n("a", 4);
    let mut waits: Vec<_> = (0..4).map(|_| queued(limiter.acquire_n("a", 2))).collect();
    assert_eq!(limiter.refund("a", 100), 4, "what is booked for those who wait is not spent");
    assert_eq!(times(&hand, &mut waits), [0, 0, 2, 4]);
}

#[test]
fn reset_and_clear_start_anew_for_those_who_wait_too() {
    for clears in [false, true] {
        let (limiter, hand) = limiter(2);
        let mut waits = crowd(&limiter, "a", 4);
        match clears {
            true => limiter.clear(),
            false => limiter.reset("a"),
        }
        assert_eq!(times(&hand, &mut waits), [0, 0, 1, 2]);
    }
}

#[test]
fn a_table_without_room_does_what_it_says() {
    let full = |when: WhenFull| {
        let (limiter, hand) = built(1, |builder| builder.max_keys(1).when_full(when));
        let waits = crowd(&limiter, "a", 2);
        (limiter, hand, waits)
    };
    // Refused, with the reason.
    let (limiter, _hand, _waits) = full(WhenFull::Refuse);
    let Poll::Ready(Err(refused)) = poll(&mut Box::pin(limiter.acquire("b"))) else {
        panic!("there is no room")
    };
    assert_eq!(refused.decision().reason(), Reason::Saturated);
    assert_eq!(limiter.waiting_total(), 2);

    // The calls wait for the shared budget in order.
    let (limiter, hand, mut waits) = full(WhenFull::Share(Quota::per_second(500).burst(1)));
    for key in ["b", "c", "d"] {
        let mut wait = Box::pin(limiter.acquire(key));
        match key {
            "b" => assert!(poll(&mut wait).is_ready()),
            _ => assert!(poll(&mut wait).is_pending()),
        }
        if key != "b" {
            waits.push(wait);
        }
    }
    assert_eq!(limiter.waiting_total(), 4);
    assert_eq!(times(&hand, &mut waits), [1, 2, 2, 4]);
    assert_eq!(limiter.waiting_total(), 0);
}

#[test]
fn who_waits_keeps_the_place_of_a_key_that_is_evicted() {
    let (limiter, hand) = built(1, |builder| builder.bounded(1));
    let mut waits = crowd(&limiter, "a", 3);
    // Others flood the table, and are deeper in debt.
    for number in 0..200 {
        let _ = limiter.force(&format!("key {number}"), 50);
    }
    assert!(limiter.table_counts().evicted > 0);
    waits.push(queued(limiter.acquire("a")));
    assert_eq!(times(&hand, &mut waits), [1, 2, 3, 4]);
}

#[test]
fn refusals_of_the_key_count_and_those_of_a_full_queue_do_not() {
    let bans = Escalation::new(2, Duration::from_secs(1), Duration::from_secs(1));
    let (limiter, _hand) = built(1, |builder| builder.max_waiting(1).escalate(bans));
    let _first = limiter.try_acquire("a");
    let _wait = queued(limiter.acquire("a"));
    for _ in 0..5 {
        assert!(limiter.acquire("a").block().is_err());
    }
    assert_eq!(limiter.blocked_until("a"), None);
    let (limiter, _hand) = built(1, |builder| builder.escalate(bans));
    let _first = limiter.try_acquire("a");
    for _ in 0..2 {
        let refused = limiter.acquire("a").within(Duration::ZERO).block();
        assert!(matches!(refused, Err(Refused::TooLong { .. })));
    }
    assert!(limiter.blocked_until("a").is_some());
}

#[test]
fn counts_and_waits_are_told_when_the_wait_is_over() {
    let (limiter, hand) = built(1, KeyedBuilder::counted);
    let mut waits = [Box::pin(limiter.acquire("a")), Box::pin(limiter.acquire("a"))];
    let _ = (poll(&mut waits[0]), poll(&mut waits[1]));
    let _ = poll(&mut Box::pin(limiter.acquire("a").within(MS)));
    times(&hand, &mut waits[1..]);
    let counts = limiter.counts();
    assert_eq!((counts.allowed, counts.denied_later), (2, 1));
}

#[test]
fn a_snapshot_is_restored_under_those_who_wait() {
    let folder = std::env::temp_dir().join(format!("tollgate-waiting-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (path, seed) = (folder.join("state"), Seed::random());
    let (saved, _hand) = built(4, |builder| builder.seed(seed));
    let _used = saved.try_acquire_n("a", 3);
    saved.save(&path).unwrap();

    let (limiter, hand) = built(4, |builder| builder.seed(seed));
    let _all = limiter.try_acquire_n("a", 4);
    let mut waits: Vec<_> = (0..2).map(|_| queued(limiter.acquire_n("a", 2))).collect();
    waits.extend(crowd(&limiter, "b", 1));
    assert_eq!(limiter.save(folder.join("busy")).unwrap(), 2);
    assert_eq!(limiter.restore(&path).unwrap(), 1);
    // One is free, so the first waits for one more, and the next for two.
    assert_eq!(times(&hand, &mut waits), [1, 3, 1]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_line_is_there_only_while_somebody_is_in_it() {
    let (limiter, hand) = limiter(1);
    let empty = format!("{limiter:?}");
    for round in 0..3 {
        let keys: Vec<_> = (0..50).map(|number| format!("{round} {number}")).collect();
        let mut waits: Vec<_> = keys.iter().flat_map(|key| crowd(&limiter, key, 2)).collect();
        drop(waits.split_off(50));
        times(&hand, &mut waits);
        hand.advance(10 * MS);
        assert_eq!((limiter.waiting_total(), hand.timers()), (0, 0));
    }
    limiter.shrink();
    assert_eq!(format!("{limiter:?}"), empty, "no key has a slot either");
}
