//! Quotas that come with each call: through every verb of the store in memory.
#![cfg(feature = "testing")]

use crate::support::*;
use std::time::Duration;
use tollgate::{
    Clock, Decision, Initial, ManualClock, Quota, Tick,
    store::{Demand, MemoryStore, Policy, Store},
    testing::block_on,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn stores() -> [(MemoryStore, ManualClock); 2] {
    [None, Some(10_000)].map(|bounded| {
        let (clock, hand) = Clock::manual();
        let builder = MemoryStore::builder().clock(clock);
        let builder = if let Some(keys) = bounded { builder.bounded(keys) } else { builder };
        (builder.build().unwrap(), hand)
    })
}

fn take(store: &MemoryStore, policy: &Policy, cost: u64, text: &str) -> Decision {
    store.acquire_now(&mut [Demand::ad_hoc(policy, b"key", cost, quota(text)).unwrap()]).unwrap()
}

fn left(store: &MemoryStore, policy: &Policy, text: &str) -> u64 {
    let mut demands = [Demand::ad_hoc(policy, b"key", 0, quota(text)).unwrap()];
    block_on(store.peek(&mut demands)).unwrap().remaining()
}

#[test]
fn redis_cells_example_step_by_step() {
    let throttle = Policy::ad_hoc("throttle");
    for (store, hand) in stores() {
        // at_ms, cost, quota, expected, full after ms
        for (row, (at_ms, cost, text, expected, full_ms)) in [
            (0, 1, "30/min burst 16", allowed(15), 2_000),
            (0, 15, "30/min burst 16", allowed(0), 32_000),
            (0, 1, "30/min burst 16", denied_for_ms(2_000), 32_000),
            (0, 17, "30/min burst 16", never(), 32_000),
            (0, 0, "30/min burst 16", allowed(0), 32_000),
            (1_999, 1, "30/min burst 16", denied_for_ms(1), 30_001),
            (2_000, 1, "30/min burst 16", allowed(0), 32_000),
            // Booked for 32 s by any quota: 16 at 1/s of 40, 160 at 10/s of 100.
            (2_000, 1, "1/s burst 40", allowed(7), 33_000),
            (2_000, 1, "10/s burst 100", denied_for_ms(23_100), 33_000),
            (2_000, 1, "1/s burst 0", never(), 33_000),
            (25_100, 1, "10/s burst 100", allowed(0), 10_000),
            (99_000, 1, "10/s burst 100", allowed(99), 100),
        ]
        .into_iter()
        .enumerate()
        {
            hand.set(ms(at_ms));
            let decision = take(&store, &throttle, cost, text);
            assert_eq!(seen(&decision), expected, "row {row}");
            assert_eq!(decision.limit(), quota(text).capacity(), "row {row}");
            let full = decision.reset_after(ms(at_ms));
            assert_eq!(full, Some(Duration::from_millis(full_ms)), "row {row}");
        }
    }
}

#[test]
fn a_window_with_another_limit_each_time() {
    let window = Policy::ad_hoc_window("window", MINUTE).unwrap();
    for (store, hand) in stores() {
        for (row, (at_ms, cost, text, expected)) in [
            (10_000, 7, "10/min", allowed(3)),
            (10_000, 4, "10/min", denied_for_ms(50_000)),
            (10_000, 4, "100/min", allowed(89)),
            (10_000, 0, "10/min", denied_for_ms(50_000)), // eleven of ten
            (10_000, 1, "5/min", denied_for_ms(50_000)),
            (10_000, 6, "5/min", never()),
            (10_000, 1, "0/min", never()),
            (60_000, 5, "5/min", allowed(0)),
            (60_000, 1, "1000000/min", allowed(999_994)),
        ]
        .into_iter()
        .enumerate()
        {
            hand.set(ms(at_ms));
            let decision = take(&store, &window, cost, text);
            assert_eq!(seen(&decision), expected, "row {row}");
            assert_eq!(decision.limit(), quota(text).count(), "row {row}");
        }
    }
}

#[test]
fn every_verb_honours_the_quota_of_the_call() {
    let policies = [Policy::ad_hoc("cell"), Policy::ad_hoc_window("window", MINUTE).unwrap()];
    for (store, _hand) in stores() {
        for policy in &policies {
            let demand = |cost, text| Demand::ad_hoc(policy, b"key", cost, quota(text)).unwrap();
            let left = |text| left(&store, policy, text);
            // Seven per minute: no permit takes a whole number of nanoseconds.
            assert_eq!(block_on(store.force(&demand(9, "7/min"))).unwrap().remaining(), 0);
            assert!(take(&store, policy, 0, "7/min").is_denied(), "a debt");
            assert_eq!(block_on(store.refund(&demand(6, "7/min"))).unwrap(), 6);
            assert_eq!(
                (left("7/min"), left("14/min")),
                (4, if policy.name() == "cell" { 8 } else { 11 })
            );
            block_on(store.reset(&demand(0, "1/min"))).unwrap();
            assert_eq!(left("7/min"), 7);

            let reserved = block_on(store.reserve(&mut [demand(5, "7/min")], MINUTE)).unwrap();
            assert_eq!(left("7/min"), 2);
            assert!(block_on(store.settle(reserved.id.unwrap(), &[2])).unwrap());
            assert_eq!(left("7/min"), 5, "three came back");
            let leased = block_on(store.lease(&mut demand(9, "7/min"), MINUTE)).unwrap();
            assert_eq!((leased.decision.cost(), left("7/min")), (5, 0));
            assert!(block_on(store.settle(leased.id.unwrap(), &[1])).unwrap());
            assert_eq!(left("7/min"), 4);

            assert!(store.contains(&demand(0, "7/min")).unwrap());
            store.reset_now(&demand(0, "7/min")).unwrap();
            assert!(!store.contains(&demand(0, "7/min")).unwrap());
            assert_eq!(demand(1, "7/min").quota(), quota("7/min"));
        }
    }
}

#[test]
fn twins_take_the_time() {
    let policy = Policy::ad_hoc("cell");
    for (store, _hand) in stores() {
        let demand = |cost| Demand::ad_hoc(&policy, b"key", cost, quota("10/s")).unwrap();
        assert_eq!(store.force_at(ms(0), &demand(12)).unwrap().remaining(), 0);
        let seen = store.peek_at(ms(100), &mut [demand(1)]).unwrap();
        assert_eq!(seen.retry_at(), Some(ms(300)));
        assert_eq!(store.refund_at(ms(100), &demand(4)).unwrap(), 4);
        assert_eq!(store.acquire_at(ms(100), &mut [demand(2)]).unwrap().remaining(), 1);
        assert!(store.contains_at(ms(999), &demand(0)).unwrap());
        assert!(!store.contains_at(ms(1_000), &demand(0)).unwrap(), "nine booked from 100 ms on");
    }
}

/// A reservation gives back the time that it took, whatever the quotas of other calls are.
#[test]
fn reservations_of_two_quotas_give_back_what_each_took() {
    let policy = Policy::ad_hoc("cell");
    for (store, _hand) in stores() {
        let demand = |text| Demand::ad_hoc(&policy, b"key", 4, quota(text)).unwrap();
        let first = block_on(store.reserve(&mut [demand("10/s burst 20")], MINUTE)).unwrap();
        let other = block_on(store.reserve(&mut [demand("100/s burst 200")], MINUTE)).unwrap();
        assert_eq!(left(&store, &policy, "100/s burst 200"), 156);
        assert!(block_on(store.settle(first.id.unwrap(), &[0])).unwrap());
        assert_eq!(left(&store, &policy, "100/s burst 200"), 196);
        assert!(block_on(store.settle(other.id.unwrap(), &[0])).unwrap());
        assert_eq!(left(&store, &policy, "100/s burst 200"), 200);
    }
}

#[test]
fn mixes_with_other_policies_all_or_none() {
    let (cell, window) = (Policy::ad_hoc("cell"), Policy::ad_hoc_window("w", SECOND).unwrap());
    let fixed = Policy::new("fixed", Quota::per_minute(3)).unwrap();
    for (store, _hand) in stores() {
        let ask = |burst: u64| {
            let quota = Quota::per_minute(3).burst(burst);
            let mut demands = [
                Demand::ad_hoc(&cell, b"key", 1, quota).unwrap(),
                Demand::ad_hoc(&window, b"key", 2, Quota::per_second(7)).unwrap(),
                Demand::new(&fixed, b"key", 1),
            ];
            let decision = store.acquire_now(&mut demands).unwrap();
            (decision.refusing().collect::<Vec<_>>(), demands.map(|it| it.decision().unwrap()))
        };
        let (refusing, own) = ask(2);
        assert_eq!((refusing, own.map(|own| own.remaining())), (vec![], [1, 5, 2]));
        let (refusing, own) = ask(1);
        assert_eq!((refusing, own.map(|own| own.remaining())), (vec![0], [0, 5, 2]));
        assert!(ask(9).0.is_empty());
        assert!(ask(9).0.is_empty());
        let (refusing, own) = ask(9);
        assert_eq!(refusing, [1, 2], "seven of seven, and three of three");
        assert_eq!(own.map(|own| own.remaining()), [6, 1, 0]);
    }
}

#[test]
fn any_number_of_quotas_is_told_apart() {
    let policy = Policy::ad_hoc("cell");
    for (store, _hand) in stores() {
        for number in 1..=5_000_u64 {
            let (key, quota) = (number.to_be_bytes(), Quota::per_hour(number).burst(number + 1));
            let cost = number.min(3);
            let decision =
                store.acquire_now(&mut [Demand::ad_hoc(&policy, &key, cost, quota).unwrap()]);
            assert_eq!(decision.unwrap().remaining(), number + 1 - cost, "{number}");
        }
        assert_eq!(store.len(), 5_000);
        let fixed = Policy::new("fixed", Quota::per_hour(1)).unwrap();
        assert!(store.acquire_now(&mut [Demand::new(&fixed, b"k", 1)]).is_ok());
    }
}

#[test]
fn keys_at_rest_leave_and_full_tables_stay_bounded() {
    let policies = [Policy::ad_hoc("cell"), Policy::ad_hoc_window("w", SECOND).unwrap()];
    for policy in &policies {
        let (clock, hand) = Clock::manual();
        let builder = MemoryStore::builder().clock(clock);
        let (capped, grown) =
            (builder.max_keys(100).build().unwrap(), MemoryStore::builder().clock(hand.clock()));
        let grown = grown.build().unwrap();
        for number in 0..12_000_u64 {
            hand.advance(Duration::from_millis(20));
            let (key, quota) = (number.to_be_bytes(), Quota::per_second(1 + number % 7));
            for store in [&capped, &grown] {
                let mut demands = [Demand::ad_hoc(policy, &key, 1, quota).unwrap()];
                assert!(store.acquire_now(&mut demands).unwrap().is_allowed());
            }
        }
        assert!(capped.len() <= 100, "{}", capped.len());
        // 1024 shards, each with a few keys that were not used since.
        assert!(grown.len() < 6_000, "{} of 50 live", grown.len());
    }
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    let (cell, window) = (Policy::ad_hoc("cell"), Policy::ad_hoc_window("w", MINUTE).unwrap());
    let fixed = Policy::new("fixed", Quota::per_minute(3)).unwrap();
    let year = Duration::from_secs(365 * 86_400);
    for (policy, quota, text) in [
        (&fixed, Quota::per_minute(3), "the policy has a quota of its own"),
        (&cell, Quota::per(1, Duration::ZERO), "1 permits per zero time"),
        (&cell, Quota::per_second(0), "a burst of 0 that never refills"),
        (&cell, Quota::once(5), "a burst of 5 that never refills"),
        (&cell, Quota::unlimited(), "an unlimited quota"),
        (&cell, Quota::per_second(1).initial(Initial::Empty), "has no initial fill"),
        (&cell, Quota::per(1, year).burst(1_001), "takes more than 4.5 years to refill"),
        (&window, Quota::per_second(3), "does not fit a policy with windows of 60s"),
        (&window, Quota::per_minute(3).burst(9), "burst 9 has no effect"),
        (&window, Quota::per_minute(1 << 50), "is above"),
    ] {
        let error = Demand::ad_hoc(policy, b"key", 1, quota).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert!(Policy::ad_hoc_window("w", Duration::ZERO).is_err());
    assert!(Policy::ad_hoc_window("w", 2 * year).is_err());

    let store = MemoryStore::new();
    let error = store.acquire_now(&mut [Demand::new(&cell, b"key", 1)]).unwrap_err();
    assert!(error.is_invalid());
    assert!(error.to_string().contains("give one with Demand::ad_hoc"), "{error}");
    let mut twice = [1, 2].map(|n| Demand::ad_hoc(&cell, b"k", 1, Quota::per_second(n)).unwrap());
    let error = store.acquire_now(&mut twice).unwrap_err();
    assert!(error.to_string().contains("appears twice with two quotas"), "{error}");
    // Also beside other demands, and once the policies are in force.
    for policy in [&cell, &window] {
        let own = Demand::ad_hoc(policy, b"first", 1, Quota::per_minute(5)).unwrap();
        let mut first = [Demand::new(&fixed, b"first", 1), own];
        assert!(store.acquire_now(&mut first).unwrap().is_allowed());
        let mut demands = [&fixed, policy].map(|it| Demand::new(it, b"first", 1));
        let error = store.acquire_now(&mut demands).unwrap_err();
        assert!(error.to_string().contains("give one with Demand::ad_hoc"), "{error}");
    }
    assert!(cell.is_ad_hoc() && window.is_ad_hoc() && !fixed.is_ad_hoc());
}

#[test]
fn a_restart_changes_nothing() {
    let policies = [Policy::ad_hoc("cell"), Policy::ad_hoc_window("w", MINUTE).unwrap()];
    for (policy, bounded) in policies.iter().flat_map(|it| [(it, false), (it, true)]) {
        for down_ms in [0_u64, 1, 7_777, 45_000, 90_000] {
            let folder = Folder::new();
            let start = |tick: Tick, wall: Duration| {
                let (clock, hand) = Clock::manual();
                hand.set(tick);
                clock.set_wall_offset(wall - Duration::from_nanos(tick.as_nanos()));
                let builder = MemoryStore::builder().clock(clock).seed(folder.seed());
                let builder = if bounded { builder.bounded(500) } else { builder };
                (builder.build().unwrap(), hand)
            };
            let wall = Duration::from_secs(1_800_000_011);
            let (before, hand) = start(ms(5_000_000), wall);
            let demand = |number: &u64, cost: u64| {
                let quota = Quota::per_minute(20 + number);
                (number.to_be_bytes(), cost, quota)
            };
            let ask = |store: &MemoryStore, (key, cost, quota): ([u8; 8], u64, Quota)| {
                store.acquire_now(&mut [Demand::ad_hoc(policy, &key, cost, quota).unwrap()])
            };
            for number in 0..100 {
                let _ = ask(&before, demand(&number, 1 + number % 20)).unwrap();
            }
            assert_eq!(before.save(folder.file("state")).unwrap(), 100);
            let down = Duration::from_millis(down_ms);
            hand.advance(down);
            // Like real clocks, a new one starts a year after its origin.
            let (after, _) = start(ms(366 * 86_400_000 + 77), wall + down);
            after.restore(folder.file("state")).unwrap();
            for number in 0..100 {
                let [old, new] =
                    [&before, &after].map(|store| ask(store, demand(&number, 20)).unwrap());
                assert_eq!(new.remaining(), old.remaining(), "{number} after {down_ms} ms");
                let [old, new] = [old, new].map(|it| it.retry_after(it.at()).unwrap_or_default());
                let apart = old.abs_diff(new);
                assert!(apart <= Duration::from_nanos(1), "{number} after {down_ms} ms: {apart:?}");
            }
        }
    }
}

#[test]
fn many_threads_admit_exactly_what_the_quotas_say() {
    let policies = [Policy::ad_hoc("cell"), Policy::ad_hoc_window("w", MINUTE).unwrap()];
    for (store, _hand) in stores() {
        for policy in &policies {
            // The same quota in two notations.
            let quotas = [Quota::per_minute(700), Quota::per_minute(700).burst(700)];
            let admitted: u64 = std::thread::scope(|scope| {
                let ask = |quota: Quota| {
                    let store = &store;
                    scope.spawn(move || {
                        let take = |_: &u32| {
                            let mut demands = [Demand::ad_hoc(policy, b"k", 1, quota).unwrap()];
                            store.acquire_now(&mut demands).unwrap().is_allowed()
                        };
                        (0..300).filter(take).count() as u64
                    })
                };
                let threads: Vec<_> = (0..8).map(|number| ask(quotas[number % 2])).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(admitted, 700, "{}", policy.name());
        }
    }
}

/// Reservations of a rate are open while their policy becomes a budget that never refills. To settle them wrote a time
/// over the permits that the budget had counted, which freed it.
#[test]
fn reservations_of_a_rate_free_nothing_of_a_budget() {
    let rate = Policy::new("p", Quota::per_second(10)).unwrap();
    let budget = Policy::new("p", Quota::once(1000)).unwrap();
    for actual in [0, 20] {
        for (store, hand) in stores() {
            let reserve = || block_on(store.reserve(&mut [Demand::new(&rate, b"key", 1)], MINUTE));
            let open: Vec<_> = (0..5).map(|_| reserve().unwrap().id.unwrap()).collect();
            let mut passed = 0;
            let mut drain = || {
                while store.acquire_one_now(&budget, b"key", 1).unwrap().is_allowed() {
                    passed += 1;
                }
            };
            drain();
            for id in open {
                assert!(block_on(store.settle(id, &[actual])).unwrap());
                hand.advance(SECOND);
                drain();
            }
            assert_eq!(passed, 1000, "settled with {actual}");
        }
    }
}
