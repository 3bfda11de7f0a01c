//! How a borrowing tree decides: find the path, lock its buckets, apply the rule.

use super::{
    BorrowingDecision, BorrowingTree, Node, Tally,
    rule::{self, Ask, Bucket, Rung, Verdict},
};
use crate::{
    Charge, Tick,
    algorithm::Entry,
    hierarchy::{PathError, path::PathBytes},
    limits::{
        Taking,
        inline_vec::InlineVec,
        locks::{Locks, Room},
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
    ) -> Result<BorrowingDecision, PathError> {
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
        let decided = BorrowingDecision { decision, lender, is_own };
        if taking != Taking::Look {
            count(&places, &decided);
        }
        Ok(decided)
    }

    /// Returns the classes of a path, from the root down.
    fn places<'a>(
        &'a self,
        path: &[&str],
        keys: &PathBytes,
        cost: u64,
    ) -> Result<InlineVec<Place<'a>>, PathError> {
        let nodes = &self.inner.nodes;
        let mut places = InlineVec::new();
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
                parent: node.name().to_owned(),
            },
            _ => PathError::TooLong { parts: path.len(), levels: index },
        }
    }
}

impl<'a> Place<'a> {
    fn of(node: &'a Node, key: &[u8], cost: u64) -> Self {
        Self { node, rate: node.rate.charge(key, cost), ceiling: node.ceiling.charge(key, cost) }
    }
}

fn decide_once(places: &InlineVec<Place<'_>>, ask: &Ask, taking: Taking) -> Result<Verdict, Full> {
    let mut room = Room::new();
    let mut locks = Locks::new(&mut room);
    for place in places.iter() {
        locks.push(place.rate.of.state(ask.now));
        locks.push(place.ceiling.of.state(ask.now));
    }
    locks.lock(|_, _| debug_assert!(false, "the buckets of a path are distinct"));
    let mut rungs = InlineVec::new();
    for (index, place) in places.iter().enumerate() {
        let (rate, ceiling) = (look(&mut locks, 2 * index)?, look(&mut locks, 2 * index + 1)?);
        rungs.push(Rung { rate, ceiling, is_hard: place.node.is_hard() });
    }
    let verdict = rule::decide(&mut rungs, ask);
    if verdict.lender.is_some() && taking != Taking::Look {
        for (index, rung) in rungs.iter().enumerate() {
            store(&mut locks, 2 * index, rung.rate.tat);
            store(&mut locks, 2 * index + 1, rung.ceiling.tat);
        }
    }
    Ok(verdict)
}

/// Copies a bucket.
fn look(locks: &mut Locks<'_, '_>, number: usize) -> Result<Bucket, Full> {
    let found = locks.update(number, |entry| match entry {
        Entry::Word(rule, word) => rule.as_gcra().map(|gcra| Bucket { gcra: *gcra, tat: **word }),
        _ => None,
    })?;
    debug_assert!(found.is_some(), "a class's buckets are GCRA");
    found.ok_or(Full)
}

fn store(locks: &mut Locks<'_, '_>, number: usize, tat: u64) {
    let stored = locks.update(number, |entry| {
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

fn count(places: &InlineVec<Place<'_>>, decided: &BorrowingDecision) {
    let cost = decided.decision.cost();
    let Some(Place { node, .. }) = places.iter().last() else { return };
    let Tally { admitted, borrowed, refused, .. } = &node.tally.0;
    let Some(lender) = decided.lender else {
        add(refused, cost);
        return;
    };
    add(admitted, cost);
    if decided.is_borrowed() {
        add(borrowed, cost);
        if let Some(lender) = places.get(lender) {
            add(&lender.node.tally.0.lent, cost);
        }
    }
}
