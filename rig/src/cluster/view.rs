//! How one node sees the Cluster.

use crate::Redis;
use std::ops::RangeInclusive;

/// A reply of `CLUSTER NODES`, with nodes as places in the list of the rig, in that order.
///
/// Two are equal if they agree on who owns which slots, and who is a replica of whom.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    nodes: Vec<Node>,
}

#[derive(Debug, PartialEq, Eq)]
struct Node {
    place: usize,
    /// Its primary, if it is a replica.
    replica_of: Option<usize>,
    slots: Vec<RangeInclusive<u16>>,
}

impl View {
    pub(super) fn of(redis: &Redis, ids: &[String]) -> Self {
        let text = redis.cli(&["CLUSTER", "NODES"]);
        let mut nodes: Vec<_> = text.lines().filter_map(|line| Node::parse(line, ids)).collect();
        nodes.sort_by_key(|node| node.place);
        Self { nodes }
    }

    pub(super) fn known(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        let owns = |node: &&Node| node.slots.iter().any(|range| range.contains(&slot));
        self.nodes.iter().find(owns).map(|node| node.place)
    }

    pub(super) fn primaries(&self) -> Vec<usize> {
        let owning = self.nodes.iter().filter(|node| !node.slots.is_empty());
        owning.map(|node| node.place).collect()
    }

    pub(super) fn replicas(&self, primary: usize) -> Vec<usize> {
        let replicas = self.nodes.iter().filter(|node| node.replica_of == Some(primary));
        replicas.map(|node| node.place).collect()
    }

    pub(super) fn replicas_count(&self) -> usize {
        self.nodes.iter().filter(|node| node.replica_of.is_some()).count()
    }
}

impl Node {
    /// Reads `id address flags primary ping pong epoch link slot slot-slot ...`. A node whose id is not
    /// known yet is left out, and so is a slot that is on its way (`[1->-id]`).
    fn parse(line: &str, ids: &[String]) -> Option<Self> {
        let mut words = line.split_whitespace();
        let place_of = |id: &str| ids.iter().position(|known| known == id);
        let place = place_of(words.next()?)?;
        let primary = words.nth(2)?;
        let slots = words.skip(4).filter_map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Some(Self { place, replica_of: place_of(primary), slots: slots.collect() })
    }
}
