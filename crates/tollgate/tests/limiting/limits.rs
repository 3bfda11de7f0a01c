//! Several limits as one decision: all are charged, or none (G6).

use crate::support::*;
use proptest::prelude::*;
use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tollgate::{
    Algorithm, Bypass, Charge, Clock, Decision, KeyedLimiter, Limiter, Limits, LimitsError, Quota,
    Reason, WhenFull,
};

fn decide(charges: &[Charge<'_>]) -> Decision {
    Limits::new(charges).unwrap().try_acquire()
}

/// A limiter of every kind, and keys in every table, all with a limit of `limit` per hour.
struct Zoo {
    limiters: Vec<Limiter>,
    keyed: Vec<KeyedLimiter<str>>,
}

impl Zoo {
    fn new(limit: u64) -> Self {
        let (clock, _) = Clock::manual();
        let quota = Quota::per_hour(limit);
        let limiter = |algorithm| Limiter::builder(quota).algorithm(algorithm).clock(clock.clone());
        let keyed = |(algorithm, bounded)| {
            let builder = KeyedLimiter::builder(quota).algorithm(algorithm).clock(clock.clone());
            let builder = if bounded { builder.bounded(100) } else { builder };
            builder.build().unwrap()
        };
        let tables = Algorithm::ALL.into_iter().flat_map(|one| [(one, false), (one, true)]);
        Self {
            limiters: Algorithm::ALL.map(|one| limiter(one).build().unwrap()).to_vec(),
            keyed: tables.map(keyed).collect(),
        }
    }

    fn count(&self) -> usize {
        self.limiters.len() + 2 * self.keyed.len()
    }

    /// Limit number `index` with a cost: the limiters first, then two keys of each keyed one.
    fn charge(&self, index: usize, cost: u64) -> Charge<'_> {
        match self.limiters.get(index) {
            Some(limiter) => limiter.charge(cost),
            None => {
                let index = index - self.limiters.len();
                self.keyed[index / 2].charge(["one", "two"][index % 2], cost)
            }
        }
    }

    fn available(&self, index: usize) -> u64 {
        decide(&[self.charge(index, 0)]).remaining()
    }
}

#[test]
fn names_all_that_refuse_and_the_longest_wait() {
    let (clock, _) = Clock::manual();
    let limiters = ["1/s burst 3", "1/min burst 2", "1/h burst 9"];
    let limiters = limiters.map(|quota| on(clock.clone(), Algorithm::Gcra, quota));
    let charges = limiters.each_ref().map(|limiter| limiter.charge(2));
    let first = decide(&charges);
    assert!(first.is_allowed());
    assert_eq!((first.remaining(), first.limit(), first.cost()), (0, 2, 2));
    assert_eq!(first.refusing().count(), 0);
    let second = decide(&charges);
    assert_eq!(second.refusing().collect::<Vec<_>>(), [0, 1]);
    assert!(second.is_refused_by(1) && !second.is_refused_by(2));
    assert_eq!(second.retry_after(ms(0)), Some(Duration::from_secs(120)), "the longest");
    assert_eq!((second.remaining(), second.limit()), (0, 2));
    assert_eq!(second.reset_after(ms(0)), Some(Duration::from_secs(7200)), "the longest of all");
    assert_eq!(limiters.map(|limiter| limiter.available()), [1, 0, 7], "nothing was charged");
}

#[test]
fn never_beats_later() {
    let (clock, _) = Clock::manual();
    let [small, spent] = ["5/s", "9/s"].map(|quota| on(clock.clone(), Algorithm::Gcra, quota));
    let _ = spent.try_acquire_n(9);
    let decision = decide(&[small.charge(6), spent.charge(6)]);
    assert!(decision.is_never(), "no wait helps the first");
    assert_eq!(decision.refusing().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(decision.retry_at(), None);
}

#[test]
fn the_same_limit_twice_is_charged_the_sum() {
    let zoo = Zoo::new(5);
    for index in 0..zoo.count() {
        let refused = decide(&[zoo.charge(index, 3), zoo.charge(index, 3)]);
        assert_eq!(refused.refusing().collect::<Vec<_>>(), [0, 1], "limit {index}");
        assert_eq!(zoo.available(index), 5);
        assert!(decide(&[zoo.charge(index, 3), zoo.charge(index, 2)]).is_allowed());
        assert_eq!(zoo.available(index), 0);
    }
}

#[test]
fn every_kind_of_limit_in_one_decision() {
    let zoo = Zoo::new(7);
    let charges: Vec<_> = (0..zoo.count()).map(|index| zoo.charge(index, 2)).collect();
    for round in 1..=3 {
        assert!(decide(&charges).is_allowed());
        assert!((0..zoo.count()).all(|index| zoo.available(index) == 7 - 2 * round));
    }
    let refused = decide(&charges);
    assert_eq!(refused.refusing().count(), zoo.count());
    assert!((0..zoo.count()).all(|index| zoo.available(index) == 1), "nothing was charged");
    // One that refuses is enough.
    let one: Vec<_> = (0..zoo.count()).map(|index| zoo.charge(index, 1)).collect();
    assert!(decide(&one[3..4]).is_allowed());
    assert_eq!(decide(&one).refusing().collect::<Vec<_>>(), [3]);
    assert!((0..zoo.count()).all(|index| zoo.available(index) == u64::from(index != 3)));
}

#[test]
fn peeking_changes_nothing_and_tells_each() {
    let zoo = Zoo::new(4);
    let charges = [zoo.charge(0, 1), zoo.charge(6, 4), zoo.charge(9, 5)];
    let limits = Limits::new(&charges).unwrap();
    let mut told = Vec::new();
    let decision = limits
        .peek_each_at(ms(0), |index, each| told.push((index, each.remaining(), each.is_allowed())));
    assert_eq!(told, [(0, 4, true), (1, 4, true), (2, 4, false)], "levels as they are");
    assert_eq!(decision.refusing().collect::<Vec<_>>(), [2]);
    assert!((0..zoo.count()).all(|index| zoo.available(index) == 4));
}

#[test]
fn as_many_as_a_mask_can_name() {
    let limiter = Limiter::new(Quota::per_hour(1)).unwrap();
    assert_eq!(Limits::new(&[]).unwrap_err(), LimitsError::None);
    let many = vec![limiter.charge(1); 65];
    assert_eq!(
        Limits::new(&many).unwrap_err().to_string(),
        "65 limits are more than the 64 that one decision can name; use fewer"
    );
    let (clock, _) = Clock::manual();
    let limiters: Vec<_> = (0..64).map(|_| on(clock.clone(), Algorithm::Gcra, "1/h")).collect();
    let charges: Vec<_> = limiters.iter().map(|limiter| limiter.charge(1)).collect();
    assert!(decide(&charges).is_allowed());
    assert_eq!(decide(&charges).refusing().count(), 64);
}

#[test]
fn limits_out_of_force_do_not_count() {
    let (clock, _) = Clock::manual();
    let quota = Quota::per_hour(1);
    let [one, two] =
        [(); 2].map(|()| Limiter::builder(quota).clock(clock.clone()).build().unwrap());
    let keys = KeyedLimiter::<str>::builder(quota).clock(clock.clone()).build().unwrap();
    let charges = || [one.charge(1), two.charge(1), keys.charge("k", 1)];
    assert!(decide(&charges()).is_allowed());
    one.bypass(Bypass::On);
    two.set_quota(Quota::unlimited(), tollgate::Inherit::AsIs).unwrap();
    assert_eq!(decide(&charges()).refusing().collect::<Vec<_>>(), [2]);
    keys.allow("k").unwrap();
    assert!(decide(&charges()).is_allowed());
    keys.unlist("k");
    keys.block("k", Duration::from_secs(9)).unwrap();
    let blocked = decide(&charges());
    assert_eq!(blocked.reason(), Reason::Blocked);
    assert_eq!(blocked.retry_after(ms(0)), Some(Duration::from_secs(9)));
}

#[test]
fn a_ticket_gives_back_to_every_limit() {
    let zoo = Zoo::new(5);
    let charges: Vec<_> = (0..zoo.count()).map(|index| zoo.charge(index, 4)).collect();
    let limits = Limits::new(&charges).unwrap();
    let ticket = limits.reserve().unwrap();
    assert!((0..zoo.count()).all(|index| zoo.available(index) == 1));
    assert_eq!(limits.reserve().unwrap_err().refusing().count(), zoo.count());
    ticket.cancel();
    assert!((0..zoo.count()).all(|index| zoo.available(index) == 5));
    let ticket = limits.reserve().unwrap();
    ticket.settle_each(|index, cost| if index == 7 { 1 } else { cost });
    assert!((0..zoo.count()).all(|index| zoo.available(index) == if index == 7 { 4 } else { 1 }));
    let _ = limits.reserve().unwrap_err();
}

#[test]
fn keys_without_room_share_or_are_refused() {
    let (clock, _) = Clock::manual();
    let global = on(clock.clone(), Algorithm::Gcra, "100/h");
    let keyed = |when_full| {
        let builder = KeyedLimiter::<str>::builder(Quota::per_hour(5)).clock(clock.clone());
        builder.max_keys(1).when_full(when_full).build().unwrap()
    };
    let sharing = keyed(WhenFull::Share(Quota::per_hour(2)));
    let refusing = keyed(WhenFull::Refuse);
    for keyed in [&sharing, &refusing] {
        assert!(keyed.try_acquire("first").is_allowed());
    }
    let shared = |key: &str| decide(&[global.charge(1), sharing.charge(key, 1)]);
    assert_eq!(shared("a").reason(), Reason::Saturated);
    assert!(shared("b").is_allowed());
    let third = shared("c");
    assert_eq!(third.refusing().collect::<Vec<_>>(), [1], "two for all of them");
    assert_eq!(global.available(), 98);
    let refused = decide(&[global.charge(1), refusing.charge("a", 1)]);
    assert_eq!((refused.reason(), refused.is_never()), (Reason::Saturated, false));
    assert_eq!(global.available(), 98);
    assert!(decide(&[global.charge(1), refusing.charge("first", 1)]).is_allowed());
    // Two fresh keys, and room for one of them: no set is half charged.
    refusing.clear();
    let two = [global.charge(1), refusing.charge("x", 1), refusing.charge("y", 1)];
    assert_eq!(decide(&two).reason(), Reason::Saturated);
    assert_eq!((global.available(), refusing.available("x")), (97, 5));
    assert_eq!(sharing.table_counts().saturated, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Sets of limits in any order against a slow model: one number for each limit.
    #[test]
    fn decides_as_the_model_in_any_order(
        steps in prop::collection::vec(
            prop::collection::vec((0..25_usize, 0..4_u64), 1..6), 1..60,
        ),
        limit in 1..12_u64,
    ) {
        let (zoo, reversed) = (Zoo::new(limit), Zoo::new(limit));
        let mut used = [0_u64; 25];
        prop_assert_eq!(zoo.count(), used.len());
        for step in steps {
            let charges: Vec<_> = step.iter().map(|(index, cost)| zoo.charge(*index, *cost)).collect();
            let decision = decide(&charges);
            let turned: Vec<_> =
                step.iter().rev().map(|(index, cost)| reversed.charge(*index, *cost)).collect();
            prop_assert_eq!(decide(&turned).is_allowed(), decision.is_allowed());

            let mut after = used;
            step.iter().for_each(|(index, cost)| after[*index] += cost);
            let over: Vec<_> =
                (0..step.len()).filter(|at| after[step[*at].0] > limit).collect();
            prop_assert_eq!(decision.refusing().collect::<Vec<_>>(), over.clone());
            if over.is_empty() {
                used = after;
            }
            let least = step.iter().map(|(index, _)| limit - used[*index]).min();
            prop_assert_eq!(Some(decision.remaining()), least);
            for (index, used) in used.iter().enumerate() {
                prop_assert_eq!(zoo.available(index), limit - used);
                prop_assert_eq!(reversed.available(index), limit - used);
            }
        }
    }
}

/// 64 threads on overlapping sets: an admission is charged to every limit of its set and to no
/// other, and at the end no refused set would fit.
#[test]
fn overlapping_sets_under_64_threads() {
    let zoo = Zoo::new(300);
    let debits: Vec<AtomicU64> = (0..zoo.count()).map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(64);
    thread::scope(|scope| {
        for seed in 0..64 {
            let (zoo, debits, barrier) = (&zoo, &debits, &barrier);
            scope.spawn(move || {
                let mut random = Random(seed);
                barrier.wait();
                let mut refused = Vec::new();
                for _ in 0..200 {
                    let count = 1 + random.below(4) as usize;
                    let set: Vec<_> = (0..count)
                        .map(|_| (random.below(25) as usize, 1 + random.below(3)))
                        .collect();
                    let charges: Vec<_> =
                        set.iter().map(|(index, cost)| zoo.charge(*index, *cost)).collect();
                    if decide(&charges).is_allowed() {
                        set.iter().for_each(|(index, cost)| {
                            debits[*index].fetch_add(*cost, Relaxed);
                        });
                    } else {
                        refused.push(set);
                    }
                }
                // Nothing refills, so a set that was refused once is refused for good: a refusal
                // that saw a state that never existed would pass now.
                for set in refused {
                    let charges: Vec<_> =
                        set.iter().map(|(index, cost)| zoo.charge(*index, *cost)).collect();
                    assert!(Limits::new(&charges).unwrap().peek().is_denied());
                }
            });
        }
    });
    for (index, debits) in debits.iter().enumerate() {
        assert_eq!(zoo.available(index), 300 - debits.load(Relaxed), "limit {index}");
    }
    assert!(debits.iter().any(|debits| debits.load(Relaxed) > 290), "the limits were tight");
}

/// Sets and single takers on the same words: each permit is charged once.
#[test]
fn single_takers_and_sets_mixed() {
    let zoo = Zoo::new(6_400);
    let [from_sets, single] = [AtomicU64::new(0), AtomicU64::new(0)];
    let barrier = Barrier::new(64);
    thread::scope(|scope| {
        for seed in 0..64_u64 {
            let (zoo, barrier, from_sets, single) = (&zoo, &barrier, &from_sets, &single);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..100 {
                    if seed % 2 == 0 {
                        let charges: Vec<_> =
                            (0..zoo.count()).map(|it| zoo.charge(it, 1)).collect();
                        from_sets.fetch_add(u64::from(decide(&charges).is_allowed()), Relaxed);
                    } else {
                        let passed = zoo.limiters.iter().all(|it| it.try_acquire().is_allowed())
                            && zoo.keyed.iter().all(|it| {
                                it.try_acquire("one").is_allowed()
                                    && it.try_acquire("two").is_allowed()
                            });
                        assert!(passed, "there is enough for everybody");
                        single.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!((from_sets.load(Relaxed), single.load(Relaxed)), (3_200, 3_200));
    assert!((0..zoo.count()).all(|index| zoo.available(index) == 0), "and not one permit more");
}
