//! Trees in which every level must agree: H1 to H5, paths as nodes, and invalid trees.

use crate::support::*;
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, Decision, Hierarchy, Quota, WhenFull,
    hierarchy::{Level, PathError, StrictTree, Unreserved},
};

/// A tree of a root and a level of users, on a manual clock.
fn two_levels(root: Quota, user: Quota) -> StrictTree {
    let (clock, _) = Clock::manual();
    Hierarchy::strict("global", root).level("user", user).clock(clock).build().unwrap()
}

/// The remaining permits of each level.
fn left(tree: &StrictTree, path: &[&str]) -> Vec<u64> {
    let mut left = Vec::new();
    let told = |_, decision: &Decision| left.push(decision.remaining());
    let _ = tree.peek_each_at(path, (tree.now(), 0), told).unwrap();
    left
}

#[test]
fn h1_the_level_that_refuses_is_named_and_the_other_keeps_its_permits() {
    let tree = two_levels(Quota::per_second(3), Quota::per_second(5));
    for _ in 0..3 {
        assert!(tree.try_acquire(&["alice"]).unwrap().is_allowed());
    }
    let fourth = tree.try_acquire(&["alice"]).unwrap();
    assert!(fourth.is_denied());
    let names: Vec<_> = fourth.refusing().map(|level| tree.level_name(level).unwrap()).collect();
    assert_eq!(names, ["global"]);
    assert_eq!(left(&tree, &["alice"]), [0, 2], "the user was not charged for it");
    let third_of_a_second = Duration::from_nanos(333_333_334);
    assert_eq!(fourth.retry_after(ms(0)), Some(third_of_a_second), "1/3 s, rounded up to a tick");
    assert!(tree.peek_at(&["alice"], ns(333_333_333), 1).unwrap().is_denied());
    assert!(tree.try_acquire_at(&["alice"], ns(333_333_334), 1).unwrap().is_allowed());
}

#[test]
fn h2_64_threads_leak_nothing_on_any_level() {
    const USERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let tree = two_levels(Quota::once(1000), Quota::once(1000));
    let (admitted, barrier) = (AtomicU64::new(0), Barrier::new(64));
    thread::scope(|scope| {
        for number in 0..64 {
            let (tree, admitted, barrier) = (&tree, &admitted, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let user = USERS[number % USERS.len()];
                let passes = |_: &i32| tree.try_acquire_at(&[user], ms(0), 1).unwrap().is_allowed();
                let count = (0..10_000).filter(passes).count();
                admitted.fetch_add(count as u64, Relaxed);
            });
        }
    });
    assert_eq!(admitted.load(Relaxed), 1000);
    let debits: u64 = USERS.iter().map(|user| 1000 - left(&tree, &[user])[1]).sum();
    assert_eq!((debits, left(&tree, &[])[0]), (1000, 0), "nobody paid for a refusal");
}

#[test]
fn h3_a_refused_cost_changes_nothing_and_one_above_a_burst_never_passes() {
    let tree = two_levels(Quota::per_second(9), Quota::per_second(4));
    assert!(tree.try_acquire_n(&["alice"], 2).unwrap().is_allowed());
    let refused = tree.try_acquire_n(&["alice"], 3).unwrap();
    assert_eq!(refused.refusing().collect::<Vec<_>>(), [1]);
    assert_eq!(left(&tree, &["alice"]), [7, 2]);
    let never = tree.try_acquire_n(&["alice"], 5).unwrap();
    assert!(never.is_never() && never.retry_at().is_none());
    assert_eq!(tree.try_acquire_n(&["alice"], 10).unwrap().refusing().count(), 2);
    assert_eq!(left(&tree, &["alice"]), [7, 2]);
}

#[test]
fn h4_a_cancel_restores_each_level_by_what_is_outstanding() {
    let quotas = (Quota::per_second(10).burst(20), Quota::per_second(1).burst(5));
    let tree = two_levels(quotas.0, quotas.1);
    let path = ["alice"];
    // At once: each level by its whole cost.
    tree.reserve(&path, 3).unwrap().cancel_at(ms(0));
    assert_eq!(left(&tree, &path), [20, 5]);
    // After 200 ms the root has refilled 2 of 3, the user 0.2: each gives back its own rest.
    tree.reserve(&path, 3).unwrap().cancel_at(ms(200));
    let peek = |at| tree.peek_at(&path, at, 0).unwrap().remaining();
    assert_eq!(peek(ms(200)), 5);
    // After the debt has drained: nothing. The permits that B took meanwhile stay taken.
    let a = tree.reserve_at(&path, ms(1_000), 2).unwrap();
    let b = tree.reserve_at(&path, ms(60_000), 4).unwrap();
    a.cancel_at(ms(60_000));
    assert_eq!(peek(ms(60_000)), 1, "B's debit is intact");
    b.cancel_at(ms(60_000));
    assert_eq!(peek(ms(60_000)), 5);
    match tree.reserve(&path, 6).unwrap_err() {
        Unreserved::Denied(decision) => assert!(decision.is_never()),
        other => panic!("{other}"),
    }
}

#[test]
fn h4_two_pending_cancels_never_credit_more_than_was_taken() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let tree = two_levels(Quota::per_second(7).burst(40), Quota::per_second(3).burst(30));
        let twin = two_levels(Quota::per_second(7).burst(40), Quota::per_second(3).burst(30));
        let (mut now, mut open) = (0, Vec::new());
        for _ in 0..60 {
            now += random.below(700);
            let cost = 1 + random.below(6);
            // The twin takes only the permits that were kept: it may never have less than the tree.
            match tree.reserve_at(&["u"], ms(now), cost) {
                Ok(ticket) if random.below(2) == 0 => open.push(ticket),
                Ok(ticket) => {
                    ticket.keep();
                    assert!(twin.try_acquire_at(&["u"], ms(now), cost).unwrap().is_allowed());
                }
                Err(_) => {}
            }
            if random.below(3) == 0 && !open.is_empty() {
                open.swap_remove(random.below(open.len() as u64) as usize).cancel_at(ms(now));
            }
            let held = |tree: &StrictTree| tree.peek_at(&["u"], ms(now), 0).unwrap().remaining();
            assert!(held(&tree) <= held(&twin), "seed {seed} at {now} ms");
        }
    }
}

#[test]
fn h5_a_million_refusals_by_the_root_waste_nothing_below() {
    let tree = two_levels(Quota::once(0), Quota::once(5));
    let count = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    for _ in 0..count {
        assert!(tree.try_acquire_at(&["alice"], ms(0), 1).unwrap().is_denied());
    }
    assert_eq!(left(&tree, &["alice"]), [0, 5]);
    assert_eq!(tree.nodes(1), 0, "nobody was noted");
}

#[test]
fn another_prefix_is_another_node_and_separators_do_not_collide() {
    let (clock, _) = Clock::manual();
    let tree = Hierarchy::strict("global", Quota::unlimited())
        .level("tenant", Quota::once(100))
        .level("user", Quota::once(1))
        .level("endpoint", Quota::once(1))
        .clock(clock)
        .build()
        .unwrap();
    for path in [
        ["acme", "alice", "/"],
        ["other", "alice", "/"],
        ["a_b", "c", "/"],
        ["a", "b_c", "/"],
        ["a", "b", "_c/"],
        ["", "a", ""],
        ["a", "", ""],
    ] {
        assert!(tree.try_acquire(&path).unwrap().is_allowed(), "{path:?}");
        assert!(tree.try_acquire(&path).unwrap().is_denied(), "{path:?}");
    }
    assert_eq!(left(&tree, &["a"])[1], 97, "three users of one tenant");
}

#[test]
fn a_short_path_asks_only_its_levels() {
    let (clock, _) = Clock::manual();
    let tree = Hierarchy::strict("global", Quota::once(10))
        .level("tenant", Quota::once(5))
        .level("user", Level::new(Quota::per_hour(2)).algorithm(Algorithm::SlidingLog))
        .clock(clock)
        .build()
        .unwrap();
    assert!(tree.try_acquire_n(&[], 4).unwrap().is_allowed());
    assert!(tree.try_acquire_n(&["acme"], 3).unwrap().is_allowed());
    assert_eq!(left(&tree, &["acme", "alice"]), [3, 2, 2]);
    assert!(tree.try_acquire_n(&["acme", "alice"], 2).unwrap().is_allowed());
    let refused = tree.try_acquire_n(&["acme", "alice"], 2).unwrap();
    assert_eq!(refused.refusing().collect::<Vec<_>>(), [0, 1, 2], "every level");
    let too_long = tree.try_acquire(&["acme", "alice", "x"]).unwrap_err();
    assert_eq!(too_long, PathError::TooLong { parts: 3, levels: 2 });
    assert_eq!(
        too_long.to_string(),
        "a path of 3 parts is longer than the 2 levels below the root; leave parts out, or add \
         levels"
    );
    assert_eq!((tree.depth(), tree.level_name(2), tree.level_name(3)), (3, Some("user"), None));
    assert_eq!(format!("{tree:?}"), r#"["global", "tenant", "user"]"#);
}

#[test]
fn quotas_change_while_the_tree_is_in_use() {
    let (clock, hand) = Clock::manual();
    let tree = Hierarchy::strict("global", Quota::per_hour(100))
        .level("tenant", Quota::per_hour(10))
        .level("user", Quota::per_hour(10))
        .clock(clock)
        .build()
        .unwrap();
    let path = ["acme", "alice"];
    assert!(tree.try_acquire_n(&path, 4).unwrap().is_allowed());
    tree.set_quota("user", Quota::per_hour(5)).unwrap();
    assert_eq!(left(&tree, &path), [96, 6, 3], "24 minutes of an hour are used");
    tree.set_quota("global", Quota::per_hour(50)).unwrap();
    assert_eq!(left(&tree, &path)[0], 46);
    tree.override_quota(&["acme"], Quota::per_hour(99), Some(Duration::from_secs(60))).unwrap();
    let quota = |path: &[&str]| tree.quota_of(path).unwrap().count();
    assert_eq!([quota(&["acme"]), quota(&["other"]), quota(&[]), quota(&path)], [99, 10, 50, 5]);
    hand.advance(Duration::from_secs(60));
    assert_eq!(quota(&["acme"]), 10);
    assert!(!tree.clear_override(&["acme"]).unwrap());
    for (error, text) in [
        (
            tree.set_quota("usr", Quota::per_hour(1)),
            "there is no level or class \"usr\"; use a name given to the builder",
        ),
        (
            tree.override_quota(&[], Quota::per_hour(1), None),
            "\"global\" is a single node and has no quotas of single nodes; remove it, or make the \
             level keyed",
        ),
        (
            tree.set_quota("user", Quota::per(1, Duration::ZERO)),
            "\"user\": 1 permits per zero time is not a rate; give a period of at least 1 ns, or \
             use unlimited",
        ),
    ] {
        assert_eq!(error.unwrap_err().to_string(), text);
    }
}

/// Quotas that change while 8 threads take: every admission is charged on every level, once.
#[test]
fn changing_quotas_under_threads_charges_all_levels_or_none() {
    for bounded in [false, true] {
        let (clock, _) = Clock::manual();
        let level = || {
            let level = Level::new(Quota::once(1_000_000));
            if bounded { level.bounded(64) } else { level }
        };
        let tree = Hierarchy::strict("global", Quota::once(1_000_000))
            .level("tenant", level())
            .level("user", level())
            .clock(clock)
            .build()
            .unwrap();
        // Nodes that are in use keep their remaining permits while their burst grows.
        for user in 0..8_u64 {
            let path = [&*(user % 2).to_string(), &*user.to_string()];
            assert!(tree.try_acquire(&path).unwrap().is_allowed());
        }
        let (done, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let takers: Vec<_> = (0..8_u64)
                .map(|number| {
                    let (tree, admitted) = (&tree, &admitted);
                    scope.spawn(move || {
                        let (tenant, user) = ((number % 2).to_string(), number.to_string());
                        for _ in 0..4_000 {
                            let decision = tree.try_acquire(&[&tenant, &user]).unwrap();
                            assert!(decision.is_allowed(), "there is enough: {decision:?}");
                            admitted.fetch_add(1, Relaxed);
                        }
                    })
                })
                .collect();
            let (tree, done) = (&tree, &done);
            scope.spawn(move || {
                for burst in (1_000_000..).step_by(10) {
                    if done.load(Relaxed) {
                        return;
                    }
                    for level in ["tenant", "user"] {
                        tree.set_quota(level, Quota::once(burst)).unwrap();
                    }
                }
            });
            let ended: Vec<_> = takers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Relaxed);
            ended.into_iter().for_each(|taker| taker.unwrap());
        });
        for level in ["tenant", "user"] {
            tree.set_quota(level, Quota::once(1_000_000)).unwrap();
        }
        let used = |path: &[&str], level: usize| 1_000_000 - left(&tree, path)[level];
        let tenants: u64 = ["0", "1"].map(|tenant| used(&[tenant], 1)).iter().sum();
        let users = (0..8_u64).map(|user| used(&[&(user % 2).to_string(), &user.to_string()], 2));
        let expected = admitted.load(Relaxed) + 8;
        let seen = (used(&[], 0), tenants, users.sum::<u64>());
        assert_eq!(seen, (expected, expected, expected), "bounded: {bounded}");
    }
}

#[test]
fn a_hundred_thousand_users_share_tables_of_fixed_size() {
    let (clock, _) = Clock::manual();
    let tree = Hierarchy::strict("global", Quota::unlimited())
        .level("tenant", Level::new(Quota::once(100)).bounded(1_000))
        .level("user", Level::new(Quota::once(1)).bounded(100_000))
        .clock(clock)
        .build()
        .unwrap();
    let bytes = tree.bytes();
    assert!(bytes < 24 * 101_000 + 2 * 32 * 1024 + 10_000, "{bytes}");
    let names: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    for tenant in &names {
        for user in &names[..100] {
            assert!(tree.try_acquire(&[tenant, user]).unwrap().is_allowed());
        }
    }
    assert_eq!(tree.bytes(), bytes, "memory is flat");
    assert!((990..=1000).contains(&tree.nodes(1)) && tree.nodes(2) > 99_000);
    let spent = |tenant: &String| {
        names[..100].iter().filter(|user| tree.peek(&[tenant, user]).unwrap().is_denied()).count()
    };
    let spent: usize = names.iter().map(spent).sum();
    assert!(spent > 99_990, "{spent} of 100000 states are there");
}

#[test]
fn refuses_trees_that_cannot_be() {
    let strict = || Hierarchy::strict("global", Quota::per_second(1));
    let deep = (0..64)
        .fold(strict(), |tree, level| tree.level(format!("level {level}"), Quota::per_second(1)));
    for (tree, text) in [
        (
            strict().level("user", Quota::per_second(1)).level("user", Quota::per_second(2)),
            "\"user\" is used twice; give each level or class a name of its own",
        ),
        (
            strict().level("global", Quota::per_second(1)),
            "\"global\" is used twice; give each level or class a name of its own",
        ),
        (deep, "\"level 63\" would be level 65, and a decision names at most 64; use fewer levels"),
        (
            Hierarchy::strict("global", Level::new(Quota::per_second(1)).bounded(5)),
            "\"global\" is a single node and has no table; remove it, or make the level keyed",
        ),
        (
            strict().level("user", Level::new(Quota::per_second(1)).bounded(0)),
            "\"user\": a table for 0 keys cannot be created; use 1 to 4294967296, or a growing \
             table",
        ),
    ] {
        assert_eq!(tree.build().unwrap_err().to_string(), text);
    }
}

#[test]
fn users_without_room_are_refused_if_that_was_said() {
    let (clock, _) = Clock::manual();
    let level = Level::new(Quota::once(5)).max_nodes(1).when_full(WhenFull::Refuse);
    let tree = Hierarchy::strict("global", Quota::once(9)).level("user", level).clock(clock);
    let tree = tree.build().unwrap();
    assert!(tree.try_acquire(&["first"]).unwrap().is_allowed());
    assert!(tree.try_acquire(&["second"]).unwrap().is_denied());
    assert_eq!(left(&tree, &[]), [8]);
}
