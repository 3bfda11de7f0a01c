//! The machine beside one debouncer for each key that is never taken away.

use super::{
    WhenKeysFull,
    machine::{Bounds, KeyedDebounce},
};
use crate::{
    Edge, Tick,
    debounce::machine::{Debounce, Rules},
    wait::Machine,
};
use proptest::prelude::*;
use std::{collections::HashMap, time::Duration};

type Machines = KeyedDebounce<u8, u32>;

#[derive(Clone, Copy, Debug)]
enum Step {
    Trigger(u8),
    Flush(u8),
    Cancel(u8),
    FlushAll,
    CancelAll,
    /// Time passes, and the worker is busy.
    Pass(u64),
    /// The worker takes at most so many jobs.
    Work(usize),
    /// Tick by tick, the worker takes what is due.
    Run(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0_u8..6;
    prop_oneof![
        10 => key().prop_map(Step::Trigger),
        2 => key().prop_map(Step::Flush),
        1 => key().prop_map(Step::Cancel),
        1 => Just(Step::FlushAll),
        1 => Just(Step::CancelAll),
        2 => (1_u64..6).prop_map(Step::Pass),
        2 => (1_usize..4).prop_map(Step::Work),
        8 => (1_u64..12).prop_map(Step::Run),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    let edges = prop_oneof![Just((false, true)), Just((true, false)), Just((true, true))];
    (1_u64..9, prop::option::of(0_u64..12), edges).prop_map(|(delay, more, edges)| Rules {
        delay: Duration::from_nanos(delay),
        max_wait: more.map(|more| Duration::from_nanos(delay + more)),
        leading: edges.0,
        trailing: edges.1,
        spaced: false,
    })
}

/// Finds keys of one hash in four, so that they collide.
fn hash(key: u8) -> u32 {
    u32::from(key % 4)
}

fn tick(now: u64) -> Tick {
    Tick::from_nanos(now)
}

struct Pair {
    rules: Rules,
    machine: Machines,
    model: HashMap<u8, Debounce<u32>>,
    last_trigger: HashMap<u8, u64>,
    now: u64,
}

impl Pair {
    fn new(rules: Rules) -> Self {
        let bounds = Bounds { max_keys: 6, when_full: WhenKeysFull::Refuse };
        let machine = KeyedDebounce::new(rules, bounds);
        Self { rules, machine, model: HashMap::new(), last_trigger: HashMap::new(), now: 1 }
    }

    fn model(&mut self, key: u8) -> &mut Debounce<u32> {
        let rules = self.rules;
        self.model.entry(key).or_insert_with(|| Debounce::new(rules))
    }

    /// Takes at most `most` jobs; tells whether there was none left.
    fn work(&mut self, most: usize) -> bool {
        let now = tick(self.now);
        for _ in 0..most {
            match self.machine.next(now) {
                Some((key, fired)) => {
                    assert_eq!(self.model(key).next(now).0, Some(fired), "key {key} at {now:?}");
                }
                None if self.machine.due().is_some_and(|due| due <= now) => {}
                None => return true,
            }
        }
        false
    }

    /// Takes everything that is due, and compares what is left.
    fn drain(&mut self) {
        assert!(self.work(1000));
        let now = tick(self.now);
        for key in 0..6 {
            assert_eq!(self.model(key).next(now).0, None, "key {key} at {now:?}");
            let is_pending = self.model(key).is_pending(now);
            assert_eq!(self.machine.is_pending(now, hash(key), |other| *other == key), is_pending);
        }
        // A key is held as long as it matters, and not longer.
        let delay = self.rules.delay.as_nanos() as u64;
        let matters = |key: &u8| {
            let is_young = self.last_trigger.get(key).is_some_and(|last| last + delay > self.now);
            is_young || self.model.get(key).is_some_and(|model| model.is_pending(now))
        };
        assert_eq!(self.machine.len(), (0..6).filter(matters).count(), "at {now:?}");
    }

    fn step(&mut self, step: Step, value: u32) {
        let now = tick(self.now);
        match step {
            Step::Trigger(key) => {
                let _ = self.model(key).trigger(now, value);
                assert!(self.machine.trigger(now, hash(key), (key, value)).is_ok());
                self.last_trigger.insert(key, self.now);
            }
            Step::Flush(key) => {
                let _ = self.model(key).flush(now);
                self.machine.flush(now, hash(key), |other| *other == key);
            }
            Step::Cancel(key) => {
                let _ = self.model(key).cancel();
                self.machine.cancel(hash(key), |other| *other == key);
                self.last_trigger.remove(&key);
            }
            Step::FlushAll => {
                self.model
                    .values_mut()
                    .for_each(|model| assert!(model.flush(now) < Some(u32::MAX)));
                self.machine.flush_all(now);
            }
            Step::CancelAll => {
                self.model.values_mut().for_each(|model| *model = Debounce::new(self.rules));
                self.machine.cancel_all();
                self.last_trigger.clear();
            }
            Step::Pass(ticks) => self.now += ticks,
            Step::Work(jobs) => {
                self.work(jobs);
            }
            Step::Run(ticks) => {
                for _ in 0..ticks {
                    self.drain();
                    self.now += 1;
                }
                self.drain();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_key_behaves_as_a_debouncer_of_its_own(
        rules in rules(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut pair = Pair::new(rules);
        for (value, step) in steps.into_iter().enumerate() {
            pair.step(step, value as u32);
        }
        // All goes quiet, and nothing is left.
        pair.step(Step::Run(9 + 21), 0);
        prop_assert_eq!((pair.machine.len(), pair.machine.due()), (0, None));
    }

    /// With trailing edges every trigger is part of a run, however little room there is.
    #[test]
    fn what_fires_early_is_not_lost(
        (rules, max_keys) in (rules(), 1_usize..4),
        steps in prop::collection::vec((0_u8..6, 0_u64..5, any::<bool>()), 1..100),
    ) {
        let rules = Rules { trailing: true, ..rules };
        let bounds = Bounds { max_keys, when_full: WhenKeysFull::FireFirst };
        let mut machine = Machines::new(rules, bounds);
        let (mut taken, mut ran, mut now) = (0, 0, 0);
        let fired = |job: Option<(u8, crate::Fired<u32>)>| match job {
            Some((_, fired)) => crate::Fired::triggers(&fired),
            None => 0,
        };
        for (key, pause, works) in steps {
            now += pause;
            // It is refused only while as many early fires wait as there may be.
            taken += u64::from(machine.trigger(tick(now), hash(key), (key, 0)).is_ok());
            prop_assert!(machine.len() <= 2 * max_keys);
            if works {
                ran += fired(machine.next(tick(now)));
            }
        }
        machine.finish(tick(now));
        while machine.due().is_some() {
            ran += fired(machine.next(tick(now)));
        }
        prop_assert_eq!((ran, machine.len()), (taken, 0));
    }
}

const TRAILING: Rules = Rules {
    delay: Duration::from_nanos(10),
    max_wait: None,
    leading: false,
    trailing: true,
    spaced: false,
};

fn trigger(machine: &mut Machines, now: u64, key: u8) {
    assert!(machine.trigger(tick(now), hash(key), (key, u32::from(key))).is_ok());
}

fn keys(machine: &mut Machines, now: u64) -> Vec<u8> {
    std::iter::from_fn(|| machine.next(tick(now)).map(|(key, _)| key)).collect()
}

fn roomy(rules: Rules) -> Machines {
    KeyedDebounce::new(rules, Bounds { max_keys: 100, when_full: WhenKeysFull::Refuse })
}

#[test]
fn fires_run_in_the_order_they_fell_due_also_when_the_worker_is_late() {
    let mut machine = roomy(TRAILING);
    for (now, key) in [(0, 3), (1, 1), (2, 2), (3, 3), (4, 5), (4, 4)] {
        trigger(&mut machine, now, key);
    }
    // Key 1 was due at 11, 2 at 12, 3 at 13, and 5 before 4 at 14.
    assert_eq!(keys(&mut machine, 50), [1, 2, 3, 5, 4]);
}

#[test]
fn flushing_all_keeps_the_order() {
    let mut machine = roomy(TRAILING);
    for (now, key) in [(0, 3), (1, 1), (2, 2)] {
        trigger(&mut machine, now, key);
    }
    assert_eq!(machine.flush_all(tick(5)).0, 3);
    trigger(&mut machine, 6, 7);
    assert_eq!(machine.flush_all(tick(6)).0, 4, "those wait for their turn, and one is new");
    assert_eq!(keys(&mut machine, 6), [3, 1, 2, 7]);
    assert_eq!(machine.len(), 4, "a trigger before the delay is over prolongs the old burst");
    assert_eq!((keys(&mut machine, 16), machine.len()), (vec![], 0));
}

#[test]
fn a_further_trigger_leaves_the_deadline_until_it_comes_to_the_head() {
    let mut machine = roomy(TRAILING);
    trigger(&mut machine, 0, 1);
    for now in 1..10 {
        trigger(&mut machine, now, 1);
        assert_eq!(machine.due(), Some(tick(10)));
    }
    assert_eq!((keys(&mut machine, 10), machine.due()), (vec![], Some(tick(19))));
    assert_eq!((keys(&mut machine, 19), machine.due()), (vec![1], None));
}

#[test]
fn many_slots_are_taken_away_in_portions() {
    let rules = Rules { leading: true, trailing: false, ..TRAILING };
    let bounds = Bounds { max_keys: 1000, when_full: WhenKeysFull::Refuse };
    let mut machine = KeyedDebounce::<u32, u32>::new(rules, bounds);
    for key in 0..1000 {
        assert!(machine.trigger(tick(0), key, (key, 0)).is_ok());
    }
    while machine.next(tick(0)).is_some() {}
    assert_eq!(machine.len(), 1000);
    let steps = std::iter::from_fn(|| {
        assert!(machine.next(tick(10)).is_none());
        machine.due().is_some().then_some(())
    });
    assert!(steps.count() >= 1000 / 64);
    assert_eq!(machine.len(), 0);
}

#[test]
fn the_early_fire_is_that_of_the_key_due_first() {
    let bounds = Bounds { max_keys: 2, when_full: WhenKeysFull::FireFirst };
    let mut machine = Machines::new(TRAILING, bounds);
    for (now, key) in [(0, 1), (1, 2), (2, 3)] {
        trigger(&mut machine, now, key);
    }
    assert_eq!((machine.len(), machine.due()), (3, Some(Tick::ZERO)));
    assert!(machine.is_pending(tick(2), hash(1), |key| *key == 1));
    match machine.next(tick(2)) {
        Some((1, fired)) => assert_eq!(fired.edge(), Edge::Flush),
        other => panic!("{other:?}"),
    }
    assert_eq!(keys(&mut machine, 12), [2, 3]);
}

#[test]
fn a_key_that_fires_early_can_still_be_cancelled() {
    let bounds = Bounds { max_keys: 1, when_full: WhenKeysFull::FireFirst };
    let mut machine = Machines::new(TRAILING, bounds);
    trigger(&mut machine, 0, 1);
    trigger(&mut machine, 0, 2);
    assert!(machine.trigger(tick(0), hash(3), (3, 0)).is_err(), "one waits for its turn already");
    assert!(machine.cancel(hash(1), |key| *key == 1).0);
    assert!(!machine.cancel(hash(1), |key| *key == 1).0);
    assert_eq!(keys(&mut machine, 10), [2]);
}
