//! How a borrowing tree decides: find the path, lock its buckets, apply the rule.

use super::{
    Admission, BorrowingTree, Buckets, Node, Tally,
    rule::{self, Ask, Bucket, Rung, Verdict},
};
use crate::{
    Charge, Tick,
    algorithm::Entry,
    hierarchy::{PathError, path::PathBytes},
    limits::{
        Taking, Target,
        few::Few,
        locks::{Locks, Room, State},
    },
    sync::{AtomicU64, Ordering::Relaxed},
    table::Full,
};

/// One class of a path with its two buckets.
#[derive(Clone, Copy)]
struct Place<'a> {
    node: &'a Node,
    rate: Charge<'a>,
    ceiling: Charge<'a>,
}

impl BorrowingTree {
    pub(super) fn decide(
        &self,
        path: &[&str],
        (now, cost): (Tick, u64),
        taking: Taking,
    ) -> Result<Admission, PathError> {
        let keys = PathBytes::new(path);
        let places = self.places(path, &keys, cost)?;
        let leaf = path.len();
        let priority = places.get(leaf).map_or(0, |place| place.node.priority());
        let ask = Ask { now, cost, priority };
        let Verdict { decision, lender } = loop {
            // The first time, because the tables evict: each has room for a key.
            if let Ok(verdict) = decide_once(&places, &ask, taking) {
                break verdict;
            }
        };
        let is_own = lender == Some(leaf);
        let admission = Admission { decision, lender, is_own };
        if taking != Taking::Look {
            count(&places, &admission);
        }
        Ok(admission)
    }

    /// Returns the classes of a path, from the root down.
    fn places<'a>(
        &'a self,
        path: &[&str],
        keys: &PathBytes,
        cost: u64,
    ) -> Result<Few<Place<'a>>, PathError> {
        let nodes = &self.inner.nodes;
        let mut places = Few::new();
        let mut at = 0;
        places.push(Place::of(&nodes[at], &[], cost));
        for (index, part) in path.iter().enumerate() {
            at = self.child(at, part).ok_or_else(|| self.lost(at, (path, index)))?;
            places.push(Place::of(&nodes[at], keys.key(&path[..=index]), cost));
        }
        Ok(places)
    }

    /// Says why a path ends at a node.
    fn lost(&self, at: usize, (path, index): (&[&str], usize)) -> PathError {
        let node = &self.inner.nodes[at];
        match &node.children {
            super::Children::Declared(known) if !known.is_empty() => PathError::UnknownClass {
                name: path[index].chars().take(40).collect(),
                parent: node.name.to_string(),
            },
            _ => PathError::TooLong { parts: path.len(), levels: index },
        }
    }
}

impl<'a> Place<'a> {
    fn of(node: &'a Node, key: &[u8], cost: u64) -> Self {
        let (rate, ceiling) = match &node.buckets {
            Buckets::One { rate, ceiling } => (rate.charge(cost), ceiling.charge(cost)),
            Buckets::Keyed { rate, ceiling } => (rate.charge(key, cost), ceiling.charge(key, cost)),
        };
        Self { node, rate, ceiling }
    }
}

/// Returns the state of a bucket.
fn state<'a>(charge: &Charge<'a>, now: Tick) -> State<'a> {
    match charge.target {
        Target::Key(core, key) => State::of_key(core, core.who(key, now).0),
        Target::Limiter(limiter) => State::of_limiter(limiter),
    }
}

fn decide_once(places: &Few<Place<'_>>, ask: &Ask, taking: Taking) -> Result<Verdict, Full> {
    let mut states = Few::new();
    for place in places.iter() {
        states.push([state(&place.rate, ask.now), state(&place.ceiling, ask.now)]);
    }
    let mut room = Room::new();
    let mut locks = Locks::take(&mut room, states.iter().flatten().copied());
    let mut rungs = Few::new();
    for (place, [rate, ceiling]) in places.iter().zip(states.iter()) {
        let (rate, ceiling) = (look(&mut locks, rate)?, look(&mut locks, ceiling)?);
        rungs.push(Rung { rate, ceiling, is_hard: place.node.is_hard() });
    }
    let verdict = rule::decide(&mut rungs, ask);
    if verdict.lender.is_some() && taking != Taking::Look {
        for (rung, [rate, ceiling]) in rungs.iter().zip(states.iter()) {
            store(&mut locks, rate, rung.rate.tat);
            store(&mut locks, ceiling, rung.ceiling.tat);
        }
    }
    Ok(verdict)
}

/// Copies a bucket.
fn look<'a>(locks: &mut Locks<'_, 'a>, state: &State<'a>) -> Result<Bucket, Full> {
    let found = locks.update(state, |entry| match entry {
        Entry::Word(rule, word) => rule.as_gcra().map(|gcra| Bucket { gcra: *gcra, tat: **word }),
        _ => None,
    })?;
    debug_assert!(found.is_some(), "a class's buckets are GCRA");
    found.ok_or(Full)
}

fn store<'a>(locks: &mut Locks<'_, 'a>, state: &State<'a>, tat: u64) {
    let stored = locks.update(state, |entry| {
        if let Entry::Word(_, word) = entry {
            **word = tat;
        }
    });
    debug_assert!(stored.is_ok(), "a table that evicts has room");
}

/// ORDERING: Relaxed. Counts for people to look at.
fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

fn count(places: &Few<Place<'_>>, admission: &Admission) {
    let cost = admission.decision.cost();
    let Some(Place { node, .. }) = places.iter().last() else { return };
    let Tally { admitted, borrowed, refused, .. } = &node.tally.0;
    let Some(lender) = admission.lender else {
        add(refused, cost);
        return;
    };
    add(admitted, cost);
    if admission.is_borrowed() {
        add(borrowed, cost);
        if let Some(lender) = places.get(lender) {
            add(&lender.node.tally.0.lent, cost);
        }
    }
}
