//! The rule of borrowing trees: against a slow exact model, under threads, and case by case.

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
    Clock, Hierarchy, Quota, Tick,
    hierarchy::{BorrowingBuilder, BorrowingDecision, BorrowingTree, Class, ClassCounts},
};

fn per_second(rate: u64, burst: u64) -> Quota {
    Quota::per_second(rate).burst(burst)
}

/// A root of 1000/s with A (700) and B (300); each may use all of it.
fn two_plans() -> (BorrowingBuilder, Clock) {
    let all = per_second(1000, 100);
    let builder = Hierarchy::borrowing("root", Class::new(all))
        .class("A", Class::new(per_second(700, 70)).ceiling(all))
        .class("B", Class::new(per_second(300, 30)).ceiling(all));
    (builder, Clock::manual().0)
}

fn take(tree: &BorrowingTree, path: &[&str], cost: u64) -> BorrowingDecision {
    tree.try_acquire_at(path, ms(0), cost).unwrap()
}

#[test]
fn a_class_uses_its_own_share_then_borrows_then_waits() {
    let (builder, clock) = two_plans();
    let tree = builder.clock(clock).build().unwrap();
    let own = take(&tree, &["A"], 70);
    assert_eq!((own.is_allowed(), own.paid_by(), own.borrowed_from()), (true, Some(1), None));
    assert_eq!(own.decision().remaining(), 30, "of the root");
    let borrowed = take(&tree, &["A"], 30);
    assert_eq!((borrowed.borrowed_from(), tree.class_at(&["A"], 0)), (Some(0), Some("root")));
    let refused = take(&tree, &["A"], 1);
    assert!(!refused.is_allowed() && refused.paid_by().is_none());
    // The ways to pass: A's own rate in 1/700 s, the root's in 1/1000 s; A's ceiling is empty too.
    assert_eq!(refused.decision().retry_at(), Some(ms(1)));
    assert_eq!(refused.decision().refusing().collect::<Vec<_>>(), [0, 1]);
    assert!(take(&tree, &["B"], 30).is_allowed(), "the share of B is there all the same");
    let never = take(&tree, &["B"], 101).decision();
    assert!(never.is_never() && never.limit() == 100);
    let counts = |name| tree.counts(name).unwrap();
    let ClassCounts { admitted, borrowed, lent, refused, .. } = counts("A");
    assert_eq!((admitted, borrowed, lent, refused), (100, 30, 0, 1));
    assert_eq!((counts("root").lent, counts("B").refused), (30, 101));
    assert_eq!(tree.counts("C"), None);
}

#[test]
fn a_guaranteed_share_puts_the_root_in_debt_and_stops_borrowers() {
    let (builder, clock) = two_plans();
    let tree = builder.clock(clock).build().unwrap();
    assert!(take(&tree, &["A"], 70).is_allowed() && take(&tree, &["A"], 30).is_borrowed());
    assert!(take(&tree, &["B"], 30).is_allowed());
    // The root is 30 in debt: A's own share comes back in 1/700 s, borrowing in 31 ms.
    let at = |at, path: &[&str]| tree.peek_at(path, at, 1).unwrap();
    assert_eq!(at(ms(2), &["A"]).paid_by(), Some(1));
    assert!(!at(ms(2), &["B"]).is_allowed());
    assert_eq!(at(ms(4), &["B"]).paid_by(), Some(1), "on its own share");
}

#[test]
fn a_hard_ceiling_below_the_root_counts_what_was_borrowed_from_above() {
    let all = per_second(1000, 100);
    for (is_hard, passes) in [(true, false), (false, true)] {
        let plan = Class::new(per_second(100, 10)).ceiling(per_second(500, 30));
        let plan = if is_hard { plan.hard_ceiling() } else { plan };
        let tree = Hierarchy::borrowing("root", Class::new(all))
            .class("plan", plan)
            .class("tenant", Class::new(per_second(50, 5)).parent("plan"))
            .clock(Clock::manual().0)
            .build()
            .unwrap();
        assert_eq!(take(&tree, &["plan"], 30).borrowed_from(), Some(0));
        let tenant = take(&tree, &["plan", "tenant"], 5);
        assert_eq!(tenant.is_allowed(), passes, "hard: {is_hard}");
        if is_hard {
            assert_eq!(tenant.decision().refusing().collect::<Vec<_>>(), [1]);
            assert_eq!(tenant.decision().retry_at(), Some(ms(10)), "5 of 500/s");
        }
    }
}

#[test]
fn priority_keeps_an_eighth_of_the_lenders_burst_for_each_step() {
    let all = per_second(1000, 80);
    let idle = || Class::new(per_second(0, 0)).ceiling(all);
    let builder = (0..8_u8)
        .fold(Hierarchy::borrowing("root", Class::new(all)), |tree, priority| {
            tree.class(format!("p{priority}"), idle().priority(priority))
        });
    let tree = builder.clock(Clock::manual().0).build().unwrap();
    for (priority, left) in [(7, 70), (3, 30), (1, 10), (0, 0)] {
        let name = format!("p{priority}");
        while take(&tree, &[&name], 1).is_allowed() {}
        assert_eq!(take(&tree, &["p0"], 0).decision().remaining(), left, "{name} leaves that much");
        let refused = take(&tree, &[&name], 1).decision();
        assert_eq!(refused.retry_at(), Some(ms(1)), "{name}");
    }
}

#[test]
fn a_debt_is_forgiven_beyond_sixty_seconds_worth() {
    // The child bursts 100 000 at once; the soft root refills 1 a second.
    let root = Class::new(per_second(1, 1)).ceiling(per_second(1, 1)).soft_ceiling();
    let child = Class::new(Quota::per(1, Duration::from_secs(2)).burst(100_000));
    let tree = Hierarchy::borrowing("root", root).class("child", child);
    let tree = tree.clock(Clock::manual().0).build().unwrap();
    assert!(take(&tree, &["child"], 100_000).is_allowed());
    let refused = tree.peek(&[]).unwrap().decision();
    assert_eq!(refused.retry_at(), Some(Tick::from_secs(61)), "60 s of debt and one permit");
}

#[test]
fn classes_change_while_the_tree_is_in_use_and_bad_changes_are_refused() {
    let (builder, clock) = two_plans();
    let tree = builder.clock(clock).build().unwrap();
    let all = per_second(1000, 100);
    assert!(take(&tree, &["B"], 30).is_allowed());
    let raised = |rate| Class::new(per_second(rate, 60)).ceiling(all);
    let error = tree.set_class("B", raised(400)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the classes below \"root\" are guaranteed 1100/s in all, more than its own 1000/s burst \
         100; lower their rates, or raise that of \"root\""
    );
    tree.set_class("A", Class::new(per_second(600, 70)).ceiling(all)).unwrap();
    tree.set_class("B", raised(400).priority(2)).unwrap();
    assert_eq!(tree.class("B").unwrap(), raised(400).priority(2));
    assert_eq!(take(&tree, &["B"], 30).paid_by(), Some(1), "60 less the 30 that were used");
    assert!(!take(&tree, &["B"], 31).is_allowed(), "25 of the 40 left are not for priority 2");
    assert_eq!(take(&tree, &["B"], 15).borrowed_from(), Some(0));
    let unknown = tree.set_class("C", raised(1)).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "there is no level or class \"C\"; use a name given to the builder"
    );
}

#[test]
fn refuses_trees_that_cannot_be() {
    let quota = per_second(100, 10);
    let tree = || Hierarchy::borrowing("root", Class::new(quota));
    let class = || Class::new(per_second(10, 1));
    for (tree, text) in [
        (
            tree().class("A", class().parent("B")),
            "the parent \"B\" of \"A\" does not exist; declare it first, or leave it out for the \
             root",
        ),
        (
            tree().class("A", class()).class("A", class()),
            "\"A\" is used twice; give each level or class a name of its own",
        ),
        (
            tree().class("A", class().ceiling(per_second(5, 1))),
            "the ceiling 5/s burst 1 of \"A\" is below its guaranteed rate 10/s burst 1; raise the \
             ceiling, or lower the rate",
        ),
        (
            tree().class("A", class().ceiling(per_second(101, 1))),
            "the ceiling 101/s burst 1 of \"A\" is above its parent's, 100/s burst 11; lower it, or \
             raise the parent's",
        ),
        (tree().class("A", class().priority(8)), "\"A\" has priority 8; use 0 (first) to 7 (last)"),
        (
            tree().keyed("tenant", class()),
            "each node of \"tenant\" is guaranteed 10/s burst 1, but the number of nodes is \
             unknown; add expected(n), or guarantee nothing with a rate of zero",
        ),
        (
            tree().keyed("tenant", class().expected(11)),
            "the classes below \"root\" are guaranteed 110/s in all, more than its own 100/s burst \
             10; lower their rates, or raise that of \"root\"",
        ),
        (
            tree().class("A", class().expected(3)),
            "\"A\" is a single node and has no expected; remove it, or make the level keyed",
        ),
        (
            tree().keyed("tenant", class().expected(2)).class("A", class()),
            "\"A\" cannot be below \"root\": a class has either declared classes or one keyed level \
             below it, and a keyed one only a keyed level, because a key could have the name of a \
             class; put a class between them",
        ),
        (
            Hierarchy::borrowing("root", Class::new(quota).ceiling(quota)).class("A", class()),
            "the hard ceiling of \"root\" has a burst of 10, less than 11, the bursts of its own \
             rate and of all below: borrowers could use it up and starve what is guaranteed; raise \
             it, lower the burst of the rate, or use soft_ceiling",
        ),
        (
            tree().class("A", Class::new(Quota::unlimited())),
            "\"A\": an unlimited quota leaves an algorithm nothing to count; use a limiter, or give \
             a rate",
        ),
    ] {
        assert_eq!(tree.build().unwrap_err().to_string(), text);
    }
}

#[test]
fn paths_lead_to_declared_and_keyed_classes() {
    let all = per_second(1000, 1000);
    let tenant = Class::new(Quota::per_second(0)).ceiling(per_second(2, 2)).parent("pro");
    let user = Class::new(Quota::per_second(0)).ceiling(per_second(1, 1)).parent("tenant");
    let tree = Hierarchy::borrowing("root", Class::new(all))
        .class("pro", Class::new(per_second(500, 500)).ceiling(all))
        .class("free", Class::new(per_second(100, 100)))
        .keyed("tenant", tenant.bounded(1000))
        .keyed("user", user.bounded(100_000))
        .clock(Clock::manual().0)
        .build()
        .unwrap();
    let bytes = tree.bytes();
    for (path, passes) in [
        (["pro", "acme", "alice"], true),
        (["pro", "acme", "alice"], false),
        (["pro", "other", "alice"], true),
        (["pro", "a_b", "c"], true),
        (["pro", "a", "b_c"], true),
        (["pro", "acme", "bob"], true),
        (["pro", "acme", "carol"], false),
    ] {
        assert_eq!(take(&tree, &path, 1).is_allowed(), passes, "{path:?}");
    }
    let path = ["pro", "x", "y"];
    assert_eq!(take(&tree, &path, 1).borrowed_from(), Some(1));
    let names: Vec<_> = (0..5).map(|number| tree.class_at(&path, number)).collect();
    assert_eq!(names, [Some("root"), Some("pro"), Some("tenant"), Some("user"), None]);
    let error = |path: &[&str]| tree.try_acquire(path).unwrap_err().to_string();
    assert_eq!(
        error(&["gold"]),
        "there is no class \"gold\" below \"root\"; use a declared one, or add a keyed level"
    );
    assert_eq!(
        error(&["free", "x"]),
        "a path of 2 parts is longer than the 1 levels below the root; leave parts out, or add \
         levels"
    );
    for user in 0..20_000_u64 {
        let tenant = (user % 1000).to_string();
        let _ = take(&tree, &["pro", &tenant, &user.to_string()], 1);
    }
    assert_eq!(tree.bytes(), bytes, "memory is flat");
    assert_eq!(tree.counts("user").unwrap().admitted, 1000, "the root has given all it had");
}

/// Nothing refills: 64 threads get what the buckets hold, to the permit.
#[test]
fn threads_on_a_standing_clock_get_what_the_buckets_hold() {
    let all = per_second(1000, 1000);
    let tenant = Class::new(per_second(5, 5)).ceiling(per_second(20, 40)).parent("A").expected(100);
    let tree = Hierarchy::borrowing("root", Class::new(all))
        .class("A", Class::new(per_second(500, 300)).ceiling(all))
        .class("B", Class::new(per_second(300, 200)).ceiling(all))
        .keyed("tenant", tenant.bounded(1000))
        .clock(Clock::manual().0)
        .build()
        .unwrap();
    let (admitted, by_b, barrier) = (AtomicU64::new(0), AtomicU64::new(0), Barrier::new(64));
    thread::scope(|scope| {
        for number in 0..64_u64 {
            let (tree, admitted, by_b, barrier) = (&tree, &admitted, &by_b, &barrier);
            scope.spawn(move || {
                let tenant = (number / 2).to_string();
                barrier.wait();
                for _ in 0..400 {
                    let path: &[&str] = if number % 2 == 0 { &["B"] } else { &["A", &tenant] };
                    if take(tree, path, 1).is_allowed() {
                        admitted.fetch_add(1, Relaxed);
                        by_b.fetch_add(u64::from(number % 2 == 0), Relaxed);
                    }
                }
            });
        }
    });
    let (admitted, by_b) = (admitted.load(Relaxed), by_b.load(Relaxed));
    // Hard: the root's own burst and all guarantees below it.
    assert!(admitted <= 1000 + 300 + 200 + 100 * 5, "{admitted}");
    assert!(admitted >= 1000, "{admitted}: whatever the order, the root has lent all it had");
    assert!(by_b >= 200, "{by_b}: the share of B");
    assert!(admitted - by_b >= 32 * 5, "the share of each tenant");
    for path in [&["B"][..], &["A", "0"], &["A", "31"]] {
        assert!(!take(&tree, path, 1).is_allowed(), "nothing that is free was refused");
    }
    let counts = |name| tree.counts(name).unwrap();
    assert_eq!(counts("B").admitted + counts("tenant").admitted, admitted);
    let borrowed = counts("B").borrowed + counts("tenant").borrowed;
    assert_eq!(borrowed, counts("root").lent + counts("A").lent);
}

/// Classes that change while 8 threads take: every admission is charged to every bucket, once.
#[test]
fn changing_classes_under_threads_charges_all_buckets_or_none() {
    let tenant = |burst| Class::new(Quota::once(0)).ceiling(Quota::once(burst));
    for bounded in [false, true] {
        let first = if bounded { tenant(1_000_000).bounded(64) } else { tenant(1_000_000) };
        let tree = Hierarchy::borrowing("root", Class::new(Quota::once(100_000_000)))
            .keyed("tenant", first)
            .clock(Clock::manual().0)
            .build()
            .unwrap();
        let names: Vec<_> = (0..8).map(|number| number.to_string()).collect();
        names.iter().for_each(|name| assert!(take(&tree, &[name], 1).is_allowed()));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let (tree, done) = (&tree, &done);
            let taker =
                |name| scope.spawn(move || (0..2_000).all(|_| take(tree, &[name], 1).is_allowed()));
            let takers: Vec<_> = names.iter().map(|name| taker(name)).collect();
            scope.spawn(move || {
                for burst in (1_000_000..).step_by(10) {
                    if done.load(Relaxed) {
                        return;
                    }
                    tree.set_class("tenant", tenant(burst)).unwrap();
                }
            });
            let ended: Vec<_> = takers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Relaxed);
            assert!(ended.into_iter().all(|passed| passed.unwrap()), "there is enough");
        });
        tree.set_class("tenant", tenant(1_000_000)).unwrap();
        let left = |path: &[&str]| take(&tree, path, 0).decision().remaining();
        assert_eq!(left(&[]), 100_000_000 - 8 * 2_001);
        for name in &names {
            assert_eq!(left(&[name]), 1_000_000 - 2_001, "bounded: {bounded}");
        }
        assert_eq!(tree.counts("root").unwrap().lent, 8 * 2_001);
    }
}
