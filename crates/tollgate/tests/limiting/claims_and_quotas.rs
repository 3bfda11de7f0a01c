//! Faults that a review found: every test here failed once, and its comment describes the fault.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic and wait")]

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};
use tollgate::{
    Assigned, Clock, KeyedBuilder, KeyedLimiter, Limiter, Limits, ManualClock, Quota, Tick,
    WhenFull,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn keyed(quota: Quota) -> (KeyedBuilder<str>, ManualClock) {
    let (clock, hand) = Clock::manual();
    hand.advance(HOUR);
    (KeyedLimiter::builder(quota).clock(clock), hand)
}

fn keys(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

// ---- locks ----

/// A refund locks the claims of a key, and a change of quota those of all keys.
#[test]
fn a_refund_and_a_change_of_quota_do_not_wait_for_each_other() {
    let limiter = Arc::new(keyed(Quota::per_hour(10)).0.build().unwrap());
    let (done, ended) = mpsc::channel();
    let changer = {
        let (limiter, done) = (Arc::clone(&limiter), done.clone());
        move || {
            for round in 0..600 {
                limiter.set_quota(Quota::per_hour(10 + round % 2)).unwrap();
            }
            done.send(()).unwrap();
        }
    };
    let refunder = move || {
        for _ in 0..30_000 {
            limiter.refund("key", 1);
        }
        done.send(()).unwrap();
    };
    thread::spawn(changer);
    thread::spawn(refunder);
    for _ in 0..2 {
        assert!(ended.recv_timeout(Duration::from_secs(60)).is_ok(), "deadlock");
    }
}

/// What a longer quota has left counts as one burst from the change on. It counted again as soon as it came
/// within a burst: a key of "10/h" that had been full of "10/s" for an hour was empty for a second.
#[test]
fn a_key_that_has_refilled_after_a_change_stays_full() {
    let (builder, hand) = keyed(Quota::per_hour(10));
    let limiter = builder.build().unwrap();
    assert!(limiter.try_acquire_n("key", 10).is_allowed());
    limiter.set_quota(Quota::per_second(10)).unwrap();
    for (wait, available) in
        [(SECOND / 2, 5), (SECOND / 2, 10), (HOUR - 2 * SECOND, 10), (SECOND / 2, 10)]
    {
        hand.advance(wait);
        assert_eq!(limiter.available("key"), available, "at {:?}", limiter.now());
    }
}

/// The same at the next change: what was left counted from the latest one.
#[test]
fn a_key_that_has_refilled_after_a_change_stays_full_at_the_next_one() {
    let (builder, hand) = keyed(Quota::per_hour(10));
    let limiter = builder.build().unwrap();
    assert!(limiter.try_acquire_n("key", 10).is_allowed());
    limiter.set_quota(Quota::per_second(10)).unwrap();
    hand.advance(10 * SECOND);
    for count in [10, 20, 40, 10] {
        limiter.set_quota(Quota::per_second(count)).unwrap();
        assert_eq!(limiter.available("key"), count);
    }
}

/// The same where the longer quota takes a quarter longer: the wait for ten is over when it was said to be.
#[test]
fn a_wait_named_after_a_change_is_exact() {
    let (builder, hand) = keyed(Quota::per_second(10).burst(13));
    let limiter = builder.build().unwrap();
    assert!(limiter.try_acquire_n("key", 13).is_allowed());
    limiter.set_quota(Quota::per_second(9).burst(10)).unwrap();
    let denied = limiter.try_acquire_n("key", 10);
    hand.advance(denied.retry_after(limiter.now()).unwrap());
    assert!(limiter.try_acquire_n("key", 10).is_allowed(), "{denied:?}");
}

// ---- reservations ----

/// A ledger that is emptied by `reset` is removed, and the next one counts its ids from zero
/// again: the old reservation names the new one's entry.
#[test]
fn a_reservation_of_before_a_reset_gives_nothing_back() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let limiter = builder.build().unwrap();
    let old = limiter.reserve("key", 5).unwrap();
    limiter.reset("key");
    let new = limiter.reserve("key", 5).unwrap();
    assert_eq!(old.cancel(), 0, "final since the reset");
    assert_eq!(limiter.available("key"), 5);
    new.keep();
}

/// The same by `clear`, and the other way round: dropping the old one takes the new one's right.
#[test]
fn a_reservation_of_before_a_clear_takes_no_right_away() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let limiter = builder.build().unwrap();
    let old = limiter.reserve("key", 5).unwrap();
    limiter.clear();
    let new = limiter.reserve("key", 5).unwrap();
    drop(old);
    assert_eq!(new.cancel(), 5);
}

/// A reservation is an amount of time, whatever the quota.
#[test]
fn a_reservation_of_before_a_change_of_quota_gives_back_what_it_took() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let limiter = builder.build().unwrap();
    let old = limiter.reserve("key", 5).unwrap();
    limiter.set_quota(Quota::per_hour(10).burst(20)).unwrap();
    let new = limiter.reserve("key", 5).unwrap();
    assert_eq!(old.cancel(), 5);
    assert_eq!(limiter.available("key"), 15);
    new.keep();
}

/// A reservation of nothing moved an idle limiter to its time: an earlier call was refused.
#[test]
fn a_reservation_of_nothing_changes_nothing() {
    let limiter = Limiter::new(Quota::per_second(10)).unwrap();
    let (early, late) = (Tick::from_secs(1), Tick::from_secs(2));
    limiter.reserve_at(late, 0, Duration::ZERO).unwrap().keep();
    assert!(limiter.try_acquire_at(early, 10).is_allowed());
}

/// A shorter quota cuts what is booked to one burst. Each reservation of before gave back its own time all
/// the same: ten of "10/h" freed a burst of "10/s" each.
#[test]
fn reservations_of_before_a_shorter_quota_give_back_one_burst_in_all() {
    for youngest_first in [false, true] {
        let (builder, hand) = keyed(Quota::per_hour(10));
        let limiter = builder.build().unwrap();
        let mut old: Vec<_> = (0..10).map(|_| limiter.reserve("key", 1).unwrap()).collect();
        hand.advance(SECOND);
        limiter.set_quota(Quota::per_second(10)).unwrap();
        // One that is made meanwhile keeps its claim.
        assert_eq!(limiter.reserve("key", 1).unwrap().cancel(), 1);
        if youngest_first {
            old.reverse();
        }
        let mut passed = 0;
        for reservation in old {
            reservation.cancel();
            while limiter.try_acquire("key").is_allowed() {
                passed += 1;
            }
        }
        assert_eq!(passed, 10, "at one instant; the youngest first: {youngest_first}");
    }
}

/// A place on the time line of one quota means nothing to a budget, which counts permits.
#[test]
fn a_claim_does_not_outlive_a_change_to_a_budget() {
    let (builder, hand) = keyed(Quota::per_hour(1));
    let limiter = builder.build().unwrap();
    limiter.override_quota("key", Quota::per_hour(100), None).unwrap();
    let old = limiter.reserve("key", 100).unwrap();
    hand.advance(3 * HOUR);
    limiter.override_quota("key", Quota::once(1_000_000_000), None).unwrap();
    let _ = limiter.try_acquire_n("key", 60_000);
    let before = limiter.available("key");
    assert_eq!((old.cancel(), limiter.available("key")), (0, before));
}

/// When a reservation ends, the limiter does not call the function of the key, so after `life` the
/// key counts as one of the default class: its claim is dropped.
#[test]
fn a_cancel_gives_back_after_the_life_of_a_chosen_quota() {
    let (builder, hand) = keyed(Quota::per_hour(1));
    let limiter =
        builder.quota_by(SECOND, |_| Assigned::Quota(Quota::per_hour(100))).build().unwrap();
    let reservation = limiter.reserve("key", 50).unwrap();
    hand.advance(2 * SECOND);
    assert!(reservation.cancel() >= 49);
}

/// As above, and worse: settling with more converts the state to the default quota, and the part
/// above that quota's burst is lost when the key comes back.
#[test]
fn a_settlement_leaves_a_key_with_its_chosen_quota() {
    let (builder, hand) = keyed(Quota::per_hour(1));
    let limiter =
        builder.quota_by(SECOND, |_| Assigned::Quota(Quota::per_hour(100))).build().unwrap();
    let reservation = limiter.reserve("key", 5).unwrap();
    hand.advance(2 * SECOND);
    let _ = reservation.settle(6);
    assert!(limiter.available("key") >= 94, "{} left", limiter.available("key"));
}

/// A reservation of nothing has no entry, so nothing is booked when its actual cost is not zero.
#[test]
fn a_reservation_of_nothing_can_be_settled_with_something() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let limiter = builder.build().unwrap();
    let reservation = limiter.reserve("key", 0).unwrap();
    let _ = reservation.settle(4);
    assert_eq!(limiter.available("key"), 6);
}

/// If a key finds no room, `KeyedLimiter::reserve` takes from the shared budget, and the
/// reservation cannot be given back (that of `Limits::reserve` can).
#[test]
fn a_reservation_from_the_shared_budget_can_be_cancelled() {
    let (builder, _hand) = keyed(Quota::per_hour(1));
    let shared = WhenFull::Share(Quota::per_hour(1));
    let limiter = builder.max_keys(1).when_full(shared).build().unwrap();
    assert!(limiter.try_acquire("in").is_allowed());
    limiter.reserve("out", 1).unwrap().cancel();
    assert!(limiter.try_acquire("out").is_allowed());
}

// ---- several limits ----

/// Two new keys without room share one budget, but are decided as if each had its own: the search
/// for `leader` uses the charges as given, before the budget takes the place of the keys.
#[test]
fn two_keys_without_room_do_not_overdraw_what_they_share() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let shared = WhenFull::Share(Quota::per_hour(1));
    let limiter = builder.max_keys(1).when_full(shared).build().unwrap();
    assert!(limiter.try_acquire("in").is_allowed());
    let charges = [limiter.charge("out", 1), limiter.charge("also out", 1)];
    assert!(Limits::new(&charges).unwrap().try_acquire().is_denied(), "one permit for two");
}

/// A key without room occurs twice, beside a limit that refuses: only the first of the two is
/// marked as saturated. The other still tries the table and gets `Full`, which `look_untouched`
/// takes for `Stale`: the decision starts again forever.
#[test]
fn a_key_without_room_that_is_given_twice_is_decided() {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let (builder, _hand) = keyed(Quota::per_hour(10));
        let shared = WhenFull::Share(Quota::per_hour(10));
        let limiter = builder.max_keys(1).when_full(shared).build().unwrap();
        assert!(limiter.try_acquire("in").is_allowed());
        let spent = Limiter::new(Quota::once(0)).unwrap();
        let charges = [limiter.charge("out", 1), limiter.charge("out", 1), spent.charge(1)];
        done.send(Limits::new(&charges).unwrap().try_acquire().is_denied()).unwrap();
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(true), "it never ends");
}

// ---- quotas ----

/// `Core::who` reads the override before it reads the stamp: if the class is retired and its number
/// given to another quota in between, the check passes and the decision is made under the other
/// quota.
#[test]
fn no_decision_is_made_under_the_quota_of_another_tier() {
    let (small, large) = (Quota::per_hour(10), Quota::per_hour(1_000_000));
    let limiter = KeyedLimiter::<str>::builder(Quota::per_hour(1))
        .tier("small", small)
        .tier("large", large)
        .build()
        .unwrap();
    limiter.assign("key", "small", None).unwrap();
    let (wrong, end) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !end.load(Relaxed) {
                    let limit = limiter.peek("key").limit();
                    wrong.fetch_add(u64::from(limit != 10), Relaxed);
                }
            });
        }
        for _ in 0..1000 {
            limiter.set_tier("small", small).unwrap();
            limiter.set_tier("large", large).unwrap();
        }
        end.store(true, Relaxed);
    });
    assert_eq!(wrong.load(Relaxed), 0, "a key of the small tier was told another limit");
}

/// Also for keys whose slot moves to its other bucket meanwhile.
#[test]
fn a_budget_keeps_what_is_used_through_changes_of_quota() {
    let (builder, _hand) = keyed(Quota::once(1000));
    let limiter =
        builder.bounded(8000).when_full(WhenFull::Refuse).fast_fingerprints().build().unwrap();
    let watched = keys("watched", 6000);
    for key in &watched {
        assert_eq!(limiter.try_acquire_n(key, 900).remaining(), 100);
    }
    let quotas = [Quota::once(1000), Quota::once(100_000), Quota::once(30_000_000)];
    let end = AtomicBool::new(false);
    let wrong = thread::scope(|scope| {
        for number in 0..2 {
            let (limiter, end) = (&limiter, &end);
            scope.spawn(move || {
                let churn = keys(&format!("churn{number}-"), 3600);
                for key in &churn[..2600] {
                    let _ = limiter.try_acquire(key);
                }
                let mut at = 0;
                while !end.load(Relaxed) {
                    limiter.reset(&churn[at % 3600]);
                    let _ = limiter.try_acquire(&churn[(at + 2600) % 3600]);
                    at += 1;
                }
            });
        }
        let (mut rounds, mut wrong) = (0, 0);
        while rounds < 4 && wrong == 0 {
            rounds += 1;
            for round in 1..=60 {
                limiter.set_quota(quotas[round % 3]).unwrap();
            }
            wrong = watched.iter().filter(|key| limiter.available(key) != 100).count();
        }
        end.store(true, Relaxed);
        wrong
    });
    assert_eq!(wrong, 0, "keys with another number of permits left than before");
}

/// The answer of the function counts only if there is room for an override; without room, or with a
/// life of zero, the key silently has the default quota. `unusable_quotas` does not go up.
#[test]
fn a_chosen_quota_without_room_for_a_note_is_counted() {
    let (builder, _hand) = keyed(Quota::per_hour(1));
    let choose = |_: &str| Assigned::Quota(Quota::per_hour(100));
    let limiter = builder.max_notes(1).quota_by(HOUR, choose).build().unwrap();
    let limits: Vec<u64> =
        keys("key", 10).iter().map(|key| limiter.try_acquire(key).limit()).collect();
    let default = limits.iter().filter(|limit| **limit == 1).count() as u64;
    assert!(default > 0, "one note does not do for ten keys");
    assert_eq!(limiter.table_counts().unusable_quotas, default);
}

#[test]
fn a_chosen_quota_that_is_not_kept_holds_nevertheless() {
    let (builder, _hand) = keyed(Quota::per_hour(1));
    let choose = |_: &str| Assigned::Quota(Quota::per_hour(100));
    let limiter = builder.quota_by(Duration::ZERO, choose).build().unwrap();
    assert_eq!(limiter.try_acquire("key").limit(), 100);
}

/// The function's answer replaces an override that was made while the function ran.
#[test]
fn an_override_is_not_undone_by_a_slow_function() {
    let (builder, _hand) = keyed(Quota::per_hour(1));
    let (called, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let barriers = (Arc::clone(&called), Arc::clone(&go_on));
    let is_first = AtomicBool::new(true);
    let choose = move |_: &str| {
        if is_first.swap(false, Relaxed) {
            barriers.0.wait();
            barriers.1.wait();
        }
        Assigned::Default
    };
    let limiter = builder.quota_by(HOUR, choose).build().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = limiter.try_acquire("key");
        });
        called.wait();
        limiter.override_quota("key", Quota::per_hour(500), None).unwrap();
        go_on.wait();
    });
    assert_eq!(limiter.quota_of("key").count(), 500);
}
