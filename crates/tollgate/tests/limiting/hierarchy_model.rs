//! Borrowing trees compared with a slow model: the rule as it is written down, on buckets that are
//! computed from every charge so far, in whole numbers.

use crate::support::*;
use proptest::prelude::*;
use std::{collections::HashMap, time::Duration};
use tollgate::{
    Clock, Hierarchy, Quota,
    hierarchy::{BorrowingTree, Class},
};

/// The period of all rates: a power of two, so that every tick is a whole number of positions and
/// the buckets of the tree have no rounding to forgive.
const PERIOD: u64 = 1 << 20;

/// A bucket: permits per period, and burst.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    count: u64,
    burst: u64,
}

impl Bucket {
    const fn quota(self) -> Quota {
        Quota::per(self.count, Duration::from_nanos(PERIOD)).burst(self.burst)
    }
}

#[derive(Clone, Copy, Debug)]
struct ModelClass {
    rate: Bucket,
    ceiling: Bucket,
    is_hard: bool,
    priority: u8,
}

/// Root, A, B, tenants of A, users of those tenants.
#[derive(Clone, Copy, Debug)]
struct ModelTree([ModelClass; 5]);

const NAMES: [&str; 5] = ["root", "A", "B", "tenant", "user"];
const PARENTS: [&str; 5] = ["", "root", "root", "A", "tenant"];
/// The last three are tenants beyond the expected two: with them, the guarantees exceed the rate.
const PATHS: [&[&str]; 12] = [
    &[],
    &["A"],
    &["B"],
    &["B"],
    &["A", "x"],
    &["A", "y"],
    &["A", "x", "u"],
    &["A", "x", "v"],
    &["A", "y", "u"],
    &["A", "z"],
    &["A", "w"],
    &["A", "z", "u"],
];
const AS_EXPECTED: usize = 9;

impl ModelTree {
    fn build(&self, bounded: bool) -> Option<BorrowingTree> {
        let class = |index: usize| {
            let ModelClass { rate, ceiling, is_hard, priority } = self.0[index];
            let class = Class::new(rate.quota()).ceiling(ceiling.quota()).priority(priority);
            let class = if is_hard { class.hard_ceiling() } else { class.soft_ceiling() };
            let class = if index > 0 { class.parent(PARENTS[index]) } else { class };
            let class = if index > 2 { class.expected(2) } else { class };
            if bounded && index > 2 { class.bounded(100) } else { class }
        };
        let mut builder = Hierarchy::borrowing(NAMES[0], class(0));
        for (index, name) in NAMES.into_iter().enumerate().skip(1) {
            builder = match index {
                1 | 2 => builder.class(name, class(index)),
                _ => builder.keyed(name, class(index)),
            };
        }
        builder.clock(Clock::manual().0).build().ok()
    }

    /// The classes of a path from the root down: number, and the node's name.
    fn nodes(path: &[&str]) -> Vec<(usize, String)> {
        let number = |depth: usize| match (depth, path.first()) {
            (0, _) => 0,
            (1, Some(&"B")) => 2,
            (1, _) => 1,
            (depth, _) => depth + 1,
        };
        (0..=path.len()).map(|depth| (number(depth), path[..depth].join("/"))).collect()
    }
}

/// Everything that was ever charged, by node and bucket.
#[derive(Default)]
struct Diary(HashMap<(String, bool), Vec<(u64, u64)>>);

impl Diary {
    /// The permits of a bucket at `now`, in permits / PERIOD: replayed from the beginning.
    fn level(&self, bucket: Bucket, (name, is_ceiling): (&str, bool), now: u64) -> i128 {
        let unit = i128::from(PERIOD);
        let full = i128::from(bucket.burst) * unit;
        let floor = -i128::from(bucket.count) * 60_000_000_000;
        let (mut level, mut last) = (full, 0);
        let charges = self.0.get(&(name.to_owned(), is_ceiling)).map_or(&[][..], |it| it);
        for (at, cost) in charges.iter().copied().chain([(now, 0)]) {
            level = full.min(level + i128::from(bucket.count) * i128::from(at - last));
            level = (level - i128::from(cost) * unit).max(floor.min(level));
            last = at;
        }
        level
    }

    /// Tells whether the class at the end of a path has the cost itself.
    fn is_guaranteed(&self, tree: &ModelTree, path: &[&str], (now, cost): (u64, u64)) -> bool {
        let (number, name) = ModelTree::nodes(path).pop().unwrap();
        let ModelClass { rate, ceiling, .. } = tree.0[number];
        let held = [(rate, false), (ceiling, true)]
            .map(|(bucket, is_ceiling)| self.level(bucket, (&name, is_ceiling), now));
        held.into_iter().all(|level| level >= i128::from(cost) * i128::from(PERIOD))
    }

    /// Returns the depth of the class that pays, if the event passes at `now`.
    fn lender(&self, tree: &ModelTree, path: &[&str], (now, cost): (u64, u64)) -> Option<usize> {
        let nodes = ModelTree::nodes(path);
        let has = |depth: usize, is_ceiling: bool, wanted: u64| {
            let (number, name) = &nodes[depth];
            let class = tree.0[*number];
            let bucket = if is_ceiling { class.ceiling } else { class.rate };
            let level = self.level(bucket, (name, is_ceiling), now);
            level >= i128::from(wanted) * i128::from(PERIOD)
        };
        let leaf = path.len();
        let hard = (0..=leaf).filter(|depth| tree.0[nodes[*depth].0].is_hard);
        if !hard.into_iter().all(|depth| has(depth, true, cost)) {
            return None;
        }
        let priority = u64::from(tree.0[nodes[leaf].0].priority);
        for depth in (0..=leaf).rev() {
            if !has(depth, true, cost) {
                return None;
            }
            let kept = tree.0[nodes[depth].0].rate.burst * priority / 8;
            if has(depth, false, if depth == leaf { cost } else { cost + kept }) {
                return Some(depth);
            }
        }
        None
    }

    fn charge(&mut self, path: &[&str], lender: usize, charge: (u64, u64)) {
        for (depth, (_, name)) in ModelTree::nodes(path).into_iter().enumerate() {
            if depth <= lender {
                self.0.entry((name.clone(), false)).or_default().push(charge);
            }
            self.0.entry((name, true)).or_default().push(charge);
        }
    }

    /// Finds the first tick after `now` at which the event passes, by bisection.
    fn retry(&self, tree: &ModelTree, path: &[&str], (now, cost): (u64, u64)) -> Option<u64> {
        let passes = |at| self.lender(tree, path, (at, cost)).is_some();
        let (mut low, mut high) = (now, now + 10_000_000_000);
        if !passes(high) {
            return None;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if passes(middle) { high = middle } else { low = middle }
        }
        Some(high)
    }
}

fn trees() -> impl Strategy<Value = ModelTree> {
    let class = |rates: &'static [u64], ceilings: &'static [u64]| {
        let rate = (prop::sample::select(rates), 0..6_u64);
        let ceiling = (prop::sample::select(ceilings), 0..12_u64);
        let traits = (prop::bool::weighted(0.4), prop_oneof![Just(0_u8), 0..8_u8]);
        (rate, ceiling, traits).prop_map(|((count, burst), ceiling, (is_hard, priority))| {
            ModelClass {
                rate: Bucket { count, burst },
                ceiling: Bucket { count: ceiling.0, burst: ceiling.1 },
                is_hard,
                priority,
            }
        })
    };
    let classes = (
        class(&[8], &[8]),
        class(&[2, 3, 4], &[4, 6, 8]),
        class(&[0, 1, 2], &[2, 3, 8]),
        class(&[0, 1], &[1, 2, 4]),
        class(&[0], &[1]),
    );
    classes.prop_map(|(root, a, b, tenant, user)| {
        let mut classes = [root, a, b, tenant, user];
        // A hard ceiling holds the bursts of all classes below it; its generated burst is the rest.
        let burst = |index: usize| classes[index].rate.burst;
        let tenants = 2 * (burst(3) + 2 * burst(4));
        let below = [burst(1) + tenants + burst(2), tenants, 0, 2 * burst(4), 0];
        for (class, below) in classes.iter_mut().zip(below).filter(|(class, _)| class.is_hard) {
            class.ceiling.burst += class.rate.burst + below;
        }
        ModelTree(classes)
    })
}

/// Bursts and pauses.
fn steps(paths: usize) -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    let later = prop_oneof![4 => 0..PERIOD / 8, 1 => 0..2 * PERIOD];
    prop::collection::vec((0..paths, later, 0..9_u64), 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn decides_lends_and_waits_as_the_rule_is_written_down(
        model in trees(),
        bounded: bool,
        steps in steps(PATHS.len()),
    ) {
        let tree = model.build(bounded);
        prop_assume!(tree.is_some());
        let (tree, mut diary, mut now) = (tree.unwrap(), Diary::default(), 0);
        for (step, (path, later, cost)) in steps.into_iter().enumerate() {
            let path = PATHS[path];
            now += later;
            let told = format!("step {step}: {cost} for {path:?} at {now}");
            let expected = diary.lender(&model, path, (now, cost));
            let seen = tree.peek_at(path, ns(now), cost).unwrap();
            prop_assert_eq!(tree.try_acquire_at(path, ns(now), cost).unwrap(), seen, "{}", &told);
            prop_assert_eq!(seen.paid_by(), expected, "{}", &told);
            prop_assert_eq!(seen.is_allowed(), expected.is_some());
            match expected {
                Some(lender) => diary.charge(path, lender, (now, cost)),
                None => {
                    let retry = diary.retry(&model, path, (now, cost));
                    let decision = seen.decision();
                    prop_assert_eq!(decision.retry_at(), retry.map(ns), "{}", &told);
                    prop_assert_eq!(decision.is_never(), retry.is_none(), "{}", &told);
                    prop_assert!(decision.refusing().all(|depth| depth <= path.len()));
                    prop_assert!(decision.refusing().count() > 0);
                    if let Some(retry) = retry {
                        let passes = |at| tree.peek_at(path, ns(at), cost).unwrap().is_allowed();
                        let both = (passes(retry - 1), passes(retry));
                        prop_assert_eq!(both, (false, true), "{}", &told);
                    }
                }
            }
            let passes = |cost: &u64| diary.lender(&model, path, (now, *cost)).is_some();
            let most = (1..=60).rev().find(passes).unwrap_or(0);
            prop_assert_eq!(seen.decision().remaining(), most, "{}", &told);
        }
    }

    /// With as many nodes as expected, no flood of borrowers takes guaranteed permits from any
    /// class, and neither does the hard ceiling of the root.
    #[test]
    fn what_is_guaranteed_is_never_refused(
        model in trees(),
        steps in steps(AS_EXPECTED),
    ) {
        let mut model = model;
        model.0[1..].iter_mut().for_each(|class| class.is_hard = false);
        let tree = model.build(false);
        prop_assume!(tree.is_some());
        let (tree, mut diary, mut now) = (tree.unwrap(), Diary::default(), 0);
        for (path, later, cost) in steps {
            let path = PATHS[path];
            now += later;
            let is_guaranteed = diary.is_guaranteed(&model, path, (now, cost));
            let seen = tree.try_acquire_at(path, ns(now), cost).unwrap();
            if let Some(lender) = seen.paid_by() {
                diary.charge(path, lender, (now, cost));
            }
            let is_own = seen.is_allowed() && !seen.is_borrowed();
            prop_assert_eq!(is_own, is_guaranteed, "{} for {:?} at {}", cost, path, now);
        }
    }

    /// Also at rates that do not divide a tick: one tick before `retry_at` the call is refused, at
    /// `retry_at` it passes.
    #[test]
    fn waits_are_exact_at_any_rate(
        rates in (1..3_000_u64, 1..3_000_u64, 1..3_000_u64, 1..7_u64),
        bursts in (1..20_u64, 1..20_u64, 0..20_u64),
        priority in 0..4_u8,
        steps in prop::collection::vec((0..3_usize, 0..3_000_000_u64, 0..12_u64), 1..80),
    ) {
        let (a, b, spare, tenants) = rates;
        let quota = |rate: u64, burst: u64| Quota::per_second(rate).burst(burst);
        let root = quota(a + b + spare, bursts.0);
        let tenant = Class::new(quota(a / tenants, bursts.2)).ceiling(quota(a + b, 25));
        let tree = Hierarchy::borrowing("root", Class::new(root))
            .class("A", Class::new(quota(a, bursts.1)).ceiling(quota(a + b, 30)))
            .class("B", Class::new(quota(b, bursts.1)).ceiling(root).priority(priority))
            .keyed("tenant", tenant.parent("A").expected(tenants).priority(priority))
            .clock(Clock::manual().0)
            .build()
            .unwrap();
        let mut now = 0;
        for (path, later, cost) in steps {
            let path: &[&str] = [&["A"][..], &["B"], &["A", "x"]][path];
            now += later;
            let decision = tree.try_acquire_at(path, ns(now), cost).unwrap().decision();
            if let Some(at) = decision.retry_at().map(tollgate::Tick::as_nanos) {
                let passes = |at| tree.peek_at(path, ns(at), cost).unwrap().is_allowed();
                prop_assert!(at > now && !passes(at - 1) && passes(at), "{cost} for {path:?} at {now}");
            }
        }
    }
}
