//! The machine alone, over random scripts: nothing is lost, nothing is there twice, nobody overtakes,
//! and the bounds hold at every step.

use super::machine::{AddEffects, AddOutcome, CoalescerMachine, FlushRules, Fold};
use crate::{Tick, pace::Pace, wait::Machine};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Wake, Waker},
    time::Duration,
};

#[derive(Clone, Debug)]
enum Op {
    TryAdd(u8),
    /// Somebody new waits for room.
    Wait(u8),
    /// Polls, or drops, one of those who wait.
    Poll(usize),
    Drop(usize),
    Pass(u64),
    /// The worker: ends the action that runs, if any, and asks for the next batch.
    Step,
    Flush,
    Discard,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..12_u8).prop_map(Op::TryAdd),
        6 => (0..12_u8).prop_map(Op::Wait),
        4 => (0..8_usize).prop_map(Op::Poll),
        2 => (0..8_usize).prop_map(Op::Drop),
        3 => (0..40_u64).prop_map(Op::Pass),
        5 => Just(Op::Step),
        1 => Just(Op::Flush),
        1 => Just(Op::Discard),
    ]
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        // ORDERING: Relaxed; one thread.
        self.0.fetch_add(1, Relaxed);
    }
}

struct Waiter {
    pair: Option<(u8, Vec<u64>)>,
    number: Option<u64>,
    woken: Arc<Count>,
}

struct World {
    machine: CoalescerMachine<u8, Vec<u64>>,
    max_size: usize,
    now: Tick,
    waiters: Vec<Waiter>,
    /// Each add has a number of its own.
    next_add: u64,
    accepted: Vec<u64>,
    left: Vec<u64>,
}

impl World {
    fn new(rules: FlushRules, pace: Pace) -> Self {
        let fold = Fold::With(Box::new(|held: &mut Vec<u64>, new| held.extend(new)));
        Self {
            machine: CoalescerMachine::new(rules, fold, pace),
            max_size: rules.max_size,
            now: Tick::from_secs(1),
            waiters: Vec::new(),
            next_add: 0,
            accepted: Vec::new(),
            left: Vec::new(),
        }
    }

    fn settle(&mut self, after: AddEffects<u8, Vec<u64>>, number: u64) -> AddOutcome {
        let answer = after.apply();
        if answer == AddOutcome::Added {
            self.accepted.push(number);
        }
        answer
    }

    fn poll(&mut self, index: usize) {
        let Some(mut waiter) = (index < self.waiters.len()).then(|| self.waiters.remove(index))
        else {
            return;
        };
        let (key, number) = waiter.pair.as_ref().map(|(key, adds)| (*key, adds[0])).unwrap();
        let waker = Waker::from(Arc::clone(&waiter.woken));
        let hash = u32::from(key % 3);
        let Waiter { pair, number: place, .. } = &mut waiter;
        let after = self.machine.wait(self.now, (hash, pair), place, waker);
        match self.settle(after, number) {
            AddOutcome::Added => assert!(waiter.pair.is_none() && waiter.number.is_none()),
            AddOutcome::Full => self.waiters.insert(index, waiter),
            AddOutcome::Closed => assert!(waiter.pair.is_some()),
        }
    }

    fn leave(&mut self, waiter: &Waiter) {
        if let Some(number) = waiter.number {
            drop(self.machine.leave(number));
        }
    }

    fn step(&mut self) -> bool {
        let batch = self.machine.next(self.now);
        drop(self.machine.waste());
        let Some(batch) = batch else { return false };
        let mut keys: Vec<u8> = batch.keys().copied().collect();
        assert!(batch.len() <= self.max_size && batch.len() > 0);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), batch.len(), "each key once");
        let adds = batch.adds();
        let numbers: Vec<u64> = batch.into_iter().flat_map(|(_, adds)| adds).collect();
        assert_eq!(numbers.len() as u64, adds);
        self.left.extend(numbers);
        true
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::TryAdd(key) => {
                self.next_add += 1;
                let number = self.next_add;
                let mut pair = Some((key, vec![number]));
                let after = self.machine.try_add(self.now, u32::from(key % 3), &mut pair);
                assert_eq!(self.settle(after, number) == AddOutcome::Added, pair.is_none());
            }
            Op::Wait(key) => {
                self.next_add += 1;
                let pair = Some((key, vec![self.next_add]));
                self.waiters.push(Waiter { pair, number: None, woken: Arc::default() });
                self.poll(self.waiters.len() - 1);
            }
            Op::Poll(index) => self.poll(index),
            Op::Drop(index) => {
                if index < self.waiters.len() {
                    let waiter = self.waiters.remove(index);
                    self.leave(&waiter);
                }
            }
            Op::Pass(ms) => self.now = self.now.saturating_add(Duration::from_millis(ms)),
            Op::Step => drop(self.step()),
            Op::Flush => drop(self.machine.flush(self.now)),
            Op::Discard => {
                let (held, _woken) = self.machine.discard();
                self.left.extend(held.into_iter().flat_map(|(_, adds)| adds));
            }
        }
    }

    fn check(&self) {
        assert!(self.machine.len() <= 2 * self.max_size, "two batches at most");
        assert!(self.machine.waiting() <= self.waiters.len(), "a place leaves with its future");
        assert!(
            self.machine.waiting() == 0 || self.machine.room() == 0,
            "nobody waits for nothing"
        );
        // Room is reserved in the order of the queue: every woken waiter is before all others.
        // ORDERING: Relaxed; one thread.
        let woken = |waiter: &Waiter| waiter.woken.0.load(Relaxed) > 0;
        let places: BTreeMap<u64, bool> =
            self.waiters.iter().filter_map(|w| Some((w.number?, woken(w)))).collect();
        assert!(places.values().is_sorted_by_key(|woken| !woken), "{places:?}");
    }
}

fn rules() -> impl Strategy<Value = (FlushRules, Option<u64>)> {
    let time = prop_oneof![
        Just((None, None, None)),
        (0..60_u64).prop_map(|window| (Some(window), None, None)),
        (1..60_u64).prop_map(|quiet| (None, Some(quiet), None)),
        (1..60_u64, 0..60_u64).prop_map(|(quiet, more)| (None, Some(quiet), Some(quiet + more))),
    ];
    (time, 1..6_usize, prop::option::of(1..80_u64)).prop_map(
        |((window, quiet, cap), max_size, pace)| {
            let ms = |ms: Option<u64>| ms.map(Duration::from_millis);
            (FlushRules { window: ms(window), quiet: ms(quiet), max_wait: ms(cap), max_size }, pace)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_accepted_pair_leaves_exactly_once(
        (rules, pace) in rules(),
        script in prop::collection::vec(op(), 0..120),
    ) {
        let pace = Pace::new(pace.map(Duration::from_millis), None).expect("an interval above zero");
        let mut world = World::new(rules, pace);
        for op in &script {
            world.run(op);
            world.check();
        }
        // The end: who waits is sent away with the pair, and the rest drains.
        drop(world.machine.close());
        while !world.waiters.is_empty() {
            world.poll(0);
        }
        world.machine.finish(world.now);
        drop(world.machine.waste());
        while let Some(due) = world.machine.due() {
            world.now = world.now.max(due);
            prop_assert!(world.step() , "what is due leaves");
        }
        prop_assert_eq!((world.machine.len(), world.machine.waiting()), (0, 0));
        world.left.sort_unstable();
        world.accepted.sort_unstable();
        prop_assert_eq!(&world.left, &world.accepted);
    }

    #[test]
    fn whoever_waits_is_woken_and_gets_in(
        (rules, _) in rules(),
        script in prop::collection::vec(op(), 0..120),
    ) {
        let mut world = World::new(rules, Pace::FREE);
        for op in &script {
            world.run(op);
        }
        // All others leave and the action is quick: every waiter gets in.
        let mut left = world.waiters.len();
        while left > 0 {
            drop(world.machine.flush(world.now));
            while world.step() {}
            let all = world.waiters.len();
            for index in (0..all).rev() {
                // ORDERING: Relaxed; one thread.
                if world.waiters[index].woken.0.load(Relaxed) > 0 {
                    world.poll(index);
                }
            }
            world.check();
            prop_assert!(world.waiters.len() < left, "one waiter got in");
            left = world.waiters.len();
        }
    }
}
