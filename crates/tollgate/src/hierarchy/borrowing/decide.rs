//! How a borrowing tree decides: find the path, lock its buckets, apply the rule.

use super::{
    BorrowingDecision, BorrowingTree, ClassCounters, Node,
    rule::{self, Bucket, PathBuckets, Request},
};
use crate::{
    Charge, Tick,
    algorithm::Entry,
    hierarchy::{PathError, path::PathBytes},
    multi::{
        Taking,
        inline_vec::InlineVec,
        locks::{LockBuffers, Locks},
    },
    sync::{AtomicU64, Ordering::Relaxed},
    table::Full,
};

/// One class of a path with its two buckets.
#[derive(Clone, Copy)]
struct PathNode<'a> {
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
        let nodes = self.nodes_of(path, &keys, cost)?;
        let request = Request { now, cost };
        let decided = loop {
            // The first time, because the tables evict: each has room for a key.
            if let Ok(decided) = decide_once(&nodes, &request, taking) {
                break decided;
            }
        };
        if taking != Taking::Look {
            count(&nodes, &decided);
        }
        Ok(decided)
    }

    /// Returns the classes of a path, from the root down.
    fn nodes_of<'a>(
        &'a self,
        path: &[&str],
        keys: &PathBytes,
        cost: u64,
    ) -> Result<InlineVec<PathNode<'a>>, PathError> {
        let all = &self.inner.nodes;
        let mut nodes = InlineVec::new();
        let mut at = 0;
        nodes.push(PathNode::of(&all[at], &[], cost));
        for (index, part) in path.iter().enumerate() {
            at = self.child(at, part).ok_or_else(|| self.path_error(at, (path, index)))?;
            nodes.push(PathNode::of(&all[at], keys.key(&path[..=index]), cost));
        }
        Ok(nodes)
    }

    /// Says why a path ends at a node.
    fn path_error(&self, at: usize, (path, index): (&[&str], usize)) -> PathError {
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

impl<'a> PathNode<'a> {
    fn of(node: &'a Node, key: &[u8], cost: u64) -> Self {
        Self { node, rate: node.rate.charge(key, cost), ceiling: node.ceiling.charge(key, cost) }
    }
}

fn decide_once(
    nodes: &InlineVec<PathNode<'_>>,
    request: &Request,
    taking: Taking,
) -> Result<BorrowingDecision, Full> {
    let mut buffers = LockBuffers::new();
    let mut locks = Locks::new(&mut buffers);
    for node in nodes.iter() {
        locks.push(node.rate.of.state(request.now));
        locks.push(node.ceiling.of.state(request.now));
    }
    locks.lock(|_, _| debug_assert!(false, "the buckets of a path are distinct"));
    let leaf = nodes.len().saturating_sub(1);
    let priority = nodes.get(leaf).map_or(0, |leaf| leaf.node.priority());
    let mut path = InlineVec::new();
    for (index, PathNode { node, .. }) in nodes.iter().enumerate() {
        let (rate, ceiling) = (look(&mut locks, 2 * index)?, look(&mut locks, 2 * index + 1)?);
        let reserve = if index == leaf { 0 } else { rate.reserve(priority) };
        path.push(PathBuckets { rate, ceiling, reserve, is_hard: node.is_hard() });
    }
    let decided = rule::decide(&mut path, request);
    if decided.lender.is_some() && taking != Taking::Look {
        for (index, buckets) in path.iter().enumerate() {
            store(&mut locks, 2 * index, buckets.rate.tat);
            store(&mut locks, 2 * index + 1, buckets.ceiling.tat);
        }
    }
    Ok(decided)
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
    debug_assert!(stored.is_ok(), "a table that evicts has buffers");
}

/// ORDERING: Relaxed. Counts for people to look at.
fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

fn count(nodes: &InlineVec<PathNode<'_>>, decided: &BorrowingDecision) {
    let cost = decided.decision.cost();
    let Some(PathNode { node, .. }) = nodes.iter().last() else { return };
    let ClassCounters { admitted, borrowed, refused, .. } = &node.counters.0;
    let Some(lender) = decided.lender else {
        add(refused, cost);
        return;
    };
    add(admitted, cost);
    if decided.is_borrowed() {
        add(borrowed, cost);
        if let Some(lender) = nodes.get(lender) {
            add(&lender.node.counters.0.lent, cost);
        }
    }
}
